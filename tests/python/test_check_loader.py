"""`check_loader`: groups of ranks, padding past the plan, batches compared with it, loaders that are none."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from processes import run_script
from samplers import SMALL, Numbers, at_epoch, loader_of, make

torch = pytest.importorskip("torch")

from bucketshuffle.torch import BucketBatchSampler, PadCollator, PreloadedDataset, check_loader  # noqa: E402
from torch.utils.data import DataLoader, Subset  # noqa: E402


def refuses(loader: Any, message: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_loader(loader, **options)


def rows(lengths: Any, width: int = 0) -> list[dict[str, list[int]]]:
    return [{"input_ids": [1] * max(int(n), width)} for n in lengths]


def preloaded(lengths: Any, **options: Any) -> PreloadedDataset:
    return PreloadedDataset.from_rows({"input_ids": [[1] * int(n) for n in lengths]}, collator=PadCollator(**options))


# Which ranks


def test_ranks_that_share_their_batches_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = loader_of(make(rank=1, world_size=2))
    check_loader(loader, data_parallel=2)
    refuses(
        loader,
        "loader divides the batches among 2 ranks, but 4 train; build the sampler after the process group, or pass "
        "rank and world_size, or where ranks share batches (tensor, context, pipeline parallelism) data_parallel",
    )
    refuses(
        loader_of(make(rank=3, world_size=4)),
        "the sampler has rank 3 of 4, and loader divides its batches among 1 processes, but 2 ranks get batches of "
        "their own; build the sampler with world_size=2",
        data_parallel=2,
    )
    with pytest.raises(TypeError, match=r"^data_parallel = '2' is not an integer$"):
        check_loader(loader, data_parallel="2")


MESH = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from bucketshuffle.torch import check_loader, check_ranks
from samplers import loader_of, make

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
rank = dist.get_rank()
right = make(rank=mesh["dp"].get_local_rank(), world_size=mesh["dp"].size())
check_ranks(right)
for group in (mesh, mesh["dp"], mesh["dp"].get_group(), 2):
    check_loader(loader_of(right), data_parallel=group)

def refused(sampler, group, text):
    try:
        check_loader(loader_of(sampler), data_parallel=group)
    except ValueError as error:
        assert str(error) == text, error
    else:
        raise SystemExit("not refused")

dp = mesh["dp"].get_local_rank()
for group in (mesh, mesh["dp"]):
    refused(make(), group, f"the sampler has rank {rank} of 4, and loader divides its batches among 1 processes, but 2 "
        f"ranks get batches of their own; build the sampler with rank={dp}, world_size=2")
    refused(make(rank=1 - dp, world_size=2), group, f"the sampler has rank {1 - dp} of 2, and loader divides its "
        f"batches among 1 processes, but 2 ranks get batches of their own; build the sampler with rank={dp}, "
        "world_size=2")
other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
refused(right, other, "data_parallel has the dimensions ('pp', 'tp'), none called dp; pass that of the ranks with "
    "batches of their own, as mesh[name]")
try:
    check_ranks(make(rank=min(rank, 1), world_size=2))
except ValueError as error:
    assert str(error) == "the samplers have ranks [0, 1, 1, 1]; leave rank out, or pass each process its own", error
else:
    raise SystemExit("not refused")
print("all done")
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_a_mesh_with_tensor_parallelism(tmp_path: Any) -> None:
    script = tmp_path / "mesh.py"
    script.write_text(MESH)
    assert run_script(script, n_processes=4).count("all done") == 4


def test_one_rank_may_be_said_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "1")
    sampler = make()
    assert (sampler.rank, sampler.world_size) == (0, 1)
    check_loader(loader_of(sampler))


# What is no loader


def test_a_loader_without_a_batch_sampler_is_refused() -> None:
    refuses(
        SimpleNamespace(),
        "loader has no batch sampler, not a BucketBatchSampler; pass one as DataLoader(..., batch_sampler=sampler)",
    )


def test_the_data_parallel_rank_is_compared_unless_the_loader_divides_too() -> None:
    mesh = SimpleNamespace(get_local_rank=lambda: 1, size=lambda: 2)
    refuses(
        loader_of(make(rank=0, world_size=2)),
        "the sampler has rank 0 of 2, and loader divides its batches among 1 processes, but 2 ranks get batches of "
        "their own; build the sampler with rank=1, world_size=2",
        data_parallel=mesh,
    )
    check_loader(loader_of(make(rank=1, world_size=2)), data_parallel=mesh)


@pytest.mark.parametrize("loader", [MagicMock(), SimpleNamespace(batch_sampler=MagicMock())])
def test_a_loader_that_answers_every_attribute_is_refused(loader: Any) -> None:
    refuses(
        loader,
        "loader has MagicMock in MagicMock in MagicMock, not a BucketBatchSampler; pass one as DataLoader(..., "
        "batch_sampler=sampler)",
    )


# Padding


def padded_to(multiple: int) -> str:
    n = int(SMALL.min())
    return (
        f"the collator pads rows of {n} tokens to {multiple} (pad_to_multiple_of = {multiple}), the plan counts {n}; "
        f"build the sampler with pad_to_multiple_of={multiple}"
    )


def test_a_collator_that_pads_further_than_planned_is_found() -> None:
    def loader(sampler: BucketBatchSampler, multiple: int) -> Any:
        return DataLoader(rows(SMALL), batch_sampler=sampler, collate_fn=PadCollator(pad_to_multiple_of=multiple))  # type: ignore[arg-type]

    refuses(loader(make(), 512), padded_to(512))
    check_loader(loader(make(), 1))
    check_loader(loader(make(pad_to_multiple_of=16), 8), n_batches=3)
    check_loader(loader(make(padded_lengths=[8, 24, 40]), 8), n_batches=3)
    n = int(SMALL.min())
    refuses(
        loader(make(pad_to_multiple_of=8), 16),
        f"the collator pads rows of {n} tokens to 16 (pad_to_multiple_of = 16), the plan counts 8; build the sampler "
        "with pad_to_multiple_of=16",
    )


def test_the_collator_of_a_data_set_is_looked_at_too() -> None:
    data = preloaded(SMALL, pad_to_multiple_of=64)
    refuses(DataLoader(data, batch_sampler=make(), collate_fn=data.collate), padded_to(64))
    wide = make(pad_to_multiple_of=64, token_budget=640)
    check_loader(DataLoader(data, batch_sampler=wide, collate_fn=data.collate), n_batches=2)


def test_a_data_set_whose_lengths_stand_in_another_order_is_found() -> None:
    shuffled = np.roll(SMALL, 1)
    data = preloaded(shuffled)
    subset = Subset(preloaded(SMALL), list(range(59, -1, -1)))
    holder: Any = Numbers(60)
    holder.lengths = shuffled.tolist()
    for dataset, theirs, surely in ((data, shuffled, True), (subset, SMALL[::-1], True), (holder, shuffled, False)):
        i = int(np.argmax(theirs > SMALL if surely else theirs != SMALL))
        refuses(
            DataLoader(dataset, batch_sampler=make()),
            f"loader.dataset.lengths[{i}] = {theirs[i]} is not lengths[{i}] = {SMALL[i]} of the sampler; build it from "
            "the lengths of this data set, in its order",
        )
    check_loader(DataLoader(preloaded(SMALL), batch_sampler=make(SMALL + 1), collate_fn=data.collate))
    holder.lengths = [1.5] * 60
    check_loader(DataLoader(holder, batch_sampler=make()))


def test_batches_are_compared_with_the_plan_on_request() -> None:
    first = at_epoch(make(), 0)[0]
    longest = int(SMALL[first].max())

    def loader(data: Any, sampler: Any, collate: Any) -> Any:
        return DataLoader(data, batch_sampler=sampler, collate_fn=collate)

    stored_padded = loader(rows(SMALL, width=80), make(), PadCollator(attention_mask=None))
    check_loader(stored_padded)
    refuses(
        stored_padded,
        f"batch 0 (samples {first[0]}, ...) has input_ids of shape ({len(first)}, 80), the plan has "
        f"({len(first)}, {longest}); store rows without padding, and plan with the lengths and the pad_to_multiple_of "
        "that the collator sees",
        n_batches=1,
    )
    with_mask = loader(rows(SMALL, width=80), make(), PadCollator())
    refuses(
        with_mask,
        f"batch 0 (samples {first[0]}, ...) has 80 tokens of sample {first[0]}, lengths[{first[0]}] = "
        f"{SMALL[first[0]]}; build the sampler from the lengths of this data set, in its order",
        n_batches=1,
    )
    with pytest.raises(ValueError, match=r"^n_batches = -1 is outside"):
        check_loader(with_mask, n_batches=-1)


def test_comparing_batches_takes_none_from_the_loader() -> None:
    sampler = make()
    loader: Any = DataLoader(rows(SMALL), batch_sampler=sampler, collate_fn=PadCollator(lengths=True))  # type: ignore[arg-type]
    sampler.resume(1, 3)
    before = sampler.state_dict()
    check_loader(loader, n_batches=10_000)
    assert sampler.state_dict() == before
    trained = [SMALL[batch].tolist() for batch in at_epoch(make(), 1)[3:]]
    assert [batch["lengths"].tolist() for batch in loader] == trained
