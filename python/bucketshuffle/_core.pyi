from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Unpack

from bucketshuffle.options import PlanOptions

__all__ = ["DEFAULTS", "DFLASH_BOUNDARIES", "ORDER_VERSION", "Planner", "__version__", "pack_epoch", "pad_rows"]

__version__: str
DEFAULTS: PlanOptions
ORDER_VERSION: int
DFLASH_BOUNDARIES: list[int]

def pack_epoch(
    lengths: npt.NDArray[np.integer[Any]],
    admitted: npt.NDArray[np.bool_] | None,
    domains: npt.NDArray[np.int64] | None,
    names: Sequence[str] | None,
    seed: int,
    epoch: int,
    **options: Unpack[PlanOptions],
) -> dict[str, Any]:
    """One epoch of `lengths`; see `bucketshuffle.pack_epoch`."""

@final
class Planner:
    """Lengths sorted into buckets once; see `bucketshuffle.Planner`."""

    def __new__(
        cls,
        lengths: npt.NDArray[np.integer[Any]],
        admitted: npt.NDArray[np.bool_] | None,
        domains: npt.NDArray[np.int64] | None,
        names: Sequence[str] | None,
        **options: Unpack[PlanOptions],
    ) -> Planner: ...
    def plan(self, seed: int, epoch: int) -> dict[str, Any]: ...
    def padded_length(self, longest: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def batch_cost(self, n_samples: npt.NDArray[np.int64], longest: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def n_batches(self) -> int: ...
    def n_packed_batches(self) -> int: ...
    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def padded_lengths(self) -> list[npt.NDArray[np.int64]]: ...
    @property
    def multiples(self) -> list[int]: ...
    @property
    def boundaries(self) -> npt.NDArray[np.int64]: ...
    @property
    def dropped(self) -> npt.NDArray[np.int64]: ...

class _Request(Protocol):
    """One field of a batch; see `bucketshuffle.torch.fields.Request`."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> npt.NDArray[Any] | str: ...
    @property
    def per_token(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def fill(self) -> int: ...
    @property
    def out(self) -> npt.NDArray[Any] | None: ...

class _GroupRequest(Protocol):
    """The fields of one length in a batch; see `bucketshuffle.torch.fields.GroupRequest`."""

    @property
    def offsets(self) -> npt.NDArray[np.int64]: ...
    @property
    def fields(self) -> Sequence[_Request]: ...
    @property
    def left(self) -> bool: ...
    @property
    def pad_to_multiple_of(self) -> int: ...
    @property
    def padded_lengths(self) -> Sequence[int]: ...

def pad_rows(
    samples: npt.NDArray[np.int64] | Sequence[int], groups: Sequence[_GroupRequest]
) -> list[tuple[npt.NDArray[np.int64], int, list[npt.NDArray[Any] | None]]]:
    """Pad the rows of one batch, each group to its own longest; return for each its lengths, its padded length, and one
    flat array per field (None where `out` took it).
    """
