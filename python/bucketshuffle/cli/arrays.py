"""The lengths that a subcommand reads."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.data.flat import checked_offsets
from bucketshuffle.data.saved import read_fields
from bucketshuffle.lengths import as_lengths

LENGTHS_HELP = ".npy, .npz with an array named lengths, or a packed .safetensors"


def read_lengths(path: str) -> npt.NDArray[np.integer[Any]]:
    """Returns the lengths in a `.npy` file, in the array named lengths of a `.npz` file, or of the samples in a file
    that `bucketshuffle pack` wrote.

    Raises:
        OSError: no such file, or one that may not be read.
        ValueError: the file holds no lengths.
    """
    with open(path, "rb") as file:
        start = file.read(9)
        file.seek(0)
        if start.startswith((b"\x93NUMPY", b"PK")):
            found = _of_numpy(path, file)
        elif start[8:] == b"{":  # after the size of the header
            found = _of_packed(path)
        else:
            raise ValueError(
                f"{printable(path)} is neither a .npy, a .npz nor a packed file; make one with "
                f"bucketshuffle lengths {printable(path)} -o lengths.npy"
            )
    try:
        lengths = as_lengths(found)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{printable(path)}: {error}") from None
    if not len(lengths):
        raise ValueError(f"{printable(path)} has 0 lengths, fewer than the 1 that a plan needs; count other samples")
    return lengths


def _of_numpy(path: str, file: IO[bytes]) -> Any:
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            return loaded
        names = loaded.files
        if "lengths" in names:
            return loaded["lengths"]
    except MemoryError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise whatever a damaged file leads them to
        raise ValueError(
            f"{printable(path)} cannot be read ({error}); save it again as an array of integers"
        ) from error
    raise ValueError(
        f"{printable(path)} has no array named lengths, but {', '.join(names) or 'none at all'}; write it with "
        "numpy.savez(path, lengths=lengths)"
    )


def _of_packed(path: str) -> Any:
    fields = read_fields(path, verify=False)
    if "offsets" not in fields:
        raise ValueError(f"{printable(path)} has no offsets; pass a file that bucketshuffle pack wrote")
    return np.diff(checked_offsets(fields["offsets"].values))


def printable(text: str) -> str:
    """Returns `text`, which may hold any bytes of a file's name, as what stdout can print."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return os.fspath(text).encode(encoding, "backslashreplace").decode(encoding)
