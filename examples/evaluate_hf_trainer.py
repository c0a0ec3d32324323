"""Hugging Face Trainer: `evaluate` with a loss that does not depend on the token budget, `predict` in order.

torchrun --nproc-per-node 2 examples/evaluate_hf_trainer.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from bucketshuffle.torch import OrderedBatchSampler, PreloadedDataset
from tiny import Model, add_evaluation_options, labelled_dataset, record_losses
from torch.utils.data import DataLoader
from transformers import EvalPrediction, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
add_evaluation_options(parser)
args = parser.parse_args()


class OrderedTrainer(Trainer):
    def get_eval_dataloader(self, eval_dataset: PreloadedDataset | None = None) -> DataLoader:
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        self.sampler = OrderedBatchSampler(data.lengths, token_budget=args.token_budget)
        loader = DataLoader(data, batch_sampler=self.sampler, collate_fn=data.collate)
        # In place of accelerator.prepare(loader): the sampler has divided the batches among the ranks already.
        return prepare_data_loader(loader, self.args.device, num_processes=1, process_index=0, put_on_device=True)

    get_test_dataloader = get_eval_dataloader

    def prediction_step(self, model: Any, inputs: Any, *_: Any, **__: Any) -> tuple[None, torch.Tensor, torch.Tensor]:
        # The Trainer would weight the mean of each batch by its samples: the loss would be that of the batches.
        with torch.no_grad():
            losses, n_tokens = model.losses(**self._prepare_inputs(inputs))
        return None, losses, n_tokens


def token_loss(outputs: EvalPrediction) -> dict[str, float]:
    losses, n_tokens = trainer.sampler.restore(outputs.predictions), trainer.sampler.restore(outputs.label_ids)
    return {"loss": float(losses.sum() / n_tokens.sum())}


torch.manual_seed(0)
arguments = TrainingArguments(output_dir=str(args.out), report_to=[], disable_tqdm=True, use_cpu=True)
data = labelled_dataset(args.samples)
trainer = OrderedTrainer(Model(), arguments, eval_dataset=data, compute_metrics=token_loss)
metrics = trainer.evaluate()
predicted = trainer.predict(data)
losses, n_tokens = trainer.sampler.restore(predicted.predictions), trainer.sampler.restore(predicted.label_ids)
if trainer.is_world_process_zero():
    print(f"loss {metrics['eval_loss']:.6f}")
    record_losses(args.out, losses, n_tokens)
trainer.accelerator.end_training()
