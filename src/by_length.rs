//! The admitted samples in order of length, and the soft shuffle of that order.
//!
//! A position in the order tells how long a sample is, so positions are all that is moved: four bytes a sample, made by
//! counting and read from nowhere.
use rand_xoshiro::rand_core::Rng;

use crate::admission::{Census, Overlong};
use crate::boundaries::Class;
use crate::exponential::deviate;
use crate::lengths::{Length, zeros};
use crate::rng::{self, Stage, Streams};
use crate::threads;

/// Every `HINT`-th position keeps its run, so that the run of any position is a few steps away.
const HINT: usize = 64;

/// Positions that draw from one random stream.
const CHUNK: usize = 1 << 12;

/// Keys below `2^CELL_BITS` tokens have a cell each; a higher cell is narrower than `2^(1 - CELL_BITS)` of its keys.
const CELL_BITS: u32 = 13;

/// A position in the order of lengths, in as few bits as hold all of them.
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
impl_position!(u32, u64);

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
    pub spread: u64,
}

impl Spread {
    fn times(self, eighths: u64) -> Self {
        Self { spread: ((u128::from(self.spread) * u128::from(eighths)) >> 3) as u64, ..self }
    }

    /// The key of one of its samples, tokens.
    #[inline]
    fn key(&self, deviate: u32) -> u64 {
        self.padded.saturating_add(((u128::from(self.spread) * u128::from(deviate)) >> 44) as u64)
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

    /// The sample at a position.
    #[inline]
    pub(crate) fn index(&self, position: P) -> usize {
        self.indices[position.get()].get()
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
    pub(crate) fn set_spreads(&mut self, classes: &[Class], spreads: &[u64]) {
        let mut end = 0;
        let spread = |(class, &spread): (&Class, &u64)| {
            end += class.n_samples as usize;
            Spread { end, padded: class.padded, spread }
        };
        self.spreads = classes.iter().zip(spreads).map(spread).collect();
    }

    /// All positions, in a new order: the admitted ones by key, in random order where keys are alike, then the kept
    /// over-long ones. `noise`, in eighths: how far samples stray, from not at all to as far as their spreads say.
    pub(crate) fn shuffled(&self, streams: Streams, noise: u64, n_threads: usize) -> Vec<P> {
        let mut positions: Vec<P> = (0..self.n_samples()).map(P::new).collect();
        if noise == 0 {
            let mut start = 0;
            for (i, spread) in self.spreads.iter().enumerate() {
                rng::shuffle(&mut positions[start..spread.end], &mut streams.open(Stage::Shuffle, i as u64));
                start = spread.end;
            }
            return positions;
        }
        let spreads: Vec<Spread> = self.spreads.iter().map(|spread| spread.times(noise)).collect();
        let (Some(first), Some(last)) = (spreads.first(), spreads.iter().map(|spread| spread.key(u32::MAX)).max())
        else {
            return positions;
        };
        let first_cell = cell(first.padded);
        let mut cells = vec![0_u32; self.n_admitted];
        let of_part = self.n_admitted.div_ceil(n_threads).next_multiple_of(CHUNK);
        let parts = cells.chunks_mut(of_part).enumerate().collect();
        let counts = threads::for_each(parts, n_threads, |(i, part): (usize, &mut [u32])| {
            let mut counts = vec![0_usize; cell(last) - first_cell + 1];
            for (j, chunk) in part.chunks_mut(CHUNK).enumerate() {
                draw_cells(&spreads, (i * of_part) / CHUNK + j, streams, first_cell, chunk);
                for &cell in &*chunk {
                    counts[cell as usize] += 1;
                }
            }
            counts
        });
        let counts = counts.into_iter().reduce(|mut sums, counts| {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            sums
        });
        let counts = counts.unwrap_or_default();
        // Neighbouring cells for each thread, about as many samples in each range.
        let mut ranges = Vec::new();
        let (mut rest, mut low) = (&mut positions[..self.n_admitted], 0);
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
        threads::for_each(ranges, n_threads, |(range, positions): (std::ops::Range<usize>, &mut [P])| {
            let mut next = 0;
            let mut cursors: Vec<usize> = counts[range.clone()]
                .iter()
                .map(|&n_samples| {
                    next += n_samples;
                    next - n_samples
                })
                .collect();
            // No key is below its padded length, so samples padded beyond the range have no part in it.
            let beyond = spreads.partition_point(|spread| cell(spread.padded) - first_cell < range.end);
            let n_scanned = beyond.checked_sub(1).map_or(0, |i| spreads[i].end);
            for (position, &cell) in cells[..n_scanned].iter().enumerate() {
                let cell = (cell as usize).wrapping_sub(range.start);
                if let Some(cursor) = cursors.get_mut(cell) {
                    positions[*cursor] = P::new(position);
                    *cursor += 1;
                }
            }
            let mut start = 0;
            for (cell, end) in range.zip(cursors) {
                if end - start > 1 {
                    let stream = &mut streams.open(Stage::Shuffle, (first_cell + cell) as u64);
                    rng::shuffle(&mut positions[start..end], stream);
                }
                start = end;
            }
        });
        positions
    }
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
fn draw_cells(spreads: &[Spread], chunk: usize, streams: Streams, first_cell: usize, cells: &mut [u32]) {
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
        for (cell_of, &draw) in cells[stretch.clone()].iter_mut().zip(&draws[stretch]) {
            *cell_of = (cell(spread.key(deviate(draw))) - first_cell) as u32;
        }
        start = spread.end;
        i += 1;
    }
}

/// The cell of a key: its leading bits.
#[inline]
fn cell(key: u64) -> usize {
    let dropped = (u64::BITS - key.leading_zeros()).saturating_sub(CELL_BITS);
    ((u64::from(dropped) << (CELL_BITS - 1)) + (key >> dropped)) as usize
}
