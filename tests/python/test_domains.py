"""Domains share no batch, windows draw from all of them, and no batch is smaller than asked."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucketshuffle import EpochPlan, Planner, pack_epoch
from bucketshuffle.torch import BucketBatchSampler
from conftest import examples, uneven_lengths
from hypothesis import given
from hypothesis import strategies as st
from inputs import WORDS, problems
from test_fields import pairs

LENGTHS = uneven_lengths(6_000)
DOMAINS = np.where(np.arange(6_000) % 10 < 6, 7, np.where(np.arange(6_000) % 10 < 9, -2, 40))
"""60 % are 7, 30 % are -2, 10 % are 40."""


def assert_promises_of_domains(plan: EpochPlan, lengths: Any, domains: Any, token_budget: int) -> None:
    lengths, domains = np.asarray(lengths), np.asarray(domains)
    assert sorted([*plan.indices.tolist(), *plan.dropped.tolist()]) == list(range(len(lengths)))
    for batch, domain, bucket, cost in zip(plan, plan.domains, plan.buckets, plan.costs, strict=True):
        assert set(domains[batch].tolist()) == {domain}
        if bucket >= 0:
            assert cost <= token_budget
            largest = int(lengths[batch].max())
            assert plan.boundaries[bucket] < largest <= plan.boundaries[bucket + 1]
    stats = plan.domain_stats
    assert sum(of_domain.n_samples for of_domain in stats.values()) == plan.stats.n_samples
    assert sum(of_domain.n_batches for of_domain in stats.values()) == len(plan)
    assert sum(of_domain.padded_tokens for of_domain in stats.values()) == plan.stats.padded_tokens
    for value, of_domain in stats.items():
        mine = plan.indices[domains[plan.indices] == value]
        assert (of_domain.n_samples, of_domain.real_tokens) == (len(mine), int(lengths[mine].sum()))


@examples(300)
@given(problem=problems(), seed=WORDS, data=st.data())
def test_no_batch_mixes_domains_under_any_options(
    problem: tuple[list[int], dict[str, Any]], seed: int, data: st.DataObject
) -> None:
    lengths, options = problem
    domains = data.draw(st.lists(st.integers(-2, 2), min_size=len(lengths), max_size=len(lengths)))
    try:
        plan = pack_epoch(lengths, seed, domains=domains, **options)
    except ValueError:
        return  # what is refused without domains, or too few samples for the count
    if len(plan):
        assert_promises_of_domains(plan, lengths, domains, options["token_budget"])
    if options["constant_count"]:
        options.pop("epoch")
        assert len(plan) == Planner(lengths, domains=domains, **options).n_batches()


@pytest.mark.parametrize(
    "options", [{}, {"boundaries": 4}, {"strategy": "random"}, {"window": 8, "constant_count": True}]
)
def test_one_domain_is_planned_as_none(options: dict[str, Any]) -> None:
    plan, one = pack_epoch(LENGTHS, 1, **options), pack_epoch(LENGTHS, 1, domains=np.full(6_000, 3), **options)
    assert one.domains.tolist() == [3] * len(plan)
    for name in ("indices", "offsets", "padded_lengths", "costs", "buckets", "boundaries"):
        assert np.array_equal(getattr(one, name), getattr(plan, name)), name


def test_every_window_draws_from_all_domains_by_their_share() -> None:
    plan = pack_epoch(LENGTHS, 0, domains=DOMAINS, token_budget=16_384, window=20)
    whole = {value: of_domain.n_batches / len(plan) for value, of_domain in plan.domain_stats.items()}
    assert list(whole) == [-2, 7, 40]
    for start in range(0, len(plan) - 19, 20):
        window = plan.domains[start : start + 20].tolist()
        for value, share in whole.items():
            # A stratum at the end of a domain may be of the next one.
            assert abs(window.count(value) - 20 * share) <= 2


def test_the_numbers_of_the_domains_change_nothing_but_their_order() -> None:
    plan, other = (pack_epoch(LENGTHS, 0, domains=DOMAINS * k, token_budget=16_384) for k in (1, 1_000))
    assert plan.indices.tolist() == other.indices.tolist()
    assert (plan.domains * 1_000).tolist() == other.domains.tolist()


def test_domains_of_samples_with_several_lengths() -> None:
    lengths = pairs(3_000, 0.5)
    domains = np.arange(3_000) % 3
    plan = pack_epoch(lengths, 0, domains=domains, token_budget=16_384, window=6, constant_count=True)
    assert len(plan) % 6 == 0
    for batch, padded_lengths, domain in zip(plan, plan.padded_lengths, plan.domains, strict=True):
        assert set(domains[batch].tolist()) == {domain}
        assert padded_lengths.tolist() == lengths[batch].max(0).tolist()
        assert len(batch) * padded_lengths.sum() <= 16_384


def test_a_plan_and_a_planner_of_domains_are_kept_whole(tmp_path: Path) -> None:
    planner = Planner(LENGTHS, domains=DOMAINS)
    plan = planner.plan(0)
    plan.save(tmp_path / "plan.npz")
    assert EpochPlan.load(tmp_path / "plan.npz") == plan
    assert EpochPlan.load(tmp_path / "plan.npz").domain_stats == plan.domain_stats
    assert pickle.loads(pickle.dumps(planner)).plan(0) == plan
    assert pack_epoch(LENGTHS, 0, domains=DOMAINS) == plan


def test_a_sampler_keeps_domains_apart_on_every_way() -> None:
    loss_tokens = LENGTHS // 2
    options: dict[str, Any] = {"seed": 0, "token_budget": 16_384, "loss_tokens": loss_tokens, "worst_first": True}
    ranks = [BucketBatchSampler(LENGTHS, domains=DOMAINS, rank=rank, world_size=2, **options) for rank in range(2)]
    seen: list[int] = []
    for of_rank in ranks:
        it = iter(of_rank)
        seen += [i for _ in range(5) for i in next(it)]
    state = ranks[0].state_dict()
    for rank in range(3):
        again = BucketBatchSampler(LENGTHS, domains=DOMAINS, rank=rank, world_size=3, **options)
        again.load_state_dict(state)
        for batch in again:
            assert len(set(DOMAINS[batch].tolist())) == 1
            seen += batch
    assert sorted(seen) == list(range(6_000))
    with pytest.raises(ValueError, match="state is of another plan: domains"):
        BucketBatchSampler(LENGTHS, rank=0, world_size=1, **options).load_state_dict(state)


@examples(300)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=120),
    min_batch_size=st.integers(2, 6),
    extra=st.integers(0, 400),
    seed=WORDS,
    options=st.fixed_dictionaries(
        {},
        optional={
            "boundaries": st.sampled_from([1, 3]),
            "max_batch_size": st.integers(11, 20),
            "constant_count": st.just(True),
            "padding_target": st.just(0.2),
        },
    ),
)
def test_every_batch_has_the_least_size(
    lengths: list[int], min_batch_size: int, extra: int, seed: int, options: dict[str, Any]
) -> None:
    if "boundaries" in options:
        options.pop("padding_target", None)
    token_budget = max(lengths) * (2 * min_batch_size - 1) + extra
    try:
        plan = pack_epoch(lengths, seed, token_budget=token_budget, min_batch_size=min_batch_size, **options)
    except ValueError as error:
        assert "min_batch_size" in str(error)  # noqa: PT017
        return
    assert sorted(plan.indices.tolist()) == list(range(len(lengths)))
    assert np.diff(plan.offsets).min() >= min_batch_size
    assert (plan.costs <= token_budget).all()
    stats = plan.stats
    n_closed = stats.closed_by_budget + stats.closed_by_max_batch_size + stats.closed_by_bucket_end
    assert n_closed + stats.n_splits == len(plan)
    if options.get("constant_count"):
        planner = Planner(lengths, token_budget=token_budget, min_batch_size=min_batch_size, **options)
        assert len(plan) == planner.n_batches()


def test_a_least_size_moves_the_last_batches_alone() -> None:
    lengths = np.full(101, 10)
    sizes = [sorted(np.diff(pack_epoch(lengths, 0, token_budget=100, min_batch_size=m).offsets)) for m in (1, 5)]
    assert sizes == [[1] + [10] * 10, [5, 6] + [10] * 9]
    joined = pack_epoch(np.full(11, 10), 0, token_budget=110, min_batch_size=5, max_batch_size=None)
    assert np.diff(joined.offsets).tolist() == [11]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"domains": [1, 2]}, "domains has 2 entries, lengths has 3; pass one integer for each sample"),
        (
            {"min_batch_size": 2, "overlong": "keep"},
            'min_batch_size = 2 cannot be kept: overlong = "keep" gives long samples a batch of their own; set '
            'overlong="drop"',
        ),
        (
            {"min_batch_size": 3, "token_budget": 40},
            "min_batch_size = 3 cannot be kept: a batch holds 4 of the longest samples, fewer than 2 * min_batch_size "
            "- 1 = 5; lower it, or raise token_budget or max_batch_size",
        ),
        (
            {"min_batch_size": 4},
            "min_batch_size = 4 cannot be kept: a bucket has 3 samples; lower it, or set fewer boundaries",
        ),
        (
            {"min_batch_size": 2, "domains": [0, 0, 9]},
            "min_batch_size = 2 cannot be kept: domain 9 has 1 samples; lower it, or leave them out with admitted",
        ),
        (
            {"min_batch_size": 2, "constant_count": True},
            "min_batch_size = 2 cannot be kept: constant_count with window = 1 asks for 1 batches, more than 3 samples "
            "make when halves hold as many; lower window (in a sampler: world_size * accumulation_steps)",
        ),
        ({"min_batch_size": 0}, f"min_batch_size = 0 is outside [1, {2**63 - 1}]; choose a value in that range"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        pack_epoch([10, 10, 10], 0, **arguments)
    assert str(raised.value) == message


def test_domains_of_the_wrong_kind_are_refused_by_name() -> None:
    with pytest.raises(TypeError) as raised:
        pack_epoch([10, 10], 0, domains=[0.5, 1])
    message = (
        "domains has dtype float64, not an integer dtype; convert with .astype(numpy.int64) if the values are whole"
    )
    assert str(raised.value) == message
