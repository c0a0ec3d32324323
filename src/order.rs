//! The order of the batches: a random permutation, or windows that each draw from the whole range of lengths.
use crate::cost::CostModel;
use crate::pack::Batch;
use crate::rng::{self, Stage};

/// Returns the positions in `batches` in the order in which they are trained. `align_ranks` divides `window`.
///
/// With a window of one batch this is a plain shuffle. Otherwise the batches are sorted by length, cut into steps of
/// `align_ranks` neighbours and the steps into `window / align_ranks` strata of equal count; every window takes one
/// step of every stratum. Full batches all cost about the budget, so their cost says nothing of their length: the sort
/// is by padded length first, and by cost where that is equal.
pub(crate) fn order(
    batches: &[Batch],
    model: &CostModel,
    (window, align_ranks): (u64, u64),
    seed: u64,
    epoch: u64,
) -> Vec<usize> {
    let [window, align_ranks] = [window, align_ranks].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let mut sorted: Vec<usize> = (0..batches.len()).collect();
    if window > 1 {
        sorted.sort_by_cached_key(|&i| {
            let Batch { n_samples, longest, .. } = batches[i];
            (model.padded_length(longest), model.batch_cost(n_samples, longest))
        });
    }
    // What does not fill a step comes last; it is taken from the shortest batches.
    let (short_step, full) = sorted.split_at(batches.len() % align_ranks);
    let n_steps = full.len() / align_ranks;
    // More strata than steps would stay empty and draw nothing.
    let n_strata = (window / align_ranks).clamp(1, n_steps.max(1));

    let mut steps: Vec<usize> = (0..n_steps).collect();
    let strata: Vec<_> =
        (0..n_strata).map(|a| stratum_start(a, n_steps, n_strata)..stratum_start(a + 1, n_steps, n_strata)).collect();
    let mut rng = rng::stream(seed, epoch, Stage::Strata, 0);
    for stratum in &strata {
        rng::shuffle(&mut steps[stratum.clone()], &mut rng);
    }

    let mut window_rng = rng::stream(seed, epoch, Stage::Window, 0);
    let mut ranks_rng = rng::stream(seed, epoch, Stage::Ranks, 0);
    let mut ordered = Vec::with_capacity(batches.len());
    let mut in_window: Vec<usize> = Vec::with_capacity(n_strata);
    for t in 0..n_steps.div_ceil(n_strata) {
        in_window.clear();
        in_window.extend(strata.iter().filter_map(|stratum| steps[stratum.clone()].get(t)));
        rng::shuffle(&mut in_window, &mut window_rng);
        for &step in &in_window {
            push_step(&mut ordered, &full[step * align_ranks..(step + 1) * align_ranks], &mut ranks_rng);
        }
    }
    push_step(&mut ordered, short_step, &mut ranks_rng);
    ordered
}

fn stratum_start(stratum: usize, n_steps: usize, n_strata: usize) -> usize {
    (stratum as u128 * n_steps as u128 / n_strata as u128) as usize
}

/// Appends one step, its ranks in random order, so that none keeps a role.
fn push_step(ordered: &mut Vec<usize>, step: &[usize], rng: &mut rng::Generator) {
    let start = ordered.len();
    ordered.extend_from_slice(step);
    rng::shuffle(&mut ordered[start..], rng);
}
