"""Padding one batch of about 131,072 tokens, int64 ids and bool mask, and whole loaders that do it.

    pytest benches/python/bench_collate.py --benchmark-columns=median,iqr,rounds --benchmark-sort=mean

Two regimes: one batch again and again, in cache, and 64 batches in turn, as in training, where every row comes from far
away. Each contender is compared with the definition first. The limit reads as many tokens, from one place, and writes
as many bytes as a batch has. Everything runs on one thread: with two, torch's pool waits for its second thread, and a
busy second core makes 16 ms of the 0.3 ms of pad_sequence.
"""

import itertools

import numpy as np
import pytest
import torch
from bucketshuffle.torch import PadCollator, PreloadedDataset
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

TOKEN_BUDGET = 131_072
N_SAMPLES = 20_000


class Corpus:
    """Samples of 65 to 8,191 tokens, and batches of neighbours in length, as a plan with many buckets makes them."""

    def __init__(self):
        # glibc returns freed blocks of a batch's size to the kernel until a larger one was freed, as in any training
        # process before its first batch; until then every contender that makes fresh tensors pays for page faults, 330
        # us per batch here.
        np.empty(31 << 20, np.uint8)
        rng = np.random.default_rng(0)
        self.lengths = np.clip(rng.lognormal(7.2, 0.8, N_SAMPLES), 65, 8191).astype(np.int64)
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        self.tokens = rng.integers(1, 32_000, self.offsets[-1]).astype(np.int32)
        order = np.argsort(self.lengths, kind="stable")
        batches, end = [], len(order)
        while end:
            start = max(0, end - TOKEN_BUDGET // self.lengths[order[end - 1]])
            batches.append(order[start:end].tolist())
            end = start
        # The longest and the shortest samples make unusual batches; these are the middle ones.
        self.batches = [batches[i] for i in rng.permutation(np.arange(len(batches) // 4, 3 * len(batches) // 4))[:64]]

    def row(self, sample):
        return self.tokens[self.offsets[sample] : self.offsets[sample + 1]]

    def padding_ratio(self):
        padded = sum(len(batch) * self.lengths[batch].max() for batch in self.batches)
        return padded / sum(self.lengths[batch].sum() for batch in self.batches)


@pytest.fixture(scope="module")
def corpus():
    return Corpus()


def define(corpus, batch):
    """The definition: ids and mask, row by row."""
    width = int(corpus.lengths[batch].max())
    ids = np.zeros((len(batch), width), np.int64)
    mask = np.zeros((len(batch), width), bool)
    for i, sample in enumerate(batch):
        ids[i, : corpus.lengths[sample]] = corpus.row(sample)
        mask[i, : corpus.lengths[sample]] = True
    return ids, mask


def rows_of(corpus, batch):
    return [torch.from_numpy(corpus.row(sample)) for sample in batch]


def native(corpus):
    dataset = PreloadedDataset(corpus.tokens, corpus.offsets)
    return lambda batch: tuple(dataset.batch(batch).values())


def native_out(corpus):
    dataset = PreloadedDataset(corpus.tokens, corpus.offsets)
    out = {
        "input_ids": torch.empty(TOKEN_BUDGET, dtype=torch.int64),
        "attention_mask": torch.empty(TOKEN_BUDGET, dtype=torch.bool),
    }
    return lambda batch: tuple(dataset.batch(batch, out=out).values())


def items(corpus):
    rows = [{"input_ids": corpus.row(sample)} for sample in range(N_SAMPLES)]
    collate = PadCollator()
    return lambda batch: tuple(collate([rows[sample] for sample in batch]).values())


def pad_sequence_best(corpus):
    """Tensors made beforehand, already int64; a mask from lengths made beforehand."""
    rows = [torch.from_numpy(corpus.row(sample).astype(np.int64)) for sample in range(N_SAMPLES)]
    lengths = torch.from_numpy(corpus.lengths)

    def pad(batch):
        ids = pad_sequence([rows[sample] for sample in batch], batch_first=True)
        return ids, torch.arange(ids.shape[1]) < lengths[batch, None]

    return pad


def pad_sequence_usual(corpus):
    """Slice, widen, pad, compare with the padding token."""

    def pad(batch):
        ids = pad_sequence([row.long() for row in rows_of(corpus, batch)], batch_first=True)
        return ids, ids != 0

    return pad


def numba_kernel(corpus):
    numba = pytest.importorskip("numba")

    @numba.njit
    def fill(tokens, offsets, batch, ids, mask):
        for i in range(len(batch)):
            start, n = offsets[batch[i]], offsets[batch[i] + 1] - offsets[batch[i]]
            ids[i, :n] = tokens[start : start + n]
            ids[i, n:] = 0
            mask[i, :n] = True
            mask[i, n:] = False

    def pad(batch):
        batch = np.array(batch)
        shape = len(batch), int(corpus.lengths[batch].max())
        ids, mask = np.empty(shape, np.int64), np.empty(shape, np.bool_)
        fill(corpus.tokens, corpus.offsets, batch, ids, mask)
        return torch.from_numpy(ids), torch.from_numpy(mask)

    return pad


def numpy_rows(corpus):
    return lambda batch: tuple(map(torch.from_numpy, define(corpus, batch)))


def numpy_mask(corpus):
    def pad(batch):
        lengths = corpus.lengths[batch]
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.zeros(mask.shape, np.int64)
        ids[mask] = np.concatenate([corpus.row(sample) for sample in batch])
        return torch.from_numpy(ids), torch.from_numpy(mask)

    return pad


def transformers_collator(corpus):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"[PAD]": 0}, "[PAD]")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), pad_token="[PAD]")
    collate = transformers.DataCollatorWithPadding(tokenizer)
    rows = {sample: {"input_ids": corpus.row(sample).tolist()} for batch in corpus.batches for sample in batch}

    def pad(batch):
        padded = collate([dict(rows[sample]) for sample in batch])
        return padded["input_ids"], padded["attention_mask"].bool()

    return pad


CONTENDERS = {
    "native, fresh": native,
    "native, out": native_out,
    "native, from arrays of samples": items,
    "numba": numba_kernel,
    "NumPy, row loop": numpy_rows,
    "NumPy, mask": numpy_mask,
    "pad_sequence, best": pad_sequence_best,
    "pad_sequence, usual": pad_sequence_usual,
    "transformers, lists": transformers_collator,
}


@pytest.mark.parametrize("n_batches", [1, 64])
@pytest.mark.parametrize("contender", CONTENDERS)
def test_one_batch(benchmark, corpus, contender, n_batches):
    benchmark.group = f"one batch of {n_batches}"
    pad = CONTENDERS[contender](corpus)
    for batch in corpus.batches[:n_batches]:
        for padded, expected in zip(pad(batch), define(corpus, batch), strict=True):
            assert torch.equal(padded, torch.from_numpy(expected))
    batches = itertools.cycle(corpus.batches[:n_batches])
    benchmark.extra_info["padding_ratio"] = corpus.padding_ratio()
    rounds = 10 if contender.startswith("transformers") else 640
    benchmark.pedantic(lambda: pad(next(batches)), rounds=rounds, warmup_rounds=rounds // 10)


@pytest.mark.parametrize("n_batches", [1, 64])
@pytest.mark.parametrize("memory", ["fresh", "out"])
def test_limit(benchmark, corpus, memory, n_batches):
    """Read a batch's number of tokens from one place and write its number of ids and mask values, in one sweep each."""
    benchmark.group = f"one batch of {n_batches}"
    work = []
    for batch in corpus.batches[:n_batches]:
        n_values = len(batch) * int(corpus.lengths[batch].max())
        start = int(corpus.offsets[batch[0]]) % (len(corpus.tokens) - n_values)
        work.append((n_values, corpus.tokens[start : start + int(corpus.lengths[batch].sum())]))
    ids, mask = torch.empty(TOKEN_BUDGET, dtype=torch.int64), torch.empty(TOKEN_BUDGET, dtype=torch.bool)
    work = itertools.cycle(work)

    def write():
        n_values, tokens = next(work)
        if memory == "fresh":
            into, real = torch.empty(n_values, dtype=torch.int64), torch.empty(n_values, dtype=torch.bool)
        else:
            into, real = ids[:n_values], mask[:n_values]
        array = into.numpy()
        np.copyto(array[: len(tokens)], tokens)
        array[len(tokens) :] = 0
        real.numpy().fill(True)
        return into, real

    benchmark.pedantic(write, rounds=640, warmup_rounds=64)


class ItemDataset(Dataset):
    def __init__(self, corpus):
        self.corpus = corpus

    def __len__(self):
        return N_SAMPLES

    def __getitem__(self, sample):
        return torch.from_numpy(self.corpus.row(sample).astype(np.int64))


def collate_items(rows):
    ids = pad_sequence(rows, batch_first=True)
    return {
        "input_ids": ids,
        "attention_mask": torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None],
    }


@pytest.mark.benchmark(group="loader, 64 batches")
@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("kind", ["native", "per item"])
def test_loader(benchmark, corpus, kind, n_workers):
    if kind == "native":
        dataset = PreloadedDataset(corpus.tokens, corpus.offsets)
        collate = dataset.collate
    else:
        dataset, collate = ItemDataset(corpus), collate_items
    loader = DataLoader(
        dataset,
        batch_sampler=corpus.batches,
        collate_fn=collate,
        num_workers=n_workers,
        persistent_workers=n_workers > 0,
    )
    for padded, batch in zip(loader, corpus.batches, strict=True):
        ids, mask = define(corpus, batch)
        assert torch.equal(padded["input_ids"], torch.from_numpy(ids))
        assert torch.equal(padded["attention_mask"], torch.from_numpy(mask))
    benchmark.pedantic(lambda: sum(1 for _ in loader), rounds=15, warmup_rounds=2)
