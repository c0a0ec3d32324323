//! All that is done once for the plans of any number of epochs: the stages before the shuffle, in their order.
use std::sync::OnceLock;

use crate::admission::{Census, Selection};
use crate::boundaries;
use crate::bucket::{self, Boundaries, Buckets};
use crate::by_length::ByLength;
use crate::cost::CostModel;
use crate::error::{Error, Result};
use crate::lengths::{Length, Lengths};
use crate::memory;
use crate::options::{Options, Strategy};
use crate::plan::EpochPlan;
use crate::record::{Records, with_records};
use crate::rng::N_PILOTS;
use crate::shapes::PaddedLengths;
use crate::sorted::sorted;
use crate::threads::Check;

/// Lengths validated and sorted once, for the plans of any number of epochs.
#[derive(Clone, Debug)]
pub struct Planner {
    pub(crate) options: Options,
    /// The cost model of the options, with the padded lengths that were chosen.
    pub(crate) model: CostModel,
    pub(crate) samples: Samples,
    pub(crate) boundaries: Vec<u64>,
    pub(crate) dropped: Vec<usize>,
    pub(crate) dropped_tokens: u128,
    pub(crate) real_tokens: u128,
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

/// Nothing ends the call early.
pub(crate) const NEVER: Check<'_> = &|| Ok(());

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
        Self::until(NEVER, lengths.into(), admitted, options)
    }

    /// Like `of_admitted`, until `check` returns an error.
    pub(crate) fn until(
        check: Check<'_>,
        lengths: Lengths<'_>,
        admitted: Option<&[bool]>,
        options: Options,
    ) -> Result<Self> {
        options.validate()?;
        let planner = match lengths {
            Lengths::U16(lengths) => Self::of_selected(lengths, admitted, options, check),
            Lengths::U32(lengths) => Self::of_selected(lengths, admitted, options, check),
            Lengths::U64(lengths) => Self::of_selected(lengths, admitted, options, check),
        }?;
        if planner.options.constant_count {
            let (n_samples, window) = (planner.n_samples(), planner.options.window);
            let n_batches = planner.n_batches_until(check)?;
            if n_batches > n_samples {
                return Err(Error::TooFewSamples { n_samples, n_batches, window });
            }
        }
        Ok(planner)
    }

    fn of_selected<L: Length>(
        lengths: &[L],
        admitted: Option<&[bool]>,
        options: Options,
        check: Check<'_>,
    ) -> Result<Self> {
        let n_samples = lengths.len();
        let Some(admitted) = admitted else {
            return Self::of(lengths, &Selection { indices: None, n_samples }, options, check);
        };
        if admitted.len() != n_samples {
            return Err(Error::MaskSize { n_admitted: admitted.len(), n_samples });
        }
        let indices: Vec<usize> = memory::collect((0..n_samples).filter(|&i| admitted[i]))?;
        let selected: Vec<L> = memory::collect(indices.iter().map(|&i| lengths[i]))?;
        let mut planner = Self::of(&selected, &Selection { indices: Some(indices), n_samples }, options, check)?;
        memory::reserve(&mut planner.dropped, n_samples - selected.len())?;
        planner.dropped.extend((0..n_samples).filter(|&i| !admitted[i]));
        planner.dropped.sort_unstable();
        let not_admitted = lengths.iter().zip(admitted).filter(|&(_, &admitted)| !admitted);
        planner.dropped_tokens += not_admitted.map(|(&length, _)| u128::from(length.into())).sum::<u128>();
        Ok(planner)
    }

    fn of<L: Length>(lengths: &[L], selection: &Selection, options: Options, check: Check<'_>) -> Result<Self> {
        let mut model = options.cost.clone();
        if let Some(PaddedLengths::List(list)) = &options.padded_lengths {
            model.padded_lengths.clone_from(list);
        }
        let census = Census::of(lengths, selection, &model)?;
        census.check(&model, options.empty, options.overlong)?;
        if let Some(padded_lengths) = &options.padded_lengths {
            model.padded_lengths = padded_lengths.choose(&census.histogram(check)?, &model, check)?;
        }
        let hard = match (options.strategy, &options.boundaries) {
            (Strategy::Random, _) => Some(bucket::one_bucket(&census)),
            (Strategy::Sorted, _) | (_, Boundaries::RepeatWeight(_) | Boundaries::PaddingTarget(_)) => None,
            (_, Boundaries::Optimal(n_buckets)) => {
                Some(boundaries::optimal(&census.histogram(check)?, &model, *n_buckets, check)?)
            }
            (_, Boundaries::Edges(edges)) => {
                census.check_edges(edges)?;
                Some(edges.clone())
            }
        };
        let (samples, boundaries, left_out) = match hard {
            Some(edges) => {
                let (records, buckets, left_out) = bucket::partition(&census, edges.clone(), options.overlong, check)?;
                (Samples::InBuckets(records, buckets), edges, left_out)
            }
            None if u32::try_from(selection.n_samples).is_ok() => {
                let (samples, edges, left_out) = sorted(&census, &model, &options, check)?;
                (Samples::Sorted(samples), edges, left_out)
            }
            None => {
                let (samples, edges, left_out) = sorted(&census, &model, &options, check)?;
                (Samples::SortedWide(samples), edges, left_out)
            }
        };
        Ok(Self {
            options,
            model,
            samples,
            boundaries,
            real_tokens: census.tokens() - left_out.tokens,
            dropped: left_out.samples,
            dropped_tokens: left_out.tokens,
            n_packed: OnceLock::new(),
        })
    }

    /// How many samples every plan holds.
    #[must_use]
    pub fn n_samples(&self) -> usize {
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
            let n_batches = self.pilot(number, check)?.len();
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
