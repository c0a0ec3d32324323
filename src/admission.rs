//! Admission: one pass over the lengths, and what is refused by name before anything is planned.
use crate::cost::CostModel;
use crate::error::{Error, Result};

/// Data sets whose lengths all fit 16 bits are counted and looked up by length, others sorted and bisected.
pub(crate) const N_SHORT: usize = 1 << 16;

/// A length as it comes in, in as few bits as hold all of them.
pub(crate) trait Length: Copy + Into<u64> + Ord {
    /// The lowest 16 bits: the length itself where it is short. So no bound is checked in a table of all short ones.
    fn short(self) -> usize;
}

macro_rules! impl_length {
    ($($integer:ty),*) => {$(
        impl Length for $integer {
            #[inline]
            fn short(self) -> usize {
                usize::from(self as u16)
            }
        }
    )*};
}
impl_length!(u16, u32, u64);

/// What to do with a length of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Empty {
    /// Refuse the data set.
    Error,
    /// Leave the sample out of the plan and report it.
    Drop,
}

/// What to do with a sample that costs more than the token budget by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overlong {
    /// Refuse the data set.
    Error,
    /// Leave the sample out of the plan and report it.
    Drop,
    /// Give it a batch of its own.
    Keep,
}

/// What one pass over the lengths tells.
pub(crate) struct Census {
    pub shortest: u64,
    pub longest: u64,
    /// The longest sample that the budget holds.
    pub longest_admissible: u64,
    /// How many samples have each short length; `None` where some lengths are not short, or a count might not fit.
    pub counts: Option<Box<[u32; N_SHORT]>>,
}

impl Census {
    pub(crate) fn of<L: Length>(lengths: &[L], model: &CostModel) -> Self {
        // Folds over copies become vector instructions, `max` over references does not.
        let longest = lengths.first().map_or(0, |&first| lengths.iter().copied().fold(first, L::max).into());
        let longest_admissible = model.longest_admissible();
        if longest >= N_SHORT as u64 || u32::try_from(lengths.len()).is_err() {
            let shortest = lengths.iter().min().map_or(0, |&length| length.into());
            return Self { shortest, longest, longest_admissible, counts: None };
        }
        let mut counts = zeros();
        for length in lengths {
            counts[length.short()] += 1;
        }
        let shortest = counts.iter().position(|&n_samples| n_samples > 0).unwrap_or(0) as u64;
        Self { shortest, longest, longest_admissible, counts: Some(counts) }
    }

    fn admits(&self, length: u64) -> bool {
        (1..=self.longest_admissible).contains(&length)
    }

    /// Ascending distinct lengths of the admitted samples with the number of samples of each.
    pub(crate) fn histogram<L: Length>(&self, lengths: &[L]) -> Vec<(u64, u64)> {
        let mut histogram: Vec<(u64, u64)> = if let Some(counts) = &self.counts {
            let present = counts.iter().enumerate().filter(|&(_, &n_samples)| n_samples > 0);
            present.map(|(length, &n_samples)| (length as u64, u64::from(n_samples))).collect()
        } else {
            let mut sorted: Vec<L> = lengths.to_vec();
            sorted.sort_unstable();
            sorted.chunk_by(|a, b| a == b).map(|equal| (equal[0].into(), equal.len() as u64)).collect()
        };
        histogram.retain(|&(length, _)| self.admits(length));
        histogram
    }

    /// Tokens of all samples together.
    pub(crate) fn tokens<L: Length>(&self, lengths: &[L]) -> u128 {
        match &self.counts {
            // 2^32 samples of 16 bits at most.
            Some(counts) => {
                let present = (0_u64..).zip(&counts[..=self.longest as usize]);
                present.map(|(length, &n_samples)| length * u64::from(n_samples)).sum::<u64>().into()
            }
            None => lengths.iter().map(|&length| u128::from(length.into())).sum(),
        }
    }

    /// The shortest and the longest of the admitted samples; `None` where there is none.
    pub(crate) fn extremes<L: Length>(&self, lengths: &[L]) -> Option<(u64, u64)> {
        if self.admits(self.shortest) && self.admits(self.longest) {
            return Some((self.shortest, self.longest));
        }
        let admitted = || lengths.iter().map(|&length| length.into()).filter(|&length| self.admits(length));
        admitted().min().zip(admitted().max())
    }

    /// Refuses the first sample that the policies do not allow.
    pub(crate) fn check<L: Length>(
        &self,
        lengths: &[L],
        model: &CostModel,
        empty: Empty,
        overlong: Overlong,
    ) -> Result<()> {
        let &Self { shortest, longest, longest_admissible, .. } = self;
        let n_samples = lengths.len();
        if n_samples > 0 && shortest == 0 && empty == Empty::Error {
            let (index, _, n_empty) = first(lengths, |length| length == 0);
            return Err(Error::EmptySample { index, n_empty, n_samples });
        }
        if longest > longest_admissible && overlong == Overlong::Error {
            let (index, length, n_overlong) = first(lengths, |length| length > longest_admissible);
            let (cost, token_budget) = (model.sample_cost(length), model.token_budget);
            return Err(Error::OverLong { index, length, cost, token_budget, n_overlong, n_samples, longest });
        }
        let too_large = |length| i64::try_from(model.padded_length(length)).is_err();
        if overlong == Overlong::Keep && too_large(longest) {
            let (index, length, _) = first(lengths, too_large);
            return Err(Error::PaddedLengthTooLarge { index, length, multiple: model.pad_to_multiple_of });
        }
        Ok(())
    }

    /// Refuses the first admitted sample that no bucket holds.
    pub(crate) fn check_edges<L: Length>(&self, lengths: &[L], edges: &[u64]) -> Result<()> {
        let last = edges.len() - 1;
        let is_outside = |length| length <= edges[0] || length > edges[last];
        let Some((shortest, longest)) = self.extremes(lengths) else { return Ok(()) };
        if !is_outside(shortest) && !is_outside(longest) {
            return Ok(());
        }
        let (index, length, _) = first(lengths, |length| self.admits(length) && is_outside(length));
        let edge_index = if length <= edges[0] { 0 } else { last };
        Err(Error::OutsideBoundaries { index, length, edge_index, edge: edges[edge_index] })
    }
}

/// Position and length of the first sample that `matches`, and how many do; at least one must.
fn first<L: Length>(lengths: &[L], matches: impl Fn(u64) -> bool) -> (usize, u64, usize) {
    let mut found = lengths.iter().map(|&l| l.into()).enumerate().filter(|&(_, length)| matches(length));
    let (index, length) = found.next().expect("the caller has seen a length that matches");
    (index, length, 1 + found.count())
}

/// A table of all short lengths.
#[allow(clippy::unnecessary_box_returns, reason = "too large for the stack")]
pub(crate) fn zeros<T: Clone + Default>() -> Box<[T; N_SHORT]> {
    match vec![T::default(); N_SHORT].into_boxed_slice().try_into() {
        Ok(table) => table,
        Err(_) => unreachable!("the vector was made with N_SHORT elements"),
    }
}
