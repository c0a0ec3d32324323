"""Arrow, Hugging Face and polars: their columns as flat buffers and lengths, without a Python object per token.

The only file that knows them. It imports pyarrow, so others import it when such an object is at hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

_NUMBERS = "lists of numbers, or numbers"


def is_column(source: object) -> bool:
    """Whether `source` is a column: an Arrow array or chunked array, a polars Series, a Hugging Face column."""
    return isinstance(source, (pa.Array, pa.ChunkedArray)) or _is_polars(source, "Series") or _is_hf_column(source)


def is_table(source: object) -> bool:
    """Whether `source` has columns: an Arrow table or record batch, a polars frame, a Hugging Face data set; also where
    `column_names` and `table_of` only say what to pass instead.
    """
    if isinstance(source, (pa.Table, pa.RecordBatch)) or _is_polars(source, "DataFrame"):
        return True
    return _is_hugging_face(source) or _is_unread(source)


def column_names(table: Any) -> list[str]:
    """Returns the columns of what `is_table` knows.

    Raises:
        TypeError: a table whose rows are not at hand, named with what to do.
    """
    _refuse_unread(table)
    if _is_polars(table, "DataFrame"):
        return list(table.columns)
    return list(table.schema.names if isinstance(table, pa.RecordBatch) else table.column_names)


def column_of(table: Any, name: str) -> Any:
    """Returns one column of what `is_table` knows, for `row_lengths` and `integers`."""
    return _HiddenRows(table, name) if _is_hugging_face(table) else table[name]


def has_transform(source: Any) -> bool:
    """Whether only the items of a Hugging Face data set, or of the data set of a column, tell what is visible."""
    dataset = source.source if _is_hf_column(source) else source
    return _is_hugging_face(dataset) and dataset.format["type"] == "custom"


def row_lengths(column: Any) -> npt.NDArray[np.int64] | None:
    """Returns the sizes of the lists of a column, `[n_samples]`, in the visible order; None: it holds numbers.

    Raises:
        TypeError: a column of text or of another type without tokens.
        ValueError: visible null rows.
    """
    stored, visible = _stored(column)
    if _is_number(stored.type) or pt.is_null(stored.type):
        return None
    if not _is_list(stored.type):
        kind = (
            "text without tokens; tokenize it" if is_text(stored.type) else "not lists of tokens; choose another column"
        )
        raise TypeError(f"source has Arrow type {_type_name(column, stored)}, {kind}, or pass the lengths")
    null = _visible(nulls(stored), visible)
    if null.any():
        raise ValueError(f"source has {null.sum()} null rows; drop them or make them empty lists")
    lengths = _visible(np.concatenate([_list_lengths(chunk) for chunk in _chunks(stored)]), visible)
    inner = stored.type.value_type
    if len(lengths) and (lengths == 1).all() and (_is_list(inner) or _is_view(inner)):
        raise ValueError(
            f"source has Arrow type {_type_name(column, stored)}, and every sample has one token; put the tokens "
            "first, or pass the lengths"
        )
    return lengths


def integers(column: Any) -> npt.NDArray[Any]:
    """Returns the numbers of a column, `[n_samples]`, in the visible order; lists and text as objects.

    Raises:
        ValueError: a visible null.
    """
    stored, visible = _stored(column)
    null = _visible(nulls(stored), visible)
    if null.any():
        raise ValueError(f"lengths[{np.flatnonzero(null)[0]}] is null; drop the sample or give its length")
    if stored.null_count:  # of rows that are not visible
        stored, visible = stored.take(pa.array(np.arange(len(stored)) if visible is None else visible)), None
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in _chunks(stored)]
    return _visible(chunks[0] if len(chunks) == 1 else np.concatenate(chunks), visible)


def table_of(source: Any, columns: Sequence[str] | None) -> pa.Table:
    """Returns the columns of a source as an Arrow table, in the visible order.

    Args:
        source: what `is_table` knows, or anything with Arrow's `__arrow_c_stream__`. Columns that `set_format` hides in
            a Hugging Face data set are left out.
        columns: the columns to load; None: all.

    Raises:
        TypeError: a source of another kind, or one whose rows are not at hand.
        ValueError: an unknown column.
    """
    _refuse_unread(source)
    if _is_hugging_face(source):
        return _hugging_face_table(source, columns)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    elif _is_polars(source, "DataFrame"):
        source = source.to_arrow()
    elif not isinstance(source, pa.Table) and hasattr(source, "__arrow_c_stream__"):
        source = pa.table(source)
    if not isinstance(source, pa.Table):
        raise TypeError(f"source is a {type(source).__name__}, not an Arrow table, record batch or list array")
    return source.select(_known(columns, source.column_names) if columns is not None else source.column_names)


def read_parquet(path: str | os.PathLike[str], columns: Sequence[str] | None) -> pa.Table:
    """Returns the columns of a Parquet file, or of a folder of them, by name of the files.

    Raises:
        ValueError: a folder without Parquet files, an unknown column.
    """
    import pyarrow.parquet as pq

    if columns is not None:
        _known(columns, pq.ParquetDataset(path).schema.names)
    table = pq.read_table(path, columns=None if columns is None else list(columns))
    if not table.column_names:
        raise ValueError(f"{os.fspath(path)} holds no Parquet files with columns")
    return table


def read_table(
    table: pa.Table,
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[np.int64]], dict[str, npt.NDArray[Any]]]:
    """Returns the per-token columns as flat arrays, the lengths of the rows of each, `[n_samples]`, and the columns of
    one number per sample.

    Raises:
        TypeError: a column of another type.
        ValueError: null rows or tokens, no column of lists.
    """
    flat: dict[str, npt.NDArray[Any]] = {}
    scalars: dict[str, npt.NDArray[Any]] = {}
    lengths: dict[str, npt.NDArray[np.int64]] = {}
    for name in table.column_names:
        column = _plain(table.column(name))
        if _is_list(column.type):
            flat[name], offsets = read_lists(name, column)
            lengths[name] = np.diff(offsets)
        elif _is_number(column.type):
            _refuse_null_rows(name, column)
            scalars[name] = np.asarray(column.to_numpy())
        else:
            raise TypeError(
                f'column "{name}" has Arrow type {_type_name(table.column(name), column)}, not {_NUMBERS}; choose the '
                "columns to load with columns=[...]"
            )
    if not flat:
        raise ValueError(
            f"no column of {', '.join(map(repr, table.column_names))} holds lists of tokens; tokenize first"
        )
    return flat, lengths, scalars


def read_lists(name: str, source: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Returns a list column as one flat array, shared with Arrow where it is one chunk, and int64 offsets from 0.

    Raises:
        TypeError: a column of another type.
        ValueError: null rows or tokens.
    """
    column = _plain(source.to_arrow() if _is_polars(source, "Series") else source)
    if not _is_list(column.type):
        raise TypeError(f'column "{name}" has Arrow type {_type_name(source, column)}, not lists of numbers')
    _refuse_null_rows(name, column)
    parts = [_read_chunk(name, chunk) for chunk in _chunks(column)]
    lengths = np.concatenate([lengths for _, lengths in parts])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    # A chunk without tokens cannot tell the width of a token vector.
    filled = [values for values, _ in parts if len(values)] or [parts[0][0]]
    _refuse_widths(name, [values.shape[1:] for values in filled])
    return filled[0] if len(filled) == 1 else np.concatenate(filled), offsets


class _HiddenRows:
    """A column of a Hugging Face data set, which keeps the rows that a filter hides; read through its indices."""

    def __init__(self, dataset: Any, name: str) -> None:
        self.source, self.column_name = dataset, name


def _stored(column: Any) -> tuple[pa.Array | pa.ChunkedArray, npt.NDArray[np.int64] | None]:
    """The column as Arrow keeps it, and which rows are visible in which order; None: all."""
    if isinstance(column, _HiddenRows) or _is_hf_column(column):
        dataset = column.source
        indices = dataset._indices  # where shuffle and select keep the visible order; there is no public name for it
        visible = None if indices is None else indices.column(0).to_numpy().astype(np.int64)
        return _plain(dataset.data.column(column.column_name)), visible
    return _plain(column.to_arrow() if _is_polars(column, "Series") else column), None


def _visible(rows: npt.NDArray[Any], visible: npt.NDArray[np.int64] | None) -> npt.NDArray[Any]:
    return rows if visible is None else rows[visible]


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Lists for list views, and the storage of extension types, such as the Array2D of Hugging Face."""
    if isinstance(column, pa.ChunkedArray):
        if not _is_wrapped(column.type):
            return column
        return pa.chunked_array([_plain(chunk) for chunk in _chunks(column)])
    if isinstance(column.type, pa.BaseExtensionType):
        return _plain(column.storage)
    if _is_view(column.type):
        # Arrow's own cast gives wrong offsets (seen with pyarrow 26).
        null = nulls(column)
        offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(np.where(null, 0, column.sizes.to_numpy()), out=offsets[1:])
        return pa.LargeListArray.from_arrays(pa.array(offsets), column.flatten(), mask=pa.array(null))
    return column


def _is_wrapped(dtype: pa.DataType) -> bool:
    return isinstance(dtype, pa.BaseExtensionType) or _is_view(dtype)


def _is_view(dtype: pa.DataType) -> bool:
    return str(dtype).startswith(("list_view<", "large_list_view<"))  # pyarrow names them since version 16


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """At least one."""
    if not isinstance(column, pa.ChunkedArray):
        return [column]
    return column.chunks or [pa.array([], column.type)]


def nulls(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Returns which rows are null, `[n_samples]`."""
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    return np.concatenate([chunk.is_null().to_numpy(zero_copy_only=False) for chunk in _chunks(column)])


def _list_lengths(chunk: pa.Array) -> npt.NDArray[np.int64]:
    if pt.is_fixed_size_list(chunk.type):
        return np.full(len(chunk), chunk.type.list_size, np.int64)
    lengths: npt.NDArray[np.int64] = np.diff(chunk.offsets.to_numpy()).astype(np.int64)
    return lengths


def _read_chunk(name: str, chunk: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Flat values of the rows of a chunk, which may be a slice of a longer one, and the rows' lengths."""
    lengths = _list_lengths(chunk)
    if pt.is_fixed_size_list(chunk.type):
        return _read_values(name, chunk.flatten()), lengths
    first, last = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()
    return _read_values(name, chunk.values.slice(first, last - first)), lengths


def _read_values(name: str, values: pa.Array) -> npt.NDArray[Any]:
    """One value per token, or one vector per token where the lists are nested."""
    values = _plain(values)
    if values.null_count:
        raise ValueError(f'column "{name}" has {values.null_count} null tokens; fill them before loading')
    if _is_list(values.type):
        flat, lengths = _read_chunk(name, values)
        if pt.is_fixed_size_list(values.type):
            width = values.type.list_size
        else:
            width = int(lengths[0]) if len(lengths) else 0
            _refuse_widths(name, [(int(length),) for length in np.unique(lengths)])
        return flat.reshape(len(values), width, *flat.shape[1:])
    if not _is_number(values.type):
        raise TypeError(
            f'column "{name}" has lists of Arrow type {values.type}, not {_NUMBERS}; choose the columns to '
            "load with columns=[...]"
        )
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _refuse_widths(name: str, shapes: Sequence[tuple[int, ...]]) -> None:
    if len(set(shapes)) > 1:
        low, high = min(shapes), max(shapes)
        low_text, high_text = ("x".join(map(str, shape)) for shape in (low, high))
        raise ValueError(f'column "{name}" has token vectors of {low_text} to {high_text} values; they need one width')


def _hugging_face_table(dataset: Any, columns: Sequence[str] | None) -> pa.Table:
    if dataset.format["type"] == "custom":
        raise ValueError(
            "dataset has a transform, which makes its items one by one; use dataset.map(...) in place of set_transform"
        )
    table = dataset.data.table
    visible = dataset.format["columns"] if columns is None else _known(columns, table.column_names)
    table = table.select(list(visible))
    if dataset._indices is None:  # there is no public name for the mapping
        return table
    # Taken rows may hold more than 2^31 tokens, which the 32-bit offsets of list<> cannot count.
    plain = {name: _plain(table.column(name)) for name in table.column_names}
    for name, column in plain.items():
        if pt.is_list(column.type):
            plain[name] = column.cast(pa.large_list(column.type.value_type))
    return pa.table(plain).take(dataset._indices.column(0))


def _is_unread(source: object) -> bool:
    """Whether `source` is a dict of data sets, or a table whose rows are made later."""
    if _is_polars(source, "LazyFrame"):
        return True
    if not type(source).__module__.startswith("datasets"):
        return False
    return isinstance(source, Mapping) or not (hasattr(source, "__len__") or _is_hf_column(source))


def _refuse_unread(source: Any) -> None:
    if not _is_unread(source):
        return
    kind = type(source).__name__
    if isinstance(source, Mapping):
        splits = ", ".join(map(repr, source))
        raise TypeError(f"source is a {kind} of {splits}; pass one of them, such as source[{next(iter(source))!r}]")
    if kind == "LazyFrame":
        raise TypeError("source is a LazyFrame, whose rows are made later; pass source.collect()")
    raise TypeError(
        f"source is a {kind}, whose rows are made later; load it without streaming, or collect its rows with "
        "datasets.Dataset.from_generator"
    )


def _is_polars(source: object, kind: str) -> bool:
    return type(source).__module__.startswith("polars") and type(source).__name__ == kind


def _is_hugging_face(source: object) -> bool:
    return hasattr(source, "column_names") and hasattr(source, "features") and hasattr(source, "data")


def _is_hf_column(source: object) -> bool:
    return hasattr(source, "source") and hasattr(source, "column_name") and _is_hugging_face(source.source)


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pt.is_list(dtype) or pt.is_large_list(dtype) or pt.is_fixed_size_list(dtype))


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pt.is_integer(dtype) or pt.is_floating(dtype) or pt.is_boolean(dtype))


def is_text(dtype: pa.DataType) -> bool:
    """Whether a column of this type holds text, or bytes."""
    return not _is_list(dtype) and ("string" in str(dtype) or "binary" in str(dtype))


def _type_name(source: Any, stored: pa.Array | pa.ChunkedArray) -> str:
    return str(getattr(source, "type", stored.type))


def _refuse_null_rows(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    if column.null_count:
        first = int(np.flatnonzero(nulls(column))[0])
        raise ValueError(
            f'column "{name}" has {column.null_count} null rows, the first at row {first}; drop or fill them '
            "before loading"
        )


def _known(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    if isinstance(columns, str):
        raise TypeError(f'columns = "{columns}" is a str, not a collection of names; use ["{columns}"]')
    if not columns:
        raise ValueError("columns names no column; leave it out to load all")
    for name in columns:
        if name not in names:
            raise ValueError(f'columns names "{name}", which is not one of {", ".join(map(repr, names))}')
    return list(columns)
