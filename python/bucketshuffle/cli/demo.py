"""`bucketshuffle demo`: what the library is worth, on lengths that are built in."""

from __future__ import annotations

import argparse
from typing import Any

from bucketshuffle.cli.arguments import add_command, add_plan_options, count, plan_options
from bucketshuffle.data import dflash902k
from bucketshuffle.report import compare, strategies_table

WRITE_UP_SPEED = ("sorted", 32.0)
"""Measured throughput of sorted batches in the DFlash write-up, thousand real tokens per second."""


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = add_command(
        commands,
        "demo",
        run,
        "plan some epochs of 902,087 lengths under four strategies and print what each is worth",
        ["", "--epochs 2 --token-budget 32768"],
    )
    command.add_argument("--epochs", type=count(2), default=6, metavar="N", help="epochs of each strategy (default: 6)")
    command.add_argument("--seed", type=count(0), default=0, metavar="N", help="seed of the plans (default: 0)")
    command.add_argument("--world-size", type=count(1), default=8, metavar="N", help="ranks of a step (default: 8)")
    add_plan_options(command, window=64)


def run(given: argparse.Namespace) -> None:
    """Prints the table."""
    lengths, options = dflash902k(), plan_options(given)
    shown = {"window": options["window"], "world_size": given.world_size}
    rows = compare(lengths, seed=given.seed, n_epochs=given.epochs, world_size=given.world_size, **options)
    print(f"dflash902k: {len(lengths):,} samples, {given.epochs} epochs\n")
    print(strategies_table(rows, **shown, measured=WRITE_UP_SPEED, times=True).to_text())
