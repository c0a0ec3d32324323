"""What the plots of a report show, as small arrays: a few hundred points each, whatever the data set's size."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.epoch_plan import EpochPlan
from bucketshuffle.fields import sample_tokens
from bucketshuffle.metrics import window_distances
from bucketshuffle.plan import Planner
from bucketshuffle.report.compare import on_threads

_MAX_POINTS = 256
_N_BINS = 48


@dataclasses.dataclass(frozen=True)
class Curves:
    """The points of each plot, by the name of the strategy where there are several."""

    edges: tuple[int, ...]
    """[n_bins + 1], tokens: bin `i` holds `edges[i] < length <= edges[i + 1]`; of the planned samples."""
    n_samples: tuple[int, ...]
    """[n_bins], samples in the bin."""
    padding: dict[str, tuple[float | None, ...]]
    """[n_bins], padded tokens over real ones of the samples in the bin; None where there are none."""
    order: dict[str, tuple[int, ...]]
    """[n_batches], padded lengths of the first batches in training order."""
    mix: dict[str, tuple[float, ...]]
    """[n_windows], distance of windows from the data set, over the epoch; long epochs in means of neighbours. Not of
    sorted batches and six buckets."""

    @classmethod
    def of(cls, lengths: Any, strategies: dict[str, dict[str, Any]], *, window: int, seed: int = 0) -> Curves:
        """Returns the curves of the first epoch of some strategies.

        Args:
            lengths: [n_samples], tokens per sample.
            strategies: the options of each planner by the strategy's name.
            window: batches between two optimizer updates, over all ranks.
            seed: see `pack_epoch`.

        Raises:
            TypeError, ValueError: as `pack_epoch`.
        """
        tokens = sample_tokens(lengths)

        def curves(name: str) -> tuple[Any, ...]:
            plan = Planner(lengths, **strategies[name]).plan(seed)
            planned = tokens[plan.indices]
            edges = _edges(planned)
            in_bin = np.searchsorted(edges, planned) - 1
            padding = _padding(plan, planned, in_bin, len(edges) - 1)
            order = tuple(plan.row_tokens[: max(_MAX_POINTS, 2 * window)][:1024].tolist())
            # That of sorted batches and six buckets takes long and is in the table.
            mix = None if name in ("sorted", "six buckets") else _means(window_distances(plan, tokens, window))
            return edges, np.bincount(in_bin, minlength=len(edges) - 1), padding, order, mix

        found = dict(zip(strategies, on_threads(curves, strategies), strict=True))
        edges, n_samples, *_ = found[next(iter(found))]  # all strategies plan the same samples
        return cls(
            edges=tuple(edges.tolist()),
            n_samples=tuple(n_samples.tolist()),
            padding={name: padding for name, (_, _, padding, _, _) in found.items()},
            order={name: order for name, (*_, order, _) in found.items()},
            mix={name: mix for name, (*_, mix) in found.items() if mix is not None},
        )


def _edges(lengths: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Whole edges around all lengths: of equal ratio where lengths differ by more than 50 times, else equidistant."""
    if not len(lengths):
        return np.array([0, 1])
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest > 50 * shortest:
        edges = np.unique(np.rint(np.geomspace(shortest, longest, _N_BINS + 1)).astype(np.int64))
    else:
        edges = np.unique([shortest + (longest - shortest) * i // _N_BINS for i in range(_N_BINS + 1)])
    edges[-1] = longest
    edges[0] = shortest - 1
    return edges if len(edges) > 1 else np.array([shortest - 1, longest])


def _padding(
    plan: EpochPlan, planned: npt.NDArray[np.integer[Any]], in_bin: npt.NDArray[np.int64], n_bins: int
) -> tuple[float | None, ...]:
    padded = np.repeat(plan.row_tokens, np.diff(plan.offsets))
    real_tokens = np.bincount(in_bin, planned, n_bins)
    padded_tokens = np.bincount(in_bin, padded, n_bins)
    pairs = zip(padded_tokens.tolist(), real_tokens.tolist(), strict=True)
    return tuple(padded / real if real else None for padded, real in pairs)


def _means(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    if len(values) <= _MAX_POINTS:
        return tuple(values.tolist())
    return tuple(float(part.mean()) for part in np.array_split(values, _MAX_POINTS))
