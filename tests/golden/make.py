"""Writes order-v2.txt from the oracle: `python tests/golden/make.py`.

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
COST_OPTIONS = {"token_budget", "max_batch_size", "pad_to_multiple_of", "pad_to", "per_sample", "quadratic_length"}
# Lengths of about a log-normal distribution, in no order: more distinct ones than there are of each.
SPREAD = [20 + (i * i * 7_919 % 10_007) // (3 + i % 17) for i in range(400)]
AUTO = {"edges": "auto"}

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
        "aligned ranks, constant count",
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
    ("a mask of admitted samples", LENGTHS, {"token_budget": 300, "admitted": [i % 3 != 1 for i in range(40)]}),
    ("padded lengths", LENGTHS, {"token_budget": 300, "pad_to": [10, 30, 50, 97]}),
    ("a last step and a last window", LENGTHS, {"token_budget": 150, "window": 6, "align_ranks": 3}),
    ("soft, the defaults", LENGTHS, {"token_budget": 300, **AUTO}),
    ("soft, spread lengths", SPREAD, {"token_budget": 8_192, **AUTO}),
    ("soft, another weight and windows", SPREAD, {"token_budget": 8_192, "repeat_weight": 4.0, "window": 8, **AUTO}),
    ("soft, a weight of zero", SPREAD, {"token_budget": 8_192, "repeat_weight": 0.0, **AUTO}),
    ("soft, a padding target", SPREAD, {"token_budget": 8_192, "padding_target": 0.03, **AUTO}),
    ("soft, multiples", SPREAD, {"token_budget": 8_192, "pad_to_multiple_of": 64, **AUTO}),
    (
        "soft, even count",
        SPREAD,
        {"token_budget": 3_000, "overlong": "drop", "constant_count": True, "window": 5, **AUTO},
    ),
    (
        "soft, lengths beyond single cells",
        [i * 97 for i in SPREAD],
        {"token_budget": 400_000, "overlong": "keep", **AUTO},
    ),
    ("soft, drawn again", SPREAD, {"token_budget": 8_192, "constant_count": True, "epoch": 2, **AUTO}),
    ("soft, two chunks of noise", [1 + i * 37 % 97 for i in range(4_200)], {"token_budget": 20_000, **AUTO}),
    ("draws of five and four a word", [1 + i % 7 for i in range(2_500)], {"token_budget": 2_000, "edges": [0, 7]}),
]


def words(values: list[int]) -> str:
    return " ".join(str(int(value)) for value in values)


def block(name: str, lengths: list[int], options: dict[str, object]) -> str:
    options = {"seed": 0, "epoch": 0, "edges": EDGES, **options}
    model = {key: value for key, value in options.items() if key in COST_OPTIONS}
    cost = oracle.Cost(**{"padded_lengths" if key == "pad_to" else key: value for key, value in model.items()})
    others = {key: value for key, value in options.items() if key not in COST_OPTIONS | {"seed", "edges"}}
    plan = oracle.pack_epoch(lengths, options["seed"], boundaries=options["edges"], cost=cost, **others)
    if options.get("strategy", "bucketed") != "bucketed" or options["edges"] == "auto":
        del options["edges"]
    lines = [f"name {name}", f"lengths {words(lengths)}"]
    lines += [f"{key} {words(value) if isinstance(value, list) else value}" for key, value in options.items()]
    lines += [f"dropped {words(plan.dropped)}".rstrip(), f"padded_lengths {words(plan.padded_lengths)}"]
    lines += [f"buckets {words(plan.buckets)}", *(f"batch {words(batch)}" for batch in plan.batches)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "order-v2.txt").write_text("\n".join(block(*case) for case in CASES))
