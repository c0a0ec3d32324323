//! The options of a plan, from Python and to it; see `bucketshuffle.PlanOptions`.
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};

use crate::boundaries::MAX_OPTIMAL_BUCKETS;
use crate::bucket::MAX_BUCKETS;
use crate::shapes::MAX_PADDED_LENGTHS;
use crate::{Boundaries, Empty, Error, Options, Overlong, PaddedLengths, Strategy};

const STRATEGIES: ([&str; 3], [Strategy; 3]) =
    (["bucketed", "sorted", "random"], [Strategy::Bucketed, Strategy::Sorted, Strategy::Random]);
const OVERLONG: ([&str; 3], [Overlong; 3]) =
    (["error", "drop", "keep"], [Overlong::Error, Overlong::Drop, Overlong::Keep]);
const EMPTY: ([&str; 2], [Empty; 2]) = (["error", "drop"], [Empty::Error, Empty::Drop]);

/// Every option by name, as a caller would write it.
pub(super) fn to_dict<'py>(py: Python<'py>, options: &Options) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("token_budget", options.cost.token_budget)?;
    dict.set_item("max_batch_size", options.cost.max_batch_size)?;
    let (mut repeat_weight, mut padding_target) = (Boundaries::DEFAULT_REPEAT_WEIGHT, None);
    match &options.boundaries {
        Boundaries::RepeatWeight(weight) => repeat_weight = *weight,
        Boundaries::PaddingTarget(target) => padding_target = Some(*target),
        Boundaries::Optimal(_) | Boundaries::Edges(_) => {}
    }
    match &options.boundaries {
        Boundaries::Optimal(n_buckets) => dict.set_item("boundaries", n_buckets)?,
        Boundaries::Edges(edges) => dict.set_item("boundaries", edges)?,
        _ => dict.set_item("boundaries", "auto")?,
    }
    dict.set_item("repeat_weight", repeat_weight)?;
    dict.set_item("padding_target", padding_target)?;
    dict.set_item("pad_to_multiple_of", options.cost.pad_to_multiple_of)?;
    match &options.padded_lengths {
        None => dict.set_item("padded_lengths", py.None())?,
        Some(PaddedLengths::Count(count)) => dict.set_item("padded_lengths", count)?,
        Some(PaddedLengths::List(lengths)) => dict.set_item("padded_lengths", lengths)?,
    }
    dict.set_item("per_sample", options.cost.per_sample)?;
    dict.set_item("quadratic_length", options.cost.quadratic_length)?;
    dict.set_item("strategy", word_of(options.strategy, STRATEGIES))?;
    dict.set_item("window", options.window)?;
    dict.set_item("align_ranks", options.align_ranks)?;
    dict.set_item("constant_count", options.constant_count)?;
    dict.set_item("overlong", word_of(options.overlong, OVERLONG))?;
    dict.set_item("empty", word_of(options.empty, EMPTY))?;
    dict.set_item("threads", options.threads)?;
    Ok(dict)
}

/// Every option that is given, over the defaults.
pub(super) fn parse(given: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let mut options = Options::default();
    let Some(given) = given else { return Ok(options) };
    let (mut repeat_weight, mut padding_target) = (Boundaries::DEFAULT_REPEAT_WEIGHT, None);
    for (name, value) in given {
        let name: String = name.extract()?;
        match name.as_str() {
            "token_budget" => options.cost.token_budget = integer("token_budget", &value, 1)?,
            "max_batch_size" => options.cost.max_batch_size = optional("max_batch_size", &value)?,
            "boundaries" => options.boundaries = parse_boundaries(&value)?,
            "repeat_weight" => repeat_weight = real("repeat_weight", &value)?,
            "padding_target" if value.is_none() => {}
            "padding_target" => padding_target = Some(real("padding_target", &value)?),
            "pad_to_multiple_of" => options.cost.pad_to_multiple_of = integer("pad_to_multiple_of", &value, 1)?,
            "padded_lengths" => options.padded_lengths = parse_padded_lengths(&value)?,
            "per_sample" => options.cost.per_sample = integer("per_sample", &value, 0)?,
            "quadratic_length" => options.cost.quadratic_length = optional("quadratic_length", &value)?,
            "strategy" => options.strategy = choice("strategy", &value, &STRATEGIES.0, STRATEGIES.1)?,
            "window" => options.window = integer("window", &value, 1)?,
            "align_ranks" => options.align_ranks = integer("align_ranks", &value, 1)?,
            "constant_count" => options.constant_count = flag("constant_count", &value)?,
            "overlong" => options.overlong = choice("overlong", &value, &OVERLONG.0, OVERLONG.1)?,
            "empty" => options.empty = choice("empty", &value, &EMPTY.0, EMPTY.1)?,
            "threads" => {
                options.threads = optional("threads", &value)?.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            }
            _ => {
                let names =
                    to_dict(given.py(), &options)?.keys().iter().map(|name| name.to_string()).collect::<Vec<_>>();
                return Err(PyTypeError::new_err(format!(
                    "{name} is not an option; the options are {}",
                    names.join(", ")
                )));
            }
        }
    }
    let weighted = repeat_weight != Boundaries::DEFAULT_REPEAT_WEIGHT;
    let hard = matches!(options.boundaries, Boundaries::Optimal(_) | Boundaries::Edges(_));
    match padding_target {
        Some(_) if hard => return Err(no_effect("padding_target", "boundaries", given)),
        None if hard && weighted => return Err(no_effect("repeat_weight", "boundaries", given)),
        Some(_) if weighted => return Err(no_effect("repeat_weight", "padding_target", given)),
        Some(padding_target) => options.boundaries = Boundaries::PaddingTarget(padding_target),
        None if !hard => options.boundaries = Boundaries::RepeatWeight(repeat_weight),
        None => {}
    }
    Ok(options)
}

fn no_effect(name: &'static str, beside: &str, given: &Bound<'_, PyDict>) -> PyErr {
    let value = given.get_item(beside).ok().flatten();
    Error::NoEffect { name, with: value.map_or_else(String::new, |value| format!("{beside} = {value}")) }.into()
}

fn parse_boundaries(value: &Bound<'_, PyAny>) -> PyResult<Boundaries> {
    if value.is_instance_of::<PyString>() {
        return choice("boundaries", value, &["auto"], [Options::default().boundaries]);
    }
    let refused = |n_edges| Error::NumberOfEdges { n_edges, max_edges: MAX_BUCKETS };
    if let Some(edges) = integers("boundaries", value, 0, MAX_BUCKETS, refused)? {
        return Ok(Boundaries::Edges(edges));
    }
    let n_buckets = in_range("boundaries", value, 1, MAX_OPTIMAL_BUCKETS as u64)?;
    Ok(Boundaries::Optimal(usize::try_from(n_buckets).unwrap_or(usize::MAX)))
}

fn parse_padded_lengths(value: &Bound<'_, PyAny>) -> PyResult<Option<PaddedLengths>> {
    if value.is_none() {
        return Ok(None);
    }
    let refused = |n_lengths| Error::NumberOfPaddedLengths { n_lengths, max_lengths: MAX_PADDED_LENGTHS };
    if let Some(lengths) = integers("padded_lengths", value, 1, MAX_PADDED_LENGTHS, refused)? {
        return Ok(Some(PaddedLengths::List(lengths)));
    }
    let count = in_range("padded_lengths", value, 1, MAX_OPTIMAL_BUCKETS as u64)?;
    Ok(Some(PaddedLengths::Count(usize::try_from(count).unwrap_or(usize::MAX))))
}

/// The integers of a sequence, which is `refused` before it is read where it has more than `most`; `None` for what is no
/// sequence.
fn integers(
    name: &str,
    value: &Bound<'_, PyAny>,
    min: u64,
    most: usize,
    refused: impl Fn(usize) -> Error,
) -> PyResult<Option<Vec<u64>>> {
    // An endless iterator has no length, and a 0-d array none either.
    if value.is_instance_of::<PyString>() || value.len().is_err() {
        if value.hasattr("__next__")? {
            return Err(wrong_type(name, value, "a sequence"));
        }
        return Ok(None);
    }
    if value.len()? > most {
        return Err(refused(value.len()?).into());
    }
    // No more than that of an iterator that never ends.
    let items = value.try_iter()?.take(most + 1).enumerate();
    items.map(|(i, item)| integer(&format!("{name}[{i}]"), &item?, min)).collect::<PyResult<_>>().map(Some)
}

/// An integer option; `min` stands in the message for negative values, the core checks the rest.
fn integer(name: &str, value: &Bound<'_, PyAny>, min: u64) -> PyResult<u64> {
    in_range(name, value, min, i64::MAX as u64)
}

fn optional(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if value.is_none() { Ok(None) } else { integer(name, value, 1).map(Some) }
}

pub(super) fn in_range(name: &str, value: &Bound<'_, PyAny>, min: u64, max: u64) -> PyResult<u64> {
    let is_bool = value.is_instance_of::<PyBool>();
    if is_bool || !value.hasattr("__index__")? {
        return Err(wrong_type(name, value, "an integer"));
    }
    match value.extract::<u64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => Err(wrong_type(name, value, "an integer")),
        _ => Err(Error::out_of_range(name, value, min, max).into()),
    }
}

fn real(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    let number = value.extract().map_err(|_| wrong_type(name, value, "a number"))?;
    if value.is_instance_of::<PyBool>() { Err(wrong_type(name, value, "a number")) } else { Ok(number) }
}

fn flag(name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.extract().map_err(|_| wrong_type(name, value, "True or False"))
}

fn word_of<T: Copy + PartialEq, const N: usize>(
    value: T,
    (words, choices): ([&'static str; N], [T; N]),
) -> &'static str {
    let known = words.into_iter().zip(choices).find(|(_, choice)| *choice == value);
    known.map_or("", |(word, _)| word)
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
