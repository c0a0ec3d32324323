"""The plan, the collator and the data set agree about what a batch is padded to."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from bucketshuffle import Planner
from bucketshuffle.schedule import Schedule
from bucketshuffle.torch import BucketBatchSampler, PadCollator, PreloadedDataset
from conftest import uneven_lengths
from torch.utils.data import DataLoader

LENGTHS = uneven_lengths(300, longest=200).tolist()
ROWS = [{"input_ids": list(range(n))} for n in LENGTHS]
OPTIONS: list[dict[str, Any]] = [
    {"padded_lengths": 5},
    {"padded_lengths": [32, 90, 200]},
    {"padded_lengths": 4, "pad_to_multiple_of": 16},
    {"pad_to_multiple_of": 16},
    {},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("flat", [False, True])
def test_the_collator_pads_to_what_the_sampler_plans(options: dict[str, Any], flat: bool) -> None:
    sampler = BucketBatchSampler(LENGTHS, token_budget=1_000, **options)
    collate = PadCollator(padding_of=sampler)
    data: Any = PreloadedDataset.from_rows({"input_ids": [row["input_ids"] for row in ROWS]}, collator=collate)
    loader = DataLoader(
        data if flat else ROWS,  # type: ignore[arg-type]
        batch_sampler=sampler,
        collate_fn=data.collate if flat else collate,
    )
    shapes = [tuple(batch["input_ids"].shape) for batch in loader]
    steps = sampler.steps(0)
    assert shapes == list(zip(steps.n_samples.ravel().tolist(), steps.padded_lengths.ravel().tolist(), strict=True))
    assert all(n * length <= 1_000 for n, length in shapes)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_rest_divided_among_other_ranks_keeps_the_padded_lengths(options: dict[str, Any]) -> None:
    state = BucketBatchSampler(LENGTHS, token_budget=1_000, **options).state_dict()
    state["position"] = 1
    samplers = [
        BucketBatchSampler(LENGTHS, token_budget=1_000, rank=r, world_size=3, window=3, **options) for r in (0, 1)
    ]
    for sampler in samplers:
        sampler.load_state_dict(state)
        collate = PadCollator(padding_of=sampler)
        planned = sampler.steps().padded_lengths[:, sampler.rank].tolist()
        assert [collate([ROWS[i] for i in batch])["input_ids"].shape[1] for batch in sampler] == planned


def test_planner_schedule_and_sampler_give_one_padding() -> None:
    options: dict[str, Any] = {"token_budget": 1_000, "padded_lengths": 5}
    given = (Planner(LENGTHS, **options), Schedule(LENGTHS, **options), BucketBatchSampler(LENGTHS, **options))
    collators = [PadCollator(padding_of=of) for of in given]
    assert len({collator.padding for collator in collators}) == 1
    [(_, padded_lengths)] = collators[0].padding_by(["main"])
    assert len(padded_lengths) == 5
    assert pickle.loads(pickle.dumps(collators[0])).padding == collators[0].padding


def test_build_batches_plans_for_the_collators_padded_lengths() -> None:
    collate = PadCollator(padding_of=Planner(LENGTHS, padded_lengths=[32, 90, 200]))
    data = PreloadedDataset.from_rows({"input_ids": [row["input_ids"] for row in ROWS]}, collator=collate)
    assert set(data.build_batches(0, token_budget=1_000).padded_lengths.tolist()) <= {32, 90, 200}
    message = (
        "padded_lengths are not those of the collator, which would pad to others; make the collator with padding_of, "
        "or leave padded_lengths out"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data.build_batches(0, token_budget=1_000, padded_lengths=[200])


def test_two_ways_to_pad_are_refused() -> None:
    message = "pad_to_multiple_of has no effect with padding_of; leave pad_to_multiple_of out"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        PadCollator(padding_of=Planner([3]), pad_to_multiple_of=8)
    message = "padding_of is a int, not a sampler, a Schedule or a Planner; pass what plans the batches"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        PadCollator(padding_of=8)
