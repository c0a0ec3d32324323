//! Padding: the rows of flat buffers, side by side in one rectangle.
//!
//! A field of a data set is one flat buffer; sample `s` owns tokens `offsets[s]..offsets[s + 1]` of it. [`Layout`]
//! checks the rows of a batch once, and every field of the batch is then written from it without further checks of the
//! caller's numbers.
use std::fmt;

/// Where the real tokens of a row stand, which end is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Tokens first, then padding.
    Right,
    /// Padding first, then tokens.
    Left,
}

/// Why a batch cannot be padded. The text is the message that a Python caller sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the numbers of the message, under its names")]
pub enum CollateError {
    /// No samples.
    EmptyBatch,
    /// A sample that the data set does not have.
    Sample { position: usize, sample: i64, n_samples: usize },
    /// Offsets that fall, or that start below zero.
    Offsets { sample: usize, start: i64, end: i64 },
    /// A row that ends behind its field's last value.
    Values { field: String, sample: i64, end: usize, n_tokens: usize },
    /// A multiple of zero.
    Multiple,
    /// A rectangle that no memory can hold.
    Size { n_samples: usize, padded_length: usize },
    /// A value outside the output's range.
    Range { field: String, sample: i64, position: usize, value: String, dtype: &'static str },
    /// A fill value outside the output's range.
    Fill { field: String, fill: i64, dtype: &'static str },
    /// A dtype that the field's values cannot become.
    Dtype { field: String, dtype: &'static str },
    /// An output buffer shorter than the batch.
    Output { field: String, held: usize, n_samples: usize, padded_length: usize, per_token: usize },
}

impl fmt::Display for CollateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyBatch => f.write_str("samples is empty; a batch needs at least one sample"),
            Self::Sample { position, sample, n_samples } => {
                write!(f, "samples[{position}] = {sample} is outside 0 <= sample < n_samples = {n_samples}")
            }
            Self::Offsets { sample, start, end } => write!(
                f,
                "offsets[{sample}] = {start} and offsets[{}] = {end} are not 0 <= start <= end; offsets count tokens from 0 and never fall",
                sample + 1
            ),
            Self::Values { field, sample, end, n_tokens } => write!(
                f,
                "{field} holds {n_tokens} tokens, but sample {sample} ends at token {end}; offsets and values belong to different data"
            ),
            Self::Multiple => f.write_str("pad_to_multiple_of = 0 is not positive; use 1 for no rounding"),
            Self::Size { n_samples, padded_length } => write!(
                f,
                "a batch of {n_samples} samples padded to {padded_length} tokens does not fit in memory; lower token_budget or pad_to_multiple_of"
            ),
            Self::Range { field, sample, position, value, dtype } => {
                write!(
                    f,
                    "{field} of sample {sample} has value {value} at token {position}, outside {dtype}; ask for a wider dtype"
                )
            }
            Self::Fill { field, fill, dtype } => {
                write!(f, "fill[\"{field}\"] = {fill} is outside {dtype}; choose another fill or a wider dtype")
            }
            Self::Dtype { field, dtype } => write!(f, "{field} does not pad to {dtype}; ask for i32 or i64"),
            Self::Output { field, held, n_samples, padded_length, per_token } => {
                write!(
                    f,
                    "out[\"{field}\"] holds {held} values, too few for a batch of shape ({n_samples}, {padded_length}"
                )?;
                if *per_token != 1 {
                    write!(f, ", {per_token}")?;
                }
                write!(f, "); make it at least {} long", n_samples * padded_length * per_token)
            }
        }
    }
}

impl std::error::Error for CollateError {}

/// The checked rows of one batch and the rectangle they are padded to.
#[derive(Clone, Debug)]
pub struct Layout {
    rows: Vec<Row>,
    padded_length: usize,
    side: Side,
}

/// Tokens `start..end` of every field belong to `sample`.
#[derive(Clone, Copy, Debug)]
struct Row {
    sample: i64,
    start: usize,
    end: usize,
}

impl Layout {
    /// The rows of `samples`, padded to the longest, rounded up to a multiple of `pad_to_multiple_of`.
    ///
    /// # Errors
    /// No samples, a sample outside `0..offsets.len() - 1`, offsets that fall, a multiple of zero, a rectangle beyond
    /// `usize`.
    pub fn new(offsets: &[i64], samples: &[i64], side: Side, pad_to_multiple_of: usize) -> Result<Self, CollateError> {
        if samples.is_empty() {
            return Err(CollateError::EmptyBatch);
        }
        if pad_to_multiple_of == 0 {
            return Err(CollateError::Multiple);
        }
        let n_samples = offsets.len().saturating_sub(1);
        let mut longest = 0;
        let mut rows = Vec::with_capacity(samples.len());
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
            rows.push(Row { sample, start, end });
        }
        let too_large = CollateError::Size { n_samples: rows.len(), padded_length: longest };
        let padded_length = longest.checked_next_multiple_of(pad_to_multiple_of).ok_or(too_large.clone())?;
        padded_length.checked_mul(rows.len()).ok_or(too_large)?;
        Ok(Self { rows, padded_length, side })
    }

    /// Samples in the batch, `B`.
    #[must_use]
    pub fn n_samples(&self) -> usize {
        self.rows.len()
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
        self.rows.iter().map(|row| i64::try_from(row.end - row.start).unwrap_or(i64::MAX)).collect()
    }

    /// Values in a field of the batch, `B * L * per_token`.
    fn n_values(&self, per_token: usize) -> Result<usize, CollateError> {
        let too_large = CollateError::Size { n_samples: self.n_samples(), padded_length: self.padded_length };
        (self.n_samples() * self.padded_length).checked_mul(per_token).ok_or(too_large)
    }

    fn write<D: Copy, K: Sink<D>>(&self, per_token: usize, fill: D, sink: &mut K, real: impl Fn(Row, &mut K)) {
        for &row in &self.rows {
            let n_fill = (self.padded_length - (row.end - row.start)) * per_token;
            if self.side == Side::Left {
                sink.fill(fill, n_fill);
            }
            real(row, sink);
            if self.side == Side::Right {
                sink.fill(fill, n_fill);
            }
        }
    }
}

/// Where the values of a batch come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a, S> {
    /// A flat buffer with `per_token` values for each token.
    Values {
        /// Token `t` is `values[t * per_token..(t + 1) * per_token]`.
        values: &'a [S],
        /// 1, or the width of a feature vector.
        per_token: usize,
    },
    /// One for each real token: the attention mask. It is known from the lengths and never read off the values.
    Mask,
    /// 0, 1, 2, ... along the real tokens of each row.
    Positions,
}

/// One field of a batch: what is copied, and what the rest is filled with.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a, S> {
    /// The name that errors use.
    pub name: &'a str,
    /// What is copied.
    pub source: Source<'a, S>,
    /// The value of padding.
    pub fill: i64,
}

impl<S: Token> Field<'_, S> {
    /// A fresh `[B, L]` or `[B, L, per_token]` buffer, written once.
    ///
    /// # Errors
    /// A row that ends behind the values, a value or fill outside `D`, a batch that does not fit in memory.
    pub fn pad<D: PadFrom<S>>(&self, layout: &Layout) -> Result<Vec<D>, CollateError> {
        let (fill, per_token) = self.check::<D>(layout)?;
        let n_values = layout.n_values(per_token)?;
        let mut out = Vec::new();
        out.try_reserve_exact(n_values)
            .map_err(|_| CollateError::Size { n_samples: layout.n_samples(), padded_length: layout.padded_length })?;
        self.write(layout, fill, &mut out);
        Ok(out)
    }

    /// The same into the first `B * L * per_token` values of `out`; the rest of `out` keeps its values.
    ///
    /// # Errors
    /// As [`Field::pad`], and an `out` that is too short. Nothing is written then.
    pub fn pad_into<D: PadFrom<S>>(&self, layout: &Layout, out: &mut [D]) -> Result<(), CollateError> {
        let (fill, per_token) = self.check::<D>(layout)?;
        let n_values = layout.n_values(per_token)?;
        let held = out.len();
        let out = out.get_mut(..n_values).ok_or_else(|| CollateError::Output {
            field: self.name.to_owned(),
            held,
            n_samples: layout.n_samples(),
            padded_length: layout.padded_length,
            per_token,
        })?;
        self.write(layout, fill, &mut Cursor(out));
        Ok(())
    }

    /// The fill as a `D` and the values per token, once every value that will be copied is known to exist and to fit.
    fn check<D: PadFrom<S>>(&self, layout: &Layout) -> Result<(D, usize), CollateError> {
        let fill = D::try_from(self.fill).map_err(|_| CollateError::Fill {
            field: self.name.to_owned(),
            fill: self.fill,
            dtype: D::NAME,
        })?;
        let Source::Values { values, per_token } = self.source else { return Ok((fill, 1)) };
        // `per_token` 0 is a feature of width 0: such a field has no values and any number of tokens.
        let n_tokens = values.len().checked_div(per_token).unwrap_or(usize::MAX);
        for &Row { sample, start, end } in &layout.rows {
            if end > n_tokens {
                return Err(CollateError::Values { field: self.name.to_owned(), sample, end, n_tokens });
            }
            // Compiles to nothing where every `S` fits.
            let row = &values[start * per_token..end * per_token];
            if !row.iter().fold(true, |fits, &value| fits & D::fits(value)) {
                let bad = row.iter().position(|&value| !D::fits(value)).unwrap_or(0);
                return Err(CollateError::Range {
                    field: self.name.to_owned(),
                    sample,
                    position: bad / per_token,
                    value: row[bad].to_string(),
                    dtype: D::NAME,
                });
            }
        }
        Ok((fill, per_token))
    }

    fn write<D: PadFrom<S>>(&self, layout: &Layout, fill: D, sink: &mut impl Sink<D>) {
        match self.source {
            Source::Values { values, per_token } => layout.write(per_token, fill, sink, |row, sink| {
                for block in values[row.start * per_token..row.end * per_token].chunks(BLOCK_BYTES / size_of::<S>()) {
                    fetch(block);
                    sink.put(block.iter().map(|&value| D::pad_from(value)), block.len());
                }
            }),
            Source::Mask => layout.write(1, fill, sink, |row, sink| sink.fill(D::ONE, row.end - row.start)),
            Source::Positions => layout.write(1, fill, sink, |row, sink| {
                sink.put((0..row.end - row.start).map(D::position), row.end - row.start);
            }),
        }
    }
}

const BLOCK_BYTES: usize = 16 << 10;
const CACHE_LINE_BYTES: usize = 64;

/// Has all cache lines of `block` on their way before the first is needed. Rows lie scattered in memory, and the
/// processor alone fetches each from its start, line by line: 80 us for a batch of 131,072 tokens in 54 cold rows, 50
/// us with this (blocks of 2, 8 and 32 KiB: 75, 51, 52).
fn fetch<S: Copy>(block: &[S]) {
    for &value in block.iter().step_by(CACHE_LINE_BYTES / size_of::<S>()) {
        std::hint::black_box(value);
    }
}

/// Takes a row's values in order: a growing vector or a buffer that is overwritten, one loop for both.
trait Sink<D> {
    fn put(&mut self, values: impl Iterator<Item = D>, n_values: usize);
    fn fill(&mut self, value: D, n_values: usize);
}

impl<D: Copy> Sink<D> for Vec<D> {
    fn put(&mut self, values: impl Iterator<Item = D>, _: usize) {
        self.extend(values);
    }

    fn fill(&mut self, value: D, n_values: usize) {
        self.resize(self.len() + n_values, value);
    }
}

struct Cursor<'a, D>(&'a mut [D]);

impl<D: Copy> Cursor<'_, D> {
    fn take(&mut self, n_values: usize) -> &mut [D] {
        let (head, tail) = std::mem::take(&mut self.0).split_at_mut(n_values);
        self.0 = tail;
        head
    }
}

impl<D: Copy> Sink<D> for Cursor<'_, D> {
    fn put(&mut self, values: impl Iterator<Item = D>, n_values: usize) {
        for (slot, value) in self.take(n_values).iter_mut().zip(values) {
            *slot = value;
        }
    }

    fn fill(&mut self, value: D, n_values: usize) {
        self.take(n_values).fill(value);
    }
}

/// A type that flat buffers are made of.
pub trait Token: Copy + fmt::Display + Send + Sync {}

/// A type that padded batches are made of, and how a token of type `S` becomes one.
pub trait PadFrom<S>: Copy + Send + Sync + TryFrom<i64> {
    /// The name that `NumPy` and torch give it.
    const NAME: &'static str;
    /// The mask's value for a real token.
    const ONE: Self;
    /// Whether `token` keeps its value.
    fn fits(token: S) -> bool;
    /// The token, widened.
    fn pad_from(token: S) -> Self;
    /// A token's place in its row.
    fn position(index: usize) -> Self;
}

macro_rules! pad_from {
    ($($to:ident $name:literal <- $($from:ident)*;)*) => {$($(
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
        #[allow(clippy::cast_lossless)]
        #[allow(irrefutable_let_patterns, clippy::unnecessary_fallible_conversions, clippy::useless_conversion)]
        impl PadFrom<$from> for $to {
            const NAME: &'static str = $name;
            const ONE: Self = 1;
            #[inline]
            fn fits(token: $from) -> bool {
                $to::try_from(token).is_ok()
            }
            #[inline]
            fn pad_from(token: $from) -> Self {
                token as $to
            }
            #[inline]
            fn position(index: usize) -> Self {
                index as $to
            }
        }
    )*)*};
}

macro_rules! tokens {
    ($($token:ident)*) => {$(impl Token for $token {})*};
}

tokens! { u8 i8 u16 i16 u32 i32 u64 i64 }

// u8 and i16 outputs are copies only: bool, 8-bit and half-precision values travel as integers of their size, as do
// floats in i32 and i64.
pad_from! {
    u8 "uint8" <- u8;
    i16 "int16" <- i16;
    i32 "int32" <- u8 i8 u16 i16 u32 i32 u64 i64;
    i64 "int64" <- u8 i8 u16 i16 u32 i32 u64 i64;
}
