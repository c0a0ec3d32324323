from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__version__: str

def pad_rows(
    offsets: npt.NDArray[np.int64],
    samples: npt.NDArray[np.int64] | Sequence[int],
    fields: Sequence[
        tuple[str, npt.NDArray[Any] | Literal["mask", "positions"], int, str, int, npt.NDArray[Any] | None]
    ],
    *,
    left: bool,
    pad_to_multiple_of: int,
) -> tuple[npt.NDArray[np.int64], int, list[npt.NDArray[Any] | None]]:
    """Pad the rows of one batch; return its lengths, its padded length, and one flat array per field (None where
    `out` took it).
    """
