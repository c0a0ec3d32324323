//! Random streams and the shuffle. What is drawn, and in which order, is the contract of docs/ORDER.md.
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::error::Result;
use crate::memory;
use crate::threads::Check;

/// xoshiro256++ of Blackman and Vigna, <https://prng.di.unimi.it/xoshiro256plusplus.c>.
pub type Generator = Xoshiro256PlusPlus;

/// What a random stream is for. Two stages never share a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Stage {
    /// The samples of one bucket or cell; index: the bucket, the cell, or the padded length.
    Shuffle = 1,
    /// Which batches are split; index: the round.
    Split = 2,
    /// The steps of every stratum.
    Strata = 3,
    /// The steps inside every window.
    Window = 4,
    /// The batches inside every step.
    Ranks = 5,
    /// How far samples stray; index: the chunk of positions.
    Noise = 6,
    /// Which batches and steps come last, because they fill no step or window.
    Rest = 7,
}

/// Epochs that are packed to learn how many batches one needs, and how much it pads.
pub const N_PILOTS: u64 = 3;

/// An epoch that needs more batches than the constant count is drawn again up to this often, the last time in order of
/// length.
pub const N_ATTEMPTS: u64 = 8;

/// The random streams of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// What the caller chose.
    pub seed: u64,
    /// The epoch, or the number of a pilot.
    pub epoch: u64,
    /// Pilots have streams that no epoch has.
    pub is_pilot: bool,
    /// How often the epoch was drawn before.
    pub attempt: u64,
    /// The number of the domain; 0 without domains.
    pub domain: u64,
}

impl Streams {
    /// The streams of an epoch.
    #[must_use]
    pub fn of(seed: u64, epoch: u64) -> Self {
        Self { seed, epoch, is_pilot: false, attempt: 0, domain: 0 }
    }

    /// The streams of a pilot.
    #[must_use]
    pub fn of_pilot(number: u64) -> Self {
        Self { is_pilot: true, ..Self::of(0, number) }
    }

    /// Returns the random stream of one stage. The words are hashed one after the other, never added, so that
    /// (seed, epoch) = (0, 1) and (1, 0) have nothing in common.
    #[must_use]
    pub fn open(self, stage: Stage, index: u64) -> Generator {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let stage = stage as u64 + (self.attempt << 8) + (u64::from(self.is_pilot) << 16) + (self.domain << 24);
        let hash = [self.seed, self.epoch, stage, index]
            .into_iter()
            .fold(0_u64, |h, word| mix((h ^ word).wrapping_add(GOLDEN)));
        Generator::seed_from_u64(hash)
    }
}

/// The finaliser of SplitMix64, <https://prng.di.unimi.it/splitmix64.c>.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// More items than this are divided into parts that fit the cache before they are shuffled.
const MAX_AT_ONCE: usize = 1 << 20;

/// A uniformly random number in `[0, bound)`; `bound >= 1`.
pub fn below(bound: usize, rng: &mut Generator) -> usize {
    let [pick] = draw::<1>(bound, &mut { u64::MAX }, rng);
    pick
}

/// Puts `items` in uniformly random order.
pub(crate) fn shuffle<T: Copy>(items: &mut [T], rng: &mut Generator, check: Check<'_>) -> Result<()> {
    if items.len() <= MAX_AT_ONCE {
        fisher_yates(items, rng);
        return Ok(());
    }
    let mut start = 0;
    for end in divide(items, rng, check)? {
        check()?;
        fisher_yates(&mut items[start..end], rng);
        start = end;
    }
    Ok(())
}

/// Moves each item to one of 256 parts, by the next eight bits of the stream, and returns where the parts end. Shuffled
/// parts are a shuffled whole (Rao, 1961; Sandelius, 1962), without a cache miss an item.
fn divide<T: Copy>(items: &mut [T], rng: &mut Generator, check: Check<'_>) -> Result<[usize; 256]> {
    let mut counts = [0; 256];
    let mut ahead = rng.clone();
    for eight in items.chunks(8) {
        for (_, part) in eight.iter().zip(ahead.next_u64().to_le_bytes()) {
            counts[usize::from(part)] += 1;
        }
    }
    let mut next = 0;
    let mut cursors = counts.map(|n_items: usize| {
        next += n_items;
        next - n_items
    });
    let undivided = memory::copy(items)?;
    for at_once in undivided.chunks(MAX_AT_ONCE) {
        check()?;
        for eight in at_once.chunks(8) {
            for (&item, part) in eight.iter().zip(rng.next_u64().to_le_bytes()) {
                let cursor = &mut cursors[usize::from(part)];
                items[*cursor] = item;
                *cursor += 1;
            }
        }
    }
    Ok(cursors)
}

/// Fisher-Yates from the end, with up to six bounded draws from one 64-bit word (Brackett-Rozinsky and Lemire, "Batched
/// Ranged Random Integer Generation", 2024, <https://arxiv.org/abs/2408.06213>).
fn fisher_yates<T>(items: &mut [T], rng: &mut Generator) {
    if items.len() < 2 {
        return; // Nothing is drawn; steps and windows of one are frequent.
    }
    // The state lives in registers: reached through the reference, a draw costs 7 ns instead of 1.8.
    let mut local = rng.clone();
    let mut left = items.len();
    // While `left` exceeds the bound on the right, K draws share a word; the product of bounds fits it, as no part has 2^32 items.
    left = shuffle_down_to::<2, T>(items, left, 1 << 19, &mut local);
    left = shuffle_down_to::<3, T>(items, left, 1 << 14, &mut local);
    left = shuffle_down_to::<4, T>(items, left, 1 << 11, &mut local);
    left = shuffle_down_to::<5, T>(items, left, 1 << 9, &mut local);
    left = shuffle_down_to::<6, T>(items, left, 6, &mut local);
    shuffle_down_to::<1, T>(items, left, 1, &mut local);
    *rng = local;
}

#[inline]
fn shuffle_down_to<const K: usize, T>(items: &mut [T], mut left: usize, until: usize, rng: &mut Generator) -> usize {
    let mut most = product::<K>(left.max(K));
    while left > until {
        let picks = draw::<K>(left, &mut most, rng);
        for (t, pick) in picks.into_iter().enumerate() {
            items.swap(left - 1 - t, pick);
        }
        left -= K;
    }
    left
}

/// Draws `K` independent numbers, the `t`-th uniform in `[0, bound - t)`, from one word. `K <= bound`, and `most` is no
/// less than the product of the bounds.
#[inline]
fn draw<const K: usize>(bound: usize, most: &mut u64, rng: &mut Generator) -> [usize; K] {
    let mut picks = [0; K];
    loop {
        let mut word = rng.next_u64();
        for (t, pick) in picks.iter_mut().enumerate() {
            let wide = u128::from(word) * u128::from((bound - t) as u64);
            *pick = (wide >> 64) as usize;
            word = wide as u64;
        }
        // A word is redrawn only below the product; the last one computed is a bound on it that costs nothing.
        if word >= *most || !must_redraw(word, product::<K>(bound), most) {
            return picks;
        }
    }
}

fn product<const K: usize>(bound: usize) -> u64 {
    (0..K).fold(1, |product, t| product * (bound - t) as u64)
}

/// The exact rejection test; apart from the caller so that the division stays out of its loop.
#[cold]
fn must_redraw(word: u64, product: u64, most: &mut u64) -> bool {
    *most = product;
    word < product.wrapping_neg() % product
}

#[cfg(test)]
mod tests {
    use super::*;

    // The first outputs of xoshiro256plusplus.c for the state 1, 2, 3, 4 (also the vectors of the crate rand_xoshiro).
    #[test]
    fn generator_is_xoshiro256plusplus() {
        let mut seed = [0; 32];
        for (word, bytes) in (1_u64..).zip(seed.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let mut rng = Generator::from_seed(seed);
        let expected =
            [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386, 9_228_616_714_210_784_205];
        assert_eq!(expected.map(|_| rng.next_u64()), expected);
    }

    #[test]
    fn draws_stay_below_their_bounds() {
        let mut rng = Streams::of(0, 0).open(Stage::Shuffle, 0);
        for _ in 0..1_000 {
            let picks = draw::<3>(5, &mut { u64::MAX }, &mut rng);
            assert!(picks.iter().zip([5, 4, 3]).all(|(&pick, bound)| pick < bound));
        }
    }

    // 2^64 = 3 * 2^62 + 2^62, so of 2^64 words the 2^62 below that remainder are one too many.
    #[test]
    fn rejection_is_exact() {
        let product = 3 * (1_u64 << 62);
        assert!(must_redraw((1 << 62) - 1, product, &mut 0), "2^64 mod (3 * 2^62) = 2^62 words are redrawn");
        assert!(!must_redraw(1 << 62, product, &mut 0));
    }
}
