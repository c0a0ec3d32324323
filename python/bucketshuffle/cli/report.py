"""`bucketshuffle report`: what the lengths alone tell about a training run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bucketshuffle.cli.arguments import add_command, add_plan_options, count, plan_options
from bucketshuffle.cli.arrays import LENGTHS_HELP, printable, read_lengths
from bucketshuffle.data.atomic import write_file
from bucketshuffle.report import Report
from bucketshuffle.report.terminal import show

_NAMES = {"six": "six buckets", "yours": "your options"}


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = add_command(
        commands,
        "report",
        run,
        "print what the lengths alone tell: padding, repetition, mix, steps, the costliest batch, and what to change",
        [
            "lengths.npy",
            "lengths.npy --token-budget 65536 --window 128 --world-size 16",
            "lengths.npy --measured sorted=32 --html report.html",
            "lengths.npy --boundaries 0,512,1024,2048,3072,4096,8192 --json",
        ],
    )
    command.add_argument("lengths", metavar="LENGTHS", help=LENGTHS_HELP)
    command.add_argument(
        "--epochs", type=count(2), metavar="N", help="epochs of each strategy (default: 2 to 32, by size)"
    )
    command.add_argument("--seed", type=count(0), default=0, metavar="N", help="seed of the plans (default: 0)")
    command.add_argument(
        "--world-size", type=count(1), default=8, metavar="N", help="ranks that share a step (default: 8)"
    )
    command.add_argument(
        "--measured",
        type=_measured,
        metavar="STRATEGY=SPEED",
        help="real tokens per second, in any unit, that sorted, random, six, bucketshuffle or yours ran at",
    )
    command.add_argument("--json", action="store_true", help="print all figures as JSON")
    command.add_argument("--html", metavar="FILE", help="write one page with plots (needs bucketshuffle[report])")
    add_plan_options(command, window=64, overlong="drop", empty="drop")


def run(given: argparse.Namespace) -> None:
    """Prints the report, and writes the page where one is asked for."""
    report = Report.of(
        read_lengths(given.lengths),
        name=printable(given.lengths),
        seed=given.seed,
        n_epochs=given.epochs,
        world_size=given.world_size,
        measured=given.measured,
        **plan_options(given),
    )
    if given.html is not None:
        page = report.to_html().encode()
        write_file(given.html, lambda file: file.write(page))
    if given.json:
        print(json.dumps(report.to_dict(), indent=2, allow_nan=False))
    else:
        show(report)
    if given.html is not None and not given.json:
        print(f"\n{printable(given.html)} shows this with plots")


def _measured(text: str) -> tuple[str, float]:
    name, _, speed = text.partition("=")
    try:
        value = float(speed)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not STRATEGY=SPEED with a speed above 0, such as sorted=32")
    return _NAMES.get(name, name), value
