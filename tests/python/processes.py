"""Runs scripts in real processes and reads what they recorded."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_script(script: Path, *arguments: object, n_processes: int = 0, timeout_s: float = 120) -> str:
    """Runs a script, under torchrun if `n_processes` is given; returns what it printed and raises if it fails."""
    command = [sys.executable]
    if n_processes:
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={n_processes}", f"--master-port={free_port()}"]
        command += [str(Path(__file__).parent / "run_then_exit.py")]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{EXAMPLES}{os.pathsep}{Path(__file__).parent}",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [*command, str(script), *map(str, arguments)],
        env=environment,
        timeout=timeout_s,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port: int = taken.getsockname()[1]
        return port


def recorded(out: Path) -> list[list[tuple[int, list[int]]]]:
    """(epoch, samples) of every batch that each rank trained, as `tiny.record` wrote them."""
    logs = sorted(out.glob("rank*.jsonl"))
    return [[(epoch, samples) for epoch, samples in map(json.loads, log.read_text().splitlines())] for log in logs]


def samples_by_epoch(ranks: list[list[tuple[int, list[int]]]]) -> dict[int, list[int]]:
    """The samples of each epoch over all ranks, ascending."""
    by_epoch: dict[int, list[int]] = {}
    for epoch, samples in itertools.chain.from_iterable(ranks):
        by_epoch.setdefault(epoch, []).extend(samples)
    return {epoch: sorted(samples) for epoch, samples in sorted(by_epoch.items())}
