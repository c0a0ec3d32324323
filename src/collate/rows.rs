//! The rows of a batch: where each lies in the flat buffers, and how wide they are padded.
use super::CollateError;

/// Where the real tokens of a row stand, which end is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Tokens first, then padding.
    Right,
    /// Padding first, then tokens.
    Left,
}

/// The checked rows of one batch and the rectangle they are padded to.
#[derive(Clone, Debug)]
pub struct Rows {
    spans: Vec<Span>,
    padded_length: usize,
    side: Side,
}

/// Tokens `start..end` of every field belong to `sample`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) sample: i64,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Rows {
    /// Checks the rows of `samples`, padded to the longest, rounded up to a multiple of `pad_to_multiple_of`.
    ///
    /// # Errors
    /// As [`Rows::padded_to`].
    pub fn new(offsets: &[i64], samples: &[i64], side: Side, pad_to_multiple_of: usize) -> Result<Self, CollateError> {
        Self::padded_to(offsets, samples, side, &[], pad_to_multiple_of)
    }

    /// Checks the rows of `samples`, padded to the first of the ascending `padded_lengths` that holds the longest; where
    /// there is none, to the longest, rounded up to a multiple of `pad_to_multiple_of`.
    ///
    /// # Errors
    /// No samples, a sample outside `0..offsets.len() - 1`, offsets that fall, a multiple of zero, a rectangle beyond
    /// `usize` or beyond the memory.
    pub fn padded_to(
        offsets: &[i64],
        samples: &[i64],
        side: Side,
        padded_lengths: &[usize],
        pad_to_multiple_of: usize,
    ) -> Result<Self, CollateError> {
        if samples.is_empty() {
            return Err(CollateError::EmptyBatch);
        }
        if pad_to_multiple_of == 0 {
            return Err(CollateError::Multiple);
        }
        let n_samples = offsets.len().saturating_sub(1);
        let mut longest = 0;
        let mut spans = Vec::new();
        spans
            .try_reserve_exact(samples.len())
            .map_err(|_| CollateError::Size { n_samples: samples.len(), padded_length: 0 })?;
        for (position, &sample) in samples.iter().enumerate() {
            let index = usize::try_from(sample)
                .ok()
                .filter(|&index| index < n_samples)
                .ok_or(CollateError::Sample { position, sample, n_samples })?;
            let (first, last) = (offsets[index], offsets[index + 1]);
            let (Ok(start), Ok(end)) = (usize::try_from(first), usize::try_from(last)) else {
                return Err(CollateError::Offsets { sample: index, start: first, end: last });
            };
            if start > end {
                return Err(CollateError::Offsets { sample: index, start: first, end: last });
            }
            longest = longest.max(end - start);
            spans.push(Span { sample, start, end });
        }
        let too_large = CollateError::Size { n_samples: spans.len(), padded_length: longest };
        let padded_length = match padded_lengths.get(padded_lengths.partition_point(|&length| length < longest)) {
            Some(&length) => length,
            None => longest.checked_next_multiple_of(pad_to_multiple_of).ok_or(too_large.clone())?,
        };
        padded_length.checked_mul(spans.len()).ok_or(too_large)?;
        Ok(Self { spans, padded_length, side })
    }

    /// Samples in the batch, `B`.
    #[must_use]
    pub fn n_samples(&self) -> usize {
        self.spans.len()
    }

    /// Tokens in every padded row, `L`.
    #[must_use]
    pub fn padded_length(&self) -> usize {
        self.padded_length
    }

    /// Real tokens of each row `[B]`.
    #[must_use]
    pub fn lengths(&self) -> Vec<i64> {
        // The ends came from i64 offsets, so their differences fit.
        self.spans.iter().map(|span| i64::try_from(span.end - span.start).unwrap_or(i64::MAX)).collect()
    }

    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub(super) fn side(&self) -> Side {
        self.side
    }

    /// Values in a field of the batch, `B * L * per_token`.
    pub(super) fn n_values(&self, per_token: usize) -> Result<usize, CollateError> {
        (self.n_samples() * self.padded_length).checked_mul(per_token).ok_or_else(|| self.too_large())
    }

    pub(super) fn too_large(&self) -> CollateError {
        CollateError::Size { n_samples: self.n_samples(), padded_length: self.padded_length }
    }
}
