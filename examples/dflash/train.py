"""Trains a drafter as the DFlash write-up does: a target stage, a drafter stage and a verifier stage, fed by a `Feed`.

python examples/dflash/train.py                       # six epochs on a CPU, about a minute
python examples/dflash/train.py --stop-after 100      # a checkpoint inside an epoch
python examples/dflash/train.py --resume
python examples/dflash/train.py --size gpu --budget 131072 --samples 20000
"""

from __future__ import annotations

import argparse
import copy
import json
import queue
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from bucketshuffle.torch import BatchInfo, BucketBatchSampler, Feed, FeedBatch, PreloadedDataset
from data import sequences
from model import CPU, GPU, Drafter, Size, Target, accepted_length, block_loss
from stages import Stage
from torch import Tensor
from torch.nn import functional


class Read(NamedTuple):
    """A batch that the target has read."""

    input_ids: Tensor  # (B, L)
    lengths: Tensor  # (B,)
    hidden: Tensor  # (B, L, n_target_layers * width)
    anchors: Tensor  # (B, A)
    info: BatchInfo


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--out", type=Path, default=Path("run"), help="where the checkpoint and the log go")
    parser.add_argument("--samples", type=int, default=1_200)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--budget", type=int, default=2_048, help="tokens of a batch")
    parser.add_argument("--per-sample", action="store_true", help="count the draft rows of each sample in its cost")
    parser.add_argument("--accumulation-steps", type=int, default=2)
    parser.add_argument("--stop-after", type=int, help="stop with a checkpoint at the first update after these steps")
    parser.add_argument("--target-steps", type=int, default=200, help="steps that the target is trained before")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def pretrained_target(size: Size, data: PreloadedDataset, n_steps: int, device: torch.device) -> Target:
    """A target that has read a little of the data, and is frozen."""
    torch.manual_seed(0)
    target = Target(size).to(device)
    optimizer = torch.optim.AdamW(target.parameters(), lr=3e-3)
    feed = Feed(data, BucketBatchSampler(data.lengths, seed=1, token_budget=4_096), device=device)
    for batch, _ in zip(feed.epochs(100), range(n_steps), strict=False):
        logits, _hidden = target(batch["input_ids"])
        real = torch.arange(1, logits.shape[1], device=device) < batch["lengths"][:, None]
        labels = batch["input_ids"][:, 1:]
        losses = functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels, reduction="none")
        ((losses * real).sum() / real.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return target.requires_grad_(False)


def sampler_of(data: PreloadedDataset, size: Size, args: argparse.Namespace, **options: Any) -> BucketBatchSampler:
    # Every sample has as many blocks, so blocks are what an update's loss is the mean of.
    draft_rows = size.n_anchors * size.block
    return BucketBatchSampler(
        data.lengths,
        seed=args.seed,
        token_budget=args.budget,
        accumulation_steps=args.accumulation_steps,
        loss_tokens=np.full(len(data), size.n_anchors),
        per_sample=draft_rows if args.per_sample else 0,
        **options,
    )


def anchors_of(batch: FeedBatch, size: Size, n_samples: int) -> Tensor:
    """Random places after the prompt, (B, A): those of a sample in an epoch, whatever batch it is in."""
    assert batch.info is not None
    random = torch.Generator().manual_seed(batch.info.position.epoch)
    share = torch.rand(n_samples, size.n_anchors, generator=random)[batch["sample_indices"].cpu()]
    lengths = batch["lengths"][:, None]
    first, last = lengths // 3, lengths - 2
    return (first + share.to(lengths.device) * (last - first + 1)).long()


class Trainer:
    """The drafter stage, between the stage that reads batches with the target and the one that verifies."""

    def __init__(self, target: Target, size: Size, device: torch.device, n_samples: int) -> None:
        torch.manual_seed(1)
        self.target, self.size, self.n_samples = target, size, n_samples
        self.drafter = Drafter(size).to(device)
        self.optimizer = torch.optim.AdamW(self.drafter.parameters(), lr=4e-3)

    @torch.no_grad()
    def read(self, batch: FeedBatch) -> Read:
        """The target stage."""
        assert batch.info is not None
        anchors = anchors_of(batch, self.size, self.n_samples)
        return Read(batch["input_ids"], batch["lengths"], self.target(batch["input_ids"])[1], anchors, batch.info)

    def loss(self, read: Read, drafter: Drafter | None = None) -> Tensor:
        """The sum over the blocks of the batch."""
        logits = (drafter or self.drafter)(self.target, read.input_ids, read.hidden, read.anchors)
        return block_loss(logits, read.input_ids, read.anchors, read.lengths).sum()

    def step(self, read: Read) -> float:
        """Adds a batch to the update, and makes the update with its last batch. Returns the mean loss of a block."""
        loss = self.loss(read)
        (loss / read.info.denominator).backward()
        if read.info.ends_update:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return float(loss.detach()) / read.anchors.numel()

    @torch.no_grad()
    def verify(self, drafter: Drafter, read: Read) -> tuple[int, int, float, float]:
        """The verifier stage: epoch, step, mean loss of a block and its mean accepted tokens."""
        loss = float(self.loss(read, drafter)) / read.anchors.numel()
        lengths = accepted_length(drafter, self.target, read.input_ids, read.hidden, read.anchors)
        return read.info.position.epoch, read.info.step, loss, float(lengths.float().mean())


def main(arguments: list[str] | None = None) -> None:
    args = options_of(arguments)
    size = GPU if args.size == "gpu" else CPU
    device = torch.device("cuda" if args.size == "gpu" else "cpu")
    torch.set_num_threads(1)  # The stages are threads already; torch's own would wait for each other.
    data = sequences(size, args.samples, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(pretrained_target(size, data, args.target_steps, device), size, device, len(data))
    feed = Feed(data, sampler_of(data, size, args), device=device)
    checkpoint = args.out / "checkpoint.pt"
    if args.resume:
        saved = torch.load(checkpoint)
        trainer.drafter.load_state_dict(saved["drafter"])
        trainer.optimizer.load_state_dict(saved["optimizer"])
        feed.load_state_dict(saved["feed"])
    state = feed.state_dict()
    to_verify: queue.Queue[tuple[Drafter, Read] | None] = queue.Queue(1)
    reads = Stage(trainer.read, feed.epochs(args.epochs))
    verified = Stage(lambda drafted: trainer.verify(*drafted), iter(to_verify.get, None), n_ahead=1_000)
    with open(args.out / "log.jsonl", "a" if args.resume else "w") as log:
        for n_steps, read in enumerate(reads, start=1):
            info = read.info
            print(json.dumps([info.position.epoch, info.step, info.bucket, trainer.step(read)]), file=log)
            state = feed.state_after(info)  # The target has read further; the drafter has not.
            if info.step % 50 == 0:
                to_verify.put((copy.deepcopy(trainer.drafter), read))
            if args.stop_after and n_steps >= args.stop_after and info.ends_update:
                break
    reads.close()
    to_verify.put(None)
    for epoch, step, loss, accepted in verified:
        print(f"epoch {epoch} step {step:4}: loss {loss:.3f}, accepted {accepted:.2f} of {size.block - 1}")
    print(feed.counters().postfix())
    states = {"drafter": trainer.drafter.state_dict(), "optimizer": trainer.optimizer.state_dict(), "feed": state}
    torch.save(states, checkpoint)


if __name__ == "__main__":
    main()
