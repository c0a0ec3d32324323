//! Few padded lengths, for compiled models: which lengths batches are padded to.
use crate::boundaries::{self, MAX_OPTIMAL_BUCKETS};
use crate::cost::CostModel;
use crate::error::{Error, Result, check_range};
use crate::threads::Check;

/// More padded lengths than this are refused.
pub(crate) const MAX_PADDED_LENGTHS: usize = 1 << 15;

/// To which lengths batches are padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PaddedLengths {
    /// To this many, chosen to cost least, or to all that occur where those are fewer.
    Count(usize),
    /// To these, ascending; a longer sample is over-long.
    List(Vec<u64>),
}

impl PaddedLengths {
    pub(crate) fn validate(&self, pad_to_multiple_of: u64) -> Result<()> {
        match self {
            Self::Count(count) => check_range("padded_lengths", Some(*count as u64), 1, MAX_OPTIMAL_BUCKETS as u64),
            Self::List(lengths) => {
                let n_lengths = lengths.len();
                if !(1..=MAX_PADDED_LENGTHS).contains(&n_lengths) {
                    return Err(Error::NumberOfPaddedLengths { n_lengths, max_lengths: MAX_PADDED_LENGTHS });
                }
                for (i, &length) in lengths.iter().enumerate() {
                    if !(1..=i64::MAX as u64).contains(&length) {
                        return Err(Error::out_of_range(format!("padded_lengths[{i}]"), length, 1, i64::MAX));
                    }
                    if i > 0 && length <= lengths[i - 1] {
                        return Err(Error::UnorderedPaddedLengths { index: i, length, previous: lengths[i - 1] });
                    }
                }
                if pad_to_multiple_of == 1 {
                    return Ok(());
                }
                Err(Error::NoEffect { name: "pad_to_multiple_of", with: "padded_lengths as a list".to_owned() })
            }
        }
    }

    /// The ascending padded lengths. `histogram` holds the ascending distinct lengths of the admitted samples with the
    /// number of samples of each.
    pub(crate) fn choose(&self, histogram: &[(u64, u64)], model: &CostModel, check: Check<'_>) -> Result<Vec<u64>> {
        match self {
            Self::List(lengths) => Ok(lengths.clone()),
            // A batch pads to the end of the range of lengths that holds its longest sample, as a bucket does.
            Self::Count(count) => {
                let edges = boundaries::optimal(histogram, model, *count, check)?;
                Ok(edges[1..].iter().map(|&edge| model.padded_length(edge)).filter(|&length| length > 0).collect())
            }
        }
    }
}
