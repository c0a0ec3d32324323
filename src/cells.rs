//! Cells of neighbouring keys: few enough to be counted, and so narrow that their order is nearly that of the keys.
use crate::error::Result;
use crate::memory;
use crate::threads::{BETWEEN_CHECKS, Check};

/// Keys below `2^CELL_BITS` have a cell each; a higher cell is narrower than `2^(1 - CELL_BITS)` of its keys.
pub(crate) const CELL_BITS: u32 = 13;

/// Fewer items than this are sorted at once.
const MIN_ITEMS_FOR_CELLS: usize = 1 << 20;

/// The cell of a key: its leading bits.
#[inline]
pub(crate) fn cell_of(key: u64) -> usize {
    leading(key, CELL_BITS)
}

/// The first `n_bits` bits of a number and how many follow them, in one that never falls as the number grows.
#[inline]
pub(crate) fn leading(number: u64, n_bits: u32) -> usize {
    let dropped = (u64::BITS - number.leading_zeros()).saturating_sub(n_bits);
    ((u64::from(dropped) << (n_bits - 1)) + (number >> dropped)) as usize
}

/// Returns the items in ascending order. `key` never falls as items ascend, and none is above `largest`.
pub(crate) fn sort<T: Copy + Default + Ord>(
    items: impl ExactSizeIterator<Item = T> + Clone,
    key: impl Fn(T) -> u64,
    largest: u64,
    check: Check<'_>,
) -> Result<Vec<T>> {
    if items.len() < MIN_ITEMS_FOR_CELLS {
        let mut sorted = memory::collect(items)?;
        sorted.sort_unstable();
        return Ok(sorted);
    }
    // Where each cell starts, and after the second pass, where it ends.
    let mut cursors = memory::filled(0, cell_of(largest) + 2)?;
    for (i, item) in items.clone().enumerate() {
        if i % BETWEEN_CHECKS == 0 {
            check()?;
        }
        cursors[cell_of(key(item)) + 1] += 1;
    }
    let mut start = 0;
    for cursor in &mut cursors {
        start += *cursor;
        *cursor = start;
    }
    let mut sorted = memory::filled(T::default(), items.len())?;
    for (i, item) in items.enumerate() {
        if i % BETWEEN_CHECKS == 0 {
            check()?;
        }
        let cursor = &mut cursors[cell_of(key(item))];
        sorted[*cursor] = item;
        *cursor += 1;
    }
    start = 0;
    for end in cursors {
        check()?;
        sorted[start..end].sort_unstable();
        start = end;
    }
    Ok(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_narrow_and_in_order() {
        for key in [0, 1, 8_191, 8_192, 8_193, 16_383, 16_384, 1 << 40, u64::MAX - 1] {
            let width = if key < 1 << CELL_BITS { 1 } else { key >> (CELL_BITS - 1) };
            assert!(cell_of(key + 1) == cell_of(key) || cell_of(key + 1) == cell_of(key) + 1);
            assert!(cell_of(key.saturating_add(width)) > cell_of(key) || key + 1 == u64::MAX);
        }
    }

    #[test]
    fn many_items_are_sorted_as_few_are() {
        let mut state = 1_u64;
        let items: Vec<u64> = (0..MIN_ITEMS_FOR_CELLS)
            .map(|i| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> (i % 60)).max(5)
            })
            .collect();
        let mut expected = items.clone();
        expected.sort_unstable();
        let largest = expected[items.len() - 1] - 5;
        assert_eq!(sort(items.iter().copied(), |item| item - 5, largest, &|| Ok(())), Ok(expected));
    }
}
