"""What feeding costs: `python benches/python/feed.py`.

One epoch of dflash902k at a time, real tokens, six epochs without a stall between them. A consumer that sleeps for a
step's time shows the share of time that it waits, the gap between epochs included; one that does nothing, the batches
per second beside those of direct native collation on one thread, in turns: of a loop that keeps its last batch, whose
memory stays in the cache, and of one that keeps the last 8, as a feed's queue does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque

import numpy as np
from bucketshuffle.data import dflash902k
from bucketshuffle.torch import BucketBatchSampler, Feed, PreloadedDataset


def data_set(n_samples: int) -> PreloadedDataset:
    lengths = np.random.default_rng(0).choice(dflash902k(), n_samples).astype(np.int64)
    offsets = np.append(0, np.cumsum(lengths))
    return PreloadedDataset(np.arange(offsets[-1], dtype=np.int32) % 30_000, offsets)


def direct(data: PreloadedDataset, sampler: BucketBatchSampler, n_kept: int) -> float:
    """Seconds of native collation alone, a batch; the last `n_kept` batches are kept, as a feed's queue does."""
    batches = sampler.schedule.batches(0)
    samples = np.split(batches.indices, batches.offsets[1:-1])
    kept: deque[object] = deque(maxlen=n_kept)
    start = time.perf_counter()
    for batch in samples:
        kept.append(data.batch(batch))
    return (time.perf_counter() - start) / len(samples)


def fed(data: PreloadedDataset, sampler: BucketBatchSampler, n_threads: int) -> float:
    """Seconds of a loop that does nothing, a batch."""
    feed = Feed(data, sampler, n_threads=n_threads)
    start = time.perf_counter()
    for _ in feed.epochs(6):
        pass
    return (time.perf_counter() - start) / feed.counters().n_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--budget", type=int, default=131_072)
    parser.add_argument("--step-ms", type=float, nargs="*", default=[5.0, 20.0])
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    data = data_set(given.samples)

    def sampler() -> BucketBatchSampler:
        return BucketBatchSampler(data.lengths, token_budget=given.budget)

    print(f"{len(data):,} samples, {int(data.offsets[-1]):,} tokens, {len(sampler()):,} batches an epoch\n")
    for step_ms in given.step_ms:
        feed = Feed(data, sampler())
        for _ in feed.epochs(6):
            time.sleep(step_ms / 1e3)
        counters = feed.counters()
        print(
            f"a step of {step_ms} ms: {counters.n_batches:,} batches of 6 epochs, waited {counters.wait_share:.2%}, "
            f"{counters.n_stalls} stalls"
        )
    for n_kept in (1, 8):
        for n_threads in (1, 2):
            ratios = []
            for _ in range(given.rounds):
                alone, through = direct(data, sampler(), n_kept), fed(data, sampler(), n_threads)
                ratios.append(alone / through)
            low, median, high = statistics.quantiles(ratios, n=4)
            print(
                f"a loop that does nothing, {n_threads} thread(s): {median:.2f} (quartiles {low:.2f}-{high:.2f}) of "
                f"the batches per second of direct collation that keeps {n_kept}, {alone * 1e3:.2f} ms a batch"
            )


if __name__ == "__main__":
    main()
