//! Several fields: an order in which samples that are near each other are alike in more than one of them.
//!
//! Samples of one combined length may be long in one field or in another, and a batch of both pads both. So the order is
//! cut into bands of some batches each, and a band is ordered by another field, one rising and the next falling. In wide
//! bands that field's lengths in a batch differ less and the combined ones more; which width pads least is tried.
use std::cmp::Reverse;

use crate::bucket::Buckets;
use crate::cells::leading;
use crate::cost::CostModel;
use crate::error::Result;
use crate::fields::Fields;
use crate::memory;
use crate::pack::pack_fields;
use crate::record::{Record, Records, with_records};
use crate::rng::{self, Stage, Streams};
use crate::threads::Check;

/// Bands of more batches than this are not tried.
const MAX_BATCHES: usize = 1 << 8;

/// Bands of fewer samples are sorted by comparison.
const MIN_COUNTED: usize = 1 << 10;

/// Of more samples than this, parts of the order are tried, which have as many samples together.
const MAX_TRIED: usize = 1 << 17;
const N_PARTS: usize = 1 << 3;

/// By which field samples are ordered, in bands of how many batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bands {
    field: usize,
    n_batches: usize,
}

impl Bands {
    /// Samples whose lengths agree in so many leading bits stay in random order among themselves, so that other pairs of
    /// them share a batch in the next epoch. Wider bands tell more lengths apart.
    fn leading_bits(self) -> u32 {
        self.n_batches.ilog2().max(3) - 2
    }

    /// Orders samples that stand by combined length, or by a key near it.
    pub(crate) fn sort<R: Copy>(
        self,
        samples: &mut [R],
        fields: &Fields,
        row: impl Fn(R) -> usize,
        model: &CostModel,
        check: Check<'_>,
    ) -> Result<()> {
        let (mut start, mut falls, mut scratch) =
            (0, false, Scratch { keys: Vec::new(), cursors: Vec::new(), unsorted: Vec::new() });
        while start < samples.len() {
            check()?;
            let n_samples = model.cap(fields.combined(fields.row(row(samples[start])))).saturating_mul(self.n_batches);
            let end = samples.len().min(start.saturating_add(n_samples));
            let key = |sample| leading(fields.row(row(sample))[self.field].into(), self.leading_bits());
            scratch.sort(&mut samples[start..end], key, falls)?;
            (start, falls) = (end, !falls);
        }
        Ok(())
    }

    /// The bands that pad these parts of the order least; `None`: all pad as much as no bands, or more.
    pub(crate) fn choose<R: Copy + Ord>(
        parts: &[&[R]],
        fields: &Fields,
        row: impl Fn(R) -> usize + Copy,
        model: &CostModel,
        check: Check<'_>,
    ) -> Result<Option<Self>> {
        let cost = |bands: Option<Self>| -> Result<(u128, usize)> {
            let (mut cost, mut n_batches) = (0, 0);
            for part in parts {
                let mut samples = memory::copy(part)?;
                if let Some(bands) = bands {
                    bands.sort(&mut samples, fields, row, model, check)?;
                }
                let batches = pack_fields(&samples, fields, row, (0, 0), model, check)?.batches;
                cost += batches.iter().map(|batch| model.batch_cost(batch.n_samples, batch.longest)).sum::<u128>();
                n_batches += batches.len();
            }
            Ok((cost, n_batches))
        };
        let (mut best, (mut least, n_tried)) = (None, cost(None)?);
        // A part is too short to tell what wider bands pad.
        let widest = (n_tried / parts.len().max(1) / 2).min(MAX_BATCHES);
        for field in 1..fields.n_fields() {
            let mut n_batches = 2;
            while n_batches <= widest {
                let bands = Some(Self { field, n_batches });
                let (cost, _) = cost(bands)?;
                if cost < least {
                    (best, least) = (bands, cost);
                }
                n_batches *= 2;
            }
        }
        Ok(best)
    }
}

/// The parts of an order that are tried.
pub(crate) fn parts<R>(samples: &[R]) -> Vec<&[R]> {
    if samples.len() <= MAX_TRIED {
        return vec![samples];
    }
    let starts = (0..N_PARTS).map(|i| (i as u128 * samples.len() as u128 / N_PARTS as u128) as usize);
    starts.map(|start| &samples[start..start + MAX_TRIED / N_PARTS]).collect()
}

/// The memory of a stable sort by small keys, which takes 5 ns a sample; by comparison it takes 25.
struct Scratch<R> {
    keys: Vec<u16>,
    cursors: Vec<u32>,
    unsorted: Vec<R>,
}

impl<R: Copy> Scratch<R> {
    fn sort(&mut self, samples: &mut [R], key: impl Fn(R) -> usize, falls: bool) -> Result<()> {
        if samples.len() < MIN_COUNTED || u32::try_from(samples.len()).is_err() {
            if falls {
                samples.sort_by_key(|&sample| Reverse(key(sample)));
            } else {
                samples.sort_by_key(|&sample| key(sample));
            }
            return Ok(());
        }
        self.keys.clear();
        self.unsorted.clear();
        memory::reserve(&mut self.keys, samples.len())?;
        memory::reserve(&mut self.unsorted, samples.len())?;
        self.unsorted.extend_from_slice(samples);
        self.keys.extend(samples.iter().map(|&sample| key(sample) as u16));
        let last = usize::from(self.keys.iter().copied().fold(0, u16::max));
        self.cursors.clear();
        memory::reserve(&mut self.cursors, last + 1)?;
        self.cursors.resize(last + 1, 0);
        let cursors = &mut self.cursors[..];
        self.keys.iter().for_each(|&key| cursors[usize::from(key)] += 1);
        let mut next = 0;
        let mut place = |cursor: &mut u32| {
            next += *cursor;
            *cursor = next - *cursor;
        };
        if falls {
            cursors.iter_mut().rev().for_each(&mut place);
        } else {
            cursors.iter_mut().for_each(&mut place);
        }
        for (&key, &sample) in self.keys.iter().zip(&self.unsorted) {
            let cursor = &mut cursors[usize::from(key)];
            samples[*cursor as usize] = sample;
            *cursor += 1;
        }
        Ok(())
    }
}

/// Chooses the bands of hard buckets from a pilot's order of each.
pub(crate) fn choose_of_buckets(
    fields: &mut Fields,
    records: &Records,
    buckets: &Buckets,
    model: &CostModel,
    check: Check<'_>,
) -> Result<()> {
    with_records!(records, records => {
        let mut records = memory::copy(records)?;
        let mut tried = memory::with_capacity(buckets.len())?;
        let mut rest = &mut records[..];
        for (i, ends) in buckets.starts.windows(2).enumerate() {
            let (bucket, after) = rest.split_at_mut(ends[1] - ends[0]);
            rng::shuffle(bucket, &mut Streams::of_pilot(0).open(Stage::Shuffle, i as u64), check)?;
            tried.push(&bucket[..bucket.len().min(MAX_TRIED / buckets.len())]);
            rest = after;
        }
        let row = |record: _| Record::index(record, buckets.index_bits);
        fields.bands = Bands::choose(&tried, fields, row, model, check)?;
    });
    Ok(())
}
