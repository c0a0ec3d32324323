"""The plans of order version 1, pinned: tests/golden/order-v1.txt, which Rust reads too (tests/golden.rs)."""

from pathlib import Path
from typing import Any

import pytest
from bucketshuffle import ORDER_VERSION, pack_epoch

GOLDEN = Path(__file__).parents[1] / "golden" / f"order-v{ORDER_VERSION}.txt"


def parse(key: str, value: str) -> Any:
    if key in {"lengths", "edges", "dropped", "padded_lengths", "buckets", "batch"}:
        return [int(word) for word in value.split()]
    if key in {"name", "strategy", "overlong", "empty"}:
        return value
    return value == "True" if key == "constant_count" else int(value)


def blocks() -> list[Any]:
    plans = []
    for text in GOLDEN.read_text().split("\n\n"):
        lines = [
            (key, parse(key, value)) for key, _, value in (line.partition(" ") for line in text.strip().splitlines())
        ]
        plan = {key: value for key, value in lines if key != "batch"}
        plan["batches"] = [value for key, value in lines if key == "batch"]
        plans.append(pytest.param(plan, id=plan.pop("name")))
    return plans


@pytest.mark.parametrize("golden", blocks())
def test_plan_is_the_golden_one(golden: dict[str, Any]) -> None:
    expected = {key: golden.pop(key) for key in ("batches", "dropped", "padded_lengths", "buckets")}
    if "edges" in golden:
        golden["boundaries"] = golden.pop("edges")
    plan = pack_epoch(golden.pop("lengths"), golden.pop("seed"), **golden)
    assert [batch.tolist() for batch in plan] == expected["batches"]
    assert plan.dropped.tolist() == expected["dropped"]
    assert plan.padded_lengths.tolist() == expected["padded_lengths"]
    assert plan.buckets.tolist() == expected["buckets"]
