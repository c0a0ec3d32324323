"""The checks of single values that Python makes itself, with the texts of the core."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from bucketshuffle.options import flag, integer


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3), np.array(3, np.uint16)])
def test_every_integer_is_one(value: Any) -> None:
    number = integer("window", value, 3, 3)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize(
    "value", [3.0, "3", None, True, np.True_, np.array(True), np.array([3]), np.array(3.0), [3], np.float64(3)]
)
def test_what_is_no_integer_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(f'window = {value!r} is not an integer')}$"):
        integer("window", value, 1)


@pytest.mark.parametrize("value", [0, 6, -(2**70), np.int64(-1)])
def test_an_integer_out_of_range_is_named(value: Any) -> None:
    message = f"window = {value} is outside [1, 5]; choose a value in that range"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        integer("window", value, 1, 5)
    assert [integer("window", edge, 1, 5) for edge in (1, 5)] == [1, 5]


def test_a_tensor_counts_as_the_array_that_it_is() -> None:
    torch = pytest.importorskip("torch")
    assert integer("window", torch.tensor(3), 1) == 3
    for value in (torch.tensor([3]), torch.tensor(True), torch.tensor(3.0)):
        with pytest.raises(TypeError, match=f"^{re.escape(f'window = {value!r} is not an integer')}$"):
            integer("window", value, 1)


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_])
def test_a_flag_is_true_or_false(value: Any) -> None:
    assert flag("worst_first", value) is bool(value)


@pytest.mark.parametrize("value", [0, 1, 2, "no", None, [], np.array([True]), np.int8(1)])
def test_what_is_no_flag_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(f'worst_first = {value!r} is not True or False')}$"):
        flag("worst_first", value)
