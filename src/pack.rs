//! Greedy packing under the cost model, and the splitting that makes the number of batches constant.
use std::ops::Range;

use crate::cost::CostModel;
use crate::error::Result;
use crate::fields::{Fields, Longest, MAX_FIELDS, with_zeros};
use crate::memory;
use crate::rng::{self, Stage, Streams};
use crate::threads::{BETWEEN_CHECKS, Check};

/// A run of samples that are trained together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Position of its first record.
    pub start: usize,
    pub n_samples: usize,
    /// Longest sample, tokens. Several fields: the combined length of the longest of each.
    pub longest: u64,
    /// Longest sample, tokens. Several fields: the largest combined length of a sample.
    pub largest: u64,
    /// The bucket; -1 for an over-long sample that is kept.
    pub bucket: i32,
    /// The number of the domain; 0 without domains.
    pub domain: u32,
}

/// Why batches ended where they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// One more sample would have exceeded the token budget.
    pub by_budget: u64,
    /// One more sample would have exceeded `max_batch_size`, and not the budget.
    pub by_max_batch_size: u64,
    /// The bucket had no more samples.
    pub by_bucket_end: u64,
}

impl std::ops::AddAssign for Closed {
    fn add_assign(&mut self, other: Self) {
        self.by_budget += other.by_budget;
        self.by_max_batch_size += other.by_max_batch_size;
        self.by_bucket_end += other.by_bucket_end;
    }
}

/// Packs the samples of a bucket in their order. None is over-long or longer than `top`, and a larger one is never
/// shorter. Batches count positions from `start_of_bucket`.
pub(crate) fn pack<R: Copy + Ord>(
    samples: &[R],
    length: impl Fn(R) -> u64,
    (bucket, start_of_bucket, top): (i32, usize, u64),
    model: &CostModel,
    check: Check<'_>,
) -> Result<Packed> {
    let mut packed = Packed::default();
    if samples.is_empty() {
        return Ok(packed);
    }
    let cap_of_all = model.cap(top);
    let mut start = 0;
    while let Some(first) = longest(&samples[start..samples.len().min(start + cap_of_all)]) {
        if packed.batches.len() % BETWEEN_CHECKS == 0 {
            check()?;
        }
        // These always fit, so only their maximum matters: one comparison a sample, without a branch.
        let mut end = samples.len().min(start + cap_of_all);
        let (mut longest, mut cap) = (first, model.cap(length(first)));
        // From here on, the samples up to the next longer one stay while the batch has room; only a longer one changes it.
        loop {
            let room = samples.len().min(start.saturating_add(cap));
            let longer = samples[end..room].iter().position(|&sample| sample > longest);
            end = longer.map_or(room, |n_shorter| end + n_shorter);
            let Some(&next) = samples.get(end) else { break };
            let longest_with_next = longest.max(next);
            let cap_with_next = if next > longest { model.cap(length(next)) } else { cap };
            if end - start + 1 > cap_with_next {
                if (end - start) as u64 + 1 > model.budget_cap(length(longest_with_next)) {
                    packed.closed.by_budget += 1;
                } else {
                    packed.closed.by_max_batch_size += 1;
                }
                break;
            }
            (longest, cap) = (longest_with_next, cap_with_next);
            end += 1;
        }
        let n_samples = end - start;
        let longest = length(longest);
        let batch = Batch { start: start_of_bucket + start, n_samples, longest, largest: longest, bucket, domain: 0 };
        memory::push(&mut packed.batches, batch)?;
        start = end;
    }
    packed.closed.by_bucket_end += 1;
    Ok(packed)
}

/// Packs samples with several fields, as `pack` does those with one. A larger one never has a lower combined length.
pub(crate) fn pack_fields<R: Copy + Ord>(
    samples: &[R],
    fields: &Fields,
    row: impl Fn(R) -> usize,
    at: (i32, usize),
    model: &CostModel,
    check: Check<'_>,
) -> Result<Packed> {
    match fields.stride {
        2 => pack_rows::<R, 2>(samples, fields, row, at, model, check),
        4 => pack_rows::<R, 4>(samples, fields, row, at, model, check),
        _ => pack_rows::<R, MAX_FIELDS>(samples, fields, row, at, model, check),
    }
}

fn pack_rows<R: Copy + Ord, const S: usize>(
    samples: &[R],
    fields: &Fields,
    row: impl Fn(R) -> usize,
    (bucket, start_of_bucket): (i32, usize),
    model: &CostModel,
    check: Check<'_>,
) -> Result<Packed> {
    let rows = fields.rows::<S>();
    // What `model.cap` says of combined lengths, which are padded as they are. A division for each longer sample would
    // take 3 ns a sample.
    let max_size = model.max_batch_size.unwrap_or(u64::MAX);
    let fits = |n_samples: usize, together: u64| {
        let cost = (n_samples as u64).checked_mul(model.per_sample.saturating_add(together));
        n_samples as u64 <= max_size && cost.is_some_and(|cost| cost <= model.token_budget)
    };
    let mut packed = Packed::default();
    let mut start = 0;
    while start < samples.len() {
        if packed.batches.len() % BETWEEN_CHECKS == 0 {
            check()?;
        }
        let mut longest = rows[row(samples[start])];
        let mut together = fields.combined(&longest);
        let mut end = start + 1;
        while let Some(&next) = samples.get(end) {
            let row = &rows[row(next)];
            let longest_with_next: [u32; S] = std::array::from_fn(|f| longest[f].max(row[f]));
            let grows = longest_with_next != longest;
            let together_with_next = if grows { fields.combined(&longest_with_next) } else { together };
            if !fits(end + 1 - start, together_with_next) {
                if (end + 1 - start) as u64 > model.budget_cap(together_with_next) {
                    packed.closed.by_budget += 1;
                } else {
                    packed.closed.by_max_batch_size += 1;
                }
                break;
            }
            (longest, together) = (longest_with_next, together_with_next);
            end += 1;
        }
        let largest = samples[start..end].iter().copied().fold(samples[start], R::max);
        let largest = fields.combined(&rows[row(largest)]);
        let batch = Batch {
            start: start_of_bucket + start,
            n_samples: end - start,
            longest: together,
            largest,
            bucket,
            domain: 0,
        };
        memory::push(&mut packed.batches, batch)?;
        memory::push(&mut packed.longest_of_fields, with_zeros(longest))?;
        start = end;
    }
    packed.closed.by_bucket_end += u64::from(!samples.is_empty());
    Ok(packed)
}

/// Evens the last batch of a run out with the one before it, where it has fewer than `min_batch_size` samples: both become
/// as few equal parts as the budget allows. `longest` tells `Batch::longest` and `Batch::largest` of samples, counted from
/// `start_of_run`, and their longest in each field.
pub(crate) fn even_tail(
    packed: &mut Packed,
    start_of_run: usize,
    longest: impl Fn(Range<usize>) -> (u64, u64, Longest),
    model: &CostModel,
) {
    let [.., before, last] = packed.batches[..] else { return };
    if last.n_samples as u64 >= model.min_batch_size {
        return;
    }
    let (start, n_samples) = (before.start, before.n_samples + last.n_samples);
    let measure = |start: usize, end: usize| longest(start - start_of_run..end - start_of_run);
    let cap = model.cap(measure(start, start + n_samples).0);
    // Both batches held one sample or more, and `Planner::of` has seen that the longest one fits more often than that.
    let n_parts = n_samples.div_ceil(cap);
    if n_parts == 1 {
        let (with_next, ..) = measure(start, last.start + 1);
        if before.n_samples as u64 + 1 > model.budget_cap(with_next) {
            packed.closed.by_budget -= 1;
        } else {
            packed.closed.by_max_batch_size -= 1;
        }
    }
    packed.n_splits += n_parts.saturating_sub(2) as u64;
    packed.batches.truncate(packed.batches.len() - 2);
    let of_fields = !packed.longest_of_fields.is_empty();
    packed.longest_of_fields.truncate(packed.batches.len());
    for part in 0..n_parts {
        let (from, to) = (start + n_samples * part / n_parts, start + n_samples * (part + 1) / n_parts);
        let (longest, largest, longest_of_fields) = measure(from, to);
        packed.batches.push(Batch { start: from, n_samples: to - from, longest, largest, ..last });
        if of_fields {
            packed.longest_of_fields.push(longest_of_fields);
        }
    }
}

/// The largest of the samples; `None` where there is none.
#[inline]
fn longest<R: Copy + Ord>(samples: &[R]) -> Option<R> {
    // Folds over copies become vector instructions, `max` over references does not.
    samples.first().map(|&first| samples.iter().copied().fold(first, R::max))
}

/// `Batch::longest` and `Batch::largest` of some samples, and their longest in each field.
pub(crate) fn measure<R: Copy + Ord>(
    fields: Option<&Fields>,
    samples: &[R],
    row: impl Fn(R) -> usize,
    length: impl Fn(R) -> u64,
) -> (u64, u64, Longest) {
    let largest = longest(samples).map_or(0, length);
    let Some(fields) = fields else { return (largest, largest, Longest::default()) };
    let of_fields = fields.longest(samples.iter().map(|&sample| row(sample)));
    (fields.combined(&of_fields), largest, of_fields)
}

/// The batches of one bucket, in order.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    pub batches: Vec<Batch>,
    pub closed: Closed,
    /// Batches added by splitting.
    pub n_splits: u64,
    /// `[n_batches]` before any was split: the longest of each field; empty where there is one.
    pub longest_of_fields: Vec<Longest>,
}

impl Packed {
    pub(crate) fn append(&mut self, mut other: Self) -> Result<()> {
        memory::reserve(&mut self.batches, other.batches.len())?;
        self.batches.append(&mut other.batches);
        memory::reserve(&mut self.longest_of_fields, other.longest_of_fields.len())?;
        self.longest_of_fields.append(&mut other.longest_of_fields);
        self.closed += other.closed;
        self.n_splits += other.n_splits;
        Ok(())
    }
}

/// The kept over-long samples, each in a batch of its own.
pub(crate) fn alone(lengths: impl Iterator<Item = u64>, start: usize) -> Result<Packed> {
    let batch = |(start, longest)| Batch { start, n_samples: 1, longest, largest: longest, bucket: -1, domain: 0 };
    let batches = memory::collect((start..).zip(lengths).map(batch))?;
    let by_budget = batches.len() as u64;
    Ok(Packed { batches, closed: Closed { by_budget, ..Closed::default() }, ..Packed::default() })
}

/// The same of samples with several fields, which are in these rows.
pub(crate) fn alone_of_fields(fields: &Fields, rows: impl Iterator<Item = usize>, start: usize) -> Result<Packed> {
    let longest = rows.map(|row| fields.longest(std::iter::once(row)));
    let longest_of_fields = memory::collect(longest)?;
    let packed = alone(longest_of_fields.iter().map(|longest| fields.combined(longest)), start)?;
    Ok(Packed { longest_of_fields, ..packed })
}

/// Splits batches until there are `n_batches`: in every round a random choice of those with `least` samples or more, each
/// into halves, so that no length is favoured. Ends early where every batch is smaller. `longest` tells
/// `Batch::longest` and `Batch::largest` of the samples at some positions, which are all of one bucket. Returns how many
/// batches it has added.
pub(crate) fn split(
    batches: &mut Vec<Batch>,
    (n_batches, least): (usize, usize),
    streams: Streams,
    longest: impl Fn(Range<usize>, i32) -> (u64, u64),
    check: Check<'_>,
) -> Result<u64> {
    let n_packed = batches.len();
    for round in 0.. {
        let missing = n_batches.saturating_sub(batches.len());
        let mut chosen: Vec<usize> = memory::collect((0..batches.len()).filter(|&i| batches[i].n_samples >= least))?;
        if missing == 0 || chosen.is_empty() {
            break;
        }
        rng::shuffle(&mut chosen, &mut streams.open(Stage::Split, round), check)?;
        chosen.truncate(missing);
        chosen.sort_unstable();
        let mut chosen = chosen.into_iter().peekable();
        let part = |start: usize, n_samples: usize, batch: Batch| {
            let (longest, largest) = longest(start..start + n_samples, batch.bucket);
            Batch { start, n_samples, longest, largest, ..batch }
        };
        let mut parts = memory::with_capacity(batches.len() + chosen.len())?;
        for (i, &batch) in batches.iter().enumerate() {
            if chosen.next_if_eq(&i).is_none() {
                parts.push(batch);
                continue;
            }
            let Batch { start, n_samples, .. } = batch;
            let n_second = n_samples / 2;
            let n_first = n_samples - n_second;
            parts.extend([part(start, n_first, batch), part(start + n_first, n_second, batch)]);
        }
        *batches = parts;
    }
    Ok((batches.len() - n_packed) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_batch_closes_where_one_more_sample_does_not_fit(
            lengths in proptest::collection::vec(1..40_u64, 0..60),
            token_budget in 40..200_u64,
            max_batch_size in proptest::option::of(1..9_u64),
            start in 0..9_usize,
        ) {
            let model = CostModel { token_budget, max_batch_size, ..crate::Options::default().cost };
            let (mut expected, mut closed) = (Vec::<Batch>::new(), Closed::default());
            for (i, &length) in lengths.iter().enumerate() {
                if let Some(batch) = expected.last_mut() {
                    let longest = batch.longest.max(length);
                    if batch.n_samples < model.cap(longest) {
                        *batch = Batch { n_samples: batch.n_samples + 1, longest, largest: longest, ..*batch };
                        continue;
                    }
                    if (batch.n_samples as u64) < token_budget / longest {
                        closed.by_max_batch_size += 1;
                    } else {
                        closed.by_budget += 1;
                    }
                }
                let (longest, largest) = (length, length);
                expected.push(Batch { start: start + i, n_samples: 1, longest, largest, bucket: 7, domain: 0 });
            }
            closed.by_bucket_end += u64::from(!lengths.is_empty());
            let packed = pack(&lengths, |length| length, (7, start, 40), &model, &|| Ok(())).unwrap();
            prop_assert_eq!(&packed.batches, &expected);
            prop_assert_eq!(packed.closed, closed);
            let mut twice = alone([50].into_iter(), 3).unwrap();
            twice.append(packed).unwrap();
            prop_assert_eq!(twice.batches.len(), expected.len() + 1);
            prop_assert_eq!(twice.closed, Closed { by_budget: closed.by_budget + 1, ..closed });
        }
    }
}
