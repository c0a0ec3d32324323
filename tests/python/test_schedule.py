"""What every rank knows of an epoch: steps, heaviest batches, balanced loss tokens; docs/ORDER.md, steps 7 and 8."""

from __future__ import annotations

import pickle
import re
from itertools import chain
from typing import Any

import numpy as np
import pytest
from bucketshuffle import ORDER_VERSION, Planner
from bucketshuffle.batches import Batches, extra_parts
from bucketshuffle.schedule import Arrangement, Position, Schedule, Steps
from conftest import uneven_lengths

SMALL = uneven_lengths(60, longest=40)
OPTIONS: dict[str, Any] = {"token_budget": 60, "boundaries": [0, 8, 20, 40], "seed": 3}


def make(lengths: Any = SMALL, **changed: Any) -> Schedule:
    return Schedule(lengths, **{**OPTIONS, **changed})


def as_lists(batches: Batches) -> list[list[int]]:
    return [part.tolist() for part in np.split(batches.indices, batches.offsets[1:-1])]


def test_batches_are_those_of_the_planner() -> None:
    schedule = make(world_size=2, accumulation_steps=3)
    assert schedule.arrangement == Arrangement(window=6, align_ranks=1)
    plan = Planner(SMALL, token_budget=60, boundaries=[0, 8, 20, 40], window=6, constant_count=True).plan(3, 4)
    batches = schedule.batches(4)
    assert as_lists(batches) == [batch.tolist() for batch in plan]
    assert np.array_equal(batches.costs, plan.costs)
    assert len(batches) == schedule.n_batches() == len(plan)


def test_an_arrangement_is_that_of_the_ranks_that_begin_the_epoch() -> None:
    there, here = make(world_size=2, balance_ranks=True, window=12), make(world_size=3, balance_ranks=True, window=9)
    assert there.arrangement == Arrangement(12, 2)
    assert as_lists(here.batches(1, there.arrangement)) == as_lists(there.batches(1))
    assert as_lists(here.batches(1, there.arrangement)) != as_lists(here.batches(1))
    assert here.n_batches(there.arrangement) == there.n_batches()
    plain = make(world_size=2, window=12)
    assert as_lists(plain.batches(1, there.arrangement)) == as_lists(there.batches(1))
    assert as_lists(plain.batches(1)) != as_lists(there.batches(1))


def test_a_state_of_a_position_is_the_position() -> None:
    schedule = make()
    position = Position(5, 3, Arrangement(1, 1, ((1, 4), (2, 3))))
    assert schedule.position_of(schedule.state_of(position)) == position
    assert schedule.state_of(position)["identity"]["order_version"] == ORDER_VERSION
    assert schedule.start_of(7) == Position(7, 0, Arrangement(1, 1))


def test_a_rest_with_fewer_samples_than_an_update_has_batches_is_divided_once() -> None:
    schedule = make(np.full(27, 10), world_size=2, accumulation_steps=8)  # 5 batches of 6 samples, the last of 3.
    shared = schedule.shared(Position(0, 2, Arrangement(1, 1)))
    assert shared.arrangement.divisions == ((2, 2),)
    assert schedule.n_batches(shared.arrangement) == 6
    assert schedule.shared(shared) == shared
    later = shared._replace(n_done=4)
    assert schedule.shared(later) == later


def test_a_rest_divided_for_the_ranks_alone_is_divided_for_their_updates() -> None:
    there, here = make(world_size=2), make(world_size=2, accumulation_steps=4)
    divided = there.shared(Position(0, 3, Arrangement(1, 1)))
    assert divided.arrangement.divisions == ((3, 2),)
    shared = here.shared(divided._replace(n_done=5))
    assert shared.arrangement.divisions == ((3, 2), (5, 8))
    assert (here.n_batches(shared.arrangement) - 5) % 8 == 0


def test_of_equal_batches_the_first_are_divided() -> None:
    assert extra_parts(np.full(1_000, 7), 3).tolist() == [1, 1, 1] + [0] * 997
    assert extra_parts(np.tile([3, 7, 5], 300), 2).nonzero()[0].tolist() == [1, 4]


def test_parts_of_a_batch_are_padded_exactly_above_2_to_the_53() -> None:
    lengths = np.full(9, 2**53 + 1)
    schedule = Schedule(lengths, token_budget=2**55, world_size=4)
    batches = schedule.batches(0, schedule.shared(Position(0, 1, Arrangement(1, 1))).arrangement)
    assert len(batches) == 5
    assert set(batches.padded_lengths.tolist()) == {2**53 + 1}


def test_loss_tokens_without_a_minimum_differ_in_the_loss_tokens_alone() -> None:
    state = make(loss_tokens=SMALL // 2).state_of(Position(0, 2, Arrangement(1, 1)))
    message = r"^state is of another plan: loss_tokens = None \(saved with '[0-9a-f]{16}'\); build the sampler"
    with pytest.raises(ValueError, match=message):
        make().position_of(state)


def test_an_epoch_ends_after_its_last_batch() -> None:
    schedule = make(world_size=2)
    other = Arrangement(1, 1, ((2, 6),))
    for arrangement in (schedule.arrangement, other):
        n_batches = schedule.n_batches(arrangement)
        ends = [schedule.is_end(Position(0, n_done, arrangement)) for n_done in range(n_batches + 1)]
        assert ends == [False] * n_batches + [True]
    assert schedule.n_batches(other) != schedule.n_batches(), "both are asked"


def test_a_plan_on_one_rank_is_never_divided() -> None:
    position = Position(0, 3, Arrangement(6, 2))
    assert make().shared(position) == position


def test_updates_are_counted_from_where_these_ranks_began_the_epoch() -> None:
    schedule = make(world_size=2, accumulation_steps=2)
    position = schedule.shared(Position(1, 3, Arrangement(1, 1)))
    batches = schedule.batches(1, position.arrangement)
    of_rest = schedule.steps(batches, 3, 3)
    updates = of_rest.real_tokens.reshape(-1, 4).sum(1)
    assert of_rest.denominators.tolist() == np.repeat(updates, 2).tolist()
    for n_steps in range(len(updates) * 2):
        later = schedule.steps(batches, 3 + 2 * n_steps, 3)
        assert later.denominators.tolist() == of_rest.denominators[n_steps:].tolist()


def test_steps_are_integers_and_exact_above_2_to_the_53() -> None:
    lengths = np.array([2**53 + 1, 2**53 + 3, 5, 5], np.int64)
    schedule = Schedule(lengths, token_budget=2**60, world_size=2, loss_tokens=lengths)
    steps = schedule.steps(schedule.batches(0))
    assert {name: array.dtype.name for name, array in steps._asdict().items()} == {
        **dict.fromkeys(Steps._fields, "int64"), "buckets": "int32",
    }  # fmt: skip
    assert steps.real_tokens.sum() == int(lengths.sum())
    assert (steps.loss_tokens == steps.real_tokens).all()


@pytest.mark.parametrize("worst_first", [False, True])
def test_steps_tell_what_each_rank_trains(worst_first: bool) -> None:
    loss_tokens = SMALL // 2
    schedule = make(
        world_size=3, accumulation_steps=2, worst_first=worst_first, pad_to_multiple_of=8, loss_tokens=loss_tokens
    )
    for epoch in (0, 1):
        planned = schedule.batches(epoch)
        batches = as_lists(planned)
        for n_done in (0, 6, len(batches)):
            steps, rest = schedule.steps(planned, n_done), batches[n_done:]
            assert steps.n_samples.shape == (len(rest) // 3, 3)
            assert steps.n_samples.ravel().tolist() == [len(batch) for batch in rest]
            assert steps.real_tokens.ravel().tolist() == [SMALL[batch].sum() for batch in rest]
            assert steps.padded_lengths.ravel().tolist() == [-(-SMALL[batch].max() // 8) * 8 for batch in rest]
            assert steps.loss_tokens is not None
            assert steps.loss_tokens.ravel().tolist() == [loss_tokens[batch].sum() for batch in rest]
            buckets = [np.searchsorted([0, 8, 20, 40], SMALL[batch].max()) - 1 for batch in rest]
            assert steps.buckets.ravel().tolist() == buckets
    assert make().steps(make().batches(0)).loss_tokens is None


def test_the_worst_windows_come_first_and_each_window_is_as_it_was() -> None:
    plain, led = make(window=4), make(window=4, worst_first=True)
    for epoch in range(3):
        whole, batches = as_lists(plain.batches(epoch)), as_lists(led.batches(epoch))
        windows = [whole[i : i + 4] for i in range(0, len(whole), 4)]
        led_windows = [batches[i : i + 4] for i in range(0, len(batches), 4)]
        costs = [len(batch) * SMALL[batch].max() for batch in whole]
        longest = [SMALL[batch].max() for batch in whole]
        heavy = [int(np.argmax(score)) // 4 for score in (costs, longest, [len(batch) for batch in whole])]
        first = list(dict.fromkeys(heavy))
        others = [window for w, window in enumerate(windows) if w not in first]
        assert led_windows == [*(windows[w] for w in first), *others]


def test_the_costliest_batch_is_that_of_the_cost_model() -> None:
    """Attention is rounded up for every sample: (21, 59) costs 1,491 and (45, 30) 1,485; in floats it is 1,482.7."""
    lengths = [59] * 21 + [30] * 45
    options: dict[str, Any] = {"token_budget": 1_500, "quadratic_length": 300, "boundaries": [0, 30, 59]}
    for epoch in range(6):
        schedule = Schedule(lengths, **options)
        batches = schedule.batches(epoch)
        assert sorted(batches.costs.tolist()) == [1_485, 1_491]
        heaviest = schedule.heaviest(batches)
        assert [(b.n_samples, b.padded_length) for b in heaviest] == [(21, 59), (45, 30)]
        led = Schedule(lengths, worst_first=True, **options).batches(epoch)
        assert led.sizes.tolist() == [21, 45]


def test_heaviest_are_the_costliest_the_longest_and_the_largest_of_the_rest() -> None:
    schedule = make(world_size=2, per_sample=30, token_budget=300)
    for epoch in range(4):
        planned = schedule.batches(epoch)
        batches = as_lists(planned)
        for n_done in range(0, len(batches) + 1, 2):
            rest = batches[n_done:]
            longest = [int(SMALL[batch].max()) for batch in rest]
            scores = ([len(b) * (30 + n) for b, n in zip(rest, longest, strict=True)], longest, list(map(len, rest)))
            places = list(dict.fromkeys(int(np.argmax(score)) for score in scores if rest))
            expected = [(*divmod(b, 2), len(rest[b]), longest[b]) for b in places]
            assert [tuple(heavy) for heavy in schedule.heaviest(planned, n_done)] == expected


@pytest.mark.parametrize("balance_ranks", [False, True])
def test_loss_tokens_are_balanced_over_the_windows_and_nothing_else_changes(balance_ranks: bool) -> None:
    lengths = uneven_lengths(4000, longest=400)
    loss_tokens = np.random.default_rng(0).integers(0, lengths + 1)
    shape: dict[str, Any] = {"token_budget": 600, "world_size": 2, "accumulation_steps": 8}
    shape |= {"boundaries": "auto", "balance_ranks": balance_ranks}
    plain, balanced = make(lengths, **shape), make(lengths, **shape, loss_tokens=loss_tokens)
    for epoch in range(3):
        one, other = plain.batches(epoch), balanced.batches(epoch)
        sums = [batches.sums(loss_tokens).reshape(-1, 16).sum(1) for batches in (one, other)]
        # 16 independent batches: the deviation of a sum is 4 times a batch's; the exchange leaves a fraction of that.
        assert np.std(sums[1]) < np.std(sums[0]) / (2 if balance_ranks else 4)
        assert sorted(as_lists(one)) == sorted(as_lists(other))
        assert as_lists(one) != as_lists(other)
        # A place keeps its stratum: the k-th longest step of a window stays in the range of all k-th longest.
        before, after = plain.steps(one).padded_lengths, balanced.steps(other).padded_lengths
        shapes = [
            np.sort(s.max(1).reshape(-1, 8) if balance_ranks else s.reshape(-1, 16), axis=1) for s in (before, after)
        ]
        assert np.array_equal(np.sort(shapes[0], axis=0), np.sort(shapes[1], axis=0))
        if balance_ranks:
            steps = [sorted(map(tuple, np.sort(s, axis=1).tolist())) for s in (before, after)]
            assert steps[0] == steps[1]


def balanced(lengths: list[int], costs: list[int], weights: list[int], window: int, align_ranks: int) -> list[int]:
    """docs/ORDER.md, step 7, in slow and obvious Python: the batches by their places before."""
    steps = [list(range(b, b + align_ranks)) for b in range(0, len(lengths), align_ranks)]
    n_strata, n_windows = window // align_ranks, len(lengths) // window

    def weight(place: int) -> int:
        return sum(weights[b] for b in steps[place])

    def by_length(place: int) -> tuple[int, int, int]:
        return max(lengths[b] for b in steps[place]), max(costs[b] for b in steps[place]), place

    table = [sorted(range(t * n_strata, (t + 1) * n_strata), key=by_length) for t in range(n_windows)]
    columns = [[row[a] for row in table] for a in range(n_strata)]
    spread = [max(map(weight, column)) - min(map(weight, column)) for column in columns]
    first, *others = sorted(range(n_strata), key=lambda a: -spread[a])
    sums = [weight(place) for place in columns[first]]
    order = list(steps)
    for a in others:
        least_first = sorted(range(n_windows), key=lambda t: sums[t])
        most_first = sorted(columns[a], key=lambda place: -weight(place))
        for t, place in zip(least_first, most_first, strict=True):
            order[columns[a][t]] = steps[place]
            sums[t] += weight(place)
    return list(chain(*order))


@pytest.mark.parametrize(("window", "align_ranks"), [(1, 1), (4, 1), (6, 2), (8, 4)])
@pytest.mark.parametrize("few", [False, True])
def test_loss_tokens_are_balanced_as_the_order_contract_says(window: int, align_ranks: int, few: bool) -> None:
    """With few lengths, costs and places decide; and with few weights, places."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = window * int(rng.integers(1, 8))
        sizes = rng.integers(1, 4, n)
        offsets = np.append(0, sizes.cumsum())
        values = rng.integers(0, 3 if few else 100, (3, n))
        batches = Batches(rng.permutation(offsets[-1]), offsets, values[0], values[1], np.arange(n, dtype=np.int32))
        moved = batches.balanced(values[2], window, align_ranks)
        order = balanced(*values.tolist(), window, align_ranks)
        assert moved.buckets.tolist() == order
        assert as_lists(moved) == [as_lists(batches)[b] for b in order]
        assert moved.padded_lengths.tolist() == values[0][order].tolist()
        assert moved.costs.tolist() == values[1][order].tolist()


def test_an_epoch_is_balanced_by_its_loss_tokens() -> None:
    loss_tokens = np.random.default_rng(0).integers(0, SMALL + 1)
    options: dict[str, Any] = {"window": 6, "world_size": 2, "balance_ranks": True}
    plain = make(**options).batches(0)
    order = balanced(plain.padded_lengths.tolist(), plain.costs.tolist(), plain.sums(loss_tokens).tolist(), 6, 2)
    assert as_lists(make(**options, loss_tokens=loss_tokens).batches(0)) == [as_lists(plain)[b] for b in order]


def test_loss_tokens_leave_windows_of_one_batch_alone() -> None:
    assert as_lists(make(loss_tokens=SMALL // 2).batches(0)) == as_lists(make().batches(0))


def test_what_the_caller_writes_later_changes_nothing() -> None:
    lengths, loss_tokens = SMALL.copy(), SMALL // 2
    schedule = make(lengths, loss_tokens=loss_tokens)
    before = schedule.steps(schedule.batches(0))
    lengths[:], loss_tokens[:] = 1, 0
    after = schedule.steps(schedule.batches(0))
    assert np.array_equal(after.real_tokens, before.real_tokens)
    assert np.array_equal(after.loss_tokens, before.loss_tokens)  # type: ignore[arg-type]
    for arrays in (schedule, pickle.loads(pickle.dumps(schedule))):
        for array in (arrays.lengths, arrays.loss_tokens):
            assert array is not None
            assert not array.flags.writeable


def test_a_schedule_of_other_samples_has_another_identity() -> None:
    some, more = make(loss_tokens=SMALL, min_loss_tokens=10), make(loss_tokens=SMALL, min_loss_tokens=11)
    assert some.identity != more.identity
    message = (
        "state is of another plan: min_loss_tokens = 11 (saved with 10); build the sampler as it was when the state "
        "was saved, or begin the epoch anew with set_epoch"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        more.position_of(some.state_of(some.start_of(0)))
