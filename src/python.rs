//! The Python extension module `bucketshuffle._core`; the only place, with its submodules, that names pyo3 or numpy.
//!
//! Arrays come in whole and go out whole. Lengths are copied, narrowed and checked while attached to the interpreter;
//! planning runs detached; the finished vectors become NumPy arrays without a copy.
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use numpy::{Element, IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::fields::MAX_LENGTH;
use crate::threads::Check;
use crate::{Closed, EpochPlan, Error, Field, Lengths, Options, Planner, Totals, memory};

mod collate;
mod options;

#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::PyPlanner;
    #[pymodule_export]
    use super::collate::pad_rows;
    #[pymodule_export]
    use super::pack_epoch;
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))?;
        m.add("DEFAULTS", super::options::to_dict(m.py(), &super::Options::default())?)?;
        m.add("ORDER_VERSION", crate::ORDER_VERSION)?;
        m.add("DFLASH_BOUNDARIES", crate::DFLASH_BOUNDARIES.to_vec())
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::OutOfMemory { .. } => PyMemoryError::new_err(text),
            _ => PyValueError::new_err(text),
        }
    }
}

/// One epoch of `lengths`; see `bucketshuffle.pack_epoch`.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "those of the Python function")]
#[pyo3(signature = (lengths, admitted, domains, names, seed, epoch, **options))]
fn pack_epoch<'py>(
    py: Python<'py>,
    lengths: &Bound<'py, PyUntypedArray>,
    admitted: Option<&Bound<'py, PyArray1<bool>>>,
    domains: Option<&Bound<'_, PyArray1<i64>>>,
    names: Option<Vec<String>>,
    seed: &Bound<'py, PyAny>,
    epoch: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let (seed, epoch) = (seed_or_epoch("seed", seed)?, seed_or_epoch("epoch", epoch)?);
    let planner = planner(py, lengths, admitted, domains, names, options)?;
    plan_into_numpy(py, planner.n_samples(), planner.n_fields(), |indices, check| {
        planner.into_plan_to(indices, seed, epoch, check)
    })
}

/// Lengths sorted into buckets once; see `bucketshuffle.Planner`.
#[pyclass(name = "Planner", module = "bucketshuffle._core", frozen)]
struct PyPlanner(Planner);

#[pymethods]
impl PyPlanner {
    #[new]
    #[pyo3(signature = (lengths, admitted, domains, names, **options))]
    fn new(
        py: Python<'_>,
        lengths: &Bound<'_, PyUntypedArray>,
        admitted: Option<&Bound<'_, PyArray1<bool>>>,
        domains: Option<&Bound<'_, PyArray1<i64>>>,
        names: Option<Vec<String>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        planner(py, lengths, admitted, domains, names, options).map(Self)
    }

    fn plan<'py>(
        &self,
        py: Python<'py>,
        seed: &Bound<'py, PyAny>,
        epoch: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (seed, epoch) = (seed_or_epoch("seed", seed)?, seed_or_epoch("epoch", epoch)?);
        plan_into_numpy(py, self.0.n_samples(), self.0.n_fields(), |indices, check| {
            self.0.plan_to(indices, seed, epoch, check)
        })
    }

    /// `[n_batches * n_fields]`, tokens of a row of batches whose longest samples have `longest` tokens.
    fn padded_length<'py>(&self, longest: &Bound<'py, PyArray1<i64>>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (py, longest) = (longest.py(), longest.readonly());
        let padded = |(i, &tokens): (usize, &i64)| saturate(self.0.padded_length(i, tokens as u64).into());
        to_array(py, longest.as_array().into_iter().enumerate().map(padded))
    }

    /// `[n_batches]`, cost of batches of `n_samples` whose longest samples have `longest` tokens, `[n_batches * n_fields]`.
    fn batch_cost<'py>(
        &self,
        n_samples: &Bound<'py, PyArray1<i64>>,
        longest: &Bound<'py, PyArray1<i64>>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (py, n_samples, longest) = (longest.py(), n_samples.readonly(), longest.readonly());
        let batches = n_samples.as_array().into_iter().zip(longest.as_slice()?.chunks_exact(self.0.n_fields()));
        to_array(py, batches.map(|(&n, tokens)| saturate(self.0.batch_cost(n as usize, tokens))))
    }

    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        options::to_dict(py, self.0.options())
    }

    /// The padded lengths of each field that were given or chosen; empty where there are no such.
    #[getter]
    fn padded_lengths<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyArray1<i64>>>> {
        let of_field = |f| to_array(py, self.0.padded_lengths(f).iter().map(|&length| length as i64));
        (0..self.0.n_fields()).map(of_field).collect()
    }

    /// `pad_to_multiple_of` of each field.
    #[getter]
    fn multiples(&self) -> Vec<u64> {
        let options = self.0.options();
        if options.fields.is_empty() {
            return vec![options.cost.pad_to_multiple_of];
        }
        options.fields.iter().map(|field| field.pad_to_multiple_of).collect()
    }

    fn n_batches(&self, py: Python<'_>) -> PyResult<usize> {
        detached(py, |check| self.0.n_batches_until(check))
    }

    fn n_packed_batches(&self, py: Python<'_>) -> PyResult<usize> {
        detached(py, |check| self.0.n_packed_batches_until(check))
    }

    #[getter]
    fn boundaries<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        to_array(py, self.0.boundaries().iter().map(|&edge| edge as i64))
    }

    #[getter]
    fn dropped<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        to_array(py, self.0.dropped().iter().map(|&index| index as i64))
    }
}

fn to_array(py: Python<'_>, numbers: impl Iterator<Item = i64>) -> PyResult<Bound<'_, PyArray1<i64>>> {
    Ok(memory::collect(numbers)?.into_pyarray(py))
}

/// Runs `work` detached from the interpreter, which has a look at its signals ten times a second: what a handler raises,
/// such as `KeyboardInterrupt`, ends the work.
fn detached<T: Send>(py: Python<'_>, work: impl FnOnce(Check<'_>) -> Result<T, Error> + Send) -> PyResult<T> {
    const PERIOD: Duration = Duration::from_millis(100);
    let caller = thread::current().id();
    let (next_look, raised) = (Mutex::new(Instant::now() + PERIOD), OnceLock::new());
    let check = || {
        // Only the caller's thread may run handlers.
        if thread::current().id() == caller {
            let mut next_look = next_look.lock().unwrap_or_else(PoisonError::into_inner);
            if Instant::now() >= *next_look {
                #[allow(clippy::redundant_closure_for_method_calls, reason = "the method is for one lifetime")]
                if let Err(error) = Python::attach(|py| py.check_signals()) {
                    raised.get_or_init(|| error);
                }
                *next_look = Instant::now() + PERIOD;
            }
        }
        if raised.get().is_some() { Err(Error::Interrupted) } else { Ok(()) }
    };
    let done = py.detach(|| work(&check));
    done.map_err(|error| raised.into_inner().unwrap_or_else(|| error.into()))
}

fn planner(
    py: Python<'_>,
    lengths: &Bound<'_, PyUntypedArray>,
    admitted: Option<&Bound<'_, PyArray1<bool>>>,
    domains: Option<&Bound<'_, PyArray1<i64>>>,
    names: Option<Vec<String>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Planner> {
    let n_fields = if lengths.ndim() == 2 { lengths.shape()[1] } else { 0 };
    let names = names.map_or_else(|| vec![None; n_fields], |names| names.into_iter().map(Some).collect());
    let options = options::parse(options, names)?;
    let admitted = admitted.map(|mask| Ok::<_, PyErr>(memory::copy(mask.readonly().as_slice()?)?)).transpose()?;
    let domains =
        domains.map(|of_samples| Ok::<_, PyErr>(memory::copy(of_samples.readonly().as_slice()?)?)).transpose()?;
    if lengths.ndim() == 2 {
        let lengths = copy_fields(lengths, &options.fields)?;
        return detached(py, move |check| {
            Planner::of_fields_until(check, lengths, admitted.as_deref(), domains.as_deref(), options)
        });
    }
    let lengths = OwnedLengths::copy(lengths)?;
    detached(py, move |check| {
        Planner::until(check, (&lengths).into(), admitted.as_deref(), domains.as_deref(), options)
    })
}

/// `[n_samples, n_fields]`: a copy of the lengths of several fields.
#[allow(clippy::cast_lossless, clippy::cast_sign_loss, reason = "one expression for all types")]
fn copy_fields(array: &Bound<'_, PyUntypedArray>, fields: &[Field]) -> PyResult<Vec<u32>> {
    macro_rules! copy_first_of {
        ($($integer:ty),*) => {
            $(if let Ok(array) = array.cast::<PyArray2<$integer>>() {
                let array = array.readonly();
                let lengths = array.as_slice()?;
                let copied = memory::collect(lengths.iter().map(|&length| length as u32))?;
                let fits = |(&length, &copied): (&$integer, &u32)| i128::from(length) == i128::from(copied);
                return match lengths.iter().zip(&copied).position(|pair| !fits(pair)) {
                    None => Ok(copied),
                    Some(i) => {
                        let (index, number) = (i / fields.len(), i % fields.len());
                        Err(Error::out_of_range(fields[number].place(number, index), lengths[i], 0, MAX_LENGTH).into())
                    }
                };
            })*
        };
    }
    copy_first_of!(i64, i32, u32, u16, u64, i16, u8, i8);
    Err(OwnedLengths::unsupported(array))
}

fn saturate(tokens: u128) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

/// Runs `plan` detached on a new array of indices, which nothing else refers to yet. NumPy allocates it, since it asks
/// the system for huge pages, which Rust's vectors do not: in fresh memory, 902,087 samples take 4.7 instead of 7.6 ms.
fn plan_into_numpy(
    py: Python<'_>,
    n_samples: usize,
    n_fields: usize,
    plan: impl FnOnce(&mut [i64], Check<'_>) -> Result<EpochPlan, Error> + Send,
) -> PyResult<Bound<'_, PyDict>> {
    let indices = py.import("numpy")?.call_method1("empty", (n_samples, "int64"))?.cast_into::<PyArray1<i64>>()?;
    let mut writable = indices.readwrite();
    let slice = writable.as_slice_mut()?;
    let plan = detached(py, |check| plan(slice, check))?;
    drop(writable);
    to_dict(py, indices, n_fields, plan)
}

/// The fields of `bucketshuffle.EpochPlan` by name.
fn to_dict<'py>(
    py: Python<'py>,
    indices: Bound<'py, PyArray1<i64>>,
    n_fields: usize,
    plan: EpochPlan,
) -> PyResult<Bound<'py, PyDict>> {
    let Totals { real_tokens, padded_tokens, cost, budget_tokens, dropped_tokens, closed, n_splits, window } =
        plan.totals;
    let Closed { by_budget, by_max_batch_size, by_bucket_end } = closed;
    let totals = PyDict::new(py);
    totals.set_item("real_tokens", real_tokens)?;
    totals.set_item("padded_tokens", padded_tokens)?;
    totals.set_item("cost", cost)?;
    totals.set_item("budget_tokens", budget_tokens)?;
    totals.set_item("dropped_tokens", dropped_tokens)?;
    totals.set_item("closed_by_budget", by_budget)?;
    totals.set_item("closed_by_max_batch_size", by_max_batch_size)?;
    totals.set_item("closed_by_bucket_end", by_bucket_end)?;
    totals.set_item("n_splits", n_splits)?;
    totals.set_item("window", window)?;
    let fields = PyDict::new(py);
    fields.set_item("indices", indices)?;
    fields.set_item("offsets", plan.offsets.into_pyarray(py))?;
    let padded_lengths = plan.padded_lengths.into_pyarray(py);
    if n_fields == 1 {
        fields.set_item("padded_lengths", padded_lengths)?;
    } else {
        fields.set_item("padded_lengths", padded_lengths.reshape([plan.costs.len(), n_fields])?)?;
    }
    fields.set_item("costs", plan.costs.into_pyarray(py))?;
    fields.set_item("buckets", plan.buckets.into_pyarray(py))?;
    if !plan.domains.is_empty() {
        let tokens = PyDict::new(py);
        plan.domain_tokens.into_iter().try_for_each(|(value, n_tokens)| tokens.set_item(value, n_tokens))?;
        fields.set_item("_domain_tokens", tokens)?;
        fields.set_item("domains", plan.domains.into_pyarray(py))?;
    }
    fields.set_item("boundaries", plan.boundaries.into_pyarray(py))?;
    fields.set_item("dropped", plan.dropped.into_pyarray(py))?;
    fields.set_item("_totals", totals)?;
    Ok(fields)
}

/// A copy of the caller's lengths: another Python thread may write to the original while this one is detached.
enum OwnedLengths {
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
}

impl<'a> From<&'a OwnedLengths> for Lengths<'a> {
    fn from(lengths: &'a OwnedLengths) -> Self {
        match lengths {
            OwnedLengths::U16(lengths) => Self::U16(lengths),
            OwnedLengths::U32(lengths) => Self::U32(lengths),
            OwnedLengths::U64(lengths) => Self::U64(lengths),
        }
    }
}

impl OwnedLengths {
    /// Copies a one-dimensional, contiguous array of any native integer type, as `bucketshuffle.lengths.as_lengths`
    /// returns it.
    fn copy(array: &Bound<'_, PyUntypedArray>) -> PyResult<Self> {
        macro_rules! copy_first_of {
            ($($integer:ty),*) => {
                $(if let Ok(array) = array.cast::<PyArray1<$integer>>() {
                    // The sign is extended, so that a negative length shows as a large word.
                    #[allow(clippy::cast_lossless, clippy::cast_sign_loss, reason = "one expression for all types")]
                    return Self::narrow(array, |length| length as i64 as u64, <$integer>::MIN != 0);
                })*
            };
        }
        copy_first_of!(i64, i32, u32, u16, u64, i16, u8, i8);
        Err(Self::unsupported(array))
    }

    fn unsupported(array: &Bound<'_, PyUntypedArray>) -> PyErr {
        let (dtype, n_dimensions) = (array.dtype(), array.ndim());
        PyTypeError::new_err(format!(
            "lengths is an array of {n_dimensions} dimensions and dtype {dtype}; pass one or two dimensions of native \
             integers"
        ))
    }

    fn narrow<T: Element + Copy>(
        array: &Bound<'_, PyArray1<T>>,
        to_word: impl Fn(T) -> u64,
        signed: bool,
    ) -> PyResult<Self> {
        let array = array.readonly();
        let lengths = array.as_slice()?;
        // Most lengths fit 16 bits, so they are copied before it is known whether they do: together, the words have a high
        // bit set where any of them has.
        let mut all_bits = 0;
        let narrowed = lengths.iter().map(|&length| {
            let word = to_word(length);
            all_bits |= word;
            word as u16
        });
        let narrowed = memory::collect(narrowed)?;
        match all_bits {
            0..=0xFFFF => Ok(Self::U16(narrowed)),
            0x1_0000..=0xFFFF_FFFF => {
                Ok(Self::U32(memory::collect(lengths.iter().map(|&length| to_word(length) as u32))?))
            }
            _ => match lengths.iter().position(|&length| signed && (to_word(length) as i64) < 0) {
                Some(index) => Err(Error::NegativeLength { index, value: to_word(lengths[index]) as i64 }.into()),
                None => Ok(Self::U64(memory::collect(lengths.iter().map(|&length| to_word(length)))?)),
            },
        }
    }
}

/// A seed or an epoch.
fn seed_or_epoch(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    options::in_range(name, value, 0, u64::MAX)
}
