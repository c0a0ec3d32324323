"""The checks of single values that Python makes itself; their texts are those of the core (`src/error.rs`)."""

from __future__ import annotations

import operator
from typing import Any

MAX_WORD = 2**64 - 1
"""The largest seed or epoch."""

MAX_COUNT = 2**63 - 1
"""The largest count, size or number of tokens."""


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
