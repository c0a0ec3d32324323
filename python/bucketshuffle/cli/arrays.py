"""The lengths that a subcommand reads."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.lengths import as_lengths


def read_lengths(path: str) -> npt.NDArray[np.integer[Any]]:
    """Returns the lengths in a `.npy` file, or in the array named lengths of a `.npz` file.

    Raises:
        OSError: no such file, or one that may not be read.
        ValueError: the file holds no lengths.
    """
    with open(path, "rb") as file:
        if not file.read(6).startswith((b"\x93NUMPY", b"PK")):
            raise ValueError(
                f"{printable(path)} is neither a .npy nor a .npz file; make one with "
                f"bucketshuffle lengths {printable(path)} -o lengths.npy"
            )
        file.seek(0)
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                names = loaded.files
                loaded = loaded["lengths"] if "lengths" in names else None
        except MemoryError:
            raise
        except Exception as error:  # zipfile, zlib and NumPy raise whatever a damaged file leads them to
            raise ValueError(
                f"{printable(path)} cannot be read ({error}); save it again as an array of integers"
            ) from error
    if loaded is None:
        raise ValueError(
            f"{printable(path)} has no array named lengths, but {', '.join(names) or 'none at all'}; write it with "
            "numpy.savez(path, lengths=lengths)"
        )
    try:
        lengths = as_lengths(loaded)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{printable(path)}: {error}") from None
    if not len(lengths):
        raise ValueError(f"{printable(path)} has 0 lengths, fewer than the 1 that a plan needs; count other samples")
    return lengths


def printable(text: str) -> str:
    """Returns `text`, which may hold any bytes of a file's name, as what stdout can print."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return os.fspath(text).encode(encoding, "backslashreplace").decode(encoding)
