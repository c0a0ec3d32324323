"""Writes order-v2.txt and order-v2-fields.txt from the oracle: `python tests/golden/make.py`.

Only for a new order version, under new names. One block a plan: `key value ...` a line, blocks divided by blank lines.
Read by tests/golden.rs and tests/python/test_golden.py.
"""

import itertools
import sys
from collections.abc import Iterable
from fractions import Fraction
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


# Pairs that agree in part, with an empty second length now and then.
PAIRS = [[length, (length * (3 + i % 5) // 6 + i * 31 % 23) % 120] for i, length in enumerate(SPREAD[:150])]
TRIPLES = [[a, b, 1 + a * b % 50] for a, b in PAIRS]
EIGHTH_AND_ONE = {"multiples": [8, 1]}

FIELD_CASES = [
    ("two fields", PAIRS, {"token_budget": 4_096, **AUTO}),
    ("two fields, sorted", PAIRS, {"token_budget": 4_096, "strategy": "sorted"}),
    ("two fields, random", PAIRS, {"token_budget": 4_096, "strategy": "random"}),
    ("two fields, the largest counts", PAIRS, {"token_budget": 4_096, "combine": "max", **AUTO}),
    (
        "two fields, every term of the cost",
        PAIRS,
        {
            "token_budget": 4_096, "max_batch_size": 9, "per_sample": 3, "weights": ["1/4", "1"], **EIGHTH_AND_ONE,
            "quadratics": [4_096, 0], "overlong": "keep", **AUTO,
        },
    ),
    (
        "two fields, hard buckets, even count",
        PAIRS,
        {"token_budget": 2_048, "overlong": "drop", "constant_count": True, "window": 6, "align_ranks": 2,
         "edges": [0, 100, 300, 2_048]},
    ),
    ("two fields, a padding target", PAIRS, {"token_budget": 4_096, "padding_target": 0.3, "epoch": 3, **AUTO}),
    ("three fields", TRIPLES, {"token_budget": 6_000, **AUTO}),
]  # fmt: skip
FIELD_OPTIONS = {"weights", "multiples", "quadratics", "combine"}


def words(values: Iterable[int]) -> str:
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


def field_block(name: str, rows: list[list[int]], options: dict[str, object]) -> str:
    """As `block`; lengths and padded lengths stand row after row."""
    options = {"seed": 0, "epoch": 0, **options}
    n_fields = len(rows[0])
    multiples, quadratics = options.get("multiples", [1] * n_fields), options.get("quadratics", [0] * n_fields)
    costs = [
        oracle.Cost(pad_to_multiple_of=multiple, quadratic_length=quadratic or None)
        for multiple, quadratic in zip(multiples, quadratics, strict=True)
    ]
    weights = [Fraction(weight) for weight in options.get("weights", ["1"] * n_fields)]
    several = oracle.Several(rows, costs, weights, options.get("combine", "sum"))
    cost = oracle.Cost(**{key: value for key, value in options.items() if key in COST_OPTIONS})
    others = {
        key: value for key, value in options.items() if key not in COST_OPTIONS | FIELD_OPTIONS | {"seed", "edges"}
    }
    plan = oracle.pack_epoch(several, options["seed"], boundaries=options.get("edges", "auto"), cost=cost, **others)
    if options.get("edges") == "auto":
        del options["edges"]
    lines = [f"name {name}", f"n_fields {n_fields}", f"lengths {words(itertools.chain(*rows))}"]
    for key, value in options.items():
        lines.append(f"{key} {' '.join(map(str, value)) if isinstance(value, list) else value}")
    lines += [
        f"dropped {words(plan.dropped)}".rstrip(),
        f"padded_lengths {words(itertools.chain(*plan.padded_lengths))}",
    ]
    lines += [f"buckets {words(plan.buckets)}", *(f"batch {words(batch)}" for batch in plan.batches)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "order-v2-fields.txt").write_text("\n".join(field_block(*case) for case in FIELD_CASES))
    (HERE / "order-v2.txt").write_text("\n".join(block(*case) for case in CASES))
