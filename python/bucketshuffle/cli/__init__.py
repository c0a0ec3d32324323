"""The command line: `bucketshuffle report lengths.npy`, `bucketshuffle --help`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bucketshuffle.cli.arguments import parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its status: 0, 2 for a mistake, 130 for Ctrl-C, 141 for a reader that left.

    Args:
        arguments: the words after the command's name; None: those of the process.
    """
    try:
        try:
            given = parser().parse_args(arguments)
            try:
                given.run(given)
            except (OSError, MemoryError, TypeError, ValueError, ImportError) as error:
                if isinstance(error, OSError) and error.filename is None:  # of the output, reported below
                    raise
                print(f"bucketshuffle {given.command}: {_one_line(error)}", file=sys.stderr)
                return 2
            return 0
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
        print(f"bucketshuffle: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{os.fspath(error.filename)}: {error.strerror}"
    return " ".join(str(error).split())
