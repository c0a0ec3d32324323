"""Planning under pytest-benchmark: `pytest benches/python/bench_plan.py [--n 10M]`.

Candidates run one after the other here, so on a shared machine trust `compare.py`, which makes them take turns. Each
result is checked before it is timed; the padding ratio stands in the name's last part and in `extra_info`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from compare import candidates_for, count, lengths_like_dflash902k
from peers import Candidate, check
from pytest_benchmark.fixture import BenchmarkFixture

lengths_of = cache(lengths_like_dflash902k)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "candidate" in metafunc.fixturenames:
        candidates = candidates_for()
        metafunc.parametrize("candidate", candidates, ids=[candidate.name for candidate in candidates])


@pytest.fixture
def lengths(request: pytest.FixtureRequest) -> np.ndarray:
    return lengths_of(count(request.config.getoption("n")))


def test_plan(benchmark: BenchmarkFixture, candidate: Candidate, lengths: np.ndarray) -> None:
    if candidate.missing():
        pytest.skip(f"{candidate.needs} is not installed")
    if candidate.slow and len(lengths) > 2_000_000:
        pytest.skip("too slow for this size")
    prepared = candidate.prepare(lengths)
    padding_ratio = check(candidate, candidate.plan(prepared, 1), lengths)
    benchmark.group = f"plan {len(lengths):,} lengths"
    benchmark.extra_info |= {"padding_ratio": padding_ratio, "leaves_out": candidate.leaves_out or "nothing"}
    if padding_ratio is not None:
        benchmark.name += f" (padded / real {padding_ratio:.4f})"
    rounds = 3 if candidate.slow else 15
    benchmark.pedantic(candidate.plan, args=(prepared, 2), rounds=rounds, warmup_rounds=0 if candidate.slow else 2)
