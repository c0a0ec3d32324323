"""Batches for evaluation: every sample once, as many on every rank, and the outputs back in order."""

from __future__ import annotations

import pickle
import re
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import uneven_lengths
from hypothesis import given
from hypothesis import strategies as st
from processes import EXAMPLES, run_script
from test_examples import needs

torch = pytest.importorskip("torch")

from bucketshuffle import Planner  # noqa: E402
from bucketshuffle.torch import OrderedBatchSampler, PadCollator, PreloadedDataset  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


def ranks(lengths: Any, world_size: int, **options: Any) -> list[OrderedBatchSampler]:
    return [OrderedBatchSampler(lengths, rank=r, world_size=world_size, **options) for r in range(world_size)]


def steps_of(samplers: list[OrderedBatchSampler]) -> list[tuple[list[int], ...]]:
    return list(zip(*samplers, strict=True))


@given(
    lengths=st.lists(st.integers(1, 60), max_size=80),
    world_size=st.integers(1, 5),
    token_budget=st.integers(80, 400),
    max_batch_size=st.none() | st.integers(1, 6),
    pad_to_multiple_of=st.sampled_from([1, 8]),
    per_sample=st.sampled_from([0, 7]),
    quadratic_length=st.none() | st.just(300),
)
def test_every_rank_reads_as_much_within_the_budget(
    lengths: list[int],
    world_size: int,
    token_budget: int,
    max_batch_size: int | None,
    pad_to_multiple_of: int,
    per_sample: int,
    quadratic_length: int | None,
) -> None:
    samplers = ranks(
        lengths,
        world_size,
        token_budget=token_budget,
        max_batch_size=max_batch_size,
        pad_to_multiple_of=pad_to_multiple_of,
        per_sample=per_sample,
        quadratic_length=quadratic_length,
        overlong="keep",
    )
    steps = steps_of(samplers)
    assert [len(sampler) for sampler in samplers] == [len(steps)] * world_size
    read = list(chain.from_iterable(chain.from_iterable(steps)))
    assert read == samplers[0].order.tolist()
    assert sorted(read[: len(lengths)]) == list(range(len(lengths)))
    assert read[len(lengths) :] == (-len(lengths) % world_size) * read[len(lengths) - 1 : len(lengths)]
    assert [lengths[i] for i in read] == sorted((lengths[i] for i in read), reverse=True)

    def row_cost(longest: int) -> int:
        padded = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
        return per_sample + padded + (-(-(padded**2) // quadratic_length) if quadratic_length else 0)

    for i, step in enumerate(steps):
        (size,) = {len(batch) for batch in step}
        longest = max(lengths[sample] for batch in step for sample in batch)
        assert size == 1 or size * row_cost(longest) <= token_budget
        assert max_batch_size is None or size <= max_batch_size
        if i + 1 < len(steps):
            assert size == max_batch_size or (size + 1) * row_cost(longest) > token_budget


@given(
    lengths=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=1, max_size=60),
    world_size=st.integers(1, 4),
    token_budget=st.integers(130, 500),
    combine=st.sampled_from(["sum", "max"]),
)
def test_every_field_counts_in_the_budget(
    lengths: list[tuple[int, int]], world_size: int, token_budget: int, combine: Any
) -> None:
    of_sample = {"sum": sum, "max": max}[combine]
    samplers = ranks(np.array(lengths), world_size, token_budget=token_budget, combine=combine)
    steps = steps_of(samplers)
    read = list(chain.from_iterable(chain.from_iterable(steps)))
    assert sorted(read[: len(lengths)]) == list(range(len(lengths)))
    costs = [of_sample(lengths[i]) for i in read]
    assert costs == sorted(costs, reverse=True)
    for i, step in enumerate(steps):
        (size,) = {len(batch) for batch in step}
        together = list(chain.from_iterable(step))
        first_left = sum(len(batch) for earlier in steps[:i] for batch in earlier)
        longest = of_sample(max(of_field) for of_field in zip(*(lengths[j] for j in together), strict=True))
        assert size == 1 or size * longest <= token_budget
        if i + 1 < len(steps):
            more = read[first_left : first_left + len(together) + world_size]
            longest = of_sample(max(of_field) for of_field in zip(*(lengths[j] for j in more), strict=True))
            assert (size + 1) * longest > token_budget


@pytest.mark.parametrize("n_samples", [0, 1, 3, 60, 61])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("by_rank", [False, True])
@pytest.mark.parametrize("as_kind", [torch.tensor, np.array, list])
def test_outputs_return_in_the_order_of_the_data_set(
    n_samples: int, world_size: int, by_rank: bool, as_kind: Any
) -> None:
    samplers = ranks(uneven_lengths(n_samples, longest=40), world_size, token_budget=90)
    steps = steps_of(samplers)
    gathered = zip(*steps, strict=True) if by_rank else steps
    read = [[sample, -sample] for sample in chain.from_iterable(chain.from_iterable(gathered))]
    outputs = as_kind(read) if read or as_kind is list else as_kind(np.zeros((0, 2), np.int64))
    for sampler in samplers:
        restored = sampler.restore({"both": outputs, "first": outputs[:]}, by_rank=by_rank)
        assert restored.keys() == {"both", "first"}
        assert type(restored["both"]) is type(outputs)
        for rows in restored.values():
            assert [list(map(int, row)) for row in rows] == [[i, -i] for i in range(n_samples)]
        if not by_rank:  # As accelerate drops what was read again.
            assert np.array_equal(np.asarray(sampler.restore(outputs[:n_samples])), np.asarray(restored["both"]))


def test_rows_of_one_rank_or_one_batch_are_refused() -> None:
    lengths = uneven_lengths(61, longest=40)
    alone, (first, _) = OrderedBatchSampler(lengths, token_budget=90), ranks(lengths, 2, token_budget=90)
    for sampler, n_rows, by_rank, message in [
        (alone, 5, False, "outputs has 5 rows, but 61 samples were read"),
        (alone, 62, False, "outputs has 62 rows, but 61 samples were read"),
        (
            first,
            31,
            False,
            "outputs has 31 rows, but 62 samples were read, 1 of them again on 2 ranks; gather the rows of all",
        ),
        (
            first,
            61,
            True,
            "outputs has 61 rows, but 62 samples were read, 1 of them again on 2 ranks; gather the rows of all",
        ),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            sampler.restore([0] * n_rows, by_rank=by_rank)
    with pytest.raises(ValueError, match=r"^outputs\['losses'\] has 5 rows, but 61 samples were read$"):
        alone.restore({"losses": torch.zeros(5)})
    with pytest.raises(TypeError, match=r"^by_rank = 1 is not True or False$"):
        alone.restore([0] * 61, by_rank=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(
            (
                {name: value},
                TypeError,
                f"{name} is no option of OrderedBatchSampler; its options are token_budget, max_batch_size, "
                "pad_to_multiple_of, padded_lengths, per_sample, quadratic_length, field_weights, combine, overlong, "
                "empty, threads",
            )
            for name, value in {
                "boundaries": 3,
                "strategy": "sorted",
                "admitted": [True, False],
                "domains": [1, 2],
                "min_batch_size": 2,
                "window": 2,
            }.items()
        ),
        (
            {"overlong": "drop"},
            ValueError,
            'overlong = "drop" leaves samples without outputs; choose another policy, or evaluate on a data set '
            "without them",
        ),
        (
            {"empty": "drop"},
            ValueError,
            'empty = "drop" leaves samples without outputs; choose another policy, or evaluate on a data set '
            "without them",
        ),
        (
            {"token_budget": 8},
            ValueError,
            'lengths[1] = 9 exceeds token_budget = 8; raise token_budget, or set overlong="drop" or "keep" '
            "(1 of 2 samples are over-long, the longest is 9)",
        ),
        ({"rank": 2, "world_size": 2}, ValueError, "rank = 2 is not below world_size = 2; ranks count from 0"),
    ],
)
def test_what_does_not_apply_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        OrderedBatchSampler([3, 9], **options)


def test_it_pads_as_little_as_sorted_order() -> None:
    lengths = uneven_lengths(5_000, longest=900)
    options: dict[str, Any] = {"token_budget": 16_384, "pad_to_multiple_of": 8}
    least = Planner(lengths, strategy="sorted", **options).plan(0).stats
    sampler = OrderedBatchSampler(lengths, **options)
    padded = sum(len(batch) * (-(-int(lengths[batch].max()) // 8) * 8) for batch in sampler)
    # Both are greedy, from either end of the lengths: they differ by less than one batch of the longest.
    assert padded <= least.padded_tokens + options["token_budget"]


def test_every_pass_and_every_copy_is_the_same() -> None:
    sampler = OrderedBatchSampler(uneven_lengths(60, longest=40), token_budget=90, rank=1, world_size=2)
    copy = pickle.loads(pickle.dumps(sampler))
    assert list(sampler) == list(sampler) == list(copy)
    assert repr(copy) == f"OrderedBatchSampler(n_samples=60, rank=1, world_size=2, n_batches={len(sampler)})"


def test_a_loader_with_workers_reads_planned_shapes() -> None:
    lengths = uneven_lengths(60, longest=40)
    offsets = np.append(0, np.cumsum(lengths))
    sampler = OrderedBatchSampler(lengths, token_budget=90, pad_to_multiple_of=4)
    collator = PadCollator(padding_of=sampler, sample_indices=True)
    data = PreloadedDataset(np.arange(offsets[-1]), offsets, collator=collator)
    batches = list(DataLoader(data, batch_sampler=sampler, collate_fn=data.collate, num_workers=2))
    assert [batch["sample_indices"].tolist() for batch in batches] == list(sampler)
    assert all(batch["input_ids"].shape[1] % 4 == 0 and batch["input_ids"].numel() <= 90 for batch in batches)
    firsts = sampler.restore(torch.cat([batch["input_ids"][:, 0] for batch in batches]))
    assert firsts.tolist() == offsets[:-1].tolist()


@pytest.fixture(scope="module")
def losses_of_each() -> tuple[list[float], list[int]]:
    """Of the recipes' model and data, one sample at a time."""
    with pytest.MonkeyPatch.context() as path:
        path.syspath_prepend(str(EXAMPLES))
        from tiny import Model, labelled_dataset

    torch.manual_seed(0)
    model, data = Model(), labelled_dataset(241)
    with torch.no_grad():
        found = [model.losses(**data.batch([i])) for i in range(241)]
    return [float(losses) for losses, _ in found], [int(n_tokens) for _, n_tokens in found]


@pytest.mark.parametrize(
    ("script", "n_processes", "options"),
    [
        pytest.param("evaluate_accelerate.py", 0, (), marks=needs("accelerate")),
        pytest.param("evaluate_accelerate.py", 2, (), marks=needs("accelerate")),
        pytest.param("evaluate_hf_trainer.py", 0, (), marks=needs("transformers", "accelerate")),
        pytest.param("evaluate_hf_trainer.py", 2, (), marks=needs("transformers", "accelerate")),
        pytest.param("evaluate_lightning.py", 0, ("--devices", 1), marks=needs("lightning")),
        pytest.param("evaluate_lightning.py", 0, ("--devices", 2), marks=needs("lightning")),
    ],
)
@pytest.mark.timeout(300)
def test_the_loss_of_a_recipe_does_not_depend_on_the_budget(
    tmp_path: Path,
    losses_of_each: tuple[list[float], list[int]],
    script: str,
    n_processes: int,
    options: tuple[object, ...],
) -> None:
    losses, n_tokens = losses_of_each
    for token_budget in (200, 4_000):
        out = tmp_path / str(token_budget)
        arguments = ("--out", out, "--token-budget", token_budget, *options)
        printed = run_script(EXAMPLES / script, *arguments, n_processes=n_processes)
        found = np.load(out / "losses.npy")
        np.testing.assert_allclose(found, [losses, n_tokens], rtol=1e-5)
        (loss,) = re.findall(r"^loss (\S+)$", printed, re.MULTILINE)
        assert float(loss) == pytest.approx(sum(losses) / sum(n_tokens), rel=2e-6)
