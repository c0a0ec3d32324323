"""A data set that is a few flat buffers, and batches that are one native call."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from bucketshuffle.data.flat import checked_offsets
from bucketshuffle.data.saved import read_fields, write_fields
from bucketshuffle.torch.collate import PadCollator, columns_of, refuse_single
from bucketshuffle.torch.columns import as_field, as_offsets, as_scalar, checked_samples, from_saved, to_saved
from bucketshuffle.torch.fields import GroupRequest, Padder, refuse_keys_but_strings
from bucketshuffle.torch.groups import by_group, offsets_by_group, stacked_lengths
from bucketshuffle.torch.rows import flatten_rows, kind_of, stacked, tensor_field

if TYPE_CHECKING:
    from bucketshuffle import EpochPlan

__all__ = ["PreloadedDataset"]

_Path = str | os.PathLike[str]


class PreloadedDataset(Dataset[dict[str, Any]]):
    """Keeps all tokens of a data set in flat buffers and pads a whole batch in one native call, without the interpreter
    lock.

    Sample `i` owns tokens `offsets[i]..offsets[i + 1]` of every per-token field. The loader needs one line:

        DataLoader(dataset, batch_sampler=..., collate_fn=dataset.collate)

    because torch hands a batch's indices to `__getitems__`, which returns the padded batch, and `collate` passes it on.
    Use no worker processes: moving a batch between processes takes longer than making it. Threads may share a data set.

    The buffers are shared, not copied, and are read while other threads run: do not write to an array, tensor or file
    that a data set was made from. A data set on memory maps (`open`, or `.npy` files) pickles as their paths.

    Args:
        values: per-token fields by key, each `[n_tokens, *trailing]`: arrays, CPU tensors, or paths of `.npy` files,
            which are mapped. A single one counts as `{"input_ids": values}`.
        offsets: `[n_samples + 1]`, integer, tokens before each sample and at the end: an array, a tensor or the path
            of a `.npy` file. A collator with `groups` needs a mapping of them by group, "main" for all other keys.
        scalars: fields with one number per sample, `[n_samples, *trailing]`; arrays are copied.
        collator: how batches are padded; default `PadCollator()`.

    Attributes:
        lengths: `[n_samples]`, int64, read-only, tokens per sample: what a planner or sampler takes. With several
            groups `[n_samples, n_groups]`, main first, then as in the collator's `groups`.
        offsets: `[n_samples + 1]`, int64, read-only; with several groups a mapping of such.
        collator: may be replaced between batches, by one of the same groups.

    Raises:
        TypeError: buffers that hold no numbers.
        ValueError: offsets that do not start at 0, fall, or end elsewhere than the values.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | Any,
        offsets: Any,
        *,
        scalars: Mapping[str, Any] | None = None,
        collator: PadCollator | None = None,
    ) -> None:
        if not isinstance(values, Mapping):
            values = {"input_ids": values}
        if not values:
            raise ValueError("values has no fields; give at least one buffer of tokens")
        if scalars is not None and not isinstance(scalars, Mapping):
            raise TypeError(
                f"scalars is a {type(scalars).__name__}, not a mapping; pass arrays by the name of the field"
            )
        for option, named in (("values", values), ("scalars", scalars or {})):
            refuse_keys_but_strings(option, named, "name every field")
        collator = _checked(PadCollator() if collator is None else collator)
        divided = by_group(values, collator.groups)
        self._offsets = as_offsets(offsets, list(divided))
        self._by_group = {group: checked_offsets(field.values) for group, field in self._offsets.items()}
        self.offsets = self._by_group if len(divided) > 1 else self._by_group[next(iter(divided))]
        self.lengths = stacked_lengths(self._by_group)
        self._fields = {name: as_field(name, value) for name, value in values.items()}
        self._group_of = {name: group for group, names in divided.items() for name in names}
        for name, field in self._fields.items():
            n_tokens = int(self._by_group[self._group_of[name]][-1])
            if len(field.values) != n_tokens:
                raise ValueError(
                    f'values["{name}"] holds {len(field.values)} tokens, but offsets[-1] = {n_tokens}; they '
                    "belong to different data"
                )
        self._scalars = {name: as_scalar(name, value) for name, value in (scalars or {}).items()}
        for name, scalar in self._scalars.items():
            if name in self._fields:
                raise ValueError(f'scalars["{name}"] has the name of a per-token field; give it another')
            if scalar.ndim == 0 or len(scalar) != len(self):
                n_values = len(scalar) if scalar.ndim else 1
                raise ValueError(f'scalars["{name}"] holds {n_values} values, but there are {len(self)} samples')
        self.collator = collator

    @classmethod
    def from_rows(
        cls, rows: Mapping[str, Sequence[Any]] | Sequence[Any], *, collator: PadCollator | None = None
    ) -> PreloadedDataset:
        """Returns a data set of rows (lists, arrays or tensors), which are copied end to end.

        Args:
            rows: per-token keys and numbers by key; or a sequence of samples, each a dict or a bare row of tokens,
                which counts as `{"input_ids": row}`.
            collator: how batches are padded; default `PadCollator()`.

        Raises:
            TypeError: values that are neither tokens nor numbers.
            ValueError: no samples, samples with different keys, or columns whose rows differ in length.
        """
        if not isinstance(rows, Mapping):
            is_dicts = len(rows) > 0 and isinstance(rows[0], Mapping)
            rows = columns_of(rows, "rows") if is_dicts else {"input_ids": rows}
        flat: dict[str, Any] = {}
        scalars: dict[str, Any] = {}
        lengths: dict[str, npt.NDArray[np.int64]] = {}
        for name, column in rows.items():
            if isinstance(column, (str, bytes)) or not hasattr(column, "__len__"):
                raise TypeError(f'rows["{name}"] is a {type(column).__name__}, not one row per sample')
            if len(column) == 0:
                raise ValueError(f'rows["{name}"] is empty; a data set needs at least one sample')
            kind = kind_of(column)
            if kind == "other":
                raise TypeError(
                    f'rows["{name}"] holds {type(column[0]).__name__} values, neither tokens nor numbers; leave it out'
                )
            if kind == "scalar":
                scalars[name] = stacked(name, column) if isinstance(column, (list, tuple)) else column
                continue
            flat[name], lengths[name] = flatten_rows(name, column)
        if not flat:
            raise ValueError("rows has no per-token key; give at least one sequence of tokens per sample")
        return cls._of_columns("rows", flat, lengths, scalars, collator)

    @classmethod
    def _of_columns(
        cls,
        source: str,
        flat: Mapping[str, Any],
        lengths: Mapping[str, npt.NDArray[np.int64]],
        scalars: Mapping[str, Any],
        collator: PadCollator | None,
    ) -> PreloadedDataset:
        groups = {} if collator is None else collator.groups
        offsets = offsets_by_group(lengths, groups, lambda i, key: f'{source}["{key}"][{i}]')
        return cls(flat, offsets, scalars=scalars, collator=collator)

    @classmethod
    def from_arrow(
        cls, source: Any, columns: Sequence[str] | None = None, *, collator: PadCollator | None = None
    ) -> PreloadedDataset:
        """Returns a data set that shares the buffers of an Arrow table; several chunks are copied.

        Args:
            source: an Arrow table or record batch, a polars DataFrame, or a list array, which counts as `input_ids`.
                Columns of lists of numbers are per-token fields, lists of lists features `(length, D)`, columns of
                numbers scalars.
            columns: the columns to load; default: all.
            collator: how batches are padded; default `PadCollator()`.

        Raises:
            TypeError: a source or a column of another type.
            ValueError: null rows or tokens, an unknown column, columns whose rows differ in length.
        """
        from bucketshuffle.data import arrow

        if arrow.is_column(source):
            values, offsets = arrow.read_lists("input_ids", source)
            return cls(values, offsets, collator=collator)
        fields, lengths, scalars = arrow.read_table(arrow.table_of(source, columns))
        return cls._of_columns("columns", fields, lengths, scalars, collator)

    @classmethod
    def from_parquet(
        cls, path: _Path, columns: Sequence[str] | None = None, *, collator: PadCollator | None = None
    ) -> PreloadedDataset:
        """Returns a data set of a Parquet file, or of a folder of them; see `from_arrow`."""
        from bucketshuffle.data import arrow

        return cls.from_arrow(arrow.read_parquet(path, columns), columns, collator=collator)

    @classmethod
    def from_hugging_face(
        cls, dataset: Any, columns: Sequence[str] | None = None, *, collator: PadCollator | None = None
    ) -> PreloadedDataset:
        """Returns a data set of a Hugging Face data set, in the visible order after `shuffle` or `select`; see
        `from_arrow`. Columns that `set_format` hides are left out unless `columns` names them.
        """
        return cls.from_arrow(dataset, columns, collator=collator)

    @classmethod
    def open(cls, path: _Path, *, verify: bool = False, collator: PadCollator | None = None) -> PreloadedDataset:
        """Returns a saved data set, mapped into memory; nothing but the offsets is read.

        Args:
            path: what `save` wrote; or a `safetensors` file with the arrays `offsets` and `values.<field>`, the same as
                `groups.<group>.offsets` and `groups.<group>.values.<field>` for other groups than the main one, and
                `scalars.<field>` for numbers per sample. Do not write to it while the data set is in use. Replacing it,
                as `save` does, is safe.
            verify: read everything once and check its sums. The header and the offsets are always checked.
            collator: how batches are padded; default: a `PadCollator` of the groups in the file.

        Raises:
            OSError: no such file, or one that may not be read.
            ValueError: a file that holds no data set, is truncated, or is corrupt; the text says which.
        """
        saved = from_saved(read_fields(path, verify=verify), os.fspath(path))
        if collator is None:
            collator = PadCollator(groups=saved.groups)
        elif collator.groups != saved.groups:
            raise ValueError(
                f"{os.fspath(path)} holds the groups {saved.groups}, but the collator has {collator.groups}; make the "
                "collator with those of the file"
            )
        try:
            return cls(saved.values, saved.offsets, scalars=saved.scalars, collator=collator)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{os.fspath(path)}: {error}") from None

    def save(self, path: _Path) -> None:
        """Writes the data set to a `safetensors` file, which every tool for that format reads.

        It is written to a temporary file beside `path`, synced and renamed, so `path` is never half a data set. A link
        stays a link, and a file that is replaced keeps its mode.

        Raises:
            OSError: the folder cannot be written to, or is full.
            ValueError: `path` is no regular file, such as a pipe.
        """
        fields = to_saved(self._by_group, self._fields, self._group_of)
        fields |= {f"scalars.{name}": tensor_field(name, scalar) for name, scalar in self._scalars.items()}
        write_fields(path, fields)

    @property
    def collator(self) -> PadCollator:
        return self._held.collator

    @collator.setter
    def collator(self, collator: PadCollator) -> None:
        divided = by_group(self._fields, _checked(collator).groups)
        if {name: group for group, names in divided.items() for name in names} != self._group_of:
            raise ValueError(f"collator has the groups {collator.groups}, not those of the data set; make it with them")
        padder = collator.padder(self._fields, self._scalars)
        # One assignment, so that a batch on another thread sees one collator.
        self._held = _Held(
            collator,
            padder,
            padder.requests(self._fields, self._by_group),
            {name: collator.numbers(name, scalar) for name, scalar in self._scalars.items()},
        )

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """The per-token keys of each group, in the order of the columns of `lengths`."""
        return by_group(self._fields, self.collator.groups)

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {field.dtype}{list(field.trailing) or ''}" for name, field in self._fields.items())
        return f"PreloadedDataset({len(self)} samples, {self.lengths.sum()} tokens, {fields})"

    def __getitem__(self, sample: int) -> dict[str, Any]:
        """Returns one sample, unpadded, in a batch's dtypes: per-token fields `(length, *trailing)`, and scalars."""
        held, index = self._held, operator.index(sample)
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample = {index} is outside 0 <= sample < n_samples = {len(self)}")
        index %= len(self)
        item: dict[str, Any] = {}
        for group, asked in zip(held.padder.groups, held.requests, strict=True):
            start, end = self._by_group[group.name][index : index + 2].tolist()
            for field, request in zip(group.fields, asked.fields, strict=True):
                if field.made_from is None:
                    item[field.name] = field.row(request, start, end)
        item |= {name: scalar[index] for name, scalar in held.scalars.items()}
        if held.collator.sample_indices:
            item.setdefault("sample_indices", index)
        return item

    def __getitems__(self, samples: Sequence[int] | npt.NDArray[np.int64]) -> dict[str, Any]:
        """Returns the padded batch of these samples; what a DataLoader calls. See `batch`."""
        return self.batch(samples)

    def batch(
        self, samples: Sequence[int] | npt.NDArray[np.int64], *, out: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, Any]:
        """Returns the padded batch of these samples, as the collator describes it. Threads may call it at one time.

        Args:
            samples: `(B,)`, integer; negative ones are refused.
            out: tensors to write into, see `PadCollator.__call__`.

        Raises:
            IndexError: a sample that the data set does not have.
            TypeError: samples that are not integers.
            ValueError: no samples, or an `out` that is too small.
        """
        held = self._held
        if isinstance(samples, (np.ndarray, torch.Tensor)):
            samples = checked_samples(samples)
        batch = held.padder.pad(held.requests, samples, out=out)
        if held.scalars:
            indices = torch.from_numpy(np.array(samples, np.int64))  # a copy: those of a plan are read-only
            batch |= {name: scalar[indices] for name, scalar in held.scalars.items()}
        return batch

    def collate(self, batch: Any) -> dict[str, Any]:
        """Returns what `__getitems__` made, or pads a list of samples; it is the `collate_fn` of a loader.

        Raises:
            TypeError: a single sample, as a loader without batch sampler hands over.
        """
        if not isinstance(batch, Mapping):
            return self.collator(batch)
        field = self._held.padder.fields[0]
        if field.name not in batch or batch[field.name].ndim != 2 + len(field.trailing):
            refuse_single(batch)
        return dict(batch)

    def build_batches(self, seed: int, epoch: int = 0, **options: Any) -> EpochPlan:
        """Returns the plan of one epoch over this data set's lengths.

        The plan yields int64 index arrays, so it is a `batch_sampler` as it stands.

        Args:
            seed: see `bucketshuffle.pack_epoch`.
            epoch: see `bucketshuffle.pack_epoch`.
            options: those of `bucketshuffle.pack_epoch`; `pad_to_multiple_of` and `padded_lengths` are the collator's
                unless given.

        Raises:
            TypeError, ValueError: as `pack_epoch`; a `pad_to_multiple_of` to which the collator does not pad.
        """
        from bucketshuffle import Planner

        paddings = self.collator.padding_by(list(self._by_group))
        several = len(paddings) > 1
        if any(padded_lengths for _, padded_lengths in paddings):
            lists = [padded_lengths or None for _, padded_lengths in paddings]
            options.setdefault("padded_lengths", lists if several else lists[0])
        else:
            multiples = [multiple for multiple, _ in paddings]
            options.setdefault("pad_to_multiple_of", multiples if several else multiples[0])
        planner = Planner(self.lengths, **options)
        for (planned, planned_lengths), (multiple, padded_lengths) in zip(planner.padding, paddings, strict=True):
            if planned_lengths != padded_lengths:
                raise ValueError(
                    "padded_lengths are not those of the collator, which would pad to others; make the collator with "
                    "padding_of, or leave padded_lengths out"
                )
            if planned % multiple:
                raise ValueError(
                    f"pad_to_multiple_of = {planned} is no multiple of the collator's pad_to_multiple_of = {multiple}, "
                    "so batches would exceed token_budget; leave it out"
                )
        return planner.plan(seed, epoch)

    def __getstate__(self) -> dict[str, Any]:
        # Fields know their place in a file, and pickle as it; torch pickles no unsigned integers.
        return {
            "fields": self._fields,
            "offsets": self._offsets,
            "scalars": {name: tensor_field(name, scalar) for name, scalar in self._scalars.items()},
            "collator": self.collator,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        again = PreloadedDataset(
            state["fields"], state["offsets"], scalars=state["scalars"], collator=state["collator"]
        )
        self.__dict__.update(again.__dict__)


class _Held(NamedTuple):
    """What makes a batch, under one collator."""

    collator: PadCollator
    padder: Padder
    requests: tuple[GroupRequest, ...]
    scalars: dict[str, torch.Tensor]


def _checked(collator: Any) -> PadCollator:
    if not isinstance(collator, PadCollator):
        raise TypeError(f"collator = {collator!r} is not a PadCollator")
    return collator
