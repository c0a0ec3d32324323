"""Columns of Arrow, Hugging Face and polars: what is visible is read, what is no row of tokens is refused."""

import re
import subprocess
import sys

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from bucketshuffle import lengths_of, pack_epoch
from bucketshuffle.lengths import as_lengths
from bucketshuffle.torch import PreloadedDataset
from torch.utils.data import TensorDataset

ROWS = [[1, 2, 3], [4], [], [5, 6]]
LENGTHS = [3, 1, 0, 2]


def refused(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def views(rows, large=False):
    kind = pa.large_list_view if large else pa.list_view
    return pa.array(rows, kind(pa.int32()))


class Items:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


# What is read.


def test_columns_of_a_polars_frame_are_counted_and_planned():
    frame = pl.DataFrame({"x": ROWS, "n": LENGTHS})
    assert lengths_of(frame, "x").tolist() == LENGTHS
    assert lengths_of(frame, "n").tolist() == LENGTHS
    assert lengths_of(frame["x"]).tolist() == LENGTHS
    assert lengths_of(frame["n"]).tolist() == LENGTHS
    assert as_lengths(frame["n"]).tolist() == LENGTHS
    assert lengths_of(pl.concat([frame, frame[:2]]), "x").tolist() == [*LENGTHS, 3, 1]
    assert lengths_of(pl.DataFrame({"x": [[1, 2], [3, 4]]}, {"x": pl.Array(pl.Int32, 2)}), "x").tolist() == [2, 2]
    long = pl.DataFrame({"x": [[0] * n for n in range(5, 50)] * 4})
    plan = pack_epoch(lengths_of(long, "x"), seed=0, token_budget=256)
    assert max(len(batch) * padded for batch, padded in zip(plan, plan.padded_lengths, strict=True)) <= 256


def test_a_polars_frame_is_loaded_as_a_table_is():
    frame = pl.DataFrame({"input_ids": ROWS, "score": [0.5, 1.5, 2.5, 3.5], "text": ["a"] * 4})
    dataset = PreloadedDataset.from_arrow(frame, ["input_ids", "score"])
    assert dataset.batch([3, 0])["input_ids"].tolist() == [[5, 6, 0], [1, 2, 3]]
    assert dataset.batch([3, 0])["score"].tolist() == [3.5, 0.5]
    assert PreloadedDataset.from_arrow(frame["input_ids"])[3]["input_ids"].tolist() == [5, 6]
    with refused(
        TypeError,
        'column "text" has Arrow type large_string, not lists of numbers, or numbers; choose the columns to load '
        "with columns=[...]",
    ):
        PreloadedDataset.from_arrow(frame)


@pytest.mark.parametrize("large", [False, True])
def test_list_views_are_lists(large):
    column = views(ROWS, large)
    with refused(ValueError, "source has 1 null rows; drop them or make them empty lists"):
        lengths_of(views([[1], None, [2, 3]], large))
    for source in (column, pa.chunked_array([column, column[:0]]), column[1:]):
        rows = ROWS[1:] if len(source) == 3 else ROWS
        assert lengths_of(source).tolist() == [len(row) for row in rows]
        dataset = PreloadedDataset.from_arrow(source)
        assert [item["input_ids"].tolist() for item in dataset] == rows
    assert lengths_of(pa.table({"x": column}), "x").tolist() == LENGTHS


def test_hugging_face_arrays_of_two_dimensions_are_features():
    rows = [np.full((n, 3), n).tolist() for n in (4, 2, 3)]
    features = datasets.Features({"x": datasets.Array2D((None, 3), "int64")})
    source = datasets.Dataset.from_dict({"x": rows}, features=features)
    assert lengths_of(source, "x").tolist() == [4, 2, 3]
    for visible, order in ((source, [0, 1, 2]), (source.select([2, 0]), [2, 0])):
        dataset = PreloadedDataset.from_hugging_face(visible)
        assert [item["x"].tolist() for item in dataset] == [rows[i] for i in order]
    square = datasets.Dataset.from_dict(
        {"x": [[[1, 2], [3, 4]]]}, features=datasets.Features({"x": datasets.Array2D((2, 2), "int64")})
    )
    assert lengths_of(square, "x").tolist() == [2]


def test_rows_that_a_filter_hides_may_be_null():
    source = datasets.Dataset.from_dict({"x": [[1, 2], None, [3]], "n": [2, None, 1]})
    visible = source.filter(lambda row: row["x"] is not None)
    assert lengths_of(visible, "x").tolist() == [2, 1]
    assert lengths_of(visible["x"]).tolist() == [2, 1]
    assert lengths_of(visible, "n").tolist() == [2, 1]
    assert as_lengths(visible["n"]).tolist() == [2, 1]
    assert as_lengths(visible["n"]).dtype == np.int64
    assert PreloadedDataset.from_hugging_face(visible)[1]["x"].tolist() == [3]
    with refused(ValueError, "source has 1 null rows; drop them or make them empty lists"):
        lengths_of(source.select([2, 1]), "x")
    with refused(ValueError, "lengths[1] is null; drop the sample or give its length"):
        lengths_of(source.select([2, 1]), "n")


def test_columns_that_set_format_hides_stay_hidden_unless_they_are_named():
    source = datasets.Dataset.from_dict({"input_ids": ROWS, "text": ["a"] * 4, "n": LENGTHS})
    source.set_format("torch", columns=["input_ids"])
    for visible in (source, source.select(range(4))):
        assert list(PreloadedDataset.from_hugging_face(visible)[0]) == ["input_ids"]
        assert list(PreloadedDataset.from_hugging_face(visible, ["input_ids", "n"])[0]) == ["input_ids", "n"]


@pytest.mark.parametrize("width", [1, 2])
def test_nested_columns_may_have_chunks_without_tokens(width):
    rows = [[[1.0] * width, [2.0] * width], [[3.0] * width]]
    kinds = (pa.list_(pa.list_(pa.float32())), pa.list_(pa.list_(pa.float32(), width)))
    for kind in kinds:
        empty = pa.array([[], []], kind)
        for chunks in ([rows, empty], [empty, rows], [empty, rows, empty, rows]):
            column = pa.chunked_array([pa.array(chunk, kind) if isinstance(chunk, list) else chunk for chunk in chunks])
            dataset = PreloadedDataset.from_arrow(column)
            assert [item["input_ids"].tolist() for item in dataset] == column.to_pylist()
    only_empty = PreloadedDataset.from_arrow(pa.chunked_array([pa.array([[]], kinds[1])]))
    assert only_empty.batch([0])["input_ids"].shape == (1, 0, width)
    with refused(ValueError, 'column "input_ids" has token vectors of 1 to 2 values; they need one width'):
        PreloadedDataset.from_arrow(pa.chunked_array([[[[1.0]]], [[[1.0, 2.0]]]]))


def test_a_list_of_dicts_is_a_data_set():
    rows = [{"input_ids": row, "label": i} for i, row in enumerate(ROWS)]
    dataset = PreloadedDataset.from_rows(rows)
    assert dataset.batch([3, 0])["input_ids"].tolist() == [[5, 6, 0], [1, 2, 3]]
    assert dataset.batch([3, 0])["label"].tolist() == [3, 0]
    with refused(ValueError, 'rows[1] has "y", but rows[0] has not; all samples need the same keys'):
        PreloadedDataset.from_rows([{"x": [1]}, {"x": [1], "y": 2}])
    with refused(TypeError, "rows[1] is a list, but rows[0] is a mapping; all samples need the same keys"):
        PreloadedDataset.from_rows([{"x": [1]}, [1]])
    with refused(TypeError, 'rows["x"] is a int, not one row per sample'):
        PreloadedDataset.from_rows({"x": 5})
    with refused(TypeError, 'rows["x"] is a str, not one row per sample'):
        PreloadedDataset.from_rows({"x": "abc"})


def test_scalars_of_any_byte_order_and_bfloat16_are_saved(tmp_path):
    scalars = {
        "big": np.array([1, 2, 3, 4], ">i4"),
        "half": torch.tensor([0.5, 1.5, 2.5, 3.5], dtype=torch.bfloat16),
        "unsigned": np.array([1, 2, 3, 4], np.uint16),
    }
    dataset = PreloadedDataset(np.arange(6), [0, 3, 4, 4, 6], scalars=scalars)
    dataset.save(tmp_path / "rows")
    for made in (dataset, PreloadedDataset.open(tmp_path / "rows", verify=True)):
        batch = made.batch([3, 0])
        assert batch["big"].tolist() == batch["unsigned"].tolist() == [4, 1]
        assert batch["half"].dtype == torch.bfloat16
        assert batch["half"].tolist() == [3.5, 0.5]


# What is refused.


@pytest.mark.parametrize(
    ("source", "column", "error", "message"),
    [
        (
            pl.LazyFrame({"x": ROWS}),
            "x",
            TypeError,
            "source is a LazyFrame, whose rows are made later; pass source.collect()",
        ),
        (
            datasets.DatasetDict(train=datasets.Dataset.from_dict({"x": ROWS})),
            "x",
            TypeError,
            "source is a DatasetDict of 'train'; pass one of them, such as source['train']",
        ),
        (
            datasets.Dataset.from_dict({"x": ROWS}).to_iterable_dataset(),
            "x",
            TypeError,
            "source is a IterableDataset, whose rows are made later; load it without streaming, or collect its "
            "rows with "
            "datasets.Dataset.from_generator",
        ),
        (
            pl.DataFrame({"x": ROWS, "n": LENGTHS}),
            None,
            ValueError,
            "column = None is not a column of source; choose one of 'x', 'n'",
        ),
        (
            [pl.DataFrame({"x": [1]}), pl.DataFrame({"x": [2]})],
            None,
            TypeError,
            "source[0] is a DataFrame, not a row of tokens; pass sequences only, or lengths only",
        ),
        (
            Items([pd.DataFrame({"x": [1]})]),
            None,
            TypeError,
            "source[0] is a DataFrame, not a row of tokens; choose the sequence or its length with column",
        ),
        (
            pa.table({"x": pa.array(["a"], pa.string_view())}),
            "x",
            TypeError,
            "source has Arrow type string_view, text without tokens; tokenize it, or pass the lengths",
        ),
        (
            pa.table({"x": pa.array([{"a": 1}])}),
            "x",
            TypeError,
            "source has Arrow type struct<a: int64>, not lists of tokens; choose another column, or pass the lengths",
        ),
        (
            pa.array([[[0.5] * 9], [[0.25] * 9]]),
            None,
            ValueError,
            "source has Arrow type list<item: list<item: double>>, and every sample has one token; put the "
            "tokens first, "
            "or pass the lengths",
        ),
        (
            [np.zeros((1, 700)), np.zeros((1, 900))],
            None,
            ValueError,
            "source[1] has shape (1, 900), but source[0] has (1, 700); only the first dimension, the tokens, may "
            "differ",
        ),
        (
            Items([{"audio": torch.zeros(1, 700)}, {"audio": torch.zeros(1, 700)}]),
            "audio",
            ValueError,
            "source[0] has shape (1, 700), and every sample has one token; put the tokens first, or pass the lengths",
        ),
        (
            [[[0.5] * 700], [[0.5] * 900]],
            None,
            ValueError,
            "source[1] has shape (1, 900), but source[0] has (1, 700); only the first dimension, the tokens, may "
            "differ",
        ),
        (
            [([1, 2, 3], 0), ([1], 1)],
            None,
            TypeError,
            "source[0] is a tuple, not a row of tokens; choose the sequence with column, one of 0, 1",
        ),
        (
            [[[1, 2, 3], 0], [[1], 1]],
            None,
            TypeError,
            "source[0] is a list, not a row of tokens; choose the sequence with column, one of 0, 1",
        ),
        (
            TensorDataset(torch.zeros(3, 7), torch.zeros(3)),
            None,
            TypeError,
            "source[0] is a tuple, not a row of tokens; choose the sequence with column, one of 0, 1",
        ),
        (
            TensorDataset(torch.zeros(3, 7)),
            None,
            TypeError,
            "source[0] is a tuple, not a row of tokens; choose the sequence with column, one of 0",
        ),
        (
            [{"duration": 10.885}],
            "duration",
            TypeError,
            "column 'duration' of source[0] is 10.885, neither a sequence nor an integer; choose the sequence or its "
            "length with column",
        ),
        (
            [{"duration": 3.0}],
            "duration",
            TypeError,
            "column 'duration' of source[0] is 3.0, neither a sequence nor an integer; choose the sequence or "
            "its length "
            "with column",
        ),
        (
            [{"ok": True}],
            "ok",
            TypeError,
            "column 'ok' of source[0] is True, neither a sequence nor an integer; choose the sequence or its "
            "length with "
            "column",
        ),
        (
            {"duration": [10.885, 4.65]},
            "duration",
            TypeError,
            "lengths has dtype float64, not an integer dtype; convert with .astype(numpy.int64) if the values "
            "are whole",
        ),
        (np.array([1, 2]), "x", ValueError, "column = 'x' has no effect with a ndarray; leave column out"),
    ],
)
def test_what_is_no_row_of_tokens_is_refused(source, column, error, message):
    with refused(error, message):
        lengths_of(source, column, progress=False)


def test_rows_of_numbers_and_vectors_are_tokens_in_lists_and_tuples():
    assert lengths_of([(1, 2, 3), (4,)]).tolist() == [3, 1]
    assert lengths_of([[[1, 2], [3, 4]], [[5, 6]]]).tolist() == [2, 1]
    assert lengths_of([[], [[5, 6]]]).tolist() == [0, 1]
    assert lengths_of([np.zeros(0), np.zeros((2, 3)), np.zeros((1, 3))]).tolist() == [0, 2, 1]
    assert lengths_of([np.zeros((4, 2)), np.zeros((1, 2))]).tolist() == [4, 1]
    assert lengths_of([np.zeros((1, 1)), np.zeros((1, 1))]).tolist() == [1, 1]
    assert lengths_of(Items([(torch.zeros(5), 1), (torch.zeros(2), 0)]), 0).tolist() == [5, 2]


def test_own_lengths_of_other_data_are_refused():
    wrapper = Items(ROWS[:2])
    wrapper.lengths = np.array(LENGTHS)
    with refused(ValueError, "source has 2 samples, but its own lengths are 4; pass the lengths of what is indexed"):
        lengths_of(wrapper)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: PreloadedDataset.from_hugging_face(datasets.DatasetDict(a=datasets.Dataset.from_dict({"x": ROWS}))),
            TypeError,
            "source is a DatasetDict of 'a'; pass one of them, such as source['a']",
        ),
        (
            lambda: PreloadedDataset.from_hugging_face(datasets.Dataset.from_dict({"x": ROWS}).to_iterable_dataset()),
            TypeError,
            "source is a IterableDataset, whose rows are made later; load it without streaming, or collect its "
            "rows with "
            "datasets.Dataset.from_generator",
        ),
        (
            lambda: PreloadedDataset.from_hugging_face(ROWS),
            TypeError,
            "source is a list, not an Arrow table, record batch or list array",
        ),
        (
            lambda: PreloadedDataset.from_arrow(pl.LazyFrame({"x": ROWS})),
            TypeError,
            "source is a LazyFrame, whose rows are made later; pass source.collect()",
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.table({"ab": ROWS}), "ab"),
            TypeError,
            'columns = "ab" is a str, not a collection of names; use ["ab"]',
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.table({"ab": ROWS}), []),
            ValueError,
            "columns names no column; leave it out to load all",
        ),
        (
            lambda: PreloadedDataset.from_arrow(pa.array(["a"], pa.string_view())),
            TypeError,
            'column "input_ids" has Arrow type string_view, not lists of numbers',
        ),
    ],
)
def test_a_source_that_cannot_be_loaded_says_what_to_pass(make, error, message):
    with refused(error, message):
        make()


def test_columns_of_parquet_are_named_in_a_collection(tmp_path):
    pq.write_table(pa.table({"ab": ROWS, "n": LENGTHS}), tmp_path / "rows.parquet")
    for columns, names in ((None, ["ab", "n"]), (["ab"], ["ab"]), (("n", "ab"), ["ab", "n"])):
        assert sorted(PreloadedDataset.from_parquet(tmp_path / "rows.parquet", columns)[0]) == names
    with refused(TypeError, 'columns = "ab" is a str, not a collection of names; use ["ab"]'):
        PreloadedDataset.from_parquet(tmp_path / "rows.parquet", "ab")
    with refused(ValueError, "columns names \"y\", which is not one of 'ab', 'n'"):
        PreloadedDataset.from_parquet(tmp_path / "rows.parquet", ["y"])
    (tmp_path / "empty").mkdir()
    with refused(ValueError, f"{tmp_path / 'empty'} holds no Parquet files with columns"):
        PreloadedDataset.from_parquet(tmp_path / "empty")


def test_the_package_imports_numpy_alone_and_plans_without_arrow():
    code = (
        "import sys, bucketshuffle, bucketshuffle.data.flat, bucketshuffle.data.saved\n"
        "bucketshuffle.lengths_of([[1, 2], [3]])\n"
        "bucketshuffle.lengths_of({'x': [[1]]}, 'x')\n"
        "heavy = {'torch', 'pyarrow', 'pandas', 'polars', 'datasets', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
