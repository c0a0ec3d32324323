"""What the padded lengths of batches tell of their shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def row_tokens(padded_lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns [n_batches], int64: tokens of a row, from `padded_lengths`, [n_batches] or [n_batches, n_fields]."""
    return padded_lengths if padded_lengths.ndim == 1 else padded_lengths.sum(1)


def as_plain(padded_length: Any) -> int | tuple[int, ...]:
    """Returns the padded length of one batch as an int; with several fields as a tuple of them."""
    return tuple(padded_length.tolist()) if padded_length.ndim else int(padded_length)


def n_shapes(sizes: npt.NDArray[np.int64], padded_lengths: npt.NDArray[np.int64]) -> int:
    """Returns how many shapes batches of `sizes`, [n_batches], have with these `padded_lengths`, [n_batches] or
    [n_batches, n_fields]."""
    if padded_lengths.ndim == 2:
        return len(np.unique(np.column_stack([sizes, padded_lengths]), axis=0))
    return _n_distinct(sizes, padded_lengths)


def _n_distinct(sizes: npt.NDArray[np.int64], padded_lengths: npt.NDArray[np.int64]) -> int:
    """Distinct pairs of two [n_batches], int64, none negative."""
    longest = int(padded_lengths.max(initial=0))
    if int(sizes.max(initial=0)) * (longest + 1) + longest >= 2**63:
        _, padded_lengths = np.unique(padded_lengths, return_inverse=True)
        longest = int(padded_lengths.max())
    # One number a pair: 5 million are sorted in 0.3 s, the pairs in 2, and numpy.unique of the numbers takes up to 15.
    pairs = np.sort(sizes * (longest + 1) + padded_lengths)
    return int(np.count_nonzero(np.diff(pairs))) + (len(pairs) > 0)
