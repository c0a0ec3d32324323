"""The examples of the docs run: doctests of all modules, and the README's Python blocks, one after the other."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import bucketshuffle
import pytest

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


@pytest.mark.parametrize(("page", "n_blocks"), [("README.md", 9), ("docs/feeding.md", 1)])
def test_the_examples_of_a_page_run(page: str, n_blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)  # One of them saves a file.
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert len(blocks) == n_blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_readme_reads_well_in_a_terminal_and_on_the_package_index() -> None:
    text = (ROOT / "README.md").read_text()
    assert [line for line in text.splitlines() if len(line) > 120] == []
    links = re.findall(r"\]\((.*?)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []  # A relative link leads nowhere there.
