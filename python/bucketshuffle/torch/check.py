"""Checks before training: every rank gets its own share, the epoch arrives, and the data set is the planned one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch.distributed

from bucketshuffle.options import integer
from bucketshuffle.torch._check_padding import check_padding
from bucketshuffle.torch.ranks import data_parallel_rank_and_size, n_training_ranks
from bucketshuffle.torch.sampler import BucketBatchSampler

_DEEPEST = 16
"""Wrappers around a batch sampler: accelerate and transformers make two; an object that answers every attribute, more
than that."""


def check_loader(loader: Any, *, data_parallel: Any = None, n_batches: int = 0) -> None:
    """Raises if `loader`, as it is about to be trained from, would repeat or leave out samples, replay an epoch or pad
    past the token budget.

    Finds the `BucketBatchSampler` behind the wrappers of accelerate, transformers, Lightning and Fabric. Call it once,
    after they have prepared the loader and while the process group is up; it does not communicate.

    Args:
        loader: a `DataLoader`, or what a trainer made of one.
        data_parallel: the ranks that get batches of their own, where tensor, context or pipeline parallelism makes them
            fewer than all: a device mesh, a process group, or their number. Default: all ranks.
        n_batches: how many batches to make, from the data set and the collator of the loader, and to compare with the
            plan. The position of the loader stays where it is.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: the loader has no `BucketBatchSampler`; batches would reach two ranks or none; the ranks cannot
            share the batches equally; `set_epoch` does not reach the sampler; the data set has another size than
            `lengths`, or a `PreloadedDataset` has other lengths; the collator pads to longer rows than planned.
    """
    n_batches = integer("n_batches", n_batches, 0)
    loader = _unwrapped(loader)
    chain = list(islice(_chain(loader), _DEEPEST))
    sampler = chain[-1] if chain else None
    if not isinstance(sampler, BucketBatchSampler):
        found = " in ".join(type(link).__name__ for link in reversed(chain[:3])) or "no batch sampler"
        raise ValueError(
            f"loader has {found}, not a BucketBatchSampler; pass one as DataLoader(..., batch_sampler=sampler)"
        )
    if data_parallel is None:
        data_parallel = getattr(loader, "torch_device_mesh", None)  # accelerate's
    _check_shards(loader, chain, sampler, data_parallel)
    _check_epoch(loader, chain, sampler)
    check_padding(loader, sampler, n_batches)


def check_ranks(sampler: BucketBatchSampler) -> None:
    """Raises on every rank if the ranks would not train one plan: they differ in lengths or their order, in options,
    seed, epoch, order version or world size, or two have the same rank.

    A collective call: every rank of the default process group makes it. Without a process group it does nothing.

    Raises:
        ValueError: what differs from rank 0, and on which rank.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    mine = {
        "fingerprint": sampler.fingerprint,
        **sampler.schedule.identity,
        "window": sampler.schedule.window,
        "balance_ranks": sampler.schedule.balance_ranks,
        "epoch": sampler.epoch,
        "world_size": sampler.world_size,
        "rank": sampler.rank,
    }
    everyone: list[dict[str, Any]] = [{} for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(everyone, mine)
    first = everyone[0]
    for other, theirs in enumerate(everyone):
        differing = [key for key in {**first, **theirs} if first.get(key) != theirs.get(key)]
        differing = [key for key in differing if key not in ("rank", "fingerprint")]
        if differing:
            what = ", ".join(f"{key} = {theirs.get(key)!r} (rank 0: {first.get(key)!r})" for key in differing)
            raise ValueError(f"the sampler of rank {other} is of another plan: {what}; build it alike on every rank")
    ranks = [theirs["rank"] for theirs in everyone]
    # With tensor, context or pipeline parallelism several ranks share the batches of one.
    n_times = max(len(everyone) // first["world_size"], 1)
    if sorted(ranks) != [rank for rank in range(first["world_size"]) for _ in range(n_times)]:
        raise ValueError(f"the samplers have ranks {ranks}; leave rank out, or pass each process its own")


def _unwrapped(loader: Any) -> Any:
    """The loader inside Fabric's wrapper."""
    while type(loader).__name__ == "_FabricDataLoader":
        loader = loader._dataloader
    return loader


def _chain(loader: Any) -> Iterator[Any]:
    """The batch samplers of a loader, from the outermost wrapper to what is inside."""
    link = getattr(loader, "batch_sampler", None)
    while link is not None:
        yield link
        if isinstance(link, BucketBatchSampler):
            return
        # accelerate's wrappers hold `batch_sampler`, Lightning's `_batch_sampler`.
        link = getattr(link, "batch_sampler", None) or getattr(link, "_batch_sampler", None)


def _check_shards(loader: Any, chain: list[Any], sampler: BucketBatchSampler, data_parallel: Any) -> None:
    if type(loader).__name__ == "DataLoaderDispatcher":
        raise ValueError(
            "loader joins the batches of all ranks and cuts them anew (dispatch_batches), past the token budget; set "
            "dispatch_batches=False"
        )
    n_shares = max((link.num_processes for link in chain if type(link).__name__ == "BatchSamplerShard"), default=1)
    if sampler.world_size > 1 and n_shares > 1:
        raise ValueError(
            f"loader divides the batches among {n_shares} processes again, after the sampler has among "
            f"{sampler.world_size} ranks; use prepare_data_loader(loader, num_processes=1, process_index=0, "
            "put_on_device=True), or build the sampler with rank=0, world_size=1, "
            f"window={sampler.schedule.window}"
        )
    if sampler.schedule.window % n_shares:
        raise ValueError(
            f"loader divides batches that were planned for windows of {sampler.schedule.window} among {n_shares} "
            f"processes; build the sampler with a window that is a multiple of {n_shares}"
        )
    n_served = sampler.world_size * n_shares
    if data_parallel is None:
        n_ranks = n_training_ranks()
        if n_served != n_ranks:
            shared = ", or where ranks share batches (tensor, context, pipeline parallelism) data_parallel"
            raise ValueError(
                f"loader divides the batches among {n_served} ranks, but {n_ranks} train; build the sampler after the "
                f"process group, or pass rank and world_size{shared if n_served > 1 else ''}"
            )
        return
    rank, n_ranks = data_parallel_rank_and_size(data_parallel)
    if n_served != n_ranks or (n_shares == 1 and rank not in (None, sampler.rank)):
        shown = "" if rank is None else f"rank={rank}, "
        raise ValueError(
            f"the sampler has rank {sampler.rank} of {sampler.world_size}, and loader divides its batches among "
            f"{n_shares} processes, but {n_ranks} ranks get batches of their own; build the sampler with "
            f"{shown}world_size={n_ranks}"
        )


def _check_epoch(loader: Any, chain: list[Any], sampler: BucketBatchSampler) -> None:
    outer = chain[0]
    if type(outer).__name__ == "_IndexBatchSamplerWrapper":
        return  # Lightning predicts: there are no epochs.
    # Where accelerate and Lightning look for set_epoch; transformers looks at batch_sampler.batch_sampler as well.
    hooks = [outer, getattr(outer, "sampler", None), getattr(loader, "sampler", None)]
    inner = getattr(outer, "batch_sampler", None)
    hooks += [getattr(inner, "sampler", None)]
    if not any(hook is sampler for hook in hooks):
        path = " in ".join(type(link).__name__ for link in reversed(chain))
        raise ValueError(
            f"set_epoch of loader does not reach the sampler ({path}); use a rank-aware sampler with "
            "prepare_data_loader(loader, num_processes=1, process_index=0, put_on_device=True), or call "
            "sampler.set_epoch yourself"
        )
