//! One epoch from lengths, options, seed and epoch: the stages in their order.
use std::ops::Range;
use std::sync::OnceLock;

use crate::admission::{Census, Selection};
use crate::boundaries;
use crate::bucket::{self, Boundaries, Buckets};
use crate::by_length::{ByLength, Position};
use crate::cost::CostModel;
use crate::error::{Error, Result};
use crate::lengths::{Length, Lengths};
use crate::options::{Options, Strategy};
use crate::order::order;
use crate::pack::{Batch, Packed, alone, longest, pack, split};
use crate::plan::{EpochPlan, Totals};
use crate::record::{Record, Records, with_records};
use crate::rng::{self, N_ATTEMPTS, N_PILOTS, Stage, Streams};
use crate::shapes::PaddedLengths;
use crate::sorted::{pack_through, sorted};
use crate::threads;

/// Lengths validated and sorted once, for the plans of any number of epochs.
#[derive(Clone, Debug)]
pub struct Planner {
    options: Options,
    /// The cost model of the options, with the padded lengths that were chosen.
    model: CostModel,
    samples: Samples,
    boundaries: Vec<u64>,
    dropped: Vec<usize>,
    dropped_tokens: u128,
    real_tokens: u128,
    /// See [`Planner::n_packed_batches`]; counted when first asked for.
    n_packed: OnceLock<usize>,
}

/// The planned samples as the shuffle wants them.
#[derive(Clone, Debug)]
enum Samples {
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
        options.validate()?;
        let planner = match lengths.into() {
            Lengths::U16(lengths) => Self::of_selected(lengths, admitted, options),
            Lengths::U32(lengths) => Self::of_selected(lengths, admitted, options),
            Lengths::U64(lengths) => Self::of_selected(lengths, admitted, options),
        }?;
        let (n_samples, window) = (planner.n_samples(), planner.options.window);
        if planner.options.constant_count && planner.n_batches() > n_samples {
            return Err(Error::TooFewSamples { n_samples, n_batches: planner.n_batches(), window });
        }
        Ok(planner)
    }

    fn of_selected<L: Length>(lengths: &[L], admitted: Option<&[bool]>, options: Options) -> Result<Self> {
        let n_samples = lengths.len();
        let Some(admitted) = admitted else {
            return Self::of(lengths, &Selection { indices: None, n_samples }, options);
        };
        if admitted.len() != n_samples {
            return Err(Error::MaskSize { n_admitted: admitted.len(), n_samples });
        }
        let indices: Vec<usize> = (0..n_samples).filter(|&i| admitted[i]).collect();
        let selected: Vec<L> = indices.iter().map(|&i| lengths[i]).collect();
        let mut planner = Self::of(&selected, &Selection { indices: Some(indices), n_samples }, options)?;
        planner.dropped.extend((0..n_samples).filter(|&i| !admitted[i]));
        planner.dropped.sort_unstable();
        let not_admitted = lengths.iter().zip(admitted).filter(|&(_, &admitted)| !admitted);
        planner.dropped_tokens += not_admitted.map(|(&length, _)| u128::from(length.into())).sum::<u128>();
        Ok(planner)
    }

    fn of<L: Length>(lengths: &[L], selection: &Selection, options: Options) -> Result<Self> {
        let mut model = options.cost.clone();
        if let Some(PaddedLengths::List(list)) = &options.padded_lengths {
            model.padded_lengths.clone_from(list);
        }
        let census = Census::of(lengths, selection, &model);
        census.check(&model, options.empty, options.overlong)?;
        if let Some(padded_lengths) = &options.padded_lengths {
            model.padded_lengths = padded_lengths.choose(&census.histogram(), &model);
        }
        let hard = match (options.strategy, &options.boundaries) {
            (Strategy::Random, _) => Some(bucket::one_bucket(&census)),
            (Strategy::Sorted, _) | (_, Boundaries::RepeatWeight(_) | Boundaries::PaddingTarget(_)) => None,
            (_, Boundaries::Optimal(n_buckets)) => Some(boundaries::optimal(&census.histogram(), &model, *n_buckets)),
            (_, Boundaries::Edges(edges)) => {
                census.check_edges(edges)?;
                Some(edges.clone())
            }
        };
        let (samples, boundaries, left_out) = match hard {
            Some(edges) => {
                let (records, buckets, left_out) = bucket::partition(&census, edges.clone(), options.overlong);
                (Samples::InBuckets(records, buckets), edges, left_out)
            }
            None if u32::try_from(selection.n_samples).is_ok() => {
                let (samples, edges, left_out) = sorted(&census, &model, &options);
                (Samples::Sorted(samples), edges, left_out)
            }
            None => {
                let (samples, edges, left_out) = sorted(&census, &model, &options);
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

    /// Plans one epoch. `O(n_samples)`, with up to 24 bytes a sample beside what the planner holds.
    #[must_use]
    pub fn plan(&self, seed: u64, epoch: u64) -> EpochPlan {
        let mut indices = vec![0; self.n_samples()];
        let plan = self.plan_to(&mut indices, seed, epoch);
        EpochPlan { indices, ..plan }
    }

    /// Plans one epoch in the planner's own memory, which saves a copy of it.
    #[must_use]
    pub fn into_plan(self, seed: u64, epoch: u64) -> EpochPlan {
        let mut indices = vec![0; self.n_samples()];
        let plan = self.into_plan_to(&mut indices, seed, epoch);
        EpochPlan { indices, ..plan }
    }

    /// Like `plan`, but for the indices, which go to the caller's memory: `[n_samples]`.
    pub(crate) fn plan_to(&self, indices: &mut [i64], seed: u64, epoch: u64) -> EpochPlan {
        let streams = Streams::of(seed, epoch);
        with_samples!(&self.samples, (records, buckets) => {
            let (records, packed) = self.draw(streams, |streams| {
                let mut records = records.clone();
                let packed = self.pack_buckets(&mut records, buckets, streams);
                (records, packed)
            });
            self.finish_buckets(&records, buckets, packed, indices, streams)
        }, samples => {
            let (mut positions, mut packed) = self.draw(streams, |streams| self.pack_sorted(samples, streams));
            self.even_out(&mut packed, streams, |range, _| longest(&positions[range]).map_or(0, |it| samples.length(it)));
            samples.to_indices(&mut positions);
            self.write(&positions, Position::get, packed, indices, streams)
        })
    }

    /// Like `into_plan`, but for the indices, which go to the caller's memory: `[n_samples]`.
    pub(crate) fn into_plan_to(mut self, indices: &mut [i64], seed: u64, epoch: u64) -> EpochPlan {
        // Under a constant count the records may be needed again, in their old order.
        if self.options.constant_count || !matches!(self.samples, Samples::InBuckets(..)) {
            return self.plan_to(indices, seed, epoch);
        }
        let Samples::InBuckets(records, buckets) = &mut self.samples else { unreachable!("it was matched above") };
        let (records, buckets) = (std::mem::replace(records, Records::U32(Vec::new())), buckets.clone());
        let streams = Streams::of(seed, epoch);
        with_records!(records, records => {
            let mut records = records;
            let packed = self.pack_buckets(&mut records, &buckets, streams);
            self.finish_buckets(&records, &buckets, packed, indices, streams)
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
    #[must_use]
    pub fn n_batches(&self) -> usize {
        let window = usize::try_from(self.options.window).unwrap_or(usize::MAX);
        self.n_packed_batches().checked_next_multiple_of(window).unwrap_or(usize::MAX)
    }

    /// The number of batches that packing needs: the most of a few pilot epochs, and 1 / 512 more where they differ.
    /// Without `constant_count`, an epoch may have a few more or less.
    #[must_use]
    pub fn n_packed_batches(&self) -> usize {
        *self.n_packed.get_or_init(|| {
            let counts = (0..N_PILOTS).map(|number| self.pilot(number).len());
            let (least, most) = counts.fold((usize::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
            if least == most { most } else { (most + most / 512).min(self.n_samples()) }
        })
    }

    /// The batches of a pilot epoch, in pack order.
    fn pilot(&self, number: u64) -> Vec<Batch> {
        let streams = Streams::of_pilot(number);
        let packed = with_samples!(&self.samples, (records, buckets) => {
            self.pack_buckets(&mut records.clone(), buckets, streams)
        }, samples => self.pack_sorted(samples, streams).1);
        packed.batches
    }

    /// Draws the epoch until it needs no more batches than the constant count. This ends: the last attempt is in order of
    /// length, and no order needs fewer batches than that.
    fn draw<T>(&self, streams: Streams, pack: impl Fn(Streams) -> (T, Packed)) -> (T, Packed) {
        let most = if self.options.constant_count { self.n_batches() } else { usize::MAX };
        for attempt in 0..N_ATTEMPTS {
            let drawn = pack(Streams { attempt, ..streams });
            if drawn.1.batches.len() <= most {
                return drawn;
            }
        }
        pack(Streams { attempt: N_ATTEMPTS, ..streams })
    }

    /// Shuffles the samples in order of length and packs them.
    fn pack_sorted<P: Position>(&self, samples: &ByLength<P>, streams: Streams) -> (Vec<P>, Packed) {
        let n_threads = threads::n_threads(self.options.threads, samples.n_samples());
        let positions = samples.shuffled(streams, N_ATTEMPTS - streams.attempt, n_threads);
        let packed = pack_through(samples, &positions, &self.model);
        (positions, packed)
    }

    /// Shuffles and packs the records bucket by bucket.
    fn pack_buckets<R: Record>(&self, records: &mut [R], buckets: &Buckets, streams: Streams) -> Packed {
        let end_of_buckets = buckets.starts[buckets.len()];
        let (mut in_buckets, kept) = records.split_at_mut(end_of_buckets);
        let mut tasks = Vec::with_capacity(buckets.len());
        for (i, ends) in buckets.starts.windows(2).enumerate() {
            let (bucket, rest) = in_buckets.split_at_mut(ends[1] - ends[0]);
            tasks.push((i, bucket));
            in_buckets = rest;
        }
        // Large buckets first: tasks are taken from the end.
        tasks.sort_by_key(|(_, bucket)| bucket.len());
        let n_threads = threads::n_threads(self.options.threads, end_of_buckets);
        let mut of_buckets = threads::for_each(tasks, n_threads, |(i, bucket): (usize, &mut [R])| {
            let codec = buckets.codec(i as i32);
            rng::shuffle(bucket, &mut streams.open(Stage::Shuffle, i as u64));
            if streams.attempt == N_ATTEMPTS {
                bucket.sort_by_key(|&record| codec.length(record));
            }
            let at = (i as i32, buckets.starts[i], buckets.top(i));
            (i, pack(bucket, |record| codec.length(record), at, &self.model))
        });
        of_buckets.sort_unstable_by_key(|&(i, _)| i);
        let mut packed = Packed::default();
        for (_, of_bucket) in of_buckets {
            packed += of_bucket;
        }
        let codec = buckets.codec(-1);
        packed += alone(kept.iter().map(|&record| codec.length(record)), end_of_buckets);
        packed
    }

    fn finish_buckets<R: Record>(
        &self,
        records: &[R],
        buckets: &Buckets,
        mut packed: Packed,
        indices: &mut [i64],
        streams: Streams,
    ) -> EpochPlan {
        self.even_out(&mut packed, streams, |range, bucket| {
            longest(&records[range]).map_or(0, |record| buckets.codec(bucket).length(record))
        });
        self.write(records, |record| record.index(buckets.index_bits), packed, indices, streams)
    }

    /// Splits batches up to the constant count.
    fn even_out(&self, packed: &mut Packed, streams: Streams, longest_of: impl Fn(Range<usize>, i32) -> u64) {
        if self.options.constant_count {
            packed.n_splits = split(&mut packed.batches, self.n_batches(), streams, longest_of);
        }
    }

    /// Orders the batches and writes them down.
    fn write<R: Copy>(
        &self,
        samples: &[R],
        index: impl Fn(R) -> usize,
        Packed { batches, closed, n_splits }: Packed,
        indices: &mut [i64],
        streams: Streams,
    ) -> EpochPlan {
        let (model, &Options { window, align_ranks, .. }) = (&self.model, &self.options);
        let mut plan = EpochPlan {
            indices: Vec::new(),
            offsets: Vec::with_capacity(batches.len() + 1),
            padded_lengths: Vec::with_capacity(batches.len()),
            costs: Vec::with_capacity(batches.len()),
            buckets: Vec::with_capacity(batches.len()),
            boundaries: self.boundaries.iter().map(|&edge| edge as i64).collect(),
            dropped: self.dropped.iter().map(|&index| index as i64).collect(),
            totals: Totals {
                real_tokens: self.real_tokens,
                budget_tokens: batches.len() as u128 * u128::from(model.token_budget),
                dropped_tokens: self.dropped_tokens,
                closed,
                n_splits,
                ..Totals::default()
            },
        };
        plan.offsets.push(0);
        let mut position = 0;
        for i in order(&batches, model, (window, align_ranks), streams) {
            let Batch { start, n_samples, longest, bucket } = batches[i];
            let of_batch = &mut indices[position..position + n_samples];
            for (out, &sample) in of_batch.iter_mut().zip(&samples[start..start + n_samples]) {
                *out = index(sample) as i64;
            }
            position += n_samples;
            plan.offsets.push(position as i64);
            let (padded_length, cost) = (model.padded_length(longest), model.batch_cost(n_samples, longest));
            plan.padded_lengths.push(padded_length as i64);
            plan.costs.push(i64::try_from(cost).unwrap_or(i64::MAX));
            plan.buckets.push(if bucket < 0 { bucket } else { self.bucket_of(longest) });
            plan.totals.padded_tokens += n_samples as u128 * u128::from(padded_length);
            plan.totals.cost += cost;
        }
        plan
    }

    fn bucket_of(&self, length: u64) -> i32 {
        self.boundaries[1..].partition_point(|&edge| edge < length) as i32
    }
}

/// Plans one epoch: `Planner::new(lengths, options)?.into_plan(seed, epoch)`.
///
/// # Errors
///
/// Names the first option or length that cannot be accepted.
pub fn pack_epoch<'a>(lengths: impl Into<Lengths<'a>>, seed: u64, epoch: u64, options: Options) -> Result<EpochPlan> {
    Ok(Planner::new(lengths, options)?.into_plan(seed, epoch))
}
