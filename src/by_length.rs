//! The admitted samples in order of length.
//!
//! A position in the order tells how long a sample is, so positions are all that is moved: four bytes a sample, made by
//! counting and read from nowhere.
use crate::admission::{Census, Overlong};
use crate::boundaries::Class;
use crate::by_key::{Spread, shuffle_by_key};
use crate::cells::{self, cell_of};
use crate::error::Result;
use crate::exponential::LARGEST_DEVIATE;
use crate::lengths::{Length, zeros};
use crate::memory;
use crate::rng::{self, Stage, Streams};
use crate::threads::{BETWEEN_CHECKS, Check};

/// Every `HINT`-th position keeps its run, so that the run of any position is a few steps away.
const HINT: usize = 64;

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
    /// Returns the order and the samples left out, ascending. No sample strays in it yet.
    pub(crate) fn of<L: Length>(
        census: &Census<'_, L>,
        overlong: Overlong,
        check: Check<'_>,
    ) -> Result<(Self, LeftOut)> {
        let (mut sorted, all_runs) = sort::<L, P>(census, check)?;
        let start_of = |length: u64| match all_runs.get(all_runs.partition_point(|run| run.length < length)) {
            Some(run) => run.start,
            None => sorted.len(),
        };
        let admitted = start_of(1)..start_of(census.longest_admissible.saturating_add(1));
        sorted[admitted.end..].sort_unstable();
        let overlong_ones = memory::collect(sorted.drain(admitted.end..))?;
        let mut dropped = memory::collect(sorted.drain(..admitted.start))?;
        let length = |i: &P| -> u64 { census.lengths[i.get()].into() };
        let mut kept = Vec::new();
        if overlong == Overlong::Keep {
            kept = memory::collect(overlong_ones.iter().map(length))?;
            sorted.extend(overlong_ones); // which it held before
        } else {
            memory::reserve(&mut dropped, overlong_ones.len())?;
            dropped.extend(overlong_ones);
            dropped.sort_unstable();
        }
        let index = |i: &P| census.selection.index(i.get());
        let left_out = LeftOut {
            samples: memory::collect(dropped.iter().map(index))?,
            tokens: dropped.iter().map(|i| u128::from(length(i))).sum(),
        };
        if census.selection.indices.is_some() {
            for i in &mut sorted {
                *i = P::new(index(i));
            }
        }
        let runs = all_runs.into_iter().filter(|run| admitted.contains(&run.start));
        let runs: Vec<Run> = memory::collect(runs.map(|run| Run { start: run.start - admitted.start, ..run }))?;
        let mut run = 0;
        let hints = (0..admitted.len()).step_by(HINT).map(|position| {
            run += runs[run..].partition_point(|run| run.start <= position) - 1;
            run as u32
        });
        let hints = memory::collect(hints)?;
        let n_admitted = admitted.len();
        Ok((Self { indices: sorted, n_admitted, runs, hints, kept, spreads: Vec::new() }, left_out))
    }

    pub(crate) fn n_samples(&self) -> usize {
        self.indices.len()
    }

    /// Sample index at each position.
    pub(crate) fn indices(&self) -> impl ExactSizeIterator<Item = usize> {
        self.indices.iter().map(|index| index.get())
    }

    pub(crate) fn n_admitted(&self) -> usize {
        self.n_admitted
    }

    /// Replaces positions by the samples there. In order of the key, what is read lies close together.
    pub(crate) fn to_indices(&self, positions: &mut [P], check: Check<'_>) -> Result<()> {
        for chunk in positions.chunks_mut(BETWEEN_CHECKS) {
            check()?;
            for position in chunk {
                *position = self.indices[position.get()];
            }
        }
        Ok(())
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
    pub(crate) fn set_spreads(&mut self, classes: &[Class], means: &[u64]) -> Result<()> {
        let mut end = 0;
        let spread = |(class, &mean): (&Class, &u64)| {
            end += class.n_samples as usize;
            Spread { end, padded: class.padded, mean }
        };
        self.spreads = memory::collect(classes.iter().zip(means).map(spread))?;
        Ok(())
    }

    /// All positions, in a new order: the admitted ones by key, in random order where keys are alike, then the kept
    /// over-long ones. `noise`, in eighths: how far samples stray, from not at all to as far as their spreads say.
    pub(crate) fn shuffled(&self, streams: Streams, noise: u64, n_threads: usize, check: Check<'_>) -> Result<Vec<P>> {
        let spreads: Vec<Spread> = memory::collect(self.spreads.iter().map(|spread| spread.times(noise)))?;
        let Some(last) = spreads.iter().map(|spread| spread.key(LARGEST_DEVIATE)).max().filter(|_| noise > 0) else {
            let mut positions: Vec<P> = memory::collect((0..self.n_samples()).map(P::new))?;
            let mut start = 0;
            for (i, spread) in self.spreads.iter().enumerate() {
                check()?;
                rng::shuffle(&mut positions[start..spread.end], &mut streams.open(Stage::Shuffle, i as u64), check)?;
                start = spread.end;
            }
            return Ok(positions);
        };
        let cells = cell_of(spreads[0].padded)..cell_of(last) + 1;
        let mut positions = memory::filled(P::default(), self.n_samples())?;
        let (admitted, kept) = positions.split_at_mut(self.n_admitted);
        if u16::try_from(cells.len()).is_ok() {
            shuffle_by_key::<P, u16>(admitted, &spreads, cells, streams, n_threads, check)?;
        } else {
            shuffle_by_key::<P, u32>(admitted, &spreads, cells, streams, n_threads, check)?;
        }
        kept.iter_mut().zip(self.n_admitted..).for_each(|(kept, position)| *kept = P::new(position));
        Ok(positions)
    }
}

/// The samples left out.
pub(crate) struct LeftOut {
    /// Sample indices, ascending.
    pub samples: Vec<usize>,
    pub tokens: u128,
}

/// All samples by (length, index), and the run of each length.
fn sort<L: Length, P: Position>(census: &Census<'_, L>, check: Check<'_>) -> Result<(Vec<P>, Vec<Run>)> {
    let mut runs: Vec<Run> = Vec::new();
    if let Some(counts) = &census.counts {
        let mut cursors = zeros::<u32>()?;
        let mut start = 0;
        for (length, &n_samples) in counts.iter().enumerate().filter(|&(_, &n_samples)| n_samples > 0) {
            memory::push(&mut runs, Run { length: length as u64, start: start as usize })?;
            cursors[length] = start;
            start += n_samples;
        }
        let mut sorted = memory::filled(P::default(), census.lengths.len())?;
        for (chunk, lengths) in census.lengths.chunks(BETWEEN_CHECKS).enumerate() {
            check()?;
            for (i, &length) in (chunk * BETWEEN_CHECKS..).zip(lengths) {
                let cursor = &mut cursors[length.in_table()];
                sorted[*cursor as usize] = P::new(i);
                *cursor += 1;
            }
        }
        return Ok((sorted, runs));
    }
    let pairs = census.lengths.iter().enumerate().map(|(i, &length)| (length, P::new(i)));
    let pairs =
        cells::sort(pairs, |(length, _)| length.into() - census.shortest, census.longest - census.shortest, check)?;
    for (start, &(length, _)) in pairs.iter().enumerate() {
        let length = length.into();
        if runs.last().is_none_or(|run| run.length != length) {
            memory::push(&mut runs, Run { length, start })?;
        }
    }
    Ok((memory::collect(pairs.into_iter().map(|(_, i)| i))?, runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_knows_its_length() -> Result<()> {
        let lengths: Vec<u32> = (0..1_000_u32).map(|i| 1 + i * i % 700).chain([70_000, 0]).collect();
        let selection = crate::admission::Selection { indices: None, n_samples: lengths.len() };
        let model = crate::Options::default().cost;
        let census = Census::of(&lengths, &selection, &model)?;
        let (samples, left_out) = ByLength::<u32>::of(&census, Overlong::Drop, &|| Ok(()))?;
        assert_eq!(left_out.samples, [1_001]);
        let mut indices: Vec<u32> = (0..samples.n_samples() as u32).collect();
        let found: Vec<u64> = indices.iter().map(|&position| samples.length(position)).collect();
        samples.to_indices(&mut indices, &|| Ok(()))?;
        assert!(indices.iter().map(|&i| u64::from(lengths[i as usize])).eq(found.iter().copied()));
        assert!(found.is_sorted());
        Ok(())
    }
}
