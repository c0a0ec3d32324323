"""Plans some epochs under four strategies and prints what each is worth: `python -m bucketshuffle [lengths.npy]`."""

from __future__ import annotations

import argparse
import sys
import zipfile

import numpy as np

from bucketshuffle.data import dflash902k
from bucketshuffle.report import compare, notes, to_table


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    parser = argparse.ArgumentParser(prog="bucketshuffle", description=__doc__)
    parser.add_argument(
        "lengths", nargs="?", help=".npy, or .npz with the key 'lengths'; default: dflash902k, built in"
    )
    parser.add_argument("--epochs", type=int, default=6, help="epochs to plan under each strategy, 2 or more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--token-budget", type=int, default=131_072, help="what a batch may cost, padded tokens")
    parser.add_argument("--repeat-weight", type=float, default=0.5, help="less pads less and repeats more pairs")
    parser.add_argument("--window", type=int, default=64, help="batches between two optimizer updates, over all ranks")
    parser.add_argument("--world-size", type=int, default=8, help="ranks that share a step")
    parser.add_argument("--overlong", choices=["error", "drop", "keep"], default="error")
    parser.add_argument("--empty", choices=["error", "drop"], default="error")
    given = parser.parse_args(arguments)
    if given.epochs < 2:
        parser.error(f"--epochs = {given.epochs} is below its minimum = 2; pairs repeated compare two epochs")
    for name, value in (("--window", given.window), ("--world-size", given.world_size)):
        if value < 1:
            parser.error(f"{name} = {value} is below its minimum = 1; choose 1 or more")
    try:
        if given.lengths is None:
            name, lengths = "dflash902k", dflash902k()
        else:
            name, lengths = given.lengths, np.load(given.lengths)
            if isinstance(lengths, np.lib.npyio.NpzFile):
                lengths = lengths["lengths"]
        options = {
            "seed": given.seed,
            "window": given.window,
            "token_budget": given.token_budget,
            "repeat_weight": given.repeat_weight,
            "overlong": given.overlong,
            "empty": given.empty,
        }
        rows = compare(lengths, n_epochs=given.epochs, world_size=given.world_size, **options)
        sentences = notes(lengths, **options)
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        print(f"bucketshuffle: {error}", file=sys.stderr)
        return 2
    print(f"{name}: {len(lengths):,} samples, {given.epochs} epochs, token budget {given.token_budget:,}\n")
    print(to_table(rows, given.window, given.world_size))
    for sentence in sentences:
        print(f"\nnote: {sentence}")
    print(f"""
padded / real   padded tokens over real tokens (1 = no padding)
mix             distance of a window of {given.window} batches from the data set's token-weighted lengths (0 = the same)
pairs repeated  of the pairs of samples in one batch, the share that share one in the next epoch too
neighbours      correlation of the lengths of neighbouring batches; longest run: most in a row from one bucket
slowest         padded tokens of the slowest of {given.world_size} ranks over their mean, per step
Ktok/s          predicted from one measured point: sorted batches ran at 32, and speed follows padded tokens
build, plan     Planner(lengths) once; Planner.plan(seed, epoch), median of {given.epochs}""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
