"""Lengths for the planner, from whatever holds the data.

Frameworks are recognised by their methods, not imported: this module needs NumPy alone.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_lengths", "lengths_of"]

_Integers = npt.NDArray[np.signedinteger[Any] | np.unsignedinteger[Any]]


def as_lengths(lengths: object) -> _Integers:
    """Return `lengths` as a one-dimensional, contiguous, aligned, native-endian integer array.

    Args:
        lengths: `[n_samples]`, integer, tokens per sample: a NumPy array, torch tensor, Arrow array or chunked array,
            pandas Series, `array.array`, Hugging Face column, or a sequence of ints. Its dtype is kept, so a uint16
            array stays 2 bytes per sample.

    Returns:
        The array itself where it already is one, without a copy; otherwise a new array or a view.

    Raises:
        TypeError: a dtype other than an integer (floats and bools are not lengths), or something that holds no numbers.
        ValueError: missing values, more than one dimension, or integers that no 64-bit dtype holds.
    """
    values = _numbers(lengths)
    if values.dtype.kind == "f":
        missing = np.flatnonzero(np.isnan(values).ravel())
        if missing.size:
            raise ValueError(f"lengths[{missing[0]}] = nan is not a length; drop the sample or give its length")
    if values.size == 0 and values.ndim == 1 and isinstance(lengths, (list, tuple)):
        return np.empty(0, np.int64)  # NumPy calls an empty list float64
    if values.dtype.kind == "O":
        values = _from_objects(values)
    if values.dtype.kind not in "iu":
        raise TypeError(f"lengths has dtype {values.dtype}, not an integer dtype; {_way_out(values.dtype.kind)}")
    if values.ndim != 1:
        raise ValueError(f"lengths has shape {values.shape}, not one dimension; pass one length per sample")
    return np.require(values, values.dtype.newbyteorder("="), ["C_CONTIGUOUS", "ALIGNED"])


def lengths_of(
    source: object, column: str | int | None = None, *, progress: bool | None = None
) -> npt.NDArray[np.int64]:
    """Return the length of every sample of `source`, in the order in which it is indexed.

    A column of lengths is read as a slice, a column of sequences from its offsets; only a map-style data set of items
    is looped over.

    Args:
        source: anything `as_lengths` takes; a sequence of sequences (lists, arrays, tensors, strings); an Arrow or
            Hugging Face column of lists (lengths in tokens, in the visible order after `shuffle` or `select`); a
            mapping, Arrow table, pandas DataFrame or Hugging Face data set with a `column`; a map-style data set with
            `__len__` and `__getitem__`; a data set with an integer array `lengths` of its own.
        column: which column of a table, or which key or position of an item, is the sequence or its length.
        progress: show a progress bar where a loop is needed: tqdm's if it is installed, otherwise a line on stderr.
            None: when stderr is a terminal.

    Returns:
        `[n_samples]`, int64, tokens per sample.

    Raises:
        TypeError: a source without columns, lengths or items.
        ValueError: missing values, an unknown or missing `column`, a length beyond int64.
    """
    if column is None and not isinstance(source, (np.ndarray, Mapping)):
        own = getattr(source, "lengths", None)
        if own is not None and not callable(own):
            return _int64(as_lengths(own))
    if _is_hugging_face(source):
        return _from_hugging_face(source, column, progress)
    if _is_hugging_face_column(source):
        return _from_hugging_face(source.source, source.column_name, progress)  # type: ignore[attr-defined]
    names = _column_names(source)
    if names is not None:
        if column not in names:
            raise ValueError(
                f"column = {column!r} is not a column of source; choose one of {', '.join(map(repr, names))}"
            )
        return lengths_of(source[column], progress=progress)  # type: ignore[index]
    if hasattr(source, "type") and hasattr(source, "null_count"):
        return _from_arrow(source)
    if isinstance(source, array.array) or hasattr(source, "dtype"):
        return _from_typed(source)
    if isinstance(source, (list, tuple)):
        if column is not None:
            return _from_items(source, column, progress)
        # A list of lengths or of sequences, by its first element: the loop runs in C.
        if (
            not source
            or isinstance(source[0], (int, float, np.generic, type(None)))
            or getattr(source[0], "ndim", 1) == 0
        ):
            return _int64(as_lengths(source))
        return _from_items(source, column, progress) if isinstance(source[0], Mapping) else _count(source)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, (str, bytes)):
        return _from_items(source, column, progress)
    raise TypeError(
        f"source is a {type(source).__name__}, which has no columns, lengths or items; pass the lengths themselves"
    )


def _numbers(lengths: object) -> npt.NDArray[Any]:
    """The array behind `lengths`, of any dtype."""
    if isinstance(lengths, np.ma.MaskedArray) and np.ma.is_masked(lengths):
        first = np.flatnonzero(np.ma.getmaskarray(lengths).ravel())[0]
        raise ValueError(f"lengths[{first}] is missing; drop the sample or give its length")
    if isinstance(lengths, np.ndarray):
        return np.asarray(lengths)
    if isinstance(lengths, (str, bytes, bytearray)) or lengths is None:
        raise TypeError(f"lengths is a {type(lengths).__name__}, not an array of integers; pass one length per sample")
    if hasattr(lengths, "null_count") and hasattr(lengths, "type"):
        return _arrow_numbers(lengths)
    if _is_hugging_face_column(lengths):
        return _from_hugging_face(lengths.source, lengths.column_name, False)  # type: ignore[attr-defined]
    if hasattr(lengths, "isna") and hasattr(lengths, "to_numpy"):
        missing = np.flatnonzero(np.asarray(lengths.isna()))
        if missing.size:
            raise ValueError(f"lengths[{missing[0]}] is missing; drop the sample or give its length")
        return np.asarray(lengths.to_numpy())
    if isinstance(lengths, array.array):
        # Without the items' type NumPy would read a buffer of characters as text.
        return np.frombuffer(lengths, dtype=lengths.typecode) if len(lengths) else np.empty(0, lengths.typecode)
    if hasattr(lengths, "detach") and hasattr(lengths, "cpu"):
        if str(getattr(lengths, "dtype", None)) == "torch.bfloat16":  # NumPy has none.
            raise TypeError(f"lengths has dtype torch.bfloat16, not an integer dtype; {_way_out('f')}")
        return np.asarray(lengths.detach().cpu())
    if isinstance(lengths, (list, tuple, range)):
        return _from_list(lengths)
    values = np.asarray(lengths)
    if values.dtype.kind == "O" and values.ndim == 0:
        kind = type(lengths).__name__
        raise TypeError(f"lengths is a {kind}, not an array of integers; pass one length per sample")
    return values


def _from_list(lengths: Sequence[object]) -> npt.NDArray[Any]:
    try:
        values = np.asarray(lengths)
    except ValueError:  # ragged
        raise ValueError("lengths holds sequences, not integers; use lengths_of(...) to count them") from None
    if values.dtype.kind == "f" and len(lengths) and all(type(length) is int for length in lengths):
        # NumPy makes floats of ints on both sides of 2^63.
        return np.array(lengths, dtype=object)
    if values.dtype.kind in "iu" and any(isinstance(length, bool) for length in lengths):
        position = next(i for i, length in enumerate(lengths) if isinstance(length, bool))
        raise TypeError(
            f"lengths[{position}] = {lengths[position]} is a bool, not an integer; pass one length per sample"
        )
    return values


def _from_objects(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Python ints that NumPy left as objects (pandas does, and lists that cross 2^63), or the reason why they are no
    lengths.
    """
    items = values.ravel().tolist()
    for position, value in enumerate(items):
        if value is None or (isinstance(value, float) and value != value):
            raise ValueError(f"lengths[{position}] is missing; drop the sample or give its length")
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            kind = type(value).__name__
            raise TypeError(f"lengths[{position}] is a {kind}, not an integer; pass one length per sample")
        if not 0 <= value < 2**64:
            raise ValueError(f"lengths[{position}] = {value} is outside 0 <= length < 2^64; no sample is that long")
    return np.array(items, np.uint64).reshape(values.shape)


def _way_out(kind: str) -> str:
    if kind == "f":
        return "convert with .astype(numpy.int64) if the values are whole"
    if kind == "b":
        return "a mask is not a length, sum it along the tokens"
    return "pass one integer per sample"


def _int64(values: _Integers) -> npt.NDArray[np.int64]:
    if values.dtype == np.uint64 and values.size and int(values.max()) > np.iinfo(np.int64).max:
        position = int(values.argmax())
        raise ValueError(f"lengths[{position}] = {values[position]} does not fit int64; no sample is that long")
    return values.astype(np.int64, copy=False)


def _is_hugging_face(source: object) -> bool:
    return hasattr(source, "column_names") and hasattr(source, "features") and hasattr(source, "data")


def _is_hugging_face_column(source: object) -> bool:
    return hasattr(source, "source") and hasattr(source, "column_name") and _is_hugging_face(source.source)


def _column_names(source: object) -> list[object] | None:
    """The columns of a mapping, a table or a data frame; None for what has none."""
    if isinstance(source, Mapping):
        return list(source)
    if hasattr(source, "column_names") and hasattr(source, "schema"):
        return list(source.column_names)
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return list(source.columns)
    return None


def _from_typed(source: Any) -> npt.NDArray[np.int64]:
    """One-dimensional numbers are lengths; an object column (pandas) may hold sequences."""
    if getattr(getattr(source, "dtype", None), "kind", "") == "O":
        values = source.tolist()
        if values and hasattr(values[0], "__len__") and not isinstance(values[0], Mapping):
            return _count(values)
    return _int64(as_lengths(source))


def _from_hugging_face(dataset: Any, column: str | int | None, progress: bool | None) -> npt.NDArray[np.int64]:
    if column not in dataset.column_names:
        names = ", ".join(map(repr, dataset.column_names))
        raise ValueError(f"column = {column!r} is not a column of source; choose one of {names}")
    if dataset.format["type"] == "custom":
        # A transform decides what is visible, and it may need the other columns: only the items tell.
        return _from_items(dataset, column, progress)
    lengths = _from_arrow(dataset.data.column(column))
    indices = dataset._indices  # where shuffle and select keep the visible order; there is no public name for it
    return lengths if indices is None else lengths[indices.column(0).to_numpy()]


def _from_arrow(column: Any) -> npt.NDArray[np.int64]:
    """Lengths of an Arrow array or chunked array: its integers, or the sizes of its lists from their offsets."""
    if not _is_arrow_list(column.type):
        return _int64(as_lengths(column))
    if column.null_count:
        raise ValueError(f"source has {column.null_count} null rows; drop them or make them empty lists")
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    return np.concatenate([np.empty(0, np.int64), *map(_arrow_list_lengths, chunks)])


def _is_arrow_list(dtype: Any) -> bool:
    return str(dtype).startswith(("list<", "large_list<", "fixed_size_list<")) or str(dtype) in (
        "string",
        "large_string",
    )


def _arrow_list_lengths(chunk: Any) -> npt.NDArray[np.int64]:
    if str(chunk.type).startswith("fixed_size_list<"):
        return np.full(len(chunk), chunk.type.list_size, np.int64)
    if not hasattr(chunk, "offsets"):
        raise TypeError(f"source has Arrow type {chunk.type}, text without tokens; tokenize it, or pass the lengths")
    offsets: npt.NDArray[np.int64] = chunk.offsets.to_numpy().astype(np.int64, copy=False)
    return np.diff(offsets)


def _arrow_numbers(column: Any) -> npt.NDArray[Any]:
    zero_copy = {} if hasattr(column, "chunks") else {"zero_copy_only": False}
    if column.null_count:
        position = int(np.flatnonzero(column.is_null().to_numpy(**zero_copy))[0])
        raise ValueError(f"lengths[{position}] is null; drop the sample or give its length")
    return np.asarray(column.to_numpy(**zero_copy))


def _count(rows: Sequence[Any]) -> npt.NDArray[np.int64]:
    try:
        return np.fromiter(map(len, rows), np.int64, count=len(rows))
    except TypeError:
        position = next(i for i, row in enumerate(rows) if not hasattr(row, "__len__"))
        kind = type(rows[position]).__name__
        raise TypeError(
            f"source[{position}] is a {kind} without a length; pass sequences only, or lengths only"
        ) from None


def _from_items(source: Any, column: str | int | None, progress: bool | None) -> npt.NDArray[np.int64]:
    """The loop that cannot be avoided: every item is built once."""
    n_samples = len(source)
    lengths = np.empty(n_samples, np.int64)
    for i in _with_progress(range(n_samples), progress):
        lengths[i] = _item_length(source[i], column, i)
    return lengths


def _item_length(item: Any, column: str | int | None, position: int) -> int:
    if column is None:
        if isinstance(item, Mapping):
            keys = ", ".join(map(repr, item))
            raise ValueError(
                f"source[{position}] is a mapping; choose its sequence or length with column, one of {keys}"
            )
        value = item
    else:
        try:
            value = item[column]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"column = {column!r} is not in source[{position}], a {type(item).__name__}") from None
    if hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0 and not isinstance(value, bool):
        return int(value)
    try:
        return len(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(
            f"source[{position}] is a {kind}, neither a sequence nor a length; choose it with column"
        ) from None


def _with_progress(indices: range, progress: bool | None) -> Iterable[int]:
    if progress is None:
        progress = sys.stderr.isatty()
    if not progress:
        return indices
    try:
        from tqdm import tqdm
    except ImportError:
        return _plain_progress(indices)
    bar: Iterable[int] = tqdm(indices, desc="lengths", unit=" samples")
    return bar


def _plain_progress(indices: range) -> Iterator[int]:
    n_samples = len(indices)
    every = max(1, n_samples // 100)
    for i in indices:
        if i % every == 0:
            print(f"\rlengths: {i} of {n_samples} samples", end="", file=sys.stderr, flush=True)
        yield i
    print(f"\rlengths: {n_samples} of {n_samples} samples", file=sys.stderr, flush=True)
