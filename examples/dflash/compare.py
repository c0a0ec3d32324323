"""What an order of batches is worth in training: sorted, random, six buckets and soft ones, on the same real tokens.

python examples/dflash/compare.py                     # the table, 3 seeds a strategy
python examples/dflash/compare.py --size gpu --budget 131072 --samples 20000

Throughput is that of the whole pipeline, in one process in which the strategies take turns of some batches, so that a
shared machine slows all of them down. A slow step is the 95th percentile of the steps over their median. Each training
run is a process of its own, so that its peak of memory is its own. Every strategy makes an update of about as many
real tokens, in as many batches as it needs. The held-out loss is that of 200 samples that no run has trained. The
deviation of an update's gradient is the mean over windows of `|g_window - g|^2 / |g|^2` at the drafter's first
weights, where `g` is the gradient of the whole epoch; "shuffled" is the same for the same batches in random order.

On a CPU, glibc gives large freed memory back and faults it in again for the next batch of another shape, which costs
orders that change the shape about a tenth. The allocator of a GPU keeps it, and so does glibc as it is told here.

Soft batches are planned for 2 % of padding over sorted ones. The default pads `dflash902k` less than that, but so few
samples more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import torch
from bucketshuffle import DFLASH_BOUNDARIES
from bucketshuffle.torch import BucketBatchSampler, Feed, PreloadedDataset
from data import sequences
from model import CPU, GPU, Size
from stages import Stage
from torch import Tensor
from train import Trainer, pretrained_target, sampler_of

STRATEGIES = ("sorted", "random", "six buckets", "soft")
N_HELD_OUT = 200
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**40), "MALLOC_TRIM_THRESHOLD_": str(2**40)}


def order_of(strategy: str, size: Size) -> dict[str, Any]:
    """Options of the sampler."""
    if strategy == "six buckets":
        return {"boundaries": [edge * size.longest // 8192 for edge in DFLASH_BOUNDARIES]}
    return {"padding_target": 0.02} if strategy == "soft" else {"strategy": strategy}


def parts_of(size: Size, n_samples: int, seed: int) -> tuple[PreloadedDataset, PreloadedDataset]:
    """The data to train, and what is held out of it."""
    data = sequences(size, n_samples + N_HELD_OUT, seed)
    rows = [data[i]["input_ids"] for i in range(len(data))]
    return tuple(  # type: ignore[return-value]
        PreloadedDataset.from_rows({"input_ids": part}, collator=data.collator)
        for part in (rows[N_HELD_OUT:], rows[:N_HELD_OUT])
    )


class Run:
    """The data, the trainer and the sampler of one strategy under one seed."""

    def __init__(self, args: argparse.Namespace, strategy: str, seed: int) -> None:
        torch.set_num_threads(1)
        self.size = dataclasses.replace(GPU if args.size == "gpu" else CPU, n_anchors=args.anchors)
        self.device = torch.device("cuda" if args.size == "gpu" else "cpu")
        self.data, self.held_out = parts_of(self.size, args.samples, seed)
        target = pretrained_target(self.size, self.data, args.target_steps, self.device)
        self.trainer = Trainer(target, self.size, self.device, len(self.data))
        options = argparse.Namespace(**vars(args) | {"seed": seed, "accumulation_steps": 1})
        n_batches = len(sampler_of(self.data, self.size, options, **order_of(strategy, self.size)))
        options.accumulation_steps = round(args.update_tokens * n_batches / int(self.data.lengths.sum()))
        self.sampler = sampler_of(self.data, self.size, options, **order_of(strategy, self.size))
        self.feed = Feed(self.data, self.sampler, device=self.device)

    def train(self, n_epochs: int) -> list[tuple[int, float]]:
        """Returns the real tokens and the loss of every batch."""
        reads = Stage(self.trainer.read, self.feed.epochs(n_epochs))
        return [(read.info.real_tokens, self.trainer.step(read)) for read in reads]

    def held_out_loss(self) -> float:
        sampler = BucketBatchSampler(self.held_out.lengths, token_budget=self.size.longest * 4)
        trainer = Trainer(self.trainer.target, self.size, self.device, len(self.held_out))
        with torch.no_grad():
            batches = Feed(self.held_out, sampler, device=self.device)
            losses = sum(float(self.trainer.loss(trainer.read(batch))) for batch in batches)
        return losses / (len(self.held_out) * self.size.n_anchors)


def speeds(args: argparse.Namespace) -> dict[str, list[tuple[float, float, list[float]]]]:
    """Returns, for each turn of each strategy, real and padded Ktok/s and the milliseconds of its steps."""
    runs = {strategy: Run(args, strategy, 0) for strategy in STRATEGIES}
    reads = {name: Stage(run.trainer.read, run.feed.epochs(1_000)) for name, run in runs.items()}
    turns: dict[str, list[tuple[float, float, list[float]]]] = {strategy: [] for strategy in STRATEGIES}
    for turn in range(-1, args.turns):
        for name, run in runs.items():
            n_real = n_padded = 0
            ended = [time.perf_counter()]
            for read in islice(reads[name], args.batches_of_a_turn):
                run.trainer.step(read)  # Its loss comes back as a number, so it has ended.
                ended.append(time.perf_counter())
                n_real += read.info.real_tokens
                n_padded += read.input_ids.numel()
            steps_ms = [1e3 * (end - start) for start, end in pairwise(ended)]
            if turn >= 0:  # The first warms up.
                turns[name].append((n_real / sum(steps_ms), n_padded / sum(steps_ms), steps_ms))
    for stage in reads.values():
        stage.close()
    return turns


def one_run(args: argparse.Namespace) -> dict[str, Any]:
    """Trains one strategy under one seed, and measures it."""
    run = Run(args, args.one, args.seed)
    figures: dict[str, Any] = {"batches of an update": run.sampler.schedule.accumulation_steps}
    if args.seed == 0:
        figures |= deviations(run.trainer, run.feed, run.sampler.schedule.accumulation_steps)
        run.sampler.reset()
    figures["losses"] = run.train(args.epochs)
    figures["wait"] = run.feed.counters().wait_share
    if run.device.type == "cuda":
        figures["peak"] = torch.cuda.max_memory_allocated() / 2**20
    else:
        figures["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return figures | {"held out": run.held_out_loss()}


def deviations(trainer: Trainer, feed: Feed, window: int) -> dict[str, float]:
    """How far the gradient of an update is from that of an epoch."""
    gradients: list[Tensor] = []
    n_blocks: list[int] = []
    for batch in feed:
        read = trainer.read(batch)
        trainer.loss(read).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.drafter.parameters() if p.grad is not None]))
        n_blocks.append(read.anchors.numel())
        trainer.optimizer.zero_grad()
    sums, counts = torch.stack(gradients), torch.tensor(n_blocks, device=gradients[0].device)
    whole = sums.sum(0) / counts.sum()

    def deviation(order: Tensor) -> float:
        windows = order[: len(order) // window * window].view(-1, window)
        means = sums[windows].sum(1) / counts[windows].sum(1, keepdim=True)
        return float(((means - whole) ** 2).sum(1).mean() / (whole**2).sum())

    shuffled = [deviation(torch.randperm(len(sums), generator=torch.Generator().manual_seed(i))) for i in range(20)]
    return {"deviation": deviation(torch.arange(len(sums))), "shuffled": statistics.fmean(shuffled)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--samples", type=int, default=8_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--budget", type=int, default=8_192)
    parser.add_argument("--update-tokens", type=int, default=32_768, help="real tokens of an update, about")
    parser.add_argument("--anchors", type=int, default=4, help="blocks of a sample")
    parser.add_argument("--target-steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=24, help="of each strategy, to measure throughput")
    parser.add_argument("--batches-of-a-turn", type=int, default=24)
    parser.add_argument("--per-sample", action="store_true", help="count the draft rows of each sample in its cost")
    parser.add_argument("--out", type=Path, help="keep the figures and the losses of all batches, as JSON")
    parser.add_argument("--one", choices=[*STRATEGIES, "speeds"], help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(speeds(args) if args.one == "speeds" else one_run(args)))
        return
    turns = in_a_process("speeds", 0)
    rows: dict[str, list[dict[str, Any]]] = {strategy: [] for strategy in STRATEGIES}
    for seed in range(args.seeds):
        for strategy in STRATEGIES:
            rows[strategy].append(in_a_process(strategy, seed))
    if args.out:
        args.out.write_text(json.dumps({"turns": turns, "runs": rows}))
    print(
        "| strategy | batches of an update | real Ktok/s | of sorted (quartiles) | padded Ktok/s | slow step "
        "| wait | peak MiB | held-out loss (range) | deviation | shuffled |\n|---" + "|---:" * 10 + "|"
    )
    for strategy, runs in rows.items():
        real, padded, steps_ms = zip(*turns[strategy], strict=True)
        ratios = [own / base for own, (base, *_) in zip(real, turns["sorted"], strict=True)]
        percentiles_ms = statistics.quantiles(chain.from_iterable(steps_ms), n=20)
        low, middle, high = statistics.quantiles(ratios, n=4)
        held = [run["held out"] for run in runs]
        wait, peak = (statistics.median(run[name] for run in runs) for name in ("wait", "peak"))
        print(
            f"| {strategy} | {runs[0]['batches of an update']} | {statistics.median(real):.1f} "
            f"| {middle:.2f} ({low:.2f}-{high:.2f}) | {statistics.median(padded):.1f} "
            f"| {percentiles_ms[-1] / percentiles_ms[9]:.2f} | {wait:.1%} | {peak:,.0f} "
            f"| {statistics.median(held):.3f} ({min(held):.3f}-{max(held):.3f}) | {runs[0]['deviation']:.4f} "
            f"| {runs[0]['shuffled']:.4f} |"
        )


def in_a_process(one: str, seed: int) -> Any:
    """What `--one` prints."""
    command = [sys.executable, *sys.argv, "--one", one, "--seed", str(seed)]
    printed = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | KEEP_MEMORY
    ).stdout
    return json.loads(printed.splitlines()[-1])


if __name__ == "__main__":
    main()
