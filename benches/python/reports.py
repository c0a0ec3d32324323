"""The report of every length set: how long it takes and what it says: `python benches/python/reports.py [FOLDER]`.

Runs `bucketshuffle report` as a user does, in a process of its own, with and without the page, and prints a row for
each set of FOLDER (default: those of the tests) and for `dflash902k`. A warning, a line on stderr or a figure that is
not finite ends it. Times are medians of `--rounds` calls, with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bucketshuffle.data import dflash902k

SETS = Path(__file__).parents[2] / "tests" / "python" / "lengths"


def report(path: Path, *words: str) -> tuple[str, float]:
    """What the command prints, and the seconds it took."""
    start = time.perf_counter()
    command = [sys.executable, "-W", "error", "-m", "bucketshuffle", "report", str(path), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode or done.stderr:
        raise SystemExit(f"{path.stem}: status {done.returncode}: {done.stderr}")
    return done.stdout, seconds


def spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"


def refuse_constant(text: str) -> float:
    raise SystemExit(f"{text} is no figure")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=SETS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("| set | samples | sorted | random | six buckets | bucketshuffle | batches, six | notes | s | s with page |")
    print("|---|" + "---:|" * 9)
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "dflash902k.npz"
        np.savez(own, lengths=dflash902k())
        page = Path(folder) / "page.html"
        for path in [*sorted(given.folder.glob("*.npz")), own]:
            text, _ = report(path, "--json")
            found = json.loads(text, parse_constant=refuse_constant)
            plain, paged = [], []
            for _ in range(given.rounds):
                plain.append(report(path)[1])
                paged.append(report(path, "--html", str(page))[1])
            rows = {row["name"]: row["metrics"] for row in found["strategies"]}
            cells = [path.stem, f"{found['distribution']['n_samples']:,}"]
            cells += [
                f"{rows[name]['padding_ratio']:.4f}" for name in ("sorted", "random", "six buckets", "bucketshuffle")
            ]
            cells += [
                f"{rows['six buckets']['n_batches']:,.0f}",
                str(len(found["advice"])),
                spread(plain),
                spread(paged),
            ]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
