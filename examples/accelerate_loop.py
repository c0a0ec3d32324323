"""accelerate: the sampler divides the batches among the ranks, and accelerate only places them on the device.

accelerate launch --num-processes 2 examples/accelerate_loop.py --stop-after 20
accelerate launch --num-processes 2 examples/accelerate_loop.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from bucketshuffle.torch import BucketBatchSampler, check_loader
from tiny import TOKEN_BUDGET, Model, add_data_options, dataset, labelled_dataset, loss_tokens_of, optimizer_of, record
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("run"), help="where the checkpoint and the log go")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--stop-after", type=int, help="steps to train before stopping with a checkpoint")
add_data_options(parser)
args = parser.parse_args()

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulation_steps)
data = labelled_dataset() if args.labels else dataset()
sampler = BucketBatchSampler(
    data.lengths,
    seed=0,
    token_budget=TOKEN_BUDGET,
    accumulation_steps=args.accumulation_steps,
    loss_tokens=loss_tokens_of(data),
)
loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
# In place of accelerator.prepare(loader): the sampler has divided the batches among the ranks already.
loader = prepare_data_loader(loader, accelerator.device, num_processes=1, process_index=0, put_on_device=True)
check_loader(loader)

model = Model()
model, optimizer = accelerator.prepare(model, optimizer_of(model))
checkpoint = args.out / "accelerate"
n_steps = 0
if checkpoint.exists():
    accelerator.load_state(checkpoint)
    n_steps = json.loads((checkpoint / "steps.json").read_text())

first_epoch, batches_done = divmod(n_steps, len(loader))
for epoch in range(first_epoch, args.epochs):
    epoch_loader = skip_first_batches(loader, batches_done) if epoch == first_epoch else loader
    epoch_loader.set_epoch(epoch)
    n_tokens = sampler.steps(epoch).denominators.tolist()  # Of every step of the whole epoch.
    for batch in epoch_loader:
        record(args.out, accelerator.process_index, epoch, batch)
        with accelerator.accumulate(model):
            # The mean over the supervised tokens of the update: DDP averages over ranks, accelerate over steps.
            n_shares = accelerator.num_processes * accelerator.gradient_accumulation_steps
            accelerator.backward(model(**batch) * n_shares / n_tokens[n_steps % len(loader)])
            optimizer.step()
            optimizer.zero_grad()
        n_steps += 1
        if n_steps == args.stop_after:
            break
    if n_steps == args.stop_after:
        break

accelerator.save_state(checkpoint)
if accelerator.is_main_process:
    (checkpoint / "steps.json").write_text(json.dumps(n_steps))
accelerator.end_training()
