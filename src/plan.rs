//! One epoch from lengths, options, seed and epoch: the stages in their order.
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use crate::admission::{Empty, Length, Overlong};
use crate::bucket::{self, Boundaries, Layout};
use crate::cost::CostModel;
use crate::error::{Error, Result, check_range};
use crate::order::order;
use crate::pack::{Batch, Closed, Packed, pack, split};
use crate::record::{Record, Records, with_records};
use crate::rng::{self, Stage};

/// Version of the order contract in docs/ORDER.md. The same version, lengths, options, seed and epoch give the same
/// plan on every machine, for any number of threads.
pub const ORDER_VERSION: u32 = 1;

/// The six buckets of the DFlash write-up, tokens.
pub const DFLASH_BOUNDARIES: [u64; 7] = [0, 512, 1024, 2048, 3072, 4096, 8192];

/// With fewer samples than this a second thread costs more than it brings.
const MIN_SAMPLES_FOR_THREADS: usize = 1 << 20;

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
                pad_to_multiple_of: 1,
                per_sample: 0,
                quadratic_length: None,
            },
            boundaries: Boundaries::Auto { padding_target: 0.01, min_batches_per_bucket: 8 },
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
        let CostModel { token_budget, max_batch_size, pad_to_multiple_of, per_sample, quadratic_length } = self.cost;
        check_range("token_budget", Some(token_budget), 1, MAX)?;
        check_range("max_batch_size", max_batch_size, 1, MAX)?;
        check_range("pad_to_multiple_of", Some(pad_to_multiple_of), 1, MAX)?;
        check_range("per_sample", Some(per_sample), 0, MAX)?;
        check_range("quadratic_length", quadratic_length, 1, MAX)?;
        check_range("window", Some(self.window), 1, MAX)?;
        check_range("align_ranks", Some(self.align_ranks), 1, MAX)?;
        check_range("threads", self.threads.map(|threads| threads as u64), 1, MAX)?;
        if !self.window.is_multiple_of(self.align_ranks) {
            return Err(Error::AlignRanks { align_ranks: self.align_ranks, window: self.window });
        }
        let strategy = match self.strategy {
            Strategy::Bucketed => return self.boundaries.validate(),
            Strategy::Sorted => "sorted",
            Strategy::Random => "random",
        };
        match self.boundaries {
            Boundaries::Auto { .. } => Ok(()),
            _ => Err(Error::NoEffect { name: "boundaries", with: format!("strategy = \"{strategy}\"") }),
        }
    }
}

/// The lengths of all samples, tokens.
#[derive(Clone, Copy, Debug)]
pub enum Lengths<'a> {
    /// All below 2^16.
    U16(&'a [u16]),
    /// All below 2^32.
    U32(&'a [u32]),
    /// Any.
    U64(&'a [u64]),
}

impl<'a> From<&'a [u16]> for Lengths<'a> {
    fn from(lengths: &'a [u16]) -> Self {
        Self::U16(lengths)
    }
}

impl<'a> From<&'a [u32]> for Lengths<'a> {
    fn from(lengths: &'a [u32]) -> Self {
        Self::U32(lengths)
    }
}

impl<'a> From<&'a [u64]> for Lengths<'a> {
    fn from(lengths: &'a [u64]) -> Self {
        Self::U64(lengths)
    }
}

/// One epoch: all batches in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochPlan {
    /// `[n_used]`, sample indices; batch `b` is `indices[offsets[b]..offsets[b + 1]]`.
    pub indices: Vec<i64>,
    /// `[n_batches + 1]`, positions in `indices`.
    pub offsets: Vec<i64>,
    /// `[n_batches]`, tokens of a row of the padded batch.
    pub padded_lengths: Vec<i64>,
    /// `[n_batches]`, cost of each batch under the cost model, tokens; at most 2^63 - 1.
    pub costs: Vec<i64>,
    /// `[n_batches]`, the bucket of each batch; -1: an over-long sample, kept.
    pub buckets: Vec<i32>,
    /// `[n_buckets + 1]`, edges: bucket `i` holds `boundaries[i] < length <= boundaries[i + 1]`.
    pub boundaries: Vec<i64>,
    /// `[n_dropped]`, the samples left out, ascending.
    pub dropped: Vec<i64>,
    /// Totals.
    pub totals: Totals,
}

/// Totals of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tokens of all planned samples.
    pub real_tokens: u128,
    /// `B * L`, summed over the batches.
    pub padded_tokens: u128,
    /// Cost of all batches under the cost model, tokens.
    pub cost: u128,
    /// What all batches might have cost, tokens: their number times `token_budget`.
    pub budget_tokens: u128,
    /// Tokens of the samples left out.
    pub dropped_tokens: u128,
    /// Why batches ended where they did, before any was split.
    pub closed: Closed,
    /// Batches added by splitting.
    pub n_splits: u64,
}

/// Lengths validated and sorted into buckets once, for the plans of any number of epochs.
#[derive(Clone, Debug)]
pub struct Planner {
    options: Options,
    layout: Layout,
    records: Records,
    n_samples: usize,
    /// See [`Planner::n_batches`]; counted when first asked for.
    most_batches: OnceLock<usize>,
}

impl Planner {
    /// Validates options and lengths, finds the boundaries and sorts the samples into buckets.
    ///
    /// # Errors
    ///
    /// Names the first option or length that cannot be accepted.
    pub fn new<'a>(lengths: impl Into<Lengths<'a>>, options: Options) -> Result<Self> {
        options.validate()?;
        let (records, layout) = match lengths.into() {
            Lengths::U16(lengths) => partition(lengths, &options)?,
            Lengths::U32(lengths) => partition(lengths, &options)?,
            Lengths::U64(lengths) => partition(lengths, &options)?,
        };
        let n_samples = with_records!(&records, records => records.len());
        let planner = Self { options, layout, records, n_samples, most_batches: OnceLock::new() };
        if planner.options.constant_count && planner.n_batches(true) > n_samples {
            let (n_batches, window) = (planner.n_batches(true), planner.options.window);
            return Err(Error::TooFewSamples { n_samples, n_batches, window });
        }
        Ok(planner)
    }

    /// Plans one epoch. `O(n_samples)`, with up to 16 bytes a sample beside what the planner holds.
    #[must_use]
    pub fn plan(&self, seed: u64, epoch: u64) -> EpochPlan {
        let mut indices = vec![0; self.n_samples];
        let plan = self.plan_to(&mut indices, seed, epoch);
        EpochPlan { indices, ..plan }
    }

    /// Plans one epoch in the planner's own memory, which saves a copy of it.
    #[must_use]
    pub fn into_plan(self, seed: u64, epoch: u64) -> EpochPlan {
        let mut indices = vec![0; self.n_samples];
        let plan = self.into_plan_to(&mut indices, seed, epoch);
        EpochPlan { indices, ..plan }
    }

    /// Like `plan`, but for the indices, which go to the caller's memory: `[n_samples]`.
    pub(crate) fn plan_to(&self, indices: &mut [i64], seed: u64, epoch: u64) -> EpochPlan {
        with_records!(&self.records, records => self.plan_in(&mut records.clone(), indices, seed, epoch))
    }

    /// Like `into_plan`, but for the indices, which go to the caller's memory: `[n_samples]`.
    pub(crate) fn into_plan_to(mut self, indices: &mut [i64], seed: u64, epoch: u64) -> EpochPlan {
        let records = std::mem::replace(&mut self.records, Records::U32(Vec::new()));
        with_records!(records, records => self.plan_in(&mut { records }, indices, seed, epoch))
    }

    /// How many samples every plan holds.
    #[must_use]
    pub fn n_samples(&self) -> usize {
        self.n_samples
    }

    /// Edges of the buckets, tokens: bucket `i` holds `boundaries[i] < length <= boundaries[i + 1]`.
    #[must_use]
    pub fn boundaries(&self) -> &[u64] {
        &self.layout.boundaries
    }

    /// The samples left out, ascending.
    #[must_use]
    pub fn dropped(&self) -> &[usize] {
        &self.layout.dropped
    }

    /// Tokens of a row of a batch whose longest sample has `longest` tokens.
    #[must_use]
    pub fn padded_length(&self, longest: u64) -> u64 {
        self.options.cost.padded_length(longest)
    }

    /// Cost of a batch of `n_samples` whose longest has `longest` tokens.
    #[must_use]
    pub fn batch_cost(&self, n_samples: usize, longest: u64) -> u128 {
        self.options.cost.batch_cost(n_samples, longest)
    }

    /// The most batches that greedy packing can need in any epoch; `constant`: rounded up to a multiple of the window,
    /// which is the number of batches of every epoch under `constant_count`.
    #[must_use]
    pub fn n_batches(&self, constant: bool) -> usize {
        let window = if constant { usize::try_from(self.options.window).unwrap_or(usize::MAX) } else { 1 };
        self.most_batches.get_or_init(|| self.count_batches()).checked_next_multiple_of(window).unwrap_or(usize::MAX)
    }

    /// A batch that is closed before the end of its bucket holds `cap(longest in bucket)` samples or more, so a bucket
    /// never needs more than `ceil(size / cap)` batches.
    fn count_batches(&self) -> usize {
        with_records!(&self.records, records => {
            let starts = &self.layout.starts;
            let in_buckets: usize = (0..self.layout.n_buckets())
                .map(|i| {
                    let bucket = &records[starts[i]..starts[i + 1]];
                    match self.options.strategy {
                        Strategy::Sorted => self.pack_bucket(bucket, i).batches.len(),
                        _ if bucket.is_empty() => 0,
                        _ => bucket.len().div_ceil(self.options.cost.cap(self.layout.codec(i as i32).longest(bucket))),
                    }
                })
                .sum();
            in_buckets + records.len() - starts[self.layout.n_buckets()]
        })
    }

    /// Packs the records of one bucket.
    fn pack_bucket<R: Record>(&self, records: &[R], i: usize) -> Packed {
        pack(records, &self.layout, i, &self.options.cost)
    }

    /// Shuffle, pack, even out, order.
    fn plan_in<R: Record>(&self, records: &mut [R], indices: &mut [i64], seed: u64, epoch: u64) -> EpochPlan {
        let Options { cost, window, align_ranks, constant_count, .. } = &self.options;
        let Packed { mut batches, closed } = self.shuffle_and_pack(records, seed, epoch);
        let n_packed = batches.len();
        if *constant_count {
            split(records, &self.layout, &mut batches, self.n_batches(true), (seed, epoch));
        }
        let order = order(&batches, cost, (*window, *align_ranks), seed, epoch);
        let mut plan = EpochPlan {
            indices: Vec::new(),
            offsets: Vec::with_capacity(batches.len() + 1),
            padded_lengths: Vec::with_capacity(batches.len()),
            costs: Vec::with_capacity(batches.len()),
            buckets: Vec::with_capacity(batches.len()),
            boundaries: self.layout.boundaries.iter().map(|&edge| edge as i64).collect(),
            dropped: self.layout.dropped.iter().map(|&index| index as i64).collect(),
            totals: Totals {
                real_tokens: self.layout.real_tokens,
                budget_tokens: batches.len() as u128 * u128::from(cost.token_budget),
                dropped_tokens: self.layout.dropped_tokens,
                closed,
                n_splits: (batches.len() - n_packed) as u64,
                ..Totals::default()
            },
        };
        plan.offsets.push(0);
        let index_bits = self.layout.index_bits;
        let mut position = 0;
        for i in order {
            let Batch { start, n_samples, longest, bucket } = batches[i];
            let of_batch = &mut indices[position..position + n_samples];
            for (index, record) in of_batch.iter_mut().zip(&records[start..start + n_samples]) {
                *index = record.index(index_bits) as i64;
            }
            position += n_samples;
            plan.offsets.push(position as i64);
            plan.padded_lengths.push(cost.padded_length(longest) as i64);
            plan.buckets.push(bucket);
            plan.totals.padded_tokens += n_samples as u128 * u128::from(cost.padded_length(longest));
            let batch_cost = cost.batch_cost(n_samples, longest);
            plan.costs.push(i64::try_from(batch_cost).unwrap_or(i64::MAX));
            plan.totals.cost += batch_cost;
        }
        plan
    }

    /// All batches in pack order.
    fn shuffle_and_pack<R: Record>(&self, records: &mut [R], seed: u64, epoch: u64) -> Packed {
        let end_of_buckets = self.layout.starts[self.layout.n_buckets()];
        let mut in_buckets = &mut records[..end_of_buckets];
        let mut buckets = Vec::with_capacity(self.layout.n_buckets());
        for (i, ends) in self.layout.starts.windows(2).enumerate() {
            let (bucket, rest) = in_buckets.split_at_mut(ends[1] - ends[0]);
            buckets.push((i, bucket));
            in_buckets = rest;
        }
        let of_bucket = |(i, bucket): (usize, &mut [R])| {
            if self.options.strategy != Strategy::Sorted {
                rng::shuffle(bucket, &mut rng::stream(seed, epoch, Stage::Shuffle, i as u64));
            }
            (i, self.pack_bucket(bucket, i))
        };
        let mut packed = Packed::default();
        for (_, of_bucket) in for_each_bucket(buckets, self.n_threads(), of_bucket) {
            packed.batches.extend(of_bucket.batches);
            packed.closed += of_bucket.closed;
        }
        let (layout, n_kept) = (&self.layout, records.len() - end_of_buckets);
        let kept = (end_of_buckets..records.len()).map(|start| Batch::of(records, layout, start, 1, -1));
        packed.batches.extend(kept);
        packed.closed.by_budget += n_kept as u64;
        packed
    }

    fn n_threads(&self) -> usize {
        match self.options.threads {
            Some(threads) => threads,
            None if self.n_samples < MIN_SAMPLES_FOR_THREADS => 1,
            None => thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Runs `work` on every bucket, the large ones first, and returns what it returned in bucket order. The threads live no
/// longer than the call, and who does which bucket changes nothing, as each has a random stream of its own.
fn for_each_bucket<R: Send, T: Send>(
    mut buckets: Vec<(usize, &mut [R])>,
    n_threads: usize,
    work: impl Fn((usize, &mut [R])) -> (usize, T) + Sync,
) -> Vec<(usize, T)> {
    let n_more = n_threads.min(buckets.len()).saturating_sub(1);
    if n_more == 0 {
        return buckets.into_iter().map(work).collect();
    }
    let n_buckets = buckets.len();
    buckets.sort_by_key(|(_, bucket)| bucket.len());
    let queue = Mutex::new(buckets);
    let done = Mutex::new(Vec::with_capacity(n_buckets));
    let drain = || {
        while let Some(bucket) = { queue.lock().unwrap_or_else(PoisonError::into_inner).pop() } {
            let result = work(bucket);
            done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
    };
    thread::scope(|scope| {
        for _ in 0..n_more {
            // Where the system has no thread to give, this one does the work.
            if thread::Builder::new().spawn_scoped(scope, drain).is_err() {
                break;
            }
        }
        drain();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|&(i, _)| i);
    done
}

fn partition<L: Length>(lengths: &[L], options: &Options) -> Result<(Records, Layout)> {
    let boundaries = if options.strategy == Strategy::Bucketed { &options.boundaries } else { &Boundaries::One };
    let (mut records, layout) = bucket::partition(lengths, &options.cost, boundaries, options.empty, options.overlong)?;
    if options.strategy == Strategy::Sorted {
        with_records!(&mut records, records => records[..layout.starts[1]].sort_unstable());
    }
    Ok((records, layout))
}

/// Plans one epoch: `Planner::new(lengths, options)?.into_plan(seed, epoch)`.
///
/// # Errors
///
/// Names the first option or length that cannot be accepted.
pub fn pack_epoch<'a>(lengths: impl Into<Lengths<'a>>, seed: u64, epoch: u64, options: Options) -> Result<EpochPlan> {
    Ok(Planner::new(lengths, options)?.into_plan(seed, epoch))
}
