"""The order contract once more in slow, obvious Python, written from docs/ORDER.md and never from the Rust.

Plain lists, integers of any size, no NumPy, one loop for each sentence of that page. `pack_epoch` returns what the
package must return; `optimal_total` finds by trying every partition what `src/boundaries.rs` finds by dynamic
programming, and `soft_buckets` by trying every start of every bucket what `src/soft.rs` finds with a queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate, chain, combinations, pairwise
from math import ceil, inf, prod

WORD = 2**64
SHUFFLE, SPLIT, STRATA, WINDOW, RANKS, NOISE, REST = 1, 2, 3, 4, 5, 6, 7  # stages, each with streams of its own
N_PILOTS, N_ATTEMPTS = 3, 8


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


@dataclass(frozen=True)
class Draw:
    """Whose random streams are meant."""

    seed: int
    epoch: int
    attempt: int = 0
    pilot: int = 0

    def stream(self, stage: int, index: int = 0) -> Xoshiro256PlusPlus:
        return stream(self.seed, self.epoch, stage + 2**8 * self.attempt + 2**16 * self.pilot, index)


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


def below(n: int, g: Xoshiro256PlusPlus) -> int:
    while True:
        wide = g.next() * n
        if wide % WORD >= WORD % n:
            return wide // WORD


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


def deviates() -> list[int]:
    with localcontext() as context:
        context.prec = 40
        exact = [-(1 - Decimal(2 * u + 1) / 8192).ln() * 2**28 for u in range(4096)]
        return [int(value.to_integral_value()) for value in exact]


E = deviates()


# Costs.


@dataclass(frozen=True)
class Cost:
    """What a batch costs, and how many samples it may hold; the cost of one sample saturates at 2^64 - 1."""

    token_budget: int = 131_072
    max_batch_size: int | None = None
    pad_to_multiple_of: int = 1
    padded_lengths: tuple[int, ...] = ()
    per_sample: int = 0
    quadratic_length: int | None = None

    def padded(self, length: int) -> int:
        for padded in self.padded_lengths:
            if padded >= length:
                return padded
        return -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def sample(self, length: int) -> int:
        padded = self.padded(length)
        attention = 0 if self.quadratic_length is None else -(-(padded**2) // self.quadratic_length)
        return min(self.per_sample + padded + attention, WORD - 1)

    def overlong(self, length: int) -> bool:
        beyond = bool(self.padded_lengths) and length > self.padded_lengths[-1]
        return beyond or self.sample(length) > self.token_budget

    def cap(self, longest: int) -> int:
        by_budget = self.token_budget // self.sample(longest)
        return by_budget if self.max_batch_size is None else min(by_budget, self.max_batch_size)


# Several fields.


@dataclass
class Several:
    """The lengths of samples in several fields, and what they cost together."""

    rows: Sequence[Sequence[int]]
    costs: Sequence[Cost]
    """How each field is padded; budget, size and `per_sample` are not its own."""
    weights: Sequence[Fraction]
    combine: str = "sum"
    bands: tuple[int, int] | None = None
    """The field, and the batches of a band."""

    def longest(self, samples: Iterable[int]) -> list[int]:
        return [max(of_field) for of_field in zip(*(self.rows[i] for i in samples), strict=True)]

    def together(self, longest: Sequence[int]) -> int:
        costs = [
            ceil(weight * cost.sample(length))
            for weight, cost, length in zip(self.weights, self.costs, longest, strict=True)
        ]
        return min(sum(costs) if self.combine == "sum" else max(costs), WORD - 1)

    def combined_lengths(self, cost: Cost) -> list[int]:
        combined = []
        for row in self.rows:
            length = self.together(row)
            lists = [of_field.padded_lengths for of_field in self.costs]
            if not any(row):
                length = 0
            elif any(known and length > known[-1] for known, length in zip(lists, row, strict=True)):
                length = max(length, max(cost.token_budget - cost.per_sample, 0) + 1)
            combined.append(length)
        return combined

    def sort_in_bands(self, order: list[int], cost: Cost) -> list[int]:
        if self.bands is None:
            return order
        field, n_batches = self.bands
        n_bits = max(n_batches.bit_length() - 1, 3) - 2
        out: list[int] = []
        sign = 1
        while order:
            size = n_batches * cost.cap(self.together(self.rows[order[0]]))
            out += sorted(order[:size], key=lambda i: sign * leading(self.rows[i][field], n_bits))
            order = order[size:]
            sign = -sign
        return out

    def choose_bands(self, parts: list[list[int]], cost: Cost) -> None:
        def total() -> tuple[int, int]:
            batches = [b for part in parts for b in pack(part, [], 0, cost, self)]
            return sum(len(b.samples) * cost.sample(b.longest) for b in batches), len(batches)

        self.bands = None
        least, n_batches = total()
        best = None
        for f in range(1, len(self.costs)):
            for width in (2, 4, 8, 16, 32, 64, 128, 256):
                self.bands = f, width
                if width <= n_batches // max(len(parts), 1) // 2 and (cost_in_bands := total()[0]) < least:
                    best, least = self.bands, cost_in_bands
        self.bands = best


MAX_TRIED, N_PARTS = 2**17, 8


def parts_of(order: list[int]) -> list[list[int]]:
    if len(order) <= MAX_TRIED:
        return [order]
    starts = [i * len(order) // N_PARTS for i in range(N_PARTS)]
    return [order[start : start + MAX_TRIED // N_PARTS] for start in starts]


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


def optimal_total(lengths: Sequence[int], k: int, cost: Cost) -> int:
    """The least total of exactly k buckets. Tries every partition."""
    by_padded: dict[int, list[int]] = {}
    for length in sorted(lengths):
        by_padded.setdefault(cost.padded(length), []).append(length)
    groups = list(by_padded.values())
    buckets = ([list(chain(*groups[start:end])) for start, end in cut] for cut in partitions(len(groups), k))
    return min(sum(len(bucket) * cost.padded(bucket[-1]) for bucket in cut) for cut in buckets)


def optimal_totals(lengths: Sequence[int], max_k: int, cost: Cost) -> list[int]:
    """`optimal_total` for k = 1 .. max_k by the textbook recursion, O(k V^2): for histograms too long to enumerate."""
    counts = Counter(cost.padded(length) for length in lengths)
    values = sorted(counts)
    before = [0]
    for value in values:
        before.append(before[-1] + counts[value])
    best: list[float] = [0] + [inf] * len(values)  # best[e]: the first e values in k buckets
    totals = []
    for _ in range(max_k):
        row = [inf]
        for end in range(1, len(values) + 1):
            top = values[end - 1]
            row.append(min(best[start] + (before[end] - before[start]) * top for start in range(end)))
        best = row
        totals.append(int(best[-1]))
    return totals


# Soft buckets.


@dataclass
class Class:
    """The samples of one padded length."""

    padded: int
    longest: int
    n: int
    mean: int = 0


@dataclass
class Soft:
    """The samples by (length, index), what strays how far, and the edges of the buckets."""

    samples: list[int]
    classes: list[Class] = field(default_factory=list)
    edges: list[int] = field(default_factory=lambda: [0, 0])


def soft_classes(samples: list[int], lengths: Sequence[int], cost: Cost) -> list[Class]:
    classes: list[Class] = []
    for i in samples:
        padded = cost.padded(lengths[i])
        if not classes or classes[-1].padded != padded:
            classes.append(Class(padded, lengths[i], 0))
        classes[-1].longest = lengths[i]
        classes[-1].n += 1
    return classes


def soft_buckets(classes: list[Class], cost: Cost, repeat_weight: float) -> list[tuple[int, int]]:
    """First class and one past the last of every bucket."""
    least = pairs = 0.0
    for c in classes:
        least += float(c.n) * float(c.padded)
        pairs += float(c.n) * (float(cost.cap(c.longest)) - 1.0)
    price = repeat_weight * least / pairs if pairs else 0.0
    before = [0, *accumulate(c.n for c in classes)]
    best, starts = [0], [0]
    for end in range(1, len(classes) + 1):
        last = classes[end - 1]
        s = float(cost.cap(last.longest))
        repeats = int(price * s * (s - 1.0))
        totals = [best[start] + (before[end] - before[start]) * last.padded + repeats for start in range(end)]
        best.append(min(totals))
        starts.append(totals.index(best[-1]))
    buckets = []
    end = len(classes)
    while end > 0:
        buckets.append((starts[end], end))
        end = starts[end]
    return buckets[::-1]


def set_means(classes: list[Class], buckets: list[tuple[int, int]]) -> None:
    points = []  # twice the middle of each bucket, and the mean there
    for start, end in buckets:
        first, last = classes[start].padded, classes[end - 1].padded
        points.append((first + last, min((last - first) * 2**15, 2**62)))
    for c in classes:
        at = 2 * c.padded
        before = [point for point in points if point[0] <= at][-1:]
        after = [point for point in points if point[0] > at][:1]
        if before and after:
            (low_at, low), (high_at, high) = before[0], after[0]
            c.mean = (low * (high_at - at) + high * (at - low_at)) // (high_at - low_at)
        else:
            c.mean = (before or after)[0][1]


def soft(
    samples: list[int],
    lengths: Sequence[int],
    cost: Cost,
    repeat_weight: float,
    padding_target: float | None,
    several: Several | None,
) -> Soft:
    samples = sorted(samples, key=lambda i: (lengths[i], i))
    classes = soft_classes(samples, lengths, cost)
    buckets = soft_buckets(classes, cost, 0.5 if padding_target is not None else repeat_weight)
    set_means(classes, buckets)
    plan = Soft(samples, classes)
    if classes:
        plan.edges = [0, *(classes[end - 1].longest for _, end in buckets)]
    if several is not None:
        several.choose_bands(parts_of(soft_shuffle(plan, Draw(0, 0, pilot=1), N_ATTEMPTS)), cost)
    if padding_target is None:
        return plan

    def padded(noise: int) -> int:
        pilots = [Draw(0, p, pilot=1) for p in range(N_PILOTS)]
        packed = [b for draw in pilots for b in pack(soft_shuffle(plan, draw, noise), lengths, 0, cost, several)]
        return sum(len(b.samples) * cost.padded(b.longest) for b in packed)

    means = [c.mean for c in classes]
    least = padded(0)
    wanted = int(padding_target * float(least))
    scale = 2**10 if wanted else 0
    for round_ in range(4):
        for c, mean in zip(classes, means, strict=True):
            c.mean = min(mean * scale // 2**10, 2**62)
        if round_ < 3:
            excess = max(padded(N_ATTEMPTS) - least, 1)
            scale = min(max(min(scale * wanted // excess, scale * 8), scale // 8), 2**30)
    return plan


def leading(number: int, n_bits: int) -> int:
    d = max(number.bit_length() - n_bits, 0)
    return d * 2 ** (n_bits - 1) + (number >> d)


def cell(key: int) -> int:
    return leading(key, 13)


def soft_shuffle(plan: Soft, draw: Draw, noise: int) -> list[int]:
    """`noise`: eighths of the means."""
    of_class = [c for c in plan.classes for _ in range(c.n)]
    if noise == 0:
        order: list[int] = []
        start = 0
        for i, c in enumerate(plan.classes):
            samples = plan.samples[start : start + c.n]
            shuffle(samples, draw.stream(SHUFFLE, i))
            order += samples
            start += c.n
        return order
    cells: dict[int, list[int]] = {}
    for position, sample in enumerate(plan.samples):
        q = position % 4096
        if q == 0:
            g = draw.stream(NOISE, position // 4096)
        if q % 4 == 0:
            word = g.next()
        u = (word >> 16 * (q % 4)) % 4096
        c = of_class[position]
        key = min(c.padded + ((c.mean * noise // 8) * E[u] >> 44), WORD - 1)
        cells.setdefault(cell(key), []).append(sample)
    order = []
    for number in sorted(cells):
        shuffle(cells[number], draw.stream(SHUFFLE, number))
        order += cells[number]
    return order


# The stages.


@dataclass
class Batch:
    """Samples in order; `bucket` is -1 for an over-long sample that was kept."""

    samples: list[int]
    longest: int
    """Of several fields: the combined length of the longest of each."""
    largest: int
    """Of several fields: the largest combined length."""
    bucket: int
    closed_by: str = ""


@dataclass
class Plan:
    """What the package must return, as lists."""

    batches: list[list[int]]
    padded_lengths: list[int] | list[list[int]]
    buckets: list[int]
    boundaries: list[int]
    dropped: list[int]
    n_splits: int
    closed_by_budget: int
    closed_by_max_batch_size: int
    closed_by_bucket_end: int


def measured(samples: list[int], lengths: Sequence[int], bucket: int, several: Several | None) -> Batch:
    if several is None:
        longest = max(lengths[i] for i in samples)
        return Batch(samples, longest, longest, bucket)
    together = several.together(several.longest(samples))
    return Batch(samples, together, max(several.together(several.rows[i]) for i in samples), bucket)


def pack(
    order: list[int], lengths: Sequence[int], bucket: int, cost: Cost, several: Several | None = None
) -> list[Batch]:
    if several is not None:
        return pack_several(several.sort_in_bands(order, cost), bucket, cost, several)
    batches: list[Batch] = []
    samples: list[int] = []
    longest = 0
    for i in order:
        n, longest_with_i = len(samples) + 1, max(longest, lengths[i])
        if samples and n > cost.cap(longest_with_i):
            over_budget = n * cost.sample(longest_with_i) > cost.token_budget
            batches.append(Batch(samples, longest, longest, bucket, "budget" if over_budget else "max_batch_size"))
            samples, longest = [], 0
        samples.append(i)
        longest = max(longest, lengths[i])
    if samples:
        batches.append(Batch(samples, longest, longest, bucket, "bucket_end"))
    return batches


def pack_several(order: list[int], bucket: int, cost: Cost, several: Several) -> list[Batch]:
    batches: list[Batch] = []
    samples: list[int] = []
    for i in order:
        together = several.together(several.longest([*samples, i]))
        if samples and len(samples) + 1 > cost.cap(together):
            over_budget = (len(samples) + 1) * cost.sample(together) > cost.token_budget
            batches.append(
                replace(measured(samples, [], bucket, several), closed_by="budget" if over_budget else "max_batch_size")
            )
            samples = []
        samples.append(i)
    if samples:
        batches.append(replace(measured(samples, [], bucket, several), closed_by="bucket_end"))
    return batches


def split(
    batches: list[Batch], lengths: Sequence[int], n_batches: int, draw: Draw, several: Several | None = None
) -> list[Batch]:
    """Batches split in place, round by round, until there are n_batches."""
    r = 0
    while len(batches) < n_batches:
        positions = [p for p, batch in enumerate(batches) if len(batch.samples) >= 2]
        if not positions:
            raise ValueError("more batches asked for than there are samples")
        shuffle(positions, draw.stream(SPLIT, r))
        chosen = set(positions[: n_batches - len(batches)])
        out = []
        for p, batch in enumerate(batches):
            if p not in chosen:
                out.append(batch)
                continue
            head = len(batch.samples) - len(batch.samples) // 2
            halves = (batch.samples[:head], batch.samples[head:])
            out += [measured(half, lengths, batch.bucket, several) for half in halves]
        batches = out
        r += 1
    return batches


def take_from_all(items: list, k: int, g: Xoshiro256PlusPlus) -> list:
    n = len(items)
    places = []
    for i in range(k):
        start, end = i * n // k, (i + 1) * n // k
        places.append(start + below(end - start, g))
    taken = [items[place] for place in places]
    for place in reversed(places):
        del items[place]
    return taken


def order(batches: list[Batch], cost: Cost, window: int, align_ranks: int, draw: Draw) -> list[Batch]:
    """Batches in the order in which training meets them."""
    n_ranks, n_strata = align_ranks, window // align_ranks
    batches = list(batches)
    if window > 1:
        # A stable sort: equal keys stay in pack order.
        batches.sort(key=lambda b: (cost.padded(b.longest), len(b.samples) * cost.sample(b.longest)))
    g = draw.stream(REST)
    last_step = take_from_all(batches, len(batches) % n_ranks, g)
    steps = [batches[p : p + n_ranks] for p in range(0, len(batches), n_ranks)]
    last_window = take_from_all(steps, len(steps) % n_strata, g)
    n_windows = len(steps) // n_strata

    strata = [steps[start : start + n_windows] for start in range(0, len(steps), max(n_windows, 1))]
    g = draw.stream(STRATA)
    for stratum in strata:
        shuffle(stratum, g)

    windows = [[stratum[t] for stratum in strata] for t in range(n_windows)] + [last_window]
    g = draw.stream(WINDOW)
    for steps_of_window in windows:
        shuffle(steps_of_window, g)

    final = []
    g = draw.stream(RANKS)
    for step in [*(step for steps_of_window in windows for step in steps_of_window), last_step]:
        shuffle(step, g)
        final.extend(step)
    return final


def pack_epoch(
    lengths: Sequence[int] | Several,
    seed: int,
    *,
    boundaries: str | Sequence[int] = "auto",
    repeat_weight: float = 0.5,
    padding_target: float | None = None,
    epoch: int = 0,
    cost: Cost = Cost(),
    strategy: str = "bucketed",
    window: int = 1,
    align_ranks: int = 1,
    constant_count: bool = False,
    overlong: str = "error",
    empty: str = "error",
    admitted: Sequence[bool] | None = None,
) -> Plan:
    """The plan of one epoch. `boundaries`: "auto" or ascending edges, and `padded_lengths` in `cost` as a list: an
    integer for either is for the caller to replace."""
    several = None
    if isinstance(lengths, Several):
        several, lengths = lengths, lengths.combined_lengths(cost)

    # 1. Admission.
    planned, kept, dropped = [], [], []
    for i, length in enumerate(lengths):
        if admitted is not None and not admitted[i]:
            dropped.append(i)
        elif length == 0:
            if empty == "error":
                raise ValueError(f"lengths[{i}] = 0")
            dropped.append(i)
        elif cost.overlong(length):
            if overlong == "error":
                raise ValueError(f"lengths[{i}] = {length}: over-long")
            (kept if overlong == "keep" else dropped).append(i)
        else:
            planned.append(i)

    # 2. Bucket.
    edges: Sequence[int] = [0, max((lengths[i] for i in planned), default=0)]
    if strategy == "bucketed" and boundaries == "auto":
        soft_plan = soft(planned, lengths, cost, repeat_weight, padding_target, several)
        edges = soft_plan.edges
    elif strategy == "bucketed":
        assert not isinstance(boundaries, str)
        edges = boundaries
        for i in planned:
            if not edges[0] < lengths[i] <= edges[-1]:
                raise ValueError(f"lengths[{i}] = {lengths[i]} is outside of the boundaries")

    def bucket_of(length: int) -> int:
        return next(b for b in range(len(edges) - 1) if edges[b] < length <= edges[b + 1])

    buckets: list[list[int]] = [[] for _ in edges[1:]]
    for i in planned:
        buckets[bucket_of(lengths[i])].append(i)

    in_order = sorted(planned, key=lambda i: (lengths[i], i))
    if several is not None and strategy == "sorted":
        several.choose_bands(parts_of(in_order), cost)
    elif several is not None and strategy == "bucketed" and boundaries != "auto":
        parts = []
        for b, bucket in enumerate(buckets):
            part = list(bucket)
            shuffle(part, Draw(0, 0, pilot=1).stream(SHUFFLE, b))
            parts.append(part[: MAX_TRIED // len(buckets)])
        several.choose_bands(parts, cost)

    # 3. Shuffle, 4. pack.
    def shuffled_and_packed(draw: Draw) -> list[Batch]:
        if strategy == "sorted":
            batches = pack(in_order, lengths, 0, cost, several)
        elif strategy == "bucketed" and boundaries == "auto":
            batches = pack(soft_shuffle(soft_plan, draw, N_ATTEMPTS - draw.attempt), lengths, 0, cost, several)
        else:
            batches = []
            for b, bucket in enumerate(buckets):
                samples = list(bucket)
                shuffle(samples, draw.stream(SHUFFLE, b))
                if draw.attempt == N_ATTEMPTS:
                    samples.sort(key=lambda i: lengths[i])
                batches += pack(samples, lengths, b, cost, several)
        for batch in batches:
            batch.bucket = bucket_of(batch.largest)
        return batches + [replace(measured([i], lengths, -1, several), closed_by="budget") for i in kept]

    # 5. Even out.
    draw = Draw(seed, epoch)
    batches = shuffled_and_packed(draw)
    n_batches = None
    if constant_count:
        counts = [len(shuffled_and_packed(Draw(0, p, pilot=1))) for p in range(N_PILOTS)]
        most = max(counts)
        if min(counts) < most:
            most = min(most + most // 512, len(planned) + len(kept))
        n_batches = -(-most // window) * window
        for attempt in range(1, N_ATTEMPTS + 1):
            if len(batches) <= n_batches:
                break
            last = several is not None and attempt == N_ATTEMPTS
            batches = shuffled_and_packed(Draw(0, 0, pilot=1) if last else replace(draw, attempt=attempt))
    n_packed = len(batches)
    closed_by = Counter(batch.closed_by for batch in batches)
    if n_batches is not None:
        batches = split(batches, lengths, n_batches, draw, several)
        for batch in batches:
            if batch.bucket >= 0:
                batch.bucket = bucket_of(batch.largest)
    n_splits = len(batches) - n_packed

    # 6. Order.
    batches = order(batches, cost, window, align_ranks, draw)
    padded_lengths: list[int] | list[list[int]] = [cost.padded(b.longest) for b in batches]
    if several is not None:
        longest = [several.longest(b.samples) for b in batches]
        padded_lengths = [
            [of_field.padded(length) for of_field, length in zip(several.costs, row, strict=True)] for row in longest
        ]
    return Plan(
        batches=[b.samples for b in batches],
        padded_lengths=padded_lengths,
        buckets=[b.bucket for b in batches],
        boundaries=list(edges),
        dropped=dropped,
        n_splits=n_splits,
        closed_by_budget=closed_by["budget"],
        closed_by_max_batch_size=closed_by["max_batch_size"],
        closed_by_bucket_end=closed_by["bucket_end"],
    )
