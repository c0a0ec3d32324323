//! The rows of a field side by side in one rectangle.
use super::{CastFrom, CollateError, Rows, Side, Token, rows::Span};
use crate::memory;

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
    /// A row that ends after the values, a value or fill outside `D`, a batch that does not fit in memory.
    pub fn pad<D: CastFrom<S>>(&self, rows: &Rows) -> Result<Vec<D>, CollateError> {
        let (fill, per_token) = self.check::<D>(rows)?;
        let n_values = rows.n_values(per_token)?;
        let mut out = memory::with_capacity(n_values).map_err(|_| rows.too_large())?;
        self.write(rows, fill, &mut out);
        Ok(out)
    }

    /// The same into the first `B * L * per_token` values of `out`; the rest of `out` keeps its values.
    ///
    /// # Errors
    /// As [`Field::pad`], and an `out` that is too short. Nothing is written then.
    pub fn pad_into<D: CastFrom<S>>(&self, rows: &Rows, out: &mut [D]) -> Result<(), CollateError> {
        let (fill, per_token) = self.check::<D>(rows)?;
        let n_values = rows.n_values(per_token)?;
        let held = out.len();
        let out = out.get_mut(..n_values).ok_or_else(|| CollateError::Output {
            field: self.name.to_owned(),
            held,
            n_samples: rows.n_samples(),
            padded_length: rows.padded_length(),
            per_token,
        })?;
        self.write(rows, fill, &mut Cursor(out));
        Ok(())
    }

    /// The fill as a `D` and the values per token, once every value that will be copied is known to exist and to fit.
    fn check<D: CastFrom<S>>(&self, rows: &Rows) -> Result<(D, usize), CollateError> {
        let fill = D::try_from(self.fill).map_err(|_| CollateError::Fill {
            field: self.name.to_owned(),
            fill: self.fill,
            dtype: D::NAME,
        })?;
        let Source::Values { values, per_token } = self.source else { return Ok((fill, 1)) };
        // `per_token` 0 is a feature of width 0: such a field has no values and any number of tokens.
        let n_tokens = values.len().checked_div(per_token).unwrap_or(usize::MAX);
        for &Span { sample, start, end } in rows.spans() {
            if end > n_tokens {
                return Err(CollateError::Values { field: self.name.to_owned(), sample, end, n_tokens });
            }
            // Compiles to nothing where every `S` fits.
            let tokens = &values[start * per_token..end * per_token];
            if !tokens.iter().fold(true, |fits, &value| fits & D::fits(value)) {
                let bad = tokens.iter().position(|&value| !D::fits(value)).unwrap_or(0);
                return Err(CollateError::Range {
                    field: self.name.to_owned(),
                    sample,
                    position: bad / per_token,
                    value: tokens[bad].to_string(),
                    dtype: D::NAME,
                });
            }
        }
        Ok((fill, per_token))
    }

    fn write<D: CastFrom<S>>(&self, rows: &Rows, fill: D, sink: &mut impl Sink<D>) {
        match self.source {
            Source::Values { values, per_token } => side_by_side(rows, per_token, fill, sink, |span, sink| {
                for block in values[span.start * per_token..span.end * per_token].chunks(BLOCK_BYTES / size_of::<S>()) {
                    fetch(block);
                    sink.put(block.iter().map(|&value| D::cast(value)), block.len());
                }
            }),
            Source::Mask => {
                side_by_side(rows, 1, fill, sink, |span, sink| sink.repeat(D::ONE, span.end - span.start));
            }
            Source::Positions => side_by_side(rows, 1, fill, sink, |span, sink| {
                sink.put((0..span.end - span.start).map(D::position), span.end - span.start);
            }),
        }
    }
}

/// Writes every row: its tokens by `real`, and padding on the side that the batch asks for.
fn side_by_side<D: Copy, K: Sink<D>>(
    rows: &Rows,
    per_token: usize,
    fill: D,
    sink: &mut K,
    real: impl Fn(Span, &mut K),
) {
    for &span in rows.spans() {
        let n_padding = (rows.padded_length() - (span.end - span.start)) * per_token;
        if rows.side() == Side::Left {
            sink.repeat(fill, n_padding);
        }
        real(span, sink);
        if rows.side() == Side::Right {
            sink.repeat(fill, n_padding);
        }
    }
}

const BLOCK_BYTES: usize = 16 << 10;
const CACHE_LINE_BYTES: usize = 64;

/// Asks for all cache lines of `block` before the first is needed. Rows lie scattered in memory, and the
/// processor alone fetches each from its start, line by line: 80 us for a batch of 131,072 tokens in 54 cold rows, 50
/// us with this (blocks of 2, 8 and 32 KiB: 75, 51, 52).
fn fetch<S: Copy>(block: &[S]) {
    for &value in block.iter().step_by(CACHE_LINE_BYTES / size_of::<S>()) {
        std::hint::black_box(value);
    }
}

/// Takes a row's values in order. One loop then serves a growing vector and a buffer that is overwritten.
trait Sink<D> {
    fn put(&mut self, values: impl Iterator<Item = D>, n_values: usize);
    fn repeat(&mut self, value: D, n_values: usize);
}

impl<D: Copy> Sink<D> for Vec<D> {
    fn put(&mut self, values: impl Iterator<Item = D>, _: usize) {
        self.extend(values);
    }

    fn repeat(&mut self, value: D, n_values: usize) {
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

    fn repeat(&mut self, value: D, n_values: usize) {
        self.take(n_values).fill(value);
    }
}
