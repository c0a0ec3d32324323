"""`BucketBatchSampler` under the plain `DataLoader`, and every mistake: LOADER_CONTRACT.md, lines 1 to 15, 44, 45."""

from __future__ import annotations

import copy
import pickle
import random
import re
import subprocess
import sys
import threading
import time
from itertools import islice
from typing import Any

import numpy as np
import pytest
from conftest import uneven_lengths
from samplers import (
    SMALL,
    WORKERS,
    Numbers,
    after,
    at_epoch,
    every_sample,
    in_step_order,
    line,
    loader_of,
    make,
    ranks,
)

torch = pytest.importorskip("torch")

from bucketshuffle.torch import BucketBatchSampler, PadCollator, check_loader  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler  # noqa: E402


@line(1)
@pytest.mark.parametrize(
    ("workers", "method"),
    [("0", None), ("1", "fork"), ("2", "fork"), ("2 persistent", "fork"), ("1", "spawn"), ("1", "forkserver")],
)
def test_a_data_loader_takes_it(workers: str, method: str | None) -> None:
    sampler = make()
    loader = loader_of(sampler, workers=workers, multiprocessing_context=method)
    assert len(loader) == len(sampler)
    assert loader.batch_size is None
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert list(loader) == at_epoch(make(), epoch)


@line(2)
def test_batches_are_fresh_lists_of_python_ints() -> None:
    sampler = make()
    batches = list(sampler) + list(sampler)
    assert all(type(batch) is list and batch for batch in batches)
    assert all(type(i) is int and 0 <= i < len(SMALL) for batch in batches for i in batch)
    assert len({id(batch) for batch in batches}) == len(batches)


@line(3)
def test_an_iterator_that_is_never_advanced_takes_nothing(n_plans: list[int]) -> None:
    sampler = make()
    sampler.load_state_dict(after(make(), 2))
    unused, used = iter(sampler), iter(sampler)
    assert n_plans == [0]  # Of the sampler that made the state.
    assert list(used) == list(make())[2:]
    assert unused is not used


@line(4)
def test_two_live_iterators_have_positions_of_their_own(n_plans: list[int]) -> None:
    sampler = make()
    first, second = iter(sampler), iter(sampler)
    batches = [next(first), next(first), next(second), next(first)]
    whole = list(make())
    assert batches == [whole[0], whole[1], whole[0], whole[2]]
    assert [*second] == whole[1:]
    assert n_plans == [0, 0], "both passes share one plan"


@line(5)
def test_a_pass_begins_at_the_start_after_an_abandoned_and_after_a_whole_one() -> None:
    sampler = make()
    whole = list(make())
    assert list(islice(sampler, 3)) == whole[:3]
    assert list(sampler) == whole
    assert list(sampler) == whole


@line(6)
def test_the_epoch_never_advances_by_itself() -> None:
    sampler = make()
    sampler.set_epoch(4)
    assert list(sampler) == list(sampler)
    assert sampler.epoch == 4


@line(7)
@pytest.mark.parametrize("workers", WORKERS)
def test_set_epoch_changes_what_is_in_a_batch_and_the_order(workers: str) -> None:
    sampler = make()
    loader = loader_of(sampler, workers=workers)
    passes = []
    for epoch in (0, 1, 1):
        sampler.set_epoch(epoch)
        sampler.set_epoch(epoch)
        passes.append(list(loader))
    assert passes[1] == passes[2]
    assert {tuple(sorted(batch)) for batch in passes[0]} != {tuple(sorted(batch)) for batch in passes[1]}
    sizes = [[SMALL[batch].max() for batch in batches] for batches in passes]
    assert sizes[0] != sizes[1]


@line(7)
@pytest.mark.parametrize("epoch", [np.int64(5), np.uint8(5), torch.tensor(5), 2**31, 2**64 - 1])
def test_set_epoch_takes_any_integer(epoch: Any) -> None:
    assert at_epoch(make(), epoch) == at_epoch(make(), int(epoch))


@line(8)
def test_len_is_what_every_epoch_yields() -> None:
    for seed in range(20):
        for sampler in ranks(2, seed=seed):
            n_batches = len(sampler)
            for epoch in range(20):
                batches = iter(sampler)
                sampler.set_epoch(epoch)
                assert len([None for _ in batches if len(sampler) == n_batches]) == n_batches
    assert len({len(sampler) for sampler in ranks(4)}) == 1


@line(8)
def test_len_plans_nothing(n_plans: list[int]) -> None:
    assert len(make()) > 0
    assert n_plans == []


@line(9, 17)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_together_the_ranks_train_every_sample_once(real_lengths: np.ndarray, world_size: int) -> None:
    samplers = [
        BucketBatchSampler(
            real_lengths, token_budget=16_384, overlong="drop", empty="drop", rank=rank, world_size=world_size
        )
        for rank in range(world_size)
    ]
    admitted = np.setdiff1d(np.arange(len(real_lengths)), samplers[0].dropped)
    assert np.array_equal(samplers[0].dropped, np.flatnonzero((real_lengths == 0) | (real_lengths > 16_384)))
    for epoch in range(6):
        batches = in_step_order([at_epoch(sampler, epoch) for sampler in samplers])
        assert len(batches) == world_size * len(samplers[0])
        assert np.array_equal(every_sample(batches), admitted)


@line(9)
def test_samples_with_few_loss_tokens_are_left_out_and_reported() -> None:
    loss_tokens = np.minimum(SMALL, 5)
    lengths = SMALL.copy()
    lengths[:2], loss_tokens[:2] = (0, 500), 0
    lengths[20] = 500
    sampler = make(lengths, loss_tokens=loss_tokens, min_loss_tokens=5, overlong="drop")
    left_out = np.union1d(np.flatnonzero(loss_tokens < 5), [20])
    assert sampler.dropped.tolist() == left_out.tolist()
    assert every_sample(list(sampler)) == np.setdiff1d(np.arange(60), left_out).tolist()
    batches = list(sampler)
    reported = sampler.steps().loss_tokens
    assert reported is not None
    assert reported[:, 0].tolist() == [loss_tokens[batch].sum() for batch in batches]


def legacy() -> list[int]:
    state: Any = np.random.get_state()  # noqa: NPY002
    return [*state[1].tolist(), state[2]]


@line(10)
def test_the_random_state_of_the_caller_is_neither_used_nor_changed() -> None:
    passes = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        before = random.getstate(), legacy(), torch.get_rng_state().tolist()
        passes.append(at_epoch(make(), 2))
        assert before == (random.getstate(), legacy(), torch.get_rng_state().tolist())
    assert passes[0] == passes[1]


@line(11)
def test_a_copy_yields_the_same_batches_and_carries_no_plan() -> None:
    sampler = make(np.tile(SMALL, 500))
    fresh = len(pickle.dumps(sampler))
    whole = at_epoch(sampler, 2)
    pickled = pickle.dumps(sampler)
    assert len(pickled) - fresh < 100
    assert len(pickled) < sampler.lengths.nbytes + 2_000
    for copied in (pickle.loads(pickled), copy.deepcopy(sampler), copy.copy(sampler)):
        assert list(copied) == whole
        assert copied.state_dict() == {**sampler.state_dict(), "position": 0}


@line(11)
def test_a_copy_resumes_where_the_original_would() -> None:
    sampler = make()
    sampler.resume(1, 3)
    assert list(pickle.loads(pickle.dumps(sampler))) == at_epoch(make(), 1)[3:]


@line(11)
def test_repr_tells_the_configuration() -> None:
    assert repr(make(rank=1, world_size=2, accumulation_steps=3, balance_ranks=True)) == (
        "BucketBatchSampler(n_samples=60, seed=3, rank=1, world_size=2, accumulation_steps=3, window=6, "
        "balance_ranks=True, worst_first=False, boundaries=[0, 8, 20, 40], token_budget=60)"
    )


@line(12)
def test_it_is_a_torch_batch_sampler_with_room_for_attributes() -> None:
    sampler: Any = make()
    assert isinstance(sampler, Sampler)
    assert isinstance(sampler, BatchSampler)
    sampler.anything = 1
    assert vars(sampler)["anything"] == 1


@line(13)
def test_the_core_plans_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import bucketshuffle as b; print(len(b.pack_epoch([3, 4], 0)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


@line(14)
def test_other_threads_run_while_an_epoch_is_planned() -> None:
    lengths = uneven_lengths(1_000_000)
    sampler = BucketBatchSampler(lengths, threads=1)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    sampler.schedule.batches(0)
    end = time.perf_counter()
    done.set()
    thread.join()
    # With the lock held throughout there would be one tick at most.
    assert sum(start < at < end for at in ticks) > 10


class Rows(Dataset):
    def __len__(self) -> int:
        return len(SMALL)

    def __getitem__(self, sample: int) -> dict[str, list[int]]:
        return {"input_ids": [sample] * int(SMALL[sample])}


@line(15)
def test_forked_workers_collate_after_the_parent_planned_with_threads() -> None:
    sampler = BucketBatchSampler(SMALL, token_budget=120, threads=4)
    whole = list(sampler)
    loader: Any = DataLoader(
        Rows(), batch_sampler=sampler, collate_fn=PadCollator(), num_workers=2, multiprocessing_context="fork"
    )
    assert [batch["input_ids"][:, 0].tolist() for batch in loader] == whole


@line(44)
@pytest.mark.parametrize("kind", ["list", "uint16", "torch", "pandas", "arrow", "hugging face"])
def test_lengths_come_in_every_form(kind: str) -> None:
    lengths: Any = SMALL
    if kind == "list":
        lengths = SMALL.tolist()
    elif kind == "uint16":
        lengths = np.repeat(SMALL.astype(np.uint16), 2)[::2]
    elif kind == "torch":
        lengths = torch.from_numpy(SMALL)
    elif kind == "pandas":
        lengths = pytest.importorskip("pandas").Series(SMALL)
    elif kind == "arrow":
        lengths = pytest.importorskip("pyarrow").chunked_array([SMALL[:7], SMALL[7:]])
    else:
        datasets = pytest.importorskip("datasets")
        dataset = datasets.Dataset.from_dict({"length": SMALL[::-1].tolist()}).select(range(59, -1, -1))
        lengths = dataset["length"]
    assert list(make(lengths)) == list(make())
    assert make(lengths).fingerprint == make().fingerprint


@line(45)
def test_a_data_set_of_another_size_is_found() -> None:
    message = (
        "loader.dataset has 61 samples, the sampler was built from 60 lengths; build it from the lengths of this data "
        "set, in its order"
    )
    loader: Any = DataLoader(Numbers(61), batch_sampler=make())
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_loader(loader)
    check_loader(loader_of(make()))


MAX = 2**63 - 1
IN_RANGE = "choose a value in that range"


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        ({"rank": 1}, ValueError, "rank is given without world_size; pass both, or neither"),
        ({"world_size": 1}, ValueError, "world_size is given without rank; pass both, or neither"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank = 2 is not below world_size = 2; ranks count from 0"),
        ({"rank": -1, "world_size": 2}, ValueError, f"rank = -1 is outside [0, {MAX}]; {IN_RANGE}"),
        (
            {"rank": 1, "world_size": 2, "sampler": DistributedSampler(Numbers(9), num_replicas=2, rank=0)},
            ValueError,
            "rank = 1, world_size = 2 differ from those of sampler = (0, 2); leave one of them out",
        ),
        ({"seed": -1}, ValueError, f"seed = -1 is outside [0, {2**64 - 1}]; {IN_RANGE}"),
        (
            {"seed": 2**64},
            ValueError,
            f"seed = {2**64} is outside [0, {2**64 - 1}]; {IN_RANGE}",
        ),
        ({"seed": 1.0}, TypeError, "seed = 1.0 is not an integer"),
        ({"seed": True}, TypeError, "seed = True is not an integer"),
        (
            {"accumulation_steps": 0},
            ValueError,
            f"accumulation_steps = 0 is outside [1, {MAX}]; {IN_RANGE}",
        ),
        (
            {"window": 3, "accumulation_steps": 2},
            ValueError,
            "window = 3 is not a multiple of world_size * accumulation_steps = 2; leave window out, or set it to a "
            "multiple",
        ),
        (
            {"constant_count": False},
            TypeError,
            "constant_count is not an option of the sampler; it always plans the same number of batches for every "
            "epoch; leave it out",
        ),
        ({"align_ranks": 2}, TypeError, "align_ranks is not an option of the sampler; use balance_ranks=True"),
        ({"balance_ranks": 8}, TypeError, "balance_ranks = 8 is not True or False"),
        ({"balance_ranks": "no"}, TypeError, "balance_ranks = 'no' is not True or False"),
        ({"worst_first": 2}, TypeError, "worst_first = 2 is not True or False"),
        ({"min_loss_tokens": -1}, ValueError, f"min_loss_tokens = -1 is outside [0, {MAX}]; {IN_RANGE}"),
        ({"window": "8"}, TypeError, "window = '8' is not an integer"),
        (
            {"lengths": []},
            ValueError,
            "lengths has 0 samples, fewer than the 1 that a sampler needs; pass the lengths of the data set",
        ),
        (
            {"lengths": [50, 60], "token_budget": 40, "overlong": "drop"},
            ValueError,
            "lengths has 2 samples, all left out by overlong, empty or min_loss_tokens; raise token_budget, or lower "
            "min_loss_tokens",
        ),
        (
            {"loss_tokens": [1] * 60, "min_loss_tokens": 2},
            ValueError,
            "lengths has 60 samples, all left out by overlong, empty or min_loss_tokens; raise token_budget, or lower "
            "min_loss_tokens",
        ),
        (
            {"min_loss_tokens": 1},
            ValueError,
            "min_loss_tokens = 1 is given without loss_tokens; pass both, or neither",
        ),
        (
            {"loss_tokens": [1, 2]},
            ValueError,
            "loss_tokens has 2 samples, lengths has 60; pass one value for each sample",
        ),
        (
            {"lengths": [5, 5], "loss_tokens": [5, 6]},
            ValueError,
            "loss_tokens[1] = 6 exceeds lengths[1] = 5; pass the supervised tokens of each sample",
        ),
        (
            {"lengths": [5, 5, 500], "loss_tokens": [0, 5, 5], "min_loss_tokens": 1},
            ValueError,
            'lengths[2] = 500 exceeds token_budget = 60; raise token_budget, or set overlong="drop" or "keep" (1 of '
            "2 samples are over-long, the longest is 500)",
        ),
        (
            {"lengths": [5, 5, 5], "rank": 0, "world_size": 4},
            ValueError,
            "constant_count with window = 4 asks for 4 batches, more than the 3 samples; lower window (in a sampler: "
            "world_size * accumulation_steps), or plan more samples",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_a_mistake_is_named_at_construction(mistake: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make(**mistake)
