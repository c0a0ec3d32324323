"""Arrays mapped read-only from a file that is opened once, and their place in it, which is what a pickle holds."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Identity = tuple[int, int, int]
"""What tells a file from one that replaced it: its inode, its size in bytes, its time of change in nanoseconds."""


@dataclass(frozen=True)
class MappedFile:
    """A whole file in memory. Whoever replaces its path later changes nothing here."""

    path: str
    """Absolute."""
    identity: Identity
    raw: npt.NDArray[np.uint8]
    """`[n_bytes]`, read-only."""

    def array(self, start: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> tuple[npt.NDArray[Any], Place]:
        """Returns the array that starts at byte `start`, without a copy, and its place."""
        place = Place(self.path, self.identity, start, np.dtype(dtype).str, shape)
        return place.within(self), place


@dataclass(frozen=True)
class Place:
    """An array in a file."""

    path: str
    """Absolute."""
    identity: Identity
    start: int
    """The array's first byte."""
    dtype: str
    shape: tuple[int, ...]

    def load(self) -> npt.NDArray[Any]:
        """Returns the array, mapped again, read-only.

        Raises:
            ValueError: the file was replaced or written to since.
        """
        file = map_file(self.path)
        if file.identity != self.identity:
            raise ValueError(f"{self.path} has changed since the data set was made from it; open it again")
        return self.within(file)

    def within(self, file: MappedFile) -> npt.NDArray[Any]:
        """Returns the array in `file`, without a copy."""
        dtype = np.dtype(self.dtype)
        n_bytes = dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))
        return file.raw[self.start : self.start + n_bytes].view(dtype).reshape(self.shape)


def map_file(path: str | os.PathLike[str]) -> MappedFile:
    """Returns a file mapped read-only; its path is looked up once.

    Raises:
        OSError: no such file, or one that may not be read.
        ValueError: what is no regular file, such as a pipe.
    """
    with _opened(path) as file:
        return _mapped(path, file)


def map_npy(path: str | os.PathLike[str]) -> tuple[npt.NDArray[Any], Place]:
    """Returns the array of a `.npy` file, mapped read-only, and its place; the path is looked up once.

    Raises:
        OSError: no such file, or one that may not be read.
        ValueError: a file that is not `.npy`, is truncated, or holds Python objects.
    """
    name = os.fspath(path)
    with _opened(path) as file:
        mapped = _mapped(path, file)
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(file)
        except ValueError:
            raise ValueError(
                f"{name} is not a .npy file; write it with numpy.save, or pass numpy.memmap(path, dtype) of raw numbers"
            ) from None
        start = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, not numbers; write it anew from an array of numbers")
    if is_fortran and len(shape) > 1:
        raise ValueError(f"{name} is in Fortran order, which has no flat tokens; save numpy.ascontiguousarray of it")
    n_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if len(mapped.raw) < start + n_bytes:
        raise ValueError(f"{name} is truncated: it has {len(mapped.raw)} of {start + n_bytes} bytes; save it again")
    return mapped.array(start, dtype, shape)


def place_of(array: npt.NDArray[Any], flat: npt.NDArray[Any]) -> Place | None:
    """Returns where `flat`, a view of `array`, lies in a file, if `array` is part of a NumPy memory map opened with
    mode "r".
    """
    root: Any = array
    while isinstance(root, np.ndarray) and not isinstance(root, np.memmap):
        root = root.base
    while isinstance(root, np.memmap) and isinstance(root.base, np.memmap):
        root = root.base
    if (
        not isinstance(root, np.memmap)
        or root.mode != "r"
        or root.filename is None
        or not np.may_share_memory(root, flat)
    ):
        return None
    path = os.path.abspath(os.fspath(root.filename))
    try:
        identity = _identity(os.stat(path))
    except OSError:
        return None  # deleted since: the bytes themselves are pickled
    start = root.offset + flat.ctypes.data - root.ctypes.data
    return Place(path, identity, start, flat.dtype.str, flat.shape)


def refuse_irregular(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Raises where a path leads to something that has no bytes of its own."""
    if not stat.S_ISREG(status.st_mode):
        kinds = (
            (stat.S_ISDIR, "folder"),
            (stat.S_ISFIFO, "pipe"),
            (stat.S_ISSOCK, "socket"),
            (stat.S_ISCHR, "character device"),
        )
        kind = next((name for is_kind, name in kinds if is_kind(status.st_mode)), "device")
        raise ValueError(f"{os.fspath(path)} is a {kind}, not a regular file; pass the path of a file")


def _identity(status: os.stat_result) -> Identity:
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    if os.path.isdir(path):
        refuse_irregular(path, os.stat(path))
    with open(os.open(path, flags), "rb") as file:
        refuse_irregular(path, os.fstat(file.fileno()))
        yield file


def _mapped(path: str | os.PathLike[str], file: IO[bytes]) -> MappedFile:
    status = os.fstat(file.fileno())
    if status.st_size:  # nothing cannot be mapped
        raw = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    else:
        raw = np.empty(0, np.uint8)
        raw.flags.writeable = False
    return MappedFile(os.path.abspath(os.fspath(path)), _identity(status), raw)
