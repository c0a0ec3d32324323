"""Collating by two builds of the package, alternating in one process: python collate_versions.py BEFORE AFTER.

BEFORE and AFTER are folders that hold `bucketshuffle` with its extension module. Every batch of one is compared with
the other's before it is timed. Medians over 15 rounds of 128 batches; the ratio is taken within a round.
"""

import importlib
import itertools
import statistics
import sys
import time

import torch
from bench_collate import N_SAMPLES, TOKEN_BUDGET, Corpus

torch.set_num_threads(1)


def load(root):
    for name in [name for name in sys.modules if name.split(".")[0] == "bucketshuffle"]:
        del sys.modules[name]
    sys.path.insert(0, root)
    try:
        module = importlib.import_module("bucketshuffle.torch")
        assert sys.modules["bucketshuffle._core"].__file__.startswith(root)
    finally:
        sys.path.pop(0)
    return module


def cases(module, corpus):
    dataset, collate = module.PreloadedDataset(corpus.tokens, corpus.offsets), module.PadCollator()
    out = {
        "input_ids": torch.empty(TOKEN_BUDGET, dtype=torch.int64),
        "attention_mask": torch.empty(TOKEN_BUDGET, dtype=torch.bool),
    }
    rows = [{"input_ids": corpus.row(sample)} for sample in range(N_SAMPLES)]
    lists = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8
    return {
        "native, fresh": dataset.batch,
        "native, out": lambda batch: dataset.batch(batch, out=out),
        "native, one sample": lambda batch: dataset.batch(batch[:1]),
        "native, from arrays of samples": lambda batch: collate([rows[sample] for sample in batch]),
        "native, from 8 short lists": lambda _: collate(lists),
    }


def median_us(pad, batches):
    batches = itertools.cycle(batches)
    times = []
    for _ in range(133):
        batch = next(batches)
        start = time.perf_counter()
        pad(batch)
        times.append(time.perf_counter() - start)
    return statistics.median(times[5:]) * 1e6


def main(before, after):
    corpus = Corpus()
    sides = [cases(load(root), corpus) for root in (before, after)]
    print("| | batches | before, us | after, us | after / before (quartiles) |\n|---|---:|---:|---:|---:|")
    for name in sides[0]:
        for n_batches in (1, 64):
            batches = corpus.batches[:n_batches]
            for batch in batches:
                first, second = (side[name](batch) for side in sides)
                assert first.keys() == second.keys()
                assert all(torch.equal(first[key], second[key]) for key in first)
            rounds = []
            for i in range(15):
                order = sides if i % 2 else sides[::-1]
                times = [median_us(side[name], batches) for side in order]
                rounds.append(times if i % 2 else times[::-1])
            low, ratio, high = statistics.quantiles([after / before for before, after in rounds], n=4)
            medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
            print(
                f"| {name} | {n_batches} | {medians[0]:.1f} | {medians[1]:.1f} | {ratio:.3f} ({low:.3f}-{high:.3f}) |"
            )


if __name__ == "__main__":
    main(*sys.argv[1:3])
