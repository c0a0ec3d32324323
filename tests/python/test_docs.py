"""The examples of the docs run: doctests of all modules, and the README's Python blocks, one after the other."""

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path
from types import ModuleType

import bucketshuffle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bucketshuffle import EpochPlan
from bucketshuffle.cli import main
from conftest import uneven_lengths
from tokenizers import Tokenizer, models

ROOT = Path(__file__).parents[2]


def modules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(bucketshuffle.__path__, "bucketshuffle.")]
    return ["bucketshuffle", *(name for name in names if not name.endswith(("_core", "__main__")))]


def load(name: str) -> ModuleType:
    if name.startswith("bucketshuffle.torch"):
        pytest.importorskip("torch")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", modules())
def test_docstring_examples_are_true(name: str) -> None:
    assert doctest.testmod(load(name)).failed == 0


N_BLOCKS = {
    "README.md": 9,
    "docs/start.md": 5,
    "docs/feeding.md": 1,
    "docs/fields.md": 1,
    "docs/loss.md": 1,
    "docs/evaluation.md": 1,
    "docs/reproducible.md": 1,
}


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)  # One of them saves a file.
    names: dict[str, object] = {}
    blocks = re.findall(r"```(python|console)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    n_run = 0
    for language, block in blocks:
        commands = re.findall(r"^\$ bucketshuffle (.*?)(?:  #.*)?$", block, re.MULTILINE) if page != "README.md" else []
        for command in commands:
            assert main(shlex.split(command)) == 0
        if language == "python":
            exec(compile(block, page, "exec"), names)
        n_run += language == "python" or len(commands) > 0
    assert n_run == N_BLOCKS.get(page, 0)


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    rows = [list(range(n)) for n in uneven_lengths(300, longest=500)]
    pq.write_table(pa.table({"input_ids": rows}), "train.parquet")
    Path("train.jsonl").write_text('{"text": "a b"}\n' * 9)
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")).save("tokenizer.json")
    calls = re.findall(r"^\$ (bucketshuffle .*?)(?: +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(calls) == 7
    for call in calls:
        assert main(shlex.split(call)[1:]) == 0, capsys.readouterr().err
    assert np.load("lengths.npy").tolist() == [1] * 9  # of the second call, as the tokenizer splits nothing
    assert len(EpochPlan.load("plan.npz").indices) == 9
    assert "<svg" in Path("report.html").read_text()
    assert Path("data.safetensors").stat().st_size > 4 * sum(map(len, rows))


def test_the_readme_reads_well_in_a_terminal_and_on_the_package_index() -> None:
    text = (ROOT / "README.md").read_text()
    assert [line for line in text.splitlines() if len(line) > 120] == []
    links = re.findall(r"\]\((.*?)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []  # A relative link leads nowhere there.


def test_the_picture_of_the_readme_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benches" / "python"))
    assert importlib.import_module("readme_picture").picture() in (ROOT / "README.md").read_text()
