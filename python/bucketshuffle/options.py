"""The options of a plan: their types. Their defaults and checks are the core's; the checks that Python makes of other
values have its texts (`src/error.rs`)."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from bucketshuffle import _core

_F = TypeVar("_F", bound=Callable[..., Any])

_Integers = Sequence[int] | npt.NDArray[np.integer[Any]]

MAX_WORD = 2**64 - 1
"""The largest seed or epoch."""

MAX_COUNT = 2**63 - 1
"""The largest count, size or number of tokens."""


class BatchOptions(TypedDict, total=False):
    """The keyword options that say what a batch is; see `pack_epoch`."""

    token_budget: int
    max_batch_size: int | None
    min_batch_size: int
    boundaries: Literal["auto"] | int | _Integers
    repeat_weight: float
    padding_target: float | None
    pad_to_multiple_of: int | _Integers | Mapping[Any, int]
    padded_lengths: int | _Integers | Sequence[Any] | Mapping[Any, Any] | None
    per_sample: int
    quadratic_length: int | Sequence[int | None] | Mapping[Any, int | None] | None
    field_weights: float | Sequence[float] | Mapping[Any, float]
    combine: Literal["sum", "max"]
    strategy: Literal["bucketed", "sorted", "random"]
    overlong: Literal["error", "drop", "keep"]
    empty: Literal["error", "drop"]
    threads: int | None


class PlanOptions(BatchOptions, total=False):
    """All keyword options of `pack_epoch` and `Planner`: those of a batch, and those of their number and order."""

    window: int
    align_ranks: int
    constant_count: bool


def shows_options(options: type) -> Callable[[_F], _F]:
    """Gives a function with `**options` the signature that says each option's name, type and default."""

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        known = list(signature.parameters.values())[:-1]
        defaults: dict[str, Any] = {**_core.DEFAULTS}
        shown = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
            for name, annotation in _annotations(options).items()
        ]
        function.__signature__ = signature.replace(parameters=[*known, *shown])  # type: ignore[attr-defined]
        return function

    return decorate


def _annotations(options: type) -> dict[str, str]:
    return {name: value.__forward_arg__ for name, value in options.__annotations__.items()}


def integer(name: str, value: Any, minimum: int, maximum: int = MAX_COUNT) -> int:
    """Returns `value` as an int; NumPy integers and arrays and tensors of no dimension count as integers.

    Raises:
        TypeError: `value` is no integer; a bool is none.
        ValueError: `value` is outside `[minimum, maximum]`.
    """
    try:
        if isinstance(value, bool) or _is_bool_or_vector(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} = {value!r} is not an integer") from None
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} = {number} is outside [{minimum}, {maximum}]; choose a value in that range")
    return number


def flag(name: str, value: Any) -> bool:
    """Returns `value` as a bool.

    Raises:
        TypeError: `value` is neither True nor False; `numpy.bool_` is accepted.
    """
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name} = {value!r} is not True or False")


def _is_bool_or_vector(value: Any) -> bool:
    # Of any framework: NumPy's and torch's bools have an `__index__`, and so have tensors of one element.
    return str(getattr(value, "dtype", "")).endswith("bool") or getattr(value, "ndim", 0) != 0
