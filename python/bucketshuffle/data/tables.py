"""Parquet, Arrow and Hugging Face data sets on disk, a batch of rows at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from bucketshuffle.data.sources import BATCH_BYTES, Batch, Column, Numbers, Rows, Text, require_columns

try:
    import pyarrow as pa
    import pyarrow.ipc
    import pyarrow.parquet as pq

    from bucketshuffle.data import arrow
except ImportError as error:
    raise ImportError(
        'Parquet, Arrow and Hugging Face need pyarrow; install it with pip install "bucketshuffle[data]"'
    ) from error


class ParquetFiles:
    """Parquet files, one after the other."""

    unit = "rows"

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    @property
    def total(self) -> int:
        n_rows = 0
        for path in self._files:
            with _named(path), pq.ParquetFile(path) as file:
                n_rows += file.metadata.num_rows
        return n_rows

    def column_names(self) -> list[str]:
        with _named(self._files[0]), pq.ParquetFile(self._files[0]) as file:
            return list(file.schema_arrow.names)

    def batches(self, columns: Sequence[str], *, values: bool) -> Iterator[Batch]:
        for path in self._files:
            first_row = 0
            # Without `pre_buffer` and with a buffer size, a row group is not read whole.
            with _named(path), pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
                require_columns(path, file.schema_arrow.names, columns)
                n_bytes = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
                n_rows = _rows_of_a_batch(n_bytes, file.metadata.num_rows)
                for part in file.iter_batches(n_rows, columns=list(columns)):
                    yield _batch(pa.Table.from_batches([part]), columns, path, first_row, values)
                    first_row += len(part)


class ArrowFiles:
    """Arrow files or streams, mapped into memory, one after the other."""

    unit = "rows"
    total = None

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    def column_names(self) -> list[str]:
        with _opened(self._files[0]) as reader:
            return list(reader.schema.names)

    def batches(self, columns: Sequence[str], *, values: bool) -> Iterator[Batch]:
        for path in self._files:
            first_row = 0
            with _opened(path) as reader:
                require_columns(path, reader.schema.names, columns)
                for whole in _record_batches(reader):
                    table = pa.Table.from_batches([whole]).select(list(columns))
                    n_rows = _rows_of_a_batch(table.nbytes, len(table))
                    for start in range(0, len(table), n_rows):
                        part = table.slice(start, n_rows)
                        yield _batch(part, columns, path, first_row + start, values)
                    first_row += len(table)


class HuggingFace:
    """What `Dataset.save_to_disk` wrote, in the visible order after `shuffle` or `select`."""

    unit = "rows"

    def __init__(self, path: str) -> None:
        try:
            import datasets
        except ImportError as error:
            raise ImportError(
                f"{path} is a Hugging Face data set, which the package datasets reads; install it with "
                "pip install datasets"
            ) from error
        self._path = path
        with _named(path):
            self._dataset: Any = datasets.load_from_disk(path).with_format("arrow")

    @property
    def total(self) -> int:
        return len(self._dataset)

    def column_names(self) -> list[str]:
        return list(self._dataset.column_names)

    def batches(self, columns: Sequence[str], *, values: bool) -> Iterator[Batch]:
        dataset, first_row = self._dataset.select_columns(list(columns)), 0
        n_rows = _rows_of_a_batch(dataset.data.nbytes, len(dataset.data))
        with _named(self._path):
            for table in dataset.iter(batch_size=n_rows):
                yield _batch(table, columns, self._path, first_row, values)
                first_row += len(table)


def _rows_of_a_batch(n_bytes: int, n_rows: int) -> int:
    return max(1, min(1 << 16, BATCH_BYTES * max(n_rows, 1) // max(n_bytes, 1)))


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Says which file is damaged; OSErrors of the system name it themselves."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            raise
        raise ValueError(f"{path} cannot be read ({error}); it may be truncated or damaged") from error


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    with _named(path), pa.memory_map(path) as mapped:
        is_file = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        with pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped) as reader:
            yield reader


def _record_batches(reader: Any) -> Iterator[Any]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        yield from map(reader.get_batch, range(reader.num_record_batches))
    else:
        yield from reader


def _batch(table: Any, columns: Sequence[str], path: str, first_row: int, values: bool) -> Batch:
    batch = Batch({}, len(table), path, first_row, len(table))
    for name in columns:
        column = table.column(name)
        if column.null_count:
            row = batch.row(int(arrow.nulls(column).argmax()))
            raise ValueError(f'{row}: column "{name}" is null; drop the sample or fill it')
        try:
            batch.columns[name] = _column(name, column, values)
        except (TypeError, ValueError) as error:  # ArrowInvalid is a ValueError
            where = next((batch.row(i) for i in range(len(column)) if _is_bad(name, column.slice(i, 1), values)), path)
            raise ValueError(f"{where}: {error}".replace("columns=[...]", "--column")) from None
    return batch


def _is_bad(name: str, column: Any, values: bool) -> bool:
    try:
        _column(name, column, values)
    except (TypeError, ValueError):
        return True
    return False


def _column(name: str, column: Any, values: bool) -> Column:
    if arrow.is_text(column.type):
        return Text(column.cast(pa.large_string()).to_pylist())
    lengths = arrow.row_lengths(column)
    if lengths is None:
        return Numbers(arrow.integers(column))
    # Without rows it only looks at the type: lists of texts or of messages have sizes too, but no tokens.
    tokens = arrow.read_lists(name, column if values else column.slice(0, 0))[0]
    return Rows(lengths, tokens if values else None)
