"""Data sets on disk, read a batch of rows at a time: Parquet, Arrow, JSON Lines, `.npy` files, Hugging Face.

Memory stays bounded by a batch of some megabytes, whatever the size of the data set.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

BATCH_BYTES = 1 << 23
"""About what a batch of rows takes in memory."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """A column of rows of tokens, of some samples."""

    lengths: npt.NDArray[np.int64]
    """[n_samples], tokens."""
    values: npt.NDArray[Any] | None
    """[n_tokens, *trailing], end to end; None where they were not asked for."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A column of one number a sample."""

    values: npt.NDArray[Any]
    """[n_samples]."""


@dataclasses.dataclass(frozen=True)
class Text:
    """A column of text."""

    values: list[str]
    """[n_samples]."""


Column = Rows | Numbers | Text


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some successive samples of a data set."""

    columns: dict[str, Column]
    n_samples: int
    file: str
    first_row: int
    """Place of the first sample in the file, counted from 0."""
    done: int
    """What was read, in the source's unit."""

    def row(self, sample: int) -> str:
        """Returns where a sample of the batch stands, for a message."""
        return f"{self.file} row {self.first_row + sample:,}"


class Source(Protocol):
    """A data set on disk."""

    unit: str
    """What progress is counted in, such as "rows"."""

    @property
    def total(self) -> int | None:
        """How much there is to read, in `unit`; None where only reading tells."""

    def column_names(self) -> list[str]:
        """Returns the names of the columns; of JSON Lines, those of the first sample; of `.npy` files, none."""

    def batches(self, columns: Sequence[str], *, values: bool) -> Iterator[Batch]:
        """Yields the samples in order.

        Args:
            columns: the columns to read.
            values: whether the tokens are needed, and not only their number.

        Raises:
            ValueError: a file that is damaged, or a sample without such columns; the text says which.
        """


def open_source(path: str) -> Source:
    """Returns the data set in a file or folder, by what is in it and not by its name.

    Args:
        path: a Parquet, Arrow (file or stream) or JSON Lines file (also `.gz` and `.zst`), a folder of files of one of
            these kinds or of `.npy` files (one a sample), read by name, or what `Dataset.save_to_disk` wrote.

    Raises:
        OSError: no such path, or one that may not be read.
        ValueError: the path holds nothing of these kinds.
        ImportError: the package that reads it is missing.
    """
    if not os.path.isdir(path):
        return _of_files([path], _kind(path))
    if os.path.exists(os.path.join(path, "state.json")):
        from bucketshuffle.data.tables import HuggingFace

        return HuggingFace(path)
    names = sorted(name for name in os.listdir(path) if not name.startswith((".", "_")))
    if "dataset_dict.json" in names:
        splits = [name for name in names if os.path.isdir(os.path.join(path, name))]
        raise ValueError(
            f"{path} holds the splits {', '.join(splits)}; choose one, such as {os.path.join(path, splits[0])}"
        )
    files = [os.path.join(path, name) for name in names if os.path.isfile(os.path.join(path, name))]
    npy = [file for file in files if file.endswith(".npy")]
    if npy:
        from bucketshuffle.data.npy import NpyFiles

        return NpyFiles(npy)
    by_kind: dict[str, list[str]] = {}
    for file in files:
        if file.endswith(_ENDINGS):
            by_kind.setdefault(_kind(file), []).append(file)
    if len(by_kind) != 1:
        found = " and ".join(by_kind) if by_kind else "no file"
        raise ValueError(f"{path} holds {found}; pass a folder with files of one kind: {_KINDS}, or .npy files")
    kind, files = by_kind.popitem()
    return _of_files(files, kind)


_KINDS = "Parquet, Arrow, JSON Lines"
_ENDINGS = (
    ".parquet",
    ".arrow",
    ".feather",
    ".jsonl",
    ".ndjson",
    ".json",
    ".jsonl.gz",
    ".jsonl.zst",
    ".json.gz",
    ".json.zst",
)


def _of_files(files: Sequence[str], kind: str) -> Source:
    if kind == "JSON Lines":
        from bucketshuffle.data.json_lines import JsonLines

        return JsonLines(files)
    from bucketshuffle.data.tables import ArrowFiles, ParquetFiles

    return ParquetFiles(files) if kind == "Parquet" else ArrowFiles(files)


def _kind(path: str) -> str:
    with open(path, "rb") as file:
        start = file.read(64)
    if start.startswith(b"PAR1"):
        return "Parquet"
    if start.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "Arrow"
    if start.lstrip().startswith(b"{") or start.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return "JSON Lines"
    if not start:
        raise ValueError(f"{path} is empty; pass a file with samples")
    raise ValueError(
        f"{path} starts like none of {_KINDS}; pass one of these, a folder of .npy files, or a Hugging Face data set "
        "on disk"
    )


def choose_column(source: Source, path: str, column: str | None) -> str:
    """Returns `column` if the source has it; without one, `input_ids` or the only column.

    Raises:
        ValueError: no such column, or several to choose from.
    """
    names = source.column_names()
    if not names:
        return column or "input_ids"
    if column is None:
        if "input_ids" in names:
            return "input_ids"
        if len(names) == 1:
            return names[0]
        raise ValueError(f"{path} has the columns {', '.join(names)}; choose one with --column")
    require_columns(path, names, [column])
    return column


def require_columns(path: str, names: Sequence[str], columns: Sequence[str]) -> None:
    """Raises unless the columns `names` of a file hold all of `columns`.

    Raises:
        ValueError: one is missing.
    """
    for column in columns:
        if column not in names:
            raise ValueError(f"{path} has no column {column}, but {', '.join(names)}; choose one with --column")
