"""Evaluation under accelerate: each step gathers one row a sample, and `restore` puts the rows in order.

accelerate launch --num-processes 2 examples/evaluate_accelerate.py
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from bucketshuffle.torch import OrderedBatchSampler
from tiny import Model, add_evaluation_options, labelled_dataset, record_losses
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
add_evaluation_options(parser)
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
data = labelled_dataset(args.samples)
sampler = OrderedBatchSampler(data.lengths, token_budget=args.token_budget)
loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
# In place of accelerator.prepare(loader): the sampler has divided the batches among the ranks already.
loader = prepare_data_loader(loader, accelerator.device, num_processes=1, process_index=0, put_on_device=True)

torch.manual_seed(0)
model = Model().to(accelerator.device)
with torch.no_grad():
    gathered = [accelerator.gather_for_metrics(model.losses(**batch)) for batch in loader]
losses, n_tokens = (sampler.restore(torch.cat(rows)) for rows in zip(*gathered, strict=True))  # (n_samples,) each
if accelerator.is_main_process:
    print(f"loss {losses.sum() / n_tokens.sum():.6f}")
    record_losses(args.out, losses, n_tokens)
accelerator.end_training()
