"""Lengths for the planner where samples may have several, their domains, and the mask of those that are admitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.lengths import Integers, as_int64, as_integers, as_lengths


def as_fields(lengths: object) -> tuple[Integers, tuple[str, ...] | None]:
    """Returns the lengths of samples that may have several, and the names of these.

    Args:
        lengths: `[n_samples]`, as for `as_lengths`; `[n_samples, n_fields]`, an array or tensor; or a mapping by name
            of `[n_samples]` each.

    Returns:
        `[n_samples]` for one field and `[n_samples, n_fields]` for several, contiguous, aligned, native-endian; and the
        names of several fields that a mapping gave, else None.

    Raises:
        TypeError, ValueError: as `as_lengths`; fields of different numbers of samples.
    """
    if isinstance(lengths, Mapping):
        columns = {name: _checked(name, column) for name, column in lengths.items()}
        first = next(iter(columns), None)
        for name, column in columns.items():
            if len(column) != len(columns[first]):
                raise ValueError(
                    f'lengths["{name}"] has {len(column)} samples, lengths["{first}"] has {len(columns[first])}; pass '
                    "one length of every field for each sample"
                )
        if len(columns) == 1:
            return columns[first], None
        values = np.stack(list(columns.values()), axis=1) if columns else np.empty((0, 0), np.int64)
        if values.dtype.kind == "f":  # of signed and unsigned 64-bit integers
            values = np.stack([as_int64(column, f'lengths["{name}"]') for name, column in columns.items()], axis=1)
        return values, tuple(columns)
    values = as_integers(lengths)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2):
        raise ValueError(
            f"lengths has shape {values.shape}, not one or two dimensions; pass one length per sample, or one per "
            "sample and field"
        )
    return np.require(values, None, ["C_CONTIGUOUS", "ALIGNED"]), None


def sample_tokens(lengths: object) -> Integers:
    """Returns `[n_samples]`, integer: tokens of each sample, over all fields; `lengths` as for `as_fields`."""
    values, _ = as_fields(lengths)
    return values if values.ndim == 1 else values.sum(1)


def _checked(name: object, lengths: object) -> Integers:
    """The lengths of one field of a mapping, checked under its name."""
    if not isinstance(name, str):
        raise TypeError(f"lengths has the key {name!r}, which is not a string; name every field")
    try:
        return as_lengths(lengths)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("lengths", f'lengths["{name}"]', 1)) from None


def as_mask(admitted: Any) -> npt.NDArray[np.bool_] | None:
    """Returns `admitted`, `[n_samples]`, as a contiguous array of bools; None as it is.

    Raises:
        TypeError: another dtype, or another number of dimensions.
    """
    if admitted is None:
        return None
    mask = np.asarray(admitted)
    if mask.size == 0:
        mask = mask.astype(np.bool_)  # NumPy calls an empty list float64.
    if mask.dtype != np.bool_ or mask.ndim != 1:
        raise TypeError(
            f"admitted has dtype {mask.dtype} and shape {mask.shape}; pass one bool for each sample, such as "
            "loss_tokens >= 1"
        )
    return np.ascontiguousarray(mask)


def as_domains(domains: Any) -> npt.NDArray[np.int64] | None:
    """Returns `domains`, `[n_samples]`, as contiguous int64; None as it is.

    Raises:
        TypeError, ValueError: as `as_lengths`, under its own name; integers beyond int64.
    """
    if domains is None:
        return None
    try:
        return np.ascontiguousarray(as_int64(as_lengths(domains)))
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("lengths", "domains", 1)) from None
