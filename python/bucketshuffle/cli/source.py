"""`bucketshuffle lengths` and `bucketshuffle pack`: what a data set on disk holds, for planning and for training."""

from __future__ import annotations

import argparse
import io
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.cli.arguments import add_command
from bucketshuffle.cli.arrays import printable
from bucketshuffle.cli.progress import progress
from bucketshuffle.data.atomic import write_file
from bucketshuffle.data.saved import write_fields_into
from bucketshuffle.data.sources import choose_column, open_source
from bucketshuffle.data.stream import count_lengths, pack_fields
from bucketshuffle.data.tokens import FileTokenizer


def add_lengths(commands: Any) -> None:
    """Adds the subcommand `lengths`."""
    command = add_command(
        commands,
        "lengths",
        run_lengths,
        "count the tokens of every sample of a data set on disk",
        [
            "train.parquet -o lengths.npy",
            "train.jsonl --column text --tokenizer tokenizer.json -o lengths.npy",
            "features/ -o lengths.npy",
        ],
    )
    _add_source(command, "the .npy file to write")
    command.add_argument(
        "--column", metavar="NAME", help="lists of tokens, whole numbers (the lengths) or text (default: input_ids)"
    )


def add_pack(commands: Any) -> None:
    """Adds the subcommand `pack`."""
    command = add_command(
        commands,
        "pack",
        run_pack,
        "write a data set on disk as one file that PreloadedDataset.open maps",
        [
            "train.parquet --column input_ids --column labels -o data.safetensors",
            "train.jsonl --column text --tokenizer tokenizer.json -o data.safetensors",
        ],
    )
    _add_source(command, "the .safetensors file to write")
    command.add_argument(
        "--column",
        metavar="NAME",
        action="append",
        help="lists of tokens, text or numbers; may be given several times (default: input_ids)",
    )
    command.add_argument("--dtype", choices=["uint16", "int32", "int64"], help="dtype of whole tokens in the file")


def run_lengths(given: argparse.Namespace) -> None:
    """Writes the lengths and prints what they are."""
    source, tokenizer = open_source(given.source), _tokenizer(given)
    column = choose_column(source, given.source, given.column)
    lengths: npt.NDArray[np.integer[Any]] = np.empty(0, np.int64)

    def write(file: Any) -> None:
        nonlocal lengths
        with progress("lengths", source.total, source.unit) as show:
            lengths = count_lengths(source, column, show, tokenizer=tokenizer)
        if not len(lengths):
            raise ValueError(f"{printable(given.source)} has 0 samples, fewer than the 1 that a plan needs")
        buffer = io.BytesIO()  # numpy.save into a file on a full disk does not say so
        np.save(buffer, lengths)
        file.write(buffer.getbuffer())

    write_file(given.output, write)  # first of all it makes sure that there is a place to write to
    tokens = int(lengths.sum(dtype=np.uint64))
    what = f"{len(lengths):,} samples, {tokens:,} tokens, {lengths.min():,} to {lengths.max():,}"
    print(f"{printable(given.output)}: {what}")


def run_pack(given: argparse.Namespace) -> None:
    """Writes the data set and prints what it is."""
    source, tokenizer = open_source(given.source), _tokenizer(given)
    columns = list(dict.fromkeys(choose_column(source, given.source, name) for name in given.column or [None]))
    folder = os.path.dirname(os.path.realpath(given.output))
    shapes: dict[str, str] = {}
    n_samples = 0

    def write(file: Any) -> None:
        nonlocal n_samples
        with progress("pack", source.total, source.unit) as show:
            fields = pack_fields(source, columns, folder, show, tokenizer=tokenizer, dtype=given.dtype)
        write_fields_into(file, fields)
        n_samples = len(fields.pop("offsets").values) - 1
        shapes.update({name: f"{field.dtype} {list(field.values.shape)}" for name, field in fields.items()})

    write_file(given.output, write)
    print(f"{printable(given.output)}: {n_samples:,} samples, {', '.join(f'{k} {v}' for k, v in shapes.items())}")


def _add_source(command: argparse.ArgumentParser, output: str) -> None:
    command.add_argument(
        "source",
        metavar="SOURCE",
        help="a Parquet, Arrow or JSON Lines file, a folder of such files or of .npy files, or a Hugging Face data set",
    )
    command.add_argument("-o", "--output", required=True, metavar="FILE", help=output)
    command.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json, for text")
    command.add_argument(
        "--no-special-tokens", action="store_true", help="leave out the tokens that the tokenizer's file adds to a text"
    )


def _tokenizer(given: argparse.Namespace) -> FileTokenizer | None:
    if given.tokenizer is None:
        return None
    return FileTokenizer(given.tokenizer, special_tokens=not given.no_special_tokens)
