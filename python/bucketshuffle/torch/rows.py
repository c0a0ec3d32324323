"""Samples as Python holds them, end to end in flat fields."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from bucketshuffle.data.flat import FlatField, flat_field


def tensor_field(name: str, values: Any) -> FlatField:
    """Returns a flat buffer as a field: an array, tensor or field `[n_tokens, *trailing]`, shared and never written to.

    Raises:
        TypeError: values that are not numbers.
        ValueError: no token dimension.
    """
    if isinstance(values, FlatField):
        return values
    if not isinstance(values, torch.Tensor):
        return flat_field(name, values)
    values = values.detach().cpu()
    if values.dtype == torch.bfloat16:
        return flat_field(name, values.contiguous().view(torch.int16).numpy().view(np.uint16), bfloat16=True)
    return flat_field(name, values.numpy())


def flatten_rows(name: str, rows: Sequence[Any]) -> tuple[FlatField, npt.NDArray[np.int64]]:
    """Returns rows `(length, *trailing)` end to end, and the length of each, `[n_rows]`.

    Lists of floats become torch's default dtype, as `torch.tensor` makes of them; arrays and tensors keep theirs.

    Raises:
        TypeError: values that are not numbers.
        ValueError: rows of different trailing shapes, or integers that no dtype holds together.
    """
    lengths = np.fromiter(map(len, rows), np.int64, count=len(rows))
    # An empty row has no say in the dtype: torch.tensor([]) is float32, and numpy.array([]) float64.
    real = [(position, row) for position, row in enumerate(rows) if len(row)] or [(0, rows[0])]
    if all(isinstance(row, (list, tuple)) for _, row in real):
        return flat_field(name, _list_values(name, [row for _, row in real])), lengths
    if all(isinstance(row, torch.Tensor) for _, row in real):
        tensors = [(position, row.detach().cpu()) for position, row in real]
        if len({row.dtype for _, row in tensors}) == 1 or any(row.is_floating_point() for _, row in tensors):
            _same_trailing(name, tensors)
            joined = torch.cat([row for _, row in tensors])
            for position, row in tensors:
                if row.dtype != joined.dtype and not torch.equal(row, row.to(joined.dtype).to(row.dtype)):
                    _refuse_rounded(name, position, joined.dtype)
            return tensor_field(name, joined), lengths
    arrays = [(position, _row_array(name, row)) for position, row in real]
    _same_trailing(name, arrays)
    return flat_field(name, _joined(name, arrays)), lengths


def number_tensor(name: str, values: Any) -> torch.Tensor:
    """Returns numbers, one or an array of them, as a tensor of their dtype; arrays are copied.

    Raises:
        TypeError: values that are not numbers.
        ValueError: an integer beyond 64 bits.
    """
    if isinstance(values, torch.Tensor):
        return values.detach().cpu()
    array = np.array(values)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError(
            f"{name} has dtype {array.dtype}, which no batch can hold; use bool, integers, or floats up to 64 bits"
        )
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        return torch.from_numpy(array)
    except TypeError:  # unsigned integers are torch's since 2.3
        if array.size and int(array.max()) >= 2**63:
            raise ValueError(f"{name} has value {array.max()}, outside torch.int64; correct the value") from None
        return torch.from_numpy(array.astype(np.int64))


def stacked(name: str, column: Sequence[Any]) -> torch.Tensor:
    """Returns one number or array of each sample as one tensor `(B, *shape)`.

    Raises:
        TypeError: something that is no number.
        ValueError: arrays of different shapes, or integers that no dtype holds together.
    """
    typed = any(isinstance(value, (torch.Tensor, np.ndarray, np.generic)) for value in column)
    for position, value in enumerate(column):
        if value is None or _kind(value) == "other":
            what = "None" if value is None else f"a {type(value).__name__}"
            raise TypeError(f'items[{position}]["{name}"] is {what}, but items[0] has a number; give every sample one')
    shapes = [tuple(np.shape(value)) for value in column] if typed else []
    if any(shape != shapes[0] for shape in shapes):
        odd = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
        raise ValueError(
            f'items[{odd}]["{name}"] has shape {shapes[odd]}, but items[0] has {shapes[0]}; '
            "values that are stacked have one shape"
        )
    if not typed:
        try:
            return torch.tensor(column)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            if is_refused_memory(error):
                raise
            raise ValueError(
                f'"{name}" cannot be stacked: its values have different shapes, or are beyond 64 bits; correct them'
            ) from None
    tensors = []
    for position, value in enumerate(column):
        is_plain = isinstance(value, (bool, int, float))
        tensors.append(torch.tensor(value) if is_plain else number_tensor(f"{name} of sample {position}", value))
    if len({tensor.dtype for tensor in tensors}) > 1:  # torch stacks no unsigned integers with others
        tensors = [_signed(name, position, tensor) for position, tensor in enumerate(tensors)]
    together = torch.stack(tensors)
    for position, tensor in enumerate(tensors):
        if tensor.dtype != together.dtype and not torch.equal(tensor, together[position].to(tensor.dtype)):
            _refuse_rounded(name, position, together.dtype)
    return together


def is_refused_memory(error: Exception) -> bool:
    """Returns whether torch had no memory of the CPU, which it says with a plain RuntimeError."""
    return "DefaultCPUAllocator" in str(error)


def _signed(name: str, position: int, tensor: torch.Tensor) -> torch.Tensor:
    if str(tensor.dtype) not in ("torch.uint16", "torch.uint32", "torch.uint64"):
        return tensor
    try:
        return torch.tensor(tensor.tolist(), dtype=torch.int64)
    except (RuntimeError, OverflowError):
        _refuse_rounded(name, position, torch.int64)


def kind_of(column: Sequence[Any]) -> str:
    """Returns what the values of one key are, over all samples: "tokens", "scalar", or "other", which is passed on as
    it is.

    The first value decides, or the first that is not an empty list.
    """
    return _kind(next((value for value in column if not isinstance(value, (list, tuple)) or value), column[0]))


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        regular = value.layout == torch.strided and not value.is_nested
        return "other" if not regular or value.is_complex() else "tokens" if value.ndim else "scalar"
    if isinstance(value, (np.ndarray, np.generic)):
        return "other" if value.dtype.kind not in "biuf" else "tokens" if value.ndim else "scalar"
    if isinstance(value, (bool, int, float)):
        return "scalar"
    if isinstance(value, (list, tuple)):
        return "tokens" if not value or _kind(value[0]) != "other" else "other"
    return "other"


def _row_array(name: str, row: Any) -> npt.NDArray[Any]:
    if isinstance(row, (list, tuple)):
        return _list_values(name, [row])
    if isinstance(row, torch.Tensor):
        if row.dtype == torch.bfloat16:
            row = row.float()  # NumPy has none; the other rows are of another dtype
        return np.asarray(row.detach().cpu())
    return np.asarray(row)


def _list_values(name: str, rows: Sequence[Sequence[Any]]) -> npt.NDArray[Any]:
    tokens = list(itertools.chain.from_iterable(rows))
    if not tokens:
        return np.empty(0, np.int64)
    if isinstance(tokens[0], torch.Tensor):
        tokens = [np.asarray(token) for token in tokens]
    ragged = ValueError(f"{name} has tokens of different shapes; every token of a field needs the same shape")
    # NumPy 1.23 makes objects of tokens of different shapes and warns, later versions raise.
    if isinstance(tokens[0], (list, tuple)) and len({len(t) if hasattr(t, "__len__") else -1 for t in tokens}) > 1:
        raise ragged
    try:
        values = np.array(tokens)
    except ValueError:
        raise ragged from None
    if values.dtype.kind == "f" and isinstance(tokens[0], (float, int, list, tuple)):
        if np.abs(values).max(initial=0) >= 2**63 and all(type(value) is int for value in _innermost(tokens)):
            # NumPy makes floats of integers on both sides of 2^63.
            raise ValueError(
                f"{name} holds integers that no dtype holds together, from {values.min():.0f} to "
                f"{values.max():.0f}; correct them"
            )
        values = values.astype(str(torch.get_default_dtype()).removeprefix("torch."))
    return values


def _joined(name: str, rows: Sequence[tuple[int, npt.NDArray[Any]]]) -> npt.NDArray[Any]:
    """Rows of any dtypes, end to end, no integer changed."""
    arrays = [array for _, array in rows]
    joined = np.concatenate(arrays)
    if joined.dtype.kind != "f" or all(array.dtype.kind == "f" for array in arrays):
        return joined
    if any(array.dtype.kind == "f" for array in arrays):
        for position, array in rows:
            with np.errstate(invalid="ignore"):
                again = array.astype(joined.dtype).astype(array.dtype)
            if array.dtype.kind in "iu" and not np.array_equal(again, array):
                _refuse_rounded(name, position, joined.dtype)
        return joined
    # NumPy makes floats of signed and unsigned 64-bit integers.
    for position, array in rows:
        if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
            raise ValueError(
                f'items[{position}]["{name}"] holds {array.max()}, which does not fit int64 beside rows of signed '
                "integers; give all rows one dtype"
            )
    return np.concatenate([array.astype(np.int64) for array in arrays])


def _innermost(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _innermost(value)
        else:
            yield value


def _refuse_rounded(name: str, position: int, dtype: object) -> NoReturn:
    raise ValueError(
        f'items[{position}]["{name}"] holds integers that change as {dtype}, which all samples make together; give '
        "them one dtype"
    )


def _same_trailing(name: str, rows: Sequence[tuple[int, Any]]) -> None:
    first, expected = rows[0]
    for position, row in rows:
        if row.shape[1:] != expected.shape[1:]:
            raise ValueError(
                f'items[{position}]["{name}"] has shape {tuple(row.shape)}, but items[{first}] has '
                f"{tuple(expected.shape)}; "
                "only the first dimension, the tokens, may differ"
            )
