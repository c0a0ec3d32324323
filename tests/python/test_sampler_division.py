"""The rest of an epoch divided among other ranks: line 26 of LOADER_CONTRACT.md, docs/ORDER.md step 9."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samplers import SMALL, Batches, after, at_epoch, begun_on, every_sample, in_step_order, line, make, ranks

torch = pytest.importorskip("torch")

from bucketshuffle import Planner  # noqa: E402
from bucketshuffle.batches import Batches as BatchArrays  # noqa: E402
from bucketshuffle.batches import extra_parts  # noqa: E402
from bucketshuffle.torch import BucketBatchSampler  # noqa: E402

EDGES = np.array([0, 8, 20, 40])


@line(26)
@pytest.mark.parametrize(("saved_on", "loaded_on"), list(product([1, 2, 3, 4], repeat=2)))
@pytest.mark.parametrize("options", [{}, {"worst_first": True, "balance_ranks": True, "accumulation_steps": 2}])
def test_the_rest_of_an_epoch_is_divided_among_other_ranks(
    saved_on: int, loaded_on: int, options: dict[str, Any]
) -> None:
    options = {**options, "pad_to_multiple_of": 4, "loss_tokens": SMALL // 2}
    begun = ranks(saved_on, **options)
    whole = in_step_order([at_epoch(sampler, 1) for sampler in begun])
    samplers = ranks(loaded_on, **options)
    update = loaded_on * options.get("accumulation_steps", 1)
    for step in range(len(begun[0])):
        state = begun_on(begun[-1], 1, step)
        done = step * saved_on
        remaining = every_sample(whole[done:])
        n_needed = -(-(len(whole) - done) // update) * update
        if step == 0:
            n_needed = len(samplers[0]) * loaded_on  # Nothing was trained: the epoch is planned for the current ranks.
        elif saved_on == loaded_on:
            n_needed = len(whole) - done  # Inside an update, too: the tail of the uninterrupted epoch.
        elif n_needed > len(remaining) >= -(-(len(whole) - done) // loaded_on) * loaded_on:
            n_needed = -(-(len(whole) - done) // loaded_on) * loaded_on
        if n_needed > len(remaining):
            message = (
                f"the rest of the epoch has {len(remaining)} samples, fewer than the {n_needed} batches that "
                f"world_size * accumulation_steps = {update} needs; resume on fewer ranks, or begin the next epoch"
            )
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                samplers[0].load_state_dict(state)
            continue
        for sampler in samplers:
            sampler.load_state_dict(state)
        reported, heavy = samplers[0].steps(), samplers[0].heaviest()
        rest = in_step_order([list(sampler) for sampler in samplers])
        assert all(rest)
        assert every_sample(rest) == remaining
        assert saved_on != loaded_on or rest == whole[done:]
        assert len(rest) == n_needed
        padded = [int(-(-SMALL[batch].max() // 4) * 4) for batch in rest]
        assert reported.n_samples.ravel().tolist() == [len(batch) for batch in rest]
        assert reported.real_tokens.ravel().tolist() == [SMALL[batch].sum() for batch in rest]
        assert reported.padded_lengths.ravel().tolist() == padded
        assert reported.loss_tokens is not None
        assert reported.loss_tokens.ravel().tolist() == [(SMALL // 2)[batch].sum() for batch in rest]
        buckets = [int(np.searchsorted(EDGES, SMALL[batch].max())) - 1 for batch in rest]
        assert reported.buckets.ravel().tolist() == buckets
        costs = [len(batch) * length for batch, length in zip(rest, padded, strict=True)]
        heaviest = {int(np.argmax(score)) for score in (costs, padded, [len(batch) for batch in rest]) if rest}
        assert {b.step * loaded_on + b.rank for b in heavy} == heaviest
        assert all(b.padded_length == padded[b.step * loaded_on + b.rank] for b in heavy)
        for sampler, fresh in zip(samplers, ranks(loaded_on, **options), strict=True):
            assert at_epoch(sampler, 2) == at_epoch(fresh, 2), "the next epoch is planned for the current ranks"


@line(26)
def test_an_epoch_moves_between_numbers_of_ranks_four_times() -> None:
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
def test_a_rest_that_was_divided_before_is_counted_with_its_parts() -> None:
    """A position beyond the batches that were planned is one, if a division made so many."""
    sampler = BucketBatchSampler([1] * 9, token_budget=3)
    assert [len(batch) for batch in sampler] == [3, 3, 3]
    divided = BucketBatchSampler([1] * 9, token_budget=3, rank=0, world_size=4)
    divided.load_state_dict(after(sampler, 1))
    assert len(next(iter(divided))) == 1, "half of 3, rounded down"
    state = {**divided.schedule.state_of(divided.schedule.start_of(0)), "position": 5, "divisions": [[1, 4]]}
    again = BucketBatchSampler([1] * 9, token_budget=3)
    again.load_state_dict(state)
    assert (again.epoch, again.state_dict()["position"]) == (1, 0), "the end of the epoch"
    message = "state['position'] = 6 exceeds the 5 batches of the epoch; pass what state_dict of this sampler returned"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        again.load_state_dict({**state, "position": 6})


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
def test_a_run_with_loss_tokens_resumes_on_any_number_of_ranks() -> None:
    loss_tokens = np.random.default_rng(0).integers(0, SMALL + 1)
    for worst_first in (False, True):
        options: dict[str, Any] = {"loss_tokens": loss_tokens, "window": 12, "worst_first": worst_first}
        whole = in_step_order([at_epoch(sampler, 1) for sampler in ranks(2, **options)])
        assert every_sample(whole) == list(range(60))
        for done, world_size in product(range(len(whole) // 2 - 3), (1, 2, 3, 4)):
            state = begun_on(ranks(2, **options)[0], 1, done)
            samplers = ranks(world_size, **options)
            for sampler in samplers:
                sampler.load_state_dict(state)
            rest = in_step_order([list(sampler) for sampler in samplers])
            assert every_sample(whole[: 2 * done] + rest) == list(range(60))


@line(26)
@pytest.mark.parametrize("multiple", [1, 2, 3, 4])
def test_dividing_a_rest_leaves_no_batch_empty(multiple: int) -> None:
    """Parts of a batch of 3 in 2 are not as small as a batch of 1."""
    lengths = np.array([9, 1, 1, 1])
    planner = Planner(lengths, token_budget=9, boundaries=[0, 1, 9])
    divided = BatchArrays.of(planner.plan(0)).divided(0, multiple, lengths, planner)
    assert len(divided) == max(2, multiple)
    assert divided.sizes.min() > 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 60))
def test_parts_go_to_the_largest_as_the_order_contract_says(sizes: list[int], n_missing: int) -> None:
    """docs/ORDER.md, step 9: one part at a time, to the batch with the largest parts, the first of equals."""
    n_missing = min(n_missing, sum(sizes) - len(sizes))
    parts = [1] * len(sizes)
    for _ in range(n_missing):
        largest = max(Fraction(size, n) for size, n in zip(sizes, parts, strict=True))
        parts[[Fraction(size, n) for size, n in zip(sizes, parts, strict=True)].index(largest)] += 1
    assert (1 + extra_parts(np.array(sizes, np.int64), n_missing)).tolist() == parts


def test_a_rest_of_a_million_batches_is_divided_without_a_search_for_every_part() -> None:
    sizes = np.random.default_rng(0).integers(1, 100, 1_000_000)
    extra = extra_parts(sizes, 100_000)
    assert extra.sum() == 100_000
    # Whatever gets one more part is no smaller, in parts, than anything could be made by giving it one part less.
    largest_left = (sizes / (1 + extra)).max()
    assert (sizes[extra > 0] / extra[extra > 0]).min() >= largest_left


def test_parts_are_consecutive_and_as_equal_as_can_be() -> None:
    sampler = make(boundaries=[0, 40], token_budget=400)
    whole = list(sampler)
    divided = make(boundaries=[0, 40], token_budget=400, rank=0, world_size=7, window=7)
    divided.load_state_dict(after(make(boundaries=[0, 40], token_budget=400), 1))
    others = [make(boundaries=[0, 40], token_budget=400, rank=rank, world_size=7, window=7) for rank in range(1, 7)]
    for other in others:
        other.load_state_dict(divided.state_dict())
    rest = in_step_order([list(s) for s in (divided, *others)])
    assert [i for batch in rest for i in batch] == [i for batch in whole[1:] for i in batch]
    sizes = iter(len(batch) for batch in rest)
    for batch in whole[1:]:
        parts: list[int] = []
        while sum(parts) < len(batch):
            parts.append(next(sizes))
        assert sum(parts) == len(batch)
        assert max(parts) - min(parts) <= 1
