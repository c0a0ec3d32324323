"""Samples in, one padded batch of tensors out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from bucketshuffle.data.flat import FlatField
from bucketshuffle.options import flag, integer
from bucketshuffle.torch.fields import (
    PaddedGroup,
    Padder,
    batch_dtype,
    made_field,
    padded_field,
    refuse_keys_but_strings,
    refuse_unknown_keys,
)
from bucketshuffle.torch.groups import MAIN, by_group, checked_groups, offsets_by_group, option_of_groups
from bucketshuffle.torch.rows import flatten_rows, is_refused_memory, kind_of, stacked

__all__ = ["PadCollator"]

# The label that torch's cross entropy ignores.
_DEFAULT_FILL: dict[str, float] = {"labels": -100}
_Side = Literal["right", "left"]
_Planned = tuple[tuple[str, ...] | None, tuple[tuple[int, tuple[int, ...]], ...]]
_MASK_DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64)


class PadCollator:
    """Pads the samples of a batch to its longest and returns a plain dict of tensors.

    A sample is a dict (or any mapping), or a bare sequence of tokens, which counts as `{"input_ids": tokens}`. What
    happens to a key:

    * per-token values, `(length,)` or `(length, *trailing)`, as list, array or tensor: one tensor `(B, L, *trailing)`.
      All per-token keys of a group (see `groups`; without it all keys are one) have the same length in a sample, and
      `L` is the longest of the group in the batch, rounded up to `pad_to_multiple_of`.
    * a number: one tensor `(B,)`. Keys named in `stack` may hold arrays of one shape: `(B, *shape)`.
    * anything else, such as text: a list of `B`, untouched.

    Integers become int64, per token and per sample. Everything else keeps its dtype (floats in lists: torch's default
    dtype), unless `dtype` says otherwise.

    Masks come from the lengths and never from the values, so the fill may equal a real token. A key that the samples
    carry themselves, such as their own `attention_mask` or `lengths`, is collated like any other and never overwritten.

    A collator holds no state that a call shows, so threads may share it. Its options are not changed after it is made.

    Args:
        fill: the value of padding per key. Default: -100 for `labels`, 0 for every other key. A key that the samples
            lack is refused here and in `dtype`, except `labels`, which prediction has none of.
        groups: the keys whose rows have another length than the main ones, by a name for each such group, as in
            `{"decoder": ["labels", "decoder_input_ids"]}`; all other keys are the group "main". Each group is padded to
            its own longest sample and has its own mask, and is one field of the planner's `lengths`.
        dtype: the dtype of a key's tensor. Integers and bools take int64 or int32 (checked, never wrapped); every dtype
            takes itself.
        side: where the padding goes: one side for all groups, or a mapping by group.
        pad_to_multiple_of: round `L` up to a multiple of this, in tokens; one for all groups, or a mapping by group.
            Give the sampler the same.
        padding_of: pad to the lengths that a `BucketBatchSampler`, a `Schedule` or a `Planner` plans with. Use it in
            place of `pad_to_multiple_of` whenever there is one, and always with `padded_lengths`. Its fields are the
            groups by name, where it has names, else in order: main, then as in `groups`.
        attention_mask: dtype of `attention_mask` `(B, L)`, True or 1 at real tokens: torch.bool, uint8, int32, int64.
            None: no mask. Other groups than the main one get `<group>_attention_mask`.
        mask_names: another key for the mask of a group, by group; None: no mask of it.
        lengths: add `lengths` `(B,)`, int64, real tokens of each sample; of other groups `<group>_lengths`.
        position_ids: add `position_ids` `(B, L)`, int64, counted from 0 at the first real token, on either side; 0 at
            padding; of other groups `<group>_position_ids`.
        sample_indices: add `sample_indices` `(B,)`, int64. A `PreloadedDataset` knows them; other samples must carry
            the key.
        stack: keys with one array of fixed shape per sample, such as an embedding.

    Raises:
        TypeError, ValueError: an option outside its choices; on a call, samples that do not fit together, named by key
            and position.

    Examples:
        >>> collate = PadCollator({"input_ids": 2}, pad_to_multiple_of=4)
        >>> batch = collate([{"input_ids": [5, 6, 2]}, {"input_ids": [7]}])
        >>> batch["input_ids"]
        tensor([[5, 6, 2, 2],
                [7, 2, 2, 2]])
        >>> batch["attention_mask"]
        tensor([[ True,  True,  True, False],
                [ True, False, False, False]])
    """

    def __init__(
        self,
        fill: Mapping[str, float] | None = None,
        *,
        groups: Mapping[str, Collection[str]] | None = None,
        dtype: Mapping[str, torch.dtype] | None = None,
        side: _Side | Mapping[str, _Side] = "right",
        pad_to_multiple_of: int | Mapping[str, int] = 1,
        padding_of: Any = None,
        attention_mask: torch.dtype | None = torch.bool,
        mask_names: Mapping[str, str | None] | None = None,
        lengths: bool = False,
        position_ids: bool = False,
        sample_indices: bool = False,
        stack: Collection[str] = (),
    ) -> None:
        _check_mapping("fill", fill, "0")
        for name, value in (fill or {}).items():
            if not isinstance(value, Real):
                raise TypeError(f'fill["{name}"] = {value!r} is not a number; give the value that padding gets')
        _check_mapping("dtype", dtype, "torch.int32")
        for name, choice in (dtype or {}).items():
            if not isinstance(choice, torch.dtype):
                raise TypeError(f'dtype["{name}"] = {choice!r} is not a torch.dtype; use one such as torch.int32')
        if attention_mask is not None and attention_mask not in _MASK_DTYPES:
            choices = ", ".join(map(str, _MASK_DTYPES))
            raise ValueError(f"attention_mask = {attention_mask!r} is not one of {choices}, None")
        if isinstance(stack, str):
            raise TypeError(f'stack = "{stack}" is a str, not a collection of keys; use ("{stack}",)')
        if not isinstance(stack, Collection):
            raise TypeError(f"stack = {stack!r} is not a collection of keys")
        self.fill = dict(fill or {})
        self.dtype = dict(dtype or {})
        self.groups = checked_groups(groups)
        self.side = side
        self._sides = option_of_groups("side", side, self.groups, _checked_side, "right")
        self.pad_to_multiple_of, self.padding = pad_to_multiple_of, _padding_of(pad_to_multiple_of, padding_of)
        self._multiples = option_of_groups("pad_to_multiple_of", pad_to_multiple_of, self.groups, _checked_multiple, 1)
        self.attention_mask = attention_mask
        self.mask_names = dict(mask_names or {})
        option_of_groups("mask_names", self.mask_names, self.groups, lambda _, key: key, None)
        self.lengths = flag("lengths", lengths)
        self.position_ids = flag("position_ids", position_ids)
        self.sample_indices = flag("sample_indices", sample_indices)
        self.stack = tuple(stack)
        self._held: tuple[object, Padder] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self) and not name.startswith("_"):
            raise AttributeError(f"{name} of a PadCollator cannot be changed; make another PadCollator")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"PadCollator({options})"

    def __call__(self, items: Sequence[Any], *, out: Mapping[str, torch.Tensor] | None = None) -> dict[str, Any]:
        """Returns the batch of `items`.

        Args:
            items: the samples of one batch, all with the same keys.
            out: tensors to write padded fields into, by key, each contiguous, of the batch's dtype and with room for `B
                * L` tokens; the batch holds views of them, which the next call with the same `out` overwrites. Missing
                  keys get fresh tensors.
        """
        try:
            return self._collate(_columns(items), out)
        except RuntimeError as error:
            if not is_refused_memory(error):
                raise
            raise MemoryError(f"a batch of {len(items)} samples does not fit in memory; lower token_budget") from error

    def _collate(self, columns: dict[str, list[Any]], out: Mapping[str, torch.Tensor] | None) -> dict[str, Any]:
        flat: dict[str, FlatField] = {}
        lengths: dict[str, npt.NDArray[np.int64]] = {}
        for name, column in columns.items():
            if name not in self.stack and kind_of(column) == "tokens":
                flat[name], lengths[name] = flatten_rows(name, column)
        if not flat:
            if not columns:
                raise ValueError("items[0] has no keys; a sample needs at least one sequence of tokens")
            keys = ", ".join(f'"{name}"' for name in columns)
            raise ValueError(
                f"items have no per-token key among {keys}; a batch without one needs torch's default_collate"
            )
        offsets = offsets_by_group(lengths, self.groups, lambda i, key: f'items[{i}]["{key}"]')
        if self.sample_indices and "sample_indices" not in columns:
            raise ValueError(
                'items do not carry "sample_indices"; return it from the data set\'s __getitem__, or use a '
                "PreloadedDataset"
            )
        gathered = {name: self._gather(name, column) for name, column in columns.items() if name not in flat}
        numbers = {name for name, value in gathered.items() if isinstance(value, torch.Tensor)}
        padder = self._padder(flat, numbers, columns)
        n_samples = len(next(iter(lengths.values())))
        padded = padder.pad(padder.requests(flat, offsets), np.arange(n_samples), out=out)
        # In the samples' own order of keys, then what was made.
        batch = {name: padded.pop(name) if name in flat else gathered[name] for name in columns}
        return batch | padded

    def _padder(self, flat: Mapping[str, FlatField], numbers: Collection[str], present: Collection[str]) -> Padder:
        """The padder of the batch before, where this one has fields of the same kinds."""
        kinds = [(name, field.dtype, field.trailing) for name, field in flat.items()], set(numbers), set(present)
        held = self._held  # read once: another thread may replace it
        if held is None or held[0] != kinds:
            self._held = held = kinds, self.padder(flat, numbers, present)
        return held[1]

    def padder(
        self, flat: Mapping[str, FlatField], numbers: Collection[str] = (), present: Collection[str] = ()
    ) -> Padder:
        """Returns what pads batches of the fields `flat` under these options.

        Args:
            flat: the per-token fields.
            numbers: the keys with numbers per sample, which `dtype` may name.
            present: all keys of the samples, none of which is made.

        Raises:
            TypeError, ValueError: an option that does not fit the fields.
        """
        refuse_unknown_keys("fill", self.fill, flat, "per-token")
        refuse_unknown_keys("dtype", self.dtype, [*flat, *numbers], "numeric")
        refuse_unknown_keys("groups", [key for keys in self.groups.values() for key in keys], flat, "per-token")
        taken = {*flat, *numbers, *present}
        divided = by_group(flat, self.groups)
        groups = []
        for (group, keys), (multiple, padded_lengths) in zip(divided.items(), self.padding_by(divided), strict=True):
            prefix = "" if group == MAIN else f"{group}_"
            fields = [
                padded_field(name, flat[name], self.fill.get(name, _DEFAULT_FILL.get(name, 0)), self.dtype.get(name))
                for name in keys
            ]
            mask = self.mask_names.get(group, f"{prefix}attention_mask")
            if self.attention_mask is not None and mask is not None and mask not in taken:
                fields.append(made_field(mask, "mask", self.attention_mask))
            if self.position_ids and f"{prefix}position_ids" not in taken:
                fields.append(made_field(f"{prefix}position_ids", "positions", torch.int64))
            lengths = f"{prefix}lengths" if self.lengths and f"{prefix}lengths" not in taken else None
            left = self._sides[group] == "left"
            groups.append(PaddedGroup(group, tuple(fields), left, multiple, padded_lengths, lengths))
        return Padder(groups, sample_indices=self.sample_indices and "sample_indices" not in taken)

    def padding_by(self, groups: Collection[str]) -> list[tuple[int, tuple[int, ...]]]:
        """Returns of each of these groups the multiple that it is padded to, and the padded lengths that come first,
        ascending.

        Raises:
            ValueError: `padding_of` plans other groups.
        """
        if self.padding is None:
            return [(self._multiples[group], ()) for group in groups]
        names, padding = self.padding
        if names is not None and set(groups) <= set(names):
            return [padding[names.index(group)] for group in groups]
        if names is not None or len(padding) != len(groups):
            planned = f"{len(padding)} fields" if names is None else ", ".join(names)
            raise ValueError(
                f"padding_of plans {planned}, but the samples have the groups {', '.join(groups)}; give the planner "
                "the lengths of each group"
            )
        return list(padding)

    def numbers(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Returns the numbers of one key, `(n, *shape)`, in the dtype of a batch: int64 for integers unless `dtype`
        says otherwise.

        Raises:
            TypeError: a dtype that the values cannot become.
            ValueError: a value outside that dtype.
        """
        have = str(values.dtype).removeprefix("torch.")
        dtype = batch_dtype(name, have, values.dtype, self.dtype.get(name))
        if dtype is values.dtype:
            return values
        converted = values.to(dtype)
        again = converted.to(values.dtype)
        # A uint64 beyond int64 comes back as it was, and is negative here.
        if not torch.equal(again, values) or (have == "uint64" and bool((converted < 0).any())):
            wrong = (again != values) | (converted < 0) if have == "uint64" else again != values
            first = int(wrong.reshape(len(values), -1).any(dim=1).nonzero()[0])
            way_out = "correct the value" if dtype is torch.int64 else "ask for a wider dtype"
            raise ValueError(f"{name} of sample {first} has value {values[first].tolist()}, outside {dtype}; {way_out}")
        return converted

    def _gather(self, name: str, column: Sequence[Any]) -> Any:
        """A key without tokens: numbers stacked, anything else as it is."""
        if name not in self.stack and kind_of(column) != "scalar":
            return list(column)
        return self.numbers(name, stacked(name, column))


def _check_mapping(option: str, value: object, example: str) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(
            f'{option} = {value!r} is a {type(value).__name__}, not a mapping by key; use {{"input_ids": {example}}}'
        )


def _checked_side(name: str, side: Any) -> _Side:
    if side not in ("right", "left"):
        raise ValueError(f'{name} = {side!r} is not one of "right", "left"')
    checked: _Side = side
    return checked


def _checked_multiple(name: str, multiple: Any) -> int:
    return integer(name, multiple, 1)


def _padding_of(pad_to_multiple_of: Any, padding_of: Any) -> _Planned | None:
    """The names of the planned fields, and the padding of each; None: as `pad_to_multiple_of` says."""
    if padding_of is None:
        return None
    if pad_to_multiple_of != 1:
        raise ValueError("pad_to_multiple_of has no effect with padding_of; leave pad_to_multiple_of out")
    planned = getattr(padding_of, "schedule", padding_of)
    if not hasattr(planned, "padding"):
        raise TypeError(
            f"padding_of is a {type(padding_of).__name__}, not a sampler, a Schedule or a Planner; pass what plans the "
            "batches"
        )
    return planned.field_names, planned.padding


def _columns(items: Sequence[Any]) -> dict[str, list[Any]]:
    """The samples by key, once they are known to be a list of samples with the same keys."""
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        refuse_single(items)
    if not items:
        raise ValueError("items is empty; a batch needs at least one sample")
    first = items[0]
    if isinstance(first, (Real, str)) or getattr(first, "ndim", 1) == 0:
        refuse_single(items)
    if isinstance(first, Mapping):
        return columns_of(items, "items")
    if kind_of(items) != "tokens" or isinstance(first, tuple):
        raise TypeError(
            f"items[0] is a {type(first).__name__}, not a dict or a sequence of tokens; return a dict from the data set"
        )
    return {"input_ids": list(items)}


def columns_of(items: Sequence[Any], name: str) -> dict[str, list[Any]]:
    """Returns dicts by key, once they are known to have the same keys; errors call them `name`."""
    first = items[0]
    for position, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise TypeError(
                f"{name}[{position}] is a {type(item).__name__}, but {name}[0] is a mapping; all samples need "
                "the same keys"
            )
        if item.keys() != first.keys():
            odd = sorted(item.keys() ^ first.keys(), key=str)[0]
            has, lacks = (position, 0) if odd in item else (0, position)
            raise ValueError(f'{name}[{has}] has "{odd}", but {name}[{lacks}] has not; all samples need the same keys')
    refuse_keys_but_strings(f"{name}[0]", first, "name every key of a sample")
    return {key: [item[key] for item in items] for key in first}


def refuse_single(item: object) -> NoReturn:
    """Raise for one sample where a list of samples belongs."""
    raise TypeError(
        f"items is a single sample (a {type(item).__name__}), not a list of samples: the loader has lost its "
        "batch sampler, as Ray's "
        "prepare_data_loader does to it; pass add_dist_sampler=False there, or give the DataLoader a batch_sampler"
    )
