"""Sequences with the length distribution of the DFlash write-up, made up so that length and content belong together."""

from __future__ import annotations

import numpy as np
from bucketshuffle.data import dflash902k
from bucketshuffle.torch import PadCollator, PreloadedDataset
from model import Size


def sequences(size: Size, n_samples: int, seed: int = 0) -> PreloadedDataset:
    """Returns samples of `longest / 16` tokens or so: the lengths of `dflash902k`, scaled. The first third of each is a
    prompt that no anchor lies in.

    Each token follows from the one before it by one of 4 Markov chains, which a sample keeps: the longer the sample,
    the higher the chain, mostly. A run that sees its data by length sees one chain after the other.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.choice(dflash902k(), n_samples).astype(np.int64) * size.longest // 8192
    lengths = np.clip(lengths, max(3 * size.block, size.n_anchors), size.longest)
    likely = np.random.default_rng(7).permuted(np.tile(np.arange(size.n_tokens), (4, 1)), axis=1)  # [4, n_tokens]
    by_length = (np.argsort(np.argsort(lengths, kind="stable")) * 4) // max(n_samples, 1)
    chain = np.where(rng.random(n_samples) < 0.8, by_length, rng.integers(0, 4, n_samples))
    tokens = np.empty((n_samples, int(lengths.max())), np.int32)
    tokens[:, 0] = rng.integers(0, size.n_tokens, n_samples)
    for t in range(1, tokens.shape[1]):
        follows = likely[chain, tokens[:, t - 1]]
        noise = rng.integers(0, size.n_tokens, n_samples)
        tokens[:, t] = np.where(rng.random(n_samples) < 0.95, follows, noise)
    offsets = np.append(0, np.cumsum(lengths))
    flat = tokens[np.arange(tokens.shape[1]) < lengths[:, None]]
    return PreloadedDataset(flat, offsets, collator=PadCollator(lengths=True, sample_indices=True, attention_mask=None))
