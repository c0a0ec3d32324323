"""The order contract once more in slow, obvious Python, written from docs/ORDER.md and never from the Rust.

Plain lists, integers of any size, no NumPy, one loop for each sentence of that page. `pack_epoch` returns what the
package must return; `optimal_total` finds by trying every partition what `src/boundaries.rs` finds by dynamic
programming.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from math import prod

WORD = 2**64
SHUFFLE, SPLIT, STRATA, WINDOW, RANKS = 1, 2, 3, 4, 5  # stages, each with random streams of its own


# Random streams.


def mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 % WORD
    x ^= x >> 27
    x = x * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def splitmix64(state: int) -> Iterator[int]:
    while True:
        state = (state + 0x9E3779B97F4A7C15) % WORD
        yield mix(state)


def rotate_left(x: int, k: int) -> int:
    return (x << k | x >> (64 - k)) % WORD


class Xoshiro256PlusPlus:
    """Blackman and Vigna's xoshiro256++ 1.0, https://prng.di.unimi.it/xoshiro256plusplus.c."""

    def __init__(self, state: Iterable[int]) -> None:
        self.s = list(state)

    def next(self) -> int:
        s = self.s
        out = (rotate_left((s[0] + s[3]) % WORD, 23) + s[0]) % WORD
        t = s[1] << 17
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] = (s[2] ^ t) % WORD
        s[3] = rotate_left(s[3], 45)
        return out


def stream(seed: int, epoch: int, stage: int, index: int) -> Xoshiro256PlusPlus:
    h = 0
    for word in (seed, epoch, stage, index):
        h = mix(((h ^ word) + 0x9E3779B97F4A7C15) % WORD)
    words = splitmix64(h)
    return Xoshiro256PlusPlus(next(words) for _ in range(4))


def draws_per_word(i: int) -> int:
    if i <= 6:
        return 1
    for k, limit in ((6, 2**9), (5, 2**11), (4, 2**14), (3, 2**19)):
        if i <= limit:
            return k
    return 2


def shuffle(items: list, g: Xoshiro256PlusPlus) -> None:
    if len(items) <= 2**20:
        fisher_yates(items, g)
        return
    parts: list[list] = [[] for _ in range(256)]
    for m, item in enumerate(items):
        if m % 8 == 0:
            word = g.next()
        parts[word >> 8 * (m % 8) & 255].append(item)
    for part in parts:
        fisher_yates(part, g)
    items[:] = [item for part in parts for item in part]


def fisher_yates(items: list, g: Xoshiro256PlusPlus) -> None:
    i = len(items)
    while i > 1:
        k = draws_per_word(i)
        product = prod(i - t for t in range(k))
        while True:
            x = g.next()
            j = []
            for t in range(k):
                wide = x * (i - t)
                j.append(wide // WORD)
                x = wide % WORD
            if x >= WORD % product:
                break
        for t in range(k):
            items[i - 1 - t], items[j[t]] = items[j[t]], items[i - 1 - t]
        i -= k


# Costs.


@dataclass(frozen=True)
class Cost:
    """What a batch costs, and how many samples it may hold; the cost of one sample saturates at 2^64 - 1."""

    token_budget: int = 131_072
    max_batch_size: int | None = None
    pad_to_multiple_of: int = 1
    per_sample: int = 0
    quadratic_length: int | None = None

    def padded(self, length: int) -> int:
        return -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def sample(self, length: int) -> int:
        padded = self.padded(length)
        attention = 0 if self.quadratic_length is None else -(-(padded**2) // self.quadratic_length)
        return min(self.per_sample + padded + attention, WORD - 1)

    def overlong(self, length: int) -> bool:
        return self.sample(length) > self.token_budget

    def cap(self, longest: int) -> int:
        by_budget = self.token_budget // self.sample(longest)
        return by_budget if self.max_batch_size is None else min(by_budget, self.max_batch_size)


# Boundaries, by trying everything.


def partitions(n: int, k: int) -> Iterator[list[tuple[int, int]]]:
    """Every way to cut n things in a row into k runs, each as (first, one past the last)."""
    for cuts in combinations(range(1, n), k - 1):
        edges = [0, *cuts, n]
        yield list(pairwise(edges))


def partition_total(lengths: Iterable[int], boundaries: Sequence[int], cost: Cost) -> int:
    """Sum over buckets of n_i * padded(longest of bucket i): what boundaries are judged by."""
    buckets: dict[int, list[int]] = {}
    for length in lengths:
        buckets.setdefault(bisect_left(boundaries, length), []).append(length)
    return sum(len(bucket) * cost.padded(max(bucket)) for bucket in buckets.values())


def optimal_total(
    lengths: Sequence[int], k: int, cost: Cost, allowed: Callable[[list[int]], bool] = lambda bucket: True
) -> int | None:
    """The least total of exactly k buckets that are all allowed; None where no partition is. Tries every partition."""
    by_padded: dict[int, list[int]] = {}
    for length in sorted(lengths):
        by_padded.setdefault(cost.padded(length), []).append(length)
    groups = list(by_padded.values())
    best = None
    for partition in partitions(len(groups), k):
        buckets = [list(chain(*groups[start:end])) for start, end in partition]
        if all(allowed(bucket) for bucket in buckets):
            total = sum(len(bucket) * cost.padded(bucket[-1]) for bucket in buckets)
            best = total if best is None else min(best, total)
    return best


def optimal_totals(
    lengths: Sequence[int], max_k: int, cost: Cost, allowed: Callable[[int, int], bool] = lambda n, longest: True
) -> list[int | None]:
    """`optimal_total` for k = 1 .. max_k by the textbook recursion, O(k V^2): for histograms too long to enumerate."""
    counts = Counter(cost.padded(length) for length in lengths)
    longest = {cost.padded(length): length for length in sorted(lengths)}
    values = sorted(counts)
    before = [0]
    for value in values:
        before.append(before[-1] + counts[value])
    best: list[int | None] = [0] + [None] * len(values)  # best[e]: the first e values in k buckets
    totals = []
    for _ in range(max_k):
        row: list[int | None] = [None] * (len(values) + 1)
        for end in range(1, len(values) + 1):
            top = values[end - 1]
            for start in range(end):
                n = before[end] - before[start]
                if best[start] is not None and allowed(n, longest[top]):
                    total = best[start] + n * top
                    row[end] = total if row[end] is None else min(row[end], total)
        best = row
        totals.append(best[-1])
    return totals


def auto_k_and_total(
    lengths: Sequence[int], cost: Cost, padding_target: float = 0.01, min_batches_per_bucket: int = 8
) -> tuple[int, int]:
    """Number of buckets and total of `boundaries="auto"`: the fewest that reach the target, else the best of all."""

    def floor_kept(n: int, longest: int) -> bool:
        return n >= min_batches_per_bucket * cost.cap(longest)

    real = sum(cost.padded(length) for length in lengths)
    n_distinct = len({cost.padded(length) for length in lengths})
    above_floor = dict(enumerate(optimal_totals(lengths, n_distinct, cost, floor_kept), start=1))
    above_floor[1] = optimal_totals(lengths, 1, cost)[0]  # one bucket is always allowed
    totals = {k: total for k, total in above_floor.items() if total is not None}
    for k in sorted(totals):
        if totals[k] <= (1 + padding_target) * real:
            return k, totals[k]
    return min(((k, total) for k, total in totals.items()), key=lambda pair: (pair[1], pair[0]))


# The stages.


@dataclass
class Batch:
    """Samples in order; `bucket` is -1 for an over-long sample that was kept."""

    samples: list[int]
    longest: int
    bucket: int
    closed_by: str = ""


@dataclass
class Plan:
    """What the package must return, as lists."""

    batches: list[list[int]]
    padded_lengths: list[int]
    buckets: list[int]
    dropped: list[int]
    n_splits: int
    closed_by_budget: int
    closed_by_max_batch_size: int
    closed_by_bucket_end: int


def pack(order: list[int], lengths: Sequence[int], bucket: int, cost: Cost) -> list[Batch]:
    batches: list[Batch] = []
    samples: list[int] = []
    longest = 0
    for i in order:
        n, longest_with_i = len(samples) + 1, max(longest, lengths[i])
        if samples and n > cost.cap(longest_with_i):
            over_budget = n * cost.sample(longest_with_i) > cost.token_budget
            batches.append(Batch(samples, longest, bucket, "budget" if over_budget else "max_batch_size"))
            samples, longest = [], 0
        samples.append(i)
        longest = max(longest, lengths[i])
    if samples:
        batches.append(Batch(samples, longest, bucket, "bucket_end"))
    return batches


def split(batches: list[Batch], lengths: Sequence[int], n_batches: int, seed: int, epoch: int) -> list[Batch]:
    """Batches split in place, round by round, until there are n_batches."""
    r = 0
    while len(batches) < n_batches:
        positions = [p for p, batch in enumerate(batches) if len(batch.samples) >= 2]
        if not positions:
            raise ValueError("more batches asked for than there are samples")
        shuffle(positions, stream(seed, epoch, SPLIT, r))
        chosen = set(positions[: n_batches - len(batches)])
        out = []
        for p, batch in enumerate(batches):
            head = len(batch.samples) - len(batch.samples) // 2 if p in chosen else len(batch.samples)
            halves = [half for half in (batch.samples[:head], batch.samples[head:]) if half]
            out += [Batch(half, max(lengths[i] for i in half), batch.bucket) for half in halves]
        batches = out
        r += 1
    return batches


def order(batches: list[Batch], cost: Cost, window: int, align_ranks: int, seed: int, epoch: int) -> list[Batch]:
    """Batches in the order in which training meets them."""
    n_ranks, n_strata = align_ranks, window // align_ranks
    if window > 1:
        # A stable sort: equal keys stay in pack order.
        batches = sorted(batches, key=lambda b: (cost.padded(b.longest), len(b.samples) * cost.sample(b.longest)))
    n_short = len(batches) % n_ranks
    short_step = batches[:n_short]
    steps = [batches[p : p + n_ranks] for p in range(n_short, len(batches), n_ranks)]
    n_steps = len(steps)

    strata = [steps[a * n_steps // n_strata : (a + 1) * n_steps // n_strata] for a in range(n_strata)]
    g = stream(seed, epoch, STRATA, 0)
    for stratum in strata:
        shuffle(stratum, g)

    windows = []
    g = stream(seed, epoch, WINDOW, 0)
    for t in range(max(len(stratum) for stratum in strata)):
        steps_of_window = [stratum[t] for stratum in strata if t < len(stratum)]
        shuffle(steps_of_window, g)
        windows.append(steps_of_window)

    final = []
    g = stream(seed, epoch, RANKS, 0)
    for step in [*(step for steps_of_window in windows for step in steps_of_window), short_step]:
        shuffle(step, g)
        final.extend(step)
    return final


def pack_epoch(
    lengths: Sequence[int],
    seed: int,
    *,
    boundaries: Sequence[int],
    epoch: int = 0,
    cost: Cost = Cost(),
    strategy: str = "bucketed",
    window: int = 1,
    align_ranks: int = 1,
    constant_count: bool = False,
    overlong: str = "error",
    empty: str = "error",
) -> Plan:
    """The plan of one epoch. `boundaries`: ascending edges; "sorted" and "random" have one bucket and ignore them."""
    # 1. Admission.
    admitted, kept, dropped = [], [], []
    for i, length in enumerate(lengths):
        if length == 0:
            if empty == "error":
                raise ValueError(f"lengths[{i}] = 0")
            dropped.append(i)
        elif cost.overlong(length):
            if overlong == "error":
                raise ValueError(f"lengths[{i}] = {length}: over-long")
            (kept if overlong == "keep" else dropped).append(i)
        else:
            admitted.append(i)

    # 2. Bucket.
    if strategy == "bucketed":
        buckets: list[list[int]] = [[] for _ in boundaries[1:]]
        for i in admitted:
            if not boundaries[0] < lengths[i] <= boundaries[-1]:
                raise ValueError(f"lengths[{i}] = {lengths[i]} is outside of the boundaries")
            b = next(b for b in range(len(buckets)) if boundaries[b] < lengths[i] <= boundaries[b + 1])
            buckets[b].append(i)
    else:
        buckets = [admitted]

    # 3. Shuffle, 4. pack. The most batches that greedy packing can need is counted on the way.
    batches: list[Batch] = []
    most = len(kept)
    for b, bucket in enumerate(buckets):
        if not bucket:
            continue
        if strategy == "sorted":
            bucket.sort(key=lambda i: (lengths[i], i))
        else:
            shuffle(bucket, stream(seed, epoch, SHUFFLE, b))
        packed = pack(bucket, lengths, b, cost)
        batches += packed
        most += len(packed) if strategy == "sorted" else -(-len(bucket) // cost.cap(max(lengths[i] for i in bucket)))
    batches += [Batch([i], lengths[i], -1, "budget") for i in kept]

    # 5. Even out.
    n_packed = len(batches)
    closed_by = Counter(batch.closed_by for batch in batches)
    if constant_count:
        batches = split(batches, lengths, -(-most // window) * window, seed, epoch)
    n_splits = len(batches) - n_packed

    # 6. Order.
    batches = order(batches, cost, window, align_ranks, seed, epoch)
    return Plan(
        batches=[b.samples for b in batches],
        padded_lengths=[cost.padded(b.longest) for b in batches],
        buckets=[b.bucket for b in batches],
        dropped=dropped,
        n_splits=n_splits,
        closed_by_budget=closed_by["budget"],
        closed_by_max_batch_size=closed_by["max_batch_size"],
        closed_by_bucket_end=closed_by["bucket_end"],
    )
