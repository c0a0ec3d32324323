//! Which dtype becomes which: the value of a token never changes.
use std::fmt;

/// A type that flat buffers are made of.
pub trait Token: Copy + fmt::Display + Send + Sync + 'static {}

/// A type that padded batches are made of, and how a token of type `S` becomes one.
pub trait CastFrom<S>: Copy + Send + Sync + TryFrom<i64> + 'static {
    /// The name that `NumPy` and torch give it.
    const NAME: &'static str;
    /// The mask's value for a real token.
    const ONE: Self;
    /// Whether `token` keeps its value.
    fn fits(token: S) -> bool;
    /// The token, widened.
    fn cast(token: S) -> Self;
    /// A token's place in its row.
    fn position(index: usize) -> Self;
}

macro_rules! cast {
    ($($to:ident $name:literal <- $($from:ident)*;)*) => {$($(
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
        #[allow(clippy::cast_lossless)]
        #[allow(irrefutable_let_patterns, clippy::unnecessary_fallible_conversions, clippy::useless_conversion)]
        impl CastFrom<$from> for $to {
            const NAME: &'static str = $name;
            const ONE: Self = 1;
            #[inline]
            fn fits(token: $from) -> bool {
                $to::try_from(token).is_ok()
            }
            #[inline]
            fn cast(token: $from) -> Self {
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
cast! {
    u8 "uint8" <- u8;
    i16 "int16" <- i16;
    i32 "int32" <- u8 i8 u16 i16 u32 i32 u64 i64;
    i64 "int64" <- u8 i8 u16 i16 u32 i32 u64 i64;
}
