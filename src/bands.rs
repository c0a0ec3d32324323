//! Several fields: an order in which samples that are near each other are alike in more than one of them.
//!
//! Samples of one combined length may be long in one field or in another, and a batch of both pads both. So the order is
//! cut into bands of some batches each, and a band is ordered by another field, one rising and the next falling. In wide
//! bands that field's lengths in a batch differ less and the combined ones more; which width pads least is tried.
use crate::cost::CostModel;
use crate::error::Result;
use crate::fields::Fields;
use crate::memory;
use crate::pack::pack_fields;
use crate::threads::Check;

/// Bands of more batches than this are not tried.
const MAX_BATCHES: usize = 1 << 8;

/// Lengths that agree in so many bits, counted from the first that any length of the field has, stay in random order.
const LEADING_BITS: u32 = 10;

/// Of more samples than this, parts of the order are tried, which have as many samples together.
pub(crate) const MAX_TRIED: usize = 1 << 17;
const N_PARTS: usize = 1 << 4;

/// By which field samples are ordered, in bands of how many batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bands {
    field: usize,
    n_batches: usize,
    /// How many of the low bits of a length have no say.
    shift: u32,
}

impl Bands {
    /// Orders samples that stand by combined length, or by a key near it.
    pub(crate) fn sort<R: Copy>(
        self,
        samples: &mut [R],
        fields: &Fields,
        row: impl Fn(R) -> usize,
        model: &CostModel,
        check: Check<'_>,
    ) -> Result<()> {
        let key = |sample: &R| fields.row(row(*sample))[self.field] >> self.shift;
        let (mut start, mut falls) = (0, false);
        while start < samples.len() {
            check()?;
            let n_samples = model.cap(fields.combined(fields.row(row(samples[start])))).saturating_mul(self.n_batches);
            let end = samples.len().min(start.saturating_add(n_samples));
            if falls {
                samples[start..end].sort_by_key(|sample| std::cmp::Reverse(key(sample)));
            } else {
                samples[start..end].sort_by_key(key);
            }
            (start, falls) = (end, !falls);
        }
        Ok(())
    }

    /// The bands that pad these parts of the order least; `None`: no order in any pads more.
    pub(crate) fn choose<R: Copy + Ord>(
        parts: &[&[R]],
        fields: &Fields,
        row: impl Fn(R) -> usize + Copy,
        model: &CostModel,
        check: Check<'_>,
    ) -> Result<Option<Self>> {
        let cost = |bands: Option<Self>| -> Result<u128> {
            let mut cost = 0;
            for part in parts {
                let mut samples = memory::copy(part)?;
                if let Some(bands) = bands {
                    bands.sort(&mut samples, fields, row, model, check)?;
                }
                let batches = pack_fields(&samples, fields, row, (0, 0), model, check)?.batches;
                cost += batches.iter().map(|batch| model.batch_cost(batch.n_samples, batch.longest)).sum::<u128>();
            }
            Ok(cost)
        };
        let (mut best, mut least) = (None, cost(None)?);
        for field in 1..fields.n_fields() {
            let longest = parts.iter().flat_map(|part| part.iter().map(|&it| fields.row(row(it))[field])).max();
            let shift = (u32::BITS - longest.unwrap_or(0).leading_zeros()).saturating_sub(LEADING_BITS);
            let mut n_batches = 2;
            while n_batches <= MAX_BATCHES {
                let bands = Some(Self { field, n_batches, shift });
                let cost = cost(bands)?;
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
