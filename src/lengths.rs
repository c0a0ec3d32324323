//! The lengths of all samples, in as few bits as hold them.
use crate::error::Result;
use crate::memory;

/// Lengths below this are counted and looked up in a table, longer ones sorted and bisected.
pub(crate) const TABLE_SIZE: usize = 1 << 16;

/// The lengths of all samples, tokens.
#[derive(Clone, Copy, Debug)]
pub enum Lengths<'a> {
    /// All below 2^16.
    U16(&'a [u16]),
    /// All below 2^32.
    U32(&'a [u32]),
    /// Any.
    U64(&'a [u64]),
}

impl<'a> From<&'a [u16]> for Lengths<'a> {
    fn from(lengths: &'a [u16]) -> Self {
        Self::U16(lengths)
    }
}

impl<'a> From<&'a [u32]> for Lengths<'a> {
    fn from(lengths: &'a [u32]) -> Self {
        Self::U32(lengths)
    }
}

impl<'a> From<&'a [u64]> for Lengths<'a> {
    fn from(lengths: &'a [u64]) -> Self {
        Self::U64(lengths)
    }
}

/// A length as it comes in.
pub(crate) trait Length: Copy + Default + Into<u64> + Ord + Send + Sync {
    /// The lowest 16 bits, which are the whole length if it is below `TABLE_SIZE`. Indexing a table of that size with
    /// them needs no bounds check.
    fn in_table(self) -> usize;
}

macro_rules! impl_length {
    ($($integer:ty),*) => {$(
        impl Length for $integer {
            #[inline]
            fn in_table(self) -> usize {
                usize::from(self as u16)
            }
        }
    )*};
}
impl_length!(u16, u32, u64);

/// A table of one value for each length below `TABLE_SIZE`.
#[allow(clippy::unnecessary_box_returns, reason = "too large for the stack")]
pub(crate) fn zeros<T: Clone + Default>() -> Result<Box<[T; TABLE_SIZE]>> {
    match memory::filled(T::default(), TABLE_SIZE)?.into_boxed_slice().try_into() {
        Ok(table) => Ok(table),
        Err(_) => unreachable!("the vector was made with TABLE_SIZE elements"),
    }
}
