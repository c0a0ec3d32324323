//! The exponential distribution as a table of integers: no floating-point function, whose last bit differs between
//! machines, has a say in a plan.

/// Bits of a draw.
const BITS: u32 = 12;

/// `QUANTILES[u]` is `-ln(1 - (u + 1/2) / 4096)`, the middle of the `u`-th of 4,096 equally likely slices, in units of
/// 2^-28, rounded to nearest.
static QUANTILES: [u32; 1 << BITS] = quantiles();

/// An exponential deviate of mean 1 in units of 2^-28, from the lowest 12 bits of `random`.
#[inline]
pub(crate) fn deviate(random: u16) -> u32 {
    QUANTILES[usize::from(random) % (1 << BITS)]
}

/// `-ln(k / 8192)` for odd `k`, from the top down: `ln((k + 2) / k)` is `2 artanh(1 / (k + 1))`, a sum of odd powers. In
/// units of 2^-60 and cut off below, the whole table is within 2^-45 of the logarithm.
const fn quantiles() -> [u32; 1 << BITS] {
    const SLICES: u64 = 1 << BITS;
    let mut table = [0; 1 << BITS];
    let mut logarithm = twice_artanh(4 * SLICES - 1);
    let mut u = 0;
    while u < SLICES {
        table[u as usize] = ((logarithm + (1 << 31)) >> 32) as u32;
        u += 1;
        if u < SLICES {
            // From k + 2 down to k = 2 * (4096 - u) - 1.
            logarithm += twice_artanh(2 * (SLICES - u));
        }
    }
    table
}

/// `2 artanh(1 / x)` in units of 2^-60.
const fn twice_artanh(x: u64) -> u64 {
    let (mut power, mut sum, mut odd) = ((1_u64 << 61) / x, 0, 1);
    while power > 0 {
        sum += power / odd;
        power /= x * x;
        odd += 2;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_logarithm() {
        for u in 0..4_096_u16 {
            let exact = -(1.0 - (f64::from(u) + 0.5) / 4_096.0).ln() * f64::from(1 << 28);
            assert!((f64::from(deviate(u)) - exact).abs() <= 0.5 + 1e-6, "u = {u}");
        }
    }

    #[test]
    fn only_the_lowest_twelve_bits_count() {
        assert_eq!(deviate(0xF123), deviate(0x0123));
    }
}
