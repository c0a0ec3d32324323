"""Which rank this process is, and of how many."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed

from bucketshuffle.options import integer


def rank_and_world_size(rank: Any = None, world_size: Any = None, sampler: Any = None) -> tuple[int, int]:
    """Returns the rank of this process and the number of ranks: as given, else those of `sampler` if it is a
    `DistributedSampler`, else those of `torch.distributed` where it is initialised, else those of the environment
    (`RANK` and `WORLD_SIZE`), else 0 and 1.

    Raises:
        TypeError: one of them is not an integer.
        ValueError: one is given without the other, `rank` is not below `world_size`, or the sources disagree.
    """
    if (rank is None) != (world_size is None):
        given, absent = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise ValueError(f"{given} is given without {absent}; pass both, or neither")
    injected = (sampler.rank, sampler.num_replicas) if hasattr(sampler, "num_replicas") else None
    if rank is None:
        rank, world_size = injected or _found()
    elif injected not in (None, (rank, world_size)):
        raise ValueError(
            f"rank = {rank}, world_size = {world_size} differ from those of sampler = {injected}; leave one of them out"
        )
    world_size = integer("world_size", world_size, 1)
    rank = integer("rank", rank, 0)
    if rank >= world_size:
        raise ValueError(f"rank = {rank} is not below world_size = {world_size}; ranks count from 0")
    return rank, world_size


def data_parallel_rank_and_size(data_parallel: Any) -> tuple[int | None, int]:
    """Returns the rank of this process among those that get batches of their own, None if that is not said, and how
    many of these there are: of a device mesh, a process group or an int. Of a mesh of several dimensions those count
    whose names begin with "dp" or "data".

    Raises:
        TypeError: it is none of these.
        ValueError: a mesh of several dimensions names none of them so.
    """
    names = getattr(data_parallel, "mesh_dim_names", None)
    if hasattr(data_parallel, "get_coordinate") and data_parallel.ndim > 1:
        chosen = [i for i, name in enumerate(names or ()) if name.startswith(("dp", "data"))]
        if not chosen:
            raise ValueError(
                f"data_parallel has the dimensions {names}, none called dp; pass that of the ranks with batches of "
                "their own, as mesh[name]"
            )
        rank, size = 0, 1
        for i in chosen:
            rank, size = rank * data_parallel.size(i) + data_parallel.get_local_rank(i), size * data_parallel.size(i)
        return rank, size
    if hasattr(data_parallel, "get_local_rank") and hasattr(data_parallel, "size"):
        return data_parallel.get_local_rank(), data_parallel.size()
    if isinstance(data_parallel, torch.distributed.ProcessGroup):
        return data_parallel.rank(), data_parallel.size()
    return None, integer("data_parallel", data_parallel, 1)


def n_training_ranks() -> int:
    """Returns how many processes train: of `torch.distributed` where it is initialised, else of the environment, else
    1.

    Raises:
        ValueError: `WORLD_SIZE` in the environment is not a whole number.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return _whole_number("WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))


def _found() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    variables = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    if list(variables) == ["WORLD_SIZE"] and _whole_number("WORLD_SIZE", variables["WORLD_SIZE"]) == 1:
        return 0, 1  # Some platforms set it alone.
    if len(variables) == 1:
        (name,) = variables
        raise ValueError(
            f"the environment has {name} alone of RANK and WORLD_SIZE; set both, or pass rank and world_size"
        )
    if not variables:
        return 0, 1
    rank, world_size = (_whole_number(name, text) for name, text in variables.items())
    return rank, world_size


def _whole_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(
            f"the environment has {name} = {text!r}, not a whole number; correct it, or pass rank and world_size"
        )
    return int(text)
