//! Whether every batch can have its least size.
use crate::by_length::Position;
use crate::error::{Error, Result};
use crate::memory;
use crate::planner::{Planner, Samples, with_samples};
use crate::record::{Record, with_records};

impl Planner {
    /// Refuses a least batch size that the longest samples or a small bucket do not allow. Where the longest one fits
    /// `2 * min_batch_size - 1` times, the last batch of a bucket can be evened out with the one before it.
    pub(crate) fn check_min_batch_size(&self) -> Result<()> {
        let min_batch_size = self.model.min_batch_size;
        if min_batch_size <= 1 || self.n_samples() == 0 {
            return Ok(());
        }
        let refused = |reason| Err(Error::MinBatchSize { min_batch_size, reason });
        let (sizes, longest): (Vec<usize>, u64) = with_samples!(&self.samples, (records, buckets) => {
            let row = |record| Record::index(record, buckets.index_bits);
            let of_bucket = |(i, ends): (usize, &[usize])| {
                let codec = buckets.codec(i as i32);
                let of_bucket = self.measure(&records[ends[0]..ends[1]], row, |record| codec.length(record));
                (ends[1] - ends[0], of_bucket.0)
            };
            let buckets: Vec<(usize, u64)> = buckets.starts.windows(2).enumerate().map(of_bucket).collect();
            let longest = buckets.iter().map(|&(_, longest)| longest).max();
            (buckets.into_iter().map(|(size, _)| size).collect(), longest.unwrap_or(0))
        }, samples => {
            let positions = memory::collect((0..samples.n_admitted()).map(Position::new))?;
            let (longest, ..) = self.measure(&positions, Position::get, |position| samples.length(position));
            (vec![samples.n_admitted()], longest)
        });
        let (cap, needed) = (self.model.cap(longest), 2 * min_batch_size - 1);
        if (cap as u64) < needed {
            return refused(format!(
                "a batch holds {cap} of the longest samples, fewer than 2 * min_batch_size - 1 = {needed}; lower it, or \
                 raise token_budget or max_batch_size"
            ));
        }
        match sizes.into_iter().find(|&n_samples| n_samples > 0 && (n_samples as u64) < min_batch_size) {
            Some(n_samples) => refused(format!("a bucket has {n_samples} samples; lower it, or set fewer boundaries")),
            None => Ok(()),
        }
    }
}
