"""Several lengths a sample: padding, repetition and time, as Markdown: `python benches/python/fields.py FOLDER`.

FOLDER holds the public length sets (`alpaca_eval_outputs_gpt2.npz`, `multi30k_captions_en_words.npz`). Pairs of the
former are the answers of two models to one question, of the latter two captions of one picture; both files hold the
first members before the second ones. Generated pairs have `dflash902k` for both lengths, with rank correlations that
are printed. Beside the plan of the pairs stand the plan of their sums alone, what its batches pad when each field is
padded (an order by the sum), and sorted order. Times are medians of 9 runs with the quartiles, all in one run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from bucketshuffle import EpochPlan, Planner
from bucketshuffle.data import dflash902k
from bucketshuffle.metrics import pairs_repeated
from bucketshuffle.torch import PadCollator, PreloadedDataset

N_QUESTIONS, N_MODELS, N_PICTURES = 805, 46, 29_000


def generated(correlation: float) -> np.ndarray:
    """pairs [902_087, 2], int64: every length of `dflash902k` once in each column."""
    lengths = dflash902k().astype(np.int64)
    rng = np.random.Generator(np.random.PCG64(1))
    # Gaussian ranks of this correlation.
    first = rng.normal(size=len(lengths))
    second = correlation * first + np.sqrt(1 - correlation**2) * rng.normal(size=len(lengths))
    ascending = np.sort(lengths)
    return np.stack([ascending[np.argsort(np.argsort(column))] for column in (first, second)], axis=1)


def sets(folder: Path) -> Iterator[tuple[str, np.ndarray, tuple[int, ...]]]:
    """Name, pairs [n_samples, 2], int64, and budgets."""
    for correlation in (0.0, 0.5, 0.9):
        yield f"generated, {correlation}", generated(correlation), (131_072,)
    answers = np.load(folder / "alpaca_eval_outputs_gpt2.npz")["lengths"].astype(np.int64)
    firsts = [np.arange(model * N_QUESTIONS, (model + 1) * N_QUESTIONS) for model in range(0, N_MODELS - 2, 2)]
    at = np.concatenate(firsts)
    yield "alpaca_eval, two answers", np.stack([answers[at], answers[at + N_QUESTIONS]], axis=1), (8_192, 32_768)
    captions = np.load(folder / "multi30k_captions_en_words.npz")["lengths"].astype(np.int64)
    yield "multi30k, two captions", captions[: 2 * N_PICTURES].reshape(2, -1).T.copy(), (8_192, 32_768)


def padding(plan: EpochPlan, pairs: np.ndarray) -> float:
    """Padded over real tokens where each field is padded to its own longest, minus 1."""
    padded = sum(len(batch) * int(pairs[batch].max(0).sum()) for batch in plan)
    return padded / int(pairs[plan.indices].sum()) - 1


def timed(work: Callable[[], object], n_runs: int = 9) -> str:
    work()
    times = []
    for _ in range(n_runs):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    low, median, high = statistics.quantiles(times, n=4)
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def planning(folder: Path) -> None:
    print("| pairs | correlation | budget | batches | padding | sum alone | ratio | order by sum | sorted | repeated |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, pairs, budgets in sets(folder):
        for token_budget in budgets:

            def planner(lengths: np.ndarray, token_budget: int = token_budget, **options: object) -> Planner:
                return Planner(lengths, token_budget=token_budget, overlong="drop", empty="drop", **options)

            both, by_sum = planner(pairs), planner(pairs.sum(1)).plan(0)
            plan, following = both.plan(0), both.plan(0, 1)
            excess, alone = padding(plan, pairs), by_sum.stats.padding_ratio - 1
            assert abs(excess + 1 - plan.stats.padding_ratio) < 1e-9
            cells = (
                f"{np.corrcoef(pairs.T)[0, 1]:.2f}", f"{token_budget:,}", f"{len(plan):,}", f"{excess:.2%}",
                f"{alone:.2%}", f"{excess / alone:.1f}", f"{padding(by_sum, pairs):.2%}",
                f"{padding(planner(pairs, strategy='sorted').plan(0), pairs):.2%}",
                f"{pairs_repeated(plan, following):.1%}",
            )  # fmt: skip
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def times() -> None:
    pairs = generated(0.5)
    one, both, by_sum = Planner(pairs[:, 0]), Planner(pairs), Planner(pairs.sum(1))
    print("\n| 902,087 samples | plan, ms | build, ms |\n|---|---:|---:|")
    for name, planner, lengths in (
        ("one field", one, pairs[:, 0]), ("the sum alone", by_sum, pairs.sum(1)), ("two fields", both, pairs)
    ):  # fmt: skip
        print(f"| {name} | {timed(lambda: planner.plan(0, 1))} | {timed(lambda: Planner(lengths), 3)} |", flush=True)  # noqa: B023


def collating() -> None:
    """Two groups beside one group of as many tokens, both of batches of 131,072 padded tokens."""
    rng = np.random.Generator(np.random.PCG64(0))
    n_samples, length = 4_096, 1_024
    tokens = rng.integers(1, 32_000, n_samples * length).astype(np.int32)
    offsets = np.arange(n_samples + 1) * length
    one = PreloadedDataset({"input_ids": tokens}, offsets)
    of_groups = {"input_ids": tokens[: len(tokens) // 2], "labels": tokens[len(tokens) // 2 :]}
    halves = {"main": offsets // 2, "target": offsets // 2}
    two = PreloadedDataset(of_groups, halves, collator=PadCollator(groups={"target": ["labels"]}))
    samples = rng.permutation(n_samples)[:128]
    batch = two.batch(samples)
    assert batch["input_ids"].shape == batch["labels"].shape == (128, 512)
    assert torch.equal(batch["labels"][3], two[int(samples[3])]["labels"])
    print("\n| a batch of 131,072 tokens | ms |\n|---|---:|")
    print(f"| one group | {timed(lambda: one.batch(samples), 99)} |")
    print(f"| two groups | {timed(lambda: two.batch(samples), 99)} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    planning(Path(sys.argv[1]))
    times()
    collating()
