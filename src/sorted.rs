//! Samples in order of length: with soft buckets or plainly sorted, packed in one go.
use crate::admission::Census;
use crate::boundaries::{self, Class};
use crate::bucket::{self, Boundaries};
use crate::by_length::{ByLength, LeftOut, Position};
use crate::cost::CostModel;
use crate::error::Result;
use crate::lengths::Length;
use crate::memory;
use crate::options::{Options, Strategy};
use crate::pack::{Packed, alone, pack};
use crate::rng::{N_ATTEMPTS, N_PILOTS, Streams};
use crate::soft;
use crate::threads::{self, Check};

/// Packs samples in order of length after their shuffle, in one go: one batch of an epoch is short, and not one a bucket.
pub(crate) fn pack_through<P: Position>(
    samples: &ByLength<P>,
    positions: &[P],
    model: &CostModel,
    check: Check<'_>,
) -> Result<Packed> {
    let (admitted, kept) = positions.split_at(samples.n_admitted());
    let top = admitted.len().checked_sub(1).map_or(0, |last| samples.length(P::new(last)));
    let mut packed = pack(admitted, |position| samples.length(position), (0, 0, top), model, check)?;
    packed.append(alone(kept.iter().map(|&position| samples.length(position)), admitted.len())?)?;
    Ok(packed)
}

/// The samples in order of length, with soft buckets where the options ask for some, and the edges of these.
pub(crate) fn sorted<L: Length, P: Position>(
    census: &Census<'_, L>,
    model: &CostModel,
    options: &Options,
    check: Check<'_>,
) -> Result<(ByLength<P>, Vec<u64>, LeftOut)> {
    let (mut samples, left_out) = ByLength::of(census, options.overlong, check)?;
    if options.strategy == Strategy::Sorted {
        return Ok((samples, bucket::one_bucket(census), left_out));
    }
    let classes = boundaries::classes(&census.histogram(check)?, model)?;
    let repeat_weight = match options.boundaries {
        Boundaries::RepeatWeight(repeat_weight) => repeat_weight,
        _ => Boundaries::DEFAULT_REPEAT_WEIGHT,
    };
    let ends = soft::partition(&classes, model, repeat_weight, check)?;
    let means = soft::means(&classes, &ends)?;
    samples.set_spreads(&classes, &means)?;
    if let Boundaries::PaddingTarget(target) = options.boundaries {
        meet_padding_target(&mut samples, &classes, &means, model, (target, options.threads), check)?;
    }
    let tops = ends.iter().map(|&end| classes[end - 1].top);
    let edges = if ends.is_empty() { vec![0, 0] } else { memory::collect(std::iter::once(0).chain(tops))? };
    Ok((samples, edges, left_out))
}

/// Scales all spreads until pilots pad `target` more than sorted order does, as a share of its padded tokens.
fn meet_padding_target<P: Position>(
    samples: &mut ByLength<P>,
    classes: &[Class],
    means: &[u64],
    model: &CostModel,
    (target, threads): (f64, Option<usize>),
    check: Check<'_>,
) -> Result<()> {
    const N_ROUNDS: u32 = 3;
    const ONE: u128 = 1 << 10;
    let n_threads = threads::n_threads(threads, samples.n_samples());
    let padded = |samples: &ByLength<P>, noise: u64| -> Result<u128> {
        let pilot = |number| {
            let positions = samples.shuffled(Streams::of_pilot(number), noise, n_threads, check)?;
            let batches = pack_through(samples, &positions, model, check)?.batches.into_iter();
            // Kept over-long samples pad the same in any order.
            let padded = batches
                .filter(|batch| batch.bucket >= 0)
                .map(|batch| batch.n_samples as u128 * u128::from(model.padded_length(batch.longest)));
            Ok(padded.sum::<u128>())
        };
        (0..N_PILOTS).map(pilot).sum()
    };
    let least = padded(samples, 0)?;
    let wanted = (target * least as f64) as u128;
    let mut scale = if wanted == 0 { 0 } else { ONE };
    let scale_by = |samples: &mut ByLength<P>, scale: u128| {
        let scaled = means.iter().map(|&mean| (u128::from(mean) * scale / ONE).min(1 << 62) as u64);
        samples.set_spreads(classes, &memory::collect(scaled)?)
    };
    for _ in 0..N_ROUNDS {
        scale_by(samples, scale)?;
        let excess = padded(samples, N_ATTEMPTS)?.saturating_sub(least).max(1);
        // The excess grows about as the scale does.
        scale = (scale.saturating_mul(wanted) / excess).clamp(scale / 8, scale * 8).min(ONE << 20);
    }
    scale_by(samples, scale)
}
