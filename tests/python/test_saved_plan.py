"""A saved plan: written whole or not at all, and refused by file and reason when it is not one."""

import io
import json
import os
import pickle
import re
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from bucketshuffle import EpochPlan, pack_epoch
from hypothesis import given
from hypothesis import strategies as st

PLAN = pack_epoch([5, 3, 8, 9, 2], 7, epoch=3, token_budget=8, overlong="drop", boundaries=[0, 4, 8])
TOTALS = (
    "budget_tokens, closed_by_bucket_end, closed_by_budget, closed_by_max_batch_size, cost, dropped_tokens, n_splits, "
    "padded_tokens, real_tokens, window"
)


def saved(path, **changes):
    """The file of PLAN with some of its arrays replaced; None: left out."""
    PLAN.save(path)
    with np.load(path) as file:
        arrays = {**dict(file), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def scalars(**changes):
    text = {"seed": 7, "epoch": 3, "order_version": 2, "_totals": PLAN._totals}
    return np.array(json.dumps({**text, **changes}))


def refused(path, reason):
    message = f"path = {str(path)!r} holds no plan, since {reason}; pass a file that EpochPlan.save wrote"
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


def test_what_is_saved_is_loaded(tmp_path):
    PLAN.save(tmp_path / "plan.npz")
    assert EpochPlan.load(tmp_path / "plan.npz") == PLAN
    empty = pack_epoch([], 0)
    empty.save(tmp_path / "plan.npz")
    assert EpochPlan.load(str(tmp_path / "plan.npz")) == empty
    assert EpochPlan.load(saved(tmp_path / "plan.npz")) == PLAN
    kept = pack_epoch([9, 9], 0, token_budget=1, overlong="keep")
    kept.save(tmp_path / "plan.npz")
    assert EpochPlan.load(tmp_path / "plan.npz").stats == kept.stats


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"indices": None}, "it has no indices"),
        ({"scalars": None}, "it has no scalars"),
        ({"costs": None}, "it has no costs"),
        (
            {"indices": PLAN.indices.astype(float)},
            "indices has dtype float64 and shape (4,), not int64 in one dimension",
        ),
        ({"indices": PLAN.indices[:, None]}, "indices has dtype int64 and shape (4, 1), not int64 in one dimension"),
        (
            {"offsets": PLAN.offsets.astype(np.int32)},
            "offsets has dtype int32 and shape (4,), not int64 in one dimension",
        ),
        ({"buckets": PLAN.buckets.astype(">i4")}, "buckets has dtype >i4 and shape (3,), not int32 in one dimension"),
        ({"indices": np.int64(3)}, "indices has dtype int64 and shape (), not int64 in one dimension"),
        ({"indices": np.array([0, 1, 2, -4])}, "indices[3] = -4 is not in 0 <= sample < n_samples = 5"),
        ({"indices": np.array([0, 5, 2, 4])}, "indices[1] = 5 is not in 0 <= sample < n_samples = 5"),
        (
            {"indices": np.array([0, 1, 1, 4])},
            "sample 2 is neither among indices nor among dropped, so another is twice",
        ),
        ({"dropped": np.array([-3])}, "dropped[0] = -3 is not in 0 <= sample < n_samples = 5"),
        ({"offsets": np.array([0, 3, 2, 4])}, "offsets[2] = 2 is not above the one before it"),
        ({"offsets": np.array([0, 1, 1, 4])}, "offsets[2] = 1 is not above the one before it"),
        ({"offsets": np.array([0, 1, 2, 3])}, "offsets do not run from 0 to the number of indices = 4"),
        ({"offsets": np.array([1, 2, 3, 4])}, "offsets do not run from 0 to the number of indices = 4"),
        ({"offsets": np.array([], np.int64)}, "offsets do not run from 0 to the number of indices = 4"),
        ({"padded_lengths": PLAN.padded_lengths[1:]}, "padded_lengths has 2 entries for 3 batches"),
        ({"costs": np.append(PLAN.costs, 1)}, "costs has 4 entries for 3 batches"),
        ({"padded_lengths": np.array([5, 0, 3])}, "padded_lengths[1] = 0 is not 1 or more"),
        ({"costs": np.array([5, 5, -3])}, "costs[2] = -3 is not 1 or more"),
        ({"buckets": np.array([0, 2, 1], np.int32)}, "buckets[1] = 2 is not in -1 <= bucket < 2"),
        ({"boundaries": np.array([0])}, "boundaries has 1 edges, fewer than 2"),
        ({"boundaries": np.array([0, 8, 4])}, "boundaries[2] = 4 is not an edge of 0 or more in ascending order"),
        ({"indices": np.array([0, 1, 2, None])}, "indices holds Python objects"),
        ({"scalars": scalars(seed=-1)}, "seed = -1 is not an integer in [0, 18446744073709551615]"),
        ({"scalars": scalars(epoch=True)}, "epoch = True is not an integer in [0, 18446744073709551615]"),
        ({"scalars": scalars(order_version="2")}, "order_version = '2' is not an integer in [0, 18446744073709551615]"),
        ({"scalars": scalars(_totals=None)}, f"totals are not {TOTALS}"),
        ({"scalars": scalars(_totals={"cost": 3})}, f"totals are not {TOTALS}"),
        ({"scalars": scalars(_totals={**PLAN._totals, "cost": -3})}, "cost = -3 is not an integer of 0 or more"),
        ({"scalars": scalars(_totals={**PLAN._totals, "cost": 0.5})}, "cost = 0.5 is not an integer of 0 or more"),
        ({"scalars": scalars(extra=1)}, "scalars are not seed, epoch, order_version and totals"),
        ({"scalars": np.array("[1]")}, "scalars are not seed, epoch, order_version and totals"),
    ],
)
def test_a_malformed_plan_is_refused_by_name(changes, reason, tmp_path):
    path = saved(tmp_path / "plan.npz", **changes)
    with refused(path, reason):
        EpochPlan.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"indices,offsets\n0,1\n",
        b"PK\x03\x04 and nothing more",
        pickle.dumps({"indices": [0]}),
        json.dumps({"indices": [0]}).encode(),
    ],
)
def test_another_file_is_refused(content, tmp_path):
    path = tmp_path / "plan.npz"
    path.write_bytes(content)
    with refused(path, "it is not a whole .npz file"):
        EpochPlan.load(path)
    np.save(tmp_path / "plan.npy", np.arange(3))
    with refused(tmp_path / "plan.npy", "it is not a whole .npz file"):
        EpochPlan.load(tmp_path / "plan.npy")


def test_a_shape_that_the_file_does_not_hold_is_refused(tmp_path):
    path = saved(tmp_path / "plan.npz", indices=None)
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<i8", "fortran_order": False, "shape": (2**60,)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("indices.npy", member.getvalue() + PLAN.indices.tobytes())
    with refused(path, f"indices has 32 bytes, not those of shape ({2**60},) and dtype int64"):
        EpochPlan.load(path)


@given(st.data())
def test_damage_is_refused_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    PLAN.save(path)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    try:
        loaded = EpochPlan.load(path)
    except ValueError as error:
        assert str(error).startswith(f"path = {str(path)!r} holds no plan, since ")  # noqa: PT017
    else:
        assert loaded == PLAN


def test_what_is_no_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        EpochPlan.load(tmp_path / "plan.npz")
    with pytest.raises(IsADirectoryError):
        EpochPlan.load(tmp_path)


FULL_DISK = """
import resource, signal, sys
from bucketshuffle import pack_epoch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    pack_epoch([5] * 10_000, 0).save(sys.argv[1])
except OSError as error:
    print(error.strerror)
"""


def test_a_save_that_fails_keeps_the_old_plan_and_leaves_nothing(tmp_path):
    path = tmp_path / "plan.npz"
    PLAN.save(path)
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "File too large\n"), done.stderr
    assert EpochPlan.load(path) == PLAN
    assert os.listdir(tmp_path) == ["plan.npz"]


def test_a_plan_replaces_the_file_behind_a_link_and_keeps_its_mode(tmp_path):
    target, link = tmp_path / "target.npz", tmp_path / "plan.npz"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    PLAN.save(link)
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert EpochPlan.load(target) == PLAN


def test_a_plan_is_not_saved_to_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    message = f"{path} is a pipe, not a regular file; pass the path of a file"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        PLAN.save(path)


def test_a_path_may_be_bytes_and_names_its_folder_where_that_is_missing(tmp_path):
    PLAN.save(os.fsencode(tmp_path / "plan.npz"))
    assert EpochPlan.load(os.fsencode(tmp_path / "plan.npz")) == PLAN
    with pytest.raises(FileNotFoundError) as raised:
        PLAN.save(tmp_path / "missing" / "plan.npz")
    assert raised.value.filename == str(tmp_path / "missing")


@pytest.mark.parametrize("path", [0, None, 1.5])
def test_a_path_is_no_open_file(path):
    with pytest.raises(TypeError, match=r"^expected str, bytes or os\.PathLike object, not "):
        EpochPlan.load(path)
    with pytest.raises(TypeError, match=r"^expected str, bytes or os\.PathLike object, not "):
        PLAN.save(path)
