"""Every message about an option, whole, as Python users see it; about lengths: test_lengths.py and tests/errors.rs."""

import inspect
import itertools
import json
import pydoc
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bucketshuffle import DFLASH_BOUNDARIES, EpochPlan, Planner, PlanOptions, _core, pack_epoch

MAX = 2**63 - 1
IN_RANGE = "choose a value in that range"

VALUES = [
    ("token_budget", 0, f"token_budget = 0 is outside [1, {MAX}]; {IN_RANGE}"),
    ("token_budget", -5, f"token_budget = -5 is outside [1, {MAX}]; {IN_RANGE}"),
    ("token_budget", 2**64, f"token_budget = {2**64} is outside [1, {MAX}]; {IN_RANGE}"),
    ("max_batch_size", 0, f"max_batch_size = 0 is outside [1, {MAX}]; {IN_RANGE}"),
    ("pad_to_multiple_of", 0, f"pad_to_multiple_of = 0 is outside [1, {MAX}]; {IN_RANGE}"),
    ("per_sample", -1, f"per_sample = -1 is outside [0, {MAX}]; {IN_RANGE}"),
    ("quadratic_length", 0, f"quadratic_length = 0 is outside [1, {MAX}]; {IN_RANGE}"),
    ("window", 0, f"window = 0 is outside [1, {MAX}]; {IN_RANGE}"),
    ("align_ranks", -1, f"align_ranks = -1 is outside [1, {MAX}]; {IN_RANGE}"),
    (
        "align_ranks",
        2,
        "align_ranks = 2 does not divide window = 1; set window to align_ranks times the accumulation steps",
    ),
    ("threads", 0, f"threads = 0 is outside [1, {MAX}]; {IN_RANGE}"),
    ("boundaries", 0, f"boundaries = 0 is outside [1, 4096]; {IN_RANGE}"),
    ("boundaries", 5_000, f"boundaries = 5000 is outside [1, 4096]; {IN_RANGE}"),
    ("boundaries", [0, -1], f"boundaries[1] = -1 is outside [0, {MAX}]; {IN_RANGE}"),
    (
        "boundaries",
        [0, 8, 8],
        "boundaries[2] = 8 does not exceed boundaries[1] = 8; pass strictly ascending edges, such as [0, 512, 1024]",
    ),
    (
        "boundaries",
        [8],
        "boundaries has 1 edges, outside [2, 32768]; pass the lower edge of the first bucket and the upper edge of "
        "each, such as [0, 512, 1024]",
    ),
    (
        "boundaries",
        range(10**12),
        "boundaries has 1000000000000 edges, outside [2, 32768]; pass the lower edge of the first bucket and the upper "
        "edge of each, such as [0, 512, 1024]",
    ),
    (
        "padded_lengths",
        range(1, 10**12),
        "padded_lengths has 999999999999 lengths, outside [1, 32768]; pass the lengths that batches may be padded to, "
        "such as [512, 1024, 2048]",
    ),
    ("boundaries", "six", 'boundaries = "six" is not an allowed value; choose "auto"'),
    ("padding_target", -0.1, f"padding_target = -0.1 is outside [0, inf]; {IN_RANGE}"),
    ("padding_target", float("nan"), f"padding_target = NaN is outside [0, inf]; {IN_RANGE}"),
    ("repeat_weight", -1, f"repeat_weight = -1 is outside [0, inf]; {IN_RANGE}"),
    ("padded_lengths", 0, f"padded_lengths = 0 is outside [1, 4096]; {IN_RANGE}"),
    ("padded_lengths", [8, 0], f"padded_lengths[1] = 0 is outside [1, {MAX}]; {IN_RANGE}"),
    (
        "padded_lengths",
        [8, 8],
        "padded_lengths[1] = 8 does not exceed padded_lengths[0] = 8; pass strictly ascending lengths, such as "
        "[512, 1024, 2048]",
    ),
    ("admitted", [True], "admitted has 1 entries, lengths has 3; pass one entry for each sample"),
    (
        "strategy",
        "shuffled",
        'strategy = "shuffled" is not an allowed value; choose "bucketed", "sorted" or "random"',
    ),
    ("overlong", "skip", 'overlong = "skip" is not an allowed value; choose "error", "drop" or "keep"'),
    ("empty", "keep", 'empty = "keep" is not an allowed value; choose "error" or "drop"'),
    ("seed", -1, f"seed = -1 is outside [0, {2**64 - 1}]; {IN_RANGE}"),
    ("seed", 2**64, f"seed = {2**64} is outside [0, {2**64 - 1}]; {IN_RANGE}"),
    ("epoch", -1, f"epoch = -1 is outside [0, {2**64 - 1}]; {IN_RANGE}"),
]

KINDS = [
    ("token_budget", 1.5, "token_budget = 1.5 is not an integer"),
    ("token_budget", True, "token_budget = True is not an integer"),
    ("token_budget", np.array([400]), "token_budget = array([400]) is not an integer"),
    ("boundaries", np.zeros((2, 2), int), "boundaries[0] = array([0, 0]) is not an integer"),
    ("repeat_weight", True, "repeat_weight = True is not a number"),
    ("token_budget", None, "token_budget = None is not an integer"),
    ("window", "8", "window = '8' is not an integer"),
    ("boundaries", [0, 2.5], "boundaries[1] = 2.5 is not an integer"),
    ("boundaries", None, "boundaries = None is not an integer"),
    ("padding_target", "1%", "padding_target = '1%' is not a number"),
    ("repeat_weight", "half", "repeat_weight = 'half' is not a number"),
    ("padded_lengths", "few", "padded_lengths = 'few' is not an integer"),
    ("boundaries", itertools.count(), "boundaries = count(0) is not a sequence"),
    (
        "admitted",
        [1, 0, 1],
        "admitted has dtype int64 and shape (3,); pass one bool for each sample, such as loss_tokens >= 1",
    ),
    ("constant_count", 1, "constant_count = 1 is not True or False"),
    ("strategy", 3, "strategy = 3 is not a string"),
    ("seed", 0.0, "seed = 0.0 is not an integer"),
    ("epoch", None, "epoch = None is not an integer"),
    (
        "max_tokens",
        8_192,
        "max_tokens is not an option; the options are token_budget, max_batch_size, min_batch_size, boundaries, "
        "repeat_weight, padding_target, pad_to_multiple_of, padded_lengths, per_sample, quadratic_length, "
        "field_weights, combine, strategy, window, align_ranks, constant_count, overlong, empty, threads",
    ),
]


def plan_with(name: str, value: Any) -> EpochPlan:
    return pack_epoch([5, 3, 8], **{"seed": 0, name: value})


@pytest.mark.parametrize(("name", "value", "message"), VALUES)
def test_a_value_out_of_range_is_a_value_error(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        plan_with(name, value)


def test_a_sequence_that_never_ends_is_refused() -> None:
    class Endless:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    message = (
        "boundaries has 32769 edges, outside [2, 32768]; pass the lower edge of the first bucket and the upper edge of "
        "each, such as [0, 512, 1024]"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Planner([5], boundaries=Endless())  # type: ignore[arg-type]


def test_any_number_of_threads_plans() -> None:
    lengths = np.full(20_000, 5)
    assert Planner(lengths, threads=2**63 - 1).plan(0) == Planner(lengths).plan(0)


@pytest.mark.parametrize(("name", "value", "message"), KINDS)
def test_the_wrong_kind_of_object_is_a_type_error(name: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        plan_with(name, value)


@pytest.mark.parametrize("name", ["padding_target", "repeat_weight"])
def test_options_of_auto_are_refused_beside_given_boundaries(name: str) -> None:
    message = f"{name} has no effect with boundaries = 4; leave {name} out"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Planner([5, 3, 8], **{"boundaries": 4, name: 1})


def test_the_two_ways_to_ask_for_freshness_exclude_each_other() -> None:
    message = "repeat_weight has no effect with padding_target = 0.01; leave repeat_weight out"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Planner([5, 3, 8], padding_target=0.01, repeat_weight=0.1)


def test_multiples_are_refused_beside_a_list_of_padded_lengths() -> None:
    message = "pad_to_multiple_of has no effect with padded_lengths as a list; leave pad_to_multiple_of out"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Planner([5, 3, 8], padded_lengths=[8], pad_to_multiple_of=8)


@pytest.mark.parametrize("function", [pack_epoch, Planner])
def test_the_signature_shows_every_option_with_its_default(function: Any) -> None:
    shown = inspect.signature(function).parameters
    assert {name: shown[name].default for name in _core.DEFAULTS} == Planner([1]).options == _core.DEFAULTS
    assert all(
        option.kind is inspect.Parameter.KEYWORD_ONLY for name, option in shown.items() if name in _core.DEFAULTS
    )
    assert not any(option.kind is inspect.Parameter.VAR_KEYWORD for option in shown.values())
    assert "token_budget: 'int' = 131072" in pydoc.render_doc(function)


def test_every_option_is_documented() -> None:
    described = re.findall(r"^        (\w+): ", pack_epoch.__doc__ or "", re.MULTILINE)
    assert set(_core.DEFAULTS) <= set(described)
    assert set(_core.DEFAULTS) == set(PlanOptions.__annotations__)


def test_options_are_plain_values_that_make_the_same_planner() -> None:
    given: dict[str, Any] = {"token_budget": np.array(64), "boundaries": np.array([0, 8]), "padded_lengths": (4, 8)}
    options = Planner([5, 3, 8], **given).options
    assert json.loads(json.dumps(options)) == options
    assert (options["token_budget"], options["boundaries"], options["padded_lengths"]) == (64, [0, 8], [4, 8])
    assert Planner([5, 3, 8], **options).options == options


@pytest.mark.parametrize("name", ["padding_target", "repeat_weight"])
@pytest.mark.parametrize("strategy", ["sorted", "random"])
def test_freshness_is_refused_where_there_are_no_buckets(strategy: Any, name: str) -> None:
    message = f'{name} has no effect with strategy = "{strategy}"; leave {name} out'
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Planner([5, 3, 8], strategy=strategy, **{name: 0.2})


@pytest.mark.parametrize("strategy", ["sorted", "random"])
def test_boundaries_are_refused_where_there_are_no_buckets(strategy: Any) -> None:
    message = f'boundaries has no effect with strategy = "{strategy}"; leave boundaries out'
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Planner([5, 3, 8], strategy=strategy, boundaries=DFLASH_BOUNDARIES)


def test_lengths_beyond_the_edges_are_named() -> None:
    message = (
        "lengths[1] = 8193 exceeds the last edge boundaries[6] = 8192; append an edge of 8193 or more, or set "
        'boundaries="auto" (1 of 2 samples exceed it, this one is the longest)'
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Planner([8_192, 8_193], boundaries=DFLASH_BOUNDARIES)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_negative_lengths_are_named(dtype: Any) -> None:
    message = "lengths[2] = -7 is below the shortest length = 1; pass the number of tokens of every sample"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Planner(np.array([5, 3, -7, -8], dtype))


def test_numpy_integers_are_options_too() -> None:
    given = Planner([5, 3, 8], token_budget=np.int32(16), boundaries=np.array([0, 4, 8], np.uint16))
    assert given.plan(np.uint64(2**64 - 1)) == Planner([5, 3, 8], token_budget=16, boundaries=[0, 4, 8]).plan(2**64 - 1)


def test_a_slice_of_a_plan_is_refused() -> None:
    plan: Any = pack_epoch([5, 3, 8], 0, token_budget=8)
    message = "batch = slice(0, 2, None) is not an integer; for several batches slice list(plan)"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        plan[0:2]
