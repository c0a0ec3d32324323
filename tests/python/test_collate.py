"""PadCollator against CASES.md section 9 and against padding written out cell by cell."""

import copy
import doctest
import pickle
import re
import threading
from fractions import Fraction

import bucketshuffle.torch.collate as collate_module
import numpy as np
import pytest
import torch
from bucketshuffle import _core
from bucketshuffle.torch import PadCollator, PreloadedDataset
from bucketshuffle.torch.fields import GroupRequest, Request
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

ROWS = [[1, 2, 0], [1, 0]]


def items(rows, **more):
    return [{"input_ids": row} | {key: values[i] for key, values in more.items()} for i, row in enumerate(rows)]


def refused(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def padded(rows, side, width, fill):
    """The definition."""
    cells = []
    for row in rows:
        padding = [fill] * (width - len(row))
        cells.append(padding + list(row) if side == "left" else list(row) + padding)
    return cells


@given(
    rows=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=12), min_size=1, max_size=8),
    side=st.sampled_from(["right", "left"]),
    multiple=st.integers(1, 8),
    fill=st.integers(-(2**31), 2**31),
    container=st.sampled_from(["list", "array", "tensor"]),
)
def test_every_cell_is_its_token_or_the_fill(rows, side, multiple, fill, container):
    make = {
        "list": list,
        "array": lambda row: np.array(row, np.int64),
        "tensor": lambda row: torch.tensor(row, dtype=torch.int64),
    }
    collate = PadCollator(
        {"input_ids": fill},
        side=side,
        pad_to_multiple_of=multiple,
        lengths=True,
        position_ids=True,
        attention_mask=torch.int64,
    )
    batch = collate(items([make[container](row) for row in rows]))
    width = -(-max(map(len, rows)) // multiple) * multiple
    assert batch["input_ids"].dtype == torch.int64
    assert batch["input_ids"].tolist() == padded(rows, side, width, fill)
    assert batch["attention_mask"].tolist() == padded([[1] * len(row) for row in rows], side, width, 0)
    assert batch["position_ids"].tolist() == padded([range(len(row)) for row in rows], side, width, 0)
    assert batch["lengths"].tolist() == [len(row) for row in rows]


def test_k01_the_mask_and_the_labels_keep_a_real_end_token_that_equals_the_pad_token():
    batch = PadCollator({"input_ids": 0})(items(ROWS, labels=ROWS))
    assert batch["attention_mask"].tolist() == [[True, True, True], [True, True, False]]
    assert batch["labels"].tolist() == [[1, 2, 0], [1, 0, -100]]


def test_k02_the_mask_does_not_ask_which_value_padding_has():
    batch = PadCollator({"input_ids": 2})(items([[5, 2, 2], [2]]))
    assert batch["attention_mask"].tolist() == [[True, True, True], [True, False, False]]


def test_k03_pad_token_zero_is_used_on_the_left_too():
    batch = PadCollator({"input_ids": 0}, side="left")(items([[5, 6, 7], [8]]))
    assert batch["input_ids"].tolist() == [[5, 6, 7], [0, 0, 8]]
    assert batch["attention_mask"].tolist() == [[True, True, True], [False, False, True]]


def test_k04_the_side_is_an_argument_and_only_two_exist():
    assert PadCollator(side="left")(items(ROWS))["input_ids"].tolist() == [[1, 2, 0], [0, 1, 0]]
    with refused(ValueError, 'side = \'top\' is not one of "right", "left"'):
        PadCollator(side="top")


def test_k05_every_field_is_padded_on_the_same_side():
    batch = PadCollator(side="left")(items(ROWS, labels=ROWS, loss_mask=[[True] * 3, [True] * 2]))
    assert batch["labels"].tolist() == [[1, 2, 0], [-100, 1, 0]]
    assert batch["loss_mask"].tolist() == [[True] * 3, [False, True, True]]
    assert batch["loss_mask"].dtype == torch.bool


def test_k06_position_ids_start_at_the_first_real_token():
    batch = PadCollator(side="left", position_ids=True)(items([[7, 7, 7, 7], [7, 7]]))
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]


def test_k08_an_attention_mask_of_the_samples_is_kept():
    batch = PadCollator()(items([[5, 6, 7], [8]], attention_mask=[[1, 1, 0], [1]]))
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]


def test_position_ids_of_the_samples_are_kept():
    batch = PadCollator(position_ids=True)(items([[5, 6], [8]], position_ids=[[9, 8], [7]]))
    assert batch["position_ids"].tolist() == [[9, 8], [7, 0]]


def test_k11_an_empty_sample_is_a_row_of_padding():
    batch = PadCollator({"input_ids": 9}, lengths=True)(items([[], [4, 5]]))
    assert batch["input_ids"].tolist() == [[9, 9], [4, 5]]
    assert batch["attention_mask"].tolist() == [[False, False], [True, True]]
    assert batch["lengths"].tolist() == [0, 2]
    assert PadCollator()(items([[], []]))["input_ids"].shape == (2, 0)


@pytest.mark.parametrize("empty", [torch.tensor([]), np.array([]), []])
def test_an_empty_sample_does_not_make_floats_of_the_others(empty):
    batch = PadCollator()(items([empty, torch.tensor([4, 5])]))
    assert batch["input_ids"].dtype == torch.int64
    assert batch["input_ids"].tolist() == [[0, 0], [4, 5]]


def test_k16_the_batch_is_a_plain_dict_of_tensors():
    batch = PadCollator()(items(ROWS))
    assert type(batch) is dict
    assert list(batch) == ["input_ids", "attention_mask"]
    assert {type(value) for value in batch.values()} == {torch.Tensor}


def test_k17_text_and_other_values_pass_through_untouched():
    meta = [{"a": 1}, None]
    batch = PadCollator()(items(ROWS, text=["x", "y"], tags=[[], ["z"]], meta=meta))
    assert batch["text"] == ["x", "y"]
    assert batch["tags"] == [[], ["z"]]
    assert batch["meta"] == meta
    assert list(batch) == ["input_ids", "text", "tags", "meta", "attention_mask"]


def test_numbers_are_stacked():
    batch = PadCollator()(
        items(ROWS, score=[0.5, 2], label=[3, 4], weight=[np.float32(1), np.float32(2)], flag=[True, False])
    )
    assert batch["score"].tolist() == [0.5, 2.0]
    assert batch["label"].dtype == torch.int64
    assert batch["weight"].dtype == torch.float32
    assert batch["flag"].dtype == torch.bool
    assert PadCollator()(items(ROWS, x=[torch.tensor(1), torch.tensor(2)]))["x"].tolist() == [1, 2]


def test_arrays_of_a_fixed_shape_are_stacked_by_name():
    batch = PadCollator(stack=["embedding"])(items(ROWS, embedding=[np.zeros(4), np.ones(4)]))
    assert batch["embedding"].shape == (2, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("side", ["right", "left"])
def test_features_keep_their_dtype_bit_for_bit(dtype, side):
    features = [torch.randn(3, 5).to(dtype), torch.randn(2, 5).to(dtype)]
    batch = PadCollator({"x": -1.5}, side=side)(items(ROWS, x=features))
    real = batch["x"][1, :2] if side == "right" else batch["x"][1, 1:]
    padding = batch["x"][1, 2] if side == "right" else batch["x"][1, 0]
    assert batch["x"].dtype == dtype
    assert batch["x"].shape == (2, 3, 5)
    assert torch.equal(batch["x"][0], features[0])
    assert torch.equal(real, features[1])
    assert padding.tolist() == [-1.5] * 5


def test_features_of_two_dimensions_and_nested_lists():
    batch = PadCollator()(items([[1, 2], [3]], x=[np.ones((2, 3, 4), np.float32), np.ones((1, 3, 4), np.float32)]))
    assert batch["x"].shape == (2, 2, 3, 4)
    batch = PadCollator()(items([[1, 2], [3]], x=[[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]))
    assert batch["x"].dtype == torch.float32
    assert batch["x"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64])
def test_integers_of_every_width_become_int64_with_their_value(dtype):
    row = np.array([np.iinfo(dtype).min, min(np.iinfo(dtype).max, 2**63 - 1)], dtype)
    batch = PadCollator()(items([row]))
    assert batch["input_ids"].dtype == torch.int64
    assert batch["input_ids"].tolist() == [row.tolist()]


def test_a_dtype_can_be_asked_for_by_key():
    batch = PadCollator(dtype={"input_ids": torch.int32, "loss_mask": torch.int64})(
        items(ROWS, loss_mask=[[True] * 3, [True] * 2])
    )
    assert batch["input_ids"].dtype == torch.int32
    assert batch["loss_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    with refused(
        ValueError, "input_ids of sample 1 has value 2147483648 at token 1, outside int32; ask for a wider dtype"
    ):
        PadCollator(dtype={"input_ids": torch.int32})(items([[1], [2, 2**31]]))
    with refused(
        TypeError,
        'dtype["input_ids"] = torch.float32 does not fit values of dtype int64; use torch.int64 or torch.int32',
    ):
        PadCollator(dtype={"input_ids": torch.float32})(items(ROWS))


def test_bare_rows_are_input_ids():
    for rows in (ROWS, [np.array(row) for row in ROWS], [torch.tensor(row) for row in ROWS]):
        assert PadCollator()(rows)["input_ids"].tolist() == [[1, 2, 0], [1, 0, 0]]


def test_out_buffers_are_filled_and_shared():
    out = {"input_ids": torch.full((20,), 7), "attention_mask": torch.zeros(20, dtype=torch.bool)}
    first = PadCollator()(items(ROWS), out=out)
    assert first["input_ids"].data_ptr() == out["input_ids"].data_ptr()
    assert out["input_ids"].tolist() == [1, 2, 0, 1, 0, 0] + [7] * 14
    assert first["attention_mask"].data_ptr() == out["attention_mask"].data_ptr()
    assert first["attention_mask"].tolist() == [[True] * 3, [True, True, False]]
    features = torch.zeros(40, dtype=torch.bfloat16)
    batch = PadCollator()(
        items(ROWS, x=[torch.ones(3, 5).bfloat16(), torch.ones(2, 5).bfloat16()]), out={"x": features}
    )
    assert batch["x"].data_ptr() == features.data_ptr()
    assert batch["x"].sum().item() == 25


def test_out_buffers_that_cannot_take_the_batch_are_refused():
    collate = PadCollator()
    with refused(
        ValueError, 'out["input_ids"] holds 5 values, too few for a batch of shape (2, 3); make it at least 6 long'
    ):
        collate(items(ROWS), out={"input_ids": torch.zeros(5, dtype=torch.int64)})
    with refused(
        TypeError, 'out["input_ids"] has dtype torch.int32, but the batch has torch.int64; make it torch.int64'
    ):
        collate(items(ROWS), out={"input_ids": torch.zeros(6, dtype=torch.int32)})
    with refused(ValueError, 'out["input_ids"] is not contiguous memory of the CPU; allocate it with torch.empty'):
        collate(items(ROWS), out={"input_ids": torch.zeros(12, dtype=torch.int64)[::2]})
    with refused(TypeError, 'out["input_ids"] is a list, not a tensor'):
        collate(items(ROWS), out={"input_ids": [0] * 6})
    with refused(
        ValueError, 'out names "labels", which is not a padded key; the batch has "input_ids", "attention_mask"'
    ):
        collate(items(ROWS), out={"labels": torch.zeros(6)})
    same = torch.zeros(11, dtype=torch.int64)
    with refused(ValueError, 'out["input_ids"] shares memory with labels; give every field a buffer of its own'):
        collate(items(ROWS, labels=ROWS), out={"input_ids": same[:6], "labels": same[5:]})
    with refused(ValueError, 'out["x"] shares memory with x; give every field a buffer of its own'):
        values = torch.arange(6, dtype=torch.int64)
        PreloadedDataset({"x": values}, [0, 6]).batch([0], out={"x": values})


def test_a_single_sample_is_refused_with_its_likely_cause():
    loader = DataLoader(items(ROWS), batch_size=None, collate_fn=PadCollator())
    with refused(
        TypeError,
        "items is a single sample (a dict), not a list of samples: the loader has lost its batch sampler, as Ray's "
        "prepare_data_loader does to it; pass add_dist_sampler=False there, or give the DataLoader a batch_sampler",
    ):
        next(iter(loader))
    for single in ([1, 2, 3], torch.tensor([1, 2]), np.array([1]), "text"):
        with pytest.raises(TypeError, match=r"^items is a single sample"):
            PadCollator()(single)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([], ValueError, "items is empty; a batch needs at least one sample"),
        (
            [{"input_ids": [1]}, {"input_ids": [1], "x": 2}],
            ValueError,
            'items[1] has "x", but items[0] has not; all samples need the same keys',
        ),
        (
            [{"input_ids": [1], "x": 2}, {"input_ids": [1]}],
            ValueError,
            'items[0] has "x", but items[1] has not; all samples need the same keys',
        ),
        (
            [{"input_ids": [1]}, [1]],
            TypeError,
            "items[1] is a list, but items[0] is a mapping; all samples need the same keys",
        ),
        (
            [([1], 2)],
            TypeError,
            "items[0] is a tuple, not a dict or a sequence of tokens; return a dict from the data set",
        ),
        (
            [{"text": "a"}],
            ValueError,
            'items have no per-token key among "text"; a batch without one needs torch\'s default_collate',
        ),
        (
            [{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [1], "labels": [1, 2, 3]}],
            ValueError,
            'items[1]["labels"] has 3 tokens, but its "input_ids" has 1; keys of one group have one length: name a '
            "fixed shape in stack, or pad to its own length with PadCollator(groups={'target': ['labels']})",
        ),
        (
            [{"x": np.ones((1, 2))}, {"x": np.ones((1, 3))}],
            ValueError,
            'items[1]["x"] has shape (1, 3), but items[0] has (1, 2); only the first dimension, the tokens, may differ',
        ),
        (
            [{"x": [[1, 2], [3]]}],
            ValueError,
            "x has tokens of different shapes; every token of a field needs the same shape",
        ),
    ],
)
def test_samples_that_do_not_fit_together_are_refused(batch, error, message):
    with refused(error, message):
        PadCollator()(batch)


def test_stacked_values_of_different_shapes_are_refused():
    with refused(
        ValueError, 'items[1]["e"] has shape (3,), but items[0] has (2,); values that are stacked have one shape'
    ):
        PadCollator(stack=["e"])(items(ROWS, e=[np.ones(2), np.ones(3)]))


def test_a_missing_number_is_refused():
    with refused(TypeError, 'items[1]["score"] is None, but items[0] has a number; give every sample one'):
        PadCollator()(items(ROWS, score=[1.0, None]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"fill": {"input_ids": None}},
            TypeError,
            'fill["input_ids"] = None is not a number; give the value that padding gets',
        ),
        (
            {"pad_to_multiple_of": 0},
            ValueError,
            f"pad_to_multiple_of = 0 is outside [1, {2**63 - 1}]; choose a value in that range",
        ),
        (
            {"pad_to_multiple_of": 2**64},
            ValueError,
            f"pad_to_multiple_of = {2**64} is outside [1, {2**63 - 1}]; choose a value in that range",
        ),
        ({"pad_to_multiple_of": 2.0}, TypeError, "pad_to_multiple_of = 2.0 is not an integer"),
        ({"pad_to_multiple_of": True}, TypeError, "pad_to_multiple_of = True is not an integer"),
        ({"fill": 5}, TypeError, 'fill = 5 is a int, not a mapping by key; use {"input_ids": 0}'),
        (
            {"dtype": "int64"},
            TypeError,
            "dtype = 'int64' is a str, not a mapping by key; use {\"input_ids\": torch.int32}",
        ),
        (
            {"dtype": {"labels": "int64"}},
            TypeError,
            "dtype[\"labels\"] = 'int64' is not a torch.dtype; use one such as torch.int32",
        ),
        ({"lengths": "no"}, TypeError, "lengths = 'no' is not True or False"),
        ({"position_ids": 2}, TypeError, "position_ids = 2 is not True or False"),
        ({"sample_indices": None}, TypeError, "sample_indices = None is not True or False"),
        ({"stack": 5}, TypeError, "stack = 5 is not a collection of keys"),
        (
            {"attention_mask": torch.float32},
            ValueError,
            "attention_mask = torch.float32 is not one of torch.bool, torch.uint8, torch.int32, torch.int64, None",
        ),
        ({"stack": "e"}, TypeError, 'stack = "e" is a str, not a collection of keys; use ("e",)'),
    ],
)
def test_options_outside_their_choices_are_refused(options, error, message):
    with refused(error, message):
        PadCollator(**options)


def test_the_collator_of_training_takes_samples_without_labels():
    collate = PadCollator({"labels": -100}, dtype={"labels": torch.int64})
    assert set(collate(items(ROWS))) == {"input_ids", "attention_mask"}


def test_options_that_name_no_field_are_refused():
    with refused(ValueError, 'fill names "input_id", which is not a per-token key; the samples have "input_ids"'):
        PadCollator({"input_id": 3})(items(ROWS))
    with refused(ValueError, 'dtype names "y", which is not a numeric key; the samples have "input_ids"'):
        PadCollator(dtype={"y": torch.int32})(items(ROWS))
    for fill in (1.5, 10**30, float("nan"), float("inf"), Fraction(1, 3)):
        with refused(ValueError, f'fill["input_ids"] = {fill} does not fit torch.int64; choose another fill or dtype'):
            PadCollator({"input_ids": fill})(items(ROWS))


def test_sample_indices_come_from_the_samples_or_are_refused():
    batch = PadCollator(sample_indices=True)(items(ROWS, sample_indices=[5, 3]))
    assert batch["sample_indices"].tolist() == [5, 3]
    with refused(
        ValueError,
        'items do not carry "sample_indices"; return it from the data set\'s __getitem__, or use a PreloadedDataset',
    ):
        PadCollator(sample_indices=True)(items(ROWS))


@pytest.mark.parametrize("copied", [lambda c: pickle.loads(pickle.dumps(c)), copy.deepcopy])
def test_a_copy_collates_alike(copied):
    collate = PadCollator({"input_ids": 3}, side="left", dtype={"input_ids": torch.int32}, lengths=True)
    again = copied(collate)
    assert repr(again) == repr(collate)
    expected = collate(items(ROWS))
    assert all(torch.equal(value, expected[key]) for key, value in again(items(ROWS)).items())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_w01_workers_collate_under_every_start_method(method):
    loader = DataLoader(
        items(ROWS * 4),
        batch_size=2,
        num_workers=1,
        multiprocessing_context=method,
        collate_fn=PadCollator({"input_ids": 9}),
    )
    batches = list(loader)
    assert len(batches) == 4
    assert all(batch["input_ids"].tolist() == [[1, 2, 0], [1, 0, 9]] for batch in batches)


def test_g01_random_state_is_left_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    PadCollator()(items(ROWS))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # noqa: NPY002


def pad_rows(values, *, offsets=(0, 2), samples=(0,), dtype="i64", out=None, per_token=1):
    if isinstance(values, np.ndarray) and values.flags.owndata:
        values.flags.writeable = False
    field = Request("x", values, per_token, dtype, 0, out)
    [padded] = _core.pad_rows(list(samples), [GroupRequest(np.array(offsets), [field], False, 1, ())])
    return padded


def test_the_native_call_refuses_a_buffer_that_others_may_write_to():
    writeable = np.zeros(2, np.int32)[:]
    with refused(ValueError, "x is writeable; pass a read-only view, since it is read while other threads run"):
        pad_rows(writeable)


def test_the_native_call_refuses_what_it_cannot_read():
    with refused(TypeError, "x is a 1-D array of dtype float32, not a 1-D array of a supported integer dtype"):
        pad_rows(np.zeros(2, np.float32))
    with refused(TypeError, "x is a 2-D array of dtype int32, not a 1-D array of a supported integer dtype"):
        pad_rows(np.zeros((2, 1), np.int32))
    with refused(ValueError, 'x = "ids" is not an array, "mask" or "positions"'):
        pad_rows("ids")
    with refused(ValueError, 'dtype = "f32" is not one of i64, i32, i16, u8'):
        pad_rows(np.zeros(2, np.int32), dtype="f32")
    with refused(TypeError, "x does not pad to u8; ask for i32 or i64"):
        pad_rows(np.zeros(2, np.int32), dtype="u8")
    with refused(
        ValueError, "x holds 1 tokens, but sample 0 ends at token 2; offsets and values belong to different data"
    ):
        pad_rows(np.zeros(1, np.int32))
    with refused(IndexError, "samples[0] = 1 is outside 0 <= sample < n_samples = 1"):
        pad_rows(np.zeros(2, np.int32), samples=[1])
    with pytest.raises(TypeError):
        pad_rows(np.zeros(2, np.int32), samples=[0.5])


def test_the_native_call_refuses_an_out_that_it_cannot_write_to():
    out = np.zeros(2, np.int64)
    values = np.zeros(2, np.int32)
    values.flags.writeable = False
    fields = [Request(name, values, 1, "i64", 0, out) for name in ("x", "y")]
    with refused(ValueError, 'out["y"] overlaps a buffer that is in use; give each batch in progress its own'):
        _core.pad_rows([0], [GroupRequest(np.array([0, 2]), fields, False, 1, ())])
    out.flags.writeable = False
    with refused(ValueError, 'out["x"] is read-only; pass a writeable buffer'):
        pad_rows(np.zeros(2, np.int32), out=out)
    with refused(TypeError, 'out["x"] is a 1-D array of dtype int32, not a 1-D array of a supported integer dtype'):
        pad_rows(np.zeros(2, np.int32), out=np.zeros(2, np.int32))


def test_other_threads_run_while_a_batch_is_written():
    values = np.zeros(1 << 24, np.int32)
    values.flags.writeable = False
    ticks, done = [0], threading.Event()

    def tick():
        while not done.wait(0.0005):
            ticks[0] += 1

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    before = ticks[0]
    pad_rows(values, offsets=[0, 1 << 24], samples=[0] * 3)
    during = ticks[0] - before
    done.set()
    thread.join()
    # About 0.2 s; with the lock held through the call the thread ticks once before it and once after.
    assert during > 4


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(collate_module).failed == 0
