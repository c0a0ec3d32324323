"""A folder of `.npy` files, one sample each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bucketshuffle.data.mapped import map_npy
from bucketshuffle.data.sources import BATCH_BYTES, Batch, Rows


class NpyFiles:
    """`.npy` files, `[length, *trailing]` each. Their one column has the name that the caller gives it."""

    unit = "files"

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    @property
    def total(self) -> int:
        return len(self._files)

    def column_names(self) -> list[str]:
        return []

    def batches(self, columns: Sequence[str], *, values: bool) -> Iterator[Batch]:
        if len(columns) > 1:
            raise ValueError(f"columns = {', '.join(columns)} are several, but .npy files have one; pass one --column")
        (column,) = columns
        first_shape: tuple[int, ...] | None = None
        lengths: list[int] = []
        rows: list[np.ndarray] = []
        n_bytes = 0
        for i, file in enumerate(self._files):
            array, _ = map_npy(file)
            if array.ndim == 0:
                raise ValueError(f"{file} is a single number, not one value per token; save one array a sample")
            if array.dtype.kind not in "biuf":
                raise ValueError(f"{file} has dtype {array.dtype}, which no batch can hold; save numbers")
            first_shape = array.shape if first_shape is None else first_shape
            if array.shape[1:] != first_shape[1:]:
                raise ValueError(
                    f"{file} has shape {array.shape}, but {self._files[0]} has {first_shape}; only the first "
                    "dimension, the tokens, may differ"
                )
            lengths.append(len(array))
            if values:
                rows.append(np.array(array))
                n_bytes += array.nbytes
            if i + 1 == len(self._files) or len(lengths) == 4096 or n_bytes > BATCH_BYTES:
                found = Rows(np.array(lengths, np.int64), np.concatenate(rows) if values else None)
                yield Batch({column: found}, len(lengths), file, 0, len(lengths))
                lengths, rows, n_bytes = [], [], 0
