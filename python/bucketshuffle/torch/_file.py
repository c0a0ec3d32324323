"""One file of named arrays: written atomically, mapped into memory, and refused when it is not whole.

Layout, little-endian: a preamble of 40 bytes (magic, version, CRC-32 of the header, start and size of the header,
CRC-32 of the preamble before it), the arrays, each aligned to 64 bytes, and the header, JSON, behind them.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_MAGIC = b"BKTSHFL\n"
_VERSION = 1
_PREAMBLE = struct.Struct("<8sIIQQ")
_CHECKSUM = struct.Struct("<I")
_ALIGNMENT = 64
_CHUNK_BYTES = 1 << 24


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, npt.NDArray[Any]], extra: Mapping[str, Any]
) -> None:
    """Write `arrays` and the JSON values `extra` to `path`, which holds either all of it or what it held before."""
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(_PREAMBLE.size + _CHECKSUM.size))
            entries = [_write_array(file, name, array) for name, array in arrays.items()]
            header = json.dumps({"arrays": entries, "extra": extra}).encode()
            start = file.tell()
            file.write(header)
            preamble = _PREAMBLE.pack(_MAGIC, _VERSION, zlib.crc32(header), start, len(header))
            file.seek(0)
            file.write(preamble + _CHECKSUM.pack(zlib.crc32(preamble)))
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only the owner reads.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(target.parent)


def read_arrays(path: str | os.PathLike[str], *, verify: bool) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Map the arrays of a file, read-only, and return them with the `extra` values; `verify` reads all of them to
    check their sums.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        preamble = file.read(_PREAMBLE.size + _CHECKSUM.size)
        if not preamble.startswith(_MAGIC) and not _MAGIC.startswith(preamble):
            raise ValueError(
                f"{os.fspath(path)} is not a bucketshuffle data set: it starts with {preamble[:8]!r}, not {_MAGIC!r}"
            )
        if len(preamble) < _PREAMBLE.size + _CHECKSUM.size:
            raise ValueError(
                f"{os.fspath(path)} is truncated: it has {size} bytes, fewer than the preamble; save it again"
            )
        _, version, header_sum, start, header_size = _PREAMBLE.unpack_from(preamble)
        if _CHECKSUM.unpack_from(preamble, _PREAMBLE.size)[0] != zlib.crc32(preamble[: _PREAMBLE.size]):
            raise ValueError(f"{os.fspath(path)} is corrupt: the checksum of its preamble differs; save it again")
        if version != _VERSION:
            raise ValueError(
                f"{os.fspath(path)} has format version {version}, but this package reads {_VERSION}; save it again"
            )
        if size < start + header_size:
            raise ValueError(
                f"{os.fspath(path)} is truncated: it has {size} of {start + header_size} bytes; save it again"
            )
        if size > start + header_size:
            raise ValueError(
                f"{os.fspath(path)} is corrupt: it has {size} bytes instead of {start + header_size}; save it again"
            )
        file.seek(start)
        header = file.read(header_size)
    if zlib.crc32(header) != header_sum:
        raise ValueError(f"{os.fspath(path)} is corrupt: the checksum of its header differs; save it again")
    content = json.loads(header)
    mapped = np.memmap(path, mode="r", dtype=np.uint8)
    arrays = {}
    for entry in content["arrays"]:
        raw = mapped[entry["start"] : entry["start"] + entry["n_bytes"]]
        if (verify or entry["name"] == "offsets") and _checksum(raw) != entry["crc32"]:
            raise ValueError(f'{os.fspath(path)} is corrupt: the checksum of "{entry["name"]}" differs; save it again')
        arrays[entry["name"]] = raw.view(entry["dtype"]).reshape(entry["shape"])
    return arrays, content["extra"]


def _write_array(file: Any, name: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    file.write(bytes(-file.tell() % _ALIGNMENT))
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    raw = array.reshape(-1).view(np.uint8)
    entry = {"name": name, "dtype": array.dtype.str, "shape": array.shape, "start": file.tell(), "n_bytes": raw.size}
    for first in range(0, raw.size, _CHUNK_BYTES):
        file.write(raw[first : first + _CHUNK_BYTES])
    return entry | {"crc32": _checksum(raw)}


def _checksum(raw: npt.NDArray[np.uint8]) -> int:
    checksum = 0
    for first in range(0, raw.size, _CHUNK_BYTES):
        checksum = zlib.crc32(raw[first : first + _CHUNK_BYTES].data, checksum)
    return checksum


def _sync_directory(directory: Path) -> None:
    """Make the rename last through a power loss, where the system allows it."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class MappedArray:
    """An array of a file mapped read-only, as it is pickled: a worker maps the file again instead of receiving its
    bytes.
    """

    def __init__(self, mapped: np.memmap[Any, Any], array: npt.NDArray[Any]) -> None:
        self.path = os.path.abspath(str(mapped.filename))
        self.start = mapped.offset + array.ctypes.data - mapped.ctypes.data
        self.dtype = array.dtype.str
        self.shape = array.shape
        self.version = self._version()

    def _version(self) -> tuple[int, int]:
        status = os.stat(self.path)
        return status.st_size, status.st_mtime_ns

    def load(self) -> npt.NDArray[Any]:
        """Map the array again.

        Raises:
            ValueError: the file was written to since.
        """
        if self._version() != self.version:
            raise ValueError(f"{self.path} has changed since the data set was pickled; open it again")
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)  # an empty range cannot be mapped
        return np.memmap(self.path, mode="r", dtype=self.dtype, offset=self.start, shape=self.shape)


def unmapped(array: npt.NDArray[Any]) -> npt.NDArray[Any] | MappedArray:
    """The array as it should be pickled: a reference where it is a contiguous part of a file mapped read-only, else
    itself.
    """
    root: Any = array
    while isinstance(root, np.ndarray) and not isinstance(root, np.memmap):
        root = root.base
    while isinstance(root, np.memmap) and isinstance(root.base, np.memmap):
        root = root.base
    if not isinstance(root, np.memmap) or root.mode != "r" or root.filename is None or not array.flags.c_contiguous:
        return array
    return MappedArray(root, array)
