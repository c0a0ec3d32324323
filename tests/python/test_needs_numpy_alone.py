"""What works where NumPy is the only other package, and what says which one it needs."""

import subprocess
import sys

import numpy as np
import pytest

# Every other package is hidden from the import system, as if it were not installed.
HIDE = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {"bucketshuffle", "numpy", *sys.stdlib_module_names}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from bucketshuffle.cli import main
sys.exit(main(sys.argv[1:]))
"""


def call(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HIDE, *map(str, words)], capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path):  # type: ignore[no-untyped-def]
    np.save(tmp_path / "lengths.npy", 1 + np.arange(500))
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    (tmp_path / "samples").mkdir()
    np.save(tmp_path / "samples" / "0.npy", np.arange(7))
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["report", "{}/lengths.npy"],
        ["report", "{}/lengths.npy", "--json"],
        ["plan", "{}/lengths.npy", "-o", "{}/out"],
        ["bench", "{}/lengths.npy", "--rounds", "3"],
        ["lengths", "{}/samples", "-o", "{}/out"],
        ["pack", "{}/samples", "-o", "{}/out"],
        ["--help"],
    ],
)
def test_numpy_is_enough(words, folder):  # type: ignore[no-untyped-def]
    done = call(*(word.format(folder) for word in words))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["report", "{}/lengths.npy", "--html", "{}/out"],
            'plots need matplotlib; install it with pip install "bucketshuffle[report]"',
        ),
        (
            ["lengths", "{}/data.jsonl", "-o", "{}/out"],
            'JSON Lines are read with msgspec; install it with pip install "bucketshuffle[data]"',
        ),
        (
            ["lengths", "{}/data.parquet", "-o", "{}/out"],
            'Parquet, Arrow and Hugging Face need pyarrow; install it with pip install "bucketshuffle[data]"',
        ),
        (
            ["pack", "{}/samples", "-o", "{}/out", "--tokenizer", "{}/lengths.npy"],
            'text is tokenized with the package tokenizers; install it with pip install "bucketshuffle[data]"',
        ),
    ],
)
def test_what_needs_another_package_names_it(words, message, folder):  # type: ignore[no-untyped-def]
    done = call(*(word.format(folder) for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"bucketshuffle {words[0]}: {message}\n"
    assert not (folder / "out").exists()
