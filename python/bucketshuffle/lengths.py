"""Temporary: replaced by the collate branch."""
import numpy as np


def as_lengths(lengths):
    a = np.asarray(lengths)
    if a.size == 0:
        a = a.astype(np.int64)
    return np.ascontiguousarray(a)
