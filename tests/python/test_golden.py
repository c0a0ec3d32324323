"""The plans of the order version, pinned: tests/golden/order-v2*.txt, which Rust reads too (tests/golden.rs)."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucketshuffle import ORDER_VERSION, pack_epoch

GOLDEN = Path(__file__).parents[1] / "golden"
LISTS = {
    "lengths", "edges", "pad_to", "dropped", "padded_lengths", "buckets", "batch", "multiples", "quadratics"
}  # fmt: skip


def parse(key: str, value: str) -> Any:
    if key == "admitted":
        return [word == "1" for word in value.split()]
    if key == "weights":
        return [float(Fraction(word)) for word in value.split()]
    if key in LISTS:
        return [int(word) for word in value.split()]
    if key in {"name", "strategy", "overlong", "empty", "combine"}:
        return value
    if key in {"repeat_weight", "padding_target"}:
        return float(value)
    return value == "True" if key == "constant_count" else int(value)


def blocks(name: str) -> list[Any]:
    plans = []
    for text in (GOLDEN / name).read_text().split("\n\n"):
        lines = [
            (key, parse(key, value)) for key, _, value in (line.partition(" ") for line in text.strip().splitlines())
        ]
        plan = {key: value for key, value in lines if key != "batch"}
        plan["batches"] = [value for key, value in lines if key == "batch"]
        plans.append(pytest.param(plan, id=plan.pop("name")))
    return plans


@pytest.mark.parametrize("golden", blocks(f"order-v{ORDER_VERSION}.txt"))
def test_plan_is_the_golden_one(golden: dict[str, Any]) -> None:
    golden = dict(golden)
    expected = {key: golden.pop(key) for key in ("batches", "dropped", "padded_lengths", "buckets")}
    if "edges" in golden:
        golden["boundaries"] = golden.pop("edges")
    if "pad_to" in golden:
        golden["padded_lengths"] = golden.pop("pad_to")
    plan = pack_epoch(golden.pop("lengths"), golden.pop("seed"), **golden)
    assert [batch.tolist() for batch in plan] == expected["batches"]
    assert plan.dropped.tolist() == expected["dropped"]
    assert plan.padded_lengths.tolist() == expected["padded_lengths"]
    assert plan.buckets.tolist() == expected["buckets"]


@pytest.mark.parametrize("golden", blocks(f"order-v{ORDER_VERSION}-fields.txt"))
def test_plan_of_several_fields_is_the_golden_one(golden: dict[str, Any]) -> None:
    golden = dict(golden)
    expected = {key: golden.pop(key) for key in ("batches", "dropped", "padded_lengths", "buckets")}
    names = {"edges": "boundaries", "multiples": "pad_to_multiple_of", "weights": "field_weights"}
    options = {names.get(key, key): value for key, value in golden.items()}
    if "quadratics" in options:
        options["quadratic_length"] = [length or None for length in options.pop("quadratics")]
    lengths = np.array(options.pop("lengths")).reshape(-1, options.pop("n_fields"))
    plan = pack_epoch(lengths, options.pop("seed"), **options)
    assert [batch.tolist() for batch in plan] == expected["batches"]
    assert plan.dropped.tolist() == expected["dropped"]
    assert plan.padded_lengths.ravel().tolist() == expected["padded_lengths"]
    assert plan.buckets.tolist() == expected["buckets"]
