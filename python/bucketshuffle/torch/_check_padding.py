"""Checks that the batches of a loader are as long as the plan says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset

from bucketshuffle.torch.dataset import PreloadedDataset
from bucketshuffle.torch.groups import MAIN
from bucketshuffle.torch.sampler import BucketBatchSampler


def check_padding(loader: Any, sampler: BucketBatchSampler, n_batches: int) -> None:
    """Raises if data set or collator of `loader` would make longer batches than planned, as far as they show it, and of
    `n_batches` that are made for it.

    Raises:
        ValueError: the first difference found.
    """
    dataset: Any = getattr(loader, "dataset", None)
    if hasattr(dataset, "__len__"):
        if len(dataset) != len(sampler.lengths):
            raise ValueError(
                f"loader.dataset has {len(dataset)} samples, the sampler was built from {len(sampler.lengths)} "
                "lengths; build it from the lengths of this data set, in its order"
            )
        _check_lengths(dataset, _by_group(sampler, dataset))
    _check_multiple(loader, sampler)
    if n_batches:
        _check_batches(loader, sampler, n_batches)


def _check_lengths(dataset: Any, planned: npt.NDArray[np.integer[Any]]) -> None:
    lengths, is_preloaded = _lengths(dataset)
    if lengths is None or lengths.shape != planned.shape or lengths.dtype.kind not in "iu":
        return
    # Lengths planned longer keep the budget, and another data set may hold lengths of something else.
    differs = lengths > planned if is_preloaded else lengths != planned
    differs = differs if differs.ndim == 1 else differs.any(1)
    if differs.any() and (is_preloaded or np.array_equal(np.sort(lengths, 0), np.sort(planned, 0))):
        i = int(np.argmax(differs))
        raise ValueError(
            f"loader.dataset.lengths[{i}] = {lengths[i]} is not lengths[{i}] = {planned[i]} of the sampler; build it "
            "from the lengths of this data set, in its order"
        )


def _by_group(sampler: BucketBatchSampler, dataset: Any) -> npt.NDArray[np.integer[Any]]:
    """The planned lengths, with named fields in the order of the groups of `dataset`."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = sampler.schedule.field_names
    if names is None or not isinstance(dataset, PreloadedDataset) or dataset.groups.keys() != set(names):
        return sampler.lengths
    return sampler.lengths[:, [names.index(group) for group in dataset.groups]]


def _lengths(dataset: Any) -> tuple[npt.NDArray[Any] | None, bool]:
    """The lengths that a data set holds, and whether they are surely those of its rows."""
    if isinstance(dataset, Subset):
        lengths, is_preloaded = _lengths(dataset.dataset)
        return (None if lengths is None else lengths[np.asarray(dataset.indices, np.int64)]), is_preloaded
    lengths = getattr(dataset, "lengths", None)
    if isinstance(lengths, (np.ndarray, torch.Tensor, list)):
        try:
            return np.asarray(lengths), isinstance(dataset, PreloadedDataset)
        except ValueError:  # Ragged.
            return None, False
    return None, False


def _check_multiple(loader: Any, sampler: BucketBatchSampler) -> None:
    collate: Any = getattr(loader, "collate_fn", None)
    owner = getattr(collate, "__self__", None)
    collator = owner.collator if isinstance(owner, PreloadedDataset) else owner or collate
    multiple = getattr(collator, "pad_to_multiple_of", None)
    n_fields = sampler.lengths.shape[1] if sampler.lengths.ndim == 2 else 1
    multiples = [multiple] * n_fields
    if isinstance(multiple, Mapping):
        groups = sampler.schedule.field_names or (MAIN, *collator.groups)
        if len(groups) != n_fields or not {MAIN, *collator.groups} >= set(groups):
            return  # A batch will tell.
        multiples = [of_group for of_group, _ in collator.padding_by(groups)]
    lengths = np.delete(sampler.lengths, sampler.dropped, axis=0).astype(np.int64)
    planned = np.asarray(sampler.schedule.padded_length(lengths)).reshape(len(lengths), n_fields)
    lengths = lengths.reshape(len(lengths), n_fields)
    for f, of_field in enumerate(multiples):
        if not isinstance(of_field, (int, np.integer)) or of_field < 2:
            continue
        padded = -(-lengths[:, f] // of_field) * of_field
        if (padded > planned[:, f]).any():
            # The shortest of them, since the first is of no help.
            i = int(np.argmin(np.where(padded > planned[:, f], lengths[:, f], np.iinfo(np.int64).max)))
            raise ValueError(
                f"the collator pads rows of {lengths[i, f]} tokens to {padded[i]} (pad_to_multiple_of = {of_field}), "
                f"the plan counts {planned[i, f]}; build the sampler with pad_to_multiple_of={of_field}"
            )


def _check_batches(loader: Any, sampler: BucketBatchSampler, n_batches: int) -> None:
    start = sampler._shown(None)
    batches = sampler._batches(start)
    names = sampler.schedule.field_names
    main = names.index(MAIN) if names is not None and MAIN in names else 0
    lengths = sampler.lengths if sampler.lengths.ndim == 1 else sampler.lengths[:, main]
    mine = range(start.n_done + sampler.rank, len(batches), sampler.world_size)[:n_batches]
    for step, b in enumerate(mine):
        samples: list[int] = batches.indices[batches.offsets[b] : batches.offsets[b + 1]].tolist()
        planned = batches.padded_lengths[b].reshape(-1).tolist()
        fetch = getattr(loader.dataset, "__getitems__", None)
        items = fetch(samples) if fetch else [loader.dataset[i] for i in samples]
        batch = loader.collate_fn(items)
        where = f"batch {step} (samples {samples[0]}, ...)"
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if isinstance(mask, torch.Tensor) and mask.ndim == 2 and len(mask) == len(samples):
            tokens = mask.bool().sum(1).tolist()
            for sample, n_tokens in zip(samples, tokens, strict=True):
                if n_tokens > lengths[sample]:
                    raise ValueError(
                        f"{where} has {n_tokens} tokens of sample {sample}, lengths[{sample}] = "
                        f"{lengths[sample]}; build the sampler from the lengths of this data set, in its order"
                    )
        for name, shape in _shapes(batch):
            most = planned[main] if name in ("attention_mask", "input_ids") else max(planned)
            if shape[0] != len(samples) or shape[1] > most:
                raise ValueError(
                    f"{where} has {name} of shape {shape}, the plan has {(len(samples), most)}; store rows without "
                    "padding, and plan with the lengths and the pad_to_multiple_of that the collator sees"
                )


def _shapes(batch: Any) -> list[tuple[str, tuple[int, int]]]:
    """The padded shapes in a batch: of the mask and the tokens if it names them, else of all with two dimensions."""
    named = dict(batch) if isinstance(batch, Mapping) else {"a tensor": batch}
    tokens = {name: named[name] for name in ("attention_mask", "input_ids") if name in named} or named
    return [
        (name, (int(value.shape[0]), int(value.shape[1])))
        for name, value in tokens.items()
        if isinstance(value, torch.Tensor) and value.ndim == 2
    ]
