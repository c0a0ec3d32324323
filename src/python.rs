//! The Python extension module `bucketshuffle._core`; the only place, with its submodules, that names pyo3 or numpy.
//!
//! Arrays come in whole and go out whole. Lengths are copied, narrowed and checked while attached to the interpreter;
//! planning runs detached; the finished vectors become NumPy arrays without a copy.
use numpy::{Element, IntoPyArray, PyArray1, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};

use crate::boundaries::MAX_OPTIMAL_BUCKETS;
use crate::{Boundaries, Closed, Empty, EpochPlan, Error, Lengths, Options, Overlong, Planner, Strategy, Totals};

mod collate;

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
        m.add("ORDER_VERSION", crate::ORDER_VERSION)?;
        m.add("DFLASH_BOUNDARIES", crate::DFLASH_BOUNDARIES.to_vec())
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        PyValueError::new_err(error.to_string())
    }
}

/// One epoch of `lengths`; see `bucketshuffle.pack_epoch`.
#[pyfunction]
#[pyo3(signature = (lengths, seed, epoch, **options))]
fn pack_epoch<'py>(
    py: Python<'py>,
    lengths: &Bound<'py, PyUntypedArray>,
    seed: &Bound<'py, PyAny>,
    epoch: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let (seed, epoch) = (word("seed", seed)?, word("epoch", epoch)?);
    let (options, lengths) = (parse_options(options)?, OwnedLengths::copy(lengths)?);
    let planner = py.detach(move || Planner::new(&lengths, options))?;
    plan_into_numpy(py, planner.n_samples(), |indices| planner.into_plan_to(indices, seed, epoch))
}

/// Lengths sorted into buckets once; see `bucketshuffle.Planner`.
#[pyclass(name = "Planner", module = "bucketshuffle._core", frozen)]
struct PyPlanner(Planner);

#[pymethods]
impl PyPlanner {
    #[new]
    #[pyo3(signature = (lengths, **options))]
    fn new(py: Python<'_>, lengths: &Bound<'_, PyUntypedArray>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let (options, lengths) = (parse_options(options)?, OwnedLengths::copy(lengths)?);
        Ok(Self(py.detach(|| Planner::new(&lengths, options))?))
    }

    fn plan<'py>(
        &self,
        py: Python<'py>,
        seed: &Bound<'py, PyAny>,
        epoch: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (seed, epoch) = (word("seed", seed)?, word("epoch", epoch)?);
        plan_into_numpy(py, self.0.n_samples(), |indices| self.0.plan_to(indices, seed, epoch))
    }

    /// `[n_batches]`, tokens of a row of batches whose longest samples have `longest` tokens.
    fn padded_length<'py>(&self, longest: &Bound<'py, PyArray1<i64>>) -> Bound<'py, PyArray1<i64>> {
        let longest_of = longest.readonly();
        let padded =
            longest_of.as_array().into_iter().map(|&tokens| saturate(self.0.padded_length(tokens as u64).into()));
        padded.collect::<Vec<_>>().into_pyarray(longest.py())
    }

    /// `[n_batches]`, cost of batches of `n_samples` whose longest samples have `longest` tokens.
    fn batch_cost<'py>(
        &self,
        n_samples: &Bound<'py, PyArray1<i64>>,
        longest: &Bound<'py, PyArray1<i64>>,
    ) -> Bound<'py, PyArray1<i64>> {
        let (n_samples, longest_of) = (n_samples.readonly(), longest.readonly());
        let batches = n_samples.as_array().into_iter().zip(longest_of.as_array());
        let costs = batches.map(|(&n, &tokens)| saturate(self.0.batch_cost(n as usize, tokens as u64)));
        costs.collect::<Vec<_>>().into_pyarray(longest.py())
    }

    fn n_batches(&self, constant: bool) -> usize {
        self.0.n_batches(constant)
    }

    #[getter]
    fn boundaries<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.0.boundaries().iter().map(|&edge| edge as i64).collect::<Vec<_>>().into_pyarray(py)
    }

    #[getter]
    fn dropped<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.0.dropped().iter().map(|&index| index as i64).collect::<Vec<_>>().into_pyarray(py)
    }
}

fn saturate(tokens: u128) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

/// Runs `plan` detached on a new array of indices, which nothing else refers to yet. NumPy allocates it, since it asks
/// the system for huge pages, which Rust's vectors do not: in fresh memory, 902,087 samples take 4.7 instead of 7.6 ms.
fn plan_into_numpy(
    py: Python<'_>,
    n_samples: usize,
    plan: impl FnOnce(&mut [i64]) -> EpochPlan + Send,
) -> PyResult<Bound<'_, PyDict>> {
    let indices = py.import("numpy")?.call_method1("empty", (n_samples, "int64"))?.cast_into::<PyArray1<i64>>()?;
    let mut writable = indices.readwrite();
    let slice = writable.as_slice_mut()?;
    let plan = py.detach(|| plan(slice));
    drop(writable);
    to_dict(py, indices, plan)
}

/// The fields of `bucketshuffle.EpochPlan` by name.
fn to_dict<'py>(py: Python<'py>, indices: Bound<'py, PyArray1<i64>>, plan: EpochPlan) -> PyResult<Bound<'py, PyDict>> {
    let Totals { real_tokens, padded_tokens, cost, budget_tokens, dropped_tokens, closed, n_splits } = plan.totals;
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
    let fields = PyDict::new(py);
    fields.set_item("indices", indices)?;
    fields.set_item("offsets", plan.offsets.into_pyarray(py))?;
    fields.set_item("padded_lengths", plan.padded_lengths.into_pyarray(py))?;
    fields.set_item("costs", plan.costs.into_pyarray(py))?;
    fields.set_item("buckets", plan.buckets.into_pyarray(py))?;
    fields.set_item("boundaries", plan.boundaries.into_pyarray(py))?;
    fields.set_item("dropped", plan.dropped.into_pyarray(py))?;
    fields.set_item("totals", totals)?;
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
        let (dtype, n_dimensions) = (array.dtype(), array.ndim());
        Err(PyTypeError::new_err(format!(
            "lengths is an array of {n_dimensions} dimensions and dtype {dtype}; pass one dimension of native integers"
        )))
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
        let narrowed = narrowed.collect();
        match all_bits {
            0..=0xFFFF => Ok(Self::U16(narrowed)),
            0x1_0000..=0xFFFF_FFFF => Ok(Self::U32(lengths.iter().map(|&length| to_word(length) as u32).collect())),
            _ => match lengths.iter().position(|&length| signed && (to_word(length) as i64) < 0) {
                Some(index) => Err(Error::NegativeLength { index, value: to_word(lengths[index]) as i64 }.into()),
                None => Ok(Self::U64(lengths.iter().map(|&length| to_word(length)).collect())),
            },
        }
    }
}

/// Every option that is given, over the defaults.
fn parse_options(given: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let mut options = Options::default();
    let Some(given) = given else { return Ok(options) };
    let boundaries = given.get_item("boundaries")?;
    if let Some(boundaries) = &boundaries {
        options.boundaries = parse_boundaries(boundaries)?;
    }
    for (name, value) in given {
        let name: String = name.extract()?;
        match name.as_str() {
            "token_budget" => options.cost.token_budget = integer("token_budget", &value, 1)?,
            "max_batch_size" => options.cost.max_batch_size = optional("max_batch_size", &value)?,
            "pad_to_multiple_of" => options.cost.pad_to_multiple_of = integer("pad_to_multiple_of", &value, 1)?,
            "per_sample" => options.cost.per_sample = integer("per_sample", &value, 0)?,
            "quadratic_length" => options.cost.quadratic_length = optional("quadratic_length", &value)?,
            "window" => options.window = integer("window", &value, 1)?,
            "align_ranks" => options.align_ranks = integer("align_ranks", &value, 1)?,
            "threads" => {
                options.threads = optional("threads", &value)?.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            }
            "constant_count" => options.constant_count = flag("constant_count", &value)?,
            "boundaries" => {}
            "padding_target" => match &mut options.boundaries {
                Boundaries::Auto { padding_target, .. } => *padding_target = real("padding_target", &value)?,
                _ => return Err(no_effect("padding_target", boundaries.as_ref())),
            },
            "min_batches_per_bucket" => match &mut options.boundaries {
                Boundaries::Auto { min_batches_per_bucket, .. } => {
                    *min_batches_per_bucket = integer("min_batches_per_bucket", &value, 1)?;
                }
                _ => return Err(no_effect("min_batches_per_bucket", boundaries.as_ref())),
            },
            "strategy" => {
                let choices = [Strategy::Bucketed, Strategy::Sorted, Strategy::Random];
                options.strategy = choice("strategy", &value, &["bucketed", "sorted", "random"], choices)?;
            }
            "overlong" => {
                let choices = [Overlong::Error, Overlong::Drop, Overlong::Keep];
                options.overlong = choice("overlong", &value, &["error", "drop", "keep"], choices)?;
            }
            "empty" => options.empty = choice("empty", &value, &["error", "drop"], [Empty::Error, Empty::Drop])?,
            _ => {
                return Err(PyTypeError::new_err(format!(
                    "{name} is not an option; the options are token_budget, max_batch_size, boundaries, \
                     padding_target, min_batches_per_bucket, pad_to_multiple_of, per_sample, quadratic_length, \
                     strategy, window, align_ranks, constant_count, overlong, empty and threads"
                )));
            }
        }
    }
    Ok(options)
}

fn parse_boundaries(value: &Bound<'_, PyAny>) -> PyResult<Boundaries> {
    if value.is_instance_of::<PyString>() {
        return choice("boundaries", value, &["auto"], [Options::default().boundaries]);
    }
    if let Ok(edges) = value.try_iter() {
        let edges = edges.enumerate().map(|(i, edge)| integer(&format!("boundaries[{i}]"), &edge?, 0));
        return Ok(Boundaries::Edges(edges.collect::<PyResult<_>>()?));
    }
    let n_buckets = in_range("boundaries", value, 1, MAX_OPTIMAL_BUCKETS as u64)?;
    Ok(Boundaries::Optimal(usize::try_from(n_buckets).unwrap_or(usize::MAX)))
}

fn no_effect(name: &'static str, boundaries: Option<&Bound<'_, PyAny>>) -> PyErr {
    let with = boundaries.map_or_else(String::new, |boundaries| format!("boundaries = {boundaries}"));
    Error::NoEffect { name, with }.into()
}

/// A seed or an epoch.
fn word(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    in_range(name, value, 0, u64::MAX)
}

/// An integer option; `min` stands in the message for negative values, the core checks the rest.
fn integer(name: &str, value: &Bound<'_, PyAny>, min: u64) -> PyResult<u64> {
    in_range(name, value, min, i64::MAX as u64)
}

fn optional(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if value.is_none() { Ok(None) } else { integer(name, value, 1).map(Some) }
}

fn in_range(name: &str, value: &Bound<'_, PyAny>, min: u64, max: u64) -> PyResult<u64> {
    let is_bool = value.is_instance_of::<PyBool>();
    if is_bool || !value.hasattr("__index__")? {
        return Err(wrong_type(name, value, "an integer"));
    }
    match value.extract::<u64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(Error::out_of_range(name, value, min, max).into()),
    }
}

fn real(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    value.extract().map_err(|_| wrong_type(name, value, "a number"))
}

fn flag(name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.extract().map_err(|_| wrong_type(name, value, "True or False"))
}

fn choice<T, const N: usize>(
    name: &'static str,
    value: &Bound<'_, PyAny>,
    allowed: &'static [&'static str; N],
    choices: [T; N],
) -> PyResult<T> {
    let Ok(text) = value.extract::<String>() else { return Err(wrong_type(name, value, "a string")) };
    let known = allowed.iter().zip(choices).find(|(word, _)| **word == text);
    known.map(|(_, choice)| choice).ok_or_else(|| Error::UnknownChoice { name, value: text, allowed }.into())
}

fn wrong_type(name: &str, value: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    let text = value.repr().map_or_else(|_| "the value".to_owned(), |text| text.to_string());
    PyTypeError::new_err(format!("{name} = {text} is not {wanted}"))
}
