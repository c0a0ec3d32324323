"""Sequence to sequence through the Hugging Face Trainer: source and target each padded to their own longest.

torchrun --nproc-per-node 2 examples/translate_hf_trainer.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from bucketshuffle.torch import BucketBatchSampler, PadCollator, PreloadedDataset, check_loader
from tiny import record, translations
from torch.utils.data import DataLoader
from transformers import BartConfig, BartForConditionalGeneration, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("run"), help="where the log goes")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--accumulation-steps", type=int, default=1)
parser.add_argument("--token-budget", type=int, default=600, help="of source and target together")
args = parser.parse_args()

config = BartConfig(
    vocab_size=100,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=128,
    dropout=0.0,
)
data = PreloadedDataset.from_rows(
    translations(200),
    collator=PadCollator(
        groups={"target": ["labels"]},  # Padded to their own longest, with -100.
        mask_names={"target": None},  # The model makes the decoder's input of the labels.
        sample_indices=True,
    ),
)


class TranslationTrainer(Trainer):
    def get_train_dataloader(self) -> DataLoader:
        self.sampler = BucketBatchSampler(
            data.lengths,  # (n_samples, 2): of the source and of the target
            token_budget=args.token_budget,
            seed=self.args.seed,
            accumulation_steps=self.args.gradient_accumulation_steps,
            loss_tokens=data.lengths[:, 1],
        )
        loader = DataLoader(data, batch_sampler=self.sampler, collate_fn=data.collate)
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
        del inputs["sample_indices"]
        n_accumulated = self.args.gradient_accumulation_steps
        epoch, update = divmod(self.state.global_step, len(self.sampler) // n_accumulated)
        n_tokens = int(self.sampler.steps(epoch).denominators[update * n_accumulated])
        # The mean over the target tokens of the update: DDP averages over ranks, the Trainer over steps, but not where
        # it has counted the labels.
        has_counted = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        n_shares = self.args.world_size * (1 if has_counted else self.current_gradient_accumulation_steps)
        logits = model(**inputs).logits  # (B, L of the target, 100)
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(), reduction="sum")
        return losses * n_shares / n_tokens


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
torch.manual_seed(0)
trainer = TranslationTrainer(BartForConditionalGeneration(config), arguments, train_dataset=data)
trainer.train()
trainer.accelerator.end_training()
