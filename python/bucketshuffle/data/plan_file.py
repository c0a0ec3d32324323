"""A saved plan: an `.npz` file, read without pickle, and refused by name when it is not whole."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.data.atomic import write_file
from bucketshuffle.shapes import row_tokens

_PER_BATCH = ("padded_lengths", "costs", "buckets")
_ARRAYS = ("indices", "offsets", *_PER_BATCH, "boundaries", "dropped")
_SCALARS = ("seed", "epoch", "order_version")
_MAX_SCALAR = 2**64 - 1


def write_plan(path: str | os.PathLike[str], arrays: Mapping[str, npt.NDArray[Any]], scalars: dict[str, Any]) -> None:
    """Writes the fields of a plan to `path`, as `write_file` does."""
    fields: dict[str, Any] = {"scalars": np.array(json.dumps(scalars)), **arrays}
    write_file(path, lambda file: _write(file, fields))


def _write(file: IO[bytes], fields: Mapping[str, npt.NDArray[Any]]) -> None:
    # numpy.savez before version 1.24 leaves an archive open that cannot be written, which Python then complains about.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in fields.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_plan(path: str | os.PathLike[str], totals: frozenset[str]) -> dict[str, Any]:
    """Returns the fields of the plan in `path`; `totals` are the names of its totals.

    Raises:
        OSError: no such file, or one that may not be read.
        ValueError: the file holds no plan.
    """
    with open(os.fspath(path), "rb") as file:  # never a number, which open takes for an open file
        try:
            return _read(file, totals)
        except MemoryError:
            raise
        except Exception as error:  # a damaged archive makes zipfile, zlib and NumPy raise whatever they come to
            reason = str(error) if isinstance(error, _MalformedError) else f"it cannot be read ({error})"
            raise ValueError(
                f"path = {os.fspath(path)!r} holds no plan, since {reason}; pass a file that EpochPlan.save wrote"
            ) from error


class _MalformedError(ValueError):
    """Why a file holds no plan, as the end of a sentence."""


def _read(file: IO[bytes], totals: frozenset[str]) -> dict[str, Any]:
    if not zipfile.is_zipfile(file):
        raise _MalformedError("it is not a whole .npz file")
    with zipfile.ZipFile(file) as archive:
        fields: dict[str, Any] = {name: _array(archive, name) for name in _ARRAYS}
        if "domains.npy" in archive.namelist():
            fields["domains"] = _array(archive, "domains")
        scalars = json.loads(_array(archive, "scalars").item())
    for name in fields:
        dtype, array = np.dtype(np.int32 if name == "buckets" else np.int64), fields[name]
        several = name == "padded_lengths" and array.ndim == 2 and array.shape[1] > 1  # fields
        if array.dtype != dtype or (array.ndim != 1 and not several):
            raise _MalformedError(
                f"{name} has dtype {array.dtype} and shape {array.shape}, not {dtype} in one dimension"
            )
    _check_batches(fields)
    _check_samples(fields["indices"], fields["dropped"])
    tokens = scalars.pop("_domain_tokens", None) if isinstance(scalars, dict) else None
    if "domains" in fields:
        fields["_domain_tokens"] = _domain_tokens(tokens, fields["domains"])
    names = scalars.pop("field_names", None) if isinstance(scalars, dict) else None
    _check_scalars(scalars, totals)
    fields.update(scalars)
    if names is not None:
        fields["field_names"] = _names(names, fields["padded_lengths"])
    return fields


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    if f"{name}.npy" not in archive.namelist():
        raise _MalformedError(f"it has no {name}")
    with archive.open(f"{name}.npy") as member:
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = read[np.lib.format.read_magic(member)](member)
        raw = member.read()  # to the end, where zipfile checks the sum
    if dtype.hasobject:
        raise _MalformedError(f"{name} holds Python objects")
    if len(raw) != dtype.itemsize * math.prod(shape):
        raise _MalformedError(f"{name} has {len(raw)} bytes, not those of shape {shape} and dtype {dtype}")
    return np.frombuffer(raw, dtype).reshape(shape)


def _check_batches(fields: Mapping[str, npt.NDArray[Any]]) -> None:
    offsets, boundaries = fields["offsets"], fields["boundaries"]
    n_batches, n_used, n_buckets = len(offsets) - 1, len(fields["indices"]), len(boundaries) - 1
    if n_batches < 0 or offsets[0] != 0 or offsets[-1] != n_used:
        raise _MalformedError(f"offsets do not run from 0 to the number of indices = {n_used}")
    for name in (*_PER_BATCH, *(["domains"] if "domains" in fields else [])):
        if len(fields[name]) != n_batches:
            raise _MalformedError(f"{name} has {len(fields[name])} entries for {n_batches} batches")
    if n_buckets < 1:
        raise _MalformedError(f"boundaries has {len(boundaries)} edges, fewer than 2")
    _refuse("offsets", offsets, np.diff(offsets, prepend=-1) <= 0, "above the one before it")
    # Those of several domains stand one after the other.
    is_bad = boundaries < 0 if "domains" in fields else np.diff(boundaries, prepend=0) < 0
    _refuse("boundaries", boundaries, is_bad, "an edge of 0 or more in ascending order")
    padded_lengths = fields["padded_lengths"]
    _refuse("padded_lengths", padded_lengths, row_tokens(padded_lengths) < 1, "1 or more")
    _refuse("costs", fields["costs"], fields["costs"] < 1, "1 or more")
    buckets = fields["buckets"]
    _refuse("buckets", buckets, (buckets < -1) | (buckets >= n_buckets), f"in -1 <= bucket < {n_buckets}")


def _check_samples(indices: npt.NDArray[Any], dropped: npt.NDArray[Any]) -> None:
    n_samples = len(indices) + len(dropped)
    for name, samples in (("indices", indices), ("dropped", dropped)):
        _refuse(name, samples, (samples < 0) | (samples >= n_samples), f"in 0 <= sample < n_samples = {n_samples}")
    _refuse("dropped", dropped, np.diff(dropped, prepend=-1) <= 0, "above the one before it")
    seen = np.zeros(n_samples, np.bool_)
    seen[indices] = True
    seen[dropped] = True
    if not seen.all():
        raise _MalformedError(
            f"sample {int(np.argmin(seen))} is neither among indices nor among dropped, so another is twice"
        )


def _check_scalars(scalars: Any, totals: frozenset[str]) -> None:
    if not isinstance(scalars, dict) or scalars.keys() != {*_SCALARS, "_totals"}:
        raise _MalformedError("scalars are not " + ", ".join(_SCALARS) + " and totals")
    if not isinstance(scalars["_totals"], dict) or scalars["_totals"].keys() != totals:
        raise _MalformedError("totals are not " + ", ".join(sorted(totals)))
    for name in _SCALARS:
        if type(scalars[name]) is not int or not 0 <= scalars[name] <= _MAX_SCALAR:
            raise _MalformedError(f"{name} = {scalars[name]!r} is not an integer in [0, {_MAX_SCALAR}]")
    for name, value in scalars["_totals"].items():
        if type(value) is not int or value < 0:
            raise _MalformedError(f"{name} = {value!r} is not an integer of 0 or more")


def _domain_tokens(tokens: Any, domains: npt.NDArray[Any]) -> dict[int, int]:
    pairs = tokens if isinstance(tokens, list) else []
    if not all(isinstance(pair, list) and [type(n) for n in pair] == [int, int] for pair in pairs):
        pairs = []
    if {value for value, _ in pairs} != set(domains.tolist()):
        raise _MalformedError(f"_domain_tokens = {tokens!r} are not the tokens of each domain")
    return dict(pairs)


def _names(names: Any, padded_lengths: npt.NDArray[Any]) -> tuple[str, ...]:
    n_fields = padded_lengths.shape[1] if padded_lengths.ndim == 2 else 1
    if not isinstance(names, list) or len(names) != n_fields or not all(isinstance(name, str) for name in names):
        raise _MalformedError(f"field_names = {names!r} are not the names of {n_fields} fields")
    return tuple(names)


def _refuse(name: str, array: npt.NDArray[Any], is_bad: npt.NDArray[np.bool_], wanted: str) -> None:
    if is_bad.any():
        i = int(is_bad.argmax())
        raise _MalformedError(f"{name}[{i}] = {array[i]} is not {wanted}")
