"""Speech with CTC in a plain loop under DDP: features `[frames, 80]` and transcripts, each padded to its own longest.

torchrun --nproc-per-node 2 examples/speech_ctc.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed
from bucketshuffle.torch import BucketBatchSampler, Feed, PadCollator, PreloadedDataset
from tiny import optimizer_of, record, utterances
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("run"), help="where the log goes")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--accumulation-steps", type=int, default=1)
parser.add_argument("--token-budget", type=int, default=2_000, help="of frames, and four times the transcript's tokens")
args = parser.parse_args()


class Recogniser(nn.Module):
    """Every fourth frame becomes a distribution over 40 tokens and the blank."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(80, 16, kernel_size=4, stride=4)
        self.output = nn.Linear(16, 41)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.convolution(features.transpose(1, 2)).relu()  # (B, 16, frames // 4)
        return self.output(hidden.transpose(1, 2)).log_softmax(-1)  # (B, frames // 4, 41)


torch.distributed.init_process_group("gloo")
rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
data = PreloadedDataset.from_rows(
    utterances(160),
    # Every group has its own lengths, `lengths` and `transcript_lengths`, so masks are not needed.
    collator=PadCollator(
        groups={"transcript": ["labels"]}, fill={"labels": 0}, lengths=True, attention_mask=None, sample_indices=True
    ),
)
sampler = BucketBatchSampler(
    data.lengths,  # (n_samples, 2): frames and tokens
    token_budget=args.token_budget,
    field_weights=(1, 4),
    accumulation_steps=args.accumulation_steps,
    loss_tokens=data.lengths[:, 1],
)
torch.manual_seed(0)
model = DistributedDataParallel(Recogniser())
optimizer = optimizer_of(model)
for batch in Feed(data, sampler).epochs(args.epochs):
    record(args.out, rank, batch.info.position.epoch, batch)
    log_probabilities = model(batch["features"]).transpose(0, 1)  # (frames // 4, B, 41)
    losses = nn.functional.ctc_loss(
        log_probabilities,
        batch["labels"],
        batch["lengths"] // 4,
        batch["transcript_lengths"],
        blank=40,
        reduction="sum",
    )
    # The mean over the transcripts' tokens of the update: DDP averages over ranks.
    (losses * world_size / batch.info.denominator).backward()
    if batch.info.ends_update:
        optimizer.step()
        optimizer.zero_grad()
torch.distributed.destroy_process_group()
