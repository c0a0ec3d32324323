//! Few padded lengths, for compiled models: which lengths batches are padded to.
use crate::boundaries::{self, MAX_OPTIMAL_BUCKETS};
use crate::cost::CostModel;
use crate::error::{Error, Result};
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
    /// `name`: the option, as the caller would write it.
    pub(crate) fn validate(&self, name: &str, pad_to_multiple_of: u64) -> Result<()> {
        match self {
            Self::Count(count) if (1..=MAX_OPTIMAL_BUCKETS).contains(count) => Ok(()),
            Self::Count(count) => Err(Error::out_of_range(name, count, 1, MAX_OPTIMAL_BUCKETS)),
            Self::List(lengths) => {
                let n_lengths = lengths.len();
                if !(1..=MAX_PADDED_LENGTHS).contains(&n_lengths) {
                    let (name, max_lengths) = (name.to_owned(), MAX_PADDED_LENGTHS);
                    return Err(Error::NumberOfPaddedLengths { name, n_lengths, max_lengths });
                }
                for (i, &length) in lengths.iter().enumerate() {
                    if !(1..=i64::MAX as u64).contains(&length) {
                        return Err(Error::out_of_range(format!("{name}[{i}]"), length, 1, i64::MAX));
                    }
                    if i > 0 && length <= lengths[i - 1] {
                        let (name, previous) = (name.to_owned(), lengths[i - 1]);
                        return Err(Error::UnorderedPaddedLengths { name, index: i, length, previous });
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
