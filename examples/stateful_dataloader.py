"""torchdata's StatefulDataLoader: its state holds the sampler's, exact with worker processes, too.

python examples/stateful_dataloader.py --stop-after 20
python examples/stateful_dataloader.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from bucketshuffle.torch import BucketBatchSampler
from tiny import TOKEN_BUDGET, Model, add_data_options, dataset, labelled_dataset, loss_tokens_of, optimizer_of, record
from torchdata.stateful_dataloader import StatefulDataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("run"), help="where the checkpoint and the log go")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--stop-after", type=int, help="steps to train before stopping with a checkpoint")
add_data_options(parser)
args = parser.parse_args()

data = labelled_dataset() if args.labels else dataset()
sampler = BucketBatchSampler(
    data.lengths,
    seed=0,
    token_budget=TOKEN_BUDGET,
    accumulation_steps=args.accumulation_steps,
    loss_tokens=loss_tokens_of(data),
)
loader = StatefulDataLoader(data, batch_sampler=sampler, collate_fn=data.collate, num_workers=args.workers)
model = Model()
optimizer = optimizer_of(model)
checkpoint = args.out / "checkpoint.pt"
n_steps = 0
if checkpoint.exists():
    saved = torch.load(checkpoint, weights_only=False)
    n_steps = saved["n_steps"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])

for epoch in range(n_steps // len(sampler), args.epochs):
    sampler.set_epoch(epoch)
    for batch, n_tokens in zip(loader, sampler.denominators(), strict=True):
        loss = model(**batch) / n_tokens
        loss.backward()
        record(args.out, 0, epoch, batch)
        n_steps += 1
        if n_steps % args.accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if n_steps == args.stop_after:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save({"n_steps": n_steps, **states}, checkpoint)
            break
    if n_steps == args.stop_after:
        break
