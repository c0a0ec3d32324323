"""Lengths for the planner: integers as they are (`as_lengths`), or counted from whatever holds the data (`lengths_of`).

Arrow, Hugging Face and polars are `bucketshuffle.data.arrow`'s; other frameworks are recognised by their methods, so
that NumPy is the only import.
"""

from __future__ import annotations

import array
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_lengths", "lengths_of"]

Integers = npt.NDArray[np.signedinteger[Any] | np.unsignedinteger[Any]]


def as_lengths(lengths: object) -> Integers:
    """Returns `lengths` as a one-dimensional, contiguous, aligned, native-endian integer array.

    Args:
        lengths: `[n_samples]`, integer, tokens per sample: a NumPy array, torch tensor, Arrow array or chunked array,
            pandas or polars Series, `array.array`, Hugging Face column, or a sequence of ints. Its dtype is kept, so a
            uint16 array stays 2 bytes per sample. Sequences are not counted here; `lengths_of` does that.

    Returns:
        The array itself where it already is one, without a copy; otherwise a new array or a view.

    Raises:
        TypeError: a dtype other than an integer (floats and bools are not lengths), or something that holds no numbers.
        ValueError: missing values, more than one dimension, or integers that no 64-bit dtype holds.
    """
    values = as_integers(lengths)
    if values.ndim != 1:
        raise ValueError(f"lengths has shape {values.shape}, not one dimension; pass one length per sample")
    return np.require(values, None, ["C_CONTIGUOUS", "ALIGNED"])


def as_integers(lengths: object) -> Integers:
    """Native-endian integers of any number of dimensions."""
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
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def lengths_of(
    source: object, column: str | int | None = None, *, progress: bool | None = None
) -> npt.NDArray[np.int64]:
    """Returns the length of every sample of `source`, in the order in which it is indexed.

    A column of lengths is read as a slice, a column of sequences from its offsets. Only a map-style data set of items
    is looped over.

    Args:
        source: anything `as_lengths` takes; a sequence of sequences (lists, arrays, tensors, strings); an Arrow, polars
            or Hugging Face column of lists (lengths in tokens, in the visible order after `shuffle` or `select`); a
            mapping, Arrow table, pandas or polars DataFrame or Hugging Face data set with a `column`; a map-style data
            set with `__len__` and `__getitem__`; a data set with an integer array `lengths` of its own.
        column: which column of a table, or which key or position of an item, is the sequence or its length.
        progress: show a progress bar where a loop is needed: tqdm's if it is installed, otherwise a line on stderr.
            None: when stderr is a terminal.

    Returns:
        `[n_samples]`, int64, tokens per sample.

    Raises:
        TypeError: a source without columns, lengths or items, or items that are no row of tokens.
        ValueError: missing values, an unknown or missing `column`, a length beyond int64.

    Examples:
        >>> from bucketshuffle import lengths_of
        >>> lengths_of({"input_ids": [[5, 6, 7], [8]], "label": [0, 1]}, "input_ids").tolist()
        [3, 1]
    """
    if column is None and not isinstance(source, (np.ndarray, Mapping)):
        own = getattr(source, "lengths", None)
        if own is not None and not callable(own):
            return _own_lengths(source, own)
    arrow = _arrow(source)
    if arrow is not None and (arrow.is_table(source) or arrow.is_column(source)):
        return _from_arrow(arrow, source, column, progress)
    names = _column_names(source)
    if names is not None:
        _check_column(column, names)
        return lengths_of(source[column], progress=progress)  # type: ignore[index]
    if isinstance(source, array.array) or hasattr(source, "dtype"):
        return _from_typed(source, column)
    if isinstance(source, (list, tuple)):
        if column is not None:
            return _from_items(source, column, progress)
        # A list of lengths or of sequences, by its first element: the loop runs in C.
        if (
            not source
            or isinstance(source[0], (int, float, np.generic, type(None)))
            or getattr(source[0], "ndim", 1) == 0
        ):
            return as_int64(as_lengths(source))
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
    arrow = _arrow(lengths)
    if arrow is not None and arrow.is_column(lengths):
        if arrow.has_transform(lengths):
            return _from_items(lengths.source, lengths.column_name, False)  # type: ignore[attr-defined]
        return np.asarray(arrow.integers(lengths))
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
    # NumPy 1.23 warns of ragged sequences, later versions raise.
    if any(issubclass(kind, (list, tuple, np.ndarray)) for kind in set(map(type, lengths))) and any(
        map(_is_sequence, lengths)
    ):
        raise _sequences()
    try:
        values = np.asarray(lengths)
    except ValueError:  # ragged
        raise _sequences() from None
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
        if _is_sequence(value):
            raise _sequences()
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


def as_int64(values: Integers, name: str = "lengths") -> npt.NDArray[np.int64]:
    if values.dtype == np.uint64 and values.size and int(values.max()) > np.iinfo(np.int64).max:
        position = int(values.argmax())
        raise ValueError(f"{name}[{position}] = {values[position]} does not fit int64; no sample is that long")
    return values.astype(np.int64, copy=False)


def _is_sequence(value: object) -> bool:
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0


def _sequences() -> ValueError:
    return ValueError("lengths holds sequences, not integers; use lengths_of(...) to count them")


def _own_lengths(source: object, own: object) -> npt.NDArray[np.int64]:
    lengths = as_int64(as_lengths(own))
    if hasattr(source, "__len__") and len(source) != len(lengths):
        raise ValueError(
            f"source has {len(source)} samples, but its own lengths are {len(lengths)}; pass the lengths of what is "
            "indexed"
        )
    return lengths


def _arrow(source: object) -> ModuleType | None:
    """The file that knows Arrow, Hugging Face and polars, where `source` may be one of theirs."""
    is_polars = type(source).__module__.startswith("polars")
    if "pyarrow" not in sys.modules and not is_polars:
        return None
    try:
        from bucketshuffle.data import arrow
    except ImportError:
        if is_polars:
            raise TypeError("source is of polars, which is read through Arrow; install pyarrow") from None
        return None
    return arrow


def _from_arrow(
    arrow: ModuleType, source: Any, column: str | int | None, progress: bool | None
) -> npt.NDArray[np.int64]:
    if arrow.is_table(source):
        _check_column(column, arrow.column_names(source))
        if arrow.has_transform(source):  # it may need the other columns
            return _from_items(source, column, progress)
        source = arrow.column_of(source, column)
    elif arrow.has_transform(source):
        return _from_items(source.source, source.column_name, progress)
    lengths: npt.NDArray[np.int64] | None = arrow.row_lengths(source)
    return as_int64(as_lengths(arrow.integers(source))) if lengths is None else lengths


def _check_column(column: str | int | None, names: Sequence[object]) -> None:
    if column not in names:
        raise ValueError(f"column = {column!r} is not a column of source; choose one of {', '.join(map(repr, names))}")


def _column_names(source: object) -> list[object] | None:
    """The columns of a mapping or a pandas frame; None for what has none."""
    if isinstance(source, Mapping):
        return list(source)
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return list(source.columns)
    return None


def _from_typed(source: Any, column: str | int | None) -> npt.NDArray[np.int64]:
    """One-dimensional numbers are lengths; an object column (pandas) may hold sequences."""
    if column is not None:
        raise ValueError(f"column = {column!r} has no effect with a {type(source).__name__}; leave column out")
    if getattr(getattr(source, "dtype", None), "kind", "") == "O":
        values = source.tolist()
        if values and hasattr(values[0], "__len__") and not isinstance(values[0], Mapping):
            return _count(values)
    return as_int64(as_lengths(source))


def _count(rows: Sequence[Any]) -> npt.NDArray[np.int64]:
    """The sizes of rows of tokens; the loops run in C where all rows are of one plain type."""
    kinds = set(map(type, rows))
    if not (kinds <= {list, str} and all(map(_is_flat, rows[:1]))):
        way_out = "pass sequences only, or lengths only"
        return _checked_shapes([_row_shape(row, f"source[{i}]", way_out) for i, row in enumerate(rows)])
    return np.fromiter(map(len, rows), np.int64, count=len(rows))


def _is_flat(row: Any) -> bool:
    return isinstance(row, str) or not any(map(_is_sequence, row[:1]))


def _from_items(source: Any, column: str | int | None, progress: bool | None) -> npt.NDArray[np.int64]:
    """The loop that cannot be avoided: every item is built once."""
    shapes: list[tuple[int, ...]] = []
    for i in _with_progress(range(len(source)), progress):
        value = _value(source[i], column, i)
        where = f"source[{i}]" if column is None else f"column {column!r} of source[{i}]"
        if hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0 and not _is_bool(value):
            shapes.append((operator.index(value),))
        else:
            shapes.append(_row_shape(value, where, "choose the sequence or its length with column"))
    return _checked_shapes(shapes)


def _value(item: Any, column: str | int | None, position: int) -> Any:
    if column is None:
        if isinstance(item, Mapping):
            keys = ", ".join(map(repr, item))
            raise ValueError(
                f"source[{position}] is a mapping; choose its sequence or length with column, one of {keys}"
            )
        return item
    try:
        return item[column]
    except (KeyError, IndexError, TypeError, ValueError):
        raise ValueError(f"column = {column!r} is not in source[{position}], a {type(item).__name__}") from None


def _row_shape(value: Any, where: str, way_out: str) -> tuple[int, ...]:
    """The shape of a row of tokens, `(length,)` or `(length, *trailing)`, or the reason why `value` is none."""
    kind = type(value).__name__
    if isinstance(value, (float, bool, complex)) or getattr(value, "ndim", 1) == 0:
        raise TypeError(f"{where} is {value!r}, neither a sequence nor an integer; {way_out}")
    if isinstance(value, Mapping) or hasattr(value, "columns"):
        raise TypeError(f"{where} is a {kind}, not a row of tokens; {way_out}")
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return tuple(map(int, shape))
    if not hasattr(value, "__len__"):
        raise TypeError(f"{where} is a {kind} without a length; {way_out}")
    nested = [_is_sequence(token) for token in value] if isinstance(value, (list, tuple)) else []
    # Vectors of numbers are a list; a tuple of sequences, or of a sequence and a number, is a record.
    if any(nested) and (isinstance(value, tuple) or not all(nested)):
        places = ", ".join(map(str, range(len(value))))
        raise TypeError(f"{where} is a {kind}, not a row of tokens; choose the sequence with column, one of {places}")
    return (len(value), len(value[0])) if nested and nested[0] else (len(value),)


def _checked_shapes(shapes: Sequence[tuple[int, ...]]) -> npt.NDArray[np.int64]:
    """The lengths of rows, once it is known that their first dimension counts the tokens."""
    for i, shape in enumerate(shapes):
        if shape[0] and shape[1:] != shapes[0][1:] and shapes[0][0]:
            raise ValueError(
                f"source[{i}] has shape {shape}, but source[0] has {shapes[0]}; only the first dimension, the tokens, "
                "may differ"
            )
    if shapes and all(len(shape) > 1 and shape[0] == 1 for shape in shapes) and max(map(max, shapes)) > 1:
        raise ValueError(
            f"source[0] has shape {shapes[0]}, and every sample has one token; put the tokens first, or pass the "
            "lengths"
        )
    return np.fromiter((shape[0] for shape in shapes), np.int64, count=len(shapes))


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")


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
