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

use crate::collate::{CollateError, Field, Layout, PadFrom, Side, Source, Token};

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

/// `(name, values or "mask" or "positions", values per token, dtype of the batch, fill, out)`.
type Request<'py> = (String, Bound<'py, PyAny>, usize, String, i64, Option<Bound<'py, PyAny>>);

/// `(lengths, padded length, one flat array per field)`.
type Batch<'py> = (Bound<'py, PyArray1<i64>>, usize, Vec<Option<Bound<'py, PyAny>>>);

/// Pads the rows of one batch; returns its lengths, its padded length, and one flat array per field (None where `out`
/// took it).
#[pyfunction]
#[pyo3(signature = (offsets, samples, fields, *, left, pad_to_multiple_of))]
#[allow(clippy::needless_pass_by_value, reason = "what a caller passes arrives owned")]
pub(super) fn pad_rows<'py>(
    py: Python<'py>,
    offsets: &Bound<'py, PyAny>,
    samples: &Bound<'py, PyAny>,
    fields: Vec<Request<'py>>,
    left: bool,
    pad_to_multiple_of: usize,
) -> PyResult<Batch<'py>> {
    let offsets = read::<i64>("offsets", offsets)?;
    let samples = match samples.cast::<PyArray1<i64>>() {
        Ok(array) => array.try_readonly().map_err(|error| busy("samples", &error))?.as_array().to_vec(),
        Err(_) => samples.extract::<Vec<i64>>()?,
    };
    let side = if left { Side::Left } else { Side::Right };
    let layout = Layout::new(slice("offsets", &offsets)?, &samples, side, pad_to_multiple_of)?;

    let mut guards = fields.iter().map(Guard::new).collect::<PyResult<Vec<_>>>()?;
    refuse_overlap(&fields, &guards)?;
    let jobs = fields
        .iter()
        .zip(&mut guards)
        .map(|(request, guard)| Job::new(request, guard))
        .collect::<PyResult<Vec<_>>>()?;
    let written = py.detach(|| jobs.into_iter().map(|job| job.run(&layout)).collect::<Result<Vec<_>, _>>())?;
    let arrays = written.into_iter().map(|fresh| fresh.map(|fresh| fresh.into_array(py))).collect();
    Ok((PyArray1::from_vec(py, layout.lengths()), layout.padded_length(), arrays))
}

/// Refuses an `out` that shares memory with a buffer or another `out`: the slices made of them would alias.
fn refuse_overlap(fields: &[Request<'_>], guards: &[Guard<'_>]) -> PyResult<()> {
    let overlap = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start) < a.end.min(b.end);
    for (i, (request, guard)) in fields.iter().zip(guards).enumerate() {
        let Some(out) = guard.out.as_ref().map(WriteGuard::addresses) else { continue };
        let shared = |(j, other): (usize, &Guard<'_>)| {
            overlap(&out, &other.source.addresses())
                || i != j && other.out.as_ref().is_some_and(|other| overlap(&out, &other.addresses()))
        };
        if let Some(j) = guards.iter().enumerate().position(shared) {
            let (name, other) = (&request.0, &fields[j].0);
            return Err(PyValueError::new_err(format!(
                "out[\"{name}\"] shares memory with {other}; give every field a buffer of its own"
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

macro_rules! dtypes {
    (read $($token:ident)*; write $($value:ident)*) => {
        /// The borrow of a field's buffer, held until the batch is written.
        #[allow(non_camel_case_types)]
        enum ReadGuard<'py> { $($token(PyReadonlyArray1<'py, $token>),)* Mask, Positions }

        #[allow(non_camel_case_types)]
        enum WriteGuard<'py> { $($value(PyReadwriteArray1<'py, $value>),)* }

        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum AnySource<'a> { $($token(&'a [$token]),)* Mask, Positions }

        /// The dtype of a batch's field and the buffer that takes it, if the caller brought one.
        #[allow(non_camel_case_types)]
        enum Target<'a> { $($value(Option<&'a mut [$value]>),)* }

        #[allow(non_camel_case_types)]
        enum Fresh { $($value(Vec<$value>),)* }

        impl<'py> ReadGuard<'py> {
            fn new(name: &str, source: &Bound<'py, PyAny>) -> PyResult<Self> {
                if let Ok(word) = source.extract::<&str>() {
                    return match word {
                        "mask" => Ok(Self::Mask),
                        "positions" => Ok(Self::Positions),
                        _ => Err(PyValueError::new_err(format!("{name} = \"{word}\" is not an array, \"mask\" or \"positions\""))),
                    };
                }
                if source.getattr("flags")?.getattr("writeable")?.is_truthy()? {
                    return Err(PyValueError::new_err(format!(
                        "{name} is writeable; pass a read-only view, since it is read while other threads run"
                    )));
                }
                $(if source.cast::<PyArray1<$token>>().is_ok() {
                    return read(name, source).map(Self::$token);
                })*
                Err(unsupported(name, source))
            }

            /// Where the buffer lies; empty for what is made from the lengths.
            fn addresses(&self) -> Range<usize> {
                match self {
                    $(Self::$token(array) => addresses(array.data(), array.len()),)*
                    Self::Mask | Self::Positions => 0..0,
                }
            }

            fn source(&self, name: &str) -> PyResult<AnySource<'_>> {
                Ok(match self {
                    $(Self::$token(array) => AnySource::$token(slice(name, array)?),)*
                    Self::Mask => AnySource::Mask,
                    Self::Positions => AnySource::Positions,
                })
            }
        }

        impl<'py> WriteGuard<'py> {
            fn new(name: &str, dtype: &str, out: &Bound<'py, PyAny>) -> PyResult<Self> {
                match dtype {
                    $(stringify!($value) => {
                        let array = out.cast::<PyArray1<$value>>().map_err(|_| unsupported(name, out))?;
                        array.try_readwrite().map(Self::$value).map_err(|error| busy(name, &error))
                    })*
                    _ => Err(Target::unknown(dtype)),
                }
            }
        }

        impl WriteGuard<'_> {
            fn addresses(&self) -> Range<usize> {
                match self {
                    $(Self::$value(array) => addresses(array.data(), array.len()),)*
                }
            }
        }

        impl<'a> Target<'a> {
            fn new(name: &str, dtype: &str, out: Option<&'a mut WriteGuard<'_>>) -> PyResult<Self> {
                match (dtype, out) {
                    $((stringify!($value), None) => Ok(Self::$value(None)),)*
                    $((_, Some(WriteGuard::$value(array))) => {
                        let slice = array.as_slice_mut().map_err(|error| PyValueError::new_err(format!("{name}: {error}")))?;
                        Ok(Self::$value(Some(slice)))
                    })*
                    (_, None) => Err(Self::unknown(dtype)),
                }
            }

            fn unknown(dtype: &str) -> PyErr {
                PyValueError::new_err(format!("dtype = \"{dtype}\" is not one of {}", [$(stringify!($value)),*].join(", ")))
            }
        }

        impl Fresh {
            fn into_array(self, py: Python<'_>) -> Bound<'_, PyAny> {
                match self {
                    $(Self::$value(values) => PyArray1::from_vec(py, values).into_any(),)*
                }
            }
        }
    };
}

dtypes! { read i32 i64 u16 u8 u32 i16 i8 u64; write i64 u8 i32 i16 }

struct Guard<'py> {
    source: ReadGuard<'py>,
    out: Option<WriteGuard<'py>>,
}

impl<'py> Guard<'py> {
    fn new((name, source, _, dtype, _, out): &Request<'py>) -> PyResult<Self> {
        let out = out.as_ref().map(|out| WriteGuard::new(&format!("out[\"{name}\"]"), dtype, out)).transpose()?;
        Ok(Self { source: ReadGuard::new(name, source)?, out })
    }
}

/// One field of the batch as plain Rust memory: what the detached section works on.
struct Job<'a> {
    name: &'a str,
    source: AnySource<'a>,
    per_token: usize,
    fill: i64,
    target: Target<'a>,
}

impl<'a> Job<'a> {
    fn new((name, _, per_token, dtype, fill, _): &'a Request<'_>, guard: &'a mut Guard<'_>) -> PyResult<Self> {
        let source = guard.source.source(name)?;
        let target = Target::new(name, dtype, guard.out.as_mut())?;
        Ok(Self { name, source, per_token: *per_token, fill: *fill, target })
    }

    fn run(mut self, layout: &Layout) -> Result<Option<Fresh>, CollateError> {
        match std::mem::replace(&mut self.target, Target::i64(None)) {
            Target::i64(out) => Ok(self.widen(layout, out)?.map(Fresh::i64)),
            Target::i32(out) => Ok(self.widen(layout, out)?.map(Fresh::i32)),
            Target::i16(out) => match self.source {
                AnySource::i16(values) => Ok(self.pad(layout, self.values(values), out)?.map(Fresh::i16)),
                AnySource::Mask => Ok(self.pad::<i16, _>(layout, Source::Mask, out)?.map(Fresh::i16)),
                _ => Err(self.unsupported("i16")),
            },
            Target::u8(out) => match self.source {
                AnySource::u8(values) => Ok(self.pad(layout, self.values(values), out)?.map(Fresh::u8)),
                AnySource::Mask => Ok(self.pad::<u8, _>(layout, Source::Mask, out)?.map(Fresh::u8)),
                _ => Err(self.unsupported("u8")),
            },
        }
    }

    fn widen<D: Wide>(&self, layout: &Layout, out: Option<&mut [D]>) -> Result<Option<Vec<D>>, CollateError> {
        match self.source {
            AnySource::u8(values) => self.pad(layout, self.values(values), out),
            AnySource::i8(values) => self.pad(layout, self.values(values), out),
            AnySource::u16(values) => self.pad(layout, self.values(values), out),
            AnySource::i16(values) => self.pad(layout, self.values(values), out),
            AnySource::u32(values) => self.pad(layout, self.values(values), out),
            AnySource::i32(values) => self.pad(layout, self.values(values), out),
            AnySource::u64(values) => self.pad(layout, self.values(values), out),
            AnySource::i64(values) => self.pad(layout, self.values(values), out),
            AnySource::Mask => self.pad::<i64, _>(layout, Source::Mask, out),
            AnySource::Positions => self.pad::<i64, _>(layout, Source::Positions, out),
        }
    }

    fn values<S>(&self, values: &'a [S]) -> Source<'a, S> {
        Source::Values { values, per_token: self.per_token }
    }

    fn pad<S: Token, D: PadFrom<S>>(
        &self,
        layout: &Layout,
        source: Source<'_, S>,
        out: Option<&mut [D]>,
    ) -> Result<Option<Vec<D>>, CollateError> {
        let field = Field { name: self.name, source, fill: self.fill };
        match out {
            Some(out) => field.pad_into(layout, out).map(|()| None),
            None => field.pad(layout).map(Some),
        }
    }

    fn unsupported(&self, dtype: &'static str) -> CollateError {
        CollateError::Dtype { field: self.name.to_owned(), dtype }
    }
}

/// What every integer dtype can become.
trait Wide:
    PadFrom<u8> + PadFrom<i8> + PadFrom<u16> + PadFrom<i16> + PadFrom<u32> + PadFrom<i32> + PadFrom<u64> + PadFrom<i64>
{
}
impl Wide for i32 {}
impl Wide for i64 {}
