"""Hugging Face Trainer: one method overridden; stopping and resuming are the Trainer's own.

torchrun --nproc-per-node 2 examples/hf_trainer.py --stop-after 20
torchrun --nproc-per-node 2 examples/hf_trainer.py --resume
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from bucketshuffle.torch import BucketBatchSampler, check_loader
from tiny import TOKEN_BUDGET, Model, dataset, record
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("run"), help="where the checkpoints and the log go")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--accumulation-steps", type=int, default=1)
parser.add_argument("--stop-after", type=int, default=-1, help="optimizer updates before stopping with a checkpoint")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()


class BucketTrainer(Trainer):
    def get_train_dataloader(self) -> DataLoader:
        data = self.train_dataset
        sampler = BucketBatchSampler(
            data.lengths,
            seed=self.args.seed,
            token_budget=TOKEN_BUDGET,
            accumulation_steps=self.args.gradient_accumulation_steps,
        )
        loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
        # In place of accelerator.prepare(loader): the sampler has divided the batches among the ranks already.
        loader = prepare_data_loader(loader, self.args.device, num_processes=1, process_index=0, put_on_device=True)
        check_loader(loader)
        return loader

    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], *_: Any, **__: Any) -> torch.Tensor:
        record(args.out, self.args.process_index, int(self.state.epoch or 0), inputs)
        return model(**inputs) / inputs["attention_mask"].sum()


class StopAfter(TrainerCallback):
    def on_step_end(self, _: TrainingArguments, state: TrainerState, control: TrainerControl, **__: Any) -> None:
        if state.global_step == args.stop_after:
            control.should_save = control.should_training_stop = True


arguments = TrainingArguments(
    output_dir=str(args.out / "checkpoints"),
    num_train_epochs=args.epochs,
    gradient_accumulation_steps=args.accumulation_steps,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    remove_unused_columns=False,
    use_cpu=True,
)
trainer = BucketTrainer(Model(), arguments, train_dataset=dataset(), callbacks=[StopAfter()])
trainer.train(resume_from_checkpoint=args.resume)
if trainer.is_world_process_zero():
    (args.out / "state.json").write_text(json.dumps([trainer.state.global_step, trainer.state.max_steps]))
trainer.accelerator.end_training()
