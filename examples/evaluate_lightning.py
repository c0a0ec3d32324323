"""Lightning: `validate` with a loss that does not depend on the token budget, outputs in order.

python examples/evaluate_lightning.py --devices 2
"""

from __future__ import annotations

import argparse

import lightning
import torch
from bucketshuffle.torch import OrderedBatchSampler
from tiny import Model, add_evaluation_options, labelled_dataset, record_losses
from torch import Tensor
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--devices", type=int, default=2)
add_evaluation_options(parser)
args = parser.parse_args()


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.rows: list[Tensor] = []

    def val_dataloader(self) -> DataLoader:
        data = labelled_dataset(args.samples)
        self.sampler = OrderedBatchSampler(data.lengths, token_budget=args.token_budget)
        return DataLoader(data, batch_sampler=self.sampler, collate_fn=data.collate)

    def validation_step(self, batch: dict[str, Tensor], _: int) -> None:
        self.rows.append(torch.stack(self.model.losses(**batch), 1))

    def on_validation_epoch_end(self) -> None:
        of_all_ranks = self.all_gather(torch.cat(self.rows)).reshape(-1, 2)
        losses, n_tokens = self.sampler.restore(of_all_ranks, by_rank=True).T  # (n_samples,) each
        self.rows.clear()
        self.log("val_loss", losses.sum() / n_tokens.sum())
        if self.trainer.is_global_zero:
            record_losses(args.out, losses, n_tokens)


lightning.seed_everything(0)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=args.devices,
    strategy="ddp" if args.devices > 1 else "auto",
    num_sanity_val_steps=0,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
(metrics,) = trainer.validate(Module())
if trainer.is_global_zero:
    print(f"loss {metrics['val_loss']:.6f}")
