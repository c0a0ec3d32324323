"""The lengths of a data set on disk, and the data set as flat buffers, in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.data.flat import FlatField
from bucketshuffle.data.sources import Batch, Column, Numbers, Rows, Source, Text
from bucketshuffle.data.tokens import FileTokenizer

Progress = Callable[[int], object]
"""Called with what was read since the last call, in the source's unit."""


def count_lengths(
    source: Source, column: str, progress: Progress, *, tokenizer: FileTokenizer | None = None
) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Returns the tokens of every sample, [n_samples], in the narrowest unsigned dtype that holds them.

    Args:
        source: the data set.
        column: lists of tokens, whole numbers (which are the lengths themselves), or text.
        progress: called after each batch.
        tokenizer: what makes tokens of text.

    Raises:
        ValueError: a sample without tokens to count, named by its row.
    """
    parts = [np.empty(0, np.uint8)]
    for batch in source.batches([column], values=False):
        lengths = _lengths(batch, column, tokenizer)
        parts.append(lengths.astype(np.min_scalar_type(int(lengths.max(initial=0)))))
        progress(batch.done)
    return np.concatenate(parts)


def pack_fields(
    source: Source,
    columns: Sequence[str],
    folder: str,
    progress: Progress,
    *,
    tokenizer: FileTokenizer | None = None,
    dtype: str | None = None,
) -> dict[str, FlatField]:
    """Returns the arrays of a saved data set by name, as `write_fields` takes them: offsets, `values.<column>` for
    tokens, `scalars.<column>` for numbers. They lie in unnamed files, which the system removes; what is mapped of them
    counts as memory until the system wants it back.

    Args:
        source: the data set.
        columns: lists of tokens, or of token vectors; text, whose tokens are `input_ids`; and numbers.
        folder: where the unnamed files are.
        progress: called after each batch.
        tokenizer: what makes tokens of text.
        dtype: the integer dtype of all whole tokens. None: the source's; int64 from JSON Lines, int32 from text.

    Raises:
        OSError: the folder is full.
        ValueError: a sample that cannot be packed, named by its row.
    """
    fields: dict[str, _Field] = {}
    ends = [np.zeros(1, np.int64)]
    for batch in source.batches(columns, values=True):
        lengths: npt.NDArray[np.int64] | None = None
        for name in columns:
            key, values, own = _packed(batch, name, tokenizer, dtype)
            if own is not None and lengths is not None and not np.array_equal(own, lengths):
                i = int(np.flatnonzero(own != lengths)[0])
                raise ValueError(
                    f'{batch.row(i)}: column "{name}" has {own[i]} tokens, but the columns before it {lengths[i]}; '
                    "pack columns of other lengths as a data set of their own"
                )
            lengths = own if lengths is None else lengths
            if key not in fields:
                fields[key] = _Field(folder)
            fields[key].append(values, name, batch)
        if lengths is None:
            raise ValueError(f"{batch.file}: no column of {', '.join(columns)} holds tokens; name one with --column")
        ends.append(ends[-1][-1] + np.cumsum(lengths))
        progress(batch.done)
    if not fields:
        raise ValueError("there are no samples to pack; pass a data set with samples")
    return {"offsets": FlatField(np.concatenate(ends)), **{key: field.mapped() for key, field in fields.items()}}


class _Field:
    """An array that grows in an unnamed file."""

    def __init__(self, folder: str) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (kept)
        self._n_rows = 0
        self._like: npt.NDArray[Any] | None = None

    def append(self, values: npt.NDArray[Any], name: str, batch: Batch) -> None:
        if not len(values):  # without values nothing tells dtype and width
            return
        if values.dtype.kind not in "biuf":
            raise ValueError(
                f'{batch.row(0)}: column "{name}" holds {values.dtype} values, which no batch can hold; choose a '
                "column of numbers"
            )
        if self._like is None:
            self._like = values[:0]
        if values.shape[1:] != self._like.shape[1:] or not np.can_cast(values.dtype, self._like.dtype):
            raise ValueError(
                f'{batch.row(0)}: column "{name}" has {values.dtype} of shape {values.shape[1:]}, but began with '
                f"{self._like.dtype} of shape {self._like.shape[1:]}; give all samples one dtype and shape"
            )
        self._file.write(np.ascontiguousarray(values, self._like.dtype).data)
        self._n_rows += len(values)

    def mapped(self) -> FlatField:
        if self._like is None:
            return FlatField(np.empty(0, np.int64))
        self._file.flush()
        shape = (self._n_rows, *self._like.shape[1:])
        return FlatField(np.memmap(self._file, self._like.dtype, "r", shape=shape))


def _lengths(batch: Batch, name: str, tokenizer: FileTokenizer | None) -> npt.NDArray[np.integer[Any]]:
    column = _tokenized(batch, name, tokenizer, values=False)
    if isinstance(column, Rows):
        return column.lengths
    numbers = column.values
    if numbers.dtype.kind not in "iu":
        raise ValueError(
            f'{batch.row(0)}: column "{name}" holds {numbers.dtype} numbers, such as {numbers[0]}, which are no '
            "lengths; choose a column of whole numbers, lists of tokens or text"
        )
    if len(numbers) and int(numbers.min()) < 0:
        i = int(numbers.argmin())
        raise ValueError(
            f'{batch.row(i)}: column "{name}" = {numbers[i]} is below the shortest length = 0; choose another'
        )
    return numbers


def _tokenized(batch: Batch, name: str, tokenizer: FileTokenizer | None, *, values: bool) -> Rows | Numbers:
    column: Column = batch.columns[name]
    if not isinstance(column, Text):
        return column
    if tokenizer is None:
        raise ValueError(
            f'{batch.row(0)}: column "{name}" is text; pass --tokenizer FILE, or choose a column of tokens with '
            "--column"
        )
    return tokenizer.rows(column, values=values)


def _packed(
    batch: Batch, name: str, tokenizer: FileTokenizer | None, dtype: str | None
) -> tuple[str, npt.NDArray[Any], npt.NDArray[np.int64] | None]:
    """The name of an array in the file, the values for it, and the lengths of the rows if they are tokens."""
    column = _tokenized(batch, name, tokenizer, values=True)
    if isinstance(column, Numbers):
        return f"scalars.{name}", column.values, None
    assert column.values is not None
    values = column.values if dtype is None else _narrowed(column, name, batch, np.dtype(dtype))
    key = "input_ids" if isinstance(batch.columns[name], Text) else name
    return f"values.{key}", values, column.lengths


def _narrowed(column: Rows, name: str, batch: Batch, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    values = column.values
    assert values is not None
    if values.dtype.kind not in "iu" or not len(values):
        return values
    limits = np.iinfo(dtype)
    outside = (values < limits.min) | (values > limits.max)
    if outside.any():
        token = int(outside.reshape(len(values), -1).any(axis=1).argmax())
        sample = int(np.searchsorted(np.cumsum(column.lengths), token, side="right"))
        raise ValueError(
            f'{batch.row(sample)}: column "{name}" holds {values[token]}, which is outside {dtype}; choose another '
            "--dtype"
        )
    return values.astype(dtype)
