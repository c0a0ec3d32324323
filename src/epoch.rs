//! One epoch of a planner: its samples drawn, packed, ordered and written down.
use std::ops::Range;

use crate::bucket::Buckets;
use crate::by_length::{ByLength, Position};
use crate::error::Result;
use crate::fields::Longest;
use crate::memory;
use crate::options::Options;
use crate::order::order;
use crate::pack::{Batch, Packed, alone, alone_of_fields, even_tail, measure, pack, pack_fields, split};
use crate::plan::{EpochPlan, Totals};
use crate::planner::{Planner, Samples, with_samples};
use crate::record::{Record, Records, with_records};
use crate::rng::{self, N_ATTEMPTS, Stage, Streams};
use crate::sorted::draw_sorted;
use crate::threads::{self, BETWEEN_CHECKS, Check, NEVER};

impl Planner {
    /// Plans one epoch. `O(n_samples)`, with up to 24 bytes a sample beside what the planner holds.
    ///
    /// # Errors
    ///
    /// The system has not enough memory.
    pub fn plan(&self, seed: u64, epoch: u64) -> Result<EpochPlan> {
        let mut indices = memory::filled(0, self.n_samples())?;
        let plan = self.plan_to(&mut indices, seed, epoch, NEVER)?;
        Ok(EpochPlan { indices, ..plan })
    }

    /// Plans one epoch in the planner's own memory, which saves a copy of it.
    ///
    /// # Errors
    ///
    /// The system has not enough memory.
    pub fn into_plan(self, seed: u64, epoch: u64) -> Result<EpochPlan> {
        let mut indices = memory::filled(0, self.n_samples())?;
        let plan = self.into_plan_to(&mut indices, seed, epoch, NEVER)?;
        Ok(EpochPlan { indices, ..plan })
    }

    /// Like `plan`, until `check` returns an error, and but for the indices, which go to the caller's memory:
    /// `[n_samples]`.
    pub(crate) fn plan_to(&self, indices: &mut [i64], seed: u64, epoch: u64, check: Check<'_>) -> Result<EpochPlan> {
        let streams = Streams::of(seed, epoch);
        if !self.domains.is_empty() {
            return self.plan_domains_to(indices, streams, check);
        }
        with_samples!(&self.samples, (records, buckets) => {
            let (records, packed) = self.draw(streams, check, |streams| {
                let mut records = memory::copy(records)?;
                let packed = self.pack_buckets(&mut records, buckets, streams, check)?;
                Ok((records, packed))
            })?;
            self.finish_buckets(&records, buckets, packed, indices, streams, check)
        }, samples => {
            let (mut positions, mut packed) =
                self.draw(streams, check, |streams| self.pack_sorted(samples, streams, check))?;
            let length = |position| samples.length(position);
            let measure = |range: Range<usize>, _| self.measure(&positions[range], Position::get, length);
            self.even_out(&mut packed, streams, measure, check)?;
            samples.to_indices(&mut positions, check)?;
            self.write(&positions, Position::get, packed, indices, streams, check)
        })
    }

    /// Like `into_plan`, until `check` returns an error, and but for the indices, which go to the caller's memory:
    /// `[n_samples]`.
    pub(crate) fn into_plan_to(
        mut self,
        indices: &mut [i64],
        seed: u64,
        epoch: u64,
        check: Check<'_>,
    ) -> Result<EpochPlan> {
        // Under a constant count the records may be needed again, in their old order.
        if self.options.constant_count || !self.domains.is_empty() || !matches!(self.samples, Samples::InBuckets(..)) {
            return self.plan_to(indices, seed, epoch, check);
        }
        let Samples::InBuckets(records, buckets) = &mut self.samples else { unreachable!("it was matched above") };
        let (records, buckets) = (std::mem::replace(records, Records::U32(Vec::new())), buckets.clone());
        let streams = Streams::of(seed, epoch);
        with_records!(records, records => {
            let mut records = records;
            let packed = self.pack_buckets(&mut records, &buckets, streams, check)?;
            self.finish_buckets(&records, &buckets, packed, indices, streams, check)
        })
    }

    /// The batches of a draw, in pack order.
    pub(crate) fn packed(&self, streams: Streams, check: Check<'_>) -> Result<Packed> {
        if !self.domains.is_empty() {
            return Ok(self.draw_domains(streams, check)?.1);
        }
        Ok(with_samples!(&self.samples, (records, buckets) => {
            self.pack_buckets(&mut memory::copy(records)?, buckets, streams, check)?
        }, samples => self.pack_sorted(samples, streams, check)?.1))
    }

    /// Draws the epoch until it needs no more batches than the constant count. This ends: the last attempt is in order of
    /// length, and no order needs fewer batches than that.
    pub(crate) fn draw<T>(
        &self,
        streams: Streams,
        check: Check<'_>,
        pack: impl Fn(Streams) -> Result<(T, Packed)>,
    ) -> Result<(T, Packed)> {
        let most = if self.options.constant_count { self.n_batches_until(check)? } else { usize::MAX };
        for attempt in 0..N_ATTEMPTS {
            let drawn = pack(Streams { attempt, ..streams })?;
            if drawn.1.batches.len() <= most {
                return Ok(drawn);
            }
        }
        if !self.options.fields.is_empty() || self.model.min_batch_size > 1 {
            // No order is known to need the fewest batches, but a pilot needs no more than the count.
            return pack(Streams::of_pilot(0));
        }
        pack(Streams { attempt: N_ATTEMPTS, ..streams })
    }

    /// See [`measure`].
    pub(crate) fn measure<R: Copy + Ord>(
        &self,
        samples: &[R],
        row: impl Fn(R) -> usize,
        length: impl Fn(R) -> u64,
    ) -> (u64, u64, Longest) {
        measure(self.fields.as_ref(), samples, row, length)
    }

    /// Shuffles the samples in order of length and packs them.
    pub(crate) fn pack_sorted<P: Position>(
        &self,
        samples: &ByLength<P>,
        streams: Streams,
        check: Check<'_>,
    ) -> Result<(Vec<P>, Packed)> {
        let n_threads = threads::n_threads(self.options.threads, samples.n_samples());
        let draw = (streams, N_ATTEMPTS - streams.attempt);
        draw_sorted(samples, self.fields.as_ref(), &self.model, draw, n_threads, check)
    }

    /// Shuffles and packs the records bucket by bucket.
    pub(crate) fn pack_buckets<R: Record>(
        &self,
        records: &mut [R],
        buckets: &Buckets,
        streams: Streams,
        check: Check<'_>,
    ) -> Result<Packed> {
        let end_of_buckets = buckets.starts[buckets.len()];
        let (mut in_buckets, kept) = records.split_at_mut(end_of_buckets);
        let mut tasks = memory::with_capacity(buckets.len())?;
        for (i, ends) in buckets.starts.windows(2).enumerate() {
            let (bucket, rest) = in_buckets.split_at_mut(ends[1] - ends[0]);
            tasks.push((i, bucket));
            in_buckets = rest;
        }
        // Large buckets first: tasks are taken from the end.
        tasks.sort_unstable_by_key(|(i, bucket)| (bucket.len(), *i));
        let n_threads = threads::n_threads(self.options.threads, end_of_buckets);
        let mut of_buckets = threads::for_each(tasks, n_threads, check, |(i, bucket): (usize, &mut [R])| {
            let codec = buckets.codec(i as i32);
            rng::shuffle(bucket, &mut streams.open(Stage::Shuffle, i as u64), check)?;
            if streams.attempt == N_ATTEMPTS {
                let mut keyed = memory::collect((0_usize..).zip(bucket.iter().copied()))?;
                keyed.sort_unstable_by_key(|&(place, record)| (codec.length(record), place));
                bucket.iter_mut().zip(keyed).for_each(|(record, (_, sorted))| *record = sorted);
            }
            let at = (i as i32, buckets.starts[i], buckets.top(i));
            let row = |record: R| record.index(buckets.index_bits);
            let length = |record: R| codec.length(record);
            let mut packed = match &self.fields {
                None => pack(bucket, length, at, &self.model, check)?,
                Some(fields) => {
                    if let Some(bands) = fields.bands {
                        bands.sort(bucket, fields, row, &self.model, check)?;
                    }
                    pack_fields(bucket, fields, row, (at.0, at.1), &self.model, check)?
                }
            };
            let measure = |range: Range<usize>| self.measure(&bucket[range], row, length);
            even_tail(&mut packed, at.1, measure, &self.model);
            Ok((i, packed))
        })?;
        of_buckets.sort_unstable_by_key(|&(i, _)| i);
        let mut packed = Packed::default();
        for (_, of_bucket) in of_buckets {
            packed.append(of_bucket)?;
        }
        let codec = buckets.codec(-1);
        packed.append(match &self.fields {
            None => alone(kept.iter().map(|&record| codec.length(record)), end_of_buckets)?,
            Some(fields) => {
                alone_of_fields(fields, kept.iter().map(|record| record.index(buckets.index_bits)), end_of_buckets)?
            }
        })?;
        Ok(packed)
    }

    fn finish_buckets<R: Record>(
        &self,
        records: &[R],
        buckets: &Buckets,
        mut packed: Packed,
        indices: &mut [i64],
        streams: Streams,
        check: Check<'_>,
    ) -> Result<EpochPlan> {
        let row = |record: R| record.index(buckets.index_bits);
        let measure = |range: Range<usize>, bucket| {
            self.measure(&records[range], row, |record| buckets.codec(bucket).length(record))
        };
        self.even_out(&mut packed, streams, measure, check)?;
        self.write(records, row, packed, indices, streams, check)
    }

    /// Splits batches up to the constant count. `measure` as the method, of samples of one bucket.
    pub(crate) fn even_out(
        &self,
        packed: &mut Packed,
        streams: Streams,
        measure: impl Fn(Range<usize>, i32) -> (u64, u64, Longest),
        check: Check<'_>,
    ) -> Result<()> {
        if !self.options.constant_count {
            return Ok(());
        }
        let least = 2 * usize::try_from(self.model.min_batch_size).unwrap_or(usize::MAX / 2);
        let n_batches = (self.n_batches_until(check)?, least);
        let longest_of = |range, bucket| {
            let (longest, largest, _) = measure(range, bucket);
            (longest, largest)
        };
        let n_splits = split(&mut packed.batches, n_batches, streams, longest_of, check)?;
        packed.n_splits += n_splits;
        if n_splits > 0 && !self.options.fields.is_empty() {
            packed.longest_of_fields.clear();
            for (b, batch) in packed.batches.iter().enumerate() {
                if b % BETWEEN_CHECKS == 0 {
                    check()?;
                }
                let range = batch.start..batch.start + batch.n_samples;
                memory::push(&mut packed.longest_of_fields, measure(range, batch.bucket).2)?;
            }
        }
        Ok(())
    }

    /// Orders the batches and writes them down.
    pub(crate) fn write<R: Copy>(
        &self,
        samples: &[R],
        index: impl Fn(R) -> usize,
        Packed { batches, closed, n_splits, longest_of_fields }: Packed,
        indices: &mut [i64],
        streams: Streams,
        check: Check<'_>,
    ) -> Result<EpochPlan> {
        let (model, &Options { window, align_ranks, .. }) = (&self.model, &self.options);
        let mut plan = EpochPlan {
            indices: Vec::new(),
            offsets: memory::with_capacity(batches.len() + 1)?,
            padded_lengths: memory::with_capacity(batches.len() * self.options.fields.len().max(1))?,
            costs: memory::with_capacity(batches.len())?,
            buckets: memory::with_capacity(batches.len())?,
            domains: Vec::new(),
            domain_tokens: memory::collect(self.domain_tokens())?,
            boundaries: memory::collect(self.boundaries.iter().map(|&edge| edge as i64))?,
            dropped: memory::collect(self.dropped.iter().map(|&index| index as i64))?,
            totals: Totals {
                real_tokens: self.real_tokens,
                budget_tokens: batches.len() as u128 * u128::from(model.token_budget),
                dropped_tokens: self.dropped_tokens,
                closed,
                n_splits,
                window,
                ..Totals::default()
            },
        };
        plan.offsets.push(0);
        let (mut position, mut next_check) = (0, 0);
        for i in order(&batches, model, (window, align_ranks), streams, check)? {
            if position >= next_check {
                check()?;
                next_check = position + BETWEEN_CHECKS;
            }
            let Batch { start, n_samples, longest, largest, bucket, domain } = batches[i];
            let of_batch = &mut indices[position..position + n_samples];
            for (out, &sample) in of_batch.iter_mut().zip(&samples[start..start + n_samples]) {
                *out = index(sample) as i64;
            }
            position += n_samples;
            plan.offsets.push(position as i64);
            let first = plan.padded_lengths.len();
            match &self.fields {
                None => plan.padded_lengths.push(model.padded_length(longest) as i64),
                Some(fields) => plan.padded_lengths.extend(
                    (0..fields.n_fields()).map(|f| fields.padded_length(f, longest_of_fields[i][f].into()) as i64),
                ),
            }
            let row_tokens: i64 = plan.padded_lengths[first..].iter().sum();
            let cost = model.batch_cost(n_samples, longest);
            plan.costs.push(i64::try_from(cost).unwrap_or(i64::MAX));
            plan.buckets.push(if bucket < 0 { bucket } else { self.bucket_of(domain, largest) });
            if !self.domains.is_empty() {
                plan.domains.push(self.domains[domain as usize].value);
            }
            plan.totals.padded_tokens += n_samples as u128 * row_tokens as u128;
            plan.totals.cost += cost;
        }
        Ok(plan)
    }

    fn bucket_of(&self, domain: u32, length: u64) -> i32 {
        let Some(domain) = self.domains.get(domain as usize) else {
            return self.boundaries[1..].partition_point(|&edge| edge < length) as i32;
        };
        domain.first_edge as i32 + domain.planner.bucket_of(0, length)
    }
}
