//! Buckets: which sample goes where, before anything is random.
use crate::admission::{Census, Empty, Length, N_SHORT, Overlong, zeros};
use crate::boundaries::{self, Target};
use crate::cost::CostModel;
use crate::error::{Error, Result, check_range};
use crate::record::{Codec, Record, Records, bits};

/// More buckets than this are refused, so that a bucket fits 16 bits.
pub(crate) const MAX_BUCKETS: usize = 1 << 15;

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

impl Boundaries {
    /// Checks the edges, or the number of buckets, or the target by themselves.
    pub(crate) fn validate(&self) -> Result<()> {
        match self {
            Self::One => Ok(()),
            Self::Auto { padding_target, min_batches_per_bucket } => {
                if padding_target.is_nan() || *padding_target < 0.0 {
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

/// Which part of the records is which bucket, and what was left out of them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Bucket `i` is `records[starts[i]..starts[i + 1]]`; the kept over-long samples follow the last.
    pub starts: Vec<usize>,
    /// Edges of the buckets, tokens.
    pub boundaries: Vec<u64>,
    /// The samples left out, ascending.
    pub dropped: Vec<usize>,
    /// Tokens of the admitted samples.
    pub real_tokens: u128,
    /// Tokens of the samples left out.
    pub dropped_tokens: u128,
    pub index_bits: u32,
    pub longest_admissible: u64,
}

impl Layout {
    pub(crate) fn n_buckets(&self) -> usize {
        self.boundaries.len() - 1
    }

    /// No sample of the bucket is longer than this, tokens.
    pub(crate) fn top(&self, bucket: usize) -> u64 {
        self.boundaries[bucket + 1].min(self.longest_admissible)
    }

    /// How the records of a bucket are read; -1: of the kept over-long samples.
    pub(crate) fn codec(&self, bucket: i32) -> Codec {
        let base = usize::try_from(bucket).map_or(self.longest_admissible, |i| self.boundaries[i]);
        Codec { index_bits: self.index_bits, base }
    }
}

/// Admits every sample or names the first that cannot be, finds the boundaries and returns the admitted samples bucket
/// after bucket, each in ascending index, with their layout.
pub(crate) fn partition<L: Length>(
    lengths: &[L],
    model: &CostModel,
    boundaries: &Boundaries,
    empty: Empty,
    overlong: Overlong,
) -> Result<(Records, Layout)> {
    let census = Census::of(lengths, model);
    census.check(lengths, model, empty, overlong)?;
    let optimal = |target| boundaries::optimal(&census.histogram(lengths), model, target);
    let edges = match *boundaries {
        Boundaries::One => vec![0, census.extremes(lengths).map_or(0, |(_, longest)| longest)],
        Boundaries::Edges(ref edges) => {
            census.check_edges(lengths, edges)?;
            edges.clone()
        }
        Boundaries::Auto { padding_target, min_batches_per_bucket } => {
            optimal(Target::Padding { target: padding_target, min_batches: min_batches_per_bucket })
        }
        Boundaries::Optimal(n_buckets) => optimal(Target::Buckets(n_buckets)),
    };
    let classes = Classes::new(lengths, edges, &census);
    let keep_overlong = overlong == Overlong::Keep;
    Ok(match classes.length_bits() + classes.index_bits {
        ..=32 => classes.divide(lengths, classes.scatter::<L, u32>(lengths), keep_overlong, Records::U32),
        33..=64 => classes.divide(lengths, classes.scatter::<L, u64>(lengths), keep_overlong, Records::U64),
        _ => classes.divide(lengths, classes.scatter::<L, u128>(lengths), keep_overlong, Records::U128),
    })
}

/// A bucket, or one of the two classes behind the buckets: empty and over-long samples. So every sample is sorted by
/// the same pass, whatever the policies.
type Class = u16;

/// Which lengths belong to which class.
struct Classes {
    edges: Vec<u64>,
    longest_admissible: u64,
    /// Class `c` holds `spans[c].0 < length <= spans[c].1`, and its records store lengths less `spans[c].0`; but for the
    /// empty samples.
    spans: Vec<(u64, u64)>,
    /// Samples of each class.
    sizes: Vec<usize>,
    /// The class of every short length; `None` where some are not short.
    table: Option<Box<[Class; N_SHORT]>>,
    index_bits: u32,
    /// Tokens of all samples.
    tokens: u128,
}

impl Classes {
    fn new<L: Length>(lengths: &[L], edges: Vec<u64>, census: &Census) -> Self {
        let &Census { longest, longest_admissible, .. } = census;
        let last = longest.min(longest_admissible);
        let buckets = edges.windows(2).map(|edges| (edges[0], edges[1].min(last)));
        let spans: Vec<_> = buckets.chain([(0, 0), (longest_admissible, longest)]).collect();
        let index_bits = bits(lengths.len().saturating_sub(1) as u64);
        let sizes = vec![0; spans.len()];
        let tokens = census.tokens(lengths);
        let mut classes = Self { edges, longest_admissible, spans, sizes, table: None, index_bits, tokens };
        if let Some(counts) = &census.counts {
            let (n_buckets, mut table) = (classes.n_buckets(), zeros());
            table[0] = n_buckets as Class;
            classes.sizes[n_buckets] = counts[0] as usize;
            for (c, &(base, last)) in classes.spans.iter().enumerate().filter(|(_, (base, last))| base < last) {
                let lengths = base as usize + 1..=last as usize;
                table[lengths.clone()].fill(c as Class);
                classes.sizes[c] = counts[lengths].iter().map(|&n_samples| n_samples as usize).sum();
            }
            classes.table = Some(table);
        } else {
            for &length in lengths {
                let class = classes.find(length.into());
                classes.sizes[usize::from(class)] += 1;
            }
        }
        classes
    }

    fn n_buckets(&self) -> usize {
        self.edges.len() - 1
    }

    fn find(&self, length: u64) -> Class {
        let class = match length {
            0 => self.n_buckets(),
            length if length > self.longest_admissible => self.n_buckets() + 1,
            length => self.edges[1..].partition_point(|&edge| edge < length),
        };
        class as Class
    }

    /// How many bits hold every length as it is stored.
    fn length_bits(&self) -> u32 {
        bits(self.spans.iter().map(|&(base, last)| last.saturating_sub(base)).max().unwrap_or(0))
    }

    /// Returns the records, class after class, each in ascending index, and where each class ends.
    fn scatter<L: Length, R: Record>(&self, lengths: &[L]) -> (Vec<R>, Vec<usize>) {
        match &self.table {
            Some(table) => self.scatter_by(lengths, |length| table[length.short()]),
            None => self.scatter_by(lengths, |length| self.find(length.into())),
        }
    }

    fn scatter_by<L: Length, R: Record>(&self, lengths: &[L], class_of: impl Fn(L) -> Class) -> (Vec<R>, Vec<usize>) {
        // Where the next record of each class goes, and what it stores lengths less.
        let (mut next, index_bits) = (0, self.index_bits);
        let cursor = |(&size, &(base, _)): (&usize, &(u64, u64))| {
            next += size;
            (next - size, base)
        };
        let mut cursors: Vec<(usize, u64)> = self.sizes.iter().zip(&self.spans).map(cursor).collect();
        let mut records = vec![R::default(); lengths.len()];
        for (index, &length) in lengths.iter().enumerate() {
            let (position, base) = &mut cursors[usize::from(class_of(length))];
            records[*position] = R::join(length.into() - *base, index, index_bits);
            *position += 1;
        }
        (records, cursors.into_iter().map(|(end, _)| end).collect())
    }

    /// Parts the admitted samples from the dropped ones.
    fn divide<L: Length, R: Record>(
        &self,
        lengths: &[L],
        (mut records, ends): (Vec<R>, Vec<usize>),
        keep_overlong: bool,
        wrap: impl Fn(Vec<R>) -> Records,
    ) -> (Records, Layout) {
        let n_buckets = self.n_buckets();
        let (empty, overlong) = (ends[n_buckets - 1]..ends[n_buckets], ends[n_buckets]..records.len());
        let left_out = if keep_overlong { empty } else { empty.start..overlong.end };
        let mut layout = Layout {
            starts: std::iter::once(0).chain(ends[..n_buckets].iter().copied()).collect(),
            boundaries: self.edges.clone(),
            dropped: records[left_out.clone()].iter().map(|record| record.index(self.index_bits)).collect(),
            real_tokens: self.tokens,
            dropped_tokens: 0,
            index_bits: self.index_bits,
            longest_admissible: self.longest_admissible,
        };
        layout.dropped.sort_unstable();
        layout.dropped_tokens = layout.dropped.iter().map(|&index| u128::from(lengths[index].into())).sum();
        layout.real_tokens -= layout.dropped_tokens;
        records.drain(left_out);
        (wrap(records), layout)
    }
}
