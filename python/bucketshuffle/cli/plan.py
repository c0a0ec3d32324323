"""`bucketshuffle plan`: the batches of an epoch as a file."""

from __future__ import annotations

import argparse
from typing import Any

from bucketshuffle.cli.arguments import add_command, add_plan_options, count, plan_options
from bucketshuffle.cli.arrays import LENGTHS_HELP, printable, read_lengths
from bucketshuffle.plan import pack_epoch


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = add_command(
        commands,
        "plan",
        run,
        "write the plan of one epoch, which EpochPlan.load reads",
        ["lengths.npy -o plan.npz", "lengths.npy -o plan.npz --epoch 3 --token-budget 32768 --window 64"],
    )
    command.add_argument("lengths", metavar="LENGTHS", help=LENGTHS_HELP)
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="the .npz file to write")
    command.add_argument("--seed", type=count(0), default=0, metavar="N", help="seed of the plan (default: 0)")
    command.add_argument("--epoch", type=count(0), default=0, metavar="N", help="epoch of the plan (default: 0)")
    add_plan_options(command)


def run(given: argparse.Namespace) -> None:
    """Writes the plan and prints what it is."""
    plan = pack_epoch(read_lengths(given.lengths), given.seed, epoch=given.epoch, **plan_options(given))
    plan.save(given.output)
    stats = plan.stats
    print(
        f"{printable(given.output)}: {stats.n_batches:,} batches of {stats.n_samples:,} samples, padded / real "
        f"{stats.padding_ratio:.4f}"
    )
    if stats.n_dropped:
        print(f"left out: {stats.n_dropped:,} samples with {stats.dropped_tokens:,} tokens")
    for sentence in stats.notes:
        print(f"note: {sentence}")
