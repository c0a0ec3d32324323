//! The soft shuffle: samples in order of a key, their padded length plus an exponential deviate.
use std::ops::Range;

use rand_xoshiro::rand_core::Rng;

use crate::by_length::Position;
use crate::cells::{CELL_BITS, cell_of};
use crate::error::Result;
use crate::exponential::{LARGEST_DEVIATE, deviate};
use crate::memory;
use crate::rng::{self, Stage, Streams};
use crate::threads::{self, BETWEEN_CHECKS, Check};

/// Positions that draw from one random stream.
const CHUNK: usize = 1 << 12;

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
    pub(crate) fn times(self, eighths: u64) -> Self {
        Self { mean: ((u128::from(self.mean) * u128::from(eighths)) >> 3) as u64, ..self }
    }

    /// The key of one of its samples, tokens.
    #[inline]
    pub(crate) fn key(&self, deviate: u32) -> u64 {
        self.padded.saturating_add(((u128::from(self.mean) * u128::from(deviate)) >> 44) as u64)
    }
}

/// Writes the positions `0..positions.len()` in order of their cells, which lie in `cells`, each cell shuffled.
pub(crate) fn shuffle_by_key<P: Position, C: Position>(
    positions: &mut [P],
    spreads: &[Spread],
    cells: Range<usize>,
    streams: Streams,
    n_threads: usize,
    check: Check<'_>,
) -> Result<()> {
    let mut drawn = memory::filled(C::default(), positions.len())?;
    let of_part = positions.len().div_ceil(n_threads).next_multiple_of(CHUNK);
    let parts = drawn.chunks_mut(of_part).enumerate().collect();
    let counts = threads::for_each(parts, n_threads, check, |(i, part): (usize, &mut [C])| {
        let mut counts = memory::filled(0_usize, cells.len())?;
        for (j, chunk) in part.chunks_mut(CHUNK).enumerate() {
            check()?;
            draw_cells(spreads, (i * of_part) / CHUNK + j, streams, cells.start, chunk);
            for cell in &*chunk {
                counts[cell.get()] += 1;
            }
        }
        Ok(counts)
    })?;
    let counts = counts.into_iter().reduce(|mut sums, counts| {
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        sums
    });
    let counts = counts.unwrap_or_default();
    // Neighbouring cells for each thread, with about as many samples.
    let mut ranges = Vec::new();
    let (mut rest, mut low) = (positions, 0);
    while low < counts.len() {
        let (mut high, mut n_samples) = (low, 0);
        while high < counts.len() && (n_samples < of_part || n_threads == 1) {
            n_samples += counts[high];
            high += 1;
        }
        let (range, after) = rest.split_at_mut(n_samples);
        memory::push(&mut ranges, (low..high, range))?;
        (rest, low) = (after, high);
    }
    threads::for_each(ranges, n_threads, check, |(range, positions): (Range<usize>, &mut [P])| {
        let mut next = 0;
        let start_of = |&n_samples: &usize| {
            next += n_samples;
            next - n_samples
        };
        let mut cursors: Vec<usize> = memory::collect(counts[range.clone()].iter().map(start_of))?;
        // No key is below its padded length, so samples that are padded beyond the range have no part in it.
        let beyond = spreads.partition_point(|spread| cell_of(spread.padded) - cells.start < range.end);
        let n_scanned = beyond.checked_sub(1).map_or(0, |i| spreads[i].end);
        for (i, chunk) in drawn[..n_scanned].chunks(CHUNK).enumerate() {
            check()?;
            for (position, cell) in (i * CHUNK..).zip(chunk) {
                if let Some(cursor) = cursors.get_mut(cell.get().wrapping_sub(range.start)) {
                    positions[*cursor] = P::new(position);
                    *cursor += 1;
                }
            }
        }
        let (mut start, mut next_check) = (0, 0);
        for (cell, end) in range.zip(cursors) {
            if end > next_check {
                check()?;
                next_check = end + BETWEEN_CHECKS;
            }
            if end - start > 1 {
                let mut stream = streams.open(Stage::Shuffle, (cells.start + cell) as u64);
                rng::shuffle(&mut positions[start..end], &mut stream, check)?;
            }
            start = end;
        }
        Ok(())
    })?;
    Ok(())
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
}
