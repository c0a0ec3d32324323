"""PreloadedDataset: every source gives the same batches, and files that are not whole are refused."""

import importlib.util
import pickle
import re
import threading

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from bucketshuffle.lengths import lengths_of
from bucketshuffle.torch import PadCollator, PreloadedDataset
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

ROWS = [[1, 2, 3], [4], [], [5, 6]]
FLAT = np.array([1, 2, 3, 4, 5, 6], np.int32)
OFFSETS = [0, 3, 4, 4, 6]
LABELS = [[-1, -2, -3], [-4], [], [-5, -6]]
SCORES = [0.5, 1.5, 2.5, 3.5]


def refused(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def table(dtype=None):
    rows = pa.array(ROWS, dtype or pa.list_(pa.int32()))
    return pa.table({"input_ids": rows, "labels": pa.array(LABELS, pa.large_list(pa.int64())), "score": SCORES})


def equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        assert torch.equal(first[name], second[name])


EXPECTED = PadCollator()([{"input_ids": ROWS[i], "labels": LABELS[i]} for i in (3, 0, 2)])


def check(dataset):
    """The samples 3, 0, 2 of a data set over ROWS and LABELS."""
    batch = dataset.__getitems__([3, 0, 2])
    equal({name: batch[name] for name in EXPECTED}, EXPECTED)
    assert dataset.lengths.tolist() == [3, 1, 0, 2]
    assert dataset.lengths.dtype == np.int64
    if "score" in batch:
        assert batch["score"].tolist() == [3.5, 0.5, 2.5]


def npy(tmp_path):
    for name, values in (("ids", FLAT), ("labels", -FLAT), ("offsets", np.array(OFFSETS))):
        np.save(tmp_path / f"{name}.npy", values)
    return PreloadedDataset(
        {"input_ids": tmp_path / "ids.npy", "labels": str(tmp_path / "labels.npy")}, tmp_path / "offsets.npy"
    )


def parquet(tmp_path):
    pq.write_table(table(), tmp_path / "rows.parquet", row_group_size=2)
    return PreloadedDataset.from_parquet(tmp_path / "rows.parquet")


def saved(tmp_path):
    PreloadedDataset.from_arrow(table()).save(tmp_path / "rows.safetensors")
    return PreloadedDataset.open(tmp_path / "rows.safetensors", verify=True)


SOURCES = {
    "arrays": lambda _: PreloadedDataset({"input_ids": FLAT, "labels": -FLAT}, OFFSETS, scalars={"score": SCORES}),
    "tensors": lambda _: PreloadedDataset(
        {"input_ids": torch.tensor(FLAT), "labels": -torch.tensor(FLAT)}, torch.tensor(OFFSETS)
    ),
    "lists": lambda _: PreloadedDataset.from_rows({"input_ids": ROWS, "labels": LABELS, "score": SCORES}),
    "rows of arrays": lambda _: PreloadedDataset.from_rows(
        {"input_ids": [np.array(row, np.uint16) for row in ROWS], "labels": [torch.tensor(row) for row in LABELS]}
    ),
    "npy": npy,
    "table": lambda _: PreloadedDataset.from_arrow(table()),
    "large list": lambda _: PreloadedDataset.from_arrow(table(pa.large_list(pa.uint16()))),
    "chunks": lambda _: PreloadedDataset.from_arrow(pa.concat_tables([table()[:1], table()[1:3], table()[3:]])),
    "slice": lambda _: PreloadedDataset.from_arrow(pa.concat_tables([table(), table()]).combine_chunks()[4:]),
    "record batch": lambda _: PreloadedDataset.from_arrow(table().to_batches()[0]),
    "parquet": parquet,
    "saved": saved,
    "Hugging Face": lambda _: PreloadedDataset.from_hugging_face(datasets.Dataset(table())),
    "pickled": lambda path: pickle.loads(pickle.dumps(saved(path))),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_batches(source, tmp_path):
    check(SOURCES[source](tmp_path))


@given(
    rows=st.lists(st.lists(st.integers(-(2**15), 2**15 - 1), max_size=9), min_size=1, max_size=9),
    picks=st.lists(st.integers(0, 8), min_size=1, max_size=9),
    side=st.sampled_from(["left", "right"]),
    multiple=st.integers(1, 5),
)
def test_flat_buffers_collate_as_the_samples_do(rows, picks, side, multiple):
    collator = PadCollator({"input_ids": 7}, side=side, pad_to_multiple_of=multiple, lengths=True, position_ids=True)
    dataset = PreloadedDataset.from_rows([np.array(row, np.int16) for row in rows], collator=collator)
    samples = [pick % len(rows) for pick in picks]
    equal(dataset.batch(samples), collator([dataset[sample] for sample in samples]))


def test_a_sample_has_the_dtypes_of_a_batch_without_padding():
    dataset = SOURCES["table"](None)
    assert len(dataset) == 4
    assert dataset[0]["input_ids"].tolist() == [1, 2, 3]
    assert dataset[0]["input_ids"].dtype == torch.int64
    assert dataset[-1]["labels"].tolist() == [-5, -6]
    assert dataset[np.int64(3)]["score"] == 3.5
    with refused(IndexError, "sample = 4 is outside 0 <= sample < n_samples = 4"):
        dataset[4]
    assert [item["input_ids"].tolist() for item in dataset] == ROWS


def test_features_of_every_float_dtype_survive_a_file(tmp_path):
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        features = torch.randn(6, 3).to(dtype)
        dataset = PreloadedDataset({"input_ids": FLAT, "x": features}, OFFSETS)
        dataset.save(tmp_path / "features.safetensors")
        batch = PreloadedDataset.open(tmp_path / "features.safetensors").batch([0, 3])
        assert batch["x"].dtype == dtype
        assert torch.equal(batch["x"][0], features[:3])
        assert torch.equal(batch["x"][1, :2], features[4:])


def test_nested_arrow_lists_are_features():
    for dtype in (
        pa.list_(pa.list_(pa.float32())),
        pa.list_(pa.list_(pa.float32(), 2)),
        pa.list_(pa.list_(pa.float32(), 2), 3),
    ):
        rows = [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]]
        dataset = PreloadedDataset.from_arrow(pa.array(rows, dtype))
        assert dataset.batch([1])["input_ids"].tolist() == [rows[1]]
    with refused(ValueError, 'column "input_ids" has token vectors of 1 to 2 values; they need one width'):
        PreloadedDataset.from_arrow(pa.array([[[1, 2], [3]]]))


def test_single_chunk_arrow_columns_and_arrays_are_shared_not_copied():
    column = table()["input_ids"].chunk(0)
    dataset = PreloadedDataset.from_arrow(column)
    assert dataset._fields["input_ids"].values.ctypes.data == column.values.buffers()[1].address
    assert np.shares_memory(PreloadedDataset(FLAT, OFFSETS)._fields["input_ids"].values, FLAT)
    assert FLAT.flags.writeable, "the caller's own array stays writeable"


@pytest.mark.parametrize(
    "change",
    [lambda ds: ds.shuffle(seed=3), lambda ds: ds.select([3, 1, 1]), lambda ds: ds.shuffle(seed=1).select([2, 0])],
)
def test_a_hugging_face_data_set_keeps_its_visible_order(change):
    visible = change(datasets.concatenate_datasets([datasets.Dataset(table()), datasets.Dataset(table())]))
    dataset = PreloadedDataset.from_hugging_face(visible, ["input_ids", "score"])
    assert [item["input_ids"].tolist() for item in dataset] == list(visible["input_ids"])
    assert [float(item["score"]) for item in dataset] == list(visible["score"])
    assert dataset.lengths.tolist() == lengths_of(visible, "input_ids").tolist()


def test_a_loader_needs_one_line_and_workers_give_the_same(tmp_path):
    dataset = saved(tmp_path)
    batches = [[3, 0], [1], [2, 2]]
    for options in ({}, {"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "spawn"}):
        loader = DataLoader(dataset, batch_sampler=batches, collate_fn=dataset.collate, **options)
        for batch, samples in zip(loader, batches, strict=True):
            assert type(batch) is dict
            equal(batch, dataset.batch(samples))
    subset = DataLoader(Subset(dataset, [3, 0]), batch_size=2, collate_fn=dataset.collate)
    equal(next(iter(subset)), dataset.batch([3, 0]))


def test_a_loader_that_lost_its_batch_sampler_is_refused():
    dataset = SOURCES["lists"](None)
    loader = DataLoader(dataset, batch_size=None, collate_fn=dataset.collate)
    with pytest.raises(
        TypeError, match=r"^items is a single sample \(a dict\), not a list of samples: the loader has lost"
    ):
        next(iter(loader))


def test_collate_also_pads_a_list_of_samples():
    dataset = SOURCES["lists"](None)
    equal(dataset.collate([dataset[3], dataset[0]]), dataset.batch([3, 0]))


def test_the_collator_may_be_replaced_and_sample_indices_are_known():
    dataset = PreloadedDataset(FLAT, OFFSETS)
    dataset.collator = PadCollator({"input_ids": 9}, side="left", sample_indices=True, attention_mask=None)
    batch = dataset.batch(np.array([1, 3]))
    assert batch["input_ids"].tolist() == [[9, 4], [5, 6]]
    assert batch["sample_indices"].tolist() == [1, 3]
    assert list(batch) == ["input_ids", "sample_indices"]
    equal(dataset.collate([dataset[1], dataset[3]]), batch)


def test_out_buffers_are_reused_over_batches():
    dataset = PreloadedDataset(FLAT, OFFSETS)
    out = {"input_ids": torch.empty(8, dtype=torch.int64), "attention_mask": torch.empty(8, dtype=torch.bool)}
    for samples in ([0, 1], [3], [1, 2]):
        batch = dataset.batch(samples, out=out)
        equal(batch, dataset.batch(samples))
        assert batch["input_ids"].data_ptr() == out["input_ids"].data_ptr()


def test_samples_that_do_not_exist_are_refused():
    dataset = PreloadedDataset(FLAT, OFFSETS)
    with refused(IndexError, "samples[1] = 4 is outside 0 <= sample < n_samples = 4"):
        dataset.batch([0, 4])
    with refused(IndexError, "samples[0] = -1 is outside 0 <= sample < n_samples = 4"):
        dataset.batch([-1])
    with refused(ValueError, "samples is empty; a batch needs at least one sample"):
        dataset.batch([])
    with refused(TypeError, "samples has dtype float64, not an integer dtype"):
        dataset.batch(np.array([0.0]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: PreloadedDataset(FLAT, [0, 7]),
            ValueError,
            'values["input_ids"] holds 6 tokens, but offsets[-1] = 7; they belong to different data',
        ),
        (
            lambda: PreloadedDataset(FLAT, [1, 6]),
            ValueError,
            "offsets[0] = 1 is not 0; offsets count tokens from the first",
        ),
        (
            lambda: PreloadedDataset(FLAT, [0, 5, 3, 6]),
            ValueError,
            "offsets[2] = 3 is below offsets[1] = 5; offsets never fall",
        ),
        (lambda: PreloadedDataset(FLAT, [0.0, 6.0]), TypeError, "offsets has dtype float64, not an integer dtype"),
        (
            lambda: PreloadedDataset(FLAT, [[0, 6]]),
            ValueError,
            "offsets has shape (1, 2), not (n_samples + 1,); it counts the tokens before each sample and at the end",
        ),
        (
            lambda: PreloadedDataset(np.array(["a"]), [0, 1]),
            TypeError,
            "input_ids has dtype <U1, which no batch can hold; use bool, integers, or floats up to 64 bits",
        ),
        (lambda: PreloadedDataset({}, [0]), ValueError, "values has no fields; give at least one buffer of tokens"),
        (
            lambda: PreloadedDataset(FLAT, [0, 6], scalars={"score": [1, 2]}),
            ValueError,
            'scalars["score"] holds 2 values, but there are 1 samples',
        ),
        (
            lambda: PreloadedDataset.from_rows({"input_ids": ROWS, "labels": ROWS[::-1]}),
            ValueError,
            f'rows["labels"][0] has {len(ROWS[-1])} tokens, but its "input_ids" has {len(ROWS[0])}; keys of one '
            "group have one length: name a fixed shape in stack, or pad to its own length with "
            "PadCollator(groups={'target': ['labels']})",
        ),
        (
            lambda: PreloadedDataset.from_rows({"input_ids": ROWS, "labels": ROWS[1:]}),
            ValueError,
            "the keys have different numbers of samples, {'input_ids': 4, 'labels': 3}; give every sample all of them",
        ),
        (
            lambda: PreloadedDataset.from_rows({"text": ["a"]}),
            TypeError,
            'rows["text"] holds str values, neither tokens nor numbers; leave it out',
        ),
        (
            lambda: PreloadedDataset.from_rows([]),
            ValueError,
            'rows["input_ids"] is empty; a data set needs at least one sample',
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.array([[1], None])),
            ValueError,
            'column "input_ids" has 1 null rows, the first at row 1; drop or fill them before loading',
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.array([[1, None]])),
            ValueError,
            'column "input_ids" has 1 null tokens; fill them before loading',
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.table({"input_ids": ROWS, "text": ["a"] * 4})),
            TypeError,
            'column "text" has Arrow type string, not lists of numbers, or numbers; choose the columns to load '
            "with columns=[...]",
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.table({"input_ids": ROWS}), ["ids"]),
            ValueError,
            "columns names \"ids\", which is not one of 'input_ids'",
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.table({"a": [[1, 2]], "b": [[1]]})),
            ValueError,
            'columns["b"][0] has 1 tokens, but its "a" has 2; keys of one group have one length: name a fixed shape in '
            "stack, or pad to its own length with PadCollator(groups={'target': ['b']})",
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.table({"a": [1, 2]})),
            ValueError,
            "no column of 'a' holds lists of tokens; tokenize first",
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.array([1, 2])),
            TypeError,
            'column "input_ids" has Arrow type int64, not lists of numbers',
        ),
    ],
)
def test_buffers_that_do_not_fit_together_are_refused(make, error, message):
    with refused(error, message):
        make()


def test_threads_share_a_data_set():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 1000, n) for n in rng.integers(1, 300, 200)]
    dataset = PreloadedDataset.from_rows(rows)
    batches = [rng.integers(0, 200, 30).tolist() for _ in range(50)]
    expected = [dataset.batch(batch) for batch in batches]
    failures = []

    def consume():
        for batch, reference in zip(batches, expected, strict=True):
            if not torch.equal(dataset.batch(batch)["input_ids"], reference["input_ids"]):
                failures.append(batch)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_repr_names_fields_and_sizes():
    dataset = PreloadedDataset({"input_ids": FLAT, "x": np.zeros((6, 2), np.float32)}, OFFSETS)
    assert repr(dataset) == "PreloadedDataset(4 samples, 6 tokens, input_ids: int32, x: float32[2])"


def test_a_plan_is_a_batch_sampler_that_delivers_every_sample_once():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 300, 500)
    dataset = PreloadedDataset(np.arange(lengths.sum()), np.r_[0, np.cumsum(lengths)])
    dataset.collator = PadCollator(sample_indices=True)
    plan = dataset.build_batches(0, 1, token_budget=2048)
    loader = DataLoader(dataset, batch_sampler=plan, collate_fn=dataset.collate)
    seen = torch.cat([batch["sample_indices"] for batch in loader])
    assert sorted(seen.tolist()) == list(range(500))
    assert all(batch["input_ids"].numel() <= 2048 for batch in loader)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_the_batches_equal_those_of_the_transformers_collator():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=__import__("tokenizers").Tokenizer(
            __import__("tokenizers").models.WordLevel({"[PAD]": 0}, "[PAD]")
        ),
        pad_token="[PAD]",
    )
    rows = [{"input_ids": row} for row in ROWS if row]
    expected = transformers.DataCollatorWithPadding(tokenizer, pad_to_multiple_of=4)([dict(row) for row in rows])
    batch = PadCollator(pad_to_multiple_of=4, attention_mask=torch.int64)(rows)
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    assert torch.equal(batch["attention_mask"], expected["attention_mask"])
