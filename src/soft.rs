//! Soft buckets: how far each length may stray, so that padding and repetition cost least together.
//!
//! A bucket of `m` samples whose longest has `top` tokens pads to `m * top` tokens. Its batches hold `s = cap(top)`
//! samples, and of the pairs that share a batch about `s (s - 1) / 2` share one again in the next epoch, however large
//! the bucket is. So the partition that minimises `padding ratio + repeat_weight * pairs repeated` charges each bucket
//! `m * top` and a term of its end alone. One pass finds it: the first term has the Monge property, so the best start
//! of the last bucket never moves down as its end moves up, and a queue of candidates with bisection takes
//! `O(V log V)` for `V` padded lengths.
//!
//! The partition itself is not used as buckets. Each length gets a width from it, and a sample's key is its length plus
//! an exponential deviate of mean `width / 2`. In order of the key, a batch pays for its longest minus its mean; the
//! same width as fixed buckets pads as much and repeats half as many pairs.
use std::collections::VecDeque;

use crate::boundaries::Class;
use crate::cost::CostModel;
use crate::error::Result;
use crate::memory;
use crate::threads::{BETWEEN_CHECKS, Check};

/// The ends of the buckets of the best partition, each one past the last class of a bucket.
pub(crate) fn partition(
    classes: &[Class],
    model: &CostModel,
    repeat_weight: f64,
    check: Check<'_>,
) -> Result<Vec<usize>> {
    let Some(last) = classes.last() else { return Ok(Vec::new()) };
    let mut n_below: Vec<u64> = memory::filled(0, classes.len() + 1)?;
    for (i, class) in classes.iter().enumerate() {
        n_below[i + 1] = n_below[i] + class.n_samples;
    }
    // Keeps every sum below 2^126; it is 0 unless the data set has more than 2^125 padded tokens.
    let most = u128::from(last.padded) * u128::from(n_below[classes.len()]);
    let shift = if most >> 125 == 0 { 0 } else { 3 };
    let repeats = repeats(classes, model, repeat_weight)?;
    let cost = |start: usize, end: usize| {
        let n_samples = u128::from(n_below[end] - n_below[start]);
        ((n_samples * u128::from(classes[end - 1].padded)) >> shift) + repeats[end - 1]
    };
    cheapest(classes.len(), cost, check)
}

/// What each class costs as the end of a bucket, padded tokens: `repeat_weight` times the share of repeated pairs, times
/// the least padded tokens.
fn repeats(classes: &[Class], model: &CostModel, repeat_weight: f64) -> Result<Vec<u128>> {
    let caps: Vec<f64> = memory::collect(classes.iter().map(|class| model.cap(class.top) as f64))?;
    let least: f64 = classes.iter().map(|class| class.n_samples as f64 * class.padded as f64).sum();
    let twice_pairs: f64 = classes.iter().zip(&caps).map(|(class, cap)| class.n_samples as f64 * (cap - 1.0)).sum();
    let price = if twice_pairs > 0.0 { repeat_weight * least / twice_pairs } else { 0.0 };
    // A float too large for the integer becomes its largest value.
    memory::collect(caps.into_iter().map(|cap| ((price * cap * (cap - 1.0)) as u128).min(u128::MAX >> 2)))
}

/// Cuts `0..n` into runs of the least total cost, of equal ones those whose last runs start first, and returns their
/// ends. The best start of a run never moves down as its end moves up.
fn cheapest(n: usize, cost: impl Fn(usize, usize) -> u128, check: Check<'_>) -> Result<Vec<usize>> {
    let (mut best, mut starts): (Vec<u128>, _) = (memory::with_capacity(n + 1)?, memory::with_capacity(n + 1)?);
    best.push(0);
    starts.push(0);
    // Starts that may still win, each with the first end at which it does; both ascend.
    let mut candidates = VecDeque::from([(0, 1)]);
    for end in 1..=n {
        if end % BETWEEN_CHECKS == 0 {
            check()?;
        }
        // Its ring grows as it must, since one for all ends would be read from memory and not from the cache.
        candidates.try_reserve(1).map_err(|_| memory::refused::<(usize, usize)>(candidates.len() + 1))?;
        while candidates.get(1).is_some_and(|&(_, from)| from <= end) {
            candidates.pop_front();
        }
        let (start, _) = candidates[0];
        best.push(best[start].saturating_add(cost(start, end)));
        starts.push(start);
        let total = |start: usize, end: usize| best[start].saturating_add(cost(start, end));
        while let Some(&(last, from)) = candidates.back() {
            let wins = |at: usize| total(end, at) < total(last, at);
            let from = from.max(end + 1);
            if from <= n && wins(from) {
                candidates.pop_back();
                continue;
            }
            let first_win = from + partition_point(from, n + 1, |at| !wins(at));
            if first_win <= n {
                candidates.push_back((end, first_win));
            }
            break;
        }
        if candidates.is_empty() {
            candidates.push_back((end, end + 1));
        }
    }
    let mut ends = Vec::new();
    let mut end = n;
    while end > 0 {
        memory::push(&mut ends, end)?;
        end = starts[end];
    }
    ends.reverse();
    Ok(ends)
}

/// How many of `low..high` come before the first for which `holds` is false; it holds up to a point.
fn partition_point(low: usize, high: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut known, mut limit) = (low, high);
    while known < limit {
        let middle = known + (limit - known) / 2;
        if holds(middle) {
            known = middle + 1;
        } else {
            limit = middle;
        }
    }
    known - low
}

/// `[n_classes]`: mean of the exponential deviate of each class, half its width, in units of 2^-16 tokens. The width of a
/// bucket, its longest minus its shortest padded length, stands at its middle; between middles it is interpolated.
pub(crate) fn means(classes: &[Class], ends: &[usize]) -> Result<Vec<u64>> {
    const MAX: u64 = 1 << 62;
    // Of each bucket, twice its middle and the mean there.
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let points: Vec<(u128, u64)> = memory::collect(starts.zip(ends).map(|(start, &end)| {
        let (shortest, longest) = (classes[start].padded, classes[end - 1].padded);
        let width = longest - shortest;
        (u128::from(shortest) + u128::from(longest), width.min(MAX >> 15) << 15)
    }))?;
    let mut after = 0;
    let mean = |class: &Class| {
        let at = 2 * u128::from(class.padded);
        while after < points.len() && points[after].0 <= at {
            after += 1;
        }
        match (after.checked_sub(1).map(|i| points[i]), points.get(after)) {
            (Some((from, low)), Some(&(to, high))) => {
                ((u128::from(low) * (to - at) + u128::from(high) * (at - from)) / (to - from)) as u64
            }
            (Some((_, only)), None) | (None, Some(&(_, only))) => only,
            (None, None) => 0,
        }
    };
    memory::collect(classes.iter().map(mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by trying every start.
    fn cheapest_slowly(n: usize, cost: impl Fn(usize, usize) -> u128) -> u128 {
        let mut best = vec![0];
        for end in 1..=n {
            best.push((0..end).map(|start| best[start] + cost(start, end)).min().unwrap_or(0));
        }
        best[n]
    }

    #[test]
    fn the_queue_finds_the_least_cost() {
        let mut x = 1_u64;
        let mut random = |below: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % below
        };
        for _ in 0..500 {
            let n = 1 + random(40) as usize;
            let mut padded = 0;
            let classes: Vec<(u128, u128, u128)> = (0..n)
                .map(|_| {
                    padded += 1 + random(9);
                    (u128::from(padded), u128::from(1 + random(20)), u128::from(random(400)))
                })
                .collect();
            let cost = |start: usize, end: usize| {
                let n_samples: u128 = classes[start..end].iter().map(|class| class.1).sum();
                n_samples * classes[end - 1].0 + classes[end - 1].2
            };
            let ends = cheapest(n, cost, &|| Ok(())).expect("so little memory is there");
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let total: u128 = starts.zip(&ends).map(|(start, &end)| cost(start, end)).sum();
            assert_eq!(total, cheapest_slowly(n, cost));
            assert_eq!(ends.last(), Some(&n));
        }
    }
}
