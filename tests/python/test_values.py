"""No value of a sample changes on its way into a batch, no key is lost, and what cannot be kept is refused by name."""

import pickle
import re
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from bucketshuffle.torch import PadCollator, PreloadedDataset
from bucketshuffle.torch.fields import Padder
from hypothesis import given
from hypothesis import strategies as st

ROWS = [[1, 2, 0], [1, 0]]
FLAT = np.array([1, 2, 3, 4, 5, 6], np.int32)
OFFSETS = [0, 3, 4, 4, 6]


def refused(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def items(rows, **more):
    return [{"input_ids": row} | {key: values[i] for key, values in more.items()} for i, row in enumerate(rows)]


# Rows as arrays of any dtype: an int of any row keeps its value, or the batch is refused.

INTEGERS = [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]


@st.composite
def integer_rows(draw):
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
        info = np.iinfo(dtype)
        values = st.integers(info.min, info.max) | st.sampled_from([info.min, info.max, 0, 1])
        row = draw(st.lists(values, max_size=4))
        as_list = draw(st.booleans()) and max(row, default=0) < 2**63
        rows.append(row if as_list else np.array(row, dtype))
    return rows


@given(integer_rows())
def test_an_integer_keeps_its_value_beside_any_others(rows):
    wanted = [list(map(int, row)) for row in rows]
    fits = all(value < 2**63 for row in wanted for value in row)
    try:
        batch = PadCollator({"input_ids": -7})(rows)
    except ValueError:
        assert not fits
        return
    assert fits
    assert batch["input_ids"].dtype == torch.int64
    width = max(map(len, wanted))
    assert batch["input_ids"].tolist() == [row + [-7] * (width - len(row)) for row in wanted]


def test_integers_that_no_dtype_holds_together_are_refused():
    big = 2**63
    with refused(
        ValueError,
        f"input_ids holds integers that no dtype holds together, from -1 to {big}; correct them",
    ):
        PadCollator()([[big, -1]])
    with refused(
        ValueError,
        f"x holds integers that no dtype holds together, from -1 to {big}; correct them",
    ):
        PadCollator()([{"x": [[big, -1]]}])
    with refused(
        ValueError,
        f'items[0]["input_ids"] holds {big}, which does not fit int64 beside rows of signed integers; give all rows '
        "one dtype",
    ):
        PadCollator()([np.array([big], np.uint64), np.array([1])])
    rows = [np.array([1], np.uint64), np.array([2**53 + 1])]
    assert PadCollator()(rows)["input_ids"].tolist() == [[1], [2**53 + 1]]
    with refused(ValueError, f"input_ids of sample 0 has value {big} at token 0, outside int64; correct the value"):
        PadCollator()([np.array([big], np.uint64)])


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_integers_that_change_among_floats_are_refused(make):
    kind = "float64" if make is np.array else "torch.float32"
    with refused(
        ValueError,
        f'items[0]["x"] holds integers that change as {kind}, which all samples make together; give them one dtype',
    ):
        PadCollator()([{"x": make([2**60 + 1])}, {"x": make([0.5])}])
    batch = PadCollator()([{"x": make([3])}, {"x": make([0.5])}])
    assert batch["x"].tolist() == [[3.0], [0.5]]


@pytest.mark.parametrize(
    "column",
    [
        [np.int16(3), np.int16(4)],
        [np.uint32(3), np.uint32(4)],
        [torch.tensor(3, dtype=torch.int8), torch.tensor(4, dtype=torch.int8)],
        [np.array(3, ">i4"), np.array(4, ">i4")],
        [np.uint64(3), np.int8(4)],
        [3, 4],
        [3, np.int32(4)],
    ],
)
def test_whole_numbers_per_sample_are_int64_as_a_loss_wants_them(column):
    batch = PadCollator()(items(ROWS, label=column))
    assert batch["label"].dtype == torch.int64
    assert batch["label"].tolist() == [3, 4]
    torch.nn.functional.cross_entropy(torch.zeros(2, 9), batch["label"])
    dataset = PreloadedDataset.from_rows({"input_ids": ROWS, "label": column})
    assert dataset.batch([1, 0])["label"].dtype == torch.int64
    assert dataset.batch([1, 0])["label"].tolist() == [4, 3]
    assert dataset[1]["label"].dtype == torch.int64


def test_dtype_names_the_numbers_of_a_sample_too():
    for dtype in (torch.int32, torch.int64):
        collate = PadCollator(dtype={"label": dtype, "flag": dtype})
        batch = collate(items(ROWS, label=[3, 4], flag=[True, False]))
        assert (batch["label"].dtype, batch["flag"].dtype) == (dtype, dtype)
        dataset = PreloadedDataset.from_rows(
            {"input_ids": ROWS, "label": [3, 4], "flag": [True, False]}, collator=collate
        )
        assert dataset.batch([0])["label"].dtype == dtype
        assert dataset.batch([0])["flag"].tolist() == [1]
    kept = PadCollator(dtype={"score": torch.float64})
    assert kept(items(ROWS, score=[np.float64(1), np.float64(2)]))["score"].dtype == torch.float64
    with refused(
        TypeError,
        'dtype["score"] = torch.int64 does not fit values of dtype float32; use torch.float32',
    ):
        PadCollator(dtype={"score": torch.int64})(items(ROWS, score=[0.5, 1.5]))
    with refused(
        TypeError,
        'dtype["flag"] = torch.float32 does not fit values of dtype bool; use torch.bool, torch.int64 or torch.int32',
    ):
        PadCollator(dtype={"flag": torch.float32})(items(ROWS, flag=[True, False]))
    with refused(ValueError, f"label of sample 1 has value {2**31}, outside torch.int32; ask for a wider dtype"):
        PadCollator(dtype={"label": torch.int32})(items(ROWS, label=[1, 2**31]))
    with refused(ValueError, f"label of sample 0 has value {2**63}, outside torch.int64; correct the value"):
        PadCollator()(items(ROWS, label=[np.uint64(2**63), np.uint64(1)]))


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        (
            [1, "a"],
            TypeError,
            'items[1]["x"] is a str, but items[0] has a number; give every sample one',
        ),
        (
            [np.float32(1), {}],
            TypeError,
            'items[1]["x"] is a dict, but items[0] has a number; give every sample one',
        ),
        (
            [2**63, -1],
            ValueError,
            '"x" cannot be stacked: its values have different shapes, or are beyond 64 bits; correct them',
        ),
        (
            [10**30, 1],
            ValueError,
            '"x" cannot be stacked: its values have different shapes, or are beyond 64 bits; correct them',
        ),
        (
            [np.int64(2**60 + 1), np.float32(0.5)],
            ValueError,
            'items[0]["x"] holds integers that change as torch.float32, which all samples make together; give them one '
            "dtype",
        ),
    ],
)
def test_numbers_that_cannot_be_stacked_are_refused(column, error, message):
    with refused(error, message):
        PadCollator()(items(ROWS, x=column))


def test_a_key_of_the_samples_is_never_overwritten():
    made = {"lengths": True, "position_ids": True, "sample_indices": True}
    own = {name: [[5, 6, 7], [8, 9]] for name in ("lengths", "position_ids", "attention_mask", "sample_indices")}
    batch = PadCollator(**made)(items(ROWS, **own))
    for name in own:
        assert batch[name].tolist() == [[5, 6, 7], [8, 9, 0]], name
    dataset = PreloadedDataset.from_rows({"input_ids": ROWS, **own}, collator=PadCollator(**made))
    batch = dataset.batch([1, 0])
    for name in own:
        assert batch[name].tolist() == [[8, 9, 0], [5, 6, 7]], name
        assert dataset[1][name].tolist() == [8, 9], name
    numbers = {name: [31, 32] for name in own}
    dataset = PreloadedDataset.from_rows({"input_ids": ROWS, **numbers}, collator=PadCollator(**made))
    batch = dataset.batch([1, 0])
    for name in own:
        assert batch[name].tolist() == [32, 31], name
    with refused(ValueError, 'scalars["input_ids"] has the name of a per-token field; give it another'):
        PreloadedDataset(FLAT, OFFSETS, scalars={"input_ids": np.zeros(4)})


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        ([True, False], TypeError, "samples[0] = True is not an integer"),
        ([1, True], TypeError, "samples[1] = True is not an integer"),
        (np.array([True, False]), TypeError, "samples has dtype bool, not an integer dtype"),
        (torch.tensor([True]), TypeError, "samples has dtype bool, not an integer dtype"),
        ([torch.tensor(True)], TypeError, "samples[0] = tensor(True) is not an integer"),
        ([0, 0.5], TypeError, "samples[1] = 0.5 is not an integer"),
        (["0"], TypeError, "samples[0] = '0' is not an integer"),
        ([None], TypeError, "samples[0] = None is not an integer"),
        (3, TypeError, "samples is a int, not a sequence of integers"),
        ({0, 1}, TypeError, "samples is a set, not a sequence of integers"),
        (np.array([[0, 1]]), ValueError, "samples has shape (1, 2), not (B,); pass one batch"),
        (np.array(1), ValueError, "samples has shape (), not (B,); pass one batch"),
        ([2**64], IndexError, f"samples[0] = {2**64} is no sample; a data set has fewer than 2^63"),
        (np.array([2**64 - 1], np.uint64), IndexError, f"samples holds {2**64 - 1}, which no data set has"),
    ],
)
def test_samples_that_are_no_integers_are_refused(samples, error, message):
    dataset = PreloadedDataset(FLAT, OFFSETS, scalars={"score": [0.5, 1.5, 2.5, 3.5]})
    with refused(error, message):
        dataset.batch(samples)


@pytest.mark.parametrize(
    "samples",
    [[3, 0], (3, 0), np.array([3, 0]), np.array([3, 0], np.uint16), torch.tensor([3, 0]), [np.int32(3), np.int64(0)]],
)
def test_samples_of_every_holder_give_the_same_batch(samples):
    dataset = PreloadedDataset(FLAT, OFFSETS, scalars={"score": [0.5, 1.5, 2.5, 3.5]})
    dataset.collator = PadCollator(sample_indices=True)
    batch = dataset.batch(samples)
    assert batch["input_ids"].tolist() == [[5, 6, 0], [1, 2, 3]]
    assert batch["sample_indices"].tolist() == [3, 0]
    assert batch["score"].tolist() == [3.5, 0.5]


# Any fields against the definition, cell by cell; a token may have any number of values.

SHAPES = [(), (1,), (3,), (2, 2)]


@st.composite
def data_sets(draw):
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    fields = {}
    for name in draw(st.lists(st.sampled_from(["a", "b", "labels"]), min_size=1, max_size=3, unique=True)):
        shape = (sum(lengths), *draw(st.sampled_from(SHAPES)))
        dtype = draw(st.sampled_from([np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64]))
        if name == "labels" and dtype is np.bool_:
            dtype = np.int8  # no bool is the -100 of labels
        fields[name] = rng.integers(0, 100, shape).astype(dtype)
    return lengths, fields


@given(
    data_sets(),
    st.data(),
    st.sampled_from(["right", "left"]),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_cell_of_every_field_is_its_value_or_the_fill(made, data, side, multiple, with_out):
    lengths, fields = made
    samples = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=4))
    fill = {name: float(data.draw(st.integers(0, 1))) for name in fields if data.draw(st.booleans())}
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    collator = PadCollator(fill, side=side, pad_to_multiple_of=multiple, lengths=True, position_ids=True)
    dataset = PreloadedDataset(fields, offsets, collator=collator)
    width = -(-max(lengths[sample] for sample in samples) // multiple) * multiple
    out = None
    if with_out:
        n_values = len(samples) * width
        out = {
            name: torch.full((n_values * int(np.prod(values.shape[1:])) + 3,), 1).to(dataset.batch([0])[name].dtype)
            for name, values in fields.items()
        } | {"attention_mask": torch.ones(n_values, dtype=torch.bool)}
    batch = dataset.batch(samples, out=out)
    for name, values in fields.items():
        wanted = torch.int64 if values.dtype.kind in "iu" else torch.from_numpy(values).dtype
        assert batch[name].dtype == wanted
        assert batch[name].shape == (len(samples), width, *values.shape[1:])
        padding = fill.get(name, -100.0 if name == "labels" else 0.0)
        padding = torch.tensor(padding).to(wanted).item()
        for b, sample in enumerate(samples):
            first = width - lengths[sample] if side == "left" else 0
            for position in range(width):
                token = position - first
                cell = batch[name][b, position]
                if 0 <= token < lengths[sample]:
                    assert cell.tolist() == values[offsets[sample] + token].tolist()
                else:
                    assert (cell == padding).all()
    for b, sample in enumerate(samples):
        first = width - lengths[sample] if side == "left" else 0
        real = range(first, first + lengths[sample])
        assert batch["attention_mask"][b].tolist() == [position in real for position in range(width)]
        assert batch["position_ids"][b].tolist() == [
            position - first if position in real else 0 for position in range(width)
        ]
    assert batch["lengths"].tolist() == [lengths[sample] for sample in samples]


def test_left_padding_of_a_single_sample():
    collate = PadCollator({"input_ids": 9}, side="left", pad_to_multiple_of=4, position_ids=True)
    for batch in (
        collate([{"input_ids": [5, 6]}]),
        PreloadedDataset.from_rows([[5, 6]], collator=collate).batch([0]),
    ):
        assert batch["input_ids"].tolist() == [[9, 9, 5, 6]]
        assert batch["attention_mask"].tolist() == [[False, False, True, True]]
        assert batch["position_ids"].tolist() == [[0, 0, 0, 1]]
    # A sample by itself is never padded, on neither side.
    assert PreloadedDataset.from_rows([[5, 6]], collator=collate)[0]["input_ids"].tolist() == [5, 6]


def test_features_of_a_sample_are_all_its_values():
    features = np.arange(18, dtype=np.float32).reshape(6, 3)
    dataset = PreloadedDataset({"input_ids": FLAT, "x": features}, OFFSETS)
    assert dataset[3]["x"].tolist() == features[4:6].tolist()
    assert dataset.batch([3])["x"].tolist() == [features[4:6].tolist()]


def test_a_plan_of_the_data_set_follows_seed_epoch_and_the_collator():
    lengths = np.random.default_rng(0).integers(1, 30, 200)
    dataset = PreloadedDataset(np.zeros(lengths.sum(), np.int8), np.concatenate([[0], np.cumsum(lengths)]))
    plans = [dataset.build_batches(seed, epoch, token_budget=256) for seed in (0, 1) for epoch in (0, 1)]
    assert len({plan.indices.tobytes() for plan in plans}) == 4
    assert [(plan.seed, plan.epoch) for plan in plans] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert dataset.build_batches(1, token_budget=256) == plans[2]
    dataset.collator = PadCollator(pad_to_multiple_of=16)
    plan = dataset.build_batches(0, token_budget=256)
    assert all(dataset.batch(batch)["input_ids"].numel() <= 256 for batch in plan)
    assert set((plan.padded_lengths % 16).tolist()) == {0}
    assert set((dataset.build_batches(0, token_budget=256, pad_to_multiple_of=32).padded_lengths % 32).tolist()) == {0}
    with refused(
        ValueError,
        "pad_to_multiple_of = 8 is no multiple of the collator's pad_to_multiple_of = 16, so batches would exceed "
        "token_budget; leave it out",
    ):
        dataset.build_batches(0, token_budget=256, pad_to_multiple_of=8)
    with refused(TypeError, "pad_to_multiple_of = 1.5 is not an integer"):
        dataset.build_batches(0, token_budget=256, pad_to_multiple_of=1.5)


def test_collators_cannot_be_changed_and_data_sets_take_no_other_kind():
    collate = PadCollator({"input_ids": 9})
    assert collate(ROWS)["input_ids"].tolist() == [[1, 2, 0], [1, 0, 9]]
    for name in ("side", "fill", "pad_to_multiple_of"):
        with refused(AttributeError, f"{name} of a PadCollator cannot be changed; make another PadCollator"):
            setattr(collate, name, "left")
    with refused(TypeError, "collator = 5 is not a PadCollator"):
        PreloadedDataset(FLAT, OFFSETS, collator=5)


def test_a_collator_sees_that_the_next_batch_has_other_fields():
    collate = PadCollator({"labels": 7}, lengths=True)
    assert collate(ROWS)["input_ids"].dtype == torch.int64
    batch = collate([{"input_ids": [1.5], "labels": [1]}, {"input_ids": [], "labels": []}])
    assert batch["input_ids"].tolist() == [[1.5], [0.0]]
    assert batch["labels"].tolist() == [[1], [7]]
    assert collate(ROWS)["input_ids"].shape == (2, 3)
    assert collate([{"input_ids": [[1, 2]]}])["input_ids"].shape == (1, 1, 2)
    assert collate(items(ROWS, lengths=["a", "b"]))["lengths"] == ["a", "b"]
    assert collate(ROWS)["lengths"].tolist() == [3, 2]
    assert collate(items(ROWS, lengths=[5, 6]))["lengths"].tolist() == [5, 6]
    assert collate(ROWS)["lengths"].tolist() == [3, 2]
    assert collate(items(ROWS, attention_mask=ROWS))["attention_mask"].tolist() == [[1, 2, 0], [1, 0, 0]]
    assert repr(collate) == repr(pickle.loads(pickle.dumps(collate)))


def test_threads_share_a_padder_each_with_an_out_of_its_own():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 1000, n) for n in rng.integers(1, 60, 100)]
    collate = PadCollator(pad_to_multiple_of=8)
    dataset = PreloadedDataset.from_rows(rows, collator=collate)
    batches = [rng.integers(0, 100, 16).tolist() for _ in range(100)]
    expected = [dataset.batch(batch)["input_ids"] for batch in batches]
    failures = []

    def consume(pad):
        out = {"input_ids": torch.empty(16 * 64, dtype=torch.int64)}
        for batch, reference in zip(batches, expected, strict=True):
            if not torch.equal(pad(batch, out)["input_ids"], reference):
                failures.append(batch)

    ways = [
        lambda batch, out: dataset.batch(batch, out=out),
        lambda batch, out: collate([{"input_ids": rows[sample]} for sample in batch], out=out),
    ]
    threads = [threading.Thread(target=consume, args=(way,)) for way in ways * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert isinstance(dataset._held.padder, Padder)


def test_unaligned_and_strided_buffers_are_copied():
    raw = bytes(1) + FLAT.tobytes()
    unaligned = np.frombuffer(raw, np.uint8)[1:].view(np.int32)
    assert not unaligned.flags.aligned
    for values in (unaligned, np.repeat(FLAT, 2)[::2], FLAT.astype(">i4")):
        assert PreloadedDataset(values, OFFSETS).batch([3])["input_ids"].tolist() == [[5, 6]]
    offsets = np.frombuffer(bytes(1) + np.array(OFFSETS).tobytes(), np.uint8)[1:].view(np.int64)
    assert PreloadedDataset(FLAT, offsets).batch([3])["input_ids"].tolist() == [[5, 6]]


OUT_OF_MEMORY = """
import resource
import numpy as np
import torch
from bucketshuffle.torch import PadCollator, PreloadedDataset

data = PreloadedDataset(np.zeros(1 << 20, np.int8), [0, 1 << 20])
collate = PadCollator()
data.batch([0])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
ids, wide = torch.zeros(1 << 22, dtype=torch.int64), torch.zeros(1 << 22)
for attempt in (
    lambda: data.batch([0] * 1000),
    lambda: data.batch(np.zeros(1 << 25, np.int64)[:1].repeat(1 << 27)),
    lambda: collate([{"input_ids": ids}] * 64),
    lambda: collate([{"input_ids": wide.bfloat16()}] * 65),
    lambda: PadCollator(stack=["x"])([{"input_ids": ids[:3], "x": wide}] * 66),
):
    try:
        attempt()
    except MemoryError as error:
        print("MemoryError:", error)
"""


def test_a_batch_that_does_not_fit_in_memory_is_a_memory_error():
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "MemoryError: a batch of 1000 samples padded to 1048576 tokens does not fit in memory; lower token_budget or "
        "pad_to_multiple_of"
    )
    assert lines[1].startswith("MemoryError: ")
    assert lines[2:] == [
        f"MemoryError: a batch of {n_samples} samples does not fit in memory; lower token_budget"
        for n_samples in (64, 65, 66)
    ]
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("key", [1, None, ("a",)])
def test_a_key_that_is_no_string_is_refused(key):
    with refused(TypeError, f"items[0] has the key {key!r}, which is not a string; name every key of a sample"):
        PadCollator()([{"input_ids": [1], key: [1]}])
    with refused(TypeError, f"values has the key {key!r}, which is not a string; name every field"):
        PreloadedDataset({key: FLAT}, OFFSETS)
    with refused(TypeError, f"scalars has the key {key!r}, which is not a string; name every field"):
        PreloadedDataset(FLAT, OFFSETS, scalars={key: [1] * 4})
    with refused(TypeError, "scalars is a list, not a mapping; pass arrays by the name of the field"):
        PreloadedDataset(FLAT, OFFSETS, scalars=[1] * 4)
