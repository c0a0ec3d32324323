"""Small samplers that yield their own indices, and what their tests ask of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from bucketshuffle.torch import BucketBatchSampler
from conftest import uneven_lengths
from torch.utils.data import DataLoader, Dataset

SMALL = uneven_lengths(60, longest=40)
OPTIONS: dict[str, Any] = {"token_budget": 60, "boundaries": [0, 8, 20, 40], "seed": 3}
WORKERS = ["0", "2", "2 persistent"]

Batches = list[list[int]]
line: Callable[..., pytest.MarkDecorator] = pytest.mark.contract
"""The lines of the checklist in LOADER_CONTRACT.md that a test is for."""


def make(lengths: Any = SMALL, **changed: Any) -> BucketBatchSampler:
    return BucketBatchSampler(lengths, **{**OPTIONS, **changed})


N = len(make())


def ranks(world_size: int, **changed: Any) -> list[BucketBatchSampler]:
    return [make(rank=rank, world_size=world_size, **changed) for rank in range(world_size)]


def at_epoch(sampler: BucketBatchSampler, epoch: int) -> Batches:
    sampler.set_epoch(epoch)
    return list(sampler)


def in_step_order(per_rank: list[Batches]) -> Batches:
    assert len({len(batches) for batches in per_rank}) == 1
    return [batch for step in zip(*per_rank, strict=True) for batch in step]


def every_sample(batches: Batches) -> list[int]:
    return sorted(chain.from_iterable(batches))


def after(sampler: BucketBatchSampler, n_batches: int) -> dict[str, Any]:
    """The state of a sampler after so many batches of its current epoch, through JSON."""
    batches = iter(sampler)
    for _ in range(n_batches):
        next(batches)
    state: dict[str, Any] = json.loads(json.dumps(sampler.state_dict()))
    return state


def begun_on(sampler: BucketBatchSampler, epoch: int, n_batches: int) -> dict[str, Any]:
    sampler.set_epoch(epoch)
    return after(sampler, n_batches)


class Numbers(Dataset):
    """Sample `i` is the number `i`, so that a batch is its own indices."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, sample: int) -> int:
        return sample


def as_is(samples: list[int]) -> list[int]:
    return samples


def loader_of(sampler: BucketBatchSampler, kind: type = DataLoader, workers: str = "0", **options: Any) -> Any:
    n_workers = int(workers[0])
    return kind(
        Numbers(len(sampler.lengths)),
        batch_sampler=sampler,
        collate_fn=as_is,
        num_workers=n_workers,
        persistent_workers="persistent" in workers,
        **options,
    )


def longest_of(batches: Batches) -> list[int]:
    return [int(np.max(SMALL[batch])) for batch in batches]
