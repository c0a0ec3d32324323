"""A data set and a model small enough for the examples, and a record of what was trained; use your own instead."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bucketshuffle.torch import PadCollator, PreloadedDataset
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

TOKEN_BUDGET = 600


def dataset(n_samples: int = 240) -> PreloadedDataset:
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 64, n_samples)
    tokens = rng.integers(0, 100, lengths.sum())
    return PreloadedDataset(tokens, np.append(0, lengths.cumsum()), collator=PadCollator(sample_indices=True))


def labelled_dataset(n_samples: int = 240) -> PreloadedDataset:
    """The same samples with labels: the first third of each is a prompt, which is not supervised."""
    data = dataset(n_samples)
    rows = [data[i]["input_ids"] for i in range(n_samples)]
    labels = [torch.where(torch.arange(len(row)) < len(row) // 3, -100, row) for row in rows]
    return PreloadedDataset.from_rows(
        {"input_ids": rows, "labels": labels}, collator=PadCollator({"labels": -100}, sample_indices=True)
    )


def loss_tokens_of(data: PreloadedDataset) -> Any:
    """[n_samples], int64: supervised tokens of each sample; None for a data set without labels."""
    if "labels" not in data[0]:
        return None
    return np.array([int((data[i]["labels"] != -100).sum()) for i in range(len(data))])


def translations(n_samples: int) -> dict[str, list[Any]]:
    """Sources, and targets of about 0.6 to 1.4 times their length."""
    rng = np.random.default_rng(0)
    sources = rng.integers(3, 60, n_samples)
    targets = np.maximum(1, sources * rng.uniform(0.6, 1.4, n_samples)).astype(np.int64)
    return {
        "input_ids": [rng.integers(4, 100, n) for n in sources],
        "labels": [rng.integers(4, 100, n) for n in targets],
    }


def utterances(n_samples: int) -> dict[str, list[Any]]:
    """Features of 80 numbers a frame, and a token for about every tenth frame."""
    rng = np.random.default_rng(0)
    frames = rng.integers(40, 400, n_samples)
    return {
        "features": [rng.standard_normal((n, 80)).astype(np.float32) for n in frames],
        "labels": [rng.integers(0, 40, max(1, round(n * rng.uniform(0.05, 0.12)))) for n in frames],
    }


def preference_pairs(n_samples: int) -> list[dict[str, Any]]:
    """Texts of words that are numbers below 50."""
    rng = np.random.default_rng(0)

    def text(longest: int) -> str:
        return " ".join(map(str, rng.integers(0, 50, rng.integers(1, longest))))

    return [
        {"prompt": text(20) + " ", "chosen": text(30) + " ", "rejected": text(60) + " ", "sample": i}
        for i in range(n_samples)
    ]


class Model(nn.Module):
    """Predicts each token from itself: it learns at once, and its loss needs the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 100))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **_: Any) -> Tensor:
        """Returns the sum of the losses of all supervised tokens: of all real ones without labels."""
        return self.losses(input_ids, attention_mask, labels)[0].sum()

    def losses(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Returns, for each sample, the sum of the losses of its supervised tokens and their number: `(B,)`, `(B,)`."""
        logits = self.layers(input_ids)  # (B, L, 100)
        targets = torch.where(attention_mask, input_ids, -100) if labels is None else labels
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")  # (B, L)
        return losses.sum(1), (targets != -100).sum(1)


def record(log: Path, rank: int, epoch: int, batch: dict[str, Tensor]) -> None:
    """Appends the samples of a batch to the log of a rank, and saves its first update; the tests read both."""
    log.mkdir(parents=True, exist_ok=True)
    _log[:] = [log / f"update{rank}.pt"]
    with open(log / f"rank{rank}.jsonl", "a") as file:
        print(json.dumps([epoch, batch["sample_indices"].tolist()]), file=file)


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if "gradients" not in _first_update:
        _first_update["weights"] = _copied(optimizer, "data")


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if "gradients" not in _first_update:
        _first_update["gradients"] = _copied(optimizer, "grad")
        if _log and not _log[0].exists():
            torch.save(_first_update, _log[0])


def _copied(optimizer: torch.optim.Optimizer, attribute: str) -> list[Tensor]:
    return [getattr(p, attribute).clone() for group in optimizer.param_groups for p in group["params"]]


_first_update: dict[str, list[Tensor]] = {}
_log: list[Path] = []
# Under every trainer, also those that make their own optimizer.
register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accumulation-steps", type=int, default=1)
    parser.add_argument("--feed", action="store_true", help="make the batches on threads, with a Feed")
    parser.add_argument("--labels", action="store_true", help="train on the labelled data set")


def add_evaluation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("run"), help="where the losses go")
    parser.add_argument("--samples", type=int, default=241)
    parser.add_argument("--token-budget", type=int, default=TOKEN_BUDGET)


def record_losses(out: Path, losses: Any, n_tokens: Any) -> None:
    """Saves what an evaluation found for each sample, in the order of the data set; the tests read it."""
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "losses.npy", np.stack([np.asarray(losses), np.asarray(n_tokens)]))
