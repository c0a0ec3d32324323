"""Batches for evaluation and prediction: least padding, no shuffle, and results back in the order of the data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler

from bucketshuffle.fields import as_fields
from bucketshuffle.options import MAX_COUNT, flag
from bucketshuffle.plan import Planner
from bucketshuffle.torch.ranks import rank_and_world_size

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bucketshuffle.options import BatchOptions

_T = TypeVar("_T")

_COST = ("token_budget", "max_batch_size", "pad_to_multiple_of", "padded_lengths", "per_sample", "quadratic_length")
_OPTIONS = (*_COST, "field_weights", "combine", "overlong", "empty", "threads")


class OrderedBatchSampler(BatchSampler):
    """Yields the batches of one rank, longest samples first, for `DataLoader(..., batch_sampler=sampler)`. `restore`
    puts the outputs back in the order of the data set.

    Every pass is the same. In every step all ranks get as many samples, so `gather` works on outputs of one row a
    sample; the rows of a step are neighbours in length. Every sample is read once. If the number of samples is no
    multiple of `world_size`, the last step reads its last sample again on up to `world_size - 1` ranks, and `restore`
    drops what came of that.

    Args:
        lengths: [n_samples], integer, tokens per sample, in the order of the data set, or [n_samples, n_fields] or a
            mapping of fields, as for `pack_epoch`. Samples of several fields come by falling cost.
        rank, world_size, sampler: as for `BucketBatchSampler`.
        options: those of `pack_epoch` that say what a batch may cost: `token_budget`, `max_batch_size`,
            `pad_to_multiple_of`, `padded_lengths`, `per_sample`, `quadratic_length`, `field_weights`, `combine`, and
            `overlong="error"` or `"keep"`.

    Raises:
        TypeError: `lengths` or an option is of the wrong kind, or an option does not apply here.
        ValueError: a value cannot be accepted.

    Examples:
        >>> from bucketshuffle.torch import OrderedBatchSampler
        >>> sampler = OrderedBatchSampler([5, 3, 8, 5, 3, 8], token_budget=16)
        >>> list(sampler)
        [[2, 5], [0, 3, 1], [4]]
        >>> sampler.restore(["2", "5", "0", "3", "1", "4"])
        ['0', '1', '2', '3', '4', '5']
    """

    def __init__(
        self,
        lengths: Any,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        sampler: Any = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        self.rank, self.world_size = rank_and_world_size(rank, world_size, sampler)
        for name in options.keys() - _OPTIONS:
            raise TypeError(f"{name} is no option of OrderedBatchSampler; its options are {', '.join(_OPTIONS)}")
        for name in ("overlong", "empty"):
            if options.get(name) == "drop":
                raise ValueError(
                    f'{name} = "drop" leaves samples without outputs; choose another policy, or evaluate on a data set '
                    "without them"
                )
        options["strategy"] = "sorted"
        self.planner = Planner(lengths, **options)
        values, _ = as_fields(lengths)
        self.n_samples = len(values)
        """Samples of the data set."""
        costs = self.planner.batch_cost(np.ones(len(values), np.int64), values)
        longest_first = np.argsort(-(values.astype(np.int64) if values.ndim == 1 else costs), kind="stable")
        self._starts = self._pack(values[longest_first], costs[longest_first])
        n_repeated = int(self._starts[-1]) - self.n_samples
        self.order: npt.NDArray[np.int64] = np.append(longest_first, np.repeat(longest_first[-1:], n_repeated))
        """[n_read], int64: the samples of step after step and, in each, of rank after rank: the order of gathered
        outputs. After the first `n_samples` come those that are read again."""

    def __len__(self) -> int:
        """Returns the batches of this rank, the same on every rank."""
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[list[int]]:
        for start, end in zip(self._starts[:-1].tolist(), self._starts[1:].tolist(), strict=True):
            size = (end - start) // self.world_size
            first = start + self.rank * size
            yield self.order[first : first + size].tolist()

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """See `Planner.field_names`."""
        return self.planner.field_names

    @property
    def padding(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """See `Planner.padding`."""
        return self.planner.padding

    def restore(self, outputs: _T, *, by_rank: bool = False) -> _T:
        """Returns `outputs` with one row a sample, in the order of the data set.

        Args:
            outputs: `(n_read, ...)`, a tensor or an array with one row for each sample that was read, or a list of as
                many; or a dict of these. They are those of all ranks, in the order in which each step gathers them:
                rank after rank, then the next step. `n_samples` rows do as well: gathering has dropped what was read
                again.
            by_rank: the outputs are all of rank 0, then all of rank 1: gathered after the loop, and not in each step.

        Returns:
            The same kind, `(n_samples, ...)`: row `i` is that of sample `i`.

        Raises:
            ValueError: another number of rows.
        """
        restored: _T = self._restored("outputs", outputs, flag("by_rank", by_rank))
        return restored

    # -- inside -------------------------------------------------------------------------------------------------------

    def _pack(self, lengths: npt.NDArray[np.integer[Any]], row_costs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where in `order` each step starts, and the last ends."""
        options = self.planner.options
        largest = np.clip(options["token_budget"] // row_costs, 1, options["max_batch_size"] or MAX_COUNT)
        starts = [0]
        while (start := starts[-1]) < len(lengths):
            n_left = -(-(len(lengths) - start) // self.world_size)
            size = min(int(largest[start]), n_left)
            if lengths.ndim == 2:
                size = self._fitting(lengths[start : start + size * self.world_size], options["token_budget"])
            starts.append(start + size * self.world_size)
        return np.array(starts)

    def _fitting(self, lengths: npt.NDArray[np.integer[Any]], token_budget: int) -> int:
        """How many of these samples each rank can take in a step, at least one; later ones may have a longer field."""
        longest = np.maximum.accumulate(lengths, axis=0)
        ends = np.minimum(np.arange(self.world_size, len(lengths) + self.world_size, self.world_size), len(lengths))
        sizes = np.arange(1, len(ends) + 1)
        return max(1, int(np.count_nonzero(self.planner.batch_cost(sizes, longest[ends - 1]) <= token_budget)))

    def _restored(self, name: str, outputs: Any, by_rank: bool) -> Any:
        if isinstance(outputs, Mapping):
            return {key: self._restored(f"{name}[{key!r}]", value, by_rank) for key, value in outputs.items()}
        n_read = len(self.order)
        if len(outputs) not in (n_read, n_read if by_rank else self.n_samples):
            again = f", {n_read - self.n_samples} of them again" if n_read > self.n_samples else ""
            ranks = f" on {self.world_size} ranks; gather the rows of all" if self.world_size > 1 else ""
            raise ValueError(f"{name} has {len(outputs)} rows, but {n_read} samples were read{again}{ranks}")
        rows = np.empty(self.n_samples, np.int64)
        rows[self.order[: self.n_samples]] = self._rows_by_rank() if by_rank else np.arange(self.n_samples)
        if isinstance(outputs, torch.Tensor):
            return outputs[torch.from_numpy(rows).to(outputs.device)]
        if isinstance(outputs, np.ndarray):
            return outputs[rows]
        return [outputs[i] for i in rows.tolist()]

    def _rows_by_rank(self) -> npt.NDArray[np.int64]:
        """[n_samples], int64: the row of each place in `order` where the outputs of a rank stand together."""
        sizes = np.diff(self._starts) // self.world_size
        before = np.cumsum(sizes) - sizes
        step = np.repeat(np.arange(len(sizes)), sizes * self.world_size)
        place = np.arange(len(step)) - self._starts[step]
        rank, row = np.divmod(place, sizes[step])
        rows: npt.NDArray[np.int64] = rank * sizes.sum() + before[step] + row
        return rows[: self.n_samples]

    def __repr__(self) -> str:
        return (
            f"OrderedBatchSampler(n_samples={self.n_samples}, rank={self.rank}, world_size={self.world_size}, "
            f"n_batches={len(self)})"
        )
