"""Epochs and positions where loop, state and trainer contradict each other: what holds, and what is said."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest
from samplers import SMALL, WORKERS, N, Numbers, after, as_is, at_epoch, begun_on, in_step_order, loader_of, make, ranks

torch = pytest.importorskip("torch")

from bucketshuffle.torch import BucketBatchSampler  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


@contextmanager
def says(*messages: str) -> Iterator[None]:
    """Exactly these warnings of the sampler, in this order."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(warning.message) for warning in caught]
    assert [text for text in texts if text.startswith("bucketshuffle: ")] == [f"bucketshuffle: {m}" for m in messages]
    assert not [w.filename for w in caught if "bucketshuffle/torch" in w.filename], "shown at the caller's line"


REPEATED = (
    "epoch {} is trained again, because set_epoch was not called after its end; call sampler.set_epoch(epoch) before "
    "each pass, with the same epoch if that is meant"
)


# set_epoch forgotten


@pytest.mark.parametrize("workers", WORKERS)
def test_a_loop_that_never_sets_the_epoch_is_told_once(workers: str) -> None:
    loader = loader_of(make(), workers=workers)
    with says():
        list(loader)
    with says(REPEATED.format(0)):
        list(loader)
    with says():
        list(loader)


def test_a_loop_that_sets_the_epoch_once_or_resumes_is_told_too() -> None:
    sampler = make()
    sampler.set_epoch(4)
    list(sampler)
    with says(REPEATED.format(4)):
        list(sampler)
    sampler = make()
    sampler.resume(2, 3)
    list(sampler)
    with says(REPEATED.format(2)):
        list(sampler)


def test_a_loop_that_sets_the_epoch_is_told_nothing() -> None:
    sampler = make()
    with says():
        for epoch in (0, 1, 1, 2):
            sampler.set_epoch(epoch)
            list(sampler)
        list(islice(make(), 3))
        sampler.reset()
        list(sampler)
        sampler.resume(2, 1)
        list(sampler)


def test_a_pass_that_was_not_finished_may_begin_again() -> None:
    sampler = make()
    with says():
        list(islice(sampler, 3))
        list(sampler)


def test_an_epoch_set_again_after_its_end_begins_anew() -> None:
    sampler = make()
    list(sampler)
    assert sampler.state_dict()["epoch"] == 1
    sampler.set_epoch(0)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (0, 0)
    batches = iter(sampler)
    next(batches)
    sampler.set_epoch(0)
    assert sampler.state_dict()["position"] == 1, "within the pass nothing changes"


# Copies


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
@pytest.mark.parametrize("done", [0, 1, 5, N, N + 1])
def test_a_copy_stands_where_the_original_does(copied: Any, done: int) -> None:
    sampler = make(rank=0, world_size=1)
    sampler.set_epoch(2)
    batches = iter(sampler)
    list(islice(batches, done))
    again = copied(copied(sampler))
    assert again.state_dict() == sampler.state_dict()
    fresh = make()
    fresh.load_state_dict(again.state_dict())
    assert list(fresh) == (at_epoch(make(), 2)[done:] or at_epoch(make(), 3))
    next(batches, None)
    assert list(again) == at_epoch(make(), 2), "a new pass, as of the original"
    assert again.state_dict()["epoch"] == 3
    again.set_epoch(5)
    assert again.state_dict()["epoch"] == 5


def test_loading_or_resuming_forgets_where_the_last_pass_stood() -> None:
    sampler = make()
    list(islice(sampler, 5))
    sampler.resume(1, 3)
    batches = iter(sampler)
    assert sampler.steps().n_samples.shape == (N - 3, 1)
    sampler.reset()
    assert sampler.state_dict()["position"] == 0
    list(islice(batches, 2))
    sampler.load_state_dict(begun_on(make(), 2, 4))
    sampler.reset()
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (2, 0)


def test_a_pass_that_loads_a_state_becomes_the_one_that_the_sampler_reports() -> None:
    sampler = make()
    sampler.resume(0, 1)
    batches: Any = iter(sampler)
    list(batches)
    batches.load_state_dict(begun_on(make(), 2, 4))
    assert (sampler.epoch, sampler.state_dict()["position"]) == (2, 4)
    assert next(batches) == at_epoch(make(), 2)[4], "from its start, and not finished any more"
    sampler.resume(1, 3)
    batches.load_state_dict(begun_on(make(), 2, 6))
    assert next(iter(sampler)) == at_epoch(make(), 2)[0], "the resume that waited is cancelled"


# Updates


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"worst_first": True, "balance_ranks": True, "loss_tokens": SMALL // 2}])
def test_on_the_same_ranks_the_tail_is_the_uninterrupted_one(world_size: int, options: dict[str, Any]) -> None:
    samplers = ranks(world_size, accumulation_steps=2, **options)
    whole = [at_epoch(sampler, 1) for sampler in samplers]
    denominators = samplers[0].steps(1).denominators
    for done in range(len(whole[0])):
        state = begun_on(samplers[0], 1, done)
        for rank, sampler in enumerate(ranks(world_size, accumulation_steps=2, **options)):
            sampler.load_state_dict(state)
            assert sampler.steps().denominators.tolist() == denominators[done:].tolist()
            assert list(sampler) == whole[rank][done:]


def test_on_the_ranks_that_divided_an_epoch_the_tail_is_the_uninterrupted_one() -> None:
    state = begun_on(make(rank=0, world_size=2), 1, 2)
    loaded = ranks(3, accumulation_steps=2)
    for sampler in loaded:
        sampler.load_state_dict(state)
    tails = [list(sampler) for sampler in loaded]
    for done in range(1, len(tails[0])):
        loaded[0].load_state_dict(state)
        again = ranks(3, accumulation_steps=2)
        saved = after(loaded[0], done)
        for rank, sampler in enumerate(again):
            sampler.load_state_dict(saved)
            assert list(sampler) == tails[rank][done:]


def test_a_rest_with_too_few_samples_for_an_update_is_shared_in_one_step() -> None:
    sampler = BucketBatchSampler([1] * 9, token_budget=3)
    state = after(sampler, 2)
    shares = [BucketBatchSampler([1] * 9, token_budget=3, rank=r, world_size=2, accumulation_steps=2) for r in (0, 1)]
    for share in shares:
        share.load_state_dict(state)
    rest = in_step_order([list(share) for share in shares])
    assert [len(batch) for batch in rest] == [1, 2]
    assert sorted(rest[0] + rest[1]) == sorted(list(sampler)[2])


def test_denominators_are_the_tokens_of_an_update() -> None:
    loss_tokens = SMALL // 2
    for tokens, options in ((SMALL, {}), (loss_tokens, {"loss_tokens": loss_tokens})):
        samplers = ranks(2, accumulation_steps=3, **options)
        batches = in_step_order([at_epoch(sampler, 1) for sampler in samplers])
        sums = [sum(int(tokens[b].sum()) for b in batches[i : i + 6]) for i in range(0, len(batches), 6)]
        assert samplers[0].steps(1).denominators.tolist() == [n for n in sums for _ in range(3)]


def test_a_count_of_batches_in_an_epoch_of_other_ranks_is_refused() -> None:
    message = (
        "epoch = 1 was begun on other ranks, so batches_done = 4 does not say where it stands; use load_state_dict, "
        "or call reset() first to count in the plan of the current ranks"
    )
    state = begun_on(make(rank=0, world_size=2), 1, 3)
    for advance in (False, True):
        sampler = make(rank=0, world_size=3)
        sampler.load_state_dict(state)
        if advance:
            next(iter(sampler))
        for asked in (sampler, copy.deepcopy(sampler)):
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                asked.resume(1, 4)
        sampler.resume(2, 1)
        sampler.resume(1, 1)
        assert list(sampler) == at_epoch(make(rank=0, world_size=3), 1)[1:]


# torchdata


def stateful(sampler: BucketBatchSampler, workers: str = "0") -> Any:
    return loader_of(sampler, pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader, workers)


def state_after(epoch: int, n_batches: int, workers: str = "0") -> Any:
    sampler = make()
    sampler.set_epoch(epoch)
    loader = stateful(sampler, workers)
    batches = iter(loader)
    list(islice(batches, n_batches))
    return pickle.loads(pickle.dumps(loader.state_dict()))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("done", [0, 4, N - 2])
def test_denominators_beside_a_loader_that_restores_its_position(workers: str, done: int) -> None:
    sampler = make()
    loader = stateful(sampler, workers)
    loader.load_state_dict(state_after(1, done, workers))
    sampler.set_epoch(1)
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        with says():
            pairs = list(zip(loader, sampler.denominators(), strict=True))
        assert [batch for batch, _ in pairs] == at_epoch(make(), epoch)[done if epoch == 1 else 0 :]
        assert all(n_tokens == SMALL[batch].sum() for batch, n_tokens in pairs)


def test_denominators_before_the_loader_are_refused() -> None:
    message = (
        "denominators() is advanced before the loader; write zip(loader, sampler.denominators()), with the loader first"
    )
    sampler = make()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
            list(zip(sampler.denominators(), loader_of(sampler), strict=True))
        assert [n for _, n in zip(loader_of(sampler), sampler.denominators(), strict=True)] == [
            SMALL[batch].sum() for batch in at_epoch(make(), epoch)
        ]


def test_denominators_are_given_once_a_pass() -> None:
    sampler = make()
    loader = iter(loader_of(sampler))
    next(loader)
    assert next(sampler.denominators()) == SMALL[at_epoch(make(), 0)[0]].sum()
    with pytest.raises(RuntimeError, match=r"^denominators\(\) is advanced before the loader;"):
        next(sampler.denominators())


def test_steps_asked_before_the_loader_has_restored_its_position_are_named() -> None:
    sampler = make()
    loader = stateful(sampler)
    loader.load_state_dict(state_after(1, 4))
    sampler.set_epoch(1)
    with says(
        "steps() was asked before the loader restored its position and told of other batches than those to come; use "
        "zip(loader, sampler.denominators()), or ask after iter(loader)"
    ):
        list(zip(loader, sampler.steps().real_tokens.sum(1).tolist(), strict=False))
    loader.load_state_dict(state_after(1, 4))
    with says():
        pairs = list(zip(iter(loader), sampler.steps().real_tokens.sum(1).tolist(), strict=True))
    assert all(n_tokens == SMALL[batch].sum() for batch, n_tokens in pairs)


def test_an_epoch_that_the_state_of_a_loader_overrides_is_named() -> None:
    sampler = make()
    loader = stateful(sampler)
    loader.load_state_dict(state_after(3, 4))
    sampler.set_epoch(1)
    with says("the loader's state continues in epoch 3, which set_epoch(1) does not change; begin the loop at epoch 3"):
        assert list(loader) == at_epoch(make(), 3)[4:]


# accelerate


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Any:
    data_loader = pytest.importorskip("accelerate.data_loader")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    pytest.importorskip("accelerate").PartialState(cpu=True)

    def prepare(sampler: BucketBatchSampler, **options: Any) -> Any:
        loader: Any = DataLoader(Numbers(60), batch_sampler=sampler, collate_fn=as_is)
        return data_loader.prepare_data_loader(loader, num_processes=1, process_index=0, **options)

    return prepare


def counts(epoch: int, stands: int) -> str:
    return (
        f"accelerate's loader counts epochs itself and trains epoch {epoch}, where the sampler stands at epoch "
        f"{stands}; call loader.set_epoch({stands}) in place of sampler.set_epoch"
    )


def resumes(epoch: int) -> str:
    return (
        f"set_epoch(0) is ignored, because the sampler is about to resume epoch {epoch}; call loader.set_epoch({epoch})"
        ", because accelerate's loader counts epochs itself"
    )


def test_an_epoch_that_the_loader_of_accelerate_overrides_is_named(prepared: Any) -> None:
    sampler = make()
    loader = prepared(sampler)
    sampler.set_epoch(3)
    with says(counts(0, 3)):
        assert list(loader) == at_epoch(make(), 0)
    sampler.set_epoch(7)
    with says(counts(1, 7)):
        list(loader)
    loader.set_epoch(5)
    with says():
        assert list(loader) == at_epoch(make(), 5)
        assert list(loader) == at_epoch(make(), 6)


@pytest.mark.parametrize("done", [0, 5])
def test_a_resume_under_accelerate_goes_first_and_the_loop_is_told(prepared: Any, done: int) -> None:
    sampler = make()
    loader = prepared(sampler)
    sampler.load_state_dict(begun_on(make(), 3, done))
    with says(resumes(3)):
        assert list(loader) == at_epoch(make(), 3)[done:]
    with says(counts(1, 3)):
        list(loader)
    sampler.resume(3, done)
    loader.set_epoch(3)
    with says():
        assert list(loader) == at_epoch(make(), 3)[done:]
        assert list(loader) == at_epoch(make(), 4)


@pytest.mark.parametrize("wrap", ["plain", "skip"])
def test_what_accelerate_fetches_ahead_does_not_count_as_delivered(prepared: Any, wrap: str) -> None:
    from accelerate.data_loader import skip_first_batches

    sampler = make()
    loader = prepared(sampler)
    loader.set_epoch(2)
    skipped = 3 if wrap == "skip" else 0
    if skipped:
        loader = skip_first_batches(loader, skipped)
        loader.set_epoch(2)
    for n_delivered, _ in enumerate(loader, start=1 + skipped):
        fresh = make()
        fresh.load_state_dict(sampler.state_dict())
        assert list(fresh) == (at_epoch(make(), 2)[n_delivered:] or at_epoch(make(), 3))


def test_a_stateful_loader_of_accelerate_restores_what_was_delivered(prepared: Any) -> None:
    pytest.importorskip("torchdata")
    loader = prepared(make(), use_stateful_dataloader=True)
    for done in (1, 4, N - 1):
        batches = iter(loader)
        loader.set_epoch(0)
        list(islice(batches, done))
        again = prepared(make(), use_stateful_dataloader=True)
        again.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
        assert list(again) == list(make())[done:]
        batches.close()


# States that are none


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "state is a NoneType, not a mapping; pass what state_dict of this sampler returned"),
        ([1], "state is a list, not a mapping; pass what state_dict of this sampler returned"),
        (
            {"identity": None},
            "state['identity'] is a NoneType, not a mapping; pass what state_dict of this sampler returned",
        ),
        ({"divisions": 3}, "state['divisions'] is a int, not a list; pass what state_dict of this sampler returned"),
        ({"divisions": [3]}, "state['divisions'] is a int, not a list; pass what state_dict of this sampler returned"),
        ({"position": None}, "state['position'] = None is not an integer"),
    ],
)
def test_what_is_no_state_is_refused_by_name(state: Any, message: str) -> None:
    sampler = make()
    if isinstance(state, dict):
        state = {**after(make(), 2), **state}
    for load in (sampler.load_state_dict, iter(sampler).load_state_dict):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            load(state)
    assert list(sampler) == list(make()), "and changes nothing"


def test_a_division_that_is_no_pair_is_refused() -> None:
    message = "state['divisions'] has 3 values where 2 belong; pass what state_dict of this sampler returned"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make().load_state_dict({**after(make(), 2), "divisions": [[1, 2, 3]]})


# Options that a state holds


@pytest.mark.parametrize("value", [np.array(60), np.int64(60), torch.tensor(60)])
def test_a_number_in_any_form_gives_the_state_of_the_int(value: Any) -> None:
    sampler = make(token_budget=value)
    assert sampler.fingerprint == make().fingerprint
    make().load_state_dict(after(sampler, 2))
    sampler.load_state_dict(after(make(), 2))


@pytest.mark.parametrize(
    ("loss_tokens", "error", "message"),
    [
        ([5] * 59 + [-1], ValueError, "loss_tokens[59] = -1 is negative; pass the supervised tokens of each sample"),
        (
            [0.5] * 60,
            TypeError,
            "loss_tokens has dtype float64, not an integer dtype; convert with "
            ".astype(numpy.int64) if the values are whole",
        ),
        ("tokens", TypeError, "loss_tokens is a str, not an array of integers; pass one length per sample"),
        ([None] * 60, ValueError, "loss_tokens[0] is missing; drop the sample or give its length"),
    ],
)
def test_errors_about_loss_tokens_name_them(loss_tokens: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make(loss_tokens=loss_tokens)
