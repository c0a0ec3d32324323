"""The saved data set: a safetensors file that is written whole, and refused when it is not."""

import json
import multiprocessing
import os
import pickle
import re
import stat
import threading

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from bucketshuffle.torch import PadCollator, PreloadedDataset
from hypothesis import given, settings
from hypothesis import strategies as st

FLAT = np.array([1, 2, 3, 4, 5, 6], np.int32)
OFFSETS = [0, 3, 4, 4, 6]
FEATURES = torch.arange(12, dtype=torch.float32).reshape(6, 2).to(torch.bfloat16)


def refused(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def dataset(first=0, **options):
    """Fields of four widths, one of them bfloat16, and two scalars."""
    return PreloadedDataset(
        {"input_ids": FLAT + first, "x": FEATURES, "loss": np.arange(6) % 2 == 0, "labels": FLAT.astype(np.int64)},
        OFFSETS,
        scalars={"score": np.array([0.5, 1.5, 2.5, 3.5]), "label": np.arange(4, dtype=np.uint8)},
        **options,
    )


def equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        assert torch.equal(first[name], second[name])


def save(path, **options):
    dataset(**options).save(path)
    return path


def test_every_tool_of_the_field_reads_the_file(tmp_path):
    path = save(tmp_path / "rows.safetensors")
    loaded = safetensors.torch.load_file(path)
    assert loaded.keys() == {
        "offsets",
        *(f"values.{name}" for name in ("input_ids", "x", "loss", "labels")),
        "scalars.score",
        "scalars.label",
    }
    assert loaded["offsets"].tolist() == OFFSETS
    assert torch.equal(loaded["values.x"], FEATURES)
    assert loaded["values.loss"].tolist() == [True, False, True, False, True, False]
    assert loaded["scalars.label"].dtype == torch.uint8
    with safetensors.safe_open(path, framework="np") as file:
        assert file.get_tensor("values.input_ids").tolist() == FLAT.tolist()
        assert set(file.metadata()) == {f"crc32.{name}" for name in loaded}


@pytest.mark.parametrize("pad", [b"", b" "])
def test_a_file_of_another_tool_is_opened(tmp_path, pad):
    path = tmp_path / "foreign.safetensors"
    tensors = {"offsets": torch.tensor(OFFSETS), "values.input_ids": torch.tensor(FLAT), "values.x": FEATURES}
    content = safetensors.torch.save(tensors)
    size = int.from_bytes(content[:8], "little")
    # The format asks for no alignment.
    path.write_bytes((size + len(pad)).to_bytes(8, "little") + content[8 : 8 + size] + pad + content[8 + size :])
    opened = PreloadedDataset.open(path)
    equal(opened.batch([3, 0]), PreloadedDataset({"input_ids": FLAT, "x": FEATURES}, OFFSETS).batch([3, 0]))
    equal(pickle.loads(pickle.dumps(opened)).batch([1]), opened.batch([1]))
    with refused(ValueError, f'{path} has no sum of "offsets"; open it without verify, or save it again'):
        PreloadedDataset.open(path, verify=True)


DTYPES = [np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]
DTYPES += [np.float16, np.float32, np.float64, ">i4", ">u2", ">f8"]


@settings(deadline=None)
@given(st.data())
def test_any_data_set_survives_a_file(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("saved") / "rows.safetensors"
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))

    def array(n):
        dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
        shape = (n, *data.draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)])))
        return rng.integers(0, 100, shape).astype(dtype)

    names = data.draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique=True))
    scalars = data.draw(st.lists(st.text(min_size=1, max_size=5), max_size=2, unique=True))
    collator = PadCollator(attention_mask=None)
    made = PreloadedDataset(
        {name: array(offsets[-1]) for name in names},
        offsets,
        scalars={name: array(len(lengths)) for name in scalars if name not in names},
        collator=collator,
    )
    made.save(path)
    for opened in (
        PreloadedDataset.open(path, verify=True, collator=collator),
        PreloadedDataset.open(path, collator=collator),
    ):
        assert repr(opened) == repr(made)
        assert list(opened.batch([0])) == list(made.batch([0]))
        equal(opened.batch(range(len(lengths))), made.batch(range(len(lengths))))
        equal(pickle.loads(pickle.dumps(opened)).batch([0]), made.batch([0]))


def test_open_keeps_the_scalars_and_takes_a_collator(tmp_path):
    path = save(tmp_path / "rows.safetensors")
    opened = PreloadedDataset.open(path)
    equal(opened.batch([3, 0, 2]), dataset().batch([3, 0, 2]))
    assert opened.batch([3, 1])["score"].tolist() == [3.5, 1.5]
    collator = PadCollator({"input_ids": 9}, side="left")
    opened = PreloadedDataset.open(path, collator=collator)
    assert opened.collator is collator
    assert opened.batch([1, 3])["input_ids"].tolist() == [[9, 4], [5, 6]]
    assert not np.shares_memory(PreloadedDataset.open(path).offsets, opened.offsets)


def test_the_tokens_are_mapped_and_not_read(tmp_path):
    path = tmp_path / "large.safetensors"
    PreloadedDataset(np.zeros(50_000_000, np.uint8), [0, 50_000_000]).save(path)
    opened = PreloadedDataset.open(path)
    values = opened._fields["input_ids"].values
    assert not values.flags.writeable
    root = values
    while isinstance(root, np.ndarray):
        root = root.base
    assert type(root).__name__ in ("memoryview", "mmap")


def test_a_truncated_file_is_refused_at_every_length(tmp_path):
    path = save(tmp_path / "rows.safetensors")
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))} is truncated: it has {size} "):
            PreloadedDataset.open(path)
    path.write_bytes(whole[:5])
    with refused(ValueError, f"{path} is truncated: it has 5 bytes, fewer than a header; save it again"):
        PreloadedDataset.open(path)
    path.write_bytes(whole[:50])
    with refused(ValueError, f"{path} is truncated: it has 50 bytes, fewer than its header; save it again"):
        PreloadedDataset.open(path)
    path.write_bytes(whole[:-1])
    with refused(ValueError, f"{path} is truncated: it has {len(whole) - 1} of {len(whole)} bytes; save it again"):
        PreloadedDataset.open(path)
    path.write_bytes(whole + b"more")
    with refused(ValueError, f"{path} is corrupt: it has {len(whole) + 4} of {len(whole)} bytes; save it again"):
        PreloadedDataset.open(path)


def test_a_file_with_any_byte_changed_is_refused_or_the_same(tmp_path):
    path = save(tmp_path / "rows.safetensors")
    whole = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(whole[:8], "little")
    expected = dataset().batch([3, 0, 2])
    for flip in (0xFF, 0x01, 0x20):
        for at in range(len(whole)):
            whole[at] ^= flip
            path.write_bytes(whole)
            whole[at] ^= flip
            try:
                opened = PreloadedDataset.open(path, verify=True)
            except (ValueError, TypeError) as error:
                if not str(error).startswith(str(path)):
                    raise
                continue
            assert at < start, "a changed token was not noticed"
            equal(opened.batch([3, 0, 2]), expected)


def test_changed_offsets_are_noticed_without_verify_and_changed_tokens_with_it(tmp_path):
    path = save(tmp_path / "rows.safetensors")
    whole = path.read_bytes()
    with safetensors.safe_open(path, framework="np") as file:
        assert file.get_tensor("offsets").tolist() == OFFSETS
    path.write_bytes(whole.replace(np.array(OFFSETS).tobytes(), np.array([0, 2, 4, 4, 6]).tobytes()))
    with refused(ValueError, f'{path} is corrupt: the sum of "offsets" differs; save it again'):
        PreloadedDataset.open(path)
    path.write_bytes(whole.replace(FLAT.tobytes(), (FLAT + 1).tobytes()))
    with refused(ValueError, f'{path} is corrupt: the sum of "values.input_ids" differs; save it again'):
        PreloadedDataset.open(path, verify=True)
    assert PreloadedDataset.open(path).batch([1])["input_ids"].tolist() == [[5]]


def test_the_sum_covers_what_the_bytes_mean(tmp_path):
    path = save(tmp_path / "rows.safetensors")
    whole = path.read_bytes()
    for old, new in ((b'"dtype": "I32"', b'"dtype": "U32"'), (b'"shape": [6, 2]', b'"shape": [2, 6]')):
        assert old in whole
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(ValueError, match=rf'^{re.escape(str(path))} is corrupt: the sum of "values\.\w+" differs'):
            PreloadedDataset.open(path, verify=True)


def test_every_array_is_aligned_whatever_stands_before_it(tmp_path):
    path = tmp_path / "rows.safetensors"
    fields = {"a": np.ones(3, bool), "b": np.ones(3, np.int64), "c": np.ones(3, np.int16), "d": np.ones(3, np.float32)}
    PreloadedDataset(fields, [0, 3]).save(path)
    opened = PreloadedDataset.open(path)
    # What is not aligned is copied, and has no place in the file.
    assert all(field.place is not None for field in opened._fields.values())


def raw(header, data=b""):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(content).to_bytes(8, "little") + content + data


def entry(dtype="I64", shape=(2,), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


OFFSETS_0_2 = np.array([0, 2]).tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"\x93NUMPY\x01\x00" + b" " * 100,
            "{path} is not a safetensors file: its header would have 379676406402707 bytes; pass what "
            "PreloadedDataset.save wrote",
        ),
        (
            raw(b"{]"),
            "{path} is not a safetensors file: its header is not a JSON object; pass what PreloadedDataset.save wrote",
        ),
        (
            raw(b"[" * 100_000),
            "{path} is not a safetensors file: its header is not a JSON object; pass what PreloadedDataset.save wrote",
        ),
        (
            raw([1]),
            "{path} is not a safetensors file: its header is not a JSON object; pass what PreloadedDataset.save wrote",
        ),
        (raw({}), "{path} holds no data set: it has no offsets, or no values.*"),
        (raw({"offsets": entry()}, OFFSETS_0_2), "{path} holds no data set: it has no offsets, or no values.*"),
        (
            raw({"weight": entry()}, bytes(16)),
            '{path} holds "weight", which is neither offsets, values.* nor scalars.*',
        ),
        (raw({"offsets": 5}), '{path} is corrupt: "offsets" has no shape or place in its header'),
        (
            raw({"offsets": entry(shape=(2, -1))}, bytes(16)),
            '{path} is corrupt: "offsets" has no shape or place in its header',
        ),
        (
            raw({"offsets": entry(offsets=(0, True))}, bytes(16)),
            '{path} is corrupt: "offsets" has no shape or place in its header',
        ),
        (
            raw({"offsets": entry("F8_E5M2")}, bytes(16)),
            '{path} has "offsets" of dtype F8_E5M2, which no batch can hold',
        ),
        (
            raw({"offsets": entry(shape=(3,))}, bytes(16)),
            '{path} is corrupt: "offsets" has shape (3,), but other than 24 bytes',
        ),
        (
            raw({"offsets": entry(offsets=(0,))}, bytes(16)),
            '{path} is corrupt: "offsets" has shape (2,), but other than 16 bytes',
        ),
        (
            raw({"offsets": entry(offsets=(8, 24))}, bytes(24)),
            '{path} is corrupt: "offsets" does not start where the array before it ends',
        ),
        (
            raw({"offsets": entry(), "values.x": entry()}, bytes(16)),
            '{path} is corrupt: "values.x" does not start where the array before it ends',
        ),
        (raw({"__metadata__": {"a": 1}}), "{path} is corrupt: its metadata is not text by name"),
        (raw({"__metadata__": [1]}), "{path} is corrupt: its metadata is not text by name"),
        (
            raw({"offsets": entry(), "values.x": entry(shape=(1,), offsets=(16, 24))}, OFFSETS_0_2 + bytes(8)),
            '{path}: values["x"] holds 1 tokens, but offsets[-1] = 2; they belong to different data',
        ),
        (
            raw({"offsets": entry(), "values.x": entry(offsets=(16, 32))}, np.array([2, 0]).tobytes() + bytes(16)),
            "{path}: offsets[0] = 2 is not 0; offsets count tokens from the first",
        ),
    ],
)
def test_a_file_that_holds_no_data_set_says_what_it_is(tmp_path, content, message):
    path = tmp_path / "rows.safetensors"
    path.write_bytes(content)
    with refused(ValueError, message.format(path=path)):
        PreloadedDataset.open(path)


def test_a_file_that_does_not_exist_is_no_value_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        PreloadedDataset.open(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "nothing" / "rows.safetensors")


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = save(tmp_path / "rows.safetensors")
    before = path.read_bytes()

    def full(_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        save(path, first=9)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["rows.safetensors"]


def test_a_folder_that_cannot_be_listed_does_not_fail_a_save(tmp_path, monkeypatch):
    unpatched = os.open

    def unlistable(path, flags, *mode):
        if os.path.isdir(path):
            raise PermissionError("permission denied")
        return unpatched(path, flags, *mode)

    monkeypatch.setattr(os, "open", unlistable)
    path = save(tmp_path / "rows.safetensors")
    equal(PreloadedDataset.open(path).batch([0]), dataset().batch([0]))


def test_save_keeps_links_and_modes_and_never_touches_the_umask(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to the process"))
    path, link = tmp_path / "rows.safetensors", tmp_path / "latest"
    link.symlink_to(path.name)
    save(link)  # the link's target does not exist yet
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~current_umask()
    for mode in (0o666, 0o640):
        path.chmod(mode)
        save(link, first=1)
        assert link.is_symlink()
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert PreloadedDataset.open(path).batch([1])["input_ids"].tolist() == [[5]]
    assert sorted(os.listdir(tmp_path)) == ["latest", "rows.safetensors"]


def current_umask():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))


def test_a_replaced_file_is_as_private_as_before_while_it_is_written(tmp_path, monkeypatch):
    path = save(tmp_path / "rows.safetensors")
    path.chmod(0o600)
    modes = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (modes.append(stat.S_IMODE(os.fstat(file).st_mode)), sync(file)))
    save(path)
    assert modes[0] == 0o600


@pytest.mark.parametrize("name", ["a" * 255, "rows"])
def test_a_name_may_be_as_long_as_names_are(tmp_path, name):
    equal(PreloadedDataset.open(save(tmp_path / name)).batch([0]), dataset().batch([0]))


@pytest.mark.timeout(20)
def test_pipes_folders_and_devices_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "pipe"), (tmp_path, "folder"), ("/dev/null", "character device")):
        for use in (PreloadedDataset.open, save, lambda path: PreloadedDataset(path, OFFSETS)):
            with refused(ValueError, f"{path} is a {kind}, not a regular file; pass the path of a file"):
                use(path)


def test_saving_over_an_open_file_leaves_the_open_data_set_whole(tmp_path):
    path = save(tmp_path / "rows.safetensors")
    opened = PreloadedDataset.open(path)
    opened.save(path)  # over itself
    save(path, first=9)
    equal(opened.batch([3, 0]), dataset().batch([3, 0]))


def test_a_file_replaced_while_it_is_opened_gives_one_of_the_two(tmp_path):
    path = tmp_path / "rows.safetensors"
    contents = [PreloadedDataset(np.full(n, n, np.int32), [0, n]) for n in (100, 3)]
    contents[0].save(path)
    done = threading.Event()

    def replace():
        i = 0
        while not done.is_set():
            i += 1
            contents[i % 2].save(path)

    thread = threading.Thread(target=replace, daemon=True)
    thread.start()
    try:
        for _ in range(500):
            n_tokens = int(PreloadedDataset.open(path, verify=True).lengths[0])
            assert n_tokens in (100, 3)
    finally:
        done.set()
        thread.join()


def test_the_path_is_looked_up_once(tmp_path, monkeypatch):
    path = save(tmp_path / "rows.safetensors")
    np.save(tmp_path / "ids.npy", FLAT)
    opened = []
    unpatched = os.open
    monkeypatch.setattr(os, "open", lambda *arguments: (opened.append(arguments[0]), unpatched(*arguments))[1])
    PreloadedDataset.open(path)
    PreloadedDataset(tmp_path / "ids.npy", OFFSETS)
    assert opened == [path, tmp_path / "ids.npy"]


def replaced(path, content):
    """The same size and time, another file."""
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(content)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, path)


def test_a_pickled_reference_to_a_replaced_file_is_refused(tmp_path):
    path = save(tmp_path / "rows.safetensors")
    opened = PreloadedDataset.open(path)
    before = pickle.dumps(opened)
    content = path.read_bytes()
    replaced(path, content.replace(FLAT.tobytes(), (FLAT + 1).tobytes()))
    # Pickled before it was replaced, or after: the bytes at the path are not the data set's.
    for pickled in (before, pickle.dumps(opened)):
        with refused(ValueError, f"{path} has changed since the data set was made from it; open it again"):
            pickle.loads(pickled)
    equal(opened.batch([0]), dataset().batch([0]))


def test_a_pickled_reference_to_a_replaced_npy_file_is_refused(tmp_path):
    path = tmp_path / "ids.npy"
    np.save(path, FLAT)
    for values in (path, np.load(path, mmap_mode="r")):
        mapped = PreloadedDataset(values, OFFSETS)
        equal(pickle.loads(pickle.dumps(mapped)).batch([0]), PreloadedDataset(FLAT, OFFSETS).batch([0]))
        replaced(path, path.read_bytes())
        with refused(ValueError, f"{path} has changed since the data set was made from it; open it again"):
            pickle.loads(pickle.dumps(mapped))


def test_a_mapped_data_set_pickles_as_its_path_and_a_slice_of_a_map_as_its_place(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(100_000, dtype=np.int32))
    mapped = np.load(tmp_path / "ids.npy", mmap_mode="r")[500:]
    made = PreloadedDataset(mapped, [0, 3, len(mapped)])
    content = pickle.dumps(made)
    assert len(content) < 2000
    assert pickle.loads(content)[0]["input_ids"].tolist() == [500, 501, 502]
    # Every other value is no place in a file, and neither is what may still be written to.
    strided = PreloadedDataset(np.load(tmp_path / "ids.npy", mmap_mode="r")[::2], [0, 50_000])
    assert pickle.loads(pickle.dumps(strided))[0]["input_ids"][:3].tolist() == [0, 2, 4]
    writeable = PreloadedDataset(np.load(tmp_path / "ids.npy", mmap_mode="c"), [0, 100_000])
    assert len(pickle.dumps(writeable)) > 400_000
    saved = tmp_path / "rows.safetensors"
    made.save(saved)
    assert len(pickle.dumps(PreloadedDataset.open(saved))) < 2000


def _first(opened):
    return opened[0]["input_ids"].tolist()


def test_a_spawned_process_maps_the_file_again(tmp_path):
    opened = PreloadedDataset.open(save(tmp_path / "rows.safetensors"))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_first, [opened]) == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda path: path.write_bytes(b"12"),
            "{path} is not a .npy file; write it with numpy.save, or pass numpy.memmap(path, dtype) of raw numbers",
        ),
        (
            lambda path: path.write_bytes(b""),
            "{path} is not a .npy file; write it with numpy.save, or pass numpy.memmap(path, dtype) of raw numbers",
        ),
        (
            lambda path: np.save(path, np.array([1, "a"], object)),
            "{path} holds Python objects, not numbers; write it anew from an array of numbers",
        ),
        (
            lambda path: np.save(path, np.ones((2, 3), order="F")),
            "{path} is in Fortran order, which has no flat tokens; save numpy.ascontiguousarray of it",
        ),
        (
            lambda path: (np.save(path, FLAT), os.truncate(path, 130)),
            "{path} is truncated: it has 130 of 152 bytes; save it again",
        ),
    ],
)
def test_a_file_that_is_no_npy_file_says_so(tmp_path, write, message):
    path = tmp_path / "ids.npy"
    write(path)
    with refused(ValueError, message.format(path=path)):
        PreloadedDataset(path, OFFSETS)


def test_npy_files_of_both_header_versions_are_mapped(tmp_path):
    path = tmp_path / "ids.npy"
    for version in ((1, 0), (2, 0)):
        with path.open("wb") as file:
            np.lib.format.write_array(file, FLAT, version=version)
        assert PreloadedDataset(path, OFFSETS)[0]["input_ids"].tolist() == [1, 2, 3]
