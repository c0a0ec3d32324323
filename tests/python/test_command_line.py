"""The command line: what it refuses, and how it ends, always in one line."""

import os
import re
import signal
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest
from bucketshuffle import EpochPlan, Planner
from bucketshuffle.cli import main
from bucketshuffle.report import compare

LENGTHS = 1 + np.arange(2_000)
COMMAND = [sys.executable, "-m", "bucketshuffle"]


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "lengths.npy", LENGTHS)
    return tmp_path / "lengths.npy"


def refused(capsys, path):
    assert main(["report", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.removeprefix("bucketshuffle report: ").removesuffix("\n")


@pytest.mark.parametrize("content", [b"", b"12\n13\n", b"[12, 13]", b"PAR1...PAR1", b"\x80\x04N.", b"length\n12\n"])
def test_another_kind_of_file_is_refused_with_the_way_to_make_one(content, tmp_path, capsys):
    path = tmp_path / "lengths.parquet"
    path.write_bytes(content)
    assert refused(capsys, path) == (
        f"{path} is neither a .npy nor a .npz file; make one with bucketshuffle lengths {path} -o lengths.npy"
    )


def test_an_archive_without_lengths_is_refused_with_what_it_has(tmp_path, capsys):
    path = tmp_path / "lengths.npz"
    np.savez(path, train=LENGTHS, test=LENGTHS)
    way_out = "write it with numpy.savez(path, lengths=lengths)"
    assert refused(capsys, path) == f"{path} has no array named lengths, but train, test; {way_out}"
    np.savez(path)
    assert refused(capsys, path) == f"{path} has no array named lengths, but none at all; {way_out}"


def test_a_damaged_file_is_refused(path, capsys):
    archive = path.with_suffix(".npz")
    np.savez(archive, lengths=LENGTHS)
    whole = {file: file.read_bytes() for file in (path, archive)}
    flipped = bytearray(whole[archive])
    flipped[1_000] ^= 1
    objects = path.with_name("objects.npy")
    np.save(objects, np.array([1, None]), allow_pickle=True)
    for file, content in (
        (path, whole[path][:1_000]),
        (path, whole[path][:20]),
        (archive, whole[archive][:1_000]),
        (archive, bytes(flipped)),
        (objects, objects.read_bytes()),
    ):
        file.write_bytes(content)
        message = refused(capsys, file)
        assert re.fullmatch(
            rf"{re.escape(str(file))} cannot be read \(.+\); save it again as an array of integers", message
        ), message


def test_what_is_no_file_is_refused(tmp_path, capsys):
    missing = tmp_path / "missing.npy"
    assert refused(capsys, missing) == f"{missing}: No such file or directory"
    assert refused(capsys, tmp_path) == f"{tmp_path}: Is a directory"


def test_a_reader_that_leaves_ends_it_silently(path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "report", str(path)], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [["--help"], []])
def test_a_full_device_is_reported(arguments, path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "report", str(path), *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    message = "bucketshuffle: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_any_file_name_is_printed(encoding, tmp_path):
    path = os.fsencode(tmp_path) + "/l\xe4ngen \u4e2d".encode() + b"\xff.npy"
    with open(path, "wb") as file:
        np.save(file, LENGTHS)
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([*COMMAND, "report", path], capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\udcff.npy: 2,000 samples" in done.stdout


def test_no_output_at_all_is_no_fault(path):
    done = subprocess.run(["bash", "-c", '"$@" >&-', "-", *COMMAND, "report", str(path)], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupt_is_one_line(path):
    np.save(path, np.tile(LENGTHS, 500))
    process = subprocess.Popen(
        [*COMMAND, "report", str(path), "--epochs", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(3)  # long enough to be past the imports, which the interpreter interrupts in its own words
    process.send_signal(signal.SIGINT)
    out, error = process.communicate()
    assert (process.returncode, out, error) == (130, "", "bucketshuffle: interrupted\n")


def test_two_plans_are_in_memory_at_a_time(monkeypatch):
    alive: weakref.WeakSet[EpochPlan] = weakref.WeakSet()
    most = 0
    plan = Planner.plan

    def counted(self, seed, epoch):
        nonlocal most
        made = plan(self, seed, epoch)
        monkeypatch.setattr(EpochPlan, "__hash__", object.__hash__)
        alive.add(made)
        most = max(most, len(alive))
        return made

    monkeypatch.setattr(Planner, "plan", counted)
    compare(LENGTHS, n_epochs=9)
    assert most == 2
