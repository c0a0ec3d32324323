"""Writes order-v1.txt from the oracle: `python tests/golden/make.py`.

Only for a new order version, under a new name. One block a plan: `key value ...` a line, blocks divided by blank lines.
Read by tests/golden.rs and tests/python/test_golden.py.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python"))

import oracle  # noqa: E402

# 40 lengths in 1..=97, scrambled, with a repeated one; enough for draws of every batching below 2^6.
LENGTHS = [1 + i * 37 % 97 for i in range(39)] + [38]
EDGES = [0, 20, 50, 97]
COST_OPTIONS = {"token_budget", "max_batch_size", "pad_to_multiple_of", "per_sample", "quadratic_length"}

CASES = [
    ("plain", LENGTHS, {"token_budget": 300}),
    ("another epoch", LENGTHS, {"token_budget": 300, "epoch": 1}),
    ("seed and epoch exchanged", LENGTHS, {"token_budget": 300, "seed": 1}),
    ("largest seed and epoch", LENGTHS, {"token_budget": 300, "seed": 2**64 - 1, "epoch": 2**64 - 1}),
    (
        "every term of the cost",
        LENGTHS,
        {"token_budget": 500, "max_batch_size": 5, "pad_to_multiple_of": 8, "per_sample": 3, "quadratic_length": 64},
    ),
    ("windows", LENGTHS, {"token_budget": 200, "window": 4}),
    (
        "aligned ranks, even count",
        LENGTHS,
        {"token_budget": 200, "window": 6, "align_ranks": 2, "constant_count": True},
    ),
    ("sorted", LENGTHS, {"token_budget": 300, "strategy": "sorted"}),
    ("random", LENGTHS, {"token_budget": 300, "strategy": "random"}),
    (
        "over-long kept, empty dropped",
        [0, 5, 400, *LENGTHS],
        {"token_budget": 300, "overlong": "keep", "empty": "drop"},
    ),
    ("draws of five and four a word", [1 + i % 7 for i in range(2_500)], {"token_budget": 2_000, "edges": [0, 7]}),
]


def words(values: list[int]) -> str:
    return " ".join(map(str, values))


def block(name: str, lengths: list[int], options: dict[str, object]) -> str:
    options = {"seed": 0, "epoch": 0, "edges": EDGES, **options}
    cost = oracle.Cost(**{key: value for key, value in options.items() if key in COST_OPTIONS})
    others = {key: value for key, value in options.items() if key not in COST_OPTIONS | {"seed", "edges"}}
    plan = oracle.pack_epoch(lengths, options["seed"], boundaries=options["edges"], cost=cost, **others)
    if options.get("strategy", "bucketed") != "bucketed":
        del options["edges"]
    lines = [f"name {name}", f"lengths {words(lengths)}"]
    lines += [f"{key} {words(value) if isinstance(value, list) else value}" for key, value in options.items()]
    lines += [f"dropped {words(plan.dropped)}".rstrip(), f"padded_lengths {words(plan.padded_lengths)}"]
    lines += [f"buckets {words(plan.buckets)}", *(f"batch {words(batch)}" for batch in plan.batches)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "order-v1.txt").write_text("\n".join(block(*case) for case in CASES))
