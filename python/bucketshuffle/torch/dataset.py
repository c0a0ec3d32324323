"""A data set that is a few flat buffers, and batches that are one native call."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from bucketshuffle.torch._file import MappedArray, read_arrays, unmapped, write_arrays
from bucketshuffle.torch._flat import FlatField, PaddedField, flat_field, flatten_rows, kind_of
from bucketshuffle.torch.collate import PadCollator, refuse_single

if TYPE_CHECKING:
    from bucketshuffle import EpochPlan

__all__ = ["PreloadedDataset"]

_Path = str | os.PathLike[str]


class PreloadedDataset(Dataset[dict[str, Any]]):
    """All tokens of a data set in flat buffers; a whole batch is padded in one native call, without the interpreter
    lock.

    Sample `i` owns tokens `offsets[i]..offsets[i + 1]` of every per-token field. The loader needs one line:

        DataLoader(dataset, batch_sampler=..., collate_fn=dataset.collate)

    since torch hands a batch's indices to `__getitems__`, which returns the padded batch, and `collate` passes it on.
    Use no worker
    processes: moving a batch between processes takes longer than making it.

    The buffers are shared, not copied, and are read while other threads run: do not write to an array, tensor or file
    that a data set was made from. A data set on memory maps (`open`, or `.npy` files) pickles as their paths.

    Args:
        values: per-token fields by key, each `(n_tokens, *trailing)`: arrays, CPU tensors, or paths of `.npy` files,
            which are mapped. A single one counts as `{"input_ids": values}`.
        offsets: `(n_samples + 1,)`, integer, tokens before each sample and at the end: an array, a tensor or the path
            of a `.npy` file.
        scalars: fields with one number per sample, `(n_samples, *trailing)`; arrays are copied.
        collator: how batches are padded; default `PadCollator()`.

    Attributes:
        lengths: `(n_samples,)`, int64, read-only, tokens per sample: what a planner or sampler takes.
        offsets: `(n_samples + 1,)`, int64, read-only.
        collator: may be replaced between batches.

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
        self.offsets = _checked_offsets(offsets)
        self.lengths = np.diff(self.offsets)
        self.lengths.flags.writeable = False
        n_tokens = int(self.offsets[-1])
        self._fields = {name: flat_field(name, _mapped(value)) for name, value in values.items()}
        for name, field in self._fields.items():
            if len(field.values) != n_tokens:
                raise ValueError(
                    f'values["{name}"] holds {len(field.values)} tokens, but offsets[-1] = {n_tokens}; they '
                    "belong to different data"
                )
        self._scalars = {name: _scalar(value) for name, value in (scalars or {}).items()}
        for name, scalar in self._scalars.items():
            if len(scalar) != len(self):
                raise ValueError(f'scalars["{name}"] holds {len(scalar)} values, but there are {len(self)} samples')
        self.collator = collator or PadCollator()

    @classmethod
    def from_rows(
        cls, rows: Mapping[str, Sequence[Any]] | Sequence[Any], *, collator: PadCollator | None = None
    ) -> PreloadedDataset:
        """Copy rows (lists, arrays or tensors) end to end: per-token keys and numbers by key, or a sequence of bare
        rows.
        """
        if not isinstance(rows, Mapping):
            rows = {"input_ids": rows}
        flat: dict[str, Any] = {}
        scalars: dict[str, Any] = {}
        offsets: npt.NDArray[np.int64] | None = None
        for name, column in rows.items():
            if len(column) == 0:
                raise ValueError(f'rows["{name}"] is empty; a data set needs at least one sample')
            kind = kind_of(column)
            if kind == "other":
                raise TypeError(
                    f'rows["{name}"] holds {type(column[0]).__name__} values, neither tokens nor numbers; leave it out'
                )
            if kind == "scalar":
                scalars[name] = torch.as_tensor(column)
                continue
            flat[name], lengths = flatten_rows(name, column)
            row_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            if offsets is not None and not np.array_equal(offsets, row_offsets):
                raise ValueError(
                    f'rows["{name}"] has other lengths than rows["{next(iter(flat))}"]; make it a data set of its own'
                )
            offsets = row_offsets
        if offsets is None:
            raise ValueError("rows has no per-token key; give at least one sequence of tokens per sample")
        return cls(flat, offsets, scalars=scalars, collator=collator)

    @classmethod
    def from_arrow(
        cls, source: Any, columns: Sequence[str] | None = None, *, collator: PadCollator | None = None
    ) -> PreloadedDataset:
        """Share the buffers of an Arrow table, record batch, or list array (which counts as `input_ids`); several
        chunks are copied.

        Args:
            source: columns of `list`, `large_list` or `fixed_size_list` of numbers are per-token fields, nested ones
                features `[L, D]`, columns of numbers scalars.
            columns: the columns to load; default: all.

        Raises:
            TypeError: a column of another type.
            ValueError: null rows or tokens, an unknown column, columns whose rows differ in length.
        """
        import pyarrow as pa

        from bucketshuffle.torch._arrow import read_lists, read_table

        if isinstance(source, (pa.Array, pa.ChunkedArray)):
            values, offsets = read_lists("input_ids", source)
            return cls(values, offsets, collator=collator)
        if isinstance(source, pa.RecordBatch):
            source = pa.Table.from_batches([source])
        if not isinstance(source, pa.Table):
            raise TypeError(f"source is a {type(source).__name__}, not an Arrow table, record batch or list array")
        fields, offsets, scalars = read_table(source, columns)
        return cls(fields, offsets, scalars=scalars, collator=collator)

    @classmethod
    def from_parquet(
        cls, path: _Path, columns: Sequence[str] | None = None, *, collator: PadCollator | None = None
    ) -> PreloadedDataset:
        """Read the columns of a Parquet file, or of a folder of them; see `from_arrow`."""
        import pyarrow.parquet as pq

        return cls.from_arrow(
            pq.read_table(path, columns=list(columns) if columns else None), columns, collator=collator
        )

    @classmethod
    def from_hugging_face(
        cls, dataset: Any, columns: Sequence[str] | None = None, *, collator: PadCollator | None = None
    ) -> PreloadedDataset:
        """Read a Hugging Face data set from its Arrow table, in the visible order after `shuffle` or `select`; see
        `from_arrow`.
        """
        from bucketshuffle.torch._arrow import hugging_face_table

        return cls.from_arrow(hugging_face_table(dataset, columns), columns, collator=collator)

    @classmethod
    def open(cls, path: _Path, *, verify: bool = False, collator: PadCollator | None = None) -> PreloadedDataset:
        """Map a saved data set into memory; nothing but the offsets is read.

        Args:
            path: what `save` wrote.
            verify: read everything once and check its sums. The header and the offsets are always checked.

        Raises:
            ValueError: a file that is not one of ours, is truncated, or is corrupt; the text says which.
        """
        arrays, extra = read_arrays(path, verify=verify)
        values: dict[str, Any] = {}
        for name in extra["fields"]:
            values[name] = FlatField(arrays[f"field:{name}"], name in extra["bfloat16"])
        return cls(
            values,
            arrays["offsets"],
            scalars={name: arrays[f"scalar:{name}"] for name in extra["scalars"]},
            collator=collator,
        )

    def save(self, path: _Path) -> None:
        """Write the data set to one file: to a temporary file beside it, synced and renamed, so `path` is never half
        a data set.
        """
        arrays = {"offsets": self.offsets}
        arrays |= {f"field:{name}": field.values for name, field in self._fields.items()}
        arrays |= {f"scalar:{name}": scalar.numpy() for name, scalar in self._scalars.items()}
        extra = {
            "fields": list(self._fields),
            "bfloat16": [name for name, field in self._fields.items() if field.bfloat16],
            "scalars": list(self._scalars),
        }
        write_arrays(path, arrays, extra)

    @property
    def collator(self) -> PadCollator:
        return self._collator

    @collator.setter
    def collator(self, collator: PadCollator) -> None:
        self._padded: list[PaddedField] = collator._padded_fields(
            self._fields, self._fields.keys() | self._scalars.keys()
        )
        self._collator = collator

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {field.dtype}{list(field.trailing) or ''}" for name, field in self._fields.items())
        return f"PreloadedDataset({len(self)} samples, {self.offsets[-1]} tokens, {fields})"

    def __getitem__(self, sample: int) -> dict[str, Any]:
        """One sample, unpadded: per-token fields `(length, *trailing)` and scalars, in the dtypes of a batch."""
        index = operator.index(sample)
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample = {index} is outside 0 <= sample < n_samples = {len(self)}")
        index %= len(self)
        start, end = self.offsets[index], self.offsets[index + 1]
        item: dict[str, Any] = {
            field.name: field.row(int(start), int(end)) for field in self._padded if field.name in self._fields
        }
        item |= {name: scalar[index] for name, scalar in self._scalars.items()}
        return item | ({"sample_indices": index} if self.collator.sample_indices else {})

    def __getitems__(self, samples: Sequence[int] | npt.NDArray[np.int64]) -> dict[str, Any]:
        """The padded batch of these samples; what a DataLoader calls. See `batch`."""
        return self.batch(samples)

    def batch(
        self, samples: Sequence[int] | npt.NDArray[np.int64], *, out: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, Any]:
        """The padded batch of these samples, as the collator describes it.

        Args:
            samples: `(B,)`, integer; negative ones are refused.
            out: tensors to write into, see `PadCollator.__call__`.

        Raises:
            IndexError: a sample that the data set does not have.
            ValueError: no samples, or an `out` that is too small.
        """
        if isinstance(samples, (np.ndarray, torch.Tensor)):
            samples = np.asarray(samples)
            if samples.dtype.kind not in "iu":
                raise TypeError(f"samples has dtype {samples.dtype}, not an integer dtype")
            samples = samples.astype(np.int64, copy=False)
        batch = self._collator._pad(self._padded, self.offsets, samples, out)
        if self._scalars:
            indices = torch.as_tensor(samples)
            batch |= {name: scalar[indices] for name, scalar in self._scalars.items()}
        return batch

    def collate(self, batch: Any) -> dict[str, Any]:
        """The `collate_fn` of a loader over this data set: passes on what `__getitems__` made, pads a list of samples.

        Raises:
            TypeError: a single sample, as a loader without batch sampler hands over.
        """
        if not isinstance(batch, Mapping):
            return self._collator(batch)
        field = self._padded[0]
        if batch[field.name].ndim != 2 + len(field.trailing):
            refuse_single(batch)
        return dict(batch)

    def build_batches(self, seed: int, epoch: int = 0, **options: Any) -> EpochPlan:
        """Plan one epoch over this data set's lengths; the options are those of `bucketshuffle.pack_epoch`.

        The plan yields int64 index arrays, so it is a `batch_sampler` as it stands.
        """
        from bucketshuffle import Planner

        return Planner(self.lengths, **options).plan(seed, epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "fields": {name: (unmapped(field.values), field.bfloat16) for name, field in self._fields.items()},
            "offsets": unmapped(self.offsets),
            "scalars": self._scalars,
            "collator": self._collator,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        values = {name: FlatField(_mapped(values), bfloat16) for name, (values, bfloat16) in state["fields"].items()}
        again = PreloadedDataset(values, state["offsets"], scalars=state["scalars"], collator=state["collator"])
        self.__dict__.update(again.__dict__)


def _mapped(values: Any) -> Any:
    """What a path or a pickled reference stands for; anything else as it is."""
    if isinstance(values, MappedArray):
        return values.load()
    if isinstance(values, (str, os.PathLike)):
        return np.load(values, mmap_mode="r", allow_pickle=False)
    return values


def _scalar(values: Any) -> torch.Tensor:
    # A copy: torch has no read-only tensors.
    return values.detach().cpu() if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(_mapped(values)))


def _checked_offsets(offsets: Any) -> npt.NDArray[np.int64]:
    array: npt.NDArray[Any] = np.asarray(_mapped(offsets))
    if array.dtype.kind not in "iu":
        raise TypeError(f"offsets has dtype {array.dtype}, not an integer dtype")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"offsets has shape {array.shape}, not (n_samples + 1,); it counts the tokens before each sample "
            "and at the end"
        )
    checked: npt.NDArray[np.int64] = np.ascontiguousarray(array, np.int64).view()
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
