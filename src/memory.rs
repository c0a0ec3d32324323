//! Vectors as long as the data set: where the system refuses the memory, a call fails and the process lives.
use crate::error::{Error, Result};

/// An empty vector with room for `n_items`.
pub(crate) fn with_capacity<T>(n_items: usize) -> Result<Vec<T>> {
    let mut items = Vec::new();
    reserve(&mut items, n_items)?;
    Ok(items)
}

/// `[n_items]`, all of them `item`.
pub(crate) fn filled<T: Clone>(item: T, n_items: usize) -> Result<Vec<T>> {
    let mut items = with_capacity(n_items)?;
    items.resize(n_items, item);
    Ok(items)
}

/// A copy.
pub(crate) fn copy<T: Copy>(items: &[T]) -> Result<Vec<T>> {
    let mut copied = with_capacity(items.len())?;
    copied.extend_from_slice(items);
    Ok(copied)
}

/// The items of an iterator.
pub(crate) fn collect<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let items = items.into_iter();
    let (least, most) = items.size_hint();
    let mut collected = with_capacity(least)?;
    if most == Some(least) {
        collected.extend(items); // this has room for all of them, and the compiler makes vector instructions of it
        return Ok(collected);
    }
    for item in items {
        push(&mut collected, item)?;
    }
    Ok(collected)
}

/// Appends one item.
#[inline]
pub(crate) fn push<T>(items: &mut Vec<T>, item: T) -> Result<()> {
    items.try_reserve(1).map_err(|_| refused::<T>(items.len() + 1))?;
    items.push(item);
    Ok(())
}

/// Makes room for `n_more` items.
pub(crate) fn reserve<T>(items: &mut Vec<T>, n_more: usize) -> Result<()> {
    items.try_reserve(n_more).map_err(|_| refused::<T>(items.len().saturating_add(n_more)))
}

/// What is said where there is no room for `n_items`.
#[cold]
pub(crate) fn refused<T>(n_items: usize) -> Error {
    Error::OutOfMemory { n_bytes: n_items.saturating_mul(size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_memory_is_an_error() {
        let (n_items, n_bytes) = (usize::MAX / 4, usize::MAX / 4 * 4);
        assert_eq!(with_capacity::<u32>(n_items), Err(Error::OutOfMemory { n_bytes }));
        assert_eq!(filled(1_u32, n_items), Err(Error::OutOfMemory { n_bytes }));
        assert_eq!(collect((0..n_items).map(|i| i as u32)), Err(Error::OutOfMemory { n_bytes }));
        assert_eq!(reserve(&mut vec![0_u32; 1], n_items - 1), Err(Error::OutOfMemory { n_bytes }));
    }

    #[test]
    fn items_are_collected_whether_or_not_their_number_is_known() {
        assert_eq!(collect(0..1_000), Ok((0..1_000).collect()));
        assert_eq!(collect((0..1_000).filter(|i| i % 3 == 0)), Ok((0..1_000).step_by(3).collect()));
    }
}
