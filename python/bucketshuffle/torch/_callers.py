"""Which trainer is calling, where the same call means something else than from a user's loop.

accelerate's loader sets the epoch that it counts itself and fetches one batch ahead; Lightning counts epochs while it
overfits. None of them says so to a sampler, so the frames of the call are what there is to ask.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType

_FRAMES_TO_SEARCH = 16
"""accelerate's loader is 8 frames above the sampler, with torchdata's loader and accelerate's wrappers in between."""


def accelerate_is_iterating() -> bool:
    """Returns whether a loader of accelerate is fetching this batch."""
    return any(_is_accelerate_loop(frame) for frame in _frames())


def accelerate_is_setting_epoch() -> bool:
    """Returns whether a loader of accelerate sets the epoch that it has counted. Its `set_epoch` alone does not say so,
    because users call it."""
    return any(_is_accelerate_loop(frame) for frame in islice(_frames(), 2))


def lightning_is_overfitting() -> bool:
    """Returns whether a Lightning trainer with `overfit_batches` makes this call."""
    for frame in _frames():
        if str(frame.f_globals.get("__name__")).startswith(("lightning.pytorch.loops", "pytorch_lightning.loops")):
            trainer = getattr(frame.f_locals.get("self"), "trainer", None)
            return bool(getattr(trainer, "overfit_batches", 0))
    return False


def _is_accelerate_loop(frame: FrameType) -> bool:
    return (
        frame.f_code.co_name == "__iter__"
        and frame.f_globals.get("__name__") == "accelerate.data_loader"
        and hasattr(frame.f_locals.get("self"), "base_dataloader")  # Not one of its batch samplers.
    )


def _frames() -> Iterator[FrameType]:
    """The frames above the one that asks, from the inside out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    for _ in range(_FRAMES_TO_SEARCH):
        frame = frame and frame.f_back
        if frame is None:
            return
        yield frame
