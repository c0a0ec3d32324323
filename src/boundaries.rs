//! Boundaries from the data: the partition of a length histogram that pads least.
//!
//! A bucket of `n` samples whose longest has `top` tokens pads to at most `n * padded_length(top)` tokens. The partition
//! into `K` buckets that minimises the sum is found by dynamic programming over the distinct lengths `V`, one layer a
//! bucket. The cost has the Monge property, so the best last edge never moves down as the top moves up, and
//! divide and conquer finds a layer in `O(V log V)`; the freshness floor only removes a staircase of entries, which
//! keeps the property.
use crate::cost::CostModel;

/// More distinct lengths than this are merged into cells of neighbours, whose relative width stays below 1 / 512.
const MAX_CELLS: usize = 1 << 14;

/// More optimal buckets than this are not looked for: the search takes `O(K V log V)` time and `K V` words of memory.
pub(crate) const MAX_OPTIMAL_BUCKETS: usize = 1 << 12;

/// How many optimal buckets to find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// Exactly this many, or one for each distinct padded length where those are fewer.
    Buckets(usize),
    /// The fewest that reach the padding target, each of `min_batches` full batches or more.
    Padding { target: f64, min_batches: u64 },
}

/// Neighbouring lengths that share a bucket.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The longest length that occurs in it, tokens.
    top: u64,
    n_samples: u64,
    /// Padded tokens of its samples where every length is a bucket of its own.
    least: u128,
}

/// Returns the ascending edges of the optimal buckets, from 0 to the longest length. `histogram` holds ascending
/// distinct lengths, all admissible, with the number of samples of each; without any, one empty bucket is returned.
pub(crate) fn optimal(histogram: &[(u64, u64)], model: &CostModel, target: Target) -> Vec<u64> {
    if histogram.is_empty() {
        return vec![0, 0];
    }
    let cells = cells(histogram, model);
    let tops = match target {
        Target::Buckets(n_buckets) => Search::new(&cells, model, 0).exactly(n_buckets),
        Target::Padding { target, min_batches } => Search::new(&cells, model, min_batches).fewest(target),
    };
    std::iter::once(0).chain(tops.into_iter().map(|cell| cells[cell].top)).collect()
}

/// Merges lengths that pad to the same row, then, while there are too many, those that agree in their leading bits.
fn cells(histogram: &[(u64, u64)], model: &CostModel) -> Vec<Cell> {
    let merge = |drop_bits: &dyn Fn(u64) -> u32| {
        let mut cells: Vec<Cell> = Vec::new();
        let mut last_key = None;
        for &(length, n_samples) in histogram {
            let padded = model.padded_length(length);
            let bits = drop_bits(padded);
            let key = Some((padded >> bits, bits));
            let least = u128::from(n_samples) * u128::from(padded);
            match cells.last_mut() {
                Some(cell) if last_key == key => {
                    cell.top = length;
                    cell.n_samples += n_samples;
                    cell.least += least;
                }
                _ => cells.push(Cell { top: length, n_samples, least }),
            }
            last_key = key;
        }
        cells
    };
    let mut cells_all = merge(&|_| 0);
    let mut leading_bits = 20;
    while cells_all.len() > MAX_CELLS && leading_bits > 10 {
        leading_bits -= 1;
        cells_all = merge(&|padded| (u64::BITS - padded.leading_zeros()).saturating_sub(leading_bits));
    }
    cells_all
}

struct Search {
    /// `n_below[j]`: samples in the first `j` cells.
    n_below: Vec<u64>,
    /// `weights[j]`: padded tokens of a sample in a bucket whose last cell is `j - 1`.
    weights: Vec<u64>,
    /// `last_start[j]`: a bucket that ends before cell `j` may start at cells `0..=last_start[j]`; `None`: at none.
    last_start: Vec<Option<usize>>,
    /// Padded tokens where every length is a bucket of its own.
    least: u64,
}

impl Search {
    fn new(cells: &[Cell], model: &CostModel, min_batches: u64) -> Self {
        let n_samples: u64 = cells.iter().map(|cell| cell.n_samples).sum();
        let longest = cells.last().map_or(0, |cell| model.padded_length(cell.top));
        // Keeps every sum below 2^63; it is 0 unless the data set has more than 2^63 padded tokens.
        let shift = (u128::BITS - (u128::from(n_samples) * u128::from(longest)).leading_zeros()).saturating_sub(63);
        let least = cells.iter().map(|cell| cell.least).sum::<u128>() >> shift;
        let least = u64::try_from(least).expect("it is at most n_samples * longest, shifted below 2^63");
        let mut search = Self { n_below: vec![0], weights: vec![0], last_start: vec![None], least };
        let mut start = 0;
        for (j, cell) in cells.iter().enumerate() {
            let weight = model.padded_length(cell.top) >> shift;
            let n_below = search.n_below[j] + cell.n_samples;
            search.n_below.push(n_below);
            search.weights.push(weight);
            // The floor falls as the top grows, and the samples below grow: the last start never moves down.
            let floor = min_batches.saturating_mul(model.cap(cell.top) as u64).max(1);
            while start < j && n_below - search.n_below[start + 1] >= floor {
                start += 1;
            }
            search.last_start.push((n_below - search.n_below[start] >= floor).then_some(start));
        }
        search
    }

    fn n_cells(&self) -> usize {
        self.n_below.len() - 1
    }

    /// Last cells of the buckets of the optimal partition into `n_buckets`.
    fn exactly(&self, n_buckets: usize) -> Vec<usize> {
        let n_buckets = n_buckets.clamp(1, self.n_cells());
        let mut layers = Layers::new(self);
        while layers.n_buckets() < n_buckets {
            layers.add(self);
        }
        layers.tops(n_buckets)
    }

    /// Last cells of the buckets of the partition with the fewest buckets whose padded tokens are at most
    /// `(1 + target) * least`, or else of the best one that the floor permits.
    fn fewest(&self, target: f64) -> Vec<usize> {
        let reached = |padded: u64| padded as f64 <= (1.0 + target) * self.least as f64;
        let mut layers = Layers::new(self);
        let mut best = layers.padded();
        while !reached(best) && layers.n_buckets() < self.n_cells().min(MAX_OPTIMAL_BUCKETS) {
            layers.add(self);
            if layers.padded() >= best {
                return layers.tops(layers.n_buckets() - 1);
            }
            best = layers.padded();
        }
        layers.tops(layers.n_buckets())
    }
}

/// The layers of the dynamic programme, one a bucket.
struct Layers {
    /// `best[j]`: padded tokens of the first `j` cells in as many buckets as there are layers; `u64::MAX`: impossible.
    best: Vec<u64>,
    /// `starts[k][j]`: first cell of the last of `k + 1` buckets over the first `j` cells.
    starts: Vec<Vec<u32>>,
}

impl Layers {
    /// One bucket. It alone is exempt from the floor, so that every data set has a partition.
    fn new(search: &Search) -> Self {
        let end = search.n_cells();
        let mut best: Vec<u64> = (0..=end)
            .map(|j| if search.last_start[j].is_some() { search.n_below[j] * search.weights[j] } else { u64::MAX })
            .collect();
        best[end] = search.n_below[end] * search.weights[end];
        Self { best, starts: vec![vec![0; end + 1]] }
    }

    fn n_buckets(&self) -> usize {
        self.starts.len()
    }

    fn padded(&self) -> u64 {
        self.best[self.best.len() - 1]
    }

    fn add(&mut self, search: &Search) {
        let end = search.n_cells();
        let mut layer = Layer { search, before: &self.best, best: vec![u64::MAX; end + 1], starts: vec![0; end + 1] };
        layer.fill(1, end, 0, end);
        let Layer { best, starts, .. } = layer;
        self.best = best;
        self.starts.push(starts);
    }

    /// Last cells of the first `n_buckets` layers' partition of all cells.
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
        let Search { n_below, weights, last_start, .. } = self.search;
        let (mut best, mut best_start) = (u64::MAX, first);
        if let Some(last_start) = last_start[end] {
            for start in first..=last.min(last_start) {
                // Impossible prefixes are u64::MAX and saturate, so they lose every comparison.
                let padded = self.before[start].saturating_add((n_below[end] - n_below[start]) * weights[end]);
                if padded < best {
                    (best, best_start) = (padded, start);
                }
            }
        }
        self.best[end] = best;
        self.starts[end] = u32::try_from(best_start).expect("there are at most MAX_CELLS cells, or 2^10 an octave");
        self.fill(low, end - 1, first, best_start);
        self.fill(end + 1, high, best_start, last);
    }
}
