//! All that is done once for the plans of any number of epochs: the stages before the shuffle, in their order.
use std::sync::OnceLock;

use crate::admission::{Census, Selection, check_mask};
use crate::bucket::{self, Boundaries, Buckets};
use crate::by_length::ByLength;
use crate::cost::CostModel;
use crate::domains::{AnyLengths, Domain};
use crate::error::{Error, Result};
use crate::fields::{Fields, MAX_FIELDS};
use crate::lengths::{Length, Lengths};
use crate::memory;
use crate::options::{Options, Strategy};
use crate::plan::EpochPlan;
use crate::record::{Records, with_records};
use crate::rng::{N_PILOTS, Streams};
use crate::shapes::PaddedLengths;
use crate::sorted::sorted;
use crate::threads::{Check, NEVER};
use crate::{bands, boundaries};

/// Lengths validated and sorted once, for the plans of any number of epochs.
#[derive(Clone, Debug)]
pub struct Planner {
    pub(crate) options: Options,
    /// The cost model of the options, with the padded lengths that were chosen.
    pub(crate) model: CostModel,
    pub(crate) samples: Samples,
    /// The lengths of all fields, where there are several.
    pub(crate) fields: Option<Fields>,
    pub(crate) boundaries: Vec<u64>,
    pub(crate) dropped: Vec<usize>,
    pub(crate) dropped_tokens: u128,
    pub(crate) real_tokens: u128,
    /// The planners of the domains, ascending; empty without domains. They have the samples then.
    pub(crate) domains: Vec<Domain>,
    /// See [`Planner::n_packed_batches`]; counted when first asked for.
    n_packed: OnceLock<usize>,
}

/// The planned samples as the shuffle wants them.
#[derive(Clone, Debug)]
pub(crate) enum Samples {
    /// Hard buckets.
    InBuckets(Records, Buckets),
    /// In order of length, with soft buckets or without any.
    Sorted(ByLength<u32>),
    /// As many samples as 32 bits do not number.
    SortedWide(ByLength<u64>),
}

/// Evaluates one expression on records in buckets and another on samples in order of length, whatever their integer is.
macro_rules! with_samples {
    ($samples:expr, ($records:ident, $buckets:ident) => $hard:expr, $sorted:ident => $soft:expr) => {
        match $samples {
            Samples::InBuckets(records, $buckets) => with_records!(records, $records => $hard),
            Samples::Sorted($sorted) => $soft,
            Samples::SortedWide($sorted) => $soft,
        }
    };
}
pub(crate) use with_samples;

impl Planner {
    /// Validates options and lengths, finds the boundaries and sorts the samples.
    ///
    /// # Errors
    ///
    /// Names the first option or length that cannot be accepted.
    pub fn new<'a>(lengths: impl Into<Lengths<'a>>, options: Options) -> Result<Self> {
        Self::of_admitted(lengths, None, options)
    }

    /// Like `new`, for the samples that `admitted`, `[n_samples]`, selects; the others are left out and reported, whatever
    /// their lengths.
    ///
    /// # Errors
    ///
    /// Names the first option or admitted length that cannot be accepted, or says that the mask has another size.
    pub fn of_admitted<'a>(
        lengths: impl Into<Lengths<'a>>,
        admitted: Option<&[bool]>,
        options: Options,
    ) -> Result<Self> {
        Self::until(NEVER, lengths.into(), admitted, None, options)
    }

    /// Like `of_admitted`, for samples with as many lengths as `options` has fields: `[n_samples, n_fields]`.
    ///
    /// # Errors
    ///
    /// As `of_admitted`, and for lengths that make no whole number of samples.
    pub fn of_fields(lengths: Vec<u32>, admitted: Option<&[bool]>, options: Options) -> Result<Self> {
        Self::of_fields_until(NEVER, lengths, admitted, None, options)
    }

    /// Like `of_admitted`, for samples in `domains`, `[n_samples]`: no batch holds samples of two.
    ///
    /// # Errors
    ///
    /// As `of_admitted`, and for domains of another number than the samples.
    pub fn of_domains<'a>(
        lengths: impl Into<Lengths<'a>>,
        admitted: Option<&[bool]>,
        domains: &[i64],
        options: Options,
    ) -> Result<Self> {
        Self::until(NEVER, lengths.into(), admitted, Some(domains), options)
    }

    /// Like `of_admitted`, until `check` returns an error.
    pub(crate) fn until(
        check: Check<'_>,
        lengths: Lengths<'_>,
        admitted: Option<&[bool]>,
        domains: Option<&[i64]>,
        options: Options,
    ) -> Result<Self> {
        options.validate()?;
        if !options.fields.is_empty() {
            return Err(Error::NumberOfFields { n_fields: 1, max_fields: MAX_FIELDS });
        }
        let planner = match lengths {
            Lengths::U16(lengths) => Self::of_selected(lengths, admitted, options, None, check),
            Lengths::U32(lengths) => Self::of_selected(lengths, admitted, options, None, check),
            Lengths::U64(lengths) => Self::of_selected(lengths, admitted, options, None, check),
        }?;
        match domains {
            Some(domains) => planner.in_domains(AnyLengths::One(lengths), domains, check)?.with_count(check),
            None => planner.with_count(check),
        }
    }

    /// Like `of_fields`, until `check` returns an error.
    pub(crate) fn of_fields_until(
        check: Check<'_>,
        lengths: Vec<u32>,
        admitted: Option<&[bool]>,
        domains: Option<&[i64]>,
        options: Options,
    ) -> Result<Self> {
        options.validate()?;
        let (n_lengths, n_fields) = (lengths.len(), options.fields.len());
        if n_fields == 0 {
            return Err(Error::NumberOfFields { n_fields, max_fields: MAX_FIELDS });
        }
        if !n_lengths.is_multiple_of(n_fields) {
            return Err(Error::NumberOfLengths { n_lengths, n_fields });
        }
        check_mask(admitted, n_lengths / n_fields)?;
        let Some(domains) = domains else {
            return Self::of_fields_selected(lengths, admitted, options, check)?.with_count(check);
        };
        let planner = Self::of_fields_selected(memory::copy(&lengths)?, admitted, options, check)?;
        planner.in_domains(AnyLengths::Several(&lengths), domains, check)?.with_count(check)
    }

    pub(crate) fn of_fields_selected(
        lengths: Vec<u32>,
        admitted: Option<&[bool]>,
        options: Options,
        check: Check<'_>,
    ) -> Result<Self> {
        let fields = Fields::new(lengths, admitted, &options, check)?;
        let combined = fields.combined_lengths(admitted, &options, check)?;
        if combined.iter().all(|&length| u32::try_from(length).is_ok()) {
            let combined: Vec<u32> = memory::collect(combined.into_iter().map(|length| length as u32))?;
            return Self::of_selected(&combined, admitted, options, Some(fields), check);
        }
        Self::of_selected(&combined, admitted, options, Some(fields), check)
    }

    /// Checks the constant count.
    pub(crate) fn with_count(self, check: Check<'_>) -> Result<Self> {
        let planner = self;
        if planner.options.constant_count {
            let (n_samples, window) = (planner.n_samples(), planner.options.window);
            let n_batches = planner.n_batches_until(check)?;
            if n_batches > n_samples {
                return Err(Error::TooFewSamples { n_samples, n_batches, window });
            }
            let min_batch_size = planner.model.min_batch_size;
            if min_batch_size > 1 && n_batches as u128 * 2 * u128::from(min_batch_size) > n_samples as u128 {
                let reason = format!(
                    "constant_count with window = {window} asks for {n_batches} batches, more than {n_samples} samples \
                     make when halves hold as many; lower window (in a sampler: world_size * accumulation_steps)"
                );
                return Err(Error::MinBatchSize { min_batch_size, reason });
            }
        }
        Ok(planner)
    }

    pub(crate) fn of_selected<L: Length>(
        lengths: &[L],
        admitted: Option<&[bool]>,
        options: Options,
        fields: Option<Fields>,
        check: Check<'_>,
    ) -> Result<Self> {
        let n_samples = lengths.len();
        check_mask(admitted, n_samples)?;
        let Some(admitted) = admitted else {
            return Self::of(lengths, &Selection { indices: None, n_samples }, options, fields, check);
        };
        let indices: Vec<usize> = memory::collect((0..n_samples).filter(|&i| admitted[i]))?;
        let selected: Vec<L> = memory::collect(indices.iter().map(|&i| lengths[i]))?;
        let selection = Selection { indices: Some(indices), n_samples };
        let tokens = |i: usize| fields.as_ref().map_or_else(|| lengths[i].into(), |fields| fields.tokens(i));
        let not_admitted = (0..n_samples).filter(|&i| !admitted[i]);
        let tokens_not_admitted: u128 = not_admitted.map(|i| u128::from(tokens(i))).sum();
        let mut planner = Self::of(&selected, &selection, options, fields, check)?;
        memory::reserve(&mut planner.dropped, n_samples - selected.len())?;
        planner.dropped.extend((0..n_samples).filter(|&i| !admitted[i]));
        planner.dropped.sort_unstable();
        planner.dropped_tokens += tokens_not_admitted;
        Ok(planner)
    }

    pub(crate) fn of<L: Length>(
        lengths: &[L],
        selection: &Selection,
        options: Options,
        mut fields: Option<Fields>,
        check: Check<'_>,
    ) -> Result<Self> {
        let mut model = options.cost.clone();
        if let Some(PaddedLengths::List(list)) = &options.padded_lengths {
            model.padded_lengths.clone_from(list);
        }
        let census = Census::of(lengths, selection, &model)?;
        if fields.is_none() {
            census.check(&model, options.empty, options.overlong)?;
        }
        if let Some(padded_lengths) = &options.padded_lengths {
            model.padded_lengths = padded_lengths.choose(&census.histogram(check)?, &model, check)?;
        }
        let tokens = match &fields {
            None => census.tokens(),
            Some(fields) => (0..lengths.len()).map(|i| u128::from(fields.tokens(selection.index(i)))).sum(),
        };
        let hard = match (options.strategy, &options.boundaries) {
            (Strategy::Random, _) => Some(bucket::one_bucket(&census)),
            (Strategy::Sorted, _) | (_, Boundaries::RepeatWeight(_) | Boundaries::PaddingTarget(_)) => None,
            (_, Boundaries::Optimal(n_buckets)) => {
                Some(boundaries::optimal(&census.histogram(check)?, &model, *n_buckets, check)?)
            }
            (_, Boundaries::Edges(edges)) => {
                census.check_edges(edges, fields.is_some())?;
                Some(edges.clone())
            }
        };
        let (samples, boundaries, left_out) = match hard {
            Some(edges) => {
                let (records, buckets, mut left_out) =
                    bucket::partition(&census, edges.clone(), options.overlong, check)?;
                if let Some(fields) = &mut fields {
                    left_out.tokens = fields.tokens_of(&left_out.samples);
                    if options.strategy == Strategy::Bucketed {
                        bands::choose_of_buckets(fields, &records, &buckets, &model, check)?;
                    }
                }
                (Samples::InBuckets(records, buckets), edges, left_out)
            }
            None if u32::try_from(selection.n_samples).is_ok() => {
                let (samples, edges, left_out) = sorted(&census, &model, &options, fields.as_mut(), check)?;
                (Samples::Sorted(samples), edges, left_out)
            }
            None => {
                let (samples, edges, left_out) = sorted(&census, &model, &options, fields.as_mut(), check)?;
                (Samples::SortedWide(samples), edges, left_out)
            }
        };
        let planner = Self {
            options,
            model,
            samples,
            fields,
            boundaries,
            real_tokens: tokens - left_out.tokens,
            dropped: left_out.samples,
            dropped_tokens: left_out.tokens,
            domains: Vec::new(),
            n_packed: OnceLock::new(),
        };
        planner.check_min_batch_size()?;
        Ok(planner)
    }

    /// How many samples every plan holds.
    #[must_use]
    pub fn n_samples(&self) -> usize {
        if !self.domains.is_empty() {
            return self.domains.iter().map(|domain| domain.planner.n_samples()).sum();
        }
        with_samples!(&self.samples, (records, _buckets) => records.len(), samples => samples.n_samples())
    }

    /// Edges of the buckets, tokens: bucket `i` holds `boundaries[i] < length <= boundaries[i + 1]`.
    #[must_use]
    pub fn boundaries(&self) -> &[u64] {
        &self.boundaries
    }

    /// The samples left out, ascending.
    #[must_use]
    pub fn dropped(&self) -> &[usize] {
        &self.dropped
    }

    /// The options as they were given.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The cost model, with the padded lengths that were chosen.
    #[must_use]
    pub fn model(&self) -> &CostModel {
        &self.model
    }

    /// How many lengths a sample has.
    #[must_use]
    pub fn n_fields(&self) -> usize {
        self.options.fields.len().max(1)
    }

    /// The padded lengths of field `f` that were given or chosen, ascending; empty: any multiple.
    #[must_use]
    pub fn padded_lengths(&self, f: usize) -> &[u64] {
        self.fields.as_ref().map_or(&self.model.padded_lengths, |fields| fields.padded_lengths(f))
    }

    /// Tokens of a row of field `f mod n_fields` in a batch whose longest has `length` tokens there.
    #[must_use]
    pub fn padded_length(&self, f: usize, length: u64) -> u64 {
        match &self.fields {
            None => self.model.padded_length(length),
            Some(fields) => fields.padded_length(f % fields.n_fields(), length),
        }
    }

    /// The cost of a batch of `n_samples` whose longest have `longest` tokens, `[n_fields]`, none negative.
    #[cfg(feature = "python")]
    pub(crate) fn batch_cost(&self, n_samples: usize, longest: &[i64]) -> u128 {
        let longest_of_all = match &self.fields {
            None => longest[0] as u64,
            Some(fields) => fields.combined(&longest.iter().map(|&length| length as u32).collect::<Vec<_>>()),
        };
        self.model.batch_cost(n_samples, longest_of_all)
    }

    /// The number of batches of every epoch under `constant_count`: what packing needs, rounded up to a multiple of
    /// `window`.
    ///
    /// # Errors
    ///
    /// The system has not enough memory.
    pub fn n_batches(&self) -> Result<usize> {
        self.n_batches_until(NEVER)
    }

    /// The number of batches that packing needs: the most of a few pilot epochs, and 1 / 512 more where they differ.
    /// Without `constant_count`, an epoch may have a few more or less.
    ///
    /// # Errors
    ///
    /// The system has not enough memory.
    pub fn n_packed_batches(&self) -> Result<usize> {
        self.n_packed_batches_until(NEVER)
    }

    pub(crate) fn n_batches_until(&self, check: Check<'_>) -> Result<usize> {
        let window = usize::try_from(self.options.window).unwrap_or(usize::MAX);
        Ok(self.n_packed_batches_until(check)?.checked_next_multiple_of(window).unwrap_or(usize::MAX))
    }

    pub(crate) fn n_packed_batches_until(&self, check: Check<'_>) -> Result<usize> {
        if let Some(&n_packed) = self.n_packed.get() {
            return Ok(n_packed);
        }
        let (mut least, mut most) = (usize::MAX, 0);
        for number in 0..N_PILOTS {
            let n_batches = self.packed(Streams::of_pilot(number), check)?.batches.len();
            (least, most) = (least.min(n_batches), most.max(n_batches));
        }
        let n_packed = if least == most { most } else { (most + most / 512).min(self.n_samples()) };
        Ok(*self.n_packed.get_or_init(|| n_packed))
    }
}

/// Plans one epoch: `Planner::new(lengths, options)?.into_plan(seed, epoch)`.
///
/// # Errors
///
/// Names the first option or length that cannot be accepted.
pub fn pack_epoch<'a>(lengths: impl Into<Lengths<'a>>, seed: u64, epoch: u64, options: Options) -> Result<EpochPlan> {
    Planner::new(lengths, options)?.into_plan(seed, epoch)
}
