"""Lightning: the sampler is made in the hook, where Lightning gives it rank and world size.

python examples/lightning_module.py --stop-after 20
python examples/lightning_module.py --resume
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning
import torch
from bucketshuffle.torch import BucketBatchSampler, check_loader
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny import TOKEN_BUDGET, Model, add_data_options, dataset, labelled_dataset, loss_tokens_of, optimizer_of, record
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("run"), help="where the checkpoint and the log go")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--stop-after", type=int, default=-1, help="steps to train before stopping with a checkpoint")
parser.add_argument("--resume", action="store_true")
add_data_options(parser)
args = parser.parse_args()


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def train_dataloader(self) -> StatefulDataLoader:
        data = labelled_dataset() if args.labels else dataset()
        self.sampler = BucketBatchSampler(
            data.lengths,
            seed=0,
            token_budget=TOKEN_BUDGET,
            accumulation_steps=args.accumulation_steps,
            loss_tokens=loss_tokens_of(data),
        )
        # A plain DataLoader does as well where no checkpoint is taken inside an epoch.
        return StatefulDataLoader(data, batch_sampler=self.sampler, collate_fn=data.collate)

    def on_train_start(self) -> None:
        check_loader(self.trainer.train_dataloader)

    def training_step(self, batch: dict[str, Tensor], step: int) -> Tensor:
        record(args.out, self.global_rank, self.current_epoch, batch)
        # The mean over the supervised tokens of the update: DDP averages over ranks, Lightning over steps.
        n_tokens = self.trainer.train_dataloader.batch_sampler.steps(self.current_epoch).denominators[step]
        n_shares = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return self.model(**batch) * n_shares / int(n_tokens)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=args.devices,
    strategy="ddp" if args.devices > 1 else "auto",
    max_epochs=args.epochs,
    max_steps=args.stop_after,
    accumulate_grad_batches=args.accumulation_steps,
    callbacks=[ModelCheckpoint(args.out / "checkpoints", save_last=True, every_n_train_steps=max(args.stop_after, 1))],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), ckpt_path=args.out / "checkpoints" / "last.ckpt" if args.resume else None)
