//! Why a batch cannot be padded; each message names the argument, its value and the way out.
use std::fmt;

/// Why a batch cannot be padded. The text is the message that a Python caller sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the numbers of the message, under its names")]
pub enum CollateError {
    /// No samples.
    EmptyBatch,
    /// A sample that the data set does not have.
    Sample { position: usize, sample: i64, n_samples: usize },
    /// Offsets that fall, or that start below zero.
    Offsets { sample: usize, start: i64, end: i64 },
    /// A row that ends after its field's last value.
    Values { field: String, sample: i64, end: usize, n_tokens: usize },
    /// A multiple of zero.
    Multiple,
    /// A rectangle that no memory can hold.
    Size { n_samples: usize, padded_length: usize },
    /// A value outside the output's range.
    Range { field: String, sample: i64, position: usize, value: String, dtype: &'static str },
    /// A fill value outside the output's range.
    Fill { field: String, fill: i64, dtype: &'static str },
    /// A dtype that the field's values cannot become.
    Dtype { field: String, dtype: &'static str },
    /// An output buffer shorter than the batch.
    Output { field: String, held: usize, n_samples: usize, padded_length: usize, per_token: usize },
}

impl fmt::Display for CollateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyBatch => f.write_str("samples is empty; a batch needs at least one sample"),
            Self::Sample { position, sample, n_samples } => {
                write!(f, "samples[{position}] = {sample} is outside 0 <= sample < n_samples = {n_samples}")
            }
            Self::Offsets { sample, start, end } => write!(
                f,
                "offsets[{sample}] = {start} and offsets[{}] = {end} are not 0 <= start <= end; offsets count tokens from 0 and never fall",
                sample + 1
            ),
            Self::Values { field, sample, end, n_tokens } => write!(
                f,
                "{field} holds {n_tokens} tokens, but sample {sample} ends at token {end}; offsets and values belong to different data"
            ),
            Self::Multiple => f.write_str("pad_to_multiple_of = 0 is not positive; use 1 for no rounding"),
            Self::Size { n_samples, padded_length } => write!(
                f,
                "a batch of {n_samples} samples padded to {padded_length} tokens does not fit in memory; lower token_budget or pad_to_multiple_of"
            ),
            Self::Range { field, sample, position, value, dtype } => {
                let way_out = if *dtype == "int64" { "correct the value" } else { "ask for a wider dtype" };
                write!(
                    f,
                    "{field} of sample {sample} has value {value} at token {position}, outside {dtype}; {way_out}"
                )
            }
            Self::Fill { field, fill, dtype } => {
                write!(f, "fill[\"{field}\"] = {fill} is outside {dtype}; choose another fill or a wider dtype")
            }
            Self::Dtype { field, dtype } => write!(f, "{field} does not pad to {dtype}; ask for i32 or i64"),
            Self::Output { field, held, n_samples, padded_length, per_token } => {
                write!(
                    f,
                    "out[\"{field}\"] holds {held} values, too few for a batch of shape ({n_samples}, {padded_length}"
                )?;
                if *per_token != 1 {
                    write!(f, ", {per_token}")?;
                }
                write!(f, "); make it at least {} long", n_samples * padded_length * per_token)
            }
        }
    }
}

impl std::error::Error for CollateError {}
