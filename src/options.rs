//! What a caller may ask of a plan: options, their defaults and their checks.
use crate::admission::{Empty, Overlong};
use crate::bucket::Boundaries;
use crate::cost::CostModel;
use crate::error::{Error, Result, check_range};
use crate::fields::{Combine, Field, MAX_FIELDS};
use crate::shapes::PaddedLengths;

/// How samples are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// By buckets of similar length, shuffled within each.
    Bucketed,
    /// By length: the least padding, and the same batches in every epoch.
    Sorted,
    /// By chance alone: the most padding.
    Random,
}

/// The options of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What a batch costs and may cost.
    pub cost: CostModel,
    /// To which lengths batches are padded, where that is not every multiple of `cost.pad_to_multiple_of`.
    pub padded_lengths: Option<PaddedLengths>,
    /// How each of several fields is padded, in place of `padded_lengths` and of what `cost` says of it; empty: one field.
    pub fields: Vec<Field>,
    /// How the costs of several fields make that of a sample.
    pub combine: Combine,
    /// Where the boundaries come from.
    pub boundaries: Boundaries,
    /// How samples are brought together.
    pub strategy: Strategy,
    /// Batches between two optimizer updates; 1: the batch order is shuffled plainly.
    pub window: u64,
    /// Ranks whose batches of one step should cost alike; divides `window`.
    pub align_ranks: u64,
    /// Whether every epoch has the same number of batches, a multiple of `window`.
    pub constant_count: bool,
    /// Samples that exceed the token budget by themselves.
    pub overlong: Overlong,
    /// Samples without tokens.
    pub empty: Empty,
    /// Threads to plan with; `None`: one below about a million samples, else one a core. The plan is the same.
    pub threads: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cost: CostModel {
                token_budget: 131_072,
                max_batch_size: None,
                min_batch_size: 1,
                pad_to_multiple_of: 1,
                padded_lengths: Vec::new(),
                per_sample: 0,
                quadratic_length: None,
            },
            padded_lengths: None,
            fields: Vec::new(),
            combine: Combine::Sum,
            boundaries: Boundaries::RepeatWeight(Boundaries::DEFAULT_REPEAT_WEIGHT),
            strategy: Strategy::Bucketed,
            window: 1,
            align_ranks: 1,
            constant_count: false,
            overlong: Overlong::Error,
            empty: Empty::Error,
            threads: None,
        }
    }
}

impl Options {
    /// Checks every option by itself and against the others.
    ///
    /// # Errors
    ///
    /// Names the first option that is out of range or contradicts another.
    pub fn validate(&self) -> Result<()> {
        const MAX: u64 = i64::MAX as u64;
        let CostModel { token_budget, max_batch_size, min_batch_size, pad_to_multiple_of, .. } = self.cost;
        let CostModel { per_sample, quadratic_length, .. } = self.cost;
        check_range("token_budget", Some(token_budget), 1, MAX)?;
        check_range("max_batch_size", max_batch_size, 1, MAX)?;
        check_range("min_batch_size", Some(min_batch_size), 1, 1 << 32)?;
        if min_batch_size > 1 && self.overlong == Overlong::Keep {
            let reason =
                "overlong = \"keep\" gives long samples a batch of their own; set overlong=\"drop\"".to_owned();
            return Err(Error::MinBatchSize { min_batch_size, reason });
        }
        check_range("pad_to_multiple_of", Some(pad_to_multiple_of), 1, MAX)?;
        check_range("per_sample", Some(per_sample), 0, MAX)?;
        check_range("quadratic_length", quadratic_length, 1, MAX)?;
        check_range("window", Some(self.window), 1, MAX)?;
        check_range("align_ranks", Some(self.align_ranks), 1, MAX)?;
        check_range("threads", self.threads.map(|threads| threads as u64), 1, MAX)?;
        if !self.window.is_multiple_of(self.align_ranks) {
            return Err(Error::AlignRanks { align_ranks: self.align_ranks, window: self.window });
        }
        if let Some(padded_lengths) = &self.padded_lengths {
            padded_lengths.validate("padded_lengths", pad_to_multiple_of)?;
        }
        if self.fields.is_empty() && self.combine != Combine::Sum {
            return Err(Error::NoEffect { name: "combine", with: "lengths of one field".to_owned() });
        }
        if !self.fields.is_empty() && !(2..=MAX_FIELDS).contains(&self.fields.len()) {
            return Err(Error::NumberOfFields { n_fields: self.fields.len(), max_fields: MAX_FIELDS });
        }
        for (number, field) in self.fields.iter().enumerate() {
            field.validate(number)?;
        }
        let strategy = match self.strategy {
            Strategy::Bucketed => return self.boundaries.validate(),
            Strategy::Sorted => "sorted",
            Strategy::Random => "random",
        };
        if self.boundaries == Self::default().boundaries {
            return Ok(());
        }
        Err(Error::NoEffect { name: self.boundaries.option(), with: format!("strategy = \"{strategy}\"") })
    }
}
