"""Per-token fields as flat buffers: the form in which the native collator reads them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bucketshuffle import _core

# Values that are only copied travel as integers of their size; the native side knows no floats. NumPy dtype, its name
# there, torch dtype.
_CARRIERS: dict[int, tuple[type[np.generic], str, torch.dtype]] = {
    1: (np.uint8, "u8", torch.uint8),
    2: (np.int16, "i16", torch.int16),
    4: (np.int32, "i32", torch.int32),
    8: (np.int64, "i64", torch.int64),
}


@dataclass(frozen=True)
class FlatField:
    """One field of all samples, end to end: token `t` has the values `values[t]`."""

    values: npt.NDArray[Any]  # (n_tokens, *trailing), read-only; bfloat16 as uint16
    bfloat16: bool = False

    @property
    def trailing(self) -> tuple[int, ...]:
        """The shape of one token's values: () for ids, (D,) for features."""
        return self.values.shape[1:]

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.bfloat16 else self.values.dtype.name

    @property
    def is_integer(self) -> bool:
        return not self.bfloat16 and self.values.dtype.kind in "iu"


@dataclass(frozen=True)
class PaddedField:
    """How a field becomes part of a batch: what the native call is told, and how its answer is read."""

    name: str
    source: npt.NDArray[Any] | str  # (n_values,), read-only, or "mask" or "positions"
    per_token: int
    carrier: str
    fill: int
    dtype: torch.dtype
    trailing: tuple[int, ...]

    def request(self, out: torch.Tensor | None) -> tuple[Any, ...]:
        """The field as `pad_rows` takes it."""
        buffer = None if out is None else self._buffer(out)
        return self.name, self.source, self.per_token, self.carrier, self.fill, buffer

    def read(self, values: npt.NDArray[Any], shape: tuple[int, int]) -> torch.Tensor:
        """What the native call made, or wrote at the start of `out`, as a tensor `(B, L, *trailing)`; no copy."""
        n_values = shape[0] * shape[1] * self.per_token
        tensor = torch.from_numpy(values[:n_values].reshape(shape + self.trailing))
        return tensor if tensor.dtype is self.dtype else tensor.view(self.dtype)

    def row(self, start: int, end: int) -> torch.Tensor:
        """Tokens `start..end` of the flat buffer in the dtype of a batch, a copy `(end - start, *trailing)`."""
        offsets = np.array([start, end], np.int64)
        _, length, (values,) = _core.pad_rows(offsets, [0], [self.request(None)], left=False, pad_to_multiple_of=1)
        assert values is not None  # there was no `out`
        return self.read(values, (1, length)).squeeze(0)

    def _buffer(self, out: torch.Tensor) -> npt.NDArray[Any]:
        where = f'out["{self.name}"]'
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"{where} is a {type(out).__name__}, not a tensor")
        if out.dtype != self.dtype:
            raise TypeError(f"{where} has dtype {out.dtype}, but the batch has {self.dtype}; make it {self.dtype}")
        if out.device.type != "cpu" or not out.is_contiguous():
            raise ValueError(f"{where} is not contiguous memory of the CPU; allocate it with torch.empty")
        carrier, _, torch_carrier = _CARRIERS[self.dtype.itemsize]
        array: npt.NDArray[Any] = (out.view(torch_carrier) if out.dtype == torch.bfloat16 else out).detach().numpy()
        return array.reshape(-1).view(carrier)


def padded_field(name: str, field: FlatField, fill: float, dtype: torch.dtype | None) -> PaddedField:
    """Decide the dtype of a field's batches: integers become int64 unless told otherwise, everything else keeps its
    dtype.
    """
    values = field.values
    if dtype is None:
        dtype = torch.int64 if field.is_integer else _torch_dtype(field)
    same = str(dtype) == f"torch.{field.dtype}"
    widened = dtype in (torch.int64, torch.int32) and (field.is_integer or values.dtype == np.bool_)
    if not same and not widened:
        choices = f"torch.{field.dtype}, torch.int64 or torch.int32" if field.is_integer else f"torch.{field.dtype}"
        raise TypeError(f'dtype["{name}"] = {dtype} does not fit values of dtype {field.dtype}; use {choices}')
    if widened:
        source = values.view(np.uint8) if values.dtype == np.bool_ else values
    else:
        source = values.view(_CARRIERS[values.dtype.itemsize][0])
    per_token = int(np.prod(field.trailing, dtype=np.int64))
    carrier = _CARRIERS[dtype.itemsize][1]
    return PaddedField(
        name, source.reshape(-1), per_token, carrier, _fill_bits(name, fill, dtype), dtype, field.trailing
    )


def made_field(name: str, source: str, dtype: torch.dtype) -> PaddedField:
    """A field that is known from the lengths: the attention mask or the position ids."""
    return PaddedField(name, source, 1, _CARRIERS[dtype.itemsize][1], 0, dtype, ())


def _torch_dtype(field: FlatField) -> torch.dtype:
    return torch.bfloat16 if field.bfloat16 else torch.from_numpy(np.empty(0, field.values.dtype)).dtype


def _fill_bits(name: str, fill: float, dtype: torch.dtype) -> int:
    """The fill as the integer that carries it."""
    try:
        value = torch.tensor(fill, dtype=dtype)
    except (RuntimeError, OverflowError):
        value = None
    if value is None or (not dtype.is_floating_point and value.item() != fill):
        raise ValueError(f'fill["{name}"] = {fill} does not fit {dtype}; choose another fill or dtype')
    return int(value.view(_CARRIERS[dtype.itemsize][2]).item())


def flat_field(name: str, values: Any) -> FlatField:
    """A flat buffer as a field: an array, tensor or field `(n_tokens, *trailing)`, shared and never written to.

    Raises:
        TypeError: values that are not numbers.
        ValueError: no token dimension.
    """
    bfloat16 = False
    if isinstance(values, FlatField):
        values, bfloat16 = values.values, values.bfloat16
    elif isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        bfloat16 = values.dtype == torch.bfloat16
        values = (values.view(torch.int16) if bfloat16 else values).numpy()
    values = np.asarray(values)
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise TypeError(
            f"{name} has dtype {values.dtype}, which no batch can hold; use bool, integers, or floats up to 64 bits"
        )
    if values.ndim == 0:
        raise ValueError(f"{name} is a single number, not one value per token")
    values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("=")).view()
    values.flags.writeable = False
    return FlatField(values, bfloat16)


def flatten_rows(name: str, rows: Sequence[Any]) -> tuple[FlatField, npt.NDArray[np.int64]]:
    """Rows `(length, *trailing)`, end to end, and the length of each.

    Lists of floats become torch's default dtype, as `torch.tensor` makes of them; arrays and tensors keep theirs.
    """
    lengths = np.fromiter(map(len, rows), np.int64, count=len(rows))
    # An empty row has no say in the dtype: torch.tensor([]) is float32, and numpy.array([]) float64.
    real = [(position, row) for position, row in enumerate(rows) if len(row)] or [(0, rows[0])]
    if all(isinstance(row, (list, tuple)) for _, row in real):
        return flat_field(name, _list_values(name, [row for _, row in real])), lengths
    if all(isinstance(row, torch.Tensor) for _, row in real):
        _same_trailing(name, real)
        return flat_field(name, torch.cat([row.detach().cpu() for _, row in real])), lengths
    arrays = [(position, _row_array(name, row)) for position, row in real]
    _same_trailing(name, arrays)
    return flat_field(name, np.concatenate([array for _, array in arrays])), lengths


def kind_of(column: Sequence[Any]) -> str:
    """What the values of one key are, over all samples: "tokens", "scalar", or "other", which is passed on as it is.

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
    return np.asarray(row.detach().cpu() if isinstance(row, torch.Tensor) else row)


def _list_values(name: str, rows: Sequence[Sequence[Any]]) -> npt.NDArray[Any]:
    tokens = list(itertools.chain.from_iterable(rows))
    if not tokens:
        return np.empty(0, np.int64)
    if isinstance(tokens[0], torch.Tensor):
        tokens = [np.asarray(token) for token in tokens]
    try:
        values = np.array(tokens)
    except ValueError:
        raise ValueError(
            f"{name} has tokens of different shapes; every token of a field needs the same shape"
        ) from None
    if values.dtype == np.float64 and isinstance(tokens[0], (float, int, list, tuple)):
        values = values.astype(str(torch.get_default_dtype()).removeprefix("torch."))
    return values


def _same_trailing(name: str, rows: Sequence[tuple[int, Any]]) -> None:
    first, expected = rows[0]
    for position, row in rows:
        if row.shape[1:] != expected.shape[1:]:
            raise ValueError(
                f'items[{position}]["{name}"] has shape {tuple(row.shape)}, but items[{first}] has '
                f"{tuple(expected.shape)}; "
                "only the first dimension, the tokens, may differ"
            )
