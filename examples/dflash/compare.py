"""What an order of batches is worth in training: sorted, random, six buckets and soft ones, on the same real tokens.

python examples/dflash/compare.py                     # the table, 3 seeds a strategy
python examples/dflash/compare.py --size gpu --budget 131072 --samples 20000

Each run is a process of its own, so that its peak of memory is its own; the strategies take turns, so that a shared
machine slows all of them down. Throughput is that of the whole pipeline without its first epoch. The held-out loss is
that of 200 samples that no run has trained. The deviation of an update's gradient is the mean over windows of
`|g_window - g|^2 / |g|^2` at the drafter's first weights, where `g` is the gradient of the whole epoch; "shuffled" is
the same for the same batches in random order.

Soft batches are planned for 2 % of padding over sorted ones. The default pads `dflash902k` less than that, but so few
samples more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from bucketshuffle import DFLASH_BOUNDARIES
from bucketshuffle.torch import Feed, PreloadedDataset
from data import sequences
from model import CPU, GPU, Size
from stages import Stage
from torch import Tensor
from train import Trainer, pretrained_target, sampler_of

STRATEGIES = ("sorted", "random", "six buckets", "soft")
N_HELD_OUT = 200


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


def one_run(args: argparse.Namespace) -> dict[str, float]:
    """Trains one strategy under one seed, and measures it."""
    torch.set_num_threads(1)
    size = dataclasses.replace(GPU if args.size == "gpu" else CPU, n_anchors=args.anchors)
    device = torch.device("cuda" if args.size == "gpu" else "cpu")
    data, held_out = parts_of(size, args.samples, args.seed)
    trainer = Trainer(pretrained_target(size, data, args.target_steps, device), size, device, len(data))
    sampler = sampler_of(data, size, args, **order_of(args.one, size))
    figures = deviations(trainer, Feed(data, sampler, device=device), args.accumulation_steps) if args.seed == 0 else {}
    sampler.reset()
    sampler.set_epoch(0)
    feed = Feed(data, sampler, device=device)
    began, n_real, n_padded = time.perf_counter(), 0, 0
    for read in Stage(trainer.read, feed.epochs(args.epochs)):
        trainer.step(read)
        if read.info.position.epoch == 0:
            began = time.perf_counter()
        else:
            n_real += read.info.real_tokens
            n_padded += read.input_ids.numel()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - began
    held = Feed(held_out, sampler_of(held_out, size, args), device=device)
    held_trainer = Trainer(trainer.target, size, device, len(held_out))
    with torch.no_grad():
        losses = sum(float(trainer.loss(held_trainer.read(batch))) for batch in held.epochs(1))
    peak = (
        torch.cuda.max_memory_allocated()
        if device.type == "cuda"
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    return figures | {
        "real": n_real / elapsed / 1e3,
        "padded": n_padded / elapsed / 1e3,
        "wait": feed.counters().wait_share,
        "peak": peak / 2**20,
        "held out": losses / (len(held_out) * size.n_anchors),
    }


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
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--budget", type=int, default=8_192)
    parser.add_argument("--accumulation-steps", type=int, default=16)
    parser.add_argument("--anchors", type=int, default=4, help="blocks of a sample")
    parser.add_argument("--target-steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--per-sample", action="store_true", help="count the draft rows of each sample in its cost")
    parser.add_argument("--one", choices=STRATEGIES, help="one run, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one_run(args)))
        return
    rows: dict[str, list[dict[str, float]]] = {strategy: [] for strategy in STRATEGIES}
    for seed in range(args.seeds):
        for strategy in STRATEGIES:
            command = [sys.executable, *sys.argv, "--one", strategy, "--seed", str(seed)]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            rows[strategy].append(json.loads(printed.splitlines()[-1]))
    print(
        "| strategy | real Ktok/s | of sorted | padded Ktok/s | wait | peak MiB | held-out loss | deviation "
        "| shuffled |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for strategy, runs in rows.items():
        ratios = [run["real"] / base["real"] for run, base in zip(runs, rows["sorted"], strict=True)]
        held = [run["held out"] for run in runs]
        spread = f"{statistics.median(held):.3f} ({min(held):.3f}-{max(held):.3f})"
        mid = {key: statistics.median(run[key] for run in runs) for key in ("real", "padded", "wait", "peak")}
        print(
            f"| {strategy} | {mid['real']:.1f} | {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) "
            f"| {mid['padded']:.1f} | {mid['wait']:.1%} | {mid['peak']:,.0f} | {spread} | {runs[0]['deviation']:.4f} "
            f"| {runs[0]['shuffled']:.4f} |"
        )


if __name__ == "__main__":
    main()
