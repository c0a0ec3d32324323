//! Samples in order of length: with soft buckets or plainly sorted, packed in one go.
use crate::admission::Census;
use crate::boundaries::{self, Class};
use crate::bucket::{self, Boundaries};
use crate::by_length::{ByLength, LeftOut, Position};
use crate::cost::CostModel;
use crate::lengths::Length;
use crate::options::{Options, Strategy};
use crate::pack::{Packed, alone, pack};
use crate::rng::{N_ATTEMPTS, N_PILOTS, Streams};
use crate::{soft, threads};

/// Packs samples in order of length after their shuffle, in one go: one batch of an epoch is short, and not one a bucket.
pub(crate) fn pack_through<P: Position>(samples: &ByLength<P>, positions: &[P], model: &CostModel) -> Packed {
    let (admitted, kept) = positions.split_at(samples.n_admitted());
    let top = admitted.len().checked_sub(1).map_or(0, |last| samples.length(P::new(last)));
    let mut packed = pack(admitted, |position| samples.length(position), (0, 0, top), model);
    packed += alone(kept.iter().map(|&position| samples.length(position)), admitted.len());
    packed
}

/// The samples in order of length, with soft buckets where the options ask for some, and the edges of these.
pub(crate) fn sorted<L: Length, P: Position>(
    census: &Census<'_, L>,
    model: &CostModel,
    options: &Options,
) -> (ByLength<P>, Vec<u64>, LeftOut) {
    let (mut samples, left_out) = ByLength::of(census, options.overlong);
    if options.strategy == Strategy::Sorted {
        return (samples, bucket::one_bucket(census), left_out);
    }
    let classes = boundaries::classes(&census.histogram(), model);
    let repeat_weight = match options.boundaries {
        Boundaries::RepeatWeight(repeat_weight) => repeat_weight,
        _ => Boundaries::DEFAULT_REPEAT_WEIGHT,
    };
    let ends = soft::partition(&classes, model, repeat_weight);
    let means = soft::means(&classes, &ends);
    samples.set_spreads(&classes, &means);
    if let Boundaries::PaddingTarget(target) = options.boundaries {
        meet_padding_target(&mut samples, &classes, &means, model, target, options.threads);
    }
    let tops = ends.iter().map(|&end| classes[end - 1].top);
    let edges = if ends.is_empty() { vec![0, 0] } else { std::iter::once(0).chain(tops).collect() };
    (samples, edges, left_out)
}

/// Scales all spreads until pilots pad `target` more than sorted order does, as a share of its padded tokens.
fn meet_padding_target<P: Position>(
    samples: &mut ByLength<P>,
    classes: &[Class],
    means: &[u64],
    model: &CostModel,
    target: f64,
    threads: Option<usize>,
) {
    const N_ROUNDS: u32 = 3;
    const ONE: u128 = 1 << 10;
    let n_threads = threads::n_threads(threads, samples.n_samples());
    let padded = |samples: &ByLength<P>, noise: u64| -> u128 {
        let pilots = (0..N_PILOTS).map(|number| samples.shuffled(Streams::of_pilot(number), noise, n_threads));
        let batches = pilots.flat_map(|positions| pack_through(samples, &positions, model).batches);
        // Kept over-long samples pad the same in any order.
        batches
            .filter(|batch| batch.bucket >= 0)
            .map(|batch| batch.n_samples as u128 * u128::from(model.padded_length(batch.longest)))
            .sum()
    };
    let least = padded(samples, 0);
    let wanted = (target * least as f64) as u128;
    let mut scale = if wanted == 0 { 0 } else { ONE };
    let scale_by = |samples: &mut ByLength<P>, scale: u128| {
        let scaled = means.iter().map(|&mean| (u128::from(mean) * scale / ONE).min(1 << 62) as u64);
        samples.set_spreads(classes, &scaled.collect::<Vec<_>>());
    };
    for _ in 0..N_ROUNDS {
        scale_by(samples, scale);
        let excess = padded(samples, N_ATTEMPTS).saturating_sub(least).max(1);
        // The excess grows about as the scale does.
        scale = (scale.saturating_mul(wanted) / excess).clamp(scale / 8, scale * 8).min(ONE << 20);
    }
    scale_by(samples, scale);
}
