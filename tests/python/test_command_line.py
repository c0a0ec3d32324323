"""The command line: what it refuses, and how it ends, always in one line."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from bucketshuffle import EpochPlan, Planner, pack_epoch
from bucketshuffle.cli import bench, main
from bucketshuffle.data.flat import FlatField
from bucketshuffle.data.saved import write_fields
from bucketshuffle.report import Report, compare

LENGTHS = 1 + np.arange(2_000)
COMMAND = [sys.executable, "-m", "bucketshuffle"]


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "lengths.npy", LENGTHS)
    return tmp_path / "lengths.npy"


@pytest.fixture
def jsonl(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"input_ids": [1, 2, 3]}\n' * 40_000)
    return tmp_path / "data.jsonl"


def writers(path, jsonl):
    """Every call that writes a file, up to the name of the file."""
    return {
        "plan": ["plan", str(path), "-o"],
        "report": ["report", str(path), "--html"],
        "lengths": ["lengths", str(jsonl), "-o"],
        "pack": ["pack", str(jsonl), "-o"],
    }


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
        f"{path} is neither a .npy, a .npz nor a packed file; make one with bucketshuffle lengths {path} -o lengths.npy"
    )


def test_an_archive_without_lengths_is_refused_with_what_it_has(tmp_path, capsys):
    path = tmp_path / "lengths.npz"
    np.savez(path, train=LENGTHS, test=LENGTHS)
    way_out = "write it with numpy.savez(path, lengths=lengths)"
    assert refused(capsys, path) == f"{path} has no array named lengths, but train, test; {way_out}"
    np.savez(path)
    assert refused(capsys, path) == f"{path} has no array named lengths, but none at all; {way_out}"


def test_a_packed_file_has_lengths(path, jsonl, capsys):
    packed, plan = str(path.parent / "packed"), str(path.parent / "plan")
    assert main(["pack", str(jsonl), "-o", packed]) == 0
    assert main(["plan", packed, "-o", plan]) == 0
    assert EpochPlan.load(plan) == pack_epoch([3] * 40_000, 0)
    capsys.readouterr()
    content = Path(packed).read_bytes()
    Path(packed).write_bytes(content[:1_000])
    assert re.fullmatch(rf"{packed} is truncated: it has 1000 of \d+ bytes; save it again", refused(capsys, packed))
    write_fields(packed, {"values.input_ids": FlatField(LENGTHS)})
    assert refused(capsys, packed) == f"{packed} has no offsets; pass a file that bucketshuffle pack wrote"


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


def calls(path, jsonl):
    """A call of every subcommand, by its name."""
    files = {name: [*words, str(path.parent / f"{name}.out")] for name, words in writers(path, jsonl).items()}
    bench = ["bench", str(path), "--rounds", "3"]
    return {**files, "report": ["report", str(path)], "bench": bench, "demo": ["demo", "--epochs", "2"]}


COMMANDS = ["report", "plan", "lengths", "pack", "bench", "demo"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_leaves_ends_it_silently(command, path, jsonl):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *calls(path, jsonl)[command]], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("command", [*COMMANDS, "--help"])
def test_a_full_device_is_reported(command, path, jsonl):
    words = {**calls(path, jsonl), "--help": ["--help"]}[command]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True)
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


@pytest.mark.parametrize("command", ["report", "lengths", "pack", "bench", "demo"])
def test_an_interrupt_is_one_line_and_leaves_nothing(command, path, tmp_path):
    np.save(path, np.tile(LENGTHS, 500))
    jsonl = tmp_path / "data.jsonl"
    jsonl.write_text('{"input_ids": [[1, 2, 3]]}\n' * 1_000_000)  # nested lists are read one by one
    more = {"report": ["--epochs", "99999"], "bench": ["--rounds", "99999"], "demo": ["--epochs", "99999"]}
    words = [*calls(path, jsonl)[command], *more.get(command, [])]
    before = sorted(os.listdir(tmp_path))
    # A Ctrl-C while Python imports is reported in its own words.
    ready = "import sys; from bucketshuffle.cli import main; print(file=sys.stderr, flush=True); sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", ready, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        process.stderr.readline()
        if command in ("lengths", "pack"):
            while process.poll() is None and len(os.listdir(tmp_path)) == len(before):
                time.sleep(0.01)  # until there is a file to be left
        else:
            time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=100)
    finally:
        process.kill()
    assert (process.returncode, out, error) == (130, "", "bucketshuffle: interrupted\n")
    assert sorted(os.listdir(tmp_path)) == before


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


@pytest.mark.parametrize("command", ["plan", "report", "lengths", "pack"])
def test_a_place_that_cannot_be_written_to_is_named(command, path, jsonl, capsys):
    words = writers(path, jsonl)[command]
    before = sorted(os.listdir(path.parent))
    for output, message in (
        (path.parent / "no" / "out", f"{path.parent}/no: No such file or directory"),
        (path.parent, f"{path.parent} is a folder, not a regular file; pass the path of a file"),
        ("/dev/full", "/dev/full is a character device, not a regular file; pass the path of a file"),
    ):
        assert main([*words, str(output)]) == 2
        captured = capsys.readouterr()
        assert captured.err == f"bucketshuffle {command}: {message}\n"
        assert captured.out == ""
    assert sorted(os.listdir(path.parent)) == before


@pytest.mark.skipif(os.name != "posix", reason="permissions of Unix")
@pytest.mark.parametrize("command", ["plan", "report", "lengths", "pack"])
def test_a_folder_without_permission_is_named(command, path, jsonl, capsys):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        for file in (path, jsonl):
            shutil.copy(file, folder)
        words = writers(os.path.join(folder, path.name), os.path.join(folder, jsonl.name))[command]
        assert main([*words, os.path.join(path.parent, "out")]) == 0  # all that it imports is there now
        capsys.readouterr()
        os.chmod(folder, 0o555)
        user = os.geteuid()
        if user == 0:  # who may write anywhere
            os.seteuid(65534)
        try:
            status = main([*words, os.path.join(folder, "out")])
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o755)
        captured = capsys.readouterr()
        assert (status, captured.out) == (2, "")
        assert captured.err == f"bucketshuffle {command}: {folder}: Permission denied\n"
        assert sorted(os.listdir(folder)) == sorted([path.name, jsonl.name])


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize("command", ["plan", "report", "lengths", "pack"])
def test_a_disk_that_is_full_leaves_nothing(command, path, jsonl):
    import resource

    before = sorted(os.listdir(path.parent))
    done = subprocess.run(
        [*COMMAND, *writers(path, jsonl)[command], str(path.parent / "out")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096)),
    )
    message = "the output cannot be written: File too large\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"bucketshuffle: {message}")
    assert sorted(os.listdir(path.parent)) == before


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (LENGTHS / 2, "lengths has dtype float64, not an integer dtype; convert with .astype(numpy.int64) if the "),
        (LENGTHS.reshape(2, -1), "lengths has shape (2, 1000), not one dimension; pass one length per sample"),
        (np.array([], np.int64), "has 0 lengths, fewer than the 1 that a plan needs; count other samples"),
        (LENGTHS > 5, "lengths has dtype bool, not an integer dtype; a mask is not a length, sum it along the tokens"),
        (-LENGTHS, "lengths[0] = -1 is below the shortest length = 1; "),
    ],
)
@pytest.mark.parametrize("words", [["report"], ["plan", "-o", "out"], ["bench"]])
def test_arrays_that_hold_no_lengths_are_refused(array, message, words, path, capsys, monkeypatch):
    monkeypatch.chdir(path.parent)
    np.save(path, array)
    assert main([words[0], str(path), *words[1:]]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith(f"bucketshuffle {words[0]}: ")
    assert (captured.err.count("\n"), captured.out) == (1, "")
    assert os.listdir(path.parent) == ["lengths.npy"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "bucketshuffle: the following arguments are required: COMMAND; bucketshuffle --help lists what it takes"),
        (["nope"], "bucketshuffle: argument COMMAND: invalid choice: 'nope' (choose from "),
        (
            ["report"],
            "bucketshuffle report: the following arguments are required: LENGTHS; bucketshuffle ",
        ),
        (["plan", "x.npy"], "bucketshuffle plan: the following arguments are required: -o/--output; "),
        (["report", "x.npy", "--epochs", "1"], "bucketshuffle report: argument --epochs: 1 is below its minimum = 2; "),
        (
            ["report", "x.npy", "--token-budget", "many"],
            "bucketshuffle report: argument --token-budget: 'many' is ",
        ),
        (
            ["report", "x.npy", "--boundaries", "1,x"],
            "bucketshuffle report: argument --boundaries: 'x' is not ",
        ),
        (
            ["report", "x.npy", "--measured", "sorted"],
            "bucketshuffle report: argument --measured: 'sorted' is not ",
        ),
        (
            ["report", "x.npy", "--measured", "sorted=-1"],
            "bucketshuffle report: argument --measured: 'sorted=-1' is ",
        ),
        (
            ["report", "x.npy", "--win", "5"],
            "bucketshuffle: unrecognized arguments: --win 5; bucketshuffle --help ",
        ),
    ],
)
def test_a_mistake_in_the_words_is_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.err.startswith(message), captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--token-budget", "0"], "token_budget = 0 is outside "),
        (
            ["--measured", "fast=3"],
            "measured = 'fast' is not a strategy; choose one of 'sorted', ",
        ),
        (["--measured", "yours=3"], "measured = 'your options' is not a strategy; choose one of 'sorted', 'random', "),
        (
            ["--overlong", "error", "--token-budget", "99"],
            "lengths[99] = 100 exceeds token_budget = 99; raise ",
        ),
        (["--boundaries", "5,3"], "boundaries[1] = 3 "),
        (["--window", "0"], "window = 0 is outside "),
    ],
)
def test_a_mistake_in_an_option_is_one_line(words, message, path, capsys):
    assert main(["report", str(path), *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"bucketshuffle report: {message}"), captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


def test_a_plan_is_written(path, capsys):
    output = path.parent / "plan.npz"
    words = ["--seed", "3", "--epoch", "2", "--token-budget", "1,000", "--overlong", "drop", "--window", "8"]
    assert main(["plan", str(path), "-o", str(output), *words]) == 0
    plan = pack_epoch(LENGTHS, 3, epoch=2, token_budget=1_000, overlong="drop", window=8)
    assert EpochPlan.load(output) == plan
    assert capsys.readouterr().out == (
        f"{output}: {len(plan):,} batches of 1,000 samples, padded / real {plan.stats.padding_ratio:.4f}\n"
        "left out: 1,000 samples with 1,500,500 tokens\n"
    )


def test_options_mean_what_they_mean_in_python(path, capsys):
    words = ["--boundaries", "0,500,2000", "--window", "4", "--token-budget", "4096", "--align-ranks", "2"]
    assert main(["report", str(path), "--json", "--world-size", "2", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    options = {"boundaries": [0, 500, 2000], "window": 4, "token_budget": 4096, "align_ranks": 2}
    expected = Report.of(LENGTHS, name=str(path), world_size=2, **options).to_dict()
    expected = json.loads(json.dumps(expected))
    for row in found["strategies"] + expected["strategies"]:
        del row["construct_ms"], row["plan_ms"]
    assert found == expected
    assert found["strategies"][-1]["name"] == "your options"


def test_the_measured_speed_sets_the_others(path, capsys):
    assert main(["report", str(path), "--json", "--measured", "six=25.1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"] == ["six buckets", 25.1]
    assert found["speeds"][2] == pytest.approx(25.1)
    ratios = [row["metrics"]["padding_ratio"] for row in found["strategies"]]
    assert found["speeds"] == pytest.approx([25.1 * ratios[2] / ratio for ratio in ratios])


def test_the_benches_candidates_are_checked(path, capsys):
    assert main(["bench", str(path), "--rounds", "3"]) == 0
    out = capsys.readouterr().out
    ratios = [
        float(line.split("|")[5]) for line in out.splitlines() if line.startswith("| ") and "candidate" not in line
    ]
    plan = pack_epoch(LENGTHS, 0)
    assert ratios[0] == ratios[2] == pytest.approx(plan.stats.padding_ratio, abs=1e-4)
    assert len(ratios) == 5
    assert bench.padding_ratio(LENGTHS, plan, 131_072) == pytest.approx(plan.stats.padding_ratio)
    for damaged in (list(plan)[1:], [*plan, plan[0]], [np.concatenate(list(plan))]):
        with pytest.raises(ValueError, match=r"^batches lack a sample, repeat one, or exceed the budget$"):
            bench.padding_ratio(LENGTHS, damaged, 131_072)


def test_the_demo_prints_the_table_of_the_readme(capsys):
    assert main(["demo", "--epochs", "2"]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    padding = {row[1].strip(): float(row[2]) for row in rows[1:]}
    expected = {"sorted": 1.0002, "random": 2.6755, "six buckets": 1.2769, "bucketshuffle": 1.0077}
    assert padding == pytest.approx(expected, abs=2e-3)
    assert [float(row[10]) for row in rows[1:]] == pytest.approx([32.0, 12.0, 25.1, 31.8], abs=0.11)


def on_terminal(words, width):
    """What the command shows on a terminal that is `width` columns wide."""
    import fcntl
    import pty
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [*COMMAND, *words], stdout=follower, stderr=follower, env={**environment, "TERM": "xterm"}
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65_536)
        except OSError:  # how Linux says that the other end is closed
            part = b""
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.skipif(os.name != "posix", reason="terminals of Unix")
@pytest.mark.parametrize("width", [80, 140])
def test_a_terminal_gets_tables_in_colour_and_a_pipe_plain_text(width, path):
    plain = subprocess.run([*COMMAND, "report", str(path)], capture_output=True, text=True, check=True)
    assert "\x1b[" not in plain.stdout
    assert "| bucketshuffle |" in plain.stdout
    shown = on_terminal(["report", str(path)], width)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert text != shown
    assert "| bucketshuffle |" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.count("bucketshuffle  ") == (2 if width == 80 else 1)  # a table that is too wide comes in parts
    for word in ("Strategies", "bucketshuffle", "pairs repeated", "repeat_weight", "note: "):
        assert word in text


@pytest.mark.skipif(os.name != "posix", reason="terminals of Unix")
def test_a_terminal_gets_a_progress_bar(path, jsonl):
    output = path.parent / "out"
    shown = on_terminal(["lengths", str(jsonl), "-o", str(output)], 80)
    assert re.search(r"lengths: 100%\|.+\| 1\.0\dM/1\.0\dM ", shown)
    assert shown.endswith(f"\n{output}: 40,000 samples, 120,000 tokens, 3 to 3\n")


def test_help_has_examples(capsys):
    for command in ([], ["report"], ["lengths"], ["pack"], ["plan"], ["bench"], ["demo"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--help"])
        assert ended.value.code == 0
        assert f"examples:\n  bucketshuffle {' '.join(command)}" in capsys.readouterr().out


def test_shells_complete(capsys):
    with pytest.raises(SystemExit):
        main(["--print-completion", "bash"])
    assert "--token-budget" in capsys.readouterr().out
