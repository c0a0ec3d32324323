//! Padded batches for Python: one call for a whole batch, all of its fields.
//!
//! A batch is written while detached from the interpreter, and the flat buffers are too big to copy first (a memory map
//! may exceed the memory), so this is the one place that touches `NumPy` memory without the interpreter lock. What
//! makes it sound:
//!
//! * Every number that decides *where* is read or written (offsets, samples, shapes) is copied and checked while
//!   attached. Another thread that breaks the rules below can change the value of a token; it cannot move an access out
//!   of bounds.
//! * A buffer must be flagged read-only, so no Python thread can write through it; `PreloadedDataset` flags its own and
//!   maps files with mode "r". Whoever keeps a writeable alias, or writes to the mapped file, breaks the data set's
//!   documented contract, as with Arrow.
//! * An `out` overlaps no other buffer of the call: the addresses are compared, since rust-numpy's borrow guards, which
//!   are held as well, do not see that two tensors share memory. Two calls in progress with one `out` are the caller's
//!   race, as in `torch.add(out=...)`.
use std::ops::Range;

use numpy::{
    Element, PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray1, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyIndexError, PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PySequence};

use crate::collate::{CastFrom, CollateError, Field, Rows, Side, Source, Token};
use crate::memory;

impl From<CollateError> for PyErr {
    fn from(error: CollateError) -> Self {
        let text = error.to_string();
        match error {
            // Not a ValueError: iteration over a data set by index stops at IndexError.
            CollateError::Sample { .. } => PyIndexError::new_err(text),
            CollateError::Dtype { .. } => PyTypeError::new_err(text),
            CollateError::Size { .. } => PyMemoryError::new_err(text),
            _ => PyValueError::new_err(text),
        }
    }
}

/// What Python asks of one field: an object with these attributes (`bucketshuffle.torch.fields.Request`).
#[derive(Clone, FromPyObject)]
pub(super) struct Request<'py> {
    name: String,
    /// A flat buffer, or "mask" or "positions".
    source: Bound<'py, PyAny>,
    /// Values of one token.
    per_token: usize,
    /// The dtype of the batch: "i64", "i32", "i16" or "u8".
    dtype: String,
    /// The value of padding.
    fill: i64,
    /// The buffer that takes the batch; None: a fresh one.
    out: Option<Bound<'py, PyAny>>,
}

/// What Python asks of the fields of one length: an object with these attributes
/// (`bucketshuffle.torch.fields.GroupRequest`).
#[derive(FromPyObject)]
pub(super) struct GroupRequest<'py> {
    /// `[n_samples + 1]`, int64, tokens before each sample and at the end.
    offsets: Bound<'py, PyAny>,
    fields: Vec<Request<'py>>,
    left: bool,
    pad_to_multiple_of: usize,
    padded_lengths: Vec<usize>,
}

/// `(lengths, padded length, one flat array per field)`.
type Padded<'py> = (Bound<'py, PyArray1<i64>>, usize, Vec<Option<Bound<'py, PyAny>>>);

/// Pads the rows of one batch, the fields of each group to its own longest; returns for each group the lengths, the padded
/// length, and one flat array per field (None where `out` took it).
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "what a caller passes arrives owned")]
pub(super) fn pad_rows<'py>(
    py: Python<'py>,
    samples: &Bound<'py, PyAny>,
    groups: Vec<GroupRequest<'py>>,
) -> PyResult<Vec<Padded<'py>>> {
    let samples = read_samples(samples)?;
    let rows_of = |group: &GroupRequest<'py>| {
        let offsets = read::<i64>("offsets", &group.offsets)?;
        let side = if group.left { Side::Left } else { Side::Right };
        let (lengths, multiple) = (&group.padded_lengths, group.pad_to_multiple_of);
        Ok::<_, PyErr>(Rows::padded_to(slice("offsets", &offsets)?, &samples, side, lengths, multiple)?)
    };
    let rows = groups.iter().map(rows_of).collect::<PyResult<Vec<_>>>()?;

    let fields: Vec<&Request<'_>> = groups.iter().flat_map(|group| &group.fields).collect();
    let mut held = fields.iter().map(|field| hold(field)).collect::<PyResult<Vec<_>>>()?;
    refuse_overlap(&fields, &held)?;
    let jobs = held.iter_mut().map(|buffers| buffers.job()).collect::<PyResult<Vec<_>>>()?;
    let rows_of_fields =
        groups.iter().zip(&rows).flat_map(|(group, rows)| std::iter::repeat_n(rows, group.fields.len()));
    let rows_of_fields: Vec<&Rows> = rows_of_fields.collect();
    let write = || jobs.into_iter().zip(rows_of_fields).map(|(job, rows)| job(rows)).collect::<Result<Vec<_>, _>>();
    let mut written = py.detach(write)?.into_iter();
    let padded = |(group, rows): (&GroupRequest<'py>, &Rows)| {
        let of_group = written.by_ref().take(group.fields.len());
        let arrays = of_group.map(|fresh| fresh.map(|fresh| fresh.into_array(py))).collect();
        Ok((PyArray1::from_vec(py, rows.lengths()?), rows.padded_length(), arrays))
    };
    groups.iter().zip(&rows).map(padded).collect()
}

/// A copy of the samples of a batch: an int64 array, or a sequence of integers.
fn read_samples(samples: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if let Ok(array) = samples.cast::<PyArray1<i64>>() {
        let array = array.try_readonly().map_err(|error| busy("samples", &error))?;
        return Ok(memory::collect(array.as_array().iter().copied())?);
    }
    let Ok(sequence) = samples.cast::<PySequence>() else {
        let kind = samples.get_type().name()?;
        return Err(PyTypeError::new_err(format!("samples is a {kind}, not a sequence of integers")));
    };
    let mut copy = memory::with_capacity(sequence.len()?)?;
    for (position, sample) in sequence.try_iter()?.enumerate() {
        let sample = sample?;
        if !sample.is_exact_instance_of::<PyInt>() && !is_integer(&sample)? {
            return Err(PyTypeError::new_err(format!("samples[{position}] = {} is not an integer", sample.repr()?)));
        }
        let index = sample.extract::<i64>().map_err(|_| {
            PyIndexError::new_err(format!(
                "samples[{position}] = {sample} is no sample; a data set has fewer than 2^63"
            ))
        })?;
        memory::push(&mut copy, index)?;
    }
    Ok(copy)
}

/// Whether an object is an integer of any framework; a bool is none, since a list of them would be a mask.
fn is_integer(sample: &Bound<'_, PyAny>) -> PyResult<bool> {
    if sample.is_instance_of::<PyBool>() || !sample.hasattr("__index__")? {
        return Ok(false);
    }
    let dtype = sample.getattr_opt("dtype")?;
    Ok(!dtype.is_some_and(|dtype| dtype.to_string().ends_with("bool")))
}

/// Refuses an `out` that shares memory with a buffer or another `out`: the slices made of them would alias.
fn refuse_overlap(fields: &[&Request<'_>], held: &[Box<dyn Held + '_>]) -> PyResult<()> {
    let overlap = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start) < a.end.min(b.end);
    for (i, (field, buffers)) in fields.iter().zip(held).enumerate() {
        let out = buffers.out();
        let shares =
            |(j, other): (usize, &dyn Held)| overlap(&out, &other.source()) || i != j && overlap(&out, &other.out());
        if let Some(j) = held.iter().map(AsRef::as_ref).enumerate().position(shares) {
            return Err(PyValueError::new_err(format!(
                "out[\"{}\"] shares memory with {}; give every field a buffer of its own",
                field.name, fields[j].name
            )));
        }
    }
    Ok(())
}

fn addresses<T>(array: *const T, n_values: usize) -> Range<usize> {
    array.addr()..array.addr() + n_values * size_of::<T>()
}

fn busy(name: &str, error: &numpy::BorrowError) -> PyErr {
    match error {
        numpy::BorrowError::NotWriteable => {
            PyValueError::new_err(format!("{name} is read-only; pass a writeable buffer"))
        }
        _ => PyValueError::new_err(format!(
            "{name} overlaps a buffer that is in use; give each batch in progress its own"
        )),
    }
}

fn read<'py, T: Element>(name: &str, array: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray1<'py, T>> {
    let array = array.cast::<PyArray1<T>>().map_err(|_| unsupported(name, array))?;
    array.try_readonly().map_err(|error| busy(name, &error))
}

fn slice<'a, T: Element>(name: &str, array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}

fn unsupported(name: &str, array: &Bound<'_, PyAny>) -> PyErr {
    let what = match array.cast::<PyUntypedArray>() {
        Ok(array) => format!("a {}-D array of dtype {}", array.ndim(), array.dtype()),
        Err(_) => array.get_type().to_string(),
    };
    PyTypeError::new_err(format!("{name} is {what}, not a 1-D array of a supported integer dtype"))
}

/// Writes one field of a batch. It is made while attached and runs detached, and holds plain Rust memory.
type Job<'a> = Box<dyn FnOnce(&Rows) -> Result<Option<Box<dyn Fresh>>, CollateError> + Send + 'a>;

/// The borrowed buffers of one field, whatever their dtypes; held until the batch is written.
trait Held {
    /// The addresses of what is read; empty for what is made from the lengths.
    fn source(&self) -> Range<usize>;
    /// The addresses of what is written to; empty where the batch is fresh.
    fn out(&self) -> Range<usize>;
    fn job(&mut self) -> PyResult<Job<'_>>;
}

/// A field of a batch that no `out` took.
trait Fresh: Send {
    fn into_array(self: Box<Self>, py: Python<'_>) -> Bound<'_, PyAny>;
}

impl<D: Element> Fresh for Vec<D> {
    fn into_array(self: Box<Self>, py: Python<'_>) -> Bound<'_, PyAny> {
        PyArray1::from_vec(py, *self).into_any()
    }
}

enum Values<'py, S: Element> {
    Array(PyReadonlyArray1<'py, S>),
    Mask,
    Positions,
}

/// Tokens of type `S` that become a batch of type `D`.
struct Buffers<'py, S: Element, D: Element> {
    name: String,
    values: Values<'py, S>,
    per_token: usize,
    fill: i64,
    out: Option<PyReadwriteArray1<'py, D>>,
}

impl<'py, S: Element, D: Element> Buffers<'py, S, D> {
    fn new(field: &Request<'py>, values: Values<'py, S>) -> PyResult<Self> {
        let out = match &field.out {
            None => None,
            Some(out) => {
                let name = format!("out[\"{}\"]", field.name);
                let array = out.cast::<PyArray1<D>>().map_err(|_| unsupported(&name, out))?;
                Some(array.try_readwrite().map_err(|error| busy(&name, &error))?)
            }
        };
        Ok(Self { name: field.name.clone(), values, per_token: field.per_token, fill: field.fill, out })
    }
}

impl<S: Element + Token, D: Element + CastFrom<S>> Held for Buffers<'_, S, D> {
    fn source(&self) -> Range<usize> {
        match &self.values {
            Values::Array(array) => addresses(array.data(), array.len()),
            Values::Mask | Values::Positions => 0..0,
        }
    }

    fn out(&self) -> Range<usize> {
        self.out.as_ref().map_or(0..0, |array| addresses(array.data(), array.len()))
    }

    fn job(&mut self) -> PyResult<Job<'_>> {
        let source = match &self.values {
            Values::Array(array) => Source::Values { values: slice(&self.name, array)?, per_token: self.per_token },
            Values::Mask => Source::Mask,
            Values::Positions => Source::Positions,
        };
        let field = Field { name: &self.name, source, fill: self.fill };
        Ok(match &mut self.out {
            None => Box::new(move |rows| Ok(Some(Box::new(field.pad::<D>(rows)?)))),
            Some(array) => {
                let out =
                    array.as_slice_mut().map_err(|error| PyValueError::new_err(format!("{}: {error}", self.name)))?;
                Box::new(move |rows| field.pad_into(rows, out).map(|()| None))
            }
        })
    }
}

/// Borrows the buffers of a field, by the dtype that its batch has.
fn hold<'py>(field: &Request<'py>) -> PyResult<Box<dyn Held + 'py>> {
    match field.dtype.as_str() {
        "i64" => widened::<i64>(field),
        "i32" => widened::<i32>(field),
        "i16" => copied::<i16>(field, "i16"),
        "u8" => copied::<u8>(field, "u8"),
        dtype => Err(PyValueError::new_err(format!("dtype = \"{dtype}\" is not one of i64, i32, i16, u8"))),
    }
}

/// A field of any integer dtype.
fn widened<'py, D: Wide>(field: &Request<'py>) -> PyResult<Box<dyn Held + 'py>> {
    if let Some(made) = made::<D>(field)? {
        return Ok(made);
    }
    // The dtypes that tokens mostly have come first.
    let dtypes = [
        array::<i32, D>,
        array::<i64, D>,
        array::<u16, D>,
        array::<u8, D>,
        array::<u32, D>,
        array::<i16, D>,
        array::<i8, D>,
        array::<u64, D>,
    ];
    dtypes
        .iter()
        .find_map(|array| array(field).transpose())
        .unwrap_or_else(|| Err(unsupported(&field.name, &field.source)))
}

/// A field whose values are copied bit for bit, such as floats that travel as integers of their size.
fn copied<'py, D: Element + Token + CastFrom<D>>(
    field: &Request<'py>,
    dtype: &'static str,
) -> PyResult<Box<dyn Held + 'py>> {
    let refused = || CollateError::Dtype { field: field.name.clone(), dtype };
    match made::<D>(field)? {
        Some(_) if field.source.eq("positions")? => Err(refused().into()),
        Some(made) => Ok(made),
        None => match array::<D, D>(field)? {
            Some(held) => Ok(held),
            // Another integer dtype, or none at all.
            None => widened::<i64>(&Request { out: None, ..field.clone() }).and_then(|_| Err(refused().into())),
        },
    }
}

/// A field that is made from the lengths; None: one that has values.
fn made<'py, D: Element + Token + CastFrom<D>>(field: &Request<'py>) -> PyResult<Option<Box<dyn Held + 'py>>> {
    let Ok(word) = field.source.extract::<&str>() else { return Ok(None) };
    let values = match word {
        "mask" => Values::<D>::Mask,
        "positions" => Values::Positions,
        _ => {
            let name = &field.name;
            return Err(PyValueError::new_err(format!(
                "{name} = \"{word}\" is not an array, \"mask\" or \"positions\""
            )));
        }
    };
    Ok(Some(Box::new(Buffers::<D, D>::new(field, values)?)))
}

/// A field whose values are of type `S`; None: they are not.
fn array<'py, S, D>(field: &Request<'py>) -> PyResult<Option<Box<dyn Held + 'py>>>
where
    S: Element + Token,
    D: Element + CastFrom<S>,
{
    let (name, source) = (&field.name, &field.source);
    if source.cast::<PyArray1<S>>().is_err() {
        return Ok(None);
    }
    if source.getattr("flags")?.getattr("writeable")?.is_truthy()? {
        return Err(PyValueError::new_err(format!(
            "{name} is writeable; pass a read-only view, since it is read while other threads run"
        )));
    }
    Ok(Some(Box::new(Buffers::<S, D>::new(field, Values::Array(read(name, source)?))?)))
}

/// What every integer dtype can become.
trait Wide:
    Element
    + Token
    + CastFrom<u8>
    + CastFrom<i8>
    + CastFrom<u16>
    + CastFrom<i16>
    + CastFrom<u32>
    + CastFrom<i32>
    + CastFrom<u64>
    + CastFrom<i64>
    + CastFrom<Self>
{
}
impl Wide for i32 {}
impl Wide for i64 {}
