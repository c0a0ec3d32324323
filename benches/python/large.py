"""Time and memory for each sample at 100 million lengths: `python benches/python/large.py [--n 100M]`, by hand, Linux.

Each number of threads runs in a process of its own. Memory is the peak of the resident set while planning less the
resident set before, so it counts the arrays of the plan and everything in between, but not the input.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import bucketshuffle
import numpy as np
from compare import count, lengths_like_dflash902k, machine
from peers import DFLASH_BOUNDARIES, TOKEN_BUDGET


def resident(field: str) -> int:
    """Bytes of VmRSS (now) or VmHWM (peak) of this process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(field))


def measure(n: int, threads: int, boundaries: str, dtype: str) -> dict[str, float]:
    """One plan of n lengths in this process: ns and bytes per sample, padding ratio."""
    lengths = lengths_like_dflash902k(n).astype(dtype)
    edges = DFLASH_BOUNDARIES if boundaries == "six" else bucketshuffle.Planner(lengths[:902_087]).boundaries
    edges = (*edges[:-1], DFLASH_BOUNDARIES[-1])
    options = {"token_budget": TOKEN_BUDGET, "boundaries": edges, "threads": threads}
    bucketshuffle.pack_epoch(lengths[:1_000], 0, **options)
    seconds = []
    peak = 0
    for seed in range(3):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = resident("VmRSS")
        start = time.perf_counter()
        plan = bucketshuffle.pack_epoch(lengths, seed, **options)
        seconds.append(time.perf_counter() - start)
        peak = max(peak, resident("VmHWM") - before)
        if seed == 0 and not (np.bincount(plan.indices, minlength=n) == 1).all():
            raise AssertionError("not every sample once")
        padding_ratio = plan.stats.padding_ratio
        del plan
    return {"ns": float(np.median(seconds)) / n * 1e9, "bytes": peak / n, "padding_ratio": padding_ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=count, default=100_000_000)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.n, **json.loads(arguments.child))))
        return
    print(f"{arguments.n:,} lengths like `dflash902k`, token budget {TOKEN_BUDGET:,}, medians of 3.\n{machine()}\n")
    print("| boundaries | input | threads | ns per sample | bytes per sample beside the input | padded / real |")
    print("|---|---|---|---|---|---|")
    for boundaries in ("six", "auto"):
        for dtype in ("int32", "int64"):
            for threads in (1, 2):
                child = json.dumps({"threads": threads, "boundaries": boundaries, "dtype": dtype})
                command = [sys.executable, __file__, "--n", str(arguments.n), "--child", child]
                answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                print(
                    f"| {boundaries} | {dtype} | {threads} | {answer['ns']:.2f} | {answer['bytes']:.1f} "
                    f"| {answer['padding_ratio']:.4f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
