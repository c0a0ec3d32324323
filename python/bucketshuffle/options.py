"""The options of a plan: their types; their defaults and checks are the core's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from bucketshuffle import _core

_F = TypeVar("_F", bound=Callable[..., Any])

_Integers = Sequence[int] | npt.NDArray[np.integer[Any]]


class BatchOptions(TypedDict, total=False):
    """The keyword options that say what a batch is; see `pack_epoch`."""

    token_budget: int
    max_batch_size: int | None
    boundaries: Literal["auto"] | int | _Integers
    repeat_weight: float
    padding_target: float | None
    pad_to_multiple_of: int
    padded_lengths: int | _Integers | None
    per_sample: int
    quadratic_length: int | None
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
        shown = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_core.DEFAULTS[name], annotation=annotation)
            for name, annotation in _annotations(options).items()
        ]
        function.__signature__ = signature.replace(parameters=[*known, *shown])  # type: ignore[attr-defined]
        return function

    return decorate


def _annotations(options: type) -> dict[str, str]:
    return {name: value.__forward_arg__ for name, value in options.__annotations__.items()}
