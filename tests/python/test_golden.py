"""The plans of order version 1, pinned: tests/golden/order-v1.txt, which Rust reads too (tests/golden.rs)."""

from pathlib import Path
from typing import Any

import pytest

from bucketshuffle import ORDER_VERSION, pack_epoch

GOLDEN = Path(__file__).parents[1] / "golden" / f"order-v{ORDER_VERSION}.txt"
WORDS = {"strategy", "overlong", "empty"}


def blocks() -> list[Any]:
    plans = []
    for text in GOLDEN.read_text().split("\n\n"):
        plan: dict[str, Any] = {"batches": []}
        for line in text.strip().splitlines():
            key, _, value = line.partition(" ")
            if key == "batch":
                plan["batches"].append([int(word) for word in value.split()])
            elif key in {"lengths", "edges", "dropped", "padded_lengths", "buckets"}:
                plan[key] = [int(word) for word in value.split()]
            else:
                plan[key] = value if key in WORDS | {"name"} else value == "True" if value in {"True", "False"} else int(value)
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
