"""Places between two steps of an epoch, and the plain dicts that they are saved as."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bucketshuffle.options import MAX_WORD, integer

_STATE_VERSION = 2
_WAY_OUT = "pass what state_dict of this sampler returned"


class Arrangement(NamedTuple):
    """What fixes the batches of an epoch beside seed and epoch."""

    window: int
    """Batches between two optimizer updates when the epoch was begun."""
    align_ranks: int
    """Neighbouring batches of similar lengths when the epoch was begun."""
    divisions: tuple[tuple[int, int], ...] = ()
    """(n_done, multiple): after `n_done` batches of all ranks, the rest was divided until it was a multiple."""


class Position(NamedTuple):
    """A place between two steps of an epoch."""

    epoch: int
    n_done: int
    """Batches of all ranks before it."""
    arrangement: Arrangement


def state_of(position: Position, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a position in the plan of this identity as a small dict of plain values."""
    return {
        "version": _STATE_VERSION,
        "epoch": position.epoch,
        "position": position.n_done,
        "window": position.arrangement.window,
        "align_ranks": position.arrangement.align_ranks,
        "divisions": [list(division) for division in position.arrangement.divisions],
        "identity": dict(identity),
    }


def read_state(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], Position]:
    """Returns the identity and the position that `state_of` wrote.

    Raises:
        TypeError: the state or one of its values is of the wrong kind.
        ValueError: the state is of another version, lacks a key, or has a value outside its range.
    """
    _check_mapping("state", state)
    if state.get("version", _STATE_VERSION) != _STATE_VERSION:
        raise ValueError(
            f"state['version'] = {state['version']!r} is not {_STATE_VERSION}; load it with the version of "
            "bucketshuffle that saved it"
        )
    known = state_of(Position(0, 0, Arrangement(1, 1)), {})
    if missing := [key for key in known if key not in state]:
        raise ValueError(f"state has no {missing[0]!r}; {_WAY_OUT}")
    if unknown := sorted(str(key) for key in state if key not in known):
        warnings.warn(f"bucketshuffle: state has unknown keys, which are ignored: {', '.join(unknown)}", stacklevel=5)
    _check_mapping("state['identity']", state["identity"])
    arrangement = Arrangement(
        integer("state['window']", state["window"], 1),
        integer("state['align_ranks']", state["align_ranks"], 1),
        tuple(_division(division) for division in _sequence("state['divisions']", state["divisions"])),
    )
    epoch = integer("state['epoch']", state["epoch"], 0, MAX_WORD)
    return state["identity"], Position(epoch, integer("state['position']", state["position"], 0), arrangement)


def _division(division: Any) -> tuple[int, int]:
    pair = _sequence("state['divisions']", division)
    if len(pair) != 2:
        raise ValueError(f"state['divisions'] has {len(pair)} values where 2 belong; {_WAY_OUT}")
    return integer("state['divisions']", pair[0], 0), integer("state['divisions']", pair[1], 1)


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a {type(value).__name__}, not a mapping; {_WAY_OUT}")


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, not a list; {_WAY_OUT}")
