"""Recipes for samples with several lengths, on one process and on two."""

from __future__ import annotations

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
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import tiny

    return tiny


def first_gradient(out: Path) -> Any:
    return torch.cat([gradient.flatten() for gradient in torch.load(out / "update0.pt")["gradients"]])


def padded_tokens(batch: list[int], *fields: Any) -> int:
    return sum(len(batch) * max(int(field[i]) for i in batch) for field in fields)


def pair_tokens(tiny: Any) -> list[Any]:
    """Twice the larger of chosen and rejected: one token a word, and one that ends the text."""
    rows = tiny.preference_pairs(120)
    return [[2 * max(len((row["prompt"] + row[side]).split()) + 1 for side in ("chosen", "rejected")) for row in rows]]


def translation_tokens(tiny: Any) -> list[Any]:
    return [list(map(len, rows)) for rows in tiny.translations(200).values()]


def speech_tokens(tiny: Any) -> list[Any]:
    rows = tiny.utterances(160)
    return [list(map(len, rows["features"])), [4 * len(row) for row in rows["labels"]]]


RECIPES = [
    pytest.param(
        "preference_trl.py",
        pair_tokens,
        600,
        24,
        0,
        marks=needs("trl", "transformers", "accelerate", "datasets"),
        id="pairs",
    ),
    pytest.param(
        "translate_hf_trainer.py",
        translation_tokens,
        600,
        32,
        0,
        marks=needs("transformers", "accelerate"),
        id="translation",
    ),
    pytest.param("speech_ctc.py", speech_tokens, 2_000, 32, 1, id="speech"),
]
"""Script, tokens of its samples in every field, its budget, steps of one rank in an epoch, processes to train alone."""


@pytest.mark.parametrize(("script", "fields_of", "token_budget", "n_steps", "alone"), RECIPES)
def test_every_sample_is_trained_within_the_budget(
    tmp_path: Path, tiny: Any, script: str, fields_of: Any, token_budget: int, n_steps: int, alone: int
) -> None:
    fields = fields_of(tiny)
    for n_processes in (alone, 2):
        out = tmp_path / str(n_processes)
        run_script(EXAMPLES / script, "--out", out, n_processes=n_processes)
        ranks = recorded(out)
        assert len({len(batches) for batches in ranks}) == 1
        assert samples_by_epoch(ranks) == {epoch: list(range(len(fields[0]))) for epoch in range(2)}
        sizes = [padded_tokens(batch, *fields) for batches in ranks for _, batch in batches]
        assert 0.8 * token_budget < max(sizes) <= token_budget


@pytest.mark.parametrize(("script", "fields_of", "token_budget", "n_steps", "alone"), RECIPES)
def test_the_gradient_is_that_of_the_mean_over_the_update(
    tmp_path: Path, script: str, fields_of: Any, token_budget: int, n_steps: int, alone: int
) -> None:
    gradients = []
    # An epoch is one update in each: all samples at once, in many steps, and in half as many of two ranks.
    for n_processes, accumulation_steps, budget in (
        (alone, 1, 10**6),
        (alone, n_steps, token_budget),
        (2, n_steps // 2, token_budget),
    ):
        out = tmp_path / f"{n_processes} {accumulation_steps}"
        options = ("--epochs", 1, "--accumulation-steps", accumulation_steps, "--token-budget", budget)
        run_script(EXAMPLES / script, "--out", out, *options, n_processes=n_processes)
        assert [len(batches) for batches in recorded(out)] == [accumulation_steps] * max(n_processes, 1)
        gradients.append(first_gradient(out))
    for gradient in gradients[1:]:
        assert float((gradient - gradients[0]).norm() / gradients[0].norm()) < 1e-5
