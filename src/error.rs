//! What can be wrong with lengths and options; each message names the argument, its value, the limit and the way out.
use std::fmt;

/// The result of everything that checks its input.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no plan, mostly a mistake in what the caller passed. [`Display`](fmt::Display) is the full text that
/// Python users see.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A length of zero under `empty="error"`.
    EmptySample {
        /// Position of the first such sample.
        index: usize,
        /// How many samples are empty.
        n_empty: usize,
        /// How many samples there are.
        n_samples: usize,
    },
    /// A length below zero.
    NegativeLength {
        /// Position of the first such sample.
        index: usize,
        /// The length as passed.
        value: i64,
    },
    /// A sample that costs more than the token budget by itself, under `overlong="error"`.
    OverLong {
        /// Position of the first such sample.
        index: usize,
        /// Its length, tokens.
        length: u64,
        /// What a batch of this one sample costs, tokens.
        cost: u64,
        /// The budget, tokens.
        token_budget: u64,
        /// How many samples are over-long.
        n_overlong: usize,
        /// How many samples there are.
        n_samples: usize,
        /// The longest length of all, tokens.
        longest: u64,
    },
    /// A sample without tokens in any field under `empty="error"`.
    EmptyRow {
        /// The lengths of the first such sample, as the caller would write them.
        places: String,
        /// How many samples are empty.
        n_empty: usize,
        /// How many samples there are.
        n_samples: usize,
    },
    /// A sample of several fields that costs more than the token budget by itself, under `overlong="error"`.
    OverLongRow {
        /// The lengths of the first such sample, as the caller would write them.
        places: String,
        /// What a batch of this one sample costs, tokens.
        cost: u64,
        /// The budget, tokens.
        token_budget: u64,
        /// How many samples are over-long.
        n_overlong: usize,
        /// How many samples there are.
        n_samples: usize,
    },
    /// Lengths of several fields that belong to no whole number of samples.
    NumberOfLengths {
        /// How many were passed.
        n_lengths: usize,
        /// How many fields the options describe.
        n_fields: usize,
    },
    /// One field where several belong, or too many.
    NumberOfFields {
        /// How many were passed.
        n_fields: usize,
        /// The most that are accepted.
        max_fields: usize,
    },
    /// A sample that none of the padded lengths holds, under `overlong="error"`.
    BeyondPaddedLengths {
        /// Where the first such length stands, as the caller would write it.
        place: String,
        /// That length, tokens.
        length: u64,
        /// The list, as the caller would write it.
        name: String,
        /// Position of the last padded length.
        last_index: usize,
        /// That padded length, tokens.
        last: u64,
        /// How many samples are over-long.
        n_overlong: usize,
        /// How many samples there are.
        n_samples: usize,
        /// The longest length of all, tokens.
        longest: u64,
    },
    /// A kept over-long sample whose padded length does not fit the signed 64-bit output.
    PaddedLengthTooLarge {
        /// Position of the first such sample.
        index: usize,
        /// Its length, tokens.
        length: u64,
        /// `pad_to_multiple_of`, tokens.
        multiple: u64,
    },
    /// A length that no bucket holds.
    OutsideBoundaries {
        /// Position of the sample furthest outside, the first of these.
        index: usize,
        /// Its length, tokens.
        length: u64,
        /// Position of the edge that it lies beyond.
        edge_index: usize,
        /// That edge, tokens.
        edge: u64,
        /// Whether the length is the combined one of several fields.
        combined: bool,
        /// How many samples lie beyond it.
        n_outside: usize,
        /// How many samples there are.
        n_samples: usize,
    },
    /// Boundaries that do not ascend.
    UnorderedBoundaries {
        /// Position of the first edge that is not above the one before it.
        index: usize,
        /// That edge, tokens.
        edge: u64,
        /// The edge before it, tokens.
        previous: u64,
    },
    /// Fewer than two edges, or too many.
    NumberOfEdges {
        /// How many edges were passed.
        n_edges: usize,
        /// The most that are accepted.
        max_edges: usize,
    },
    /// Padded lengths that do not ascend.
    UnorderedPaddedLengths {
        /// The list, as the caller would write it.
        name: String,
        /// Position of the first length that is not above the one before it.
        index: usize,
        /// That length, tokens.
        length: u64,
        /// The length before it, tokens.
        previous: u64,
    },
    /// No padded length, or too many.
    NumberOfPaddedLengths {
        /// The list, as the caller would write it.
        name: String,
        /// How many were passed.
        n_lengths: usize,
        /// The most that are accepted.
        max_lengths: usize,
    },
    /// A mask of another size than the lengths.
    MaskSize {
        /// Entries of the mask.
        n_admitted: usize,
        /// How many samples there are.
        n_samples: usize,
    },
    /// An integer option outside its range.
    OutOfRange {
        /// The option as the caller typed it.
        name: String,
        /// Its value, as text.
        value: String,
        /// The smallest accepted value, as text.
        min: String,
        /// The largest accepted value, as text.
        max: String,
    },
    /// A word that is not among an option's allowed values.
    UnknownChoice {
        /// The option as the caller typed it.
        name: &'static str,
        /// The word.
        value: String,
        /// All allowed values.
        allowed: &'static [&'static str],
    },
    /// An option that another one makes meaningless.
    NoEffect {
        /// The option as the caller typed it.
        name: &'static str,
        /// The other one with its value.
        with: String,
    },
    /// `align_ranks` that does not divide `window`.
    AlignRanks {
        /// `align_ranks`, batches per step.
        align_ranks: u64,
        /// `window`, batches.
        window: u64,
    },
    /// Too few samples to give every batch of the constant count one of them.
    TooFewSamples {
        /// Samples to plan.
        n_samples: usize,
        /// Batches asked for.
        n_batches: usize,
        /// The number that the batch count must be a multiple of.
        window: u64,
    },
    /// A least batch size that some batch cannot have.
    MinBatchSize {
        /// `min_batch_size`, samples.
        min_batch_size: u64,
        /// Why not, and the way out.
        reason: String,
    },
    /// Domains of another number than the samples.
    NumberOfDomains {
        /// How many were passed.
        n_domains: usize,
        /// How many samples there are.
        n_samples: usize,
    },
    /// Memory that the system does not give.
    OutOfMemory {
        /// The size of the array that found no room.
        n_bytes: usize,
    },
    /// A caller that wants the call to end early.
    Interrupted,
}

impl Error {
    #[allow(clippy::needless_pass_by_value, reason = "numbers and short texts")]
    pub(crate) fn out_of_range(
        name: impl Into<String>,
        value: impl ToString,
        min: impl ToString,
        max: impl ToString,
    ) -> Self {
        Self::OutOfRange { name: name.into(), value: value.to_string(), min: min.to_string(), max: max.to_string() }
    }
}

/// Refuses an integer option outside `min..=max`; an option that is not set is always accepted.
pub(crate) fn check_range(name: &'static str, value: Option<u64>, min: u64, max: u64) -> Result<()> {
    match value {
        Some(value) if !(min..=max).contains(&value) => Err(Error::out_of_range(name, value, min, max)),
        _ => Ok(()),
    }
}

impl fmt::Display for Error {
    #[allow(clippy::too_many_lines, reason = "one arm a message, so that all messages can be read in one place")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptySample { index, n_empty, n_samples } => write!(
                f,
                "lengths[{index}] = 0 is below the shortest length = 1; remove the sample, or set empty=\"drop\" \
                 ({n_empty} of {n_samples} samples are empty)"
            ),
            Self::NegativeLength { index, value } => write!(
                f,
                "lengths[{index}] = {value} is below the shortest length = 1; pass the number of tokens of every sample"
            ),
            Self::OverLong { index, length, cost, token_budget, n_overlong, n_samples, longest } => {
                write!(f, "lengths[{index}] = {length} ")?;
                if cost != length {
                    write!(f, "costs {cost}, which ")?;
                }
                write!(
                    f,
                    "exceeds token_budget = {token_budget}; raise token_budget, or set overlong=\"drop\" or \"keep\" \
                     ({n_overlong} of {n_samples} samples are over-long, the longest is {longest})"
                )
            }
            Self::PaddedLengthTooLarge { index, length, multiple } => write!(
                f,
                "lengths[{index}] = {length} padded to pad_to_multiple_of = {multiple} exceeds the longest padded \
                 length = {}; correct the length, or set overlong=\"drop\"",
                i64::MAX
            ),
            Self::OutsideBoundaries { index, length, edge_index: 0, edge, combined, n_outside, n_samples } => write!(
                f,
                "{}lengths[{index}] = {length} is not above the first edge boundaries[0] = {edge}; start boundaries \
                 with an edge below {length}, or set boundaries=\"auto\" ({n_outside} of {n_samples} samples are not \
                 above it, this one is the shortest)",
                if *combined { "combined " } else { "" }
            ),
            Self::OutsideBoundaries { index, length, edge_index, edge, combined, n_outside, n_samples } => write!(
                f,
                "{}lengths[{index}] = {length} exceeds the last edge boundaries[{edge_index}] = {edge}; append an edge \
                 of {length} or more, or set boundaries=\"auto\" ({n_outside} of {n_samples} samples exceed it, this \
                 one is the longest)",
                if *combined { "combined " } else { "" }
            ),
            Self::EmptyRow { places, n_empty, n_samples } => write!(
                f,
                "{places} leave a sample without tokens; remove the sample, or set empty=\"drop\" ({n_empty} of \
                 {n_samples} samples are empty)"
            ),
            Self::OverLongRow { places, cost, token_budget, n_overlong, n_samples } => write!(
                f,
                "{places} cost {cost}, which exceeds token_budget = {token_budget}; raise token_budget, or set \
                 overlong=\"drop\" or \"keep\" ({n_overlong} of {n_samples} samples are over-long)"
            ),
            Self::NumberOfLengths { n_lengths, n_fields } => write!(
                f,
                "lengths has {n_lengths} lengths, which is no multiple of the {n_fields} fields; pass one length of \
                 each field for each sample"
            ),
            Self::NumberOfFields { n_fields, max_fields } => {
                write!(f, "lengths has {n_fields} fields, outside [2, {max_fields}]; pass one dimension for one field")
            }
            Self::BeyondPaddedLengths { place, length, name, last_index, last, n_overlong, n_samples, longest } => {
                write!(
                    f,
                    "{place} = {length} exceeds the last padded length {name}[{last_index}] = {last}; \
                 append a padded length of {longest} or more, or set overlong=\"drop\" or \"keep\" ({n_overlong} of \
                 {n_samples} samples are over-long, the longest is {longest})"
                )
            }
            Self::UnorderedPaddedLengths { name, index, length, previous } => write!(
                f,
                "{name}[{index}] = {length} does not exceed {name}[{}] = {previous}; pass strictly \
                 ascending lengths, such as [512, 1024, 2048]",
                index - 1
            ),
            Self::NumberOfPaddedLengths { name, n_lengths, max_lengths } => write!(
                f,
                "{name} has {n_lengths} lengths, outside [1, {max_lengths}]; pass the lengths that batches may \
                 be padded to, such as [512, 1024, 2048]"
            ),
            Self::MaskSize { n_admitted, n_samples } => {
                write!(f, "admitted has {n_admitted} entries, lengths has {n_samples}; pass one entry for each sample")
            }
            Self::UnorderedBoundaries { index, edge, previous } => write!(
                f,
                "boundaries[{index}] = {edge} does not exceed boundaries[{}] = {previous}; pass strictly ascending \
                 edges, such as [0, 512, 1024]",
                index - 1
            ),
            Self::NumberOfEdges { n_edges, max_edges } => write!(
                f,
                "boundaries has {n_edges} edges, outside [2, {max_edges}]; pass the lower edge of the first bucket \
                 and the upper edge of each, such as [0, 512, 1024]"
            ),
            Self::OutOfRange { name, value, min, max } => {
                write!(f, "{name} = {value} is outside [{min}, {max}]; choose a value in that range")
            }
            Self::UnknownChoice { name, value, allowed } => {
                write!(f, "{name} = \"{value}\" is not an allowed value; choose ")?;
                for (i, word) in allowed.iter().enumerate() {
                    let separator = match i {
                        0 => "",
                        _ if i + 1 == allowed.len() => " or ",
                        _ => ", ",
                    };
                    write!(f, "{separator}\"{word}\"")?;
                }
                Ok(())
            }
            Self::NoEffect { name, with } => write!(f, "{name} has no effect with {with}; leave {name} out"),
            Self::AlignRanks { align_ranks, window } => write!(
                f,
                "align_ranks = {align_ranks} does not divide window = {window}; set window to align_ranks times the \
                 accumulation steps"
            ),
            Self::TooFewSamples { n_samples, n_batches, window } => write!(
                f,
                "constant_count with window = {window} asks for {n_batches} batches, more than the {n_samples} samples; \
                 lower window (in a sampler: world_size * accumulation_steps), or plan more samples"
            ),
            Self::MinBatchSize { min_batch_size, reason } => {
                write!(f, "min_batch_size = {min_batch_size} cannot be kept: {reason}")
            }
            Self::NumberOfDomains { n_domains, n_samples } => {
                write!(f, "domains has {n_domains} entries, lengths has {n_samples}; pass one integer for each sample")
            }
            Self::OutOfMemory { n_bytes } => write!(
                f,
                "there is no memory for an array of {n_bytes} bytes; free memory, or pass fewer samples at a time"
            ),
            Self::Interrupted => f.write_str("planning was interrupted"),
        }
    }
}

impl std::error::Error for Error {}
