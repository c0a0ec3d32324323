//! The order of the batches: a random permutation, or windows that each draw from the whole range of lengths.
use crate::cost::CostModel;
use crate::error::Result;
use crate::memory;
use crate::pack::Batch;
use crate::rng::{self, Generator, Stage, Streams};
use crate::threads::{BETWEEN_CHECKS, Check};

/// Returns the positions in `batches` in the order in which they are trained. `align_ranks` divides `window`.
///
/// With a window of one batch this is a plain shuffle. Otherwise the batches are sorted by length, cut into steps of
/// `align_ranks` neighbours and the steps into `window / align_ranks` strata of equal count; every window takes one
/// step of every stratum. Full batches all cost about the budget, so their cost says nothing of their length: the sort
/// is by padded length first, and by cost where that is equal. Each domain has strata of its own, as many as its share. What fills no step or no window comes last and is drawn
/// from the whole range of lengths too.
pub(crate) fn order(
    batches: &[Batch],
    model: &CostModel,
    (window, align_ranks): (u64, u64),
    streams: Streams,
    check: Check<'_>,
) -> Result<Vec<usize>> {
    let [window, align_ranks] = [window, align_ranks].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let mut sorted: Vec<usize> = memory::collect(0..batches.len())?;
    if window > 1 {
        let key = |(i, &Batch { n_samples, longest, domain, .. }): (usize, &Batch)| {
            (domain, model.padded_length(longest), model.batch_cost(n_samples, longest), i)
        };
        let mut keys = memory::collect(batches.iter().enumerate().map(key))?;
        keys.sort_unstable();
        sorted.iter_mut().zip(keys).for_each(|(sorted, (.., i))| *sorted = i);
    }
    check()?;
    let mut rest_rng = streams.open(Stage::Rest, 0);
    let n_batches_over = sorted.len() % align_ranks;
    let last_step = take_from_all(&mut sorted, n_batches_over, &mut rest_rng)?;
    let mut steps: Vec<usize> = memory::collect(0..sorted.len() / align_ranks)?;
    let n_strata = window / align_ranks;
    let n_steps_over = steps.len() % n_strata;
    let mut last_window = take_from_all(&mut steps, n_steps_over, &mut rest_rng)?;

    let n_windows = steps.len() / n_strata;
    let mut rng = streams.open(Stage::Strata, 0);
    if n_windows > 0 {
        steps.chunks_exact_mut(n_windows).try_for_each(|stratum| rng::shuffle(stratum, &mut rng, check))?;
    }
    let mut window_rng = streams.open(Stage::Window, 0);
    let mut ranks_rng = streams.open(Stage::Ranks, 0);
    let mut ordered = memory::with_capacity(batches.len())?;
    let mut push_window = |in_window: &mut [usize]| {
        rng::shuffle(in_window, &mut window_rng, check)?;
        in_window.iter().try_for_each(|&step| {
            push_step(&mut ordered, &sorted[step * align_ranks..(step + 1) * align_ranks], &mut ranks_rng, check)
        })
    };
    let mut in_window: Vec<usize> = memory::with_capacity(if n_windows > 0 { n_strata } else { 0 })?;
    for t in 0..n_windows {
        if t % BETWEEN_CHECKS == 0 {
            check()?;
        }
        in_window.clear();
        in_window.extend(steps.chunks_exact(n_windows).map(|stratum| stratum[t]));
        push_window(&mut in_window)?;
    }
    push_window(&mut last_window)?;
    push_step(&mut ordered, &last_step, &mut ranks_rng, check)?;
    Ok(ordered)
}

/// Takes `n` of the items out, one from each of `n` runs of about equal length.
fn take_from_all(items: &mut Vec<usize>, n: usize, rng: &mut Generator) -> Result<Vec<usize>> {
    let start = |run: usize| (run as u128 * items.len() as u128 / n as u128) as usize;
    let place = |run| start(run) + rng::below(start(run + 1) - start(run), rng);
    let places: Vec<usize> = memory::collect((0..n).map(place))?;
    let taken = memory::collect(places.iter().map(|&place| items[place]))?;
    let mut places = places.into_iter().peekable();
    let mut place = 0;
    items.retain(|_| {
        place += 1;
        places.next_if_eq(&(place - 1)).is_none()
    });
    Ok(taken)
}

/// Appends one step, its ranks in random order, so that none keeps a role.
fn push_step(ordered: &mut Vec<usize>, step: &[usize], rng: &mut Generator, check: Check<'_>) -> Result<()> {
    let start = ordered.len();
    ordered.extend_from_slice(step);
    rng::shuffle(&mut ordered[start..], rng, check)
}
