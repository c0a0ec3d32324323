//! Admission: one pass over the lengths, and what is refused by name before anything is planned.
use crate::cells;
use crate::cost::CostModel;
use crate::error::{Error, Result};
use crate::lengths::{Length, TABLE_SIZE, zeros};
use crate::memory;
use crate::threads::Check;

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

/// Refuses a mask of another number of samples.
pub(crate) fn check_mask(admitted: Option<&[bool]>, n_samples: usize) -> Result<()> {
    match admitted.map(<[bool]>::len) {
        Some(n_admitted) if n_admitted != n_samples => Err(Error::MaskSize { n_admitted, n_samples }),
        _ => Ok(()),
    }
}

/// Samples that the caller admits: all, or those that a mask selects.
pub(crate) struct Selection {
    /// `[n_selected]`, sample indices, ascending; `None`: all.
    pub indices: Option<Vec<usize>>,
    /// How many samples there are, selected or not.
    pub n_samples: usize,
}

impl Selection {
    /// The index in the data set of selected sample `i`.
    #[inline]
    pub(crate) fn index(&self, i: usize) -> usize {
        self.indices.as_ref().map_or(i, |indices| indices[i])
    }
}

/// The lengths of the selected samples, and what one pass over them tells.
pub(crate) struct Census<'a, L> {
    pub lengths: &'a [L],
    pub selection: &'a Selection,
    pub shortest: u64,
    pub longest: u64,
    /// The longest sample that the budget holds.
    pub longest_admissible: u64,
    /// How many samples have each length; `None` where some exceed the table, or a count might not fit.
    pub counts: Option<Box<[u32; TABLE_SIZE]>>,
}

impl<'a, L: Length> Census<'a, L> {
    pub(crate) fn of(lengths: &'a [L], selection: &'a Selection, model: &CostModel) -> Result<Self> {
        // Folds over copies become vector instructions, `max` over references does not.
        let longest = lengths.first().map_or(0, |&first| lengths.iter().copied().fold(first, L::max).into());
        let longest_admissible = model.longest_admissible();
        if longest >= TABLE_SIZE as u64 || u32::try_from(lengths.len()).is_err() {
            let shortest = lengths.iter().min().map_or(0, |&length| length.into());
            return Ok(Self { lengths, selection, shortest, longest, longest_admissible, counts: None });
        }
        let mut counts = zeros()?;
        for length in lengths {
            counts[length.in_table()] += 1;
        }
        let shortest = counts.iter().position(|&n_samples| n_samples > 0).unwrap_or(0) as u64;
        Ok(Self { lengths, selection, shortest, longest, longest_admissible, counts: Some(counts) })
    }

    fn admits(&self, length: u64) -> bool {
        (1..=self.longest_admissible).contains(&length)
    }

    /// Ascending distinct lengths of the admitted samples with the number of samples of each.
    pub(crate) fn histogram(&self, check: Check<'_>) -> Result<Vec<(u64, u64)>> {
        let mut histogram: Vec<(u64, u64)> = if let Some(counts) = &self.counts {
            let present = counts.iter().enumerate().filter(|&(_, &n_samples)| n_samples > 0);
            memory::collect(present.map(|(length, &n_samples)| (length as u64, u64::from(n_samples))))?
        } else {
            let &Self { shortest, longest, .. } = self;
            let key = |length: L| length.into() - shortest;
            let sorted = cells::sort(self.lengths.iter().copied(), key, longest - shortest, check)?;
            memory::collect(sorted.chunk_by(|a, b| a == b).map(|equal| (equal[0].into(), equal.len() as u64)))?
        };
        histogram.retain(|&(length, _)| self.admits(length));
        Ok(histogram)
    }

    /// Tokens of all selected samples together.
    pub(crate) fn tokens(&self) -> u128 {
        match &self.counts {
            // 2^32 samples of 16 bits at most.
            Some(counts) => {
                let present = (0_u64..).zip(&counts[..=self.longest as usize]);
                present.map(|(length, &n_samples)| length * u64::from(n_samples)).sum::<u64>().into()
            }
            None => self.lengths.iter().map(|&length| u128::from(length.into())).sum(),
        }
    }

    /// The shortest and the longest of the admitted samples; `None` where there is none.
    pub(crate) fn extremes(&self) -> Option<(u64, u64)> {
        if self.admits(self.shortest) && self.admits(self.longest) {
            return Some((self.shortest, self.longest));
        }
        let admitted = || self.lengths.iter().map(|&length| length.into()).filter(|&length| self.admits(length));
        admitted().min().zip(admitted().max())
    }

    /// Refuses the first sample that the policies do not allow.
    pub(crate) fn check(&self, model: &CostModel, empty: Empty, overlong: Overlong) -> Result<()> {
        let &Self { shortest, longest, longest_admissible, .. } = self;
        let n_samples = self.lengths.len();
        if n_samples > 0 && shortest == 0 && empty == Empty::Error {
            let (index, _, n_empty) = self.first(|length| length == 0);
            return Err(Error::EmptySample { index, n_empty, n_samples });
        }
        if longest > longest_admissible && overlong == Overlong::Error {
            let (index, length, n_overlong) = self.first(|length| length > longest_admissible);
            return Err(match model.padded_lengths.last() {
                Some(&last) if length > last => {
                    let (place, name) = (format!("lengths[{index}]"), "padded_lengths".to_owned());
                    let last_index = model.padded_lengths.len() - 1;
                    Error::BeyondPaddedLengths { place, length, name, last_index, last, n_overlong, n_samples, longest }
                }
                _ => {
                    let (cost, token_budget) = (model.sample_cost(length), model.token_budget);
                    Error::OverLong { index, length, cost, token_budget, n_overlong, n_samples, longest }
                }
            });
        }
        let too_large = |length| i64::try_from(model.padded_length(length)).is_err();
        if overlong == Overlong::Keep && too_large(longest) {
            let (index, length, _) = self.first(too_large);
            return Err(Error::PaddedLengthTooLarge { index, length, multiple: model.pad_to_multiple_of });
        }
        Ok(())
    }

    /// Refuses admitted samples that no bucket holds: the longest of them, as an edge that holds it holds all. `combined`:
    /// whether these are the combined lengths of several fields.
    pub(crate) fn check_edges(&self, edges: &[u64], combined: bool) -> Result<()> {
        let last = edges.len() - 1;
        let Some((shortest, longest)) = self.extremes() else { return Ok(()) };
        let (edge_index, extreme, is_outside): (_, _, &dyn Fn(u64) -> bool) = if longest > edges[last] {
            (last, longest, &|length| length > edges[last])
        } else if shortest <= edges[0] {
            (0, shortest, &|length| length <= edges[0])
        } else {
            return Ok(());
        };
        let (_, _, n_outside) = self.first(|length| self.admits(length) && is_outside(length));
        let (index, length, _) = self.first(|length| length == extreme);
        let (edge, n_samples) = (edges[edge_index], self.lengths.len());
        Err(Error::OutsideBoundaries { index, length, edge_index, edge, combined, n_outside, n_samples })
    }

    /// Index and length of the first sample that `matches`, and how many do; at least one must.
    fn first(&self, matches: impl Fn(u64) -> bool) -> (usize, u64, usize) {
        let mut found = self.lengths.iter().map(|&l| l.into()).enumerate().filter(|&(_, length)| matches(length));
        let (i, length) = found.next().expect("the caller has seen a length that matches");
        (self.selection.index(i), length, 1 + found.count())
    }
}
