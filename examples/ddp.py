"""Plain PyTorch DDP with a checkpoint in the middle of an epoch, resumed on any number of ranks.

torchrun --nproc-per-node 2 examples/ddp.py --stop-after 5
torchrun --nproc-per-node 4 examples/ddp.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from bucketshuffle.torch import BucketBatchSampler, check_loader, check_ranks
from tiny import TOKEN_BUDGET, Model, add_data_options, dataset, labelled_dataset, loss_tokens_of, optimizer_of, record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("run"), help="where the checkpoint and the log go")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--stop-after", type=int, help="steps to train before stopping with a checkpoint")
add_data_options(parser)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
data = labelled_dataset() if args.labels else dataset()
sampler = BucketBatchSampler(
    data.lengths,
    seed=0,
    token_budget=TOKEN_BUDGET,
    accumulation_steps=args.accumulation_steps,
    loss_tokens=loss_tokens_of(data),
)  # Rank and world size: those of `dist`.
loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
check_loader(loader)
check_ranks(sampler)

model = DistributedDataParallel(Model())
optimizer = optimizer_of(model)
checkpoint = args.out / "checkpoint.pt"
n_steps = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    sampler.load_state_dict(saved["sampler"])  # Its epoch, too.

for epoch in range(sampler.epoch, args.epochs):
    sampler.set_epoch(epoch)
    # The mean over the supervised tokens of the update, on all ranks: DDP averages over them.
    for batch, n_tokens in zip(loader, sampler.denominators(), strict=True):
        loss = model(**batch) * world_size / n_tokens
        loss.backward()
        record(args.out, rank, epoch, batch)
        n_steps += 1
        if n_steps % args.accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if n_steps == args.stop_after:
            break
    if n_steps == args.stop_after:
        break

if rank == 0:
    states = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sampler": sampler.state_dict()}
    torch.save(states, checkpoint)
dist.destroy_process_group()
