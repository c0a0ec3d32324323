//! Greedy packing under the cost model, and the splitting that makes the number of batches constant.
use crate::bucket::Layout;
use crate::cost::CostModel;
use crate::record::Record;
use crate::rng::{self, Stage};

/// A run of samples that are trained together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// Position of its first record.
    pub start: usize,
    pub n_samples: usize,
    /// Longest sample, tokens.
    pub longest: u64,
    /// The bucket; -1 for an over-long sample that is kept.
    pub bucket: i32,
}

impl Batch {
    pub(crate) fn of<R: Record>(records: &[R], layout: &Layout, start: usize, n_samples: usize, bucket: i32) -> Self {
        let longest = layout.codec(bucket).longest(&records[start..start + n_samples]);
        Self { start, n_samples, longest, bucket }
    }
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

/// Packs the records of bucket `bucket` in their order. None is over-long.
pub(crate) fn pack<R: Record>(records: &[R], layout: &Layout, bucket: usize, model: &CostModel) -> Packed {
    let (offset, top, bucket) = (layout.starts[bucket], layout.top(bucket), bucket as i32);
    let codec = layout.codec(bucket);
    let mut packed = Packed::default();
    let Some(cap_of_top) = (!records.is_empty()).then(|| model.cap(top)) else { return packed };
    let mut start = 0;
    while start < records.len() {
        // This many always fit, so only their maximum matters: one comparison a sample, without a branch.
        let mut end = start + cap_of_top.min(records.len() - start);
        let mut longest = codec.longest(&records[start..end]);
        let mut cap = model.cap(longest);
        // The sample that comes next stays if the batch still fits with it; only a longer one changes the cap.
        while let Some(&next) = records.get(end) {
            let longest_with_next = longest.max(codec.length(next));
            if longest_with_next > longest {
                cap = model.cap(longest_with_next);
            }
            if end - start + 1 > cap {
                if (end - start) as u64 + 1 > model.budget_cap(longest_with_next) {
                    packed.closed.by_budget += 1;
                } else {
                    packed.closed.by_max_batch_size += 1;
                }
                break;
            }
            longest = longest_with_next;
            end += 1;
        }
        packed.batches.push(Batch { start: offset + start, n_samples: end - start, longest, bucket });
        start = end;
    }
    packed.closed.by_bucket_end += 1;
    packed
}

/// The batches of one bucket, in order.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    pub batches: Vec<Batch>,
    pub closed: Closed,
}

/// Splits batches until there are `n_batches`: in every round a random choice of those with two samples or more, each
/// into halves, so that no length is favoured. Ends early where every batch is down to one sample.
pub(crate) fn split<R: Record>(
    records: &[R],
    layout: &Layout,
    batches: &mut Vec<Batch>,
    n_batches: usize,
    (seed, epoch): (u64, u64),
) {
    for round in 0.. {
        let missing = n_batches.saturating_sub(batches.len());
        let mut chosen: Vec<usize> = (0..batches.len()).filter(|&i| batches[i].n_samples >= 2).collect();
        if missing == 0 || chosen.is_empty() {
            return;
        }
        rng::shuffle(&mut chosen, &mut rng::stream(seed, epoch, Stage::Split, round));
        chosen.truncate(missing);
        chosen.sort_unstable();
        let mut chosen = chosen.into_iter().peekable();
        *batches = batches
            .iter()
            .enumerate()
            .flat_map(|(i, batch)| {
                let n_second = if chosen.next_if_eq(&i).is_some() { batch.n_samples / 2 } else { 0 };
                let n_first = batch.n_samples - n_second;
                let first = Batch::of(records, layout, batch.start, n_first, batch.bucket);
                let second =
                    (n_second > 0).then(|| Batch::of(records, layout, batch.start + n_first, n_second, batch.bucket));
                std::iter::once(first).chain(second)
            })
            .collect();
    }
}
