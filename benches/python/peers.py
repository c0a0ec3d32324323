"""What others do for the same job, each as its users would run it at its best: from lengths to the batches of an epoch.

Where a peer's package installs, it is called. fairseq is not: its sdist builds with Cython and does not install here,
so its algorithm stands here in Numba. Every candidate returns what it naturally makes; `check` turns that into
(indices, offsets) outside of the time measured, proves it right and gives its padding ratio.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bucketshuffle.cli.bench import in_numpy, in_python

DFLASH_BOUNDARIES = (0, 512, 1024, 2048, 3072, 4096, 8192)
TOKEN_BUDGET = 131_072

Flat = tuple[np.ndarray, np.ndarray]  # indices [n], offsets [n_batches + 1]


def flat_from_lists(batches: list[Any]) -> Flat:
    offsets = np.concatenate([[0], np.cumsum([len(batch) for batch in batches])])
    return np.concatenate([np.asarray(batch, np.int64) for batch in batches]), offsets


def flat_from_fixed_size(indices: Any, size: int) -> Flat:
    indices = np.asarray(indices)
    return indices, np.append(np.arange(0, len(indices), size), len(indices))


@dataclass(frozen=True)
class Candidate:
    """One way to plan an epoch.

    `plan` is timed: it takes what `prepare(lengths)` made, untimed, in the form that suits this candidate, and a seed.
    `batches` makes (indices, offsets) of its result. `leaves_out` says what it does not do of what the others do.
    """

    name: str
    leaves_out: str
    plan: Callable[[Any, int], Any]
    batches: Callable[[Any], Flat] | None
    prepare: Callable[[np.ndarray], Any] = field(default=lambda lengths: lengths)
    keeps_budget: bool = True
    needs: str = ""
    slow: bool = False  # a second or more at 902,087: fewer rounds, and left out at 10 M

    def missing(self) -> bool:
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None


# Plain Python: the write-up's build_batches as a good engineer writes it.


def plain_python(lengths: list[int], seed: int) -> list[list[int]]:
    return in_python(lengths, DFLASH_BOUNDARIES, TOKEN_BUDGET, seed)


# NumPy. Random keys are sorted instead of shuffling (NumPy 2 sorts 64-bit integers with vector instructions: 5 ms
# against 14 for Generator.shuffle), and the size of the batch that would start at a sample is found for all samples
# at once, which leaves one list access per batch to the interpreter. Walking batch by batch, one maximum each, took
# three times as long.


def best_numpy(lengths: np.ndarray, seed: int) -> Flat:
    rng = np.random.Generator(np.random.SFC64(seed))
    n, n_buckets = len(lengths), len(DFLASH_BOUNDARIES) - 1
    bucket = np.zeros(n, np.uint8)
    for edge in DFLASH_BOUNDARIES[1:-1]:
        bucket += lengths > edge
    # One word: bucket (3 bits), random bits, index. The rare pair with equal random bits stays in order of index.
    index_bits = (n - 1).bit_length()
    bucket_shift = 60 - index_bits
    keys = rng.integers(0, 1 << bucket_shift, n)
    keys |= bucket.astype(np.int64) << bucket_shift
    keys <<= index_bits
    keys |= np.arange(n)
    keys.sort()
    ends = np.searchsorted(keys, np.arange(1, n_buckets + 1) << 60).tolist()
    keys &= (1 << index_bits) - 1
    indices = keys
    shuffled = lengths.astype(np.uint16)[indices]  # 16-bit maxima are the fastest; all edges fit
    starts = []
    start = 0
    for end, top in zip(ends, DFLASH_BOUNDARIES[1:], strict=True):
        if start < end:
            sizes = batch_size_from_everywhere(shuffled[start:end], top).tolist()
            position = 0
            while position < end - start:
                starts.append(start + position)
                position += sizes[position]
            start = end
    begins = np.array(starts)
    order = rng.permutation(len(begins))
    sizes = np.diff(begins, append=n)[order]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    gather = np.repeat(begins[order] - offsets[:-1], sizes)
    gather += np.arange(n)
    return indices[gather], offsets


def batch_size_from_everywhere(shuffled: np.ndarray, top: int) -> np.ndarray:
    """Size of the greedy batch that would start at each sample of a bucket, were the bucket endless."""
    n = len(shuffled)
    sure = min(TOKEN_BUDGET // top, n)  # so many samples always fit: their maximum by doubling windows
    padded = np.concatenate([shuffled, np.zeros(TOKEN_BUDGET // int(shuffled.min()) + 1, shuffled.dtype)])
    longest, width = padded, 1
    while 2 * width <= sure:
        longest = np.maximum(longest[:-width], longest[width:])
        width *= 2
    longest = np.maximum(longest[:n], longest[sure - width : n + sure - width])
    cap = TOKEN_BUDGET // np.maximum(np.arange(top + 1), 1)
    sizes = np.full(n, sure)
    active = np.flatnonzero(cap.take(longest) > sure)
    longest = longest[active]
    for size in itertools.count(sure):
        if len(active) == 0:
            return sizes
        longest = np.maximum(longest, padded[active + size])
        fits = cap.take(longest) > size
        active, longest = active[fits], longest[fits]
        sizes[active] = size + 1


def usual_numpy(lengths: np.ndarray, seed: int) -> Flat:
    """As most would write it: batch by batch."""
    return flat_from_lists(in_numpy(lengths, DFLASH_BOUNDARIES, TOKEN_BUDGET, seed))


# Numba. Compiled once before the clock starts.


def _numba_tuned() -> Callable[[np.ndarray, int], Flat]:
    import numba

    @numba.njit(inline="always")
    def next_word(s: np.ndarray) -> int:  # xorshift64*: one word of state stays in a register
        x = s[0]
        x ^= x >> np.uint64(12)
        x ^= x << np.uint64(25)
        x ^= x >> np.uint64(27)
        s[0] = x
        return x * np.uint64(0x2545F4914F6CDD1D)

    @numba.njit
    def shuffle(items: np.ndarray, s: np.ndarray) -> None:
        for i in range(len(items) - 1, 0, -1):
            # 32-bit multiply-shift without rejection: biased by less than n / 2^32.
            j = ((next_word(s) >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32)
            items[i], items[j] = items[j], items[i]

    @numba.njit
    def plan(lengths: np.ndarray, edges: np.ndarray, table: np.ndarray, budget: int, seed: int) -> tuple:
        n, n_buckets = len(lengths), len(edges) - 1
        s = np.empty(1, np.uint64)
        s[0] = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
        cursor = np.zeros(n_buckets + 1, np.int64)
        for i in range(n):
            cursor[table[lengths[i]] + 1] += 1
        for b in range(n_buckets):
            cursor[b + 1] += cursor[b]
        # Records of (length, index) in one word, so that greedy packing gathers nothing.
        records = np.empty(n, np.uint64)
        place = cursor[:-1].copy()
        for i in range(n):
            b = table[lengths[i]]
            records[place[b]] = np.uint64(lengths[i]) << np.uint64(32) | np.uint64(i)
            place[b] += 1
        starts = np.empty(n + 1, np.int64)
        n_batches = 0
        for b in range(n_buckets):
            bucket = records[cursor[b] : cursor[b + 1]]
            if len(bucket) == 0:
                continue
            shuffle(bucket, s)
            sure = budget // edges[b + 1]
            position, end = 0, len(bucket)
            while position < end:
                starts[n_batches] = cursor[b] + position
                n_batches += 1
                stop = min(position + sure, end)
                longest = np.uint64(0)
                for p in range(position, stop):
                    longest = max(longest, bucket[p])
                top = np.int64(longest >> np.uint64(32))
                cap = min(position + budget // top, end)
                while stop < cap:
                    length = np.int64(bucket[stop] >> np.uint64(32))
                    if length > top:
                        top = length
                        cap = min(position + budget // top, end)
                        if stop >= cap:
                            break
                    stop += 1
                position = stop
        starts[n_batches] = n
        order = np.arange(n_batches)
        shuffle(order, s)
        indices = np.empty(n, np.int64)
        offsets = np.empty(n_batches + 1, np.int64)
        out = 0
        for k in range(n_batches):
            offsets[k] = out
            for p in range(starts[order[k]], starts[order[k] + 1]):
                indices[out] = records[p] & np.uint64(0xFFFFFFFF)
                out += 1
        offsets[n_batches] = out
        return indices, offsets

    edges = np.array(DFLASH_BOUNDARIES, np.int64)
    table = np.concatenate([[0], np.repeat(np.arange(len(edges) - 1), np.diff(edges))]).astype(np.uint8)
    return lambda lengths, seed: plan(lengths, edges, table, TOKEN_BUDGET, seed)


def _numba_first_written() -> Callable[[np.ndarray, int], Flat]:
    import numba

    @numba.njit
    def plan(lengths: np.ndarray, edges: np.ndarray, budget: int, seed: int) -> tuple:
        np.random.seed(seed)  # noqa: NPY002 (what Numba knows)
        n, n_buckets = len(lengths), len(edges) - 1
        bucket = np.empty(n, np.int64)
        counts = np.zeros(n_buckets, np.int64)
        for i in range(n):
            b = 0
            while lengths[i] > edges[b + 1]:
                b += 1
            bucket[i] = b
            counts[b] += 1
        starts = np.zeros(n_buckets + 1, np.int64)
        starts[1:] = np.cumsum(counts)
        place = starts[:-1].copy()
        members = np.empty(n, np.int64)
        for i in range(n):
            members[place[bucket[i]]] = i
            place[bucket[i]] += 1
        batch_starts = np.empty(n + 1, np.int64)
        n_batches = 0
        for b in range(n_buckets):
            np.random.shuffle(members[starts[b] : starts[b + 1]])  # noqa: NPY002
            size, longest = 0, 0
            for p in range(starts[b], starts[b + 1]):
                length = lengths[members[p]]
                longest = max(longest, length)
                if size == 0 or (size + 1) * longest > budget:
                    batch_starts[n_batches] = p
                    n_batches += 1
                    size, longest = 0, length
                size += 1
        batch_starts[n_batches] = n
        order = np.random.permutation(n_batches)  # noqa: NPY002
        indices = np.empty(n, np.int64)
        offsets = np.zeros(n_batches + 1, np.int64)
        for k in range(n_batches):
            batch = members[batch_starts[order[k]] : batch_starts[order[k] + 1]]
            offsets[k + 1] = offsets[k] + len(batch)
            indices[offsets[k] : offsets[k + 1]] = batch
        return indices, offsets

    edges = np.array(DFLASH_BOUNDARIES, np.int64)
    return lambda lengths, seed: plan(lengths, edges, TOKEN_BUDGET, seed)


# fairseq: a random permutation, a stable sort by length, greedy batches whose size is a multiple of 8, shuffled.
# After facebookresearch/fairseq@5856cd1 fairseq/data/data_utils_fast.pyx `batch_by_size_vec` (MIT) and
# fairseq/data/language_pair_dataset.py `ordered_indices`.


def _fairseq() -> Callable[[np.ndarray, int], list[np.ndarray]]:
    import numba

    @numba.njit
    def batch_ends(n_tokens: np.ndarray, max_tokens: int, multiple: int) -> np.ndarray:
        ends = np.zeros(len(n_tokens), np.int32)
        n_batches = start = 0
        batch_longest = tail_longest = 0
        for position in range(len(n_tokens)):
            tail_longest = max(tail_longest, n_tokens[position])
            longest = max(batch_longest, tail_longest)
            size = position + 1 - start
            overflow = size * longest > max_tokens
            if overflow:
                if tail_longest * (position + 1 - ends[n_batches]) > max_tokens:
                    n_batches += 1
                    ends[n_batches] = position
                    tail_longest = n_tokens[position]
                start = ends[n_batches]
                n_batches += 1
                longest = tail_longest
            if overflow or size < multiple or size % multiple == 0:
                ends[n_batches] = position + 1
                batch_longest = longest
                tail_longest = 0
        if ends[n_batches] != len(n_tokens):
            n_batches += 1
        return ends[:n_batches]

    def plan(lengths: np.ndarray, seed: int) -> list[np.ndarray]:
        rng = np.random.RandomState(seed)
        indices = rng.permutation(len(lengths)).astype(np.int64)
        indices = indices[np.argsort(lengths[indices], kind="mergesort")]
        batches = np.split(indices, batch_ends(lengths[indices], TOKEN_BUDGET, 8))
        rng.shuffle(batches)
        return batches

    return plan


# Packages.


def _transformers(lengths: list[int], seed: int) -> list[int]:
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator().manual_seed(seed)
    return list(LengthGroupedSampler(TRANSFORMERS_BATCH_SIZE, lengths=lengths, generator=generator))


TRANSFORMERS_BATCH_SIZE = 64  # TOKEN_BUDGET over the mean length of dflash902k


def _seqpacker(strategy: str) -> Callable[[np.ndarray, int], Flat]:
    def plan(lengths: np.ndarray, seed: int) -> Flat:
        import seqpacker

        return seqpacker.Packer(TOKEN_BUDGET, strategy).pack_flat(lengths)  # type: ignore[no-any-return]

    return plan


def flat_from_seqpacker(result: Flat) -> Flat:
    indices, inner = result
    return indices, np.concatenate([[0], inner, [len(indices)]])


def _torch_randperm(n: int, seed: int) -> Any:
    import torch

    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def _permutation(n: int, seed: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).permutation(n)


def _soft_keys(lengths: np.ndarray) -> np.ndarray:
    """What a soft plan sorts by, for samples that stray as far as the sixteenth part of their length in the mean."""
    noise = np.random.Generator(np.random.PCG64(0)).exponential(lengths / 16)
    return (lengths + noise).astype(np.int32)


def _argsort(keys: np.ndarray, _seed: int) -> np.ndarray:
    return np.argsort(keys)


def _lazily(make: Callable[[], Callable[[np.ndarray, int], Any]]) -> Callable[[Any, int], Any]:
    """Import and compile at the first call, which is the one that checks the result and is not timed."""
    made: list[Callable[[np.ndarray, int], Any]] = []

    def plan(lengths: np.ndarray, seed: int) -> Any:
        if not made:
            made.append(make())
        return made[0](lengths, seed)

    return plan


def as_int64(lengths: np.ndarray) -> np.ndarray:
    return lengths.astype(np.int64)


def identity(result: Flat) -> Flat:
    return result


PEERS = [
    Candidate("Numba, tuned by hand", "compile time, checks", _lazily(_numba_tuned), identity, needs="numba"),
    Candidate(
        "Numba, as first written", "compile time, checks", _lazily(_numba_first_written), identity, needs="numba"
    ),
    Candidate("NumPy, best found", "checks; any other edges", best_numpy, identity),
    Candidate("NumPy, as usually written", "checks", usual_numpy, identity),
    Candidate(
        "plain Python", "checks; given a list", plain_python, flat_from_lists, prepare=np.ndarray.tolist, slow=True
    ),
    Candidate("torch.randperm(n) alone", "all but a permutation", _torch_randperm, None, prepare=len, needs="torch"),
    Candidate("Generator.permutation(n) alone", "all but a permutation", _permutation, None, prepare=len),
    Candidate("np.argsort(int32 keys) alone", "all but the sort of a soft plan", _argsort, None, prepare=_soft_keys),
    Candidate(
        "fairseq (algorithm in Numba)",
        "fresh batches: sorts",
        _lazily(_fairseq),
        flat_from_lists,
        as_int64,
        needs="numba",
    ),
    Candidate(
        f"transformers length grouping, batches of {TRANSFORMERS_BATCH_SIZE}",
        "budget; given a list",
        _transformers,
        lambda indices: flat_from_fixed_size(indices, TRANSFORMERS_BATCH_SIZE),
        prepare=np.ndarray.tolist,
        keeps_budget=False,
        needs="transformers",
        slow=True,
    ),
    *(
        Candidate(
            f"seqpacker, {name}",
            "padded budget, shuffle: packs for no padding",
            _seqpacker(strategy),
            flat_from_seqpacker,
            as_int64,
            keeps_budget=False,
            needs="seqpacker",
        )
        for name, strategy in (("next-fit", "nf"), ("default", "obfd"))
    ),
]


def check(candidate: Candidate, result: Any, lengths: np.ndarray) -> float | None:
    """The padding ratio of a result, once proved to hold every sample once and to keep the budget where it says so."""
    if candidate.batches is None:
        return None
    indices, offsets = candidate.batches(result)
    if not (np.bincount(indices, minlength=len(lengths)) == 1).all():
        raise AssertionError(f"{candidate.name}: not every sample once")
    if not (offsets[0] == 0 and offsets[-1] == len(indices) and (np.diff(offsets) > 0).all()):
        raise AssertionError(f"{candidate.name}: offsets are wrong")
    padded = np.maximum.reduceat(lengths[indices].astype(np.int64), offsets[:-1]) * np.diff(offsets)
    if candidate.keeps_budget and padded.max() > TOKEN_BUDGET:
        raise AssertionError(f"{candidate.name}: over the budget")
    return float(padded.sum() / lengths.sum(dtype=np.int64))
