"""Plans of padded batches: `pack_epoch` for one, `Planner` for those of many epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bucketshuffle import _core
from bucketshuffle.epoch_plan import EpochPlan
from bucketshuffle.fields import as_domains, as_fields, as_mask
from bucketshuffle.notebook import html_table
from bucketshuffle.options import PlanOptions, shows_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

DFLASH_BOUNDARIES: tuple[int, ...] = tuple(_core.DFLASH_BOUNDARIES)
"""The six buckets of the DFlash write-up, tokens: 0, 512, 1024, 2048, 3072, 4096, 8192."""

ORDER_VERSION: int = _core.ORDER_VERSION
"""Version of the order contract (docs/ORDER.md): it changes when the same arguments give another plan."""


@shows_options(PlanOptions)
def pack_epoch(
    lengths: Any,
    seed: int,
    *,
    epoch: int = 0,
    admitted: Any = None,
    domains: Any = None,
    **options: Unpack[PlanOptions],
) -> EpochPlan:
    """Returns one epoch of padded batches: brought together by length, shuffled, packed under a token budget, in mixed
    order.

    The plan is a pure function of lengths, options, seed and epoch: the same on every machine and for any number of
    threads. To plan many epochs of one data set, build a `Planner` once.

    Args:
        lengths: [n_samples], tokens per sample. Any integer array: NumPy, torch, Arrow, pandas, `array.array`, a list,
            a slice of a Hugging Face column. Samples with several lengths, such as source and target: an array
            [n_samples, n_fields], or a mapping by name of [n_samples] each; see "Several fields" below.
        seed: in [0, 2^64). Mixed with the epoch by a hash: (0, 1) and (1, 0) have nothing in common.
        epoch: in [0, 2^64). Every epoch has other batches in another order.
        admitted: [n_samples], bool. Samples that are False are left out and reported in `EpochPlan.dropped`, whatever
            their lengths. None admits all.
        domains: [n_samples], integer: the task, language or source of each sample. No batch holds two; each has buckets
            of its own, and every window draws from all by their share. (The groups of a `PadCollator` are of keys.)
        token_budget: what a batch may cost, in padded tokens: samples times the longest of them. Only a kept over-long
            sample exceeds it.
        max_batch_size: samples a batch may hold. None: no limit.
        min_batch_size: samples a batch holds at least, for losses that compare samples. The last batch of a bucket is
            evened out with the one before it. The longest samples must fit `2 * min_batch_size - 1` times. A rest that
            is divided on other ranks may have smaller batches.
        boundaries: "auto": soft buckets, found from the lengths; samples of neighbouring lengths mix, further where
            that costs little. An integer in [1, 4096]: that many hard buckets, the best ones. Ascending edges, such as
            `DFLASH_BOUNDARIES`: bucket `i` holds `boundaries[i] < length <= boundaries[i + 1]`, in every epoch.
        repeat_weight: what "auto" minimises is the padding ratio plus this times the share of pairs repeated: of the
            pairs of samples in one batch, those that share one in the next epoch too. 0 sorts by length. Raise it for
            fresher batches; they pad more.
        padding_target: instead of `repeat_weight`: the padding over sorted order that "auto" aims at, as a share of the
            padded tokens of sorted order.
        pad_to_multiple_of: padded lengths are rounded up to a multiple of this many tokens.
        padded_lengths: use few padded lengths, for compiled models. An integer in [1, 4096]: that many, chosen to cost
            least. Ascending lengths: these; a longer sample is over-long. None: any length.
        per_sample: fixed cost of every sample, tokens.
        quadratic_length: the padded length, in tokens, at which attention costs as much as everything else; adds
            `padded_length^2 / quadratic_length` (rounded up) to the cost of every sample. None: not counted.
        strategy: "bucketed", or a baseline under the same budget: "sorted" (least padding, the same batches in every
            epoch) or "random" (no buckets, most padding).
        window: batches between two optimizer updates, over all ranks. Above 1, every window draws from the whole range
            of lengths (stratified order). 1: the batch order is a plain shuffle.
        align_ranks: this many consecutive batches, the ranks of one step, have similar lengths. Must divide `window`.
        constant_count: plan the same number of batches in every epoch, a multiple of `window`, by splitting batches: no
            sample is lost, none repeated. `Stats.n_splits` counts the batches that this adds.
        overlong: samples that exceed the budget by themselves: "error", "drop" (reported in `EpochPlan.dropped`) or
            "keep" (a batch of their own).
        empty: samples of length 0: "error" or "drop".
        field_weights: what a token of a field costs, in [0.001, 1000]: a frame may cost a quarter of a token. Rounded
            to a ratio of integers up to 1000; what a field costs in a sample is rounded up to a whole token.
        combine: whether the costs of several fields add up ("sum"), or the largest alone counts ("max").
        threads: threads to plan with. None: one below about a million samples, else one a core.

    Several fields: a batch pads each field to the longest of that field. Its rows cost the sum over fields of
    `field_weights * (padded_length + padded_length^2 / quadratic_length)`, and `per_sample` once, so the budget holds
    for what is really padded. The same of one sample alone is its combined length, by which buckets and `boundaries`
    go. `pad_to_multiple_of`, `padded_lengths`, `quadratic_length` and `field_weights` take one value for all fields, a
    sequence of one for each, or a mapping by the field's name or column. A sample is empty where every field is.
    Lengths are below 2^32, and fields at most 8.

    Raises:
        TypeError: `lengths` or an option is of the wrong kind.
        ValueError: a length or an option has a value that cannot be accepted.
        MemoryError: the system has not enough memory.

    A signal whose handler raises, such as Ctrl-C, ends the call early.

    Complexity: O(n_samples), plus O(V log V) for V distinct padded lengths under "auto", O(K V log V) for K buckets.

    Examples:
        >>> from bucketshuffle import pack_epoch
        >>> plan = pack_epoch([5, 3, 8, 5, 3, 8], seed=0, token_budget=16)
        >>> sorted(plan.indices.tolist()), len(plan)
        ([0, 1, 2, 3, 4, 5], 3)
    """
    values, names = as_fields(lengths)
    fields = _core.pack_epoch(values, as_mask(admitted), as_domains(domains), names, seed, epoch, **options)
    return EpochPlan._from_core(fields, seed, epoch, names)


class Planner:
    """Lengths validated and sorted once, for the plans of any number of epochs.

    Args:
        lengths: [n_samples], tokens per sample, as for `pack_epoch`.
        admitted, domains: [n_samples], as for `pack_epoch`.
        options: those of `pack_epoch`.

    Raises:
        TypeError, ValueError, MemoryError: as `pack_epoch`.

    Examples:
        >>> from bucketshuffle import Planner
        >>> planner = Planner([5, 3, 8, 5, 3, 8], token_budget=16, boundaries=[0, 4, 8])
        >>> planner.n_batches(), [len(planner.plan(0, epoch)) for epoch in range(3)]
        (3, [3, 3, 3])
    """

    @shows_options(PlanOptions)
    def __init__(
        self, lengths: Any, *, admitted: Any = None, domains: Any = None, **options: Unpack[PlanOptions]
    ) -> None:
        (values, self._names), mask, of_samples = as_fields(lengths), as_mask(admitted), as_domains(domains)
        self._core = _core.Planner(values, mask, of_samples, self._names, **options)
        # Its own copies, in few bytes, for pickling.
        self._lengths = values.astype(np.min_scalar_type(values.max(initial=0)))
        self._admitted = None if mask is None else mask.copy()
        self._domains = None if of_samples is None else of_samples.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        lengths = self._lengths if self._names is None else dict(zip(self._names, self._lengths.T, strict=True))
        return _planner, (lengths, self._admitted, self._domains, self.options)

    def __repr__(self) -> str:
        defaults: dict[str, Any] = {**_core.DEFAULTS}
        changed = (f", {name}={value!r}" for name, value in self.options.items() if value != defaults[name])
        return f"Planner(n_samples={len(self._lengths) - len(self.dropped)}{''.join(changed)})"

    def _repr_html_(self) -> str:
        facts = {name: repr(value) for name, value in self.options.items() if value is not None}
        n_samples = f"{len(self._lengths) - len(self.dropped):,}"
        return html_table(type(self).__name__, {"n_samples": n_samples, **facts})

    def plan(self, seed: int, epoch: int = 0) -> EpochPlan:
        """Returns the plan of one epoch, bit for bit what `pack_epoch` returns."""
        return EpochPlan._from_core(self._core.plan(seed, epoch), seed, epoch, self._names)

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """The names of several fields, which a mapping of lengths gave; else None."""
        return self._names

    @property
    def boundaries(self) -> npt.NDArray[np.int64]:
        """[n_buckets + 1], int64, tokens: bucket `i` holds `boundaries[i] < length <= boundaries[i + 1]`."""
        return self._core.boundaries

    @property
    def dropped(self) -> npt.NDArray[np.int64]:
        """[n_dropped], int64: the samples left out under `overlong="drop"` or `empty="drop"`, ascending."""
        return self._core.dropped

    def padded_length(self, longest: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Returns int64: tokens of a row of batches whose longest samples have `longest` tokens, [n_batches], or with
        several fields [n_batches, n_fields]; of the same shape."""
        tokens: npt.NDArray[np.int64] = np.asarray(longest, np.int64)
        return self._core.padded_length(tokens.ravel()).reshape(tokens.shape)

    def batch_cost(
        self, n_samples: npt.NDArray[np.integer[Any]], longest: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.int64]:
        """Returns [n_batches], int64: the cost of batches of `n_samples`, [n_batches], whose longest samples have
        `longest` tokens, [n_batches] or [n_batches, n_fields]; at most 2^63 - 1. For batches that a plan does not hold,
        such as parts of one."""
        return self._core.batch_cost(np.asarray(n_samples, np.int64), np.asarray(longest, np.int64).ravel())

    @property
    def options(self) -> dict[str, Any]:
        """Every option of the planner by name, as plain values; what was not given has its default."""
        return self._core.options

    @property
    def padded_lengths(self) -> npt.NDArray[np.int64] | list[npt.NDArray[np.int64] | None] | None:
        """[n_padded_lengths], int64, tokens, ascending: what batches are padded to. None without `padded_lengths`. With
        several fields a list of as many."""
        lists = [lengths if len(lengths) else None for lengths in self._core.padded_lengths]
        if self._lengths.ndim == 2:
            return lists
        return self._core.padded_lengths[0] if self.options["padded_lengths"] is not None else None

    @property
    def padding(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Of each field, `pad_to_multiple_of` and the padded lengths that come first, tokens, ascending; none: ()."""
        lists = (tuple(lengths.tolist()) for lengths in self._core.padded_lengths)
        return tuple(zip(self._core.multiples, lists, strict=True))

    def n_batches(self) -> int:
        """Returns the number of batches of every epoch under `constant_count=True`: what packing needs, rounded up to a
        multiple of `window`."""
        return self._core.n_batches()

    def n_packed_batches(self) -> int:
        """Returns the number of batches that packing needs, learned from three pilot epochs. Without `constant_count`
        an epoch may have a few more or less."""
        return self._core.n_packed_batches()


def _planner(lengths: Any, admitted: Any, domains: Any, options: PlanOptions) -> Planner:
    return Planner(lengths, admitted=admitted, domains=domains, **options)
