//! Boundaries from the data: the partition of a length histogram that pads least.
//!
//! A bucket of `n` samples whose longest has `top` tokens pads to at most `n * padded_length(top)` tokens. The partition
//! into `K` buckets that minimises the sum is found by dynamic programming over the distinct lengths `V`, one layer a
//! bucket. The cost has the Monge property, so the best last edge never moves down as the top moves up, and
//! divide and conquer finds a layer in `O(V log V)`.
use crate::cost::CostModel;
use crate::error::Result;
use crate::memory;
use crate::threads::Check;

/// More distinct lengths than this are merged into classes of neighbours, whose relative width stays below 1 / 512.
const MAX_CLASSES: usize = 1 << 14;

/// More optimal buckets than this are not looked for: the search takes `O(K V log V)` time and `K V` words of memory.
pub(crate) const MAX_OPTIMAL_BUCKETS: usize = 1 << 12;

/// Neighbouring lengths that are not told apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    /// The longest length that occurs in it, tokens.
    pub top: u64,
    /// What that length is padded to, tokens.
    pub padded: u64,
    pub n_samples: u64,
}

/// Merges the lengths of a histogram that pad to the same row. `histogram` holds ascending distinct lengths with the
/// number of samples of each.
pub(crate) fn classes(histogram: &[(u64, u64)], model: &CostModel) -> Result<Vec<Class>> {
    let classes = histogram.iter().map(|&(top, n_samples)| Class { top, padded: model.padded_length(top), n_samples });
    merge(classes, |class| class.padded)
}

/// Merges neighbours with equal keys.
fn merge<K: PartialEq>(classes: impl Iterator<Item = Class>, key: impl Fn(&Class) -> K) -> Result<Vec<Class>> {
    let mut merged: Vec<Class> = Vec::new();
    for class in classes {
        match merged.last_mut() {
            Some(last) if key(last) == key(&class) => {
                *last = Class { n_samples: last.n_samples + class.n_samples, ..class };
            }
            _ => memory::push(&mut merged, class)?,
        }
    }
    Ok(merged)
}

/// Returns the ascending edges of `n_buckets` optimal buckets, or of one for each distinct padded length where those are
/// fewer, from 0 to the longest length. `histogram` holds ascending distinct lengths, all admissible, with the number of
/// samples of each; without any, one empty bucket is returned.
pub(crate) fn optimal(
    histogram: &[(u64, u64)],
    model: &CostModel,
    n_buckets: usize,
    check: Check<'_>,
) -> Result<Vec<u64>> {
    if histogram.is_empty() {
        return Ok(vec![0, 0]);
    }
    let classes = coarse(classes(histogram, model)?)?;
    let tops = Search::new(&classes)?.exactly(n_buckets, check)?;
    Ok(std::iter::once(0).chain(tops.into_iter().map(|class| classes[class].top)).collect())
}

/// Merges classes that agree in their leading bits, while there are too many.
fn coarse(mut classes: Vec<Class>) -> Result<Vec<Class>> {
    let mut leading_bits = 20;
    while classes.len() > MAX_CLASSES && leading_bits > 10 {
        leading_bits -= 1;
        classes = merge(classes.into_iter(), |class| {
            let n_bits = (u64::BITS - class.padded.leading_zeros()).saturating_sub(leading_bits);
            (class.padded >> n_bits, n_bits)
        })?;
    }
    Ok(classes)
}

struct Search {
    /// `n_below[j]`: samples in the first `j` classes.
    n_below: Vec<u64>,
    /// `weights[j]`: padded tokens of a sample in a bucket whose last class is `j - 1`.
    weights: Vec<u64>,
}

impl Search {
    fn new(classes: &[Class]) -> Result<Self> {
        let n_samples: u64 = classes.iter().map(|class| class.n_samples).sum();
        let longest = classes.last().map_or(0, |class| class.padded);
        // Keeps every sum below 2^63; it is 0 unless the data set has more than 2^63 padded tokens.
        let shift = (u128::BITS - (u128::from(n_samples) * u128::from(longest)).leading_zeros()).saturating_sub(63);
        let (n_below, weights) = (memory::filled(0, classes.len() + 1)?, memory::filled(0, classes.len() + 1)?);
        let mut search = Self { n_below, weights };
        for (j, class) in classes.iter().enumerate() {
            search.n_below[j + 1] = search.n_below[j] + class.n_samples;
            search.weights[j + 1] = class.padded >> shift;
        }
        Ok(search)
    }

    fn n_classes(&self) -> usize {
        self.n_below.len() - 1
    }

    /// Last classes of the buckets of the optimal partition into `n_buckets`.
    fn exactly(&self, n_buckets: usize, check: Check<'_>) -> Result<Vec<usize>> {
        let n_buckets = n_buckets.clamp(1, self.n_classes());
        let mut layers = Layers::new(self)?;
        while layers.n_buckets() < n_buckets {
            check()?;
            layers.add(self)?;
        }
        Ok(layers.tops(n_buckets))
    }
}

/// The layers of the dynamic programme, one a bucket.
struct Layers {
    /// `best[j]`: padded tokens of the first `j` classes in as many buckets as there are layers; `u64::MAX`: impossible.
    best: Vec<u64>,
    /// `starts[k][j]`: first class of the last of `k + 1` buckets over the first `j` classes.
    starts: Vec<Vec<u32>>,
}

impl Layers {
    /// One bucket.
    fn new(search: &Search) -> Result<Self> {
        let end = search.n_classes();
        let one_bucket = |j: usize| if j == 0 { u64::MAX } else { search.n_below[j] * search.weights[j] };
        let best = memory::collect((0..=end).map(one_bucket))?;
        Ok(Self { best, starts: vec![memory::filled(0, end + 1)?] })
    }

    fn n_buckets(&self) -> usize {
        self.starts.len()
    }

    fn add(&mut self, search: &Search) -> Result<()> {
        let end = search.n_classes();
        let (best, starts) = (memory::filled(u64::MAX, end + 1)?, memory::filled(0, end + 1)?);
        let mut layer = Layer { search, before: &self.best, best, starts };
        layer.fill(1, end, 0, end);
        let Layer { best, starts, .. } = layer;
        self.best = best;
        memory::push(&mut self.starts, starts)
    }

    /// Last classes of the first `n_buckets` layers' partition of all classes.
    fn tops(&self, n_buckets: usize) -> Vec<usize> {
        let mut end = self.best.len() - 1;
        let mut tops: Vec<usize> = Vec::with_capacity(n_buckets);
        for starts in self.starts[..n_buckets].iter().rev() {
            tops.push(end - 1);
            end = starts[end] as usize;
        }
        tops.reverse();
        tops
    }
}

struct Layer<'a> {
    search: &'a Search,
    before: &'a [u64],
    best: Vec<u64>,
    starts: Vec<u32>,
}

impl Layer<'_> {
    /// Fills ends `low..=high`, whose best starts are known to lie in `first..=last`.
    fn fill(&mut self, low: usize, high: usize, first: usize, last: usize) {
        if low > high {
            return;
        }
        let end = low + (high - low) / 2;
        let Search { n_below, weights } = self.search;
        let (mut best, mut best_start) = (u64::MAX, first);
        for start in first..=last.min(end - 1) {
            // Impossible prefixes are u64::MAX and saturate, so they lose every comparison.
            let padded = self.before[start].saturating_add((n_below[end] - n_below[start]) * weights[end]);
            if padded < best {
                (best, best_start) = (padded, start);
            }
        }
        self.best[end] = best;
        self.starts[end] = u32::try_from(best_start).expect("there are at most MAX_CLASSES cells, or 2^10 an octave");
        self.fill(low, end - 1, first, best_start);
        self.fill(end + 1, high, best_start, last);
    }
}
