"""A per-token field as one flat buffer: the form in which the native collator reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.data.mapped import Place, place_of


@dataclass(frozen=True)
class FlatField:
    """One field of all samples, end to end: token `t` has the values `values[t]`."""

    values: npt.NDArray[Any]
    """`[n_tokens, *trailing]`, read-only, aligned, native-endian; bfloat16 as uint16, since NumPy has none."""
    bfloat16: bool = False
    place: Place | None = None
    """Where the values lie in a file, if they are mapped from one."""

    @property
    def trailing(self) -> tuple[int, ...]:
        """The shape of one token's values: `()` for ids, `(D,)` for features."""
        return self.values.shape[1:]

    @property
    def dtype(self) -> str:
        """The name that NumPy and torch have for the dtype."""
        return "bfloat16" if self.bfloat16 else self.values.dtype.name

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers; bools are none."""
        return not self.bfloat16 and self.values.dtype.kind in "iu"

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker maps the file again instead of receiving its bytes.
        if self.place is not None:
            return _load_field, (self.place, self.bfloat16)
        return _field, (self.values, self.bfloat16)


def flat_field(name: str, values: npt.ArrayLike, *, bfloat16: bool = False, place: Place | None = None) -> FlatField:
    """Returns a flat buffer as a field: `[n_tokens, *trailing]`, shared and never written to.

    Args:
        name: what errors call it.
        values: the buffer; another byte order or a strided array is copied.
        bfloat16: the values are bfloat16, as uint16.
        place: where the values lie in a file, if that is known; a NumPy memory map tells by itself.

    Raises:
        TypeError: values that are not numbers.
        ValueError: no token dimension.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError(
            f"{name} has dtype {array.dtype}, which no batch can hold; use bool, integers, or floats up to 64 bits"
        )
    if array.ndim == 0:
        raise ValueError(f"{name} is a single number, not one value per token")
    flat = np.require(array, array.dtype.newbyteorder("="), ["C_CONTIGUOUS", "ALIGNED"]).view(np.ndarray)
    flat.flags.writeable = False
    return FlatField(flat, bfloat16, place or place_of(array, flat))


def checked_offsets(offsets: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Returns `offsets` as `[n_samples + 1]`, int64, read-only, once they are known to count tokens.

    Raises:
        TypeError: another dtype than an integer.
        ValueError: offsets that do not start at 0, or that fall.
    """
    if offsets.dtype.kind not in "iu":
        raise TypeError(f"offsets has dtype {offsets.dtype}, not an integer dtype")
    if offsets.ndim != 1 or offsets.size == 0:
        raise ValueError(
            f"offsets has shape {offsets.shape}, not (n_samples + 1,); it counts the tokens before each sample "
            "and at the end"
        )
    checked: npt.NDArray[np.int64] = np.ascontiguousarray(offsets, np.int64).view()
    checked.flags.writeable = False
    if checked[0] != 0:
        raise ValueError(f"offsets[0] = {checked[0]} is not 0; offsets count tokens from the first")
    falling = np.flatnonzero(checked[1:] < checked[:-1])
    if falling.size:
        i = int(falling[0]) + 1
        raise ValueError(
            f"offsets[{i}] = {checked[i]} is below offsets[{i - 1}] = {checked[i - 1]}; offsets never fall"
        )
    return checked


def _field(values: npt.NDArray[Any], bfloat16: bool) -> FlatField:
    values.flags.writeable = False  # pickle forgets it
    return FlatField(values, bfloat16)


def _load_field(place: Place, bfloat16: bool) -> FlatField:
    return FlatField(place.load(), bfloat16, place)
