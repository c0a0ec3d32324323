"""`BucketBatchSampler` under the real loaders: the checklist of LOADER_CONTRACT.md, lines 1 to 28, 44 and 45.

`line(n)` names the line that a test is for. The trainers (lines 29 to 43) are in test_trainers.py.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import chain, islice, product
from typing import Any

import numpy as np
import pytest
from conftest import uneven_lengths

torch = pytest.importorskip("torch")

from bucketshuffle import pack_epoch  # noqa: E402
from bucketshuffle.torch import BucketBatchSampler, PadCollator, check_loader  # noqa: E402
from bucketshuffle.torch import sampler as module  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler  # noqa: E402

SMALL = uneven_lengths(60, longest=40)
OPTIONS: dict[str, Any] = {"token_budget": 60, "boundaries": [0, 8, 20, 40], "seed": 3}

Batches = list[list[int]]
line: Callable[..., pytest.MarkDecorator] = pytest.mark.contract


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


WORKERS = ["0", "2", "2 persistent"]


# A. Plain DataLoader


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
    assert repr(make(rank=1, world_size=2, accumulation_steps=3, align_ranks=True)) == (
        "BucketBatchSampler(n_samples=60, seed=3, rank=1, world_size=2, accumulation_steps=3, window=6, "
        "align_ranks=True, worst_first=False, boundaries=[0, 8, 20, 40], token_budget=60)"
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
    sampler._batches(0, sampler._course)
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


# B. Ranks


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
        make(accumulation_steps=2, align_ranks=True, rank=0, world_size=2),
        make(loss_tokens=SMALL, min_loss_tokens=10),
    ]
    assert len({sampler.fingerprint for sampler in others}) == len(others)


# C. State


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


@line(20)
def test_a_state_is_small_plain_and_the_same_on_all_ranks() -> None:
    samplers = ranks(3, worst_first=True, align_ranks=True, loss_tokens=SMALL, min_loss_tokens=2, overlong="drop")
    states = [begun_on(sampler, 2, 2) for sampler in samplers]
    assert states[0] == states[1] == states[2]
    assert len(json.dumps(states[0])) < 1_000
    assert states[0]["position"] == 6
    assert not {"rank", "world_size"} & set(states[0])
    assert samplers[0].state_dict() is not samplers[0].state_dict()
    assert samplers[0].state_dict()["identity"] is not samplers[0].state_dict()["identity"]


@line(21)
def test_loading_leaves_the_state_as_it_is() -> None:
    state = after(make(), 2)
    before = copy.deepcopy(state)
    make(rank=0, world_size=3).load_state_dict(state)
    assert state == before


@line(21)
def test_unknown_keys_are_ignored_with_a_warning() -> None:
    sampler = make()
    message = "bucketshuffle: state has unknown keys, which are ignored: later, other"
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        sampler.load_state_dict({**after(make(), 2), "other": 1, "later": 2})
    assert list(sampler) == list(make())[2:]


@line(21)
@pytest.mark.parametrize("key", ["version", "epoch", "position", "window", "align_ranks", "deals", "identity"])
def test_a_missing_key_is_named(key: str) -> None:
    state = after(make(), 2)
    del state[key]
    with pytest.raises(ValueError, match=f"^state has no '{key}'; pass what state_dict of this sampler returned$"):
        make().load_state_dict(state)


@line(21)
def test_a_state_of_another_plan_is_refused_by_name() -> None:
    saved = make(seed=4, token_budget=61, max_batch_size=9)
    message = (
        "state is of another plan: seed = 3 (saved with 4), token_budget = 60 (saved with 61), max_batch_size = None "
        "(saved with 9); build the sampler as it was when the state was saved, or begin the epoch anew with set_epoch"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make().load_state_dict(after(saved, 2))


@line(21)
def test_an_option_given_as_its_default_is_the_option_left_out() -> None:
    sampler, other = BucketBatchSampler(SMALL), BucketBatchSampler(SMALL, **module._DEFAULTS, threads=2)
    assert pack_epoch(SMALL, 0, **module._DEFAULTS) == pack_epoch(SMALL, 0)
    assert sampler.fingerprint == other.fingerprint
    sampler.load_state_dict(after(other, 1))
    equal = make(boundaries=np.array([0, 8, 20, 40], np.uint16), token_budget=np.int64(60))
    make().load_state_dict(after(equal, 1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"version": 2},
            "state['version'] = 2 is not 1; load it with the version of bucketshuffle that saved it",
        ),
        (
            {"position": 10_000},
            f"state['position'] = 10000 exceeds the {N} batches of the epoch; pass what state_dict of this sampler "
            "returned",
        ),
        ({"position": -1}, "state['position'] = -1 is below its minimum = 0; choose 0 or more"),
        ({"window": 0}, "state['window'] = 0 is below its minimum = 1; choose 1 or more"),
        ({"deals": [[1, 0]]}, "state['deals'] = 0 is below its minimum = 1; choose 1 or more"),
        ({"epoch": 2**64}, f"state['epoch'] = {2**64} exceeds its maximum = {2**64 - 1}; choose {2**64 - 1} or less"),
    ],
)
def test_a_state_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make().load_state_dict({**after(make(), 2), **changed})


@line(22)
@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_data_loader_resumes_at_every_position(workers: str, epoch: int) -> None:
    whole = at_epoch(make(), epoch)
    positions = range(N + 1) if workers == "0" else (0, 1, N // 2, N - 1, N)
    sampler = make()
    loader = loader_of(sampler, workers=workers)
    for position in positions:
        sampler.load_state_dict(begun_on(make(), epoch, position))
        assert list(loader) == whole[position:]
        assert list(loader) == whole, "the resume is taken once"
        sampler.resume(epoch, position)
        assert list(loader) == whole[position:]


def from_stateful(workers: str, epoch: int, position: int) -> tuple[Any, BucketBatchSampler]:
    """A new StatefulDataLoader that has loaded the state of another after `position` batches."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    first = make()
    loader = loader_of(first, StatefulDataLoader, workers)
    first.set_epoch(epoch)
    batches = iter(loader)
    for _ in range(position):
        next(batches)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    del batches
    sampler = make()
    resumed = loader_of(sampler, StatefulDataLoader, workers)
    resumed.load_state_dict(state)
    return resumed, sampler


@line(22, 24)
@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_stateful_data_loader_resumes_at_every_position(workers: str, epoch: int) -> None:
    pytest.importorskip("torchdata")
    whole = at_epoch(make(), epoch)
    positions = range(N + 1) if workers == "0" else (0, 1, N // 2, N)
    for position in positions:
        loader, sampler = from_stateful(workers, epoch, position)
        sampler.set_epoch(epoch)
        assert list(loader) == whole[position:]
        sampler.set_epoch(epoch + 1)
        assert list(loader) == at_epoch(make(), epoch + 1)


@line(22)
@pytest.mark.parametrize("epoch", [0, 3])
def test_torchdata_nodes_resume_at_every_position(epoch: int) -> None:
    nodes = pytest.importorskip("torchdata.nodes")

    def pipeline() -> Any:
        sampler = make()
        return nodes.Loader(nodes.Mapper(nodes.SamplerWrapper(sampler, initial_epoch=epoch), as_is))

    whole = at_epoch(make(), epoch)
    for position in range(N + 1):
        loader = pipeline()
        batches = iter(loader)
        for _ in range(position):
            next(batches)
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        loader = pipeline()
        loader.load_state_dict(state)
        # At the end it goes on to the next epoch, since its `restart_on_stop_iteration` is on.
        assert list(loader) == (whole[position:] or at_epoch(make(), epoch + 1))


@line(23)
def test_after_the_last_batch_one_empty_pass_then_a_whole_one() -> None:
    whole = list(make())
    sampler = make()
    sampler.load_state_dict(after(make(), N))
    assert list(sampler) == []
    assert list(sampler) == whole


@line(23)
def test_after_the_end_of_a_pass_a_whole_one() -> None:
    finished = make()
    whole = list(finished)
    sampler = make()
    sampler.load_state_dict(finished.state_dict())
    assert list(sampler) == whole


@line(23)
@pytest.mark.parametrize("workers", WORKERS)
def test_a_stateful_data_loader_at_the_end_loses_no_epoch(workers: str) -> None:
    pytest.importorskip("torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    first = make()
    loader = loader_of(first, StatefulDataLoader, workers)
    whole = list(loader)
    resumed = make()
    again = loader_of(resumed, StatefulDataLoader, workers)
    again.load_state_dict(loader.state_dict())
    passes = [list(again), list(again)]
    assert next(batches for batches in passes if batches) == whole


@line(24)
def test_resumes_inside_one_epoch_stay_aligned() -> None:
    whole = at_epoch(make(), 1)
    sampler = make()
    sampler.set_epoch(1)
    done = 0
    for n_batches in (2, 3, 1):
        batches = iter(sampler)
        assert [next(batches) for _ in range(n_batches)] == whole[done : done + n_batches]
        done += n_batches
        state = json.loads(json.dumps(sampler.state_dict()))
        sampler = make()
        sampler.load_state_dict(state)
    sampler.set_epoch(1)
    assert list(sampler) == whole[done:]
    sampler.set_epoch(2)
    assert list(sampler) == at_epoch(make(), 2)


@line(25)
def test_workers_run_ahead_of_the_state_and_the_count_of_the_trainer_does_not() -> None:
    sampler = make()
    batches = iter(loader_of(sampler, workers="2", prefetch_factor=2))
    whole = list(make())
    delivered = [next(batches) for _ in range(3)]
    assert delivered == whole[:3]
    assert sampler.state_dict()["position"] == 3 + 2 * 2
    del batches
    sampler.resume(0, len(delivered))
    assert list(sampler) == whole[3:]


@line(26)
@pytest.mark.parametrize(("saved_on", "loaded_on"), list(product([1, 2, 3, 4], repeat=2)))
@pytest.mark.parametrize("options", [{}, {"worst_first": True, "align_ranks": True, "accumulation_steps": 2}])
def test_the_rest_of_an_epoch_is_dealt_to_other_ranks(saved_on: int, loaded_on: int, options: dict[str, Any]) -> None:
    begun = ranks(saved_on, **options)
    whole = in_step_order([at_epoch(sampler, 1) for sampler in begun])
    samplers = ranks(loaded_on, **options)
    for step in range(len(begun[0]) + 1):
        state = begun_on(begun[-1], 1, step)
        done = step * saved_on
        remaining = every_sample(whole[done:])
        n_needed = -(-(len(whole) - done) // samplers[0].window) * samplers[0].window
        if step == 0:
            n_needed = len(samplers[0]) * loaded_on  # Nothing was trained: the epoch is planned for the ranks of today.
        if n_needed > len(remaining):
            message = (
                f"the rest of the epoch has {len(remaining)} samples, fewer than the {n_needed} batches that "
                f"world_size * accumulation_steps = {samplers[0].window} needs; resume on fewer ranks, or begin the "
                "next epoch"
            )
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                samplers[0].load_state_dict(state)
            continue
        for sampler in samplers:
            sampler.load_state_dict(state)
        reported = samplers[0].steps()
        rest = in_step_order([list(sampler) for sampler in samplers])
        assert all(rest)
        assert every_sample(rest) == remaining
        assert len(rest) == n_needed
        assert reported.n_samples.ravel().tolist() == [len(batch) for batch in rest]
        assert reported.real_tokens.ravel().tolist() == [SMALL[batch].sum() for batch in rest]
        assert reported.padded_lengths.ravel().tolist() == [SMALL[batch].max() for batch in rest]
        for sampler, fresh in zip(samplers, ranks(loaded_on, **options), strict=True):
            assert at_epoch(sampler, 2) == at_epoch(fresh, 2), "the next epoch is planned for the ranks of today"


@line(26)
def test_an_epoch_moves_between_numbers_of_ranks_twice() -> None:
    done: Batches = []
    state: dict[str, Any] | None = None
    for world_size, n_steps in ((2, 3), (3, 1), (4, 1), (1, 2), (2, None)):
        samplers = ranks(world_size)
        for sampler in samplers:
            sampler.set_epoch(1) if state is None else sampler.load_state_dict(state)
        passes = [iter(sampler) for sampler in samplers]
        done += in_step_order([list(islice(batches, n_steps)) for batches in passes])
        states = [json.loads(json.dumps(sampler.state_dict())) for sampler in samplers]
        assert all(other == states[0] for other in states)
        state = states[0]
        assert len(json.dumps(state)) < 1_000
    assert every_sample(done) == list(range(60))


@line(26)
def test_a_rest_with_too_few_samples_is_refused() -> None:
    sampler = BucketBatchSampler([5, 5, 5, 5], token_budget=5)
    message = (
        "the rest of the epoch has 1 samples, fewer than the 2 batches that world_size * accumulation_steps = 2 needs; "
        "resume on fewer ranks, or begin the next epoch"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        BucketBatchSampler([5, 5, 5, 5], token_budget=5, rank=0, world_size=2).load_state_dict(after(sampler, 3))


@line(26)
def test_splitting_a_rest_leaves_no_batch_empty() -> None:
    """Parts of a batch of 3 in 2 are not as small as a batch of 1."""
    sampler = BucketBatchSampler([9, 1, 1, 1], token_budget=9, boundaries=[0, 1, 9])
    assert {len(batch) for batch in sampler} == {1, 3}
    batches = module.Batches.of(sampler._planner(sampler._course).plan(0, 0))
    for multiple in (1, 2, 3, 4):
        dealt = batches.dealt(0, multiple, sampler.lengths, 1)
        assert len(dealt) == max(2, multiple)
        assert dealt.sizes.min() > 0


@line(27)
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_state_goes_round_before_the_first_batch_and_after_a_load(world_size: int) -> None:
    sampler = make()
    sampler.set_epoch(2)
    unbegun = make()
    unbegun.load_state_dict(sampler.state_dict())
    assert unbegun.state_dict() == sampler.state_dict()
    assert list(unbegun) == at_epoch(make(), 2)
    loaded = make(rank=0, world_size=world_size)
    loaded.load_state_dict(begun_on(make(), 1, 4))
    again = make(rank=0, world_size=world_size)
    again.load_state_dict(loaded.state_dict())
    assert again.state_dict() == loaded.state_dict() == iter(again).state_dict()
    assert list(again) == list(loaded)


@line(28)
def test_resuming_costs_one_plan_wherever_it_begins(n_plans: list[int]) -> None:
    lengths = np.ones(60_000, np.int32)
    for done in (5, 50_000):
        sampler = BucketBatchSampler(lengths, token_budget=1)
        sampler.resume(0, done)
        assert len(next(iter(sampler))) == 1
    assert n_plans == [0, 0]


def test_another_epoch_before_a_resume_has_begun_is_ignored_until_reset() -> None:
    sampler = make()
    sampler.resume(2, 3)
    message = (
        "bucketshuffle: set_epoch(0) is ignored, since the sampler is about to resume epoch 2; call reset() first to "
        "give the resume up"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        sampler.set_epoch(0)
    sampler.set_epoch(2)
    assert sampler.state_dict()["position"] == 3
    sampler.reset()
    sampler.set_epoch(0)
    assert list(sampler) == at_epoch(make(), 0)


def test_a_finished_epoch_gives_way_to_the_next() -> None:
    """CASES R07: a checkpoint at the end of an epoch skips no epoch."""
    sampler = make()
    sampler.load_state_dict(begun_on(make(), 1, N))
    sampler.set_epoch(2)
    assert list(sampler) == at_epoch(make(), 2)
    sampler.resume(1, N)
    with pytest.warns(UserWarning, match=r"^bucketshuffle: set_epoch\(0\) is ignored"):
        sampler.set_epoch(0)
    assert list(sampler) == []


# What every rank knows of every step


@pytest.mark.parametrize("worst_first", [False, True])
def test_steps_tell_what_each_rank_trains(worst_first: bool) -> None:
    samplers = ranks(3, accumulation_steps=2, worst_first=worst_first, pad_to_multiple_of=8, loss_tokens=SMALL // 2)
    for epoch in (0, 1):
        steps = samplers[0].steps(epoch)
        assert steps.loss_tokens is not None
        for rank, sampler in enumerate(samplers):
            batches = at_epoch(sampler, epoch)
            assert steps.n_samples[:, rank].tolist() == [len(batch) for batch in batches]
            assert steps.real_tokens[:, rank].tolist() == [SMALL[batch].sum() for batch in batches]
            assert steps.loss_tokens[:, rank].tolist() == [(SMALL // 2)[batch].sum() for batch in batches]
            assert steps.padded_lengths[:, rank].tolist() == [-(-SMALL[batch].max() // 8) * 8 for batch in batches]
            edges = np.array([0, 8, 20, 40])[steps.buckets[:, rank]]
            assert all(SMALL[batch].min() > edge for batch, edge in zip(batches, edges, strict=True))


def test_the_worst_windows_come_first_and_each_window_is_as_it_was() -> None:
    plain, led = make(window=4), make(window=4, worst_first=True)
    for epoch in range(3):
        whole, batches = at_epoch(plain, epoch), at_epoch(led, epoch)
        windows = [whole[i : i + 4] for i in range(0, len(whole), 4)]
        led_windows = [batches[i : i + 4] for i in range(0, len(batches), 4)]
        assert sorted(windows) == sorted(led_windows)
        heavy = {batch.step // 4 for batch in led.heaviest()}
        assert heavy == set(range(len(heavy)))
        costs = [len(batch) * SMALL[batch].max() for batch in batches]
        assert led.heaviest()[0].step == int(np.argmax(costs))


@pytest.mark.parametrize("align_ranks", [False, True])
def test_loss_tokens_are_even_over_the_windows_and_nothing_else_changes(align_ranks: bool) -> None:
    lengths = uneven_lengths(4000, longest=400)
    loss_tokens = np.random.default_rng(0).integers(0, lengths + 1)
    shape: dict[str, Any] = {"token_budget": 600, "rank": 0, "world_size": 2, "accumulation_steps": 8}
    shape |= {"boundaries": "auto", "align_ranks": align_ranks}
    plain, even = make(lengths, **shape), make(lengths, **shape, loss_tokens=loss_tokens)
    for epoch in range(3):
        sums = []
        for sampler in (plain, even):
            batches = sampler._batches(epoch, sampler._course)
            sums.append(batches.sums(loss_tokens).reshape(-1, 16).sum(1))
        # 16 independent batches: the deviation of a sum is 4 times a batch's; the exchange leaves a fraction of that.
        assert np.std(sums[1]) < np.std(sums[0]) / (2 if align_ranks else 4)
        before, after = plain.steps(epoch), even.steps(epoch)
        one, other = plain._batches(epoch, plain._course), even._batches(epoch, even._course)
        pairs = [[tuple(part) for part in np.split(b.indices, b.offsets[1:-1])] for b in (one, other)]
        assert sorted(pairs[0]) == sorted(pairs[1])
        assert pairs[0] != pairs[1]
        # A place keeps its stratum: the k-th longest step of a window stays in the range of all k-th longest.
        strata = [
            np.sort(s.padded_lengths.max(1).reshape(-1, 8), axis=1)
            if align_ranks
            else np.sort(s.padded_lengths.reshape(-1, 16), axis=1)
            for s in (before, after)
        ]
        assert np.array_equal(np.sort(strata[0], axis=0), np.sort(strata[1], axis=0))
        if align_ranks:
            steps = [sorted(map(tuple, np.sort(s.padded_lengths, axis=1).tolist())) for s in (before, after)]
            assert steps[0] == steps[1]


@pytest.mark.parametrize(("window", "align_ranks"), [(1, 1), (4, 1), (6, 2), (8, 4)])
def test_loss_tokens_are_evened_as_the_order_contract_says(window: int, align_ranks: int) -> None:
    """docs/ORDER.md, step 7, in slow and obvious Python."""
    loss_tokens = np.random.default_rng(0).integers(0, SMALL + 1)
    options: dict[str, Any] = {"window": window, "world_size": align_ranks, "align_ranks": True}
    planned = in_step_order([list(make(rank=rank, **options)) for rank in range(align_ranks)])
    steps = [planned[i : i + align_ranks] for i in range(0, len(planned), align_ranks)]
    n_strata, n_windows = window // align_ranks, len(planned) // window

    def loss(step: Batches) -> int:
        return int(loss_tokens[every_sample(step)].sum())

    def by_length(place: int) -> tuple[int, int, int]:
        longest = [int(SMALL[batch].max()) for batch in steps[place]]
        return max(longest), max(len(b) * n for b, n in zip(steps[place], longest, strict=True)), place

    table = [sorted(range(t * n_strata, (t + 1) * n_strata), key=by_length) for t in range(n_windows)]
    columns = [[row[a] for row in table] for a in range(n_strata)]
    spread = [max(loss(steps[p]) for p in column) - min(loss(steps[p]) for p in column) for column in columns]
    first, *others = sorted(range(n_strata), key=lambda a: -spread[a])
    sums = [loss(steps[place]) for place in columns[first]]
    evened = list(steps)
    for a in others:
        least_first = sorted(range(n_windows), key=lambda t: sums[t])
        most_first = sorted(columns[a], key=lambda place: -loss(steps[place]))
        for t, place in zip(least_first, most_first, strict=True):
            evened[columns[a][t]] = steps[place]
            sums[t] += loss(steps[place])
    samplers = [make(rank=rank, loss_tokens=loss_tokens, **options) for rank in range(align_ranks)]
    assert in_step_order([list(sampler) for sampler in samplers]) == list(chain(*evened))


def test_loss_tokens_leave_windows_of_one_batch_alone() -> None:
    assert list(make(loss_tokens=SMALL // 2)) == list(make())


@pytest.mark.parametrize("worst_first", [False, True])
def test_a_run_with_loss_tokens_resumes_on_any_number_of_ranks(worst_first: bool) -> None:
    loss_tokens = np.random.default_rng(0).integers(0, SMALL + 1)
    options: dict[str, Any] = {"loss_tokens": loss_tokens, "window": 12, "worst_first": worst_first}
    whole = in_step_order([at_epoch(sampler, 1) for sampler in ranks(2, **options)])
    assert every_sample(whole) == list(range(60))
    for done, world_size in product(range(len(whole) // 2 - 3), (1, 2, 3, 4)):
        before = ranks(2, **options)
        for sampler in before:
            sampler.set_epoch(1)
            list(islice(sampler, done))
        after = ranks(world_size, **options)
        for sampler in after:
            sampler.load_state_dict(before[0].state_dict())
        rest = in_step_order([list(sampler) for sampler in after])
        assert every_sample(whole[: 2 * done] + rest) == list(range(60))
    other = make(**{**options, "loss_tokens": loss_tokens // 2})
    with pytest.raises(
        ValueError, match=r"^state is of another plan: loss_tokens = '\w{16}' \(saved with '\w{16}'\); "
    ):
        other.load_state_dict(make(**options).state_dict())


def test_heaviest_names_a_batch_of_a_rank() -> None:
    samplers = ranks(2)
    for heavy in samplers[0].heaviest(1):
        batch = at_epoch(samplers[heavy.rank], 1)[heavy.step]
        assert (heavy.n_samples, heavy.padded_length) == (len(batch), SMALL[batch].max())


# F. Input and mistakes


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


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        ({"rank": 1}, ValueError, "rank is given without world_size; pass both, or neither"),
        ({"world_size": 1}, ValueError, "world_size is given without rank; pass both, or neither"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank = 2 is not below world_size = 2; ranks count from 0"),
        ({"rank": -1, "world_size": 2}, ValueError, "rank = -1 is below its minimum = 0; choose 0 or more"),
        (
            {"rank": 1, "world_size": 2, "sampler": DistributedSampler(Numbers(9), num_replicas=2, rank=0)},
            ValueError,
            "rank = 1, world_size = 2 differ from those of sampler = (0, 2); leave one of them out",
        ),
        ({"seed": -1}, ValueError, "seed = -1 is below its minimum = 0; choose 0 or more"),
        (
            {"seed": 2**64},
            ValueError,
            f"seed = {2**64} exceeds its maximum = {2**64 - 1}; choose {2**64 - 1} or less",
        ),
        ({"seed": 1.0}, TypeError, "seed = 1.0 is not an integer; pass one"),
        ({"seed": True}, TypeError, "seed = True is not an integer; pass one"),
        (
            {"accumulation_steps": 0},
            ValueError,
            "accumulation_steps = 0 is below its minimum = 1; choose 1 or more",
        ),
        (
            {"window": 3, "accumulation_steps": 2},
            ValueError,
            "window = 3 is no multiple of world_size * accumulation_steps = 2; leave window out, or set it to a "
            "multiple",
        ),
        (
            {"constant_count": False},
            TypeError,
            "constant_count is not an option of the sampler, which always keeps the count; leave it out",
        ),
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


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "the environment has RANK alone of RANK and WORLD_SIZE; set both, or pass rank and world_size"),
        (
            {"WORLD_SIZE": "2"},
            "the environment has WORLD_SIZE alone of RANK and WORLD_SIZE; set both, or pass rank and world_size",
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


def test_more_batches_done_than_there_are_is_refused() -> None:
    message = f"batches_done = {N + 1} exceeds len(sampler) = {N}; pass the batches of one epoch"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make().resume(0, N + 1)
