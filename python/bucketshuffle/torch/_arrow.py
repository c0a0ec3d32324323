"""Arrow columns as flat buffers, without a Python object per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

_NUMBERS = "lists of numbers, or numbers"


def hugging_face_table(dataset: Any, columns: Sequence[str] | None) -> pa.Table:
    """The table behind a Hugging Face data set, in the visible order: after shuffle or select, its rows are taken
    natively.
    """
    if dataset.format["type"] == "custom":
        raise ValueError(
            "dataset has a transform, which makes its items one by one; use dataset.map(...) in place of set_transform"
        )
    table = dataset.data.table
    table = table.select(_known(table, columns) if columns else dataset.column_names)
    if dataset._indices is None:  # there is no public name for the mapping
        return table
    # Taken rows may hold more than 2^31 tokens, which the 32-bit offsets of list<> cannot count.
    large = [pa.large_list(field.type.value_type) if pt.is_list(field.type) else field.type for field in table.schema]
    schema = pa.schema([pa.field(field.name, dtype) for field, dtype in zip(table.schema, large, strict=True)])
    return table.cast(schema).take(dataset._indices.column(0))


def read_table(
    table: pa.Table, columns: Sequence[str] | None
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
    """The per-token columns as flat arrays, their common offsets, and the columns of one number per sample."""
    flat: dict[str, npt.NDArray[Any]] = {}
    scalars: dict[str, npt.NDArray[Any]] = {}
    offsets: npt.NDArray[np.int64] | None = None
    for name in _known(table, columns) if columns else table.column_names:
        column = table.column(name)
        if _is_list(column.type):
            flat[name], column_offsets = read_lists(name, column)
            if offsets is None:
                offsets = column_offsets
            elif not np.array_equal(offsets, column_offsets):
                i = int(np.flatnonzero(np.diff(offsets) != np.diff(column_offsets))[0])
                raise ValueError(
                    f'column "{name}" has {column_offsets[i + 1] - column_offsets[i]} tokens in row {i}, but '
                    f'"{next(iter(flat))}" has '
                    f"{offsets[i + 1] - offsets[i]}; load columns of other lengths as a data set of their own"
                )
        elif _is_number(column.type):
            _refuse_nulls(name, column)
            scalars[name] = np.asarray(column.to_numpy())
        else:
            raise TypeError(
                f'column "{name}" has Arrow type {column.type}, not {_NUMBERS}; choose the columns to load '
                "with columns=[...]"
            )
    if offsets is None:
        raise ValueError(
            f"no column of {', '.join(map(repr, table.column_names))} holds lists of tokens; tokenize first"
        )
    return flat, offsets, scalars


def read_lists(name: str, column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """A list column as one flat array, shared with Arrow where it is one chunk, and int64 offsets from 0."""
    if not _is_list(column.type):
        raise TypeError(f'column "{name}" has Arrow type {column.type}, not lists of numbers')
    _refuse_nulls(name, column)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [_read_chunk(name, chunk) for chunk in chunks or [pa.array([], column.type)]]
    lengths = np.concatenate([lengths for _, lengths in parts])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = parts[0][0] if len(parts) == 1 else np.concatenate([values for values, _ in parts])
    return values, offsets


def _read_chunk(name: str, chunk: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Flat values of the rows of a chunk, which may be a slice of a longer one, and the rows' lengths."""
    if pt.is_fixed_size_list(chunk.type):
        lengths = np.full(len(chunk), chunk.type.list_size, np.int64)
        return _read_values(name, chunk.flatten()), lengths
    offsets = chunk.offsets.to_numpy().astype(np.int64)
    values = chunk.values.slice(offsets[0], offsets[-1] - offsets[0])
    return _read_values(name, values), np.diff(offsets)


def _read_values(name: str, values: pa.Array) -> npt.NDArray[Any]:
    """One value per token, or one vector per token where the lists are nested."""
    if values.null_count:
        raise ValueError(f'column "{name}" has {values.null_count} null tokens; fill them before loading')
    if _is_list(values.type):
        flat, lengths = _read_chunk(name, values)
        width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            raise ValueError(
                f'column "{name}" has token vectors of {lengths.min()} to {lengths.max()} values; they need one width'
            )
        return flat.reshape(len(values), width, *flat.shape[1:])
    if not _is_number(values.type):
        raise TypeError(
            f'column "{name}" has lists of Arrow type {values.type}, not {_NUMBERS}; choose the columns to '
            "load with columns=[...]"
        )
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pt.is_list(dtype) or pt.is_large_list(dtype) or pt.is_fixed_size_list(dtype))


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pt.is_integer(dtype) or pt.is_floating(dtype) or pt.is_boolean(dtype))


def _refuse_nulls(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    if column.null_count:
        nulls = column.is_null()
        nulls = nulls.combine_chunks() if isinstance(nulls, pa.ChunkedArray) else nulls
        first = int(np.flatnonzero(nulls.to_numpy(zero_copy_only=False))[0])
        raise ValueError(
            f'column "{name}" has {column.null_count} null rows, the first at row {first}; drop or fill them '
            "before loading"
        )


def _known(table: pa.Table, columns: Sequence[str]) -> list[str]:
    for name in columns:
        if name not in table.column_names:
            raise ValueError(f'columns names "{name}", which is not one of {", ".join(map(repr, table.column_names))}')
    return list(columns)
