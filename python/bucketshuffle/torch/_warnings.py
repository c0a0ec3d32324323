"""What the sampler says where an epoch, a state and a loop contradict each other, shown at the caller's line."""

from __future__ import annotations

import sys
import warnings


def resume_stands(epoch: int, resumed: int, counted: bool) -> None:
    way_out = "call reset() first to cancel the resume"
    if counted:
        way_out = f"call loader.set_epoch({resumed}), because accelerate's loader counts epochs itself"
    _warn(f"set_epoch({epoch}) is ignored, because the sampler is about to resume epoch {resumed}; {way_out}")


def epoch_is_done(epoch: int) -> None:
    _warn(
        f"the state loaded is that of the end of epoch {epoch}, which has no batches left; begin the loop at epoch "
        f"{epoch + 1}, or call reset() before set_epoch({epoch})"
    )


def accelerate_counts(epoch: int, replaced: int) -> None:
    _warn(
        f"accelerate's loader counts epochs itself and trains epoch {epoch}, where the sampler stands at epoch "
        f"{replaced}; call loader.set_epoch({replaced}) in place of sampler.set_epoch"
    )


def epoch_repeats(epoch: int) -> None:
    _warn(
        f"epoch {epoch} is trained again, because set_epoch was not called after its end; call "
        "sampler.set_epoch(epoch) before each pass, with the same epoch if that is meant"
    )


def state_wins(chosen: int, epoch: int) -> None:
    _warn(
        f"the loader's state continues in epoch {epoch}, which set_epoch({chosen}) does not change; begin the loop at "
        f"epoch {epoch}"
    )


def steps_came_early() -> None:
    _warn(
        "steps() was asked before the loader restored its position and told of other batches than those to come; use "
        "zip(loader, sampler.denominators()), or ask after iter(loader)"
    )


def _warn(message: str) -> None:
    level = 1
    frame = sys._getframe()
    while str(frame.f_globals.get("__name__")).startswith("bucketshuffle.") and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(f"bucketshuffle: {message}", stacklevel=level)
