//! Samples with their lengths in one integer each, so that packing reads what the shuffle has just moved and gathers
//! nothing. The narrowest of three integers that holds both is chosen: half the memory is most of the speed.

/// An integer that holds a sample. Records of one bucket order by (length, index).
pub(crate) trait Record: Copy + Ord + Default + Send + Sync {
    /// `length` above the lowest `index_bits` bits, `index` in them.
    fn join(length: u64, index: usize, index_bits: u32) -> Self;
    fn length(self, index_bits: u32) -> u64;
    fn index(self, index_bits: u32) -> usize;
}

macro_rules! impl_record {
    ($($integer:ty),*) => {$(
        #[allow(clippy::cast_lossless, reason = "one expression for all widths")]
        impl Record for $integer {
            #[inline]
            fn join(length: u64, index: usize, index_bits: u32) -> Self {
                ((length as $integer) << index_bits) | index as $integer
            }
            #[inline]
            fn length(self, index_bits: u32) -> u64 {
                (self >> index_bits) as u64
            }
            #[inline]
            fn index(self, index_bits: u32) -> usize {
                (self & ((1 << index_bits) - 1)) as usize
            }
        }
    )*};
}
impl_record!(u32, u64, u128);

/// How the records of one bucket are read: lengths are stored minus the bucket's lower edge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    pub index_bits: u32,
    pub base: u64,
}

impl Codec {
    #[inline]
    pub(crate) fn length<R: Record>(self, record: R) -> u64 {
        self.base + record.length(self.index_bits)
    }
}

/// The records of all samples, in the narrowest integer that holds them.
#[derive(Clone, Debug)]
pub(crate) enum Records {
    U32(Vec<u32>),
    U64(Vec<u64>),
    U128(Vec<u128>),
}

/// Evaluates an expression on the records, whatever their integer is.
macro_rules! with_records {
    ($records:expr, $name:ident => $body:expr) => {
        match $records {
            $crate::record::Records::U32($name) => $body,
            $crate::record::Records::U64($name) => $body,
            $crate::record::Records::U128($name) => $body,
        }
    };
}
pub(crate) use with_records;

/// How many bits hold `value`; 0 for 0.
pub(crate) fn bits(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<R: Record>(length: u64, index: usize, index_bits: u32) {
        let record = R::join(length, index, index_bits);
        assert_eq!((record.length(index_bits), record.index(index_bits)), (length, index));
    }

    #[test]
    fn records_hold_their_largest_values() {
        round_trip::<u32>((1 << 12) - 1, (1 << 20) - 1, 20);
        round_trip::<u32>(u64::from(u32::MAX), 0, 0);
        round_trip::<u64>(u64::from(u32::MAX), u32::MAX as usize, 32);
        round_trip::<u128>(u64::MAX, usize::MAX, 64);
    }
}
