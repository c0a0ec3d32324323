"""States and resumes on the same ranks: lines 20 to 25, 27 and 28 of LOADER_CONTRACT.md."""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import Any

import numpy as np
import pytest
from samplers import (
    SMALL,
    WORKERS,
    N,
    after,
    as_is,
    at_epoch,
    begun_on,
    line,
    loader_of,
    longest_of,
    make,
    ranks,
)

torch = pytest.importorskip("torch")

from bucketshuffle import ORDER_VERSION, Planner  # noqa: E402
from bucketshuffle.options import BatchOptions  # noqa: E402
from bucketshuffle.torch import BucketBatchSampler  # noqa: E402


@line(20)
def test_a_state_is_small_plain_and_the_same_on_all_ranks() -> None:
    samplers = ranks(3, worst_first=True, balance_ranks=True, loss_tokens=SMALL, min_loss_tokens=2, overlong="drop")
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
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$") as warned:
        sampler.load_state_dict({**after(make(), 2), "other": 1, "later": 2})
    assert warned[0].filename == __file__, "it points at the caller"
    assert list(sampler) == list(make())[2:]


@line(21)
@pytest.mark.parametrize("key", ["version", "epoch", "position", "window", "align_ranks", "divisions", "identity"])
def test_a_missing_key_is_named(key: str) -> None:
    state = after(make(), 2)
    del state[key]
    with pytest.raises(ValueError, match=f"^state has no '{key}'; pass what state_dict of this sampler returned$"):
        make().load_state_dict(state)


@line(21)
def test_every_option_of_the_order_is_named_in_a_state_of_another_plan() -> None:
    with pytest.raises(ValueError, match=r"^state is of another plan: worst_first = False \(saved with True\); build "):
        make().load_state_dict(after(make(worst_first=True), 2))


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
    defaults = {name: value for name, value in Planner(SMALL).options.items() if name in BatchOptions.__annotations__}
    sampler, other = BucketBatchSampler(SMALL), BucketBatchSampler(SMALL, **{**defaults, "threads": 2})
    assert "threads" in defaults
    assert sampler.fingerprint == other.fingerprint
    sampler.load_state_dict(after(other, 1))
    equal = make(boundaries=np.array([0, 8, 20, 40], np.uint16), token_budget=np.int64(60))
    make().load_state_dict(after(equal, 1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"version": 1},
            "state['version'] = 1 is not 2; load it with the version of bucketshuffle that saved it",
        ),
        (
            {"position": 10_000},
            f"state['position'] = 10000 exceeds the {N} batches of the epoch; pass what state_dict of this sampler "
            "returned",
        ),
        ({"position": -1}, f"state['position'] = -1 is outside [0, {2**63 - 1}]; choose a value in that range"),
        ({"window": 0}, f"state['window'] = 0 is outside [1, {2**63 - 1}]; choose a value in that range"),
        ({"align_ranks": 0}, f"state['align_ranks'] = 0 is outside [1, {2**63 - 1}]; choose a value in that range"),
        (
            {"divisions": [[-1, 2]]},
            f"state['divisions'] = -1 is outside [0, {2**63 - 1}]; choose a value in that range",
        ),
        ({"divisions": [[1, 0]]}, f"state['divisions'] = 0 is outside [1, {2**63 - 1}]; choose a value in that range"),
        ({"epoch": 2**64}, f"state['epoch'] = {2**64} is outside [0, {2**64 - 1}]; choose a value in that range"),
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
        if position < N:
            assert list(loader) == whole[position:]
            sampler.set_epoch(epoch)
            assert list(loader) == whole, "the resume is taken once"
        else:
            assert list(loader) == at_epoch(make(), epoch + 1)
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


ENDS = ["after the last batch", "after the end"]


def state_at_end(sampler: BucketBatchSampler, end: str) -> dict[str, Any]:
    return after(sampler, N) if end == "after the last batch" else (list(sampler) and sampler.state_dict())


@line(23)
@pytest.mark.parametrize("end", ENDS)
def test_a_state_at_the_end_of_an_epoch_is_that_of_the_start_of_the_next(end: str) -> None:
    trained = make()
    state = state_at_end(trained, end)
    assert (state["epoch"], state["position"]) == (1, 0)
    assert trained.epoch == 0, "the epoch never advances by itself"
    for epoch in (None, 1, 2):
        sampler = make()
        sampler.load_state_dict(state)
        assert sampler.epoch == 1
        if epoch is not None:
            sampler.set_epoch(epoch)
        assert list(sampler) == at_epoch(make(), epoch or 1)


@line(23)
def test_a_loop_that_begins_at_the_epoch_that_is_done_trains_none_twice() -> None:
    sampler = make()
    sampler.load_state_dict(after(make(), N))
    message = (
        "bucketshuffle: the state loaded is that of the end of epoch 0, which has no batches left; begin the loop at "
        "epoch 1, or call reset() before set_epoch(0)"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        sampler.set_epoch(0)
    assert list(sampler) == []
    sampler.set_epoch(1)
    assert list(sampler) == at_epoch(make(), 1)


@line(23)
def test_after_the_last_epoch_of_all_nothing_is_left() -> None:
    sampler = make()
    sampler.load_state_dict(begun_on(make(), 2**64 - 1, N))
    assert (sampler.epoch, list(sampler)) == (2**64 - 1, [])


@line(23)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("epoch", [None, 1, 0])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_stateful_data_loader_at_the_end_loses_no_epoch(workers: str, epoch: int | None, end: str) -> None:
    pytest.importorskip("torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = loader_of(make(), StatefulDataLoader, workers)
    batches = iter(loader)
    for _ in range(N):
        next(batches)
    if end == "after the end":
        assert list(batches) == []
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    del batches
    resumed = make()
    again = loader_of(resumed, StatefulDataLoader, workers)
    again.load_state_dict(state)
    if epoch is not None:
        resumed.set_epoch(epoch)
    if epoch == 0:
        with pytest.warns(UserWarning, match=r"^bucketshuffle: the state loaded is that of the end of epoch 0, which"):
            assert list(again) == (at_epoch(make(), 0) if end == "after the end" else [])
    else:
        assert list(again) == at_epoch(make(), 1)
    resumed.set_epoch(2)
    assert list(again) == at_epoch(make(), 2)


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
        "bucketshuffle: set_epoch(0) is ignored, because the sampler is about to resume epoch 2; call reset() first to "
        "cancel the resume"
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


def test_more_batches_done_than_there_are_is_refused() -> None:
    message = f"batches_done = {N + 1} exceeds len(sampler) = {N}; pass the batches of one epoch"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make().resume(0, N + 1)


@pytest.mark.parametrize("ask", ["resume", "steps", "heaviest", "set_epoch"])
@pytest.mark.parametrize("epoch", [-1, 2**64])
def test_an_epoch_that_cannot_be_is_named(ask: str, epoch: int) -> None:
    message = f"epoch = {epoch} is outside [0, {2**64 - 1}]; choose a value in that range"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        getattr(make(), ask)(*([epoch, 0] if ask == "resume" else [epoch]))


def test_a_negative_count_of_batches_is_named() -> None:
    message = f"batches_done = -1 is outside [0, {2**63 - 1}]; choose a value in that range"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make().resume(0, -1)


@line(25)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_count_of_batches_is_that_of_every_rank(world_size: int) -> None:
    whole = [at_epoch(sampler, 2) for sampler in ranks(world_size)]
    for done in range(len(whole[0]) + 1):
        for rank, sampler in enumerate(ranks(world_size)):
            sampler.resume(2, done)
            assert sampler.state_dict()["position"] == done * world_size
            assert list(sampler) == whole[rank][done:]


@pytest.mark.parametrize("resume", ["resume", "load_state_dict"])
def test_steps_and_heaviest_are_those_of_the_rest_until_the_pass_ends(resume: str) -> None:
    for done in range(N):
        sampler = make(quadratic_length=50, token_budget=100)
        other = make(quadratic_length=50, token_budget=100)
        whole = at_epoch(other, 1)
        if resume == "resume":
            sampler.resume(1, done)
        else:
            sampler.load_state_dict(begun_on(other, 1, done))
        rest = whole[done:]
        if not rest:
            break
        batches = iter(sampler)
        for _ in range(2):  # Before the first batch and after it.
            assert sampler.steps().n_samples.ravel().tolist() == [len(batch) for batch in rest]
            assert {b.step for b in sampler.heaviest()} <= set(range(len(rest)))
            heavy = sampler.heaviest()[0]
            costs = [len(b) * (n + -(-n * n // 50)) for b, n in zip(rest, longest_of(rest), strict=True)]
            assert heavy.step == int(np.argmax(costs))
            next(batches, None)
        list(batches)
        assert sampler.steps().n_samples.ravel().tolist() == [len(batch) for batch in whole], "of the next pass"
        assert sampler.steps(0).n_samples.ravel().tolist() == [len(batch) for batch in at_epoch(other, 0)]


def test_steps_and_heaviest_of_an_epoch_that_is_asked_for_are_those_of_the_whole() -> None:
    for epoch in (0, 1, 5):
        sampler, other = make(), make()
        sampler.resume(1, 4)
        whole = at_epoch(other, epoch)
        assert sampler.steps(epoch).n_samples.ravel().tolist() == [len(batch) for batch in whole]
        assert [b.n_samples for b in sampler.heaviest(epoch)] == [len(whole[b.step]) for b in sampler.heaviest(epoch)]
        assert sampler.heaviest(epoch) == other.heaviest(epoch)
    assert len({tuple(make().heaviest(epoch)) for epoch in (0, 1, 5)}) > 1


def test_an_empty_rest_has_no_heaviest_batch() -> None:
    sampler = make()
    sampler.resume(0, N)
    assert sampler.heaviest() == []
    assert sampler.steps().n_samples.shape == (0, 1)


def test_a_state_holds_the_order_version() -> None:
    state = after(make(), 2)
    state["identity"]["order_version"] -= 1
    message = (
        f"state is of another plan: order_version = {ORDER_VERSION} (saved with {ORDER_VERSION - 1}); build the "
        "sampler as it was when the state was saved, or begin the epoch anew with set_epoch"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make().load_state_dict(state)
