//! Padding: the rows of flat buffers, side by side in one rectangle.
//!
//! A field of a data set is one flat buffer; sample `s` owns tokens `offsets[s]..offsets[s + 1]` of it. [`Rows`]
//! checks the rows of a batch once, and every field of the batch is then written from it without further checks of the
//! caller's numbers.
mod cast;
mod error;
mod padded;
mod rows;

pub use cast::{CastFrom, Token};
pub use error::CollateError;
pub use padded::{Field, Source};
pub use rows::{Rows, Side};
