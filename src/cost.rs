//! What a batch costs: the token budget and everything that counts against it.

/// The cost model of a batch. A batch of `n` samples costs `n * sample_cost(longest)`, in padded tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CostModel {
    /// What a batch of two or more may cost at most, padded tokens.
    pub token_budget: u64,
    /// How many samples a batch may hold at most.
    pub max_batch_size: Option<u64>,
    /// How many samples a batch must hold at least.
    pub min_batch_size: u64,
    /// Lengths are rounded up to a multiple of this many tokens.
    pub pad_to_multiple_of: u64,
    /// Lengths are rounded up to the next of these, ascending; empty: to a multiple alone. A longer sample is over-long.
    pub padded_lengths: Vec<u64>,
    /// Fixed cost of every sample, tokens.
    pub per_sample: u64,
    /// The length at which the attention term costs as much as the tokens themselves.
    pub quadratic_length: Option<u64>,
}

impl CostModel {
    /// Length of a row that holds `length` tokens: the next of `padded_lengths`; where there is none, the next multiple
    /// of `pad_to_multiple_of`, saturating at 2^64 - 1.
    #[must_use]
    pub fn padded_length(&self, length: u64) -> u64 {
        let next = self.padded_lengths.partition_point(|&padded| padded < length);
        if let Some(&padded) = self.padded_lengths.get(next) {
            return padded;
        }
        length.checked_next_multiple_of(self.pad_to_multiple_of).unwrap_or(u64::MAX)
    }

    /// Cost of one sample in a batch whose longest has `longest` tokens, saturating at 2^64 - 1. It never falls as
    /// `longest` grows; the attention term is rounded up to a whole token, so a plan is the same on every machine.
    #[must_use]
    pub fn sample_cost(&self, longest: u64) -> u64 {
        let padded = self.padded_length(longest);
        let attention = self.quadratic_length.map_or(0, |quadratic_length| {
            let cost = (u128::from(padded) * u128::from(padded)).div_ceil(u128::from(quadratic_length));
            u64::try_from(cost).unwrap_or(u64::MAX)
        });
        self.per_sample.saturating_add(padded).saturating_add(attention)
    }

    /// Cost of a batch of `n_samples` whose longest has `longest` tokens; see [`CostModel::sample_cost`].
    #[must_use]
    pub fn batch_cost(&self, n_samples: usize, longest: u64) -> u128 {
        n_samples as u128 * u128::from(self.sample_cost(longest))
    }

    /// How many samples of `longest` tokens the budget holds; 0 for an over-long sample. `longest >= 1`.
    #[must_use]
    pub fn budget_cap(&self, longest: u64) -> u64 {
        self.token_budget / self.sample_cost(longest)
    }

    /// How many samples a batch may hold whose longest has `longest` tokens; 0 for an over-long sample. `longest >= 1`.
    #[must_use]
    pub fn cap(&self, longest: u64) -> usize {
        let cap = self.budget_cap(longest).min(self.max_batch_size.unwrap_or(u64::MAX));
        usize::try_from(cap).unwrap_or(usize::MAX)
    }

    /// The longest sample that the budget holds, tokens; 0 where it holds none.
    #[must_use]
    pub fn longest_admissible(&self) -> u64 {
        // sample_cost(length) >= length, so the answer lies in 0..=token_budget; it is found by bisection, as the
        // cost never falls with the length.
        let last = self.padded_lengths.last().map_or(self.token_budget, |&last| last.min(self.token_budget));
        let (mut fits, mut limit) = (0, last);
        while fits < limit {
            let middle = fits + (limit - fits).div_ceil(2);
            if self.sample_cost(middle) <= self.token_budget {
                fits = middle;
            } else {
                limit = middle - 1;
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> CostModel {
        CostModel {
            token_budget: 100,
            max_batch_size: None,
            min_batch_size: 1,
            pad_to_multiple_of: 8,
            padded_lengths: Vec::new(),
            per_sample: 2,
            quadratic_length: Some(64),
        }
    }

    #[test]
    fn sample_cost_rounds_up_twice() {
        // 9 tokens: 16 padded, 16^2 / 64 = 4; 17 tokens: 24 padded, 24^2 / 64 = 9.
        assert_eq!([9, 16, 17].map(|length| model().sample_cost(length)), [22, 22, 35]);
    }

    #[test]
    fn a_list_of_padded_lengths_comes_first() {
        let model = CostModel { padded_lengths: vec![10, 30], quadratic_length: None, ..model() };
        assert_eq!([1, 10, 11, 30, 31].map(|length| model.padded_length(length)), [10, 10, 30, 30, 32]);
        assert_eq!(model.longest_admissible(), 30);
    }

    #[test]
    fn longest_admissible_is_the_last_length_that_fits() {
        for token_budget in 1..300 {
            let model = CostModel { token_budget, ..model() };
            let longest = model.longest_admissible();
            assert!(longest == 0 || model.sample_cost(longest) <= token_budget);
            assert!(model.sample_cost(longest + 1) > token_budget);
        }
    }

    #[test]
    fn nothing_wraps_around() {
        let model = CostModel { token_budget: u64::MAX - 1, quadratic_length: Some(1), ..model() };
        assert_eq!(model.sample_cost(u64::MAX), u64::MAX);
        assert_eq!(model.cap(u64::MAX), 0);
        assert!(model.longest_admissible() < 1 << 32);
    }
}
