"""Every holder of lengths or sequences gives the same numbers, and what holds none says why."""

import array
import re
import sys

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from bucketshuffle.lengths import as_lengths, lengths_of
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

LENGTHS = [3, 1, 0, 2]
ROWS = [[1, 2, 3], [4], [], [5, 6]]


def refused(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def column(values):
    return datasets.Dataset.from_dict({"length": values})["length"]


HOLDERS = {
    "list": list,
    "tuple": tuple,
    "list of NumPy ints": lambda values: [np.int32(value) for value in values],
    "list of zero-dimensional tensors": lambda values: [torch.tensor(value) for value in values],
    "array.array": lambda values: array.array("H", values),
    "NumPy": np.array,
    "NumPy uint16": lambda values: np.array(values, np.uint16),
    "NumPy big-endian": lambda values: np.array(values, ">i4"),
    "NumPy strided": lambda values: np.repeat(np.array(values), 2)[::2],
    "NumPy objects": lambda values: np.array(values, object),
    "torch": torch.tensor,
    "pandas index": pd.Index,
    "torch int16": lambda values: torch.tensor(values, dtype=torch.int16),
    "Arrow": lambda values: pa.array(values, pa.int32()),
    "Arrow slice": lambda values: pa.array([9, *values, 9])[1:-1],
    "Arrow chunks": lambda values: pa.chunked_array([values[:1], values[1:]], pa.uint16()),
    "pandas": pd.Series,
    "pandas nullable": lambda values: pd.Series(values, dtype="Int64"),
    "pandas with a gap in its index": lambda values: pd.Series([*values, 9])[:-1].set_axis([7, 5, 3, 1]),
    "Hugging Face column": column,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_every_holder_of_integers_gives_them(holder):
    values = HOLDERS[holder](LENGTHS)
    for read in (as_lengths, lengths_of):
        lengths = read(values)
        assert lengths.tolist() == LENGTHS
        assert lengths.ndim == 1
        assert lengths.dtype.kind in "iu"
        assert lengths.dtype.isnative
        assert lengths.flags.c_contiguous
    assert lengths_of(values).dtype == np.int64


@pytest.mark.parametrize("holder", ["list", "tuple", "NumPy", "torch", "Arrow", "array.array", "pandas nullable"])
def test_no_lengths_are_no_samples(holder):
    empty = HOLDERS[holder]([])
    if holder in ("NumPy", "torch"):
        empty = np.array([], np.int64) if holder == "NumPy" else torch.tensor([], dtype=torch.int64)
    assert as_lengths(empty).shape == (0,)
    assert lengths_of(empty).shape == (0,)


def test_an_array_that_already_fits_is_not_copied():
    for dtype in (np.uint8, np.int32, np.uint64):
        lengths = np.array(LENGTHS, dtype)
        assert as_lengths(lengths) is lengths or np.shares_memory(as_lengths(lengths), lengths)
        assert as_lengths(lengths).dtype == dtype
    tensor = torch.tensor(LENGTHS)
    assert as_lengths(tensor).ctypes.data == tensor.data_ptr()


def test_lengths_keep_their_value_up_to_the_end_of_uint64():
    assert as_lengths([65_537]).tolist() == [65_537]
    assert as_lengths([2**63, 1]).tolist() == [2**63, 1]
    assert as_lengths([2**64 - 1]).dtype == np.uint64
    assert as_lengths([-1, 2]).tolist() == [-1, 2], "the planner refuses negative lengths, in its own words"
    with refused(ValueError, f"lengths[1] = {2**64} is outside 0 <= length < 2^64; no sample is that long"):
        as_lengths([1, 2**64])
    with refused(ValueError, "lengths[0] = -1 is outside 0 <= length < 2^64; no sample is that long"):
        as_lengths([-1, 2**63])
    with refused(ValueError, f"lengths[1] = {2**63} does not fit int64; no sample is that long"):
        lengths_of([1, 2**63])


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        (
            np.array([1.0, 2.0]),
            TypeError,
            "lengths has dtype float64, not an integer dtype; convert with .astype(numpy.int64) if the values "
            "are whole",
        ),
        (
            [1, 2.5],
            TypeError,
            "lengths has dtype float64, not an integer dtype; convert with .astype(numpy.int64) if the values "
            "are whole",
        ),
        (
            torch.tensor([1.0]),
            TypeError,
            "lengths has dtype float32, not an integer dtype; convert with .astype(numpy.int64) if the values "
            "are whole",
        ),
        (
            np.array([True]),
            TypeError,
            "lengths has dtype bool, not an integer dtype; a mask is not a length, sum it along the tokens",
        ),
        (bytearray(b"ab"), TypeError, "lengths is a bytearray, not an array of integers; pass one length per sample"),
        (
            pa.array([[1, 2], [3]]),
            ValueError,
            "lengths holds sequences, not integers; use lengths_of(...) to count them",
        ),
        (pd.Index([1.0, None]), ValueError, "lengths[1] is missing; drop the sample or give its length"),
        (
            torch.tensor([1, 2], dtype=torch.bfloat16),
            TypeError,
            "lengths has dtype torch.bfloat16, not an integer dtype; convert with .astype(numpy.int64) if the values "
            "are whole",
        ),
        ([1, True], TypeError, "lengths[1] = True is a bool, not an integer; pass one length per sample"),
        (["1"], TypeError, "lengths has dtype <U1, not an integer dtype; pass one integer per sample"),
        ([1, "a"], TypeError, "lengths has dtype <U21, not an integer dtype; pass one integer per sample"),
        ("12", TypeError, "lengths is a str, not an array of integers; pass one length per sample"),
        (None, TypeError, "lengths is a NoneType, not an array of integers; pass one length per sample"),
        (object(), TypeError, "lengths is a object, not an array of integers; pass one length per sample"),
        ({"a": 1}, TypeError, "lengths is a dict, not an array of integers; pass one length per sample"),
        (np.array(3), ValueError, "lengths has shape (), not one dimension; pass one length per sample"),
        (np.ones((2, 2), int), ValueError, "lengths has shape (2, 2), not one dimension; pass one length per sample"),
        ([1, [2, 3]], ValueError, "lengths holds sequences, not integers; use lengths_of(...) to count them"),
        ([[1], [2, 3]], ValueError, "lengths holds sequences, not integers; use lengths_of(...) to count them"),
        (
            np.array([1, np.nan]),
            ValueError,
            "lengths[1] = nan is not a length; drop the sample or give its length",
        ),
        ([1, None], ValueError, "lengths[1] is missing; drop the sample or give its length"),
        (pa.array([1, None]), ValueError, "lengths[1] is null; drop the sample or give its length"),
        (
            pa.chunked_array([[1], [2, None]]),
            ValueError,
            "lengths[2] is null; drop the sample or give its length",
        ),
        (pd.Series([1, None]), ValueError, "lengths[1] is missing; drop the sample or give its length"),
        (
            pd.Series([1, None], dtype="Int64"),
            ValueError,
            "lengths[1] is missing; drop the sample or give its length",
        ),
        (
            np.array(["2020"], "M8[D]"),
            TypeError,
            "lengths has dtype datetime64[D], not an integer dtype; pass one integer per sample",
        ),
    ],
)
def test_what_is_not_a_length_is_refused(lengths, error, message):
    with refused(error, message):
        as_lengths(lengths)


RAGGED = {
    "lists": ROWS,
    "tuple of lists": tuple(ROWS),
    "arrays": [np.array(row) for row in ROWS],
    "tensors": [torch.tensor(row) for row in ROWS],
    "strings": ["abc", "a", "", "ab"],
    "Arrow lists": pa.array(ROWS),
    "Arrow large lists": pa.array(ROWS, pa.large_list(pa.int32())),
    "Arrow slice": pa.array([[9], *ROWS, [9, 9]])[1:-1],
    "Arrow chunks": pa.chunked_array([ROWS[:1], ROWS[1:]]),
    "pandas": pd.Series(ROWS),
    "Hugging Face column": datasets.Dataset.from_dict({"x": ROWS})["x"],
}


@pytest.mark.parametrize("source", RAGGED)
def test_sequences_are_counted(source):
    lengths = lengths_of(RAGGED[source])
    assert lengths.tolist() == LENGTHS
    assert lengths.dtype == np.int64


def test_fixed_size_lists_have_one_length():
    assert lengths_of(pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))).tolist() == [2, 2]


TABLES = {
    "dict": lambda: {"x": ROWS, "n": LENGTHS},
    "Arrow table": lambda: pa.table({"x": ROWS, "n": LENGTHS}),
    "pandas": lambda: pd.DataFrame({"x": ROWS, "n": LENGTHS}),
    "Hugging Face": lambda: datasets.Dataset.from_dict({"x": ROWS, "n": LENGTHS}),
    "items": lambda: [{"x": row, "n": n} for row, n in zip(ROWS, LENGTHS, strict=True)],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_column_holds_sequences_or_lengths(name):
    source = TABLES[name]()
    assert lengths_of(source, "x").tolist() == LENGTHS
    assert lengths_of(source, "n").tolist() == LENGTHS


@pytest.mark.parametrize("name", ["dict", "Arrow table", "pandas", "Hugging Face"])
def test_an_unknown_or_missing_column_is_refused(name):
    for column_name in ("y", None):
        with refused(ValueError, f"column = {column_name!r} is not a column of source; choose one of 'x', 'n'"):
            lengths_of(TABLES[name](), column_name)


@examples(25)  # every example writes a data set
@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=12), st.integers(0, 99))
def test_a_hugging_face_data_set_is_read_in_its_visible_order(rows, seed):
    visible = datasets.Dataset.from_dict({"x": rows, "n": list(map(len, rows))}).shuffle(seed=seed)
    visible = visible.select(range(0, len(rows), 2))
    expected = [len(row) for row in visible["x"]]
    for source in (visible["x"], visible["n"], visible.with_format("torch")["n"]):
        assert lengths_of(source).tolist() == expected
    assert lengths_of(visible, "x").tolist() == expected
    assert as_lengths(visible["n"]).tolist() == expected


def test_a_transform_decides_what_is_visible():
    source = datasets.Dataset.from_dict({"x": ROWS})
    source.set_transform(lambda rows: {"x": [[*row, 0] for row in rows["x"]]})
    assert lengths_of(source, "x").tolist() == [4, 2, 1, 3]


def test_a_column_of_902087_rows_is_read_as_a_slice_not_a_loop():
    lengths = np.arange(902_087) % 8192
    source = datasets.Dataset(pa.table({"length": lengths}))
    source["length"].__class__.__iter__, iterate = None, source["length"].__class__.__iter__
    try:
        assert np.array_equal(lengths_of(source["length"]), lengths)
        assert np.array_equal(as_lengths(source.select(range(902_086, -1, -1))["length"]), lengths[::-1])
    finally:
        source["length"].__class__.__iter__ = iterate


class Items:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_the_items_of_a_map_style_data_set_are_counted_one_by_one(capsys):
    assert lengths_of(Items(ROWS), progress=False).tolist() == LENGTHS
    assert lengths_of(Items(LENGTHS)).tolist() == LENGTHS
    assert lengths_of(Items([{"x": row} for row in ROWS]), "x").tolist() == LENGTHS
    assert lengths_of(Items([(row, 5) for row in ROWS]), 0).tolist() == LENGTHS
    assert lengths_of(TensorDataset(torch.zeros(3, 7)), 0).tolist() == [7, 7, 7]
    assert capsys.readouterr().err == ""
    assert lengths_of(Items(ROWS), progress=True).tolist() == LENGTHS
    assert "4/4" in capsys.readouterr().err


def test_progress_is_a_plain_line_without_tqdm(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert lengths_of(Items(ROWS), progress=True).tolist() == LENGTHS
    assert capsys.readouterr().err.endswith("\rlengths: 4 of 4 samples\n")


def test_a_data_set_that_knows_its_lengths_is_asked_for_them():
    items = Items(ROWS)
    items.lengths = np.array(LENGTHS, np.int32)
    assert lengths_of(items).tolist() == LENGTHS


@pytest.mark.parametrize(
    ("source", "column_name", "error", "message"),
    [
        (3, None, TypeError, "source is a int, which has no columns, lengths or items; pass the lengths themselves"),
        (
            iter([]),
            None,
            TypeError,
            "source is a list_iterator, which has no columns, lengths or items; pass the lengths themselves",
        ),
        (
            [[1], 2],
            None,
            TypeError,
            "source[1] is a int without a length; pass sequences only, or lengths only",
        ),
        (
            Items([{"x": [1], "y": 2}]),
            None,
            ValueError,
            "source[0] is a mapping; choose its sequence or length with column, one of 'x', 'y'",
        ),
        (Items([{"x": [1]}]), "y", ValueError, "column = 'y' is not in source[0], a dict"),
        (
            Items([1.5]),
            None,
            TypeError,
            "source[0] is 1.5, neither a sequence nor an integer; choose the sequence or its length with column",
        ),
        (
            pa.array([[1], None]),
            None,
            ValueError,
            "source has 1 null rows; drop them or make them empty lists",
        ),
        (
            pa.array(["text"]),
            None,
            TypeError,
            "source has Arrow type string, text without tokens; tokenize it, or pass the lengths",
        ),
    ],
)
def test_a_source_without_lengths_is_refused(source, column_name, error, message):
    with refused(error, message):
        lengths_of(source, column_name, progress=False)


def test_a_masked_length_is_missing() -> None:
    with pytest.raises(ValueError, match=r"^lengths\[1\] is missing; drop the sample or give its length$"):
        as_lengths(np.ma.array([5, 99_999, 7], mask=[False, True, False]))
    assert as_lengths(np.ma.array([5, 7])).tolist() == [5, 7]


@pytest.mark.parametrize(("value", "kind"), [(2.5, "float"), (True, "bool"), (1j, "complex"), ("a", "str")])
def test_objects_that_are_no_integers_are_named(value, kind):
    with refused(TypeError, f"lengths[1] is a {kind}, not an integer; pass one length per sample"):
        as_lengths(np.array([2**63, value], object))
