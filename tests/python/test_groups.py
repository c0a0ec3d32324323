"""Keys of other lengths than the main ones: each group is padded to its own longest, from samples and from buffers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bucketshuffle import Planner
from bucketshuffle.torch import BucketBatchSampler, Feed, PadCollator, PreloadedDataset, check_loader
from torch.utils.data import DataLoader

GROUPS = {"decoder": ["labels", "decoder_input_ids"]}


def rows(n: int, seed: int = 0) -> dict[str, list[Any]]:
    """Samples of two lengths, the second of about half the first."""
    rng = np.random.Generator(np.random.PCG64(seed))
    sources = rng.integers(3, 60, n)
    targets = np.maximum(sources // 2 + rng.integers(-2, 3, n), 1)
    return {
        "input_ids": [rng.integers(1, 99, k).tolist() for k in sources],
        "labels": [rng.integers(1, 99, k).tolist() for k in targets],
        "decoder_input_ids": [rng.integers(1, 99, k).tolist() for k in targets],
        "weight": rng.random(n).tolist(),
    }


def items(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def padded(column: list[list[int]], fill: int, multiple: int = 1, left: bool = False) -> list[list[int]]:
    """Rows padded in plain Python."""
    length = -(-max(map(len, column)) // multiple) * multiple
    padding = [[fill] * (length - len(row)) for row in column]
    return [pad + row if left else row + pad for pad, row in zip(padding, column, strict=True)]


def test_each_group_is_padded_to_its_own_longest_with_its_own_rules() -> None:
    columns = rows(5)
    collate = PadCollator(
        {"decoder_input_ids": 7},
        groups=GROUPS,
        side={"decoder": "left"},
        pad_to_multiple_of={"main": 16},
        lengths=True,
        position_ids=True,
    )
    batch = collate(items(columns))
    assert batch["input_ids"].tolist() == padded(columns["input_ids"], 0, 16)
    assert batch["labels"].tolist() == padded(columns["labels"], -100, left=True)
    assert batch["decoder_input_ids"].tolist() == padded(columns["decoder_input_ids"], 7, left=True)
    ones = {name: [[1] * len(row) for row in columns[name]] for name in ("input_ids", "labels")}
    assert batch["attention_mask"].tolist() == padded(ones["input_ids"], 0, 16)
    assert batch["decoder_attention_mask"].tolist() == padded(ones["labels"], 0, left=True)
    assert batch["lengths"].tolist() == list(map(len, columns["input_ids"]))
    assert batch["decoder_lengths"].tolist() == list(map(len, columns["labels"]))
    counted = [list(range(len(row))) for row in columns["labels"]]
    assert batch["decoder_position_ids"].tolist() == padded(counted, 0, left=True)
    assert batch["weight"].tolist() == pytest.approx(columns["weight"])


def test_masks_get_other_names_or_none() -> None:
    collate = PadCollator(groups=GROUPS, mask_names={"main": "mask", "decoder": None})
    assert [name for name in collate(items(rows(2))) if "mask" in name] == ["mask"]


def test_samples_without_labels_have_one_group_less() -> None:
    collate = PadCollator(groups={"target": ["labels"]})
    batch = collate([{"input_ids": [1, 2]}, {"input_ids": [3]}])
    assert set(batch) == {"input_ids", "attention_mask"}


def test_groups_may_name_every_key() -> None:
    pair = {"chosen": [1, 2, 3], "rejected": [4]}
    batch = PadCollator(groups={"a": ["chosen"], "b": ["rejected"]})([pair, pair])
    assert set(batch) == {"chosen", "rejected", "a_attention_mask", "b_attention_mask"}
    assert batch["rejected"].shape == (2, 1)


@pytest.mark.parametrize("saved", [False, True], ids=["memory", "file"])
def test_a_preloaded_data_set_makes_the_batches_of_the_collator(saved: bool, tmp_path: Path) -> None:
    columns = rows(40)
    collate = PadCollator(groups=GROUPS, side={"decoder": "left"}, lengths=True)
    data = PreloadedDataset.from_rows(columns, collator=collate)
    if saved:
        data.save(tmp_path / "pairs.safetensors")
        data = PreloadedDataset.open(tmp_path / "pairs.safetensors", collator=collate)
        assert set(PreloadedDataset.open(tmp_path / "pairs.safetensors").collator.groups["decoder"]) == set(
            GROUPS["decoder"]
        )
    assert data.lengths.tolist() == [
        [len(source), len(target)] for source, target in zip(columns["input_ids"], columns["labels"], strict=True)
    ]
    samples = [7, 3, 39, 3]
    expected, batch = collate([items(columns)[i] for i in samples]), data.batch(samples)
    assert batch.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(batch[name], tensor), name
    assert data[3]["labels"].tolist() == columns["labels"][3]
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.batch(samples)["labels"], expected["labels"])


def test_out_takes_the_fields_of_every_group() -> None:
    data = PreloadedDataset.from_rows(rows(6), collator=PadCollator(groups=GROUPS))
    out = {"input_ids": torch.empty(400, dtype=torch.int64), "labels": torch.empty(400, dtype=torch.int64)}
    batch, fresh = data.batch([0, 5], out=out), data.batch([0, 5])
    assert batch["labels"].data_ptr() == out["labels"].data_ptr()
    assert all(torch.equal(batch[name], fresh[name]) for name in fresh)
    shared = {"input_ids": out["input_ids"], "labels": out["input_ids"]}
    with pytest.raises(ValueError, match="shares memory with labels"):
        data.batch([0, 5], out=shared)


@pytest.mark.parametrize("named", [False, True], ids=["array", "names"])
def test_planned_batches_are_as_large_as_planned_on_every_way(named: bool) -> None:
    columns = rows(300)
    of_groups = {
        "main": [len(row) for row in columns["input_ids"]], "decoder": [len(row) for row in columns["labels"]]
    }  # fmt: skip
    lengths = dict(reversed(of_groups.items())) if named else np.stack(list(of_groups.values()), 1)
    multiples = {"pad_to_multiple_of": {"main": 8} if named else [8, 1]}
    sampler = BucketBatchSampler(lengths, seed=0, token_budget=640, rank=0, world_size=1, **multiples)
    collate = PadCollator(groups=GROUPS, padding_of=sampler)
    data = PreloadedDataset.from_rows(columns, collator=collate)
    steps = sampler.steps(0)
    order = [1, 0] if named else [0, 1]
    planned = steps.padded_lengths[:, 0, order].tolist()
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
    check_loader(loader, n_batches=3)
    shapes = [[batch["input_ids"].shape[1], batch["labels"].shape[1]] for batch in loader]
    assert shapes == planned
    sampler.set_epoch(0)
    fed = [(batch["input_ids"].shape[1], batch.info.padded_length) for batch in Feed(data, sampler).epochs(1)]
    assert [main for main, _ in fed] == [main for main, _ in planned]
    assert [tuple(lengths[i] for i in order) for _, lengths in fed] == [tuple(row) for row in planned]


def test_a_sampler_of_several_fields_resumes_on_other_ranks() -> None:
    columns = rows(400)
    lengths = np.array([[len(a), len(b)] for a, b in zip(columns["input_ids"], columns["labels"], strict=True)])

    def sampler(rank: int, world_size: int) -> BucketBatchSampler:
        return BucketBatchSampler(
            lengths, seed=3, token_budget=640, rank=rank, world_size=world_size, balance_ranks=True,
            worst_first=True, field_weights=[0.5, 1], pad_to_multiple_of=[8, 1],
        )  # fmt: skip

    before = [sampler(rank, 4) for rank in range(4)]
    assert len({len(of_rank) for of_rank in before}) == 1
    seen: list[int] = []
    states = []
    for of_rank in before:
        it = iter(of_rank)
        seen += [i for _ in range(3) for i in next(it)]
        states.append(of_rank.state_dict())
    assert all(state == states[0] for state in states)
    after = [sampler(rank, 3) for rank in range(3)]
    for of_rank in after:
        of_rank.load_state_dict(pickle.loads(pickle.dumps(states[0])))
        batches = list(of_rank)
        for batch in batches:
            longest = lengths[batch].max(0)
            cost = -(-longest[0] // 8) * 8 / 2 + longest[1]
            assert len(batch) * cost <= 640
        seen += [i for batch in batches for i in batch]
    assert sorted(seen) == list(range(400))
    other = BucketBatchSampler(lengths, seed=3, token_budget=640, rank=0, world_size=1)
    with pytest.raises(ValueError, match=r"state is of another plan: .*field_weights"):
        other.load_state_dict(states[0])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: PadCollator(groups=["labels"]), TypeError,  # type: ignore[arg-type]
            'groups is a list, not a mapping of names to keys; use {"target": ["labels"]}',
        ),
        (
            lambda: PadCollator(groups={"target": "labels"}), TypeError,
            "groups[\"target\"] = 'labels' is not a collection of keys; use {\"target\": [\"labels\"]}",
        ),
        (
            lambda: PadCollator(groups={"main": ["labels"]}), ValueError,
            "groups has the name 'main'; use letters, digits and \"_\", and another name than \"main\"",
        ),
        (
            lambda: PadCollator(groups={"a": ["labels"], "b": ["labels"]}), ValueError,
            '"labels" is in groups["a"] and in groups["b"]; leave one',
        ),
        (
            lambda: PadCollator(groups=GROUPS, side={"encoder": "left"}), ValueError,
            "side names 'encoder', which is no group; the groups are \"main\", \"decoder\"",
        ),
        (
            lambda: PadCollator(groups=GROUPS, side={"decoder": "top"}), ValueError,  # type: ignore[dict-item]
            'side["decoder"] = \'top\' is not one of "right", "left"',
        ),
        (
            lambda: PadCollator(groups=GROUPS, pad_to_multiple_of={"decoder": 0}), ValueError,
            f'pad_to_multiple_of["decoder"] = 0 is outside [1, {2**63 - 1}]; choose a value in that range',
        ),
        (
            lambda: PadCollator(groups={"target": ["label"]})([{"input_ids": [1]}]), ValueError,
            'groups names "label", which is not a per-token key; the samples have "input_ids"',
        ),
        (
            lambda: PadCollator(groups=GROUPS, padding_of=Planner([5]))(items(rows(2))),
            ValueError,
            "padding_of plans 1 fields, but the samples have the groups main, decoder; give the planner the lengths of "
            "each group",
        ),
        (
            lambda: PreloadedDataset({"a": [1, 2], "b": [1]}, [0, 2], collator=PadCollator(groups={"other": ["b"]})),
            ValueError,
            "offsets has no groups, but the collator makes main, other of the keys; pass one array of offsets for each "
            "group, and collator=PadCollator(groups=...)",
        ),
        (
            lambda: PreloadedDataset(
                {"a": [1, 2], "b": [1]}, {"main": [0, 2], "other": [0, 0, 1]},
                collator=PadCollator(groups={"other": ["b"]}),
            ),
            ValueError,
            "offsets has groups of different numbers of samples, {'main': 1, 'other': 2}; they belong to different "
            "data",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused_by_name(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert str(raised.value) == message


def test_a_collator_of_other_groups_is_refused(tmp_path: Path) -> None:
    data = PreloadedDataset.from_rows(rows(4), collator=PadCollator(groups=GROUPS))
    with pytest.raises(ValueError, match="not those of the data set; make it with them"):
        data.collator = PadCollator(groups={"decoder": ["labels"]})
    data.save(tmp_path / "pairs.safetensors")
    with pytest.raises(ValueError, match=r"but the collator has \{\}; make the collator with those of the file"):
        PreloadedDataset.open(tmp_path / "pairs.safetensors", collator=PadCollator())
