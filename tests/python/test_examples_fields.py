"""Recipes for samples with several lengths, on one process and on two."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from processes import EXAMPLES, recorded, run_script, samples_by_epoch
from test_examples import needs

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The data of the recipes."""
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    import tiny

    return tiny


def first_gradient(out: Path) -> Any:
    return torch.cat([gradient.flatten() for gradient in torch.load(out / "update0.pt")["gradients"]])


@needs("trl", "transformers", "accelerate", "datasets")
def test_preference_pairs_train_every_pair_within_the_budget(tmp_path: Path, tiny: Any) -> None:
    rows = tiny.preference_pairs(120)
    # One token a word, and one that ends the text.
    n_tokens = [max(len((row["prompt"] + row[side]).split()) + 1 for side in ("chosen", "rejected")) for row in rows]
    for n_processes in (0, 2):
        out = tmp_path / str(n_processes)
        run_script(EXAMPLES / "preference_trl.py", "--out", out, n_processes=n_processes)
        ranks = recorded(out)
        assert len({len(batches) for batches in ranks}) == 1
        assert samples_by_epoch(ranks) == {epoch: list(range(120)) for epoch in range(2)}
        sizes = [2 * len(batch) * max(n_tokens[i] for i in batch) for batches in ranks for _, batch in batches]
        assert 300 < max(sizes) <= 600


@needs("trl", "transformers", "accelerate", "datasets")
def test_the_gradient_of_preference_pairs_is_that_of_the_mean_over_the_update(tmp_path: Path) -> None:
    script, gradients = EXAMPLES / "preference_trl.py", []
    # An epoch is one update in each: all pairs at once, in 24 steps, and in 12 steps of two ranks.
    for n_processes, n_steps, token_budget in ((0, 1, 1_000_000), (0, 24, 600), (2, 12, 600)):
        out = tmp_path / f"{n_processes} {n_steps}"
        options = ("--epochs", 1, "--accumulation-steps", n_steps, "--token-budget", token_budget)
        run_script(script, "--out", out, *options, n_processes=n_processes)
        assert [len(batches) for batches in recorded(out)] == [n_steps] * max(n_processes, 1)
        gradients.append(first_gradient(out))
    for gradient in gradients[1:]:
        assert float((gradient - gradients[0]).norm() / gradients[0].norm()) < 1e-5
