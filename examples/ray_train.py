"""Ray Train: `add_dist_sampler=False`, or Ray replaces the batch sampler by one sample per batch.

python examples/ray_train.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
from bucketshuffle.torch import BucketBatchSampler, check_loader
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from tiny import TOKEN_BUDGET, Model, add_data_options, dataset, labelled_dataset, loss_tokens_of, optimizer_of, record
from torch.utils.data import DataLoader


def train(config: dict[str, Any]) -> None:
    context = ray.train.get_context()
    data = labelled_dataset() if config["labels"] else dataset()
    sampler = BucketBatchSampler(
        data.lengths,
        seed=0,
        token_budget=TOKEN_BUDGET,
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        accumulation_steps=config["accumulation_steps"],
        loss_tokens=loss_tokens_of(data),
    )
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
    loader = ray.train.torch.prepare_data_loader(loader, add_dist_sampler=False)
    check_loader(loader)
    model = ray.train.torch.prepare_model(Model())
    optimizer = optimizer_of(model)
    for epoch in range(config["epochs"]):
        sampler.set_epoch(epoch)
        # The mean over the supervised tokens of the update, on all ranks: DDP averages over them.
        for step, (batch, n_tokens) in enumerate(zip(loader, sampler.denominators(), strict=True), start=1):
            loss = model(**batch) * sampler.world_size / n_tokens
            loss.backward()
            record(Path(config["run"]), sampler.rank, epoch, batch)
            if step % config["accumulation_steps"] == 0:
                optimizer.step()
                optimizer.zero_grad()
        ray.train.report({"loss": loss.item()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("run"), help="where the log goes")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    add_data_options(parser)
    args = parser.parse_args()
    run = args.out.absolute()
    trainer = TorchTrainer(
        train,
        train_loop_config={**vars(args), "run": str(run)},
        scaling_config=ScalingConfig(num_workers=args.ranks, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=str(run / "ray")),
    )
    print(trainer.fit().metrics)
