"""The words of the command line: a parser for each subcommand, and what they share."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from bucketshuffle import __version__, _core

_OVERVIEW = """examples:
  bucketshuffle lengths train.parquet -o lengths.npy     count the tokens of every sample
  bucketshuffle report lengths.npy                       what would they pad, in which order?
  bucketshuffle report lengths.npy --html report.html    the same with plots
  bucketshuffle plan lengths.npy -o plan.npz             the batches of an epoch
  bucketshuffle demo                                     what the library is worth, on 902,087 lengths built in
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one line, and that knows no abbreviations, which the next version could break."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists what it takes\n")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line; what it parses has `run`, the subcommand to call with it."""
    # Imported here, so that each module may use what this one offers.
    from bucketshuffle.cli import bench, demo, plan, report, source

    top = _Parser(
        prog="bucketshuffle",
        description="Padded batches for training, judged before the run begins.",
        epilog=_OVERVIEW,
    )
    top.add_argument("--version", action="version", version=f"bucketshuffle {__version__}")
    with contextlib.suppress(ImportError):  # optional
        import shtab

        shtab.add_argument_to(top, help="print a completion script for this shell")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (report.add, source.add_lengths, source.add_pack, plan.add, bench.add, demo.add):
        add(commands)
    return top


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], summary: str, examples: Sequence[str]
) -> argparse.ArgumentParser:
    """Adds a subcommand and returns its parser.

    Args:
        commands: the subparsers.
        name: what the user types.
        run: called with what was parsed.
        summary: a sentence for both helps.
        examples: the words after `bucketshuffle`, one call each.
    """
    epilog = "\n".join(["examples:", *(f"  bucketshuffle {name} {words}".rstrip() for words in examples)])
    command: argparse.ArgumentParser = commands.add_parser(
        name, prog=f"bucketshuffle {name}", help=summary, description=summary, epilog=epilog
    )
    command.set_defaults(run=run)
    return command


def add_plan_options(command: argparse.ArgumentParser, **defaults: Any) -> None:
    """Adds an argument for every option of `pack_epoch`; `plan_options` reads them.

    Args:
        command: the parser of a subcommand.
        defaults: defaults of the subcommand's own, by the option's name; the others are the core's.
    """
    shown = {**_core.DEFAULTS, **defaults}
    group = command.add_argument_group("options of the plan", "see the docstring of bucketshuffle.pack_epoch")
    for name, (kind, text) in _PLAN_OPTIONS.items():
        flag = f"--{name.replace('_', '-')}"
        default = defaults.get(name, argparse.SUPPRESS)
        if kind is bool:
            group.add_argument(flag, action="store_true", default=default, help=text)
            continue
        text = text if shown[name] is None else f"{text} (default: {shown[name]})"
        if isinstance(kind, tuple):
            group.add_argument(flag, choices=kind, default=default, help=text)
        else:
            metavar = "N|EDGES" if kind is _edges else "X" if kind is float else "N"
            group.add_argument(flag, type=kind, metavar=metavar, default=default, help=text)


def plan_options(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of `pack_epoch` that were given, or that the subcommand has defaults for."""
    return {name: value for name, value in vars(given).items() if name in _PLAN_OPTIONS}


def count(minimum: int) -> Callable[[str], int]:
    """Returns the type of an argument that is an integer of `minimum` or more."""

    def parse(text: str) -> int:
        value = _integer(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is below its minimum = {minimum}; choose {minimum} or more")
        return value

    return parse


def _integer(text: str) -> int:
    try:
        return int(text.replace(",", "_"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None


def _edges(text: str) -> int | list[int] | str:
    """`auto`, a number, or edges between commas."""
    if text == "auto":
        return text
    values = [_integer(part) for part in text.split(",")]
    return values if "," in text else values[0]


_PLAN_OPTIONS: dict[str, tuple[Any, str]] = {
    "token_budget": (_integer, "what a batch may cost, padded tokens"),
    "max_batch_size": (_integer, "samples a batch may hold"),
    "boundaries": (_edges, "auto, a number of buckets, or edges such as 0,512,1024"),
    "repeat_weight": (float, "less pads less and repeats more pairs"),
    "padding_target": (float, "padding over sorted order to aim at, such as 0.01"),
    "pad_to_multiple_of": (_integer, "round padded lengths up to a multiple of this"),
    "padded_lengths": (_edges, "a number of padded lengths, or the lengths themselves"),
    "per_sample": (_integer, "fixed cost of a sample, tokens"),
    "quadratic_length": (_integer, "padded length at which attention costs as much as the rest"),
    "strategy": (("bucketed", "sorted", "random"), "how batches are made"),
    "window": (_integer, "batches between two optimizer updates, over all ranks"),
    "align_ranks": (_integer, "this many neighbouring batches are alike in length"),
    "constant_count": (bool, "plan the same number of batches in every epoch"),
    "overlong": (("error", "drop", "keep"), "samples above the budget"),
    "empty": (("error", "drop"), "samples of length 0"),
    "threads": (_integer, "threads to plan with"),
}
