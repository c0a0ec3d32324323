"""Preference pairs through TRL's DPOTrainer: chosen and rejected in one batch, within one budget for both.

torchrun --nproc-per-node 2 examples/preference_trl.py
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import gather_object
from bucketshuffle.torch import BucketBatchSampler, check_loader
from datasets import Dataset
from tiny import preference_pairs, record
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("run"), help="where the log goes")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--accumulation-steps", type=int, default=1)
parser.add_argument("--token-budget", type=int, default=600, help="of the rows for chosen and rejected together")
args = parser.parse_args()

words = Tokenizer(WordLevel({word: i for i, word in enumerate(["<pad>", "<eos>", *map(str, range(50))])}, "<pad>"))
words.pre_tokenizer = WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
config = LlamaConfig(
    vocab_size=52, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
)


class PairTrainer(DPOTrainer):
    def get_train_dataloader(self) -> DataLoader:
        data = self.train_dataset  # Tokenized by TRL.
        n_prompt, n_chosen, n_rejected = (
            np.array([len(row) for row in data[name]]) for name in ("prompt_ids", "chosen_ids", "rejected_ids")
        )
        self.sampler = BucketBatchSampler(
            {"chosen": n_prompt + n_chosen, "rejected": n_prompt + n_rejected},
            combine="max",  # TRL pads both to the longest of all, so a pair costs twice the larger.
            token_budget=args.token_budget // 2,
            seed=self.args.seed,
            accumulation_steps=self.args.gradient_accumulation_steps,
            loss_tokens=np.ones(len(data), np.int64),  # The loss is a mean over pairs.
        )
        loader = DataLoader(data, batch_sampler=self.sampler, collate_fn=self.collate)
        # In place of accelerator.prepare(loader): the sampler has divided the batches among the ranks already.
        loader = prepare_data_loader(loader, self.args.device, num_processes=1, process_index=0, put_on_device=True)
        check_loader(loader)
        return loader

    def gather(self, of_rank: torch.Tensor) -> torch.Tensor:
        """For TRL's metrics: ranks have different numbers of pairs, which accelerate cannot gather."""
        gathered: list[Any] = gather_object([of_rank.flatten().cpu()])
        return torch.cat(gathered).to(of_rank.device)

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self.data_collator(rows), "sample_indices": torch.tensor([row["sample"] for row in rows])}

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        samples = inputs.pop("sample_indices")
        record(args.out, self.args.process_index, int(self.state.epoch or 0), {"sample_indices": samples})
        n_accumulated = self.args.gradient_accumulation_steps
        epoch, update = divmod(self.state.global_step, len(self.sampler) // n_accumulated)
        n_pairs = int(self.sampler.steps(epoch).denominators[update * n_accumulated])
        # The mean over the pairs of the update: DDP averages over ranks, the Trainer over steps.
        n_shares = self.args.world_size * self.current_gradient_accumulation_steps
        loss: torch.Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return loss * len(samples) * n_shares / n_pairs


arguments = DPOConfig(
    output_dir=str(args.out / "checkpoints"),
    num_train_epochs=args.epochs,
    gradient_accumulation_steps=args.accumulation_steps,
    gradient_checkpointing=False,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    bf16=False,
    max_length=None,
)
torch.manual_seed(0)
model = LlamaForCausalLM(config)
trainer = PairTrainer(
    model=model,
    ref_model=copy.deepcopy(model),  # Without one TRL loads the model's checkpoint again, and this one has none.
    args=arguments,
    train_dataset=Dataset.from_list(preference_pairs(120)),
    processing_class=tokenizer,
)
trainer.accelerator.gather = trainer.gather
trainer.train()
trainer.accelerator.end_training()
