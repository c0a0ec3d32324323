"""Settings and data that the tests share."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import numpy as np
import pytest
from bucketshuffle import Planner
from hypothesis import settings

LENGTHS = Path(__file__).parent / "lengths"

# The suite draws the same examples in every run. HYPOTHESIS_PROFILE=explore draws new ones, ten times as many, from
# the seed that `pytest --hypothesis-seed` names; `./dev test long` sets both. `./dev mutants` draws a tenth, since the
# tests run once for each mutant.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "reproducible")
BUDGET = {"explore": 10, "mutants": 0.1}.get(PROFILE, 1)
settings.register_profile("reproducible", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", max_examples=1_000, deadline=None, print_blob=True)
settings.register_profile("mutants", max_examples=10, derandomize=True, deadline=None)
settings.load_profile(PROFILE)


def examples(n: int) -> settings:
    """`n` examples in the suite, and as many times more or fewer as the profile asks for."""
    return settings(max_examples=round(n * BUDGET))


@pytest.fixture(params=sorted(path.stem for path in LENGTHS.glob("*.npz")))
def real_set(request: pytest.FixtureRequest) -> str:
    """Name of a file of `lengths/` (see its README): a test that asks for it runs once for each."""
    return str(request.param)


@pytest.fixture
def real_lengths(real_set: str) -> np.ndarray:
    """lengths [n_samples], uint16 or uint32: one real data set in its own order."""
    with np.load(LENGTHS / f"{real_set}.npz") as archive:
        return archive["lengths"]


@pytest.fixture
def n_plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs planned so far."""
    planned: list[int] = []
    plan = Planner.plan
    monkeypatch.setattr(Planner, "plan", lambda self, seed, epoch: planned.append(epoch) or plan(self, seed, epoch))
    return planned


def uneven_lengths(n: int, seed: int = 0, longest: int = 8_191) -> np.ndarray:
    """lengths [n], int32 in 1..longest, about log-normal: enough like a data set, and any n."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return np.clip(rng.lognormal(np.log(longest / 6), 0.8, n), 1, longest).astype(np.int32)


# `./dev test core` installs no torch; the planning tests need none. Where torch is installed, nothing is left out: a
# test file that lacks another package fails.
if importlib.util.find_spec("torch") is None:
    collect_ignore = [
        path.name
        for path in Path(__file__).parent.glob("test_*.py")
        if re.search(r"^(import|from) (torch|bucketshuffle\.torch|samplers)\b", path.read_text(), re.MULTILINE)
    ]
