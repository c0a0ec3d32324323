//! Buckets: which sample goes where, before anything is random.
use crate::admission::{Census, Overlong};
use crate::boundaries;
use crate::by_length::LeftOut;
use crate::error::{Error, Result, check_range};
use crate::lengths::{Length, TABLE_SIZE, zeros};
use crate::memory;
use crate::record::{Codec, Record, Records, bits};
use crate::threads::{BETWEEN_CHECKS, Check};

/// More buckets than this are refused, so that a bucket fits 16 bits.
pub(crate) const MAX_BUCKETS: usize = 1 << 15;

/// Where the boundaries come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Boundaries {
    /// Soft buckets: those that minimise the padding ratio plus this times the share of pairs repeated.
    RepeatWeight(f64),
    /// Soft buckets that pad this much more than sorted order does, as a share of its padded tokens.
    PaddingTarget(f64),
    /// This many optimal buckets, or one a distinct padded length where those are fewer.
    Optimal(usize),
    /// Ascending edges: bucket `i` holds `edges[i] < length <= edges[i + 1]`.
    Edges(Vec<u64>),
}

impl Boundaries {
    /// One per cent fewer repeated pairs is worth half a per cent of padding.
    pub const DEFAULT_REPEAT_WEIGHT: f64 = 0.5;

    /// The option that sets it, as the caller types it.
    pub(crate) fn option(&self) -> &'static str {
        match self {
            Self::RepeatWeight(_) => "repeat_weight",
            Self::PaddingTarget(_) => "padding_target",
            _ => "boundaries",
        }
    }

    /// Checks the edges, or the number of buckets, or the target by themselves.
    pub(crate) fn validate(&self) -> Result<()> {
        match self {
            Self::RepeatWeight(share) | Self::PaddingTarget(share) => {
                if *share >= 0.0 {
                    Ok(())
                } else {
                    Err(Error::out_of_range(self.option(), share, 0, "inf"))
                }
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

/// Which part of the records is which bucket.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    /// Bucket `i` is `records[starts[i]..starts[i + 1]]`; the kept over-long samples follow the last.
    pub starts: Vec<usize>,
    /// Edges of the buckets, tokens.
    pub edges: Vec<u64>,
    pub index_bits: u32,
    pub longest_admissible: u64,
}

impl Buckets {
    /// One, without samples.
    pub(crate) fn none() -> Self {
        Self { starts: vec![0, 0], edges: vec![0, 0], index_bits: 0, longest_admissible: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.edges.len() - 1
    }

    /// No sample of the bucket is longer than this, tokens.
    pub(crate) fn top(&self, bucket: usize) -> u64 {
        self.edges[bucket + 1].min(self.longest_admissible)
    }

    /// How the records of a bucket are read; -1: of the kept over-long samples.
    pub(crate) fn codec(&self, bucket: i32) -> Codec {
        let base = usize::try_from(bucket).map_or(self.longest_admissible, |i| self.edges[i]);
        Codec { index_bits: self.index_bits, base }
    }
}

/// Returns the admitted samples bucket after bucket, each in ascending index.
pub(crate) fn partition<L: Length>(
    census: &Census<'_, L>,
    edges: Vec<u64>,
    overlong: Overlong,
    check: Check<'_>,
) -> Result<(Records, Buckets, LeftOut)> {
    let classes = Classes::new(edges, census)?;
    let keep_overlong = overlong == Overlong::Keep;
    match classes.length_bits() + classes.index_bits {
        ..=32 => classes.divide(classes.scatter::<L, u32>(census, check)?, keep_overlong, Records::U32),
        33..=64 => classes.divide(classes.scatter::<L, u64>(census, check)?, keep_overlong, Records::U64),
        _ => classes.divide(classes.scatter::<L, u128>(census, check)?, keep_overlong, Records::U128),
    }
}

/// Edges of one bucket for all admitted samples.
pub(crate) fn one_bucket<L: Length>(census: &Census<'_, L>) -> Vec<u64> {
    vec![0, census.extremes().map_or(0, |(_, longest)| longest)]
}

/// A bucket, or one of the two classes after the buckets: empty and over-long samples. So every sample is sorted by
/// the same pass, whatever the policies.
type Class = u16;

/// Which lengths belong to which class.
struct Classes {
    edges: Vec<u64>,
    longest_admissible: u64,
    /// Class `c` holds `spans[c].0 < length <= spans[c].1`, and its records store lengths minus `spans[c].0`; except the
    /// empty samples.
    spans: Vec<(u64, u64)>,
    /// Samples of each class.
    sizes: Vec<usize>,
    /// The class of every length below the size of the table; `None` where some are not.
    table: Option<Box<[Class; TABLE_SIZE]>>,
    index_bits: u32,
}

impl Classes {
    fn new<L: Length>(edges: Vec<u64>, census: &Census<'_, L>) -> Result<Self> {
        let &Census { longest, longest_admissible, .. } = census;
        let last = longest.min(longest_admissible);
        let buckets = edges.windows(2).map(|edges| (edges[0], edges[1].min(last)));
        let spans: Vec<_> = buckets.chain([(0, 0), (longest_admissible, longest)]).collect();
        let index_bits = bits(census.selection.n_samples.saturating_sub(1) as u64);
        let sizes = vec![0; spans.len()];
        let mut classes = Self { edges, longest_admissible, spans, sizes, table: None, index_bits };
        if let Some(counts) = &census.counts {
            let (n_buckets, mut table) = (classes.n_buckets(), zeros()?);
            table[0] = n_buckets as Class;
            classes.sizes[n_buckets] = counts[0] as usize;
            for (c, &(base, last)) in classes.spans.iter().enumerate().filter(|(_, (base, last))| base < last) {
                let lengths = base as usize + 1..=last as usize;
                table[lengths.clone()].fill(c as Class);
                classes.sizes[c] = counts[lengths].iter().map(|&n_samples| n_samples as usize).sum();
            }
            classes.table = Some(table);
        } else {
            for &length in census.lengths {
                let class = classes.find(length.into());
                classes.sizes[usize::from(class)] += 1;
            }
        }
        Ok(classes)
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
    fn scatter<L: Length, R: Record>(&self, census: &Census<'_, L>, check: Check<'_>) -> Result<(Vec<R>, Vec<usize>)> {
        let lengths = census.lengths;
        match (&self.table, &census.selection.indices) {
            (Some(table), None) => self.scatter_by(lengths, |length| table[length.in_table()], |i| i, check),
            (None, None) => self.scatter_by(lengths, |length| self.find(length.into()), |i| i, check),
            (_, Some(indices)) => self.scatter_by(lengths, |length| self.find(length.into()), |i| indices[i], check),
        }
    }

    fn scatter_by<L: Length, R: Record>(
        &self,
        lengths: &[L],
        class_of: impl Fn(L) -> Class,
        index_of: impl Fn(usize) -> usize,
        check: Check<'_>,
    ) -> Result<(Vec<R>, Vec<usize>)> {
        // Where the next record of each class goes, and what is subtracted from the lengths that it stores.
        let (mut next, index_bits) = (0, self.index_bits);
        let cursor = |(&size, &(base, _)): (&usize, &(u64, u64))| {
            next += size;
            (next - size, base)
        };
        let mut cursors: Vec<(usize, u64)> = self.sizes.iter().zip(&self.spans).map(cursor).collect();
        let mut records = memory::filled(R::default(), lengths.len())?;
        for (chunk, of_chunk) in lengths.chunks(BETWEEN_CHECKS).enumerate() {
            check()?;
            for (i, &length) in (chunk * BETWEEN_CHECKS..).zip(of_chunk) {
                let (position, base) = &mut cursors[usize::from(class_of(length))];
                records[*position] = R::join(length.into() - *base, index_of(i), index_bits);
                *position += 1;
            }
        }
        Ok((records, cursors.into_iter().map(|(end, _)| end).collect()))
    }

    /// Separates the admitted samples from the dropped ones.
    fn divide<R: Record>(
        &self,
        (mut records, ends): (Vec<R>, Vec<usize>),
        keep_overlong: bool,
        wrap: impl Fn(Vec<R>) -> Records,
    ) -> Result<(Records, Buckets, LeftOut)> {
        let n_buckets = self.n_buckets();
        let (empty, overlong) = (ends[n_buckets - 1]..ends[n_buckets], ends[n_buckets]..records.len());
        let dropped_overlong = if keep_overlong { overlong.start..overlong.start } else { overlong };
        let codec = Codec { index_bits: self.index_bits, base: self.longest_admissible };
        let dropped = empty.start..dropped_overlong.end;
        let mut left_out = LeftOut {
            samples: memory::collect(records[dropped.clone()].iter().map(|record| record.index(self.index_bits)))?,
            tokens: records[dropped_overlong].iter().map(|&record| u128::from(codec.length(record))).sum(),
        };
        left_out.samples.sort_unstable();
        records.drain(dropped);
        let starts = std::iter::once(0).chain(ends[..n_buckets].iter().copied()).collect();
        let Self { edges, index_bits, longest_admissible, .. } = self;
        let (index_bits, longest_admissible) = (*index_bits, *longest_admissible);
        Ok((wrap(records), Buckets { starts, edges: edges.clone(), index_bits, longest_admissible }, left_out))
    }
}
