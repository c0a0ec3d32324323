"""From flat fields to a padded batch of tensors: what collator and data set share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bucketshuffle import _core
from bucketshuffle.data.flat import FlatField

# Values that are only copied travel as integers of their size; the native side knows no floats. NumPy dtype, its name
# there, torch dtype.
_CARRIERS: dict[int, tuple[type[np.generic], str, torch.dtype]] = {
    1: (np.uint8, "u8", torch.uint8),
    2: (np.int16, "i16", torch.int16),
    4: (np.int32, "i32", torch.int32),
    8: (np.int64, "i64", torch.int64),
}


class Request(NamedTuple):
    """One field of one batch, as the native call reads it by attribute."""

    name: str
    source: npt.NDArray[Any] | str
    """A flat buffer `[n_values]`, read-only, or "mask" or "positions"."""
    per_token: int
    dtype: str
    fill: int
    out: npt.NDArray[Any] | None


class GroupRequest(NamedTuple):
    """The fields of one length in one batch, as the native call reads it by attribute."""

    offsets: npt.NDArray[np.int64]
    fields: Sequence[Request]
    left: bool
    pad_to_multiple_of: int
    padded_lengths: Sequence[int]


@dataclass(frozen=True)
class PaddedField:
    """How a field becomes part of a batch; it knows the values' dtype and not the values."""

    name: str
    made_from: str | None
    """"mask" or "positions" for a field that is known from the lengths; None: one with values."""
    view: type[np.generic] | None
    """The dtype that the values travel as; None: their own."""
    carrier: str
    """The dtype that the batch travels as."""
    fill: int
    """The value of padding, as the carrier's integer."""
    dtype: torch.dtype
    """The dtype of the batch."""
    trailing: tuple[int, ...]
    """The shape of one token's values."""
    per_token: int
    """Values of one token."""

    def source(self, field: FlatField) -> npt.NDArray[Any]:
        """Returns the values of `field` as they travel, `[n_values]`; no copy."""
        flat = field.values.reshape(-1)
        return flat if self.view is None else flat.view(self.view)

    def read(self, values: npt.NDArray[Any], shape: tuple[int, int]) -> torch.Tensor:
        """Returns what the native call made, or wrote at the start of `out`, as `(B, L, *trailing)`; no copy."""
        n_values = shape[0] * shape[1] * self.per_token
        tensor = torch.from_numpy(values[:n_values].reshape(shape + self.trailing))
        return tensor if tensor.dtype is self.dtype else tensor.view(self.dtype)

    def row(self, request: Request, start: int, end: int) -> torch.Tensor:
        """Returns tokens `start..end` of a field in the dtype of a batch, a copy `(end - start, *trailing)`."""
        offsets = np.array([start, end], np.int64)
        [(_, length, [values])] = _core.pad_rows([0], [GroupRequest(offsets, [request], False, 1, ())])
        assert values is not None  # there was no `out`
        return self.read(values, (1, length)).squeeze(0)

    def buffer(self, out: torch.Tensor) -> npt.NDArray[Any]:
        """Returns the memory of a caller's tensor as the carrier's array `[n_values]`.

        Raises:
            TypeError: another dtype than the batch has, or not a tensor.
            ValueError: memory that is not contiguous, or not the CPU's.
        """
        where = f'out["{self.name}"]'
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"{where} is a {type(out).__name__}, not a tensor")
        if out.dtype != self.dtype:
            raise TypeError(f"{where} has dtype {out.dtype}, but the batch has {self.dtype}; make it {self.dtype}")
        if out.device.type != "cpu" or not out.is_contiguous():
            raise ValueError(f"{where} is not contiguous memory of the CPU; allocate it with torch.empty")
        carrier, _, torch_carrier = _CARRIERS[self.dtype.itemsize]
        array: npt.NDArray[Any] = (out.view(torch_carrier) if out.dtype == torch.bfloat16 else out).detach().numpy()
        return array.reshape(-1).view(carrier)


def refuse_keys_but_strings(where: str, keys: Iterable[object], way_out: str) -> None:
    """Raises TypeError if one of the keys of `where` is no string."""
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"{where} has the key {key!r}, which is not a string; {way_out}")


@dataclass(frozen=True)
class PaddedGroup:
    """Fields whose rows have one length, and how they are padded."""

    name: str
    fields: tuple[PaddedField, ...]
    left: bool
    """Whether padding comes before the tokens."""
    pad_to_multiple_of: int
    """`L` is a multiple of this, in tokens."""
    padded_lengths: tuple[int, ...]
    """`L` is the first of these that holds the longest sample, where one does, in tokens, ascending."""
    lengths: str | None
    """The key that gets the lengths `(B,)`; None: they are left out."""


class Padder:
    """Pads batches of certain fields. Collator and data set hold one each.

    No call changes it, so any number of threads may use one at the same time, each with an `out` of its own.

    Args:
        groups: what a batch is made of; each group is padded to its own longest sample.
        sample_indices: add `sample_indices` `(B,)`.
    """

    def __init__(self, groups: Sequence[PaddedGroup], *, sample_indices: bool) -> None:
        self.groups = tuple(groups)
        self.fields = tuple(field for group in self.groups for field in group.fields)
        self._names = {field.name for field in self.fields}
        self._sample_indices = sample_indices

    def requests(
        self, flat: Mapping[str, FlatField], offsets: Mapping[str, npt.NDArray[np.int64]]
    ) -> tuple[GroupRequest, ...]:
        """Returns what `pad` asks of the native call for these fields, made once for any number of batches.

        Args:
            flat: the fields with values, by key.
            offsets: of each group by name `[n_samples + 1]`, int64, tokens before each sample and at the end.
        """
        return tuple(
            GroupRequest(
                offsets[group.name],
                [
                    Request(
                        field.name,
                        field.made_from or field.source(flat[field.name]),
                        field.per_token,
                        field.carrier,
                        field.fill,
                        None,
                    )
                    for field in group.fields
                ],
                group.left,
                group.pad_to_multiple_of,
                group.padded_lengths,
            )
            for group in self.groups
        )

    def pad(
        self,
        requests: Sequence[GroupRequest],
        samples: npt.NDArray[np.int64] | Sequence[int],
        *,
        out: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Returns a padded batch, written in one native call without the interpreter lock.

        Args:
            requests: what `requests` returned.
            samples: `(B,)`, the samples of the batch.
            out: tensors to write into, by field; fields without one are fresh.
        """
        if out:
            requests = self._into(requests, out)
        batch: dict[str, torch.Tensor] = {}
        made: dict[str, torch.Tensor] = {}
        for group, asked, padded in zip(self.groups, requests, _core.pad_rows(samples, requests), strict=True):
            lengths, padded_length, arrays = padded
            shape = len(lengths), padded_length
            for field, request, fresh in zip(group.fields, asked.fields, arrays, strict=True):
                values = request.out if fresh is None else fresh
                batch[field.name] = field.read(values, shape)  # type: ignore[arg-type]
            if group.lengths is not None:
                made[group.lengths] = torch.from_numpy(lengths)
        batch |= made
        if self._sample_indices:
            batch["sample_indices"] = torch.from_numpy(np.array(samples, np.int64))
        return batch

    def _into(self, requests: Sequence[GroupRequest], out: Mapping[str, torch.Tensor]) -> list[GroupRequest]:
        """The requests with the memory of the caller's tensors."""
        unknown = [name for name in out if name not in self._names]
        if unknown:
            keys = ", ".join(f'"{field.name}"' for field in self.fields)
            raise ValueError(f'out names "{unknown[0]}", which is not a padded key; the batch has {keys}')

        def into(field: PaddedField, request: Request) -> Request:
            return request._replace(out=field.buffer(out[field.name])) if field.name in out else request

        return [
            asked._replace(fields=list(map(into, group.fields, asked.fields)))
            for group, asked in zip(self.groups, requests, strict=True)
        ]


def padded_field(name: str, field: FlatField, fill: float, dtype: torch.dtype | None) -> PaddedField:
    """Returns how `field` is padded: integers become int64 unless `dtype` says otherwise, everything else keeps its
    dtype.

    Raises:
        TypeError: a dtype that the values cannot become.
        ValueError: a fill that the dtype cannot hold.
    """
    kept = _torch_dtype(field)
    dtype = batch_dtype(name, field.dtype, kept, dtype)
    if dtype in (torch.int64, torch.int32) and (field.is_integer or field.dtype == "bool"):
        view = np.uint8 if field.dtype == "bool" else None
    else:
        view = _CARRIERS[field.values.dtype.itemsize][0]
    per_token = int(np.prod(field.trailing, dtype=np.int64))
    carrier = _CARRIERS[dtype.itemsize][1]
    fill_bits = _fill_bits(name, fill, dtype)
    return PaddedField(name, None, view, carrier, fill_bits, dtype, field.trailing, per_token)


def made_field(name: str, made_from: str, dtype: torch.dtype) -> PaddedField:
    """Returns a field that is known from the lengths: the attention mask ("mask") or position ids ("positions")."""
    return PaddedField(name, made_from, None, _CARRIERS[dtype.itemsize][1], 0, dtype, (), 1)


def batch_dtype(name: str, have: str, kept: torch.dtype | None, asked: torch.dtype | None) -> torch.dtype:
    """Returns the dtype that values of dtype `have` get in a batch.

    Args:
        name: the key.
        have: the dtype's name.
        kept: that dtype in torch; None where torch has none.
        asked: the dtype that the caller wants; None: int64 for integers, `kept` for the others.

    Raises:
        TypeError: a dtype that the values cannot become.
    """
    is_integer = have.startswith(("int", "uint"))
    if asked is None:
        return torch.int64 if is_integer or kept is None else kept
    if asked is kept or (asked in (torch.int64, torch.int32) and (is_integer or have == "bool")):
        return asked
    known = [] if kept is None or kept in (torch.int64, torch.int32) else [kept]
    if is_integer or have == "bool":
        known += [torch.int64, torch.int32]
    choices = " or ".join(filter(None, [", ".join(map(str, known[:-1])), str(known[-1])]))
    raise TypeError(f'dtype["{name}"] = {asked} does not fit values of dtype {have}; use {choices}')


def _torch_dtype(field: FlatField) -> torch.dtype | None:
    dtype = getattr(torch, field.dtype, None)  # unsigned integers are torch's since 2.3
    return dtype if isinstance(dtype, torch.dtype) else None


def _fill_bits(name: str, fill: float, dtype: torch.dtype) -> int:
    """The fill as the integer that carries it."""
    try:
        value = torch.tensor(fill, dtype=dtype)
    except (RuntimeError, OverflowError, TypeError, ValueError):
        value = None
    if value is None or (not dtype.is_floating_point and value.item() != fill):
        raise ValueError(f'fill["{name}"] = {fill} does not fit {dtype}; choose another fill or dtype')
    return int(value.view(_CARRIERS[dtype.itemsize][2]).item())


def refuse_unknown_keys(option: str, named: Collection[str], known: Collection[str], kind: str) -> None:
    """Raises for an option that names a key which the samples lack; labels may be absent, as in prediction."""
    unknown = [name for name in named if name not in known and name != "labels"]
    if unknown:
        keys = ", ".join(f'"{name}"' for name in known)
        raise ValueError(f'{option} names "{unknown[0]}", which is not a {kind} key; the samples have {keys}')
