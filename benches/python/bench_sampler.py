"""The torch sampler under pytest-benchmark: `pytest benches/python/bench_sampler.py`.

Iteration per batch beside the list slices it cannot do without, `state_dict`, and the first batch after a resume near
the start and deep in an epoch. Each result is checked before it is timed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from compare import lengths_like_dflash902k
from pytest_benchmark.fixture import BenchmarkFixture

pytest.importorskip("torch")

from bucketshuffle.schedule import Schedule
from bucketshuffle.torch import BucketBatchSampler

# 60,000 batches and more of the 902,087 samples, so that batch 50,000 exists.
OPTIONS: dict[str, Any] = {"token_budget": 24_576, "window": 64}


@cache
def lengths() -> np.ndarray:
    return lengths_like_dflash902k(902_087)


@cache
def sampler() -> BucketBatchSampler:
    made = BucketBatchSampler(lengths(), **OPTIONS)
    assert len(made) > 60_000
    next(iter(made))
    return made


def slices() -> Iterable[list[int]]:
    """The least that a pass does: the indices of each batch as a list of Python ints."""
    batches = sampler().schedule.batches(0)
    starts, ends = batches.offsets[:-1].tolist(), batches.offsets[1:].tolist()
    indices = batches.indices
    return (indices[start:end].tolist() for start, end in zip(starts, ends, strict=True))


@pytest.mark.parametrize("passes", [slices, lambda: iter(sampler())], ids=["list slices", "sampler"])
def test_iteration(benchmark: BenchmarkFixture, passes: Callable[[], Iterable[list[int]]]) -> None:
    assert list(islice(passes(), 100)) == list(islice(sampler(), 100))
    n_batches = len(sampler())
    benchmark.group = f"one pass over {n_batches:,} batches"
    benchmark.pedantic(lambda: deque(passes(), maxlen=0), rounds=15, warmup_rounds=2)
    benchmark.extra_info["ns_per_batch"] = 1e9 * benchmark.stats.stats.median / n_batches


def test_state_dict(benchmark: BenchmarkFixture) -> None:
    assert len(json.dumps(sampler().state_dict())) < 1_000
    benchmark.group = "state_dict"
    benchmark(sampler().state_dict)


@pytest.mark.parametrize("done", [5, 50_000])
def test_resume(benchmark: BenchmarkFixture, done: int) -> None:
    """`resume` and the first batch after it: one plan, wherever it begins."""
    made = BucketBatchSampler(lengths(), **OPTIONS)
    epochs = count()  # Another one each time, since the sampler keeps the plan of the last.

    def resume() -> list[int]:
        made.resume(next(epochs), done)
        return next(iter(made))

    assert resume() == next(islice(sampler(), done, None))
    benchmark.group = "resume: to the first batch"
    benchmark.pedantic(resume, rounds=15, warmup_rounds=2)


def test_plan(benchmark: BenchmarkFixture) -> None:
    """What a resume is measured against."""
    schedule = Schedule(lengths(), **OPTIONS)
    benchmark.group = "resume: to the first batch"
    benchmark.pedantic(lambda: schedule.batches(0), rounds=15, warmup_rounds=2)
