"""Ranks: where they come from and what they share; lines 16 to 19 of LOADER_CONTRACT.md."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from samplers import (
    SMALL,
    Numbers,
    at_epoch,
    in_step_order,
    line,
    make,
    ranks,
)

torch = pytest.importorskip("torch")

from bucketshuffle.torch.ranks import data_parallel_rank_and_size, n_training_ranks  # noqa: E402
from torch.utils.data import DistributedSampler  # noqa: E402


@line(16)
def test_given_ranks_win_over_the_process_group_which_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (make().rank, make().world_size) == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (make().rank, make().world_size) == (2, 3)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        sampler = make()
        assert (sampler.rank, sampler.world_size) == (0, 1)
        given = make(rank=1, world_size=4)
        assert (given.rank, given.world_size) == (1, 4)
    finally:
        torch.distributed.destroy_process_group()
    assert (sampler.rank, sampler.world_size) == (0, 1), "decided at construction"


@line(16, 37)
def test_ranks_come_from_a_distributed_sampler() -> None:
    injected = DistributedSampler(Numbers(60), num_replicas=4, rank=3)
    assert (make(sampler=injected).rank, make(sampler=injected).world_size) == (3, 4)
    assert make(sampler=injected, rank=3, world_size=4).rank == 3
    assert make(sampler=torch.utils.data.SequentialSampler(Numbers(60))).world_size == 1


@line(18)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_the_global_order_is_the_same_for_every_world_size(world_size: int) -> None:
    samplers = ranks(world_size, window=24)
    for epoch in (0, 3):
        assert in_step_order([at_epoch(s, epoch) for s in samplers]) == at_epoch(make(window=24), epoch)


@line(19)
def test_ranks_have_one_fingerprint_and_another_plan_has_another() -> None:
    assert len({sampler.fingerprint for sampler in ranks(3)}) == 1
    others = [
        make(),
        make(SMALL[::-1]),
        make(seed=4),
        make(token_budget=61),
        make(window=2),
        make(worst_first=True),
        make(boundaries=[0, 8, 21, 40]),
        make(accumulation_steps=2, balance_ranks=True, rank=0, world_size=2),
        make(loss_tokens=SMALL, min_loss_tokens=10),
    ]
    assert len({sampler.fingerprint for sampler in others}) == len(others)


@pytest.mark.parametrize("ranks", [{"rank": 0, "world_size": 0}, {"rank": -1, "world_size": 2}])
def test_ranks_that_cannot_be_are_named(ranks: dict[str, int]) -> None:
    name, value, least = ("world_size", 0, 1) if ranks["world_size"] == 0 else ("rank", -1, 0)
    message = f"{name} = {value} is outside [{least}, {2**63 - 1}]; choose a value in that range"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(**ranks)


class Mesh:
    """What is read of a `DeviceMesh`, at one place of it."""

    def __init__(self, place: dict[str, int], sizes: dict[str, int]) -> None:
        self.mesh_dim_names, self.ndim = tuple(sizes), len(sizes)
        self.place, self.sizes = list(place.values()), list(sizes.values())

    def get_coordinate(self) -> list[int]:
        return self.place

    def get_local_rank(self, dimension: int = 0) -> int:
        return self.place[dimension]

    def size(self, dimension: int = 0) -> int:
        return self.sizes[dimension]


def test_the_data_parallel_dimensions_of_a_mesh_count_row_by_row() -> None:
    sizes = {"dp_replicate": 2, "tp": 3, "data_shard": 4}
    places = itertools.product(range(2), range(3), range(4))
    found = [data_parallel_rank_and_size(Mesh(dict(zip(sizes, place, strict=True)), sizes)) for place in places]
    assert found == [(4 * replica + shard, 8) for replica in range(2) for _ in range(3) for shard in range(4)]
    assert data_parallel_rank_and_size(Mesh({"tp": 2}, {"tp": 3})) == (2, 3), "of one dimension, whatever its name"
    assert data_parallel_rank_and_size(1) == (None, 1)
    message = (
        "data_parallel has the dimensions ('pp', 'tp'), none called dp; pass that of the ranks with batches of their "
        "own, as mesh[name]"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data_parallel_rank_and_size(Mesh({"pp": 0, "tp": 0}, {"pp": 1, "tp": 2}))
    # A NumPy array has a size, too.
    with pytest.raises(TypeError, match=r"^data_parallel = array\(\[0\., 0\., 0\.\]\) is not an integer$"):
        data_parallel_rank_and_size(np.zeros(3))


def test_training_ranks_are_counted_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert n_training_ranks() == 1
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert n_training_ranks() == 3
    monkeypatch.setenv("WORLD_SIZE", "x")
    message = "the environment has WORLD_SIZE = 'x', not a whole number; correct it, or pass rank and world_size"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        n_training_ranks()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "the environment has RANK alone of RANK and WORLD_SIZE; set both, or pass rank and world_size"),
        (
            {"WORLD_SIZE": "2"},
            "the environment has WORLD_SIZE alone of RANK and WORLD_SIZE; set both, or pass rank and world_size",
        ),
        (
            {"WORLD_SIZE": "two"},
            "the environment has WORLD_SIZE = 'two', not a whole number; correct it, or pass rank and world_size",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "two"},
            "the environment has WORLD_SIZE = 'two', not a whole number; correct it, or pass rank and world_size",
        ),
    ],
)
def test_a_mistake_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()
