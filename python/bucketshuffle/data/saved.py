"""A saved data set: one `safetensors` file, written atomically, mapped into memory, and refused when it is not whole.

The format is https://github.com/huggingface/safetensors, which every tool of the field reads: the size of the header
(8 bytes), the header (JSON: dtype, shape and place of every array, and text as `__metadata__`), the arrays. It is read
here and not by the package of that name, whose torch face looks the path up a second time to map it (a file replaced in
between gives garbage) and has no unsigned integers before torch 2.3.

Arrays: `offsets`, `values.<field>` for every per-token field, `scalars.<field>`. Metadata: `crc32.<array>`, a sum over
the array's entry in the header and its bytes; a file without sums, of another tool, is read as well.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.data.atomic import write_file
from bucketshuffle.data.flat import FlatField
from bucketshuffle.data.mapped import MappedFile, map_file

_DTYPES = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "BF16": "<u2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
_CODES = {dtype: code for code, dtype in _DTYPES.items() if code != "BF16"}
_SIZE_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # as in safetensors
_CHUNK_BYTES = 1 << 24


def write_fields(path: str | os.PathLike[str], fields: Mapping[str, FlatField]) -> None:
    """Writes arrays by name to `path`, as `write_file` does."""
    write_file(path, lambda file: write_fields_into(file, fields))


def read_fields(path: str | os.PathLike[str], *, verify: bool) -> dict[str, FlatField]:
    """Returns the arrays of a file by name, mapped read-only; the path is looked up once.

    Args:
        path: a `safetensors` file.
        verify: read every array and check its sum; otherwise only that of the offsets is checked.

    Raises:
        OSError: no such file, or one that may not be read.
        ValueError: a file that is not whole, has another format, or, under `verify`, has no sums.
    """
    name = os.fspath(path)
    file = map_file(path)
    header, start = _header(name, file)
    metadata = header.pop("__metadata__", {})
    fields: dict[str, FlatField] = {}
    for array, entry in header.items():
        values, place = file.array(start + entry["data_offsets"][0], _DTYPES[entry["dtype"]], tuple(entry["shape"]))
        if not values.flags.aligned:  # other tools may leave the header unpadded
            values, place = values.copy(), None  # type: ignore[assignment]
            values.flags.writeable = False
        fields[array] = FlatField(values, entry["dtype"] == "BF16", place)
        expected = metadata.get(f"crc32.{array}")
        if expected is None and verify:
            raise ValueError(f'{name} has no sum of "{array}"; open it without verify, or save it again')
        if expected is not None and (verify or array == "offsets"):
            first, last = (start + offset for offset in entry["data_offsets"])
            if expected != _text(_sum(array, entry, file.raw[first:last])):
                raise ValueError(f'{name} is corrupt: the sum of "{array}" differs; save it again')
    return fields


def write_fields_into(file: IO[bytes], fields: Mapping[str, FlatField]) -> None:
    arrays = {name: field.values for name, field in fields.items()}
    entries: dict[str, Any] = {}
    end = 0
    # The widest first, so that every array is aligned.
    for name in sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize):
        array = arrays[name]
        code = "BF16" if fields[name].bfloat16 else _CODES[array.dtype.newbyteorder("<").str]
        entries[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    sums = {f"crc32.{name}": _text(0) for name in arrays}
    _write_header(file, sums, entries, arrays)
    for name, entry in entries.items():
        sums[f"crc32.{name}"] = _text(_write_array(file, name, entry, arrays[name]))
    file.seek(0)
    _write_header(file, sums, entries, arrays)


def _write_header(
    file: IO[bytes], sums: Mapping[str, str], entries: Mapping[str, Any], order: Mapping[str, Any]
) -> None:
    header = json.dumps({"__metadata__": sums} | {name: entries[name] for name in order}).encode()
    header += b" " * (-len(header) % _SIZE_BYTES)
    file.write(len(header).to_bytes(_SIZE_BYTES, "little") + header)


def _write_array(file: IO[bytes], name: str, entry: Mapping[str, Any], array: npt.NDArray[Any]) -> int:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    raw = little.reshape(-1).view(np.uint8)
    for first in range(0, raw.size, _CHUNK_BYTES):
        file.write(raw[first : first + _CHUNK_BYTES].data)
    return _sum(name, entry, raw)


def _sum(name: str, entry: Mapping[str, Any], raw: npt.NDArray[np.uint8]) -> int:
    checksum = zlib.crc32(json.dumps([name, entry["dtype"], entry["shape"]]).encode())
    for first in range(0, raw.size, _CHUNK_BYTES):
        checksum = zlib.crc32(raw[first : first + _CHUNK_BYTES].data, checksum)
    return checksum


def _text(checksum: int) -> str:
    return f"{checksum:08x}"


def _header(name: str, file: MappedFile) -> tuple[dict[str, Any], int]:
    """The header, once every array in it is known to lie in the file, and where the arrays start."""
    size = len(file.raw)
    if size < _SIZE_BYTES:
        raise ValueError(f"{name} is truncated: it has {size} bytes, fewer than a header; save it again")
    start = _SIZE_BYTES + int.from_bytes(file.raw[:_SIZE_BYTES].tobytes(), "little")
    if start - _SIZE_BYTES > _MAX_HEADER_BYTES:
        raise ValueError(
            f"{name} is not a safetensors file: its header would have {start - _SIZE_BYTES} bytes; pass what "
            "PreloadedDataset.save wrote"
        )
    if size < start:
        raise ValueError(f"{name} is truncated: it has {size} bytes, fewer than its header; save it again")
    try:
        header = json.loads(file.raw[_SIZE_BYTES:start].tobytes())
        if not isinstance(header, dict):
            raise TypeError
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            f"{name} is not a safetensors file: its header is not a JSON object; pass what PreloadedDataset.save wrote"
        ) from None
    end = 0
    arrays = {array: entry for array, entry in header.items() if array != "__metadata__"}
    for array, entry in arrays.items():
        _check_entry(name, array, entry)
    # The arrays follow each other without a gap, as safetensors demands.
    for array, entry in sorted(arrays.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["data_offsets"][0] != end:
            raise ValueError(f'{name} is corrupt: "{array}" does not start where the array before it ends')
        end = entry["data_offsets"][1]
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError(f"{name} is corrupt: its metadata is not text by name")
    if size != start + end:
        problem = "truncated" if size < start + end else "corrupt"
        raise ValueError(f"{name} is {problem}: it has {size} of {start + end} bytes; save it again")
    return header, start


def _check_entry(name: str, array: str, entry: Any) -> None:
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not all(isinstance(numbers, list) and all(map(_is_count, numbers)) for numbers in (shape, offsets)):
        raise ValueError(f'{name} is corrupt: "{array}" has no shape or place in its header')
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f'{name} has "{array}" of dtype {dtype}, which no batch can hold')
    n_bytes = np.dtype(_DTYPES[dtype]).itemsize
    for n_values in shape:
        n_bytes *= n_values
    if len(offsets) != 2 or offsets[1] - offsets[0] != n_bytes:
        raise ValueError(f'{name} is corrupt: "{array}" has shape {tuple(shape)}, but other than {n_bytes} bytes')


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
