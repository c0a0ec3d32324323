"""Plans some epochs under four strategies and prints what each is worth: `python -m bucketshuffle [lengths.npy]`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import numpy as np

from bucketshuffle.data import dflash902k
from bucketshuffle.report import compare, notes, to_table


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    try:
        try:
            return _run(arguments)
        finally:
            print(end="", flush=True)  # a pipe or device that refuses the output does so here at the latest
    except KeyboardInterrupt:
        print("bucketshuffle: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        # What is still buffered would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has seen enough, as head does
            return 141
        print(f"bucketshuffle: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 2


def _run(arguments: list[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="bucketshuffle", description=__doc__)
    parser.add_argument(
        "lengths", nargs="?", help=".npy, or .npz with an array named lengths; default: dflash902k, built in"
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
            name, lengths = given.lengths, _read(given.lengths)
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
    except (OSError, MemoryError, TypeError, ValueError) as error:
        print(f"bucketshuffle: {error}", file=sys.stderr)
        return 2
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    name = name.encode(encoding, "backslashreplace").decode(encoding)  # a name may hold any bytes
    head = f"{name}: {len(lengths):,} samples, {given.epochs} epochs, token budget {given.token_budget:,}\n"
    legend = f"""
padded / real   padded tokens over real tokens (1 = no padding)
mix             distance of a window of {given.window} batches from the data set's token-weighted lengths (0 = the same)
pairs repeated  of the pairs of samples in one batch, the share that share one in the next epoch too
neighbours      correlation of the lengths of neighbouring batches; longest run: most in a row from one bucket
slowest         padded tokens of the slowest of {given.world_size} ranks over their mean, per step
Ktok/s          predicted from one measured point: sorted batches ran at 32, and speed follows padded tokens
build, plan     Planner(lengths) once; Planner.plan(seed, epoch), median of {given.epochs}"""
    print(head, to_table(rows, given.window, given.world_size), sep="\n")
    for sentence in sentences:
        print(f"\nnote: {sentence}")
    print(legend)
    return 0


def _read(path: str) -> Any:
    """The lengths in a `.npy` or `.npz` file."""
    with open(path, "rb") as file:
        if not file.read(6).startswith((b"\x93NUMPY", b"PK")):
            raise ValueError(
                f"{path} is neither a .npy nor a .npz file; make one in Python with "
                'numpy.save("lengths.npy", bucketshuffle.lengths_of(source, column))'
            )
        file.seek(0)
        try:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                return loaded
            names = loaded.files
            if "lengths" in names:
                return loaded["lengths"]
        except MemoryError:
            raise
        except Exception as error:  # zipfile, zlib and NumPy raise whatever a damaged file leads them to
            raise ValueError(f"{path} cannot be read ({error}); save it again as an array of integers") from error
    raise ValueError(
        f"{path} has no array named lengths, but {', '.join(names) or 'none at all'}; write it with "
        "numpy.savez(path, lengths=lengths)"
    )


if __name__ == "__main__":
    sys.exit(main())
