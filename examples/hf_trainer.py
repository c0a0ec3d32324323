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
from tiny import TOKEN_BUDGET, Model, add_data_options, dataset, labelled_dataset, loss_tokens_of, record
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("run"), help="where the checkpoints and the log go")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--stop-after", type=int, default=-1, help="optimizer updates before stopping with a checkpoint")
parser.add_argument("--resume", action="store_true")
add_data_options(parser)
args = parser.parse_args()


class BucketTrainer(Trainer):
    def train(self, resume_from_checkpoint: str | None = None, **options: Any) -> Any:
        self.resumed = resume_from_checkpoint
        return super().train(resume_from_checkpoint, **options)

    def get_train_dataloader(self) -> DataLoader:
        data = self.train_dataset
        sampler = BucketBatchSampler(
            data.lengths,
            seed=self.args.seed,
            token_budget=TOKEN_BUDGET,
            accumulation_steps=self.args.gradient_accumulation_steps,
            loss_tokens=loss_tokens_of(data),
        )
        self.sampler = sampler
        if self.resumed and (Path(self.resumed) / "plan.txt").read_text() != sampler.fingerprint:
            # The Trainer counts optimizer updates, and each is another part of the data in another plan.
            raise ValueError(
                f"{self.resumed} is of another plan; resume with the data, the seed, the token budget and the product "
                "of ranks and accumulation steps that it was saved with"
            )
        loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
        # In place of accelerator.prepare(loader): the sampler has divided the batches among the ranks already.
        loader = prepare_data_loader(loader, self.args.device, num_processes=1, process_index=0, put_on_device=True)
        check_loader(loader)
        return loader

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> torch.Tensor:
        record(args.out, self.args.process_index, int(self.state.epoch or 0), inputs)
        n_accumulated = self.args.gradient_accumulation_steps
        epoch, update = divmod(self.state.global_step, len(self.sampler) // n_accumulated)
        n_tokens = int(self.sampler.steps(epoch).denominators[update * n_accumulated])
        # The mean over the supervised tokens of the update: DDP averages over ranks, the Trainer over steps, but not
        # where it has counted the labels.
        has_counted = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        n_shares = self.args.world_size * (1 if has_counted else self.current_gradient_accumulation_steps)
        return model(**inputs) * n_shares / n_tokens


class SavePlan(TrainerCallback):
    def on_save(self, arguments: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            checkpoint = Path(arguments.output_dir) / f"checkpoint-{state.global_step}"
            (checkpoint / "plan.txt").write_text(kwargs["train_dataloader"].batch_sampler.fingerprint)


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
data = labelled_dataset() if args.labels else dataset()
trainer = BucketTrainer(Model(), arguments, train_dataset=data, callbacks=[SavePlan(), StopAfter()])
trainer.train(get_last_checkpoint(arguments.output_dir) if args.resume else None)
if trainer.is_world_process_zero():
    (args.out / "state.json").write_text(json.dumps([trainer.state.global_step, trainer.state.max_steps]))
trainer.accelerator.end_training()
