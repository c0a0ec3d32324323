"""A data set and a model small enough for the examples, and a record of what was trained; use your own instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bucketshuffle.torch import PadCollator, PreloadedDataset
from torch import Tensor, nn

TOKEN_BUDGET = 600


def dataset(n_samples: int = 240) -> PreloadedDataset:
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 64, n_samples)
    tokens = rng.integers(0, 100, lengths.sum())
    return PreloadedDataset(tokens, np.append(0, lengths.cumsum()), collator=PadCollator(sample_indices=True))


class Model(nn.Module):
    """Predicts each token from itself: it learns at once, and its loss needs the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 100))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Tensor:
        """Returns the sum of the losses of all real tokens."""
        logits = self.layers(input_ids)  # (B, L, 100)
        return nn.functional.cross_entropy(logits[attention_mask], input_ids[attention_mask], reduction="sum")


def record(log: Path, rank: int, epoch: int, batch: dict[str, Tensor]) -> None:
    """Appends the samples of a batch to the log of a rank, which the tests read."""
    log.mkdir(parents=True, exist_ok=True)
    with open(log / f"rank{rank}.jsonl", "a") as file:
        print(json.dumps([epoch, batch["sample_indices"].tolist()]), file=file)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)
