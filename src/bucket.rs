//! Admission and buckets: which sample goes where, before anything is random.
use crate::boundaries::{self, Target};
use crate::cost::CostModel;
use crate::error::{Error, Result, check_range};

/// More buckets than this are refused, so that a bucket fits 16 bits.
pub(crate) const MAX_BUCKETS: usize = 1 << 15;

/// Lengths below this have their class looked up in a table, longer ones by bisection.
const TABLE_LENGTHS: u64 = 1 << 16;

/// Lengths below this are counted in an array for the histogram, longer ones by sorting.
const COUNTED_LENGTHS: u64 = 1 << 20;

/// A length as it comes in: 32 bits where all lengths fit, for half the memory, else 64.
pub trait Length: Copy + Into<u64> + Ord {}
impl Length for u32 {}
impl Length for u64 {}

/// A sample with its length, in one word, so that packing reads what the shuffle has just moved and gathers nothing.
/// Records order by (length, index).
pub(crate) trait Record: Copy + Ord + Send + Sync {
    fn new(length: u64, index: usize) -> Self;
    fn length(self) -> u64;
    fn index(self) -> usize;
}

/// For lengths and sample counts below 2^32.
impl Record for u64 {
    fn new(length: u64, index: usize) -> Self {
        (length << 32) | index as u64
    }
    fn length(self) -> u64 {
        self >> 32
    }
    fn index(self) -> usize {
        (self & 0xFFFF_FFFF) as usize
    }
}

/// For all others.
impl Record for u128 {
    fn new(length: u64, index: usize) -> Self {
        (u128::from(length) << 64) | index as u128
    }
    fn length(self) -> u64 {
        (self >> 64) as u64
    }
    fn index(self) -> usize {
        self as u64 as usize
    }
}

impl Boundaries {
    /// Checks the edges, or the number of buckets, or the target by themselves.
    pub(crate) fn validate(&self) -> Result<()> {
        match self {
            Self::One => Ok(()),
            Self::Auto { padding_target, min_batches_per_bucket } => {
                if !(padding_target.is_finite() && *padding_target >= 0.0) {
                    return Err(Error::out_of_range("padding_target", padding_target, 0, "inf"));
                }
                check_range("min_batches_per_bucket", Some(*min_batches_per_bucket), 1, i64::MAX as u64)
            }
            Self::Optimal(n_buckets) => {
                check_range("boundaries", Some(*n_buckets as u64), 1, boundaries::MAX_OPTIMAL_BUCKETS as u64)
            }
            Self::Edges(edges) => {
                if !(2..=MAX_BUCKETS).contains(&edges.len()) {
                    return Err(Error::NumberOfEdges { n_edges: edges.len(), max_edges: MAX_BUCKETS });
                }
                if let Some(i) = edges.iter().position(|&edge| edge > i64::MAX as u64) {
                    return Err(Error::out_of_range(format!("boundaries[{i}]"), edges[i], 0, i64::MAX));
                }
                match edges.windows(2).position(|pair| pair[0] >= pair[1]) {
                    None => Ok(()),
                    Some(i) => Err(Error::UnorderedBoundaries { index: i + 1, edge: edges[i + 1], previous: edges[i] }),
                }
            }
        }
    }
}

/// What to do with a length of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Empty {
    /// Refuse the data set.
    Error,
    /// Leave the sample out of the plan and report it.
    Drop,
}

/// What to do with a sample that costs more than the token budget by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overlong {
    /// Refuse the data set.
    Error,
    /// Leave the sample out of the plan and report it.
    Drop,
    /// Give it a batch of its own.
    Keep,
}

/// Where the boundaries come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Boundaries {
    /// The fewest optimal buckets that pad at most `padding_target` more than one bucket a length would, each of at
    /// least `min_batches_per_bucket` full batches.
    Auto {
        /// Accepted padding, as a share of the least possible padded tokens.
        padding_target: f64,
        /// The freshness floor, batches.
        min_batches_per_bucket: u64,
    },
    /// This many optimal buckets, or one a distinct padded length where those are fewer.
    Optimal(usize),
    /// Ascending edges: bucket `i` holds `edges[i] < length <= edges[i + 1]`.
    Edges(Vec<u64>),
    /// One bucket for all lengths.
    One,
}

/// Which part of the records is which bucket, and what was left out of them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Bucket `i` is `records[starts[i]..starts[i + 1]]`; the kept over-long samples follow the last.
    pub starts: Vec<usize>,
    /// Edges of the buckets, tokens.
    pub boundaries: Vec<u64>,
    /// Longest sample of each bucket, tokens; 0 in an empty one.
    pub tops: Vec<u64>,
    /// The samples left out, ascending.
    pub dropped: Vec<usize>,
    /// Tokens of the admitted samples.
    pub real_tokens: u128,
    /// Tokens of the samples left out.
    pub dropped_tokens: u128,
}

impl Layout {
    pub(crate) fn n_buckets(&self) -> usize {
        self.tops.len()
    }
}

/// Admits every sample or names the first that cannot be, finds the boundaries and returns the admitted samples bucket
/// after bucket, each in ascending index, with their layout.
pub(crate) fn partition<L: Length, R: Record>(
    lengths: &[L],
    model: &CostModel,
    boundaries: &Boundaries,
    empty: Empty,
    overlong: Overlong,
) -> Result<(Vec<R>, Layout)> {
    let admissible = 1..=model.longest_admissible();
    admit(lengths, model, *admissible.end(), empty, overlong)?;
    let edges = match boundaries {
        Boundaries::Edges(edges) => {
            check_edges(lengths, edges, *admissible.end())?;
            edges.clone()
        }
        Boundaries::One => {
            vec![0, lengths.iter().map(|&l| l.into()).filter(|l| admissible.contains(l)).max().unwrap_or(0)]
        }
        &Boundaries::Auto { padding_target, min_batches_per_bucket } => {
            let target = Target::Padding { target: padding_target, min_batches: min_batches_per_bucket };
            optimal(lengths, model, *admissible.end(), target)
        }
        &Boundaries::Optimal(n_buckets) => optimal(lengths, model, *admissible.end(), Target::Buckets(n_buckets)),
    };
    Ok(scatter(lengths, edges, *admissible.end(), overlong == Overlong::Keep))
}

/// Refuses the first sample that the policies do not allow.
fn admit<L: Length>(
    lengths: &[L],
    model: &CostModel,
    longest_admissible: u64,
    empty: Empty,
    overlong: Overlong,
) -> Result<()> {
    let (Some(&shortest), Some(&longest)) = (lengths.iter().min(), lengths.iter().max()) else { return Ok(()) };
    let (shortest, longest) = (shortest.into(), longest.into());
    if shortest == 0 && empty == Empty::Error {
        let (index, _, n_empty) = first(lengths, |length| length == 0);
        return Err(Error::EmptySample { index, n_empty, n_samples: lengths.len() });
    }
    if longest > longest_admissible && overlong == Overlong::Error {
        let (index, length, n_overlong) = first(lengths, |length| length > longest_admissible);
        return Err(Error::OverLong {
            index,
            length,
            cost: model.sample_cost(length),
            token_budget: model.token_budget,
            n_overlong,
            n_samples: lengths.len(),
            longest,
        });
    }
    let too_large = |length| i64::try_from(model.padded_length(length)).is_err();
    if overlong == Overlong::Keep && too_large(longest) {
        let (index, length, _) = first(lengths, too_large);
        return Err(Error::PaddedLengthTooLarge { index, length, multiple: model.pad_to_multiple_of });
    }
    Ok(())
}

/// Position and length of the first sample that `matches`, and how many do; at least one must.
fn first<L: Length>(lengths: &[L], matches: impl Fn(u64) -> bool) -> (usize, u64, usize) {
    let mut found = lengths.iter().map(|&l| l.into()).enumerate().filter(|&(_, length)| matches(length));
    let (index, length) = found.next().expect("the caller has seen a length that matches");
    (index, length, 1 + found.count())
}

fn check_edges<L: Length>(lengths: &[L], edges: &[u64], longest_admissible: u64) -> Result<()> {
    let (below, above) = (edges[0], edges[edges.len() - 1]);
    let outside = |length: u64| (1..=longest_admissible).contains(&length) && (length <= below || length > above);
    match lengths.iter().position(|&length| outside(length.into())) {
        None => Ok(()),
        Some(index) => {
            let length = lengths[index].into();
            let edge_index = if length <= below { 0 } else { edges.len() - 1 };
            Err(Error::OutsideBoundaries { index, length, edge_index, edge: edges[edge_index] })
        }
    }
}

fn optimal<L: Length>(lengths: &[L], model: &CostModel, longest_admissible: u64, target: Target) -> Vec<u64> {
    let mut histogram = histogram(lengths);
    histogram.retain(|&(length, _)| (1..=longest_admissible).contains(&length));
    if histogram.is_empty() { vec![0, 0] } else { boundaries::optimal(&histogram, model, target) }
}

/// Ascending distinct lengths with the number of samples of each.
fn histogram<L: Length>(lengths: &[L]) -> Vec<(u64, u64)> {
    let longest = lengths.iter().max().map_or(0, |&length| length.into());
    if longest < COUNTED_LENGTHS {
        let mut counts = vec![0_u64; longest as usize + 1];
        for &length in lengths {
            counts[length.into() as usize] += 1;
        }
        return (0..).zip(counts).filter(|&(_, n_samples)| n_samples > 0).collect();
    }
    let mut sorted: Vec<L> = lengths.to_vec();
    sorted.sort_unstable();
    sorted.chunk_by(|a, b| a == b).map(|equal| (equal[0].into(), equal.len() as u64)).collect()
}

/// A bucket, or one of the two classes behind the buckets: empty and over-long samples. So every sample is sorted by
/// the same two passes, whatever the policies.
type Class = u16;

/// Sorts the samples into their classes: count, then scatter.
fn scatter<L: Length, R: Record>(
    lengths: &[L],
    edges: Vec<u64>,
    longest_admissible: u64,
    keep_overlong: bool,
) -> (Vec<R>, Layout) {
    let n_buckets = edges.len() - 1;
    let (empty, overlong) = (n_buckets as Class, n_buckets as Class + 1);
    let class_of = |length: u64| match length {
        0 => empty,
        length if length > longest_admissible => overlong,
        length => edges[1..].partition_point(|&edge| edge < length) as Class,
    };
    let longest = lengths.iter().max().map_or(0, |&length| length.into());
    let (records, ends) = if longest < TABLE_LENGTHS {
        let table: Vec<Class> = (0..=longest).map(class_of).collect();
        scatter_by(lengths, n_buckets + 2, |length| table[length as usize])
    } else {
        scatter_by(lengths, n_buckets + 2, class_of)
    };
    divide(records, &ends, edges, keep_overlong)
}

/// Returns the records, class after class, each in ascending index, and where each class ends.
fn scatter_by<L: Length, R: Record>(
    lengths: &[L],
    n_classes: usize,
    class_of: impl Fn(u64) -> Class,
) -> (Vec<R>, Vec<usize>) {
    // Four counts side by side: with one, a run of samples of one class waits for its own last store.
    let mut counts = vec![[0_usize; 4]; n_classes];
    let (quads, rest) = lengths.as_chunks::<4>();
    for quad in quads {
        for (lane, &length) in quad.iter().enumerate() {
            counts[usize::from(class_of(length.into()))][lane] += 1;
        }
    }
    for &length in rest {
        counts[usize::from(class_of(length.into()))][0] += 1;
    }
    let mut next = 0;
    let mut cursors: Vec<usize> = counts
        .iter()
        .map(|lanes| {
            let start = next;
            next += lanes.iter().sum::<usize>();
            start
        })
        .collect();
    let mut records = vec![R::new(0, 0); lengths.len()];
    for (index, &length) in lengths.iter().enumerate() {
        let length = length.into();
        let cursor = &mut cursors[usize::from(class_of(length))];
        records[*cursor] = R::new(length, index);
        *cursor += 1;
    }
    (records, cursors)
}

/// Parts the admitted samples from the dropped ones.
fn divide<R: Record>(
    mut records: Vec<R>,
    ends: &[usize],
    boundaries: Vec<u64>,
    keep_overlong: bool,
) -> (Vec<R>, Layout) {
    let n_buckets = boundaries.len() - 1;
    let (end_of_buckets, end_of_empty) = (ends[n_buckets - 1], ends[n_buckets]);
    let left_out = if keep_overlong { end_of_buckets..end_of_empty } else { end_of_buckets..records.len() };
    let mut dropped: Vec<usize> = records[left_out.clone()].iter().map(|record| record.index()).collect();
    dropped.sort_unstable();
    let (dropped_tokens, _) = sum_and_top(&records[left_out.clone()]);
    records.drain(left_out);
    let starts: Vec<usize> = std::iter::once(0).chain(ends[..n_buckets].iter().copied()).collect();
    let (mut real_tokens, _) = sum_and_top(&records[end_of_buckets..]);
    let of_bucket = |bucket: &[usize]| {
        let (sum, top) = sum_and_top(&records[bucket[0]..bucket[1]]);
        real_tokens += sum;
        top
    };
    let tops = starts.windows(2).map(of_bucket).collect();
    (records, Layout { starts, boundaries, tops, dropped, real_tokens, dropped_tokens })
}

/// Tokens of all records together, and of the longest.
fn sum_and_top<R: Record>(records: &[R]) -> (u128, u64) {
    records.iter().fold((0, 0), |(sum, top), record| (sum + u128::from(record.length()), top.max(record.length())))
}
