//! The options of a plan, from Python and to it; see `bucketshuffle.PlanOptions`.
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyMapping, PyString};

use crate::boundaries::MAX_OPTIMAL_BUCKETS;
use crate::bucket::MAX_BUCKETS;
use crate::shapes::MAX_PADDED_LENGTHS;
use crate::{Boundaries, Combine, Empty, Error, Field, Options, Overlong, PaddedLengths, Strategy, Weight};

const STRATEGIES: ([&str; 3], [Strategy; 3]) =
    (["bucketed", "sorted", "random"], [Strategy::Bucketed, Strategy::Sorted, Strategy::Random]);
const OVERLONG: ([&str; 3], [Overlong; 3]) =
    (["error", "drop", "keep"], [Overlong::Error, Overlong::Drop, Overlong::Keep]);
const COMBINE: ([&str; 2], [Combine; 2]) = (["sum", "max"], [Combine::Sum, Combine::Max]);
const EMPTY: ([&str; 2], [Empty; 2]) = (["error", "drop"], [Empty::Error, Empty::Drop]);

/// Every option by name, as a caller would write it.
pub(super) fn to_dict<'py>(py: Python<'py>, options: &Options) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("token_budget", options.cost.token_budget)?;
    dict.set_item("max_batch_size", options.cost.max_batch_size)?;
    dict.set_item("min_batch_size", options.cost.min_batch_size)?;
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
    // One field has the options of the cost model.
    let one_field = [Field {
        pad_to_multiple_of: options.cost.pad_to_multiple_of,
        padded_lengths: options.padded_lengths.clone(),
        quadratic_length: options.cost.quadratic_length,
        ..Field::default()
    }];
    let fields = if options.fields.is_empty() { &one_field[..] } else { &options.fields };
    set_of_fields(&dict, "pad_to_multiple_of", fields, |field| field.pad_to_multiple_of)?;
    set_of_fields(&dict, "padded_lengths", fields, |field| field.padded_lengths.clone())?;
    dict.set_item("per_sample", options.cost.per_sample)?;
    set_of_fields(&dict, "quadratic_length", fields, |field| field.quadratic_length)?;
    set_of_fields(&dict, "field_weights", fields, |field| field.weight)?;
    dict.set_item("combine", word_of(options.combine, COMBINE))?;
    dict.set_item("strategy", word_of(options.strategy, STRATEGIES))?;
    dict.set_item("window", options.window)?;
    dict.set_item("align_ranks", options.align_ranks)?;
    dict.set_item("constant_count", options.constant_count)?;
    dict.set_item("overlong", word_of(options.overlong, OVERLONG))?;
    dict.set_item("empty", word_of(options.empty, EMPTY))?;
    dict.set_item("threads", options.threads)?;
    Ok(dict)
}

impl<'py> IntoPyObject<'py> for PaddedLengths {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        match self {
            Self::Count(count) => Ok(count.into_pyobject(py)?.into_any()),
            Self::List(lengths) => lengths.into_pyobject(py),
        }
    }
}

impl<'py> IntoPyObject<'py> for Weight {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        match self {
            Self { numerator, denominator: 1 } => Ok(numerator.into_pyobject(py)?.into_any()),
            _ => Ok((self.numerator as f64 / self.denominator as f64).into_pyobject(py)?.into_any()),
        }
    }
}

/// Sets an option to its one value, or where the fields have different ones, to a mapping of these.
fn set_of_fields<'py, T: PartialEq + IntoPyObject<'py>>(
    dict: &Bound<'py, PyDict>,
    name: &str,
    fields: &[Field],
    value: impl Fn(&Field) -> T,
) -> PyResult<()> {
    if fields.iter().all(|field| value(field) == value(&fields[0])) {
        return dict.set_item(name, value(&fields[0]));
    }
    let by_field = PyDict::new(dict.py());
    for (number, field) in fields.iter().enumerate() {
        match &field.name {
            Some(key) => by_field.set_item(key, value(field))?,
            None => by_field.set_item(number, value(field))?,
        }
    }
    dict.set_item(name, by_field)
}

/// Sets an option of every field from one value for all, a sequence of one for each, or a mapping by name or number of
/// some. `parse` gets the option as the caller would write it, and `is_one` tells a value for all from a sequence.
fn parse_of_fields<T: Clone>(
    name: &str,
    given: &Bound<'_, PyAny>,
    fields: &mut [Field],
    is_one: bool,
    parse: impl Fn(&str, &Bound<'_, PyAny>) -> PyResult<T>,
    set: impl Fn(&mut Field, T),
) -> PyResult<()> {
    let labels: Vec<String> = fields.iter().enumerate().map(|(number, field)| field.label(number)).collect();
    if let Ok(mapping) = given.cast::<PyMapping>() {
        for item in mapping.items()?.iter() {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let label = key.extract::<String>().map_or_else(|_| key.to_string(), |key| format!("\"{key}\""));
            let Some(number) = labels.iter().position(|known| *known == label) else {
                return Err(PyValueError::new_err(format!(
                    "{name}[{label}] is of no field; the fields are {}",
                    labels.join(", ")
                )));
            };
            set(&mut fields[number], parse(&format!("{name}[{label}]"), &value)?);
        }
        return Ok(());
    }
    if is_one {
        let value = parse(name, given)?;
        for field in fields.iter_mut() {
            set(field, value.clone());
        }
        return Ok(());
    }
    let (n_values, n_fields) = (given.len()?, fields.len());
    if n_values != n_fields {
        return Err(PyValueError::new_err(format!(
            "{name} has {n_values} values for {n_fields} fields; pass one value for all, or one for each"
        )));
    }
    for (number, field) in fields.iter_mut().enumerate() {
        set(field, parse(&format!("{name}[{}]", labels[number]), &given.get_item(number)?)?);
    }
    Ok(())
}

fn is_sequence(value: &Bound<'_, PyAny>) -> bool {
    !value.is_instance_of::<PyString>() && value.len().is_ok()
}

/// Whether a value is a sequence of integers alone, such as one list of padded lengths.
fn is_integers(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    for item in value.try_iter()?.take(MAX_PADDED_LENGTHS) {
        let item = item?;
        if item.is_none() || is_sequence(&item) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A number as the nearest ratio of small integers: 0.1 is 1 / 10.
fn parse_weight(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Weight> {
    let number = real(name, value)?;
    let most = Weight::MAX as f64;
    if !(1.0 / most..=most).contains(&number) {
        return Err(Error::out_of_range(name, number, 1.0 / most, most).into());
    }
    let fraction = value.py().import("fractions")?.getattr("Fraction")?.call1((number,))?;
    let nearest = fraction.call_method1("limit_denominator", (Weight::MAX,))?;
    Ok(Weight {
        numerator: nearest.getattr("numerator")?.extract()?,
        denominator: nearest.getattr("denominator")?.extract()?,
    })
}

/// Every option that is given, over the defaults. `names`: of several fields; empty: there is one.
pub(super) fn parse(given: Option<&Bound<'_, PyDict>>, names: Vec<Option<String>>) -> PyResult<Options> {
    let mut options = Options::default();
    let mut fields: Vec<Field> = names.into_iter().map(|name| Field { name, ..Field::default() }).collect();
    let several = fields.len() > 1;
    let Some(given) = given else { return Ok(Options { fields, ..options }) };
    let (mut repeat_weight, mut padding_target) = (Boundaries::DEFAULT_REPEAT_WEIGHT, None);
    for (name, value) in given {
        let name: String = name.extract()?;
        match name.as_str() {
            "token_budget" => options.cost.token_budget = integer("token_budget", &value, 1)?,
            "max_batch_size" => options.cost.max_batch_size = optional("max_batch_size", &value)?,
            "min_batch_size" => options.cost.min_batch_size = integer("min_batch_size", &value, 1)?,
            "boundaries" => options.boundaries = parse_boundaries(&value)?,
            "repeat_weight" => repeat_weight = real("repeat_weight", &value)?,
            "padding_target" if value.is_none() => {}
            "padding_target" => padding_target = Some(real("padding_target", &value)?),
            "pad_to_multiple_of" if several => {
                let parse = |name: &str, value: &Bound<'_, PyAny>| integer(name, value, 1);
                parse_of_fields(&name, &value, &mut fields, !is_sequence(&value), parse, |field, multiple| {
                    field.pad_to_multiple_of = multiple;
                })?;
            }
            "padded_lengths" if several => {
                let is_one = !is_sequence(&value) || is_integers(&value)?;
                parse_of_fields(&name, &value, &mut fields, is_one, parse_padded_lengths, |field, lengths| {
                    field.padded_lengths = lengths;
                })?;
            }
            "quadratic_length" if several => {
                parse_of_fields(&name, &value, &mut fields, !is_sequence(&value), optional, |field, length| {
                    field.quadratic_length = length;
                })?;
            }
            "field_weights" if several => {
                parse_of_fields(&name, &value, &mut fields, !is_sequence(&value), parse_weight, |field, weight| {
                    field.weight = weight;
                })?;
            }
            "field_weights" if is_sequence(&value) || parse_weight("field_weights", &value)? != Weight::ONE => {
                return Err(Error::NoEffect { name: "field_weights", with: "lengths of one field".to_owned() }.into());
            }
            "field_weights" => {}
            "combine" => options.combine = choice("combine", &value, &COMBINE.0, COMBINE.1)?,
            "pad_to_multiple_of" => options.cost.pad_to_multiple_of = integer("pad_to_multiple_of", &value, 1)?,
            "padded_lengths" => options.padded_lengths = parse_padded_lengths("padded_lengths", &value)?,
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
    options.fields = fields;
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

fn parse_padded_lengths(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<PaddedLengths>> {
    if value.is_none() {
        return Ok(None);
    }
    let max_lengths = MAX_PADDED_LENGTHS;
    let refused = |n_lengths| Error::NumberOfPaddedLengths { name: name.to_owned(), n_lengths, max_lengths };
    if let Some(lengths) = integers(name, value, 1, MAX_PADDED_LENGTHS, refused)? {
        return Ok(Some(PaddedLengths::List(lengths)));
    }
    let count = in_range(name, value, 1, MAX_OPTIMAL_BUCKETS as u64)?;
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
