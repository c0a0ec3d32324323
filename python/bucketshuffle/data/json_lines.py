"""JSON Lines: a sample a line. By msgspec, which skips the fields that nobody asked for.

Measured on 200 MB of token ids (two shared cores): a loop over `json.loads` 1.7 s, orjson 0.7, pyarrow.json 1.4 to 2.5,
polars 1.7, this 0.4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.data.sources import Batch, Column, Numbers, Rows, Text

try:
    import msgspec
except ImportError as error:
    raise ImportError('JSON Lines are read with msgspec; install it with pip install "bucketshuffle[data]"') from error

_BLOCK_BYTES = 1 << 16  # of 32 kB to 8 MB the fastest: larger buffers go back to the system after each block


class JsonLines:
    """JSON Lines files, one after the other."""

    unit = "bytes"

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    @property
    def total(self) -> int:
        return sum(map(os.path.getsize, self._files))

    def column_names(self) -> list[str]:
        for file in self._files:
            for line in itertools.chain.from_iterable(block.splitlines() for block, _ in _blocks(file)):
                if line.strip():
                    return list(_decoded(line, msgspec.json.Decoder(dict[str, msgspec.Raw]), f"{file} first line"))
        raise ValueError(f"{self._files[0]} has no samples; pass a file with a JSON object in each line")

    def batches(self, columns: Sequence[str], *, values: bool) -> Iterator[Batch]:
        fields = [(f"c{i}", msgspec.Raw) for i in range(len(columns))]
        names = {f"c{i}": column for i, column in enumerate(columns)}
        decoder = msgspec.json.Decoder(msgspec.defstruct("Sample", fields, rename=names, gc=False))
        starts: dict[str, bytes] = {}
        for file in self._files:
            line = 1
            for block, done in _blocks(file):
                try:
                    samples = decoder.decode_lines(block)
                except msgspec.DecodeError:
                    samples = [
                        _decoded(text, decoder, f"{file} line {line + i:,}")
                        for i, text in enumerate(block.split(b"\n"))
                        if text.strip()
                    ]
                batch = _Batch({}, len(samples), file, line - 1, done, block)
                line += block.count(b"\n")
                if not samples:  # blank lines
                    continue
                for field, column in names.items():
                    raws = [getattr(sample, field) for sample in samples]
                    start = starts.setdefault(column, bytes(memoryview(raws[0])[:1]))
                    batch.columns[column] = _column(raws, start, column, batch, values)
                yield batch


@dataclasses.dataclass(frozen=True)
class _Batch(Batch):
    block: bytes

    def row(self, sample: int) -> str:
        lines = [i for i, line in enumerate(self.block.split(b"\n"), self.first_row + 1) if line.strip()]
        return f"{self.file} line {lines[sample]:,}"


def _decoded(line: bytes, decoder: Any, where: str) -> Any:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error).replace("`$`", "the line")
        raise ValueError(
            f"{where}: {reason[0].lower()}{reason[1:]}; every line is an object with the same columns"
        ) from None


def _blocks(path: str) -> Iterator[tuple[bytes, int]]:
    """Whole lines of about `_BLOCK_BYTES`, and the bytes of the file that they took."""
    with open(path, "rb") as raw, contextlib.closing(_uncompressed(path, raw)) as file:
        before = 0
        try:
            while block := file.read(_BLOCK_BYTES):
                block += file.readline()
                now = raw.tell()
                yield block, now - before
                before = now
        except (OSError, EOFError) as error:
            raise ValueError(f"{path} cannot be read ({error}); it may be truncated") from None


def _uncompressed(path: str, raw: IO[bytes]) -> Any:
    start = raw.read(4)
    raw.seek(0)
    codec = "gzip" if start.startswith(b"\x1f\x8b") else "zstd" if start == b"\x28\xb5\x2f\xfd" else None
    if codec is None:
        return raw
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(
            f'{path} is compressed, which pyarrow reads; install it with pip install "bucketshuffle[data]"'
        ) from error
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, "r"), codec))


def _column(raws: list[Any], start: bytes, column: str, batch: Batch, values: bool) -> Column:
    """The values of a column, all of the kind that begins like `start`, the first byte of the first sample's."""
    if start == b'"':
        return Text(list(_values(raws, _TEXT, column, batch)))
    if start == b"[":
        return _rows(raws, column, batch, values)
    return Numbers(np.array(list(_values(raws, _NUMBER, column, batch))))


def _rows(raws: list[Any], column: str, batch: Batch, values: bool) -> Rows:
    counted = None if values else _n_numbers(raws)
    if counted is not None:
        return Rows(counted, None)
    rows = [_row(tokens, column, batch, i) for i, tokens in enumerate(_values(raws, _ROW, column, batch))]
    filled = [row for row in rows if len(row)] or [np.empty(0, np.int64)]
    for i, row in enumerate(rows):
        if len(row) and row.shape[1:] != filled[0].shape[1:]:
            raise ValueError(
                f'{batch.row(i)}: column "{column}" has tokens of shape {row.shape[1:]}, but those before it have '
                f"{filled[0].shape[1:]}; give all of them one"
            )
    return Rows(np.array(list(map(len, rows)), np.int64), np.concatenate(filled))


def _row(tokens: list[Any], column: str, batch: Batch, sample: int) -> npt.NDArray[Any]:
    try:
        return np.array(tokens)
    except ValueError:  # token vectors of several widths, or numbers beside lists
        raise ValueError(
            f'{batch.row(sample)}: column "{column}" holds tokens of several shapes; give all of them one'
        ) from None


def _n_numbers(raws: list[Any]) -> npt.NDArray[np.int64] | None:
    """The numbers of each list, [n_samples], by its commas; None: not all are flat lists of plain numbers."""
    text = b"".join(raws)  # known to be JSON
    bytes_ = np.frombuffer(text, np.uint8)
    ends = np.cumsum([memoryview(raw).nbytes for raw in raws])
    starts = np.concatenate([[0], ends[:-1]])
    # Of what may be in a list of plain numbers, only its two brackets come after "9"; quotes come before.
    n_after = np.count_nonzero(bytes_ > ord("9"))
    if (bytes_[starts] != ord("[")).any() or n_after != 2 * len(raws) or b'"' in text:
        return None
    is_comma = bytes_ == ord(",")
    if len(text) > 1_000 * len(raws):  # then 7 times as fast; for lists of 30 numbers it takes twice as long
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        lengths = np.array([np.count_nonzero(is_comma[start:end]) for start, end in pairs]) + 1
    else:
        lengths = np.add.reduceat(is_comma, starts, dtype=np.int64) + 1
    for i in np.flatnonzero(lengths == 1):
        lengths[i] = bool(text[starts[i] : ends[i]].strip(b"[] \t\r"))
    return lengths


_NUMBERS = int | float
_TEXT = msgspec.json.Decoder(str), "text"
_NUMBER = msgspec.json.Decoder(_NUMBERS), "a number"
_ROW = msgspec.json.Decoder(list[_NUMBERS | list[_NUMBERS]]), "a list of numbers"


def _values(raws: list[Any], kind: tuple[Any, str], column: str, batch: Batch) -> Iterator[Any]:
    decoder, name = kind
    for i, raw in enumerate(raws):
        try:
            yield decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):  # noqa: PERF203 (the row is in the message)
            shown = bytes(raw).decode(errors="replace")
            shown = shown if len(shown) <= 40 else shown[:40] + "..."
            raise ValueError(
                f'{batch.row(i)}: column "{column}" is {shown}, not {name}; give every sample one, or choose another '
                "column"
            ) from None
