"""Samples in, one padded batch of tensors out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from bucketshuffle import _core
from bucketshuffle.torch._flat import FlatField, PaddedField, flatten_rows, kind_of, made_field, padded_field

__all__ = ["PadCollator"]

# The label that torch's cross entropy ignores.
_DEFAULT_FILL: dict[str, float] = {"labels": -100}
_MASK_DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64)


class PadCollator:
    """Pads the samples of a batch to its longest and returns a plain dict of tensors.

    A sample is a dict (or any mapping), or a bare sequence of tokens, which counts as `{"input_ids": tokens}`. What
    happens to a key:

    * per-token values, `(length,)` or `(length, *trailing)`, as list, array or tensor: one tensor `(B, L, *trailing)`.
      All per-token keys of a sample have the same length, and `L` is the longest length of the batch, rounded up to
      `pad_to_multiple_of`. Integers become int64, everything else keeps its dtype (lists of floats: torch's default
      dtype), unless `dtype` says otherwise.
    * a number: one tensor `(B,)`. Keys named in `stack` may hold arrays of one shape: `(B, *shape)`.
    * anything else, such as text: a list of `B`, untouched.

    Masks come from the lengths and never from the values, so the fill may equal a real token. A key that the samples
    carry themselves, such as their own `attention_mask`, is padded like any other field (with 0) and never overwritten.

    Args:
        fill: the value of padding per key. Default: -100 for `labels`, 0 for every other key. A key that the samples
            lack is refused here and in `dtype`, except `labels`, which prediction has none of.
        dtype: the dtype of a key's tensor. Integers and bools take int64 or int32 (checked, never wrapped); every dtype
            takes itself.
        side: where the padding goes, the same for all keys.
        pad_to_multiple_of: `L` is a multiple of this, in tokens.
        attention_mask: dtype of `attention_mask` `(B, L)`, True or 1 at real tokens: torch.bool, uint8, int32, int64.
            None: no mask.
        lengths: add `lengths` `(B,)`, int64, real tokens of each sample.
        position_ids: add `position_ids` `(B, L)`, int64, counted from 0 at the first real token, on either side; 0 at
            padding.
        sample_indices: add `sample_indices` `(B,)`, int64. A `PreloadedDataset` knows them; other samples must carry
            the key.
        stack: keys with one array of fixed shape per sample, such as an embedding.

    Raises:
        TypeError, ValueError: an option outside its choices; on a call, samples that do not fit together, named by key
            and position.

    Example:
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
        dtype: Mapping[str, torch.dtype] | None = None,
        side: Literal["right", "left"] = "right",
        pad_to_multiple_of: int = 1,
        attention_mask: torch.dtype | None = torch.bool,
        lengths: bool = False,
        position_ids: bool = False,
        sample_indices: bool = False,
        stack: Collection[str] = (),
    ) -> None:
        for name, value in (fill or {}).items():
            if not isinstance(value, Real):
                raise TypeError(f'fill["{name}"] = {value!r} is not a number; give the value that padding gets')
        if side not in ("right", "left"):
            raise ValueError(f'side = {side!r} is not one of "right", "left"')
        if not isinstance(pad_to_multiple_of, int) or isinstance(pad_to_multiple_of, bool):
            raise TypeError(f"pad_to_multiple_of = {pad_to_multiple_of!r} is not an int; use 1 for no rounding")
        if pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of = {pad_to_multiple_of} is not positive; use 1 for no rounding")
        if attention_mask is not None and attention_mask not in _MASK_DTYPES:
            choices = ", ".join(map(str, _MASK_DTYPES))
            raise ValueError(f"attention_mask = {attention_mask!r} is not one of {choices}, None")
        if isinstance(stack, str):
            raise TypeError(f'stack = "{stack}" is a str, not a collection of keys; use ("{stack}",)')
        self.fill = dict(fill or {})
        self.dtype = dict(dtype or {})
        self.side = side
        self.pad_to_multiple_of = pad_to_multiple_of
        self.attention_mask = attention_mask
        self.lengths = lengths
        self.position_ids = position_ids
        self.sample_indices = sample_indices
        self.stack = tuple(stack)

    def __repr__(self) -> str:
        return f"PadCollator({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __call__(self, items: Sequence[Any], *, out: Mapping[str, torch.Tensor] | None = None) -> dict[str, Any]:
        """Collate `items`, the samples of one batch.

        Args:
            items: the samples, all with the same keys.
            out: tensors to write padded fields into, by key, each contiguous, of the batch's dtype and with room for `B
                * L` tokens; the batch holds views of them, which the next call with the same `out` overwrites. Missing
                  keys get fresh tensors.
        """
        columns = _columns(items)
        flat: dict[str, FlatField] = {}
        lengths: npt.NDArray[np.int64] | None = None
        for name, column in columns.items():
            if name in self.stack or kind_of(column) != "tokens":
                continue
            flat[name], field_lengths = flatten_rows(name, column)
            if lengths is None:
                lengths = field_lengths
            elif not np.array_equal(lengths, field_lengths):
                _refuse_lengths(next(iter(flat)), lengths, name, field_lengths)
        if lengths is None:
            keys = ", ".join(f'"{name}"' for name in columns)
            raise ValueError(
                f"items have no per-token key among {keys}; a batch without one needs torch's default_collate"
            )
        if self.sample_indices and "sample_indices" not in columns:
            raise ValueError(
                'items do not carry "sample_indices"; return it from the data set\'s __getitem__, or use a '
                "PreloadedDataset"
            )
        offsets = np.zeros(len(items) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        padded = self._pad(self._padded_fields(flat, columns), offsets, np.arange(len(items)), out)
        # In the samples' own order of keys, then what was made.
        batch = {
            name: padded.pop(name) if name in flat else self._gather(name, column) for name, column in columns.items()
        }
        return batch | {name: value for name, value in padded.items() if name not in batch}

    def _padded_fields(self, flat: Mapping[str, FlatField], present: Collection[str]) -> list[PaddedField]:
        """What a batch of these fields is made of; decided once per data set. `present` holds the keys that are not
        to be made.
        """
        for option, named in (("fill", self.fill), ("dtype", self.dtype)):
            # Data without labels, as in prediction, goes through the collator of training.
            unknown = [name for name in named if name not in flat and name != "labels"]
            if unknown:
                keys = ", ".join(f'"{name}"' for name in flat)
                raise ValueError(
                    f'{option} names "{unknown[0]}", which is not a per-token key; the samples have {keys}'
                )
        fields = [
            padded_field(name, field, self.fill.get(name, _DEFAULT_FILL.get(name, 0)), self.dtype.get(name))
            for name, field in flat.items()
        ]
        if self.attention_mask is not None and "attention_mask" not in present:
            fields.append(made_field("attention_mask", "mask", self.attention_mask))
        if self.position_ids and "position_ids" not in present:
            fields.append(made_field("position_ids", "positions", torch.int64))
        return fields

    def _pad(
        self,
        fields: Sequence[PaddedField],
        offsets: npt.NDArray[np.int64],
        samples: npt.NDArray[np.int64] | Sequence[int],
        out: Mapping[str, torch.Tensor] | None,
    ) -> dict[str, Any]:
        """Write a batch in one native call, without the interpreter lock."""
        taken = out or {}
        unknown = [name for name in taken if all(name != field.name for field in fields)]
        if unknown:
            keys = ", ".join(f'"{field.name}"' for field in fields)
            raise ValueError(f'out names "{unknown[0]}", which is not a padded key; the batch has {keys}')
        requests = [field.request(taken.get(field.name)) for field in fields]
        lengths, padded_length, arrays = _core.pad_rows(
            offsets, samples, requests, left=self.side == "left", pad_to_multiple_of=self.pad_to_multiple_of
        )
        shape = len(lengths), padded_length
        batch: dict[str, Any] = {}
        for field, request, fresh in zip(fields, requests, arrays, strict=True):
            batch[field.name] = field.read(request[-1] if fresh is None else fresh, shape)
        if self.lengths:
            batch["lengths"] = torch.from_numpy(lengths)
        if self.sample_indices:
            batch["sample_indices"] = torch.from_numpy(np.array(samples, np.int64))
        return batch

    def _gather(self, name: str, column: Sequence[Any]) -> Any:
        """A key without tokens: numbers stacked, anything else as it is."""
        if name not in self.stack and kind_of(column) != "scalar":
            return list(column)
        if not any(isinstance(value, (torch.Tensor, np.ndarray, np.generic)) for value in column):
            try:
                return torch.tensor(column)
            except (TypeError, ValueError, RuntimeError):
                _refuse_stack(name, column)
        if any(value is None for value in column):
            _refuse_stack(name, column)
        tensors = [torch.as_tensor(value) for value in column]
        if any(tensor.shape != tensors[0].shape for tensor in tensors):
            _refuse_stack(name, column)
        return torch.stack(tensors)


def _columns(items: Sequence[Any]) -> dict[str, list[Any]]:
    """The samples by key, once they are known to be a list of samples with the same keys."""
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        refuse_single(items)
    if not items:
        raise ValueError("items is empty; a batch needs at least one sample")
    first = items[0]
    if isinstance(first, (Real, str)) or getattr(first, "ndim", 1) == 0:
        refuse_single(items)
    if not isinstance(first, Mapping):
        if kind_of(items) != "tokens" or isinstance(first, tuple):
            raise TypeError(
                f"items[0] is a {type(first).__name__}, not a dict or a sequence of tokens; return a dict from "
                "the data set"
            )
        return {"input_ids": list(items)}
    for position, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise TypeError(
                f"items[{position}] is a {type(item).__name__}, but items[0] is a mapping; all samples need "
                "the same keys"
            )
        if item.keys() != first.keys():
            odd = sorted(item.keys() ^ first.keys(), key=str)[0]
            has, lacks = (position, 0) if odd in item else (0, position)
            raise ValueError(f'items[{has}] has "{odd}", but items[{lacks}] has not; all samples need the same keys')
    return {name: [item[name] for item in items] for name in first}


def refuse_single(item: object) -> NoReturn:
    """Raise for one sample where a list of samples belongs."""
    raise TypeError(
        f"items is a single sample (a {type(item).__name__}), not a list of samples: the loader has lost its "
        "batch sampler, as Ray's "
        "prepare_data_loader does to it; pass add_dist_sampler=False there, or give the DataLoader a batch_sampler"
    )


def _refuse_lengths(first: str, lengths: npt.NDArray[np.int64], name: str, other: npt.NDArray[np.int64]) -> NoReturn:
    i = int(np.flatnonzero(lengths != other)[0])
    raise ValueError(
        f'items[{i}]["{name}"] has {other[i]} tokens, but its "{first}" has {lengths[i]}; per-token keys of a '
        "sample have one length: "
        f'name a fixed shape in stack, or pad "{name}" with a PadCollator of its own'
    )


def _refuse_stack(name: str, column: Sequence[Any]) -> NoReturn:
    shapes = [tuple(np.shape(value)) for value in column]
    odd = next((i for i, value in enumerate(column) if value is None or shapes[i] != shapes[0]), 0)
    if column[odd] is None:
        raise TypeError(f'items[{odd}]["{name}"] is None, but items[0] has a number; give every sample one') from None
    raise ValueError(
        f'items[{odd}]["{name}"] has shape {shapes[odd]}, but items[0] has {shapes[0]}; '
        "values that are stacked have one shape"
    ) from None
