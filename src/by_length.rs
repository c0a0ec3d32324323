//! The admitted samples in order of length, and the soft shuffle of that order.
//!
//! A position in the order tells how long a sample is, so positions are all that is moved: four bytes a sample, made by
//! counting and read from nowhere.
use std::ops::Range;

use rand_xoshiro::rand_core::Rng;

use crate::admission::{Census, Overlong};
use crate::boundaries::Class;
use crate::exponential::{LARGEST_DEVIATE, deviate};
use crate::lengths::{Length, zeros};
use crate::rng::{self, Stage, Streams};
use crate::threads;

/// Every `HINT`-th position keeps its run, so that the run of any position is a few steps away.
const HINT: usize = 64;

/// Positions that draw from one random stream.
const CHUNK: usize = 1 << 12;

/// Keys below `2^CELL_BITS` tokens have a cell each; a higher cell is narrower than `2^(1 - CELL_BITS)` of its keys.
const CELL_BITS: u32 = 13;

/// A small number in as few bits as hold all of its kind: a position in the order of lengths, a sample index, a cell.
pub(crate) trait Position: Copy + Ord + Default + Send + Sync {
    fn new(position: usize) -> Self;
    fn get(self) -> usize;
}

macro_rules! impl_position {
    ($($integer:ty),*) => {$(
        impl Position for $integer {
            #[inline]
            fn new(position: usize) -> Self {
                position as $integer
            }
            #[inline]
            fn get(self) -> usize {
                self as usize
            }
        }
    )*};
}
impl_position!(u16, u32, u64);

/// Samples of one length.
#[derive(Clone, Copy, Debug)]
struct Run {
    length: u64,
    /// Position of its first sample.
    start: usize,
}

/// Samples that pad to one length and stray alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// Position one past its last sample.
    pub end: usize,
    /// What its samples are padded to, tokens.
    pub padded: u64,
    /// Mean of their exponential deviates, in units of 2^-16 tokens.
    pub mean: u64,
}

impl Spread {
    fn times(self, eighths: u64) -> Self {
        Self { mean: ((u128::from(self.mean) * u128::from(eighths)) >> 3) as u64, ..self }
    }

    /// The key of one of its samples, tokens.
    #[inline]
    fn key(&self, deviate: u32) -> u64 {
        self.padded.saturating_add(((u128::from(self.mean) * u128::from(deviate)) >> 44) as u64)
    }
}

/// The admitted samples by (length, index), and after them the kept over-long ones by index.
#[derive(Clone, Debug)]
pub(crate) struct ByLength<P> {
    /// Sample index at each position.
    indices: Vec<P>,
    n_admitted: usize,
    runs: Vec<Run>,
    /// `hints[i]`: the run of position `HINT * i`.
    hints: Vec<u32>,
    /// Lengths of the kept over-long samples, tokens.
    kept: Vec<u64>,
    /// How far the samples of each padded length stray, ascending; empty: plainly sorted.
    pub spreads: Vec<Spread>,
}

impl<P: Position> ByLength<P> {
    /// Returns the order and the samples left out, ascending. No sample stray in it yet.
    pub(crate) fn of<L: Length>(census: &Census<'_, L>, overlong: Overlong) -> (Self, LeftOut) {
        let (mut sorted, all_runs) = sort::<L, P>(census);
        let start_of = |length: u64| match all_runs.get(all_runs.partition_point(|run| run.length < length)) {
            Some(run) => run.start,
            None => sorted.len(),
        };
        let admitted = start_of(1)..start_of(census.longest_admissible.saturating_add(1));
        sorted[admitted.end..].sort_unstable();
        let overlong_ones = sorted.split_off(admitted.end);
        let mut dropped = sorted.clone();
        dropped.truncate(admitted.start);
        sorted.drain(..admitted.start);
        let length = |i: &P| -> u64 { census.lengths[i.get()].into() };
        let mut kept = Vec::new();
        if overlong == Overlong::Keep {
            kept.extend(overlong_ones.iter().map(length));
            sorted.extend(overlong_ones);
        } else {
            dropped.extend(overlong_ones);
            dropped.sort_unstable();
        }
        let index = |i: &P| census.selection.index(i.get());
        let left_out = LeftOut {
            samples: dropped.iter().map(index).collect(),
            tokens: dropped.iter().map(|i| u128::from(length(i))).sum(),
        };
        if census.selection.indices.is_some() {
            for i in &mut sorted {
                *i = P::new(index(i));
            }
        }
        let runs = all_runs.into_iter().filter(|run| admitted.contains(&run.start));
        let runs: Vec<Run> = runs.map(|run| Run { start: run.start - admitted.start, ..run }).collect();
        let mut run = 0;
        let hints = (0..admitted.len()).step_by(HINT).map(|position| {
            run += runs[run..].partition_point(|run| run.start <= position) - 1;
            run as u32
        });
        let hints = hints.collect();
        let n_admitted = admitted.len();
        (Self { indices: sorted, n_admitted, runs, hints, kept, spreads: Vec::new() }, left_out)
    }

    pub(crate) fn n_samples(&self) -> usize {
        self.indices.len()
    }

    pub(crate) fn n_admitted(&self) -> usize {
        self.n_admitted
    }

    /// Replaces positions by the samples there. In order of the key, what is read lies close together.
    pub(crate) fn to_indices(&self, positions: &mut [P]) {
        for position in positions {
            *position = self.indices[position.get()];
        }
    }

    /// The length of the sample at a position, tokens.
    #[inline]
    pub(crate) fn length(&self, position: P) -> u64 {
        let position = position.get();
        if position >= self.n_admitted {
            return self.kept[position - self.n_admitted];
        }
        let mut run = self.hints[position / HINT] as usize;
        while self.runs.get(run + 1).is_some_and(|next| next.start <= position) {
            run += 1;
        }
        self.runs[run].length
    }

    /// Gives the samples of each class a spread, in units of 2^-16 tokens.
    pub(crate) fn set_spreads(&mut self, classes: &[Class], means: &[u64]) {
        let mut end = 0;
        let spread = |(class, &mean): (&Class, &u64)| {
            end += class.n_samples as usize;
            Spread { end, padded: class.padded, mean }
        };
        self.spreads = classes.iter().zip(means).map(spread).collect();
    }

    /// All positions, in a new order: the admitted ones by key, in random order where keys are alike, then the kept
    /// over-long ones. `noise`, in eighths: how far samples stray, from not at all to as far as their spreads say.
    pub(crate) fn shuffled(&self, streams: Streams, noise: u64, n_threads: usize) -> Vec<P> {
        let spreads: Vec<Spread> = self.spreads.iter().map(|spread| spread.times(noise)).collect();
        let Some(last) = spreads.iter().map(|spread| spread.key(LARGEST_DEVIATE)).max().filter(|_| noise > 0) else {
            let mut positions: Vec<P> = (0..self.n_samples()).map(P::new).collect();
            let mut start = 0;
            for (i, spread) in self.spreads.iter().enumerate() {
                rng::shuffle(&mut positions[start..spread.end], &mut streams.open(Stage::Shuffle, i as u64));
                start = spread.end;
            }
            return positions;
        };
        let cells = cell_of(spreads[0].padded)..cell_of(last) + 1;
        let mut positions = vec![P::default(); self.n_samples()];
        let (admitted, kept) = positions.split_at_mut(self.n_admitted);
        if u16::try_from(cells.len()).is_ok() {
            shuffle_by_key::<P, u16>(admitted, &spreads, cells, streams, n_threads);
        } else {
            shuffle_by_key::<P, u32>(admitted, &spreads, cells, streams, n_threads);
        }
        kept.iter_mut().zip(self.n_admitted..).for_each(|(kept, position)| *kept = P::new(position));
        positions
    }
}

/// Writes the positions `0..positions.len()` in order of their cells, which lie in `cells`, each cell shuffled.
fn shuffle_by_key<P: Position, C: Position>(
    positions: &mut [P],
    spreads: &[Spread],
    cells: Range<usize>,
    streams: Streams,
    n_threads: usize,
) {
    let mut drawn = vec![C::default(); positions.len()];
    let of_part = positions.len().div_ceil(n_threads).next_multiple_of(CHUNK);
    let parts = drawn.chunks_mut(of_part).enumerate().collect();
    let counts = threads::for_each(parts, n_threads, |(i, part): (usize, &mut [C])| {
        let mut counts = vec![0_usize; cells.len()];
        for (j, chunk) in part.chunks_mut(CHUNK).enumerate() {
            draw_cells(spreads, (i * of_part) / CHUNK + j, streams, cells.start, chunk);
            for cell in &*chunk {
                counts[cell.get()] += 1;
            }
        }
        counts
    });
    let counts = counts.into_iter().reduce(|mut sums, counts| {
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        sums
    });
    let counts = counts.unwrap_or_default();
    // Neighbouring cells for each thread, with about as many samples.
    let mut ranges = Vec::with_capacity(n_threads);
    let (mut rest, mut low) = (positions, 0);
    while low < counts.len() {
        let (mut high, mut n_samples) = (low, 0);
        while high < counts.len() && (n_samples < of_part || n_threads == 1) {
            n_samples += counts[high];
            high += 1;
        }
        let (range, after) = rest.split_at_mut(n_samples);
        ranges.push((low..high, range));
        (rest, low) = (after, high);
    }
    threads::for_each(ranges, n_threads, |(range, positions): (Range<usize>, &mut [P])| {
        let mut next = 0;
        let start_of = |&n_samples: &usize| {
            next += n_samples;
            next - n_samples
        };
        let mut cursors: Vec<usize> = counts[range.clone()].iter().map(start_of).collect();
        // No key is below its padded length, so samples that are padded beyond the range have no part in it.
        let beyond = spreads.partition_point(|spread| cell_of(spread.padded) - cells.start < range.end);
        let n_scanned = beyond.checked_sub(1).map_or(0, |i| spreads[i].end);
        for (position, cell) in drawn[..n_scanned].iter().enumerate() {
            if let Some(cursor) = cursors.get_mut(cell.get().wrapping_sub(range.start)) {
                positions[*cursor] = P::new(position);
                *cursor += 1;
            }
        }
        let mut start = 0;
        for (cell, end) in range.zip(cursors) {
            if end - start > 1 {
                let mut stream = streams.open(Stage::Shuffle, (cells.start + cell) as u64);
                rng::shuffle(&mut positions[start..end], &mut stream);
            }
            start = end;
        }
    });
}

/// The samples left out.
pub(crate) struct LeftOut {
    /// Sample indices, ascending.
    pub samples: Vec<usize>,
    pub tokens: u128,
}

/// All samples by (length, index), and the run of each length.
fn sort<L: Length, P: Position>(census: &Census<'_, L>) -> (Vec<P>, Vec<Run>) {
    let mut runs: Vec<Run> = Vec::new();
    if let Some(counts) = &census.counts {
        let mut cursors = zeros::<u32>();
        let mut start = 0;
        for (length, &n_samples) in counts.iter().enumerate().filter(|&(_, &n_samples)| n_samples > 0) {
            runs.push(Run { length: length as u64, start: start as usize });
            cursors[length] = start;
            start += n_samples;
        }
        let mut sorted = vec![P::default(); census.lengths.len()];
        for (i, &length) in census.lengths.iter().enumerate() {
            let cursor = &mut cursors[length.in_table()];
            sorted[*cursor as usize] = P::new(i);
            *cursor += 1;
        }
        return (sorted, runs);
    }
    let mut pairs: Vec<(L, P)> = census.lengths.iter().enumerate().map(|(i, &length)| (length, P::new(i))).collect();
    pairs.sort_unstable();
    for (start, &(length, _)) in pairs.iter().enumerate() {
        let length = length.into();
        if runs.last().is_none_or(|run| run.length != length) {
            runs.push(Run { length, start });
        }
    }
    (pairs.into_iter().map(|(_, i)| i).collect(), runs)
}

/// Draws the cells, less `first_cell`, of the positions of one chunk: position `m` of it takes the sixteen bits from
/// `16 (m mod 4)` on of word `m / 4` of its stream.
fn draw_cells<C: Position>(spreads: &[Spread], chunk: usize, streams: Streams, first_cell: usize, cells: &mut [C]) {
    let mut draws = [0_u16; CHUNK];
    let mut rng = streams.open(Stage::Noise, chunk as u64);
    for four in draws[..cells.len().next_multiple_of(4)].chunks_exact_mut(4) {
        let word = rng.next_u64();
        four.copy_from_slice(&[word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16]);
    }
    let (mut start, mut i) = (chunk * CHUNK, 0);
    let end = start + cells.len();
    i += spreads.partition_point(|spread| spread.end <= start);
    while start < end {
        let spread = spreads[i];
        let stretch = start % CHUNK..(spread.end.min(end) - 1) % CHUNK + 1;
        let of_spread = cells[stretch.clone()].iter_mut().zip(&draws[stretch]);
        if spread.key(LARGEST_DEVIATE) < 1 << CELL_BITS {
            // Such a key is its own cell, and the product fits one word: 1.2 instead of 2 ns a sample.
            let base = spread.padded as usize - first_cell;
            of_spread.for_each(|(cell, &draw)| {
                *cell = C::new(base + ((spread.mean * u64::from(deviate(draw))) >> 44) as usize);
            });
        } else {
            of_spread.for_each(|(cell, &draw)| *cell = C::new(cell_of(spread.key(deviate(draw))) - first_cell));
        }
        start = spread.end;
        i += 1;
    }
}

/// The cell of a key: its leading bits.
#[inline]
fn cell_of(key: u64) -> usize {
    let dropped = (u64::BITS - key.leading_zeros()).saturating_sub(CELL_BITS);
    ((u64::from(dropped) << (CELL_BITS - 1)) + (key >> dropped)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2^20 deviates of mean 200 tokens. By the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart their empirical
    /// distribution is off by more than sqrt(ln(2 / p) / (2 n)) = 0.0034 with a chance of p = 1e-10; the 4,096 slices of
    /// the table add half a slice.
    #[test]
    fn samples_stray_exponentially_and_to_one_side() {
        const MEAN: u64 = 200;
        let n = 1 << 20;
        let spreads = [Spread { end: n, padded: 1_000, mean: MEAN << 16 }];
        let streams = Streams::of(7, 3);
        let mut noise = vec![0_u32; n];
        for (i, chunk) in noise.chunks_mut(CHUNK).enumerate() {
            draw_cells(&spreads, i, streams, cell_of(1_000), chunk);
        }
        noise.sort_unstable();
        let bound = ((2.0_f64 / 1e-10).ln() / (2.0 * n as f64)).sqrt() + 0.5 / 4_096.0;
        for k in 1..1_800_u32 {
            // Keys are rounded down, so k tokens or more are drawn with the chance of exceeding k before.
            let share = (n - noise.partition_point(|&tokens| tokens < k)) as f64 / n as f64;
            let expected = (-f64::from(k) / MEAN as f64).exp();
            assert!((share - expected).abs() < bound, "{share} of the samples stray {k} tokens, not {expected}");
        }
    }

    #[test]
    fn cells_are_narrow_and_in_order() {
        for key in [0, 1, 8_191, 8_192, 8_193, 16_383, 16_384, 1 << 40, u64::MAX - 1] {
            let width = if key < 1 << CELL_BITS { 1 } else { key >> (CELL_BITS - 1) };
            assert!(cell_of(key + 1) == cell_of(key) || cell_of(key + 1) == cell_of(key) + 1);
            assert!(cell_of(key.saturating_add(width)) > cell_of(key) || key + 1 == u64::MAX);
        }
    }

    // Lengths below 2^13 take a shortcut; it must draw what the general way draws.
    #[test]
    fn both_ways_to_draw_a_cell_agree() {
        let near = [Spread { end: CHUNK, padded: 100, mean: 5 << 16 }];
        let mut cells = vec![0_u32; CHUNK];
        draw_cells(&near, 0, Streams::of(1, 0), 0, &mut cells);
        let mut rng = Streams::of(1, 0).open(Stage::Noise, 0);
        for four in cells.chunks(4) {
            let word = rng.next_u64();
            for (i, &cell) in four.iter().enumerate() {
                assert_eq!(cell as usize, cell_of(near[0].key(deviate((word >> (16 * i)) as u16))));
            }
        }
    }

    /// The samples of hard and soft plans have their lengths looked up at any position.
    #[test]
    fn every_position_knows_its_length() {
        let lengths: Vec<u32> = (0..1_000_u32).map(|i| 1 + i * i % 700).chain([70_000, 0]).collect();
        let selection = crate::admission::Selection { indices: None, n_samples: lengths.len() };
        let model = crate::Options::default().cost;
        let census = Census::of(&lengths, &selection, &model);
        let (samples, left_out) = ByLength::<u32>::of(&census, Overlong::Drop);
        assert_eq!(left_out.samples, [1_001]);
        let mut indices: Vec<u32> = (0..samples.n_samples() as u32).collect();
        let found: Vec<u64> = indices.iter().map(|&position| samples.length(position)).collect();
        samples.to_indices(&mut indices);
        assert!(indices.iter().map(|&i| u64::from(lengths[i as usize])).eq(found.iter().copied()));
        assert!(found.is_sorted());
    }
}
