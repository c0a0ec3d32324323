"""Ours and the peers' planning in one process, round robin, as a Markdown table: `python benches/python/compare.py`.

Every result is checked before anything is timed. Candidates then take turns, one call each per round, in a fresh order
each round, because a shared machine slows down and speeds up for seconds at a time: medians of whole runs wander by
1.6x, the ratio of two calls of the same round much less. The last columns are the median and the quartiles of that
ratio, to `pack_epoch` on one thread. Peers that are not installed are named as skipped.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import re
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import bucketshuffle
import numpy as np
from bucketshuffle.data import dflash902k
from peers import DFLASH_BOUNDARIES, PEERS, TOKEN_BUDGET, Candidate, Flat, check

REFERENCE = "pack_epoch, six buckets, 1 thread"
PACKAGES = ("numpy", "numba", "torch", "transformers", "seqpacker")


def lengths_like_dflash902k(n: int) -> np.ndarray:
    """lengths [n], int32: the stand-in data set itself, or n draws from it."""
    base: np.ndarray = dflash902k()
    if n == len(base):
        return base
    rng = np.random.Generator(np.random.PCG64(n))
    lengths = np.empty(n, np.int32)
    for start in range(0, n, 1 << 22):  # in pieces, so that 100 M need no second array of that size
        part = lengths[start : start + (1 << 22)]
        part[:] = base[rng.integers(0, len(base), len(part))]
    return lengths


def flat_from_plan(plan: bucketshuffle.EpochPlan) -> Flat:
    return plan.indices, plan.offsets


def ours() -> list[Candidate]:
    """What the package offers: soft buckets, the default, and the write-up's six hard ones."""
    candidates = []
    for name, boundaries in (("six buckets", DFLASH_BOUNDARIES), ("soft", "auto")):
        for threads in (1, 2):
            options: dict[str, Any] = {"token_budget": TOKEN_BUDGET, "boundaries": boundaries, "threads": threads}
            plural = "" if threads == 1 else "s"
            candidates += [
                Candidate(
                    f"pack_epoch, {name}, {threads} thread{plural}",
                    "",
                    partial(_pack_epoch, options=options),
                    flat_from_plan,
                ),
                Candidate(
                    f"Planner.plan, {name}, {threads} thread{plural}",
                    "admission and sort by length: kept between epochs",
                    lambda planner, seed: planner.plan(seed),
                    flat_from_plan,
                    prepare=partial(bucketshuffle.Planner, **options),
                ),
            ]
        candidates.append(
            Candidate(
                f"Planner(), {name}, 1 thread",
                "all but admission and sort by length: once for all epochs",
                partial(_make_planner, boundaries=boundaries),
                None,
            )
        )
    return candidates


def _pack_epoch(lengths: np.ndarray, seed: int, options: dict[str, Any]) -> bucketshuffle.EpochPlan:
    return bucketshuffle.pack_epoch(lengths, seed, **options)


def _make_planner(lengths: np.ndarray, _seed: int, boundaries: Any) -> bucketshuffle.Planner:
    return bucketshuffle.Planner(lengths, token_budget=TOKEN_BUDGET, boundaries=boundaries, threads=1)


def candidates_for() -> list[Candidate]:
    return [*ours(), *PEERS]


def installed(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} absent"


def machine() -> str:
    """Machine, versions and commit in one line, for the record."""
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), cpu)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=os.path.dirname(__file__)
    ).stdout.strip()
    own = f"bucketshuffle {bucketshuffle.__version__} ({commit or 'no git'})"
    python = f"Python {platform.python_version()}"
    return f"{cpu}, {os.cpu_count()} CPUs, {platform.system()}; {python}, {', '.join(map(installed, PACKAGES))}; {own}"


def run(lengths: np.ndarray, candidates: list[Candidate], rounds: int, slow_rounds: int) -> dict[str, list[float]]:
    """Seconds of every call, by candidate and round; a slow candidate sits out most rounds (nan)."""
    prepared = {candidate.name: candidate.prepare(lengths) for candidate in candidates}
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    every = max(1, rounds // max(1, slow_rounds))
    turns = random.Random(0)
    gc.collect()
    gc.freeze()  # the lists of lengths are no business of the collections that happen inside a call
    for r in range(rounds):
        # Shuffled, not rotated: a candidate would always meet the caches and the heap of the same predecessor.
        for candidate in turns.sample(candidates, len(candidates)):
            if candidate.slow and r % every:
                seconds[candidate.name].append(float("nan"))
                continue
            start = time.perf_counter()
            result = candidate.plan(prepared[candidate.name], r)
            seconds[candidate.name].append(time.perf_counter() - start)
            del result
    return seconds


def table(
    seconds: dict[str, list[float]], ratios: dict[str, float | None], candidates: list[Candidate], reference: str
) -> str:
    """Markdown: medians and quartiles in ms, the ratio to `reference` paired by round, the padding ratio."""
    lines = [
        "| candidate | ms, median | quartiles | times ours | quartiles | padded / real | leaves out |",
        "|---|---|---|---|---|---|---|",
    ]
    base = np.array(seconds[reference])
    for candidate in candidates:
        own = np.array(seconds[candidate.name])
        low, mid, high = np.nanquantile(own * 1e3, [0.25, 0.5, 0.75])
        r_low, r_mid, r_high = np.nanquantile(own / base, [0.25, 0.5, 0.75])
        padding = ratios[candidate.name]
        lines.append(
            f"| {candidate.name} | {mid:,.2f} | {low:,.2f}-{high:,.2f} | {r_mid:,.2f} | {r_low:,.2f}-{r_high:,.2f} "
            f"| {'-' if padding is None else f'{padding:.4f}'} | {candidate.leaves_out or 'nothing'} |"
        )
    return "\n".join(lines)


def count(text: str) -> int:
    """902087, 10M, 250k: a number of samples."""
    factor = {"k": 10**3, "M": 10**6}.get(text[-1:], 1)
    return int(text.rstrip("kM").replace("_", "")) * factor


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=count, default=902_087, help="samples: 902087, 10M")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--slow-rounds", type=int, default=3, help="rounds of candidates that take half a second or more"
    )
    parser.add_argument("--only", default="", help="regular expression: candidates beside the reference")
    arguments = parser.parse_args(argv)

    lengths = lengths_like_dflash902k(arguments.n)
    skipped, candidates, padding = [], [], {}
    for candidate in candidates_for():
        if candidate.name != REFERENCE and not re.search(arguments.only, candidate.name):
            continue
        if candidate.missing():
            skipped.append(f"{candidate.name} ({candidate.needs} is not installed)")
            continue
        if candidate.slow and arguments.n > 2_000_000:
            skipped.append(f"{candidate.name} (too slow for this size)")
            continue
        result = candidate.plan(candidate.prepare(lengths), 1)  # also imports, compiles and warms up
        padding[candidate.name] = check(candidate, result, lengths)
        candidates.append(candidate)

    seconds = run(lengths, candidates, arguments.rounds, arguments.slow_rounds)
    print(f"{len(lengths):,} lengths like `dflash902k`, token budget {TOKEN_BUDGET:,}, {arguments.rounds} rounds.")
    print(f"{machine()}\n")
    print(table(seconds, padding, candidates, REFERENCE))
    for name in skipped:
        print(f"\nSkipped: {name}")


if __name__ == "__main__":
    sys.exit(main())
