//! Samples in order of length: with soft buckets or plainly sorted, packed in one go.
use crate::admission::Census;
use crate::bands::{self, Bands};
use crate::boundaries::{self, Class};
use crate::bucket::{self, Boundaries};
use crate::by_length::{ByLength, LeftOut, Position};
use crate::cost::CostModel;
use crate::error::Result;
use crate::fields::Fields;
use crate::lengths::Length;
use crate::memory;
use crate::options::{Options, Strategy};
use crate::pack::{Packed, alone, alone_of_fields, even_tail, measure, pack, pack_fields};
use crate::rng::{N_ATTEMPTS, N_PILOTS, Streams};
use crate::soft;
use crate::threads::{self, Check};

/// Shuffles samples in order of length and packs them in one go: one batch of an epoch is short, and not one a bucket.
/// `noise`, in eighths: how far samples stray.
pub(crate) fn draw_sorted<P: Position>(
    samples: &ByLength<P>,
    fields: Option<&Fields>,
    model: &CostModel,
    (streams, noise): (Streams, u64),
    n_threads: usize,
    check: Check<'_>,
) -> Result<(Vec<P>, Packed)> {
    let mut positions = samples.shuffled(streams, noise, n_threads, check)?;
    let (admitted, kept) = positions.split_at_mut(samples.n_admitted());
    let mut packed = match fields {
        None => {
            let top = admitted.len().checked_sub(1).map_or(0, |last| samples.length(P::new(last)));
            pack(admitted, |position| samples.length(position), (0, 0, top), model, check)?
        }
        Some(fields) => {
            if let Some(bands) = fields.bands {
                bands.sort(admitted, fields, P::get, model, check)?;
            }
            pack_fields(admitted, fields, P::get, (0, 0), model, check)?
        }
    };
    let length = |position| samples.length(position);
    even_tail(&mut packed, 0, |range| measure(fields, &admitted[range], P::get, length), model);
    packed.append(match fields {
        None => alone(kept.iter().map(|&position| samples.length(position)), admitted.len())?,
        Some(fields) => alone_of_fields(fields, kept.iter().map(|position| position.get()), admitted.len())?,
    })?;
    Ok((positions, packed))
}

/// The samples in order of length, with soft buckets where the options ask for some, and the edges of these.
pub(crate) fn sorted<L: Length, P: Position>(
    census: &Census<'_, L>,
    model: &CostModel,
    options: &Options,
    mut fields: Option<&mut Fields>,
    check: Check<'_>,
) -> Result<(ByLength<P>, Vec<u64>, LeftOut)> {
    let (mut samples, mut left_out) = ByLength::of(census, options.overlong, check)?;
    if let Some(fields) = &mut fields {
        left_out.tokens = fields.tokens_of(&left_out.samples);
        fields.reorder(samples.indices())?;
    }
    if options.strategy == Strategy::Sorted {
        choose_bands(fields, &samples, model, options.threads, check)?;
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
    choose_bands(fields.as_deref_mut(), &samples, model, options.threads, check)?;
    if let Boundaries::PaddingTarget(target) = options.boundaries {
        meet_padding_target(
            &mut samples,
            fields.as_deref(),
            &classes,
            &means,
            model,
            (target, options.threads),
            check,
        )?;
    }
    let tops = ends.iter().map(|&end| classes[end - 1].top);
    let edges = if ends.is_empty() { vec![0, 0] } else { memory::collect(std::iter::once(0).chain(tops))? };
    Ok((samples, edges, left_out))
}

/// Chooses the bands of several fields from a pilot's order.
fn choose_bands<P: Position>(
    fields: Option<&mut Fields>,
    samples: &ByLength<P>,
    model: &CostModel,
    threads: Option<usize>,
    check: Check<'_>,
) -> Result<()> {
    let Some(fields) = fields else { return Ok(()) };
    let n_threads = threads::n_threads(threads, samples.n_samples());
    let positions = samples.shuffled(Streams::of_pilot(0), N_ATTEMPTS, n_threads, check)?;
    let tried = bands::parts(&positions[..samples.n_admitted()]);
    fields.bands = Bands::choose(&tried, fields, P::get, model, check)?;
    Ok(())
}

/// Scales all spreads until pilots pad `target` more than sorted order does, as a share of its padded tokens.
fn meet_padding_target<P: Position>(
    samples: &mut ByLength<P>,
    fields: Option<&Fields>,
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
            let draw = (Streams::of_pilot(number), noise);
            let batches = draw_sorted(samples, fields, model, draw, n_threads, check)?.1.batches.into_iter();
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
