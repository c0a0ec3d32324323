"""What the generated tests feed in: hypothesis strategies for lengths and for every option of `pack_epoch`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import oracle
from bucketshuffle import Planner
from hypothesis import strategies as st

WORDS = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1))

COST_OPTIONS = (
    "token_budget", "max_batch_size", "pad_to_multiple_of", "padded_lengths", "per_sample", "quadratic_length",
)  # fmt: skip


def cost_of(options: dict[str, Any], lengths: Sequence[int] = ()) -> oracle.Cost:
    """The cost model of a set of `pack_epoch` options. `lengths` decide where `padded_lengths` is an integer."""
    model = {name: options[name] for name in COST_OPTIONS if name in options}
    padded_lengths = model.pop("padded_lengths", None)
    if padded_lengths is None:
        return oracle.Cost(**model)
    if isinstance(padded_lengths, int):
        policies = {name: options[name] for name in ("overlong", "empty", "admitted") if name in options}
        planner = Planner(lengths, padded_lengths=padded_lengths, **model, **policies)
        padded_lengths = [] if planner.padded_lengths is None else planner.padded_lengths.tolist()
    return oracle.Cost(**model, padded_lengths=tuple(padded_lengths))


@st.composite
def edges(draw: st.DrawFn, lengths: list[int], cost: oracle.Cost) -> list[int]:
    """Ascending edges that cover every length that is not over-long; empty buckets and edges on lengths are likely."""
    covered = [length for length in lengths if length > 0 and not cost.overlong(length)] or [1]
    top = draw(st.sampled_from([max(covered), max(covered) + 1, max(covered) + 1_000]))
    bottom = draw(st.sampled_from([0, min(covered) - 1]))
    inner = draw(st.lists(st.one_of(st.sampled_from(covered), st.integers(1, top)), max_size=8))
    return sorted({bottom, top, *(edge for edge in inner if bottom < edge < top)})


@st.composite
def problems(draw: st.DrawFn, *, max_n: int = 60) -> tuple[list[int], dict[str, Any]]:
    """Lengths and options for `pack_epoch`, all options at work and every kind of length within reach."""
    longest = draw(st.sampled_from([1, 3, 12, 100, 5_000]))
    overlong = draw(st.sampled_from(["drop", "keep", "error"]))
    empty = draw(st.sampled_from(["drop", "error"]))
    shortest = 0 if empty == "drop" else draw(st.sampled_from([1, 1, 1, 0]))
    n = draw(st.integers(0, max_n))
    lengths = draw(st.lists(st.integers(shortest, longest), min_size=n, max_size=n))
    # A multiple of the longest sample that is rarely under one: batches of many sizes, over-long samples now and then.
    token_budget = max(1, longest * draw(st.integers(1 if overlong == "error" else 0, 20)) + draw(st.integers(-3, 40)))
    align_ranks = draw(st.integers(1, 4))
    options: dict[str, Any] = {
        "epoch": draw(WORDS),
        "token_budget": token_budget,
        "max_batch_size": draw(st.one_of(st.none(), st.integers(1, 12))),
        "pad_to_multiple_of": draw(st.sampled_from([1, 1, 2, 3, 8, 64])),
        "per_sample": draw(st.sampled_from([0, 0, 1, 7])),
        "quadratic_length": draw(st.sampled_from([None, None, 1, 10, 4_096])),
        "strategy": draw(st.sampled_from(["bucketed"] * 4 + ["random", "sorted"])),
        "window": align_ranks * draw(st.integers(1, 4)),
        "align_ranks": align_ranks,
        "constant_count": draw(st.booleans()),
        "overlong": overlong,
        "empty": empty,
    }
    if options["strategy"] == "bucketed":
        options["boundaries"] = draw(
            st.one_of(st.just("auto"), edges(lengths, cost_of(options)), st.just("auto"), st.integers(1, 6)),
            label="boundaries",
        )
    if options.get("boundaries") == "auto":
        weights = st.sampled_from([0.5, 0.0, 0.01, 3.0, 1e6])
        soft = st.fixed_dictionaries({"repeat_weight": weights}) | st.fixed_dictionaries(
            {"padding_target": st.sampled_from([0.0, 0.01, 0.2, 9.0])}
        )
        options |= draw(soft, label="soft")
    if draw(st.integers(0, 3)) == 0:
        options["admitted"] = draw(st.lists(st.booleans(), min_size=n, max_size=n), label="admitted")
    if draw(st.integers(0, 3)) == 0:
        options["padded_lengths"] = draw(st.integers(1, 5), label="padded_lengths")
        if draw(st.booleans()):
            del options["pad_to_multiple_of"]
            some = st.lists(st.integers(1, longest + 5), min_size=1, max_size=6, unique=True)
            options["padded_lengths"] = sorted(draw(some))
            options["boundaries"] = "auto" if isinstance(options.get("boundaries"), list) else options.get("boundaries")
            if options["boundaries"] is None:
                del options["boundaries"]
    return lengths, options


def several_of(rows: list[list[int]], options: dict[str, Any]) -> oracle.Several:
    """The fields that a set of `pack_epoch` options describes; per-field options are sequences or one value."""
    n_fields = len(rows[0]) if rows else 2

    def of_fields(name: str, default: Any) -> list[Any]:
        value = options.get(name, default)
        return value if isinstance(value, list) else [value] * n_fields

    columns = zip(
        of_fields("pad_to_multiple_of", 1), of_fields("padded_lengths", None), of_fields("quadratic_length", None),
        strict=True,
    )  # fmt: skip
    costs = [
        oracle.Cost(pad_to_multiple_of=multiple, padded_lengths=tuple(lengths or ()), quadratic_length=quadratic)
        for multiple, lengths, quadratic in columns
    ]
    weights = [Fraction(weight).limit_denominator(1_000) for weight in of_fields("field_weights", 1)]
    return oracle.Several(rows, costs, weights, options.get("combine", "sum"))


@st.composite
def field_problems(draw: st.DrawFn) -> tuple[list[list[int]], dict[str, Any]]:
    """Lengths of two to four fields and options for `pack_epoch`, those of a field given for each."""
    first, options = draw(problems())
    n_fields = draw(st.integers(2, 4)) if first else 2  # Empty lists say no number of fields.
    longest = max([1, *first])
    others = draw(st.lists(st.lists(st.integers(0, longest), min_size=n_fields - 1, max_size=n_fields - 1),
                           min_size=len(first), max_size=len(first)))  # fmt: skip
    rows = [[length, *row] for length, row in zip(first, others, strict=True)]
    for name in ("padded_lengths", "pad_to_multiple_of", "quadratic_length"):
        options.pop(name, None)
    options["token_budget"] += draw(st.sampled_from([0, longest, n_fields * longest]))

    def each(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(values, min_size=n_fields, max_size=n_fields))

    if draw(st.booleans()):
        options["quadratic_length"] = each(st.sampled_from([None, 10, 4_096]))
    if draw(st.booleans()):
        options["field_weights"] = each(st.sampled_from([1, 0.25, 0.1, 1 / 3, 2.5]))
    if draw(st.booleans()):
        options["combine"] = draw(st.sampled_from(["sum", "max"]))
    if draw(st.integers(0, 3)) == 0:
        ascending = st.lists(st.integers(1, longest + 5), min_size=1, max_size=6, unique=True).map(sorted)
        options["padded_lengths"] = each(st.none() | ascending)
        if all(lengths is None for lengths in options["padded_lengths"]):
            options["padded_lengths"] = None
    elif draw(st.booleans()):
        options["pad_to_multiple_of"] = each(st.sampled_from([1, 2, 3, 8]))
    if isinstance(options.get("boundaries"), list):
        most = 8 * sum(10 * (length + 8) + (length + 8) ** 2 for length in [longest] * n_fields)
        options["boundaries"] = sorted({0, most, *draw(st.lists(st.integers(1, 2 * longest), max_size=5))})
    return rows, options
