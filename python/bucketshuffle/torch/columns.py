"""The flat buffers of a data set: as a caller passes them, and by name in a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bucketshuffle.data.flat import FlatField, flat_field
from bucketshuffle.data.mapped import map_npy
from bucketshuffle.torch.groups import MAIN
from bucketshuffle.torch.rows import number_tensor, tensor_field


class Saved(NamedTuple):
    """What a file holds."""

    values: dict[str, FlatField]
    offsets: dict[str, FlatField]
    """By group."""
    groups: dict[str, tuple[str, ...]]
    """The keys of each group beside the main one."""
    scalars: dict[str, FlatField]


def to_saved(
    offsets: Mapping[str, npt.NDArray[np.int64]], fields: Mapping[str, FlatField], group_of: Mapping[str, str]
) -> dict[str, FlatField]:
    """Returns offsets and per-token fields under the names that a file has for them."""
    named = {f"{_prefix(group)}offsets": FlatField(of_group) for group, of_group in offsets.items()}
    return named | {f"{_prefix(group_of[name])}values.{name}": field for name, field in fields.items()}


def from_saved(named: Mapping[str, FlatField], path: str) -> Saved:
    """Returns what `to_saved` named, and the numbers per sample.

    Raises:
        ValueError: a name of another kind, or a group without offsets or values.
    """
    saved = Saved({}, {}, {}, {})
    of_groups: dict[str, list[str]] = {}
    for name, field in named.items():
        group, rest = MAIN, name
        if name.startswith("groups."):
            _, group, rest = (*name.split(".", 2), "")[:3]
        kind, _, key = rest.partition(".")
        if rest == "offsets":
            saved.offsets[group] = field
        elif kind == "values" and key:
            saved.values[key] = field
            of_groups.setdefault(group, []).append(key)
        elif kind == "scalars" and group == MAIN:
            saved.scalars[key] = field
        else:
            raise ValueError(f'{path} holds "{name}", which is neither offsets, values.* nor scalars.*')
    if not saved.values or saved.offsets.keys() != of_groups.keys():
        raise ValueError(f"{path} holds no data set: it has no offsets, or no values.*")
    saved.groups.update({group: tuple(keys) for group, keys in of_groups.items() if group != MAIN})
    return saved


def _prefix(group: str) -> str:
    return "" if group == MAIN else f"groups.{group}."


def as_field(name: str, values: Any) -> FlatField:
    """Returns what a caller passed as a flat buffer: an array, a tensor, a field, or the path of a `.npy` file."""
    if isinstance(values, (str, os.PathLike)):
        array, place = map_npy(values)
        return flat_field(name, array, place=place)
    return tensor_field(name, values)


def as_offsets(offsets: Any, groups: Sequence[str]) -> dict[str, FlatField]:
    """Returns the offsets of each group that a caller passed: of the main one alone, or a mapping by group.

    Raises:
        ValueError: other groups.
    """
    if not isinstance(offsets, Mapping) and groups == [MAIN]:
        offsets = {MAIN: offsets}
    if not isinstance(offsets, Mapping) or offsets.keys() != set(groups):
        known = f"the groups {', '.join(map(str, offsets))}" if isinstance(offsets, Mapping) else "no groups"
        raise ValueError(
            f"offsets has {known}, but the collator makes {', '.join(groups)} of the keys; pass one array of offsets "
            "for each group, and collator=PadCollator(groups=...)"
        )
    return {group: as_field("offsets", offsets[group]) for group in groups}


def as_scalar(name: str, values: Any) -> torch.Tensor:
    """Returns what a caller passed as numbers of each sample as a tensor `[n_samples, *trailing]`."""
    # A copy: torch has no read-only tensors.
    if isinstance(values, (str, os.PathLike)):
        values = map_npy(values)[0]
    if isinstance(values, FlatField):
        if values.bfloat16:
            return torch.from_numpy(values.values.view(np.int16).copy()).view(torch.bfloat16)
        values = values.values
    return number_tensor(f'scalars["{name}"]', values)


def checked_samples(samples: npt.NDArray[Any] | torch.Tensor) -> npt.NDArray[np.int64]:
    """Returns the samples of one batch, `(B,)`.

    Raises:
        TypeError, ValueError, IndexError: what no data set can look up.
    """
    array: npt.NDArray[Any] = np.asarray(samples)
    if array.dtype.kind not in "iu":
        raise TypeError(f"samples has dtype {array.dtype}, not an integer dtype")
    if array.ndim != 1:
        raise ValueError(f"samples has shape {array.shape}, not (B,); pass one batch")
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        raise IndexError(f"samples holds {array.max()}, which no data set has")
    return array.astype(np.int64, copy=False)
