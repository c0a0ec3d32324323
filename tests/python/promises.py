"""Every promise that can be read off a plan and its lengths, as one check; no packing is repeated here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle
from bucketshuffle import EpochPlan
from inputs import cost_of


def assert_is_plan_of_oracle(plan: EpochPlan, expected: oracle.Plan) -> None:
    """`plan` is what the oracle has planned, in every array and count that both have."""
    assert plan.boundaries.tolist() == expected.boundaries
    assert plan.indices.tolist() == [i for batch in expected.batches for i in batch]
    assert np.diff(plan.offsets).tolist() == [len(batch) for batch in expected.batches]
    assert plan.padded_lengths.tolist() == expected.padded_lengths
    assert plan.buckets.tolist() == expected.buckets
    assert plan.dropped.tolist() == expected.dropped
    assert plan.stats.n_splits == expected.n_splits
    assert plan.stats.closed_by_budget == expected.closed_by_budget
    assert plan.stats.closed_by_max_batch_size == expected.closed_by_max_batch_size
    assert plan.stats.closed_by_bucket_end == expected.closed_by_bucket_end


def assert_promises_kept(plan: EpochPlan, lengths: Sequence[int], **options: Any) -> None:
    """`plan` is what `pack_epoch(lengths, seed, **options)` may return."""
    lengths = [int(length) for length in lengths]
    cost = cost_of(options, lengths)
    batches = [[int(i) for i in batch] for batch in plan]
    out = [i for i, admitted in enumerate(options.get("admitted") or []) if not admitted]
    overlong = [i for i, length in enumerate(lengths) if length > 0 and cost.overlong(length) and i not in out]
    zeros = [i for i, length in enumerate(lengths) if length == 0 and i not in out]

    # Every admitted sample appears once; what does not appear is in `dropped`.
    dropped = sorted(out + zeros + (overlong if options.get("overlong", "error") == "drop" else []))
    assert plan.dropped.tolist() == dropped
    assert sorted(plan.indices.tolist()) == sorted(set(range(len(lengths))) - set(dropped))

    # The arrays say the same in their own ways.
    assert len(plan) == len(batches) == len(plan.padded_lengths) == len(plan.buckets) == len(plan.offsets) - 1
    assert plan.offsets[0] == 0
    assert plan.offsets[-1] == len(plan.indices)
    assert all(batches), "an empty batch"
    assert [i for batch in batches for i in batch] == plan.indices.tolist()

    columns = (plan.padded_lengths.tolist(), plan.costs.tolist(), plan.buckets.tolist())
    for batch, padded_length, batch_cost, bucket in zip(batches, *columns, strict=True):
        longest = max(lengths[i] for i in batch)
        assert padded_length == cost.padded(longest)
        assert batch_cost == min(len(batch) * cost.sample(longest), 2**63 - 1)
        if bucket == -1:
            assert len(batch) == 1
            assert cost.overlong(longest)
            continue
        assert len(batch) * cost.sample(longest) <= cost.token_budget
        assert cost.max_batch_size is None or len(batch) <= cost.max_batch_size
        low, high = plan.boundaries[bucket : bucket + 2].tolist()
        soft = options.get("strategy", "bucketed") == "bucketed" and options.get("boundaries", "auto") == "auto"
        assert all(low < lengths[i] <= high for i in ([max(batch, key=lambda i: lengths[i])] if soft else batch))

    if options.get("constant_count"):
        assert len(plan) % options.get("window", 1) == 0

    assert_stats_true(plan, lengths, cost)


def assert_stats_true(plan: EpochPlan, lengths: Sequence[int], cost: oracle.Cost) -> None:
    """Every figure of `plan.stats` that follows from the plan and the lengths."""
    stats = plan.stats
    sizes = np.diff(plan.offsets).tolist()
    padded_lengths = plan.padded_lengths.tolist()
    real = sum(lengths[i] for i in plan.indices.tolist())
    padded = sum(size * length for size, length in zip(sizes, padded_lengths, strict=True))
    assert stats.n_samples == len(plan.indices)
    assert stats.n_batches == len(plan)
    assert stats.real_tokens == real
    assert stats.padded_tokens == padded
    priced = sum(size * cost.sample(length) for size, length in zip(sizes, padded_lengths, strict=True))
    assert stats.cost == priced
    assert stats.budget_tokens == len(plan) * cost.token_budget
    assert stats.padding_ratio == (padded / real if real else 1.0)
    assert stats.fill == (priced / stats.budget_tokens if len(plan) else 0.0)
    assert stats.n_shapes == len(set(zip(sizes, padded_lengths, strict=True)))
    assert stats.n_dropped == len(plan.dropped)
    assert stats.dropped_tokens == sum(lengths[i] for i in plan.dropped.tolist())
    n_closed = stats.closed_by_budget + stats.closed_by_max_batch_size + stats.closed_by_bucket_end
    assert n_closed + stats.n_splits == len(plan)
    assert stats.closed_by_budget >= plan.buckets.tolist().count(-1)
    if cost.max_batch_size is None:
        assert stats.closed_by_max_batch_size == 0
