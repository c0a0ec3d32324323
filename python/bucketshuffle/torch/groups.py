"""Groups of per-token keys: within a group, the rows of a sample have one length."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

MAIN = "main"
"""The group of all keys that no other names."""

_T = TypeVar("_T")


def checked_groups(groups: Mapping[str, Collection[str]] | None) -> dict[str, tuple[str, ...]]:
    """Returns the keys of each group beside the main one.

    Raises:
        TypeError: no mapping of names to collections of keys.
        ValueError: a name that no file could hold, or a key in two groups.
    """
    example = 'use {"target": ["labels"]}'
    if groups is None:
        return {}
    if not isinstance(groups, Mapping):
        raise TypeError(f"groups is a {type(groups).__name__}, not a mapping of names to keys; {example}")
    checked: dict[str, tuple[str, ...]] = {}
    group_of: dict[str, str] = {}
    for name, keys in groups.items():
        if not isinstance(name, str) or not name.isidentifier() or name == MAIN:
            raise ValueError(
                f'groups has the name {name!r}; use letters, digits and "_", and another name than "{MAIN}"'
            )
        if isinstance(keys, str) or not isinstance(keys, Collection) or not all(isinstance(key, str) for key in keys):
            raise TypeError(f'groups["{name}"] = {keys!r} is not a collection of keys; {example}')
        checked[name] = tuple(keys)
        for key in keys:
            if key in group_of:
                raise ValueError(f'"{key}" is in groups["{group_of[key]}"] and in groups["{name}"]; leave one')
            group_of[key] = name
    return checked


def option_of_groups(
    option: str, value: Any, groups: Iterable[str], check: Callable[[str, Any], _T], default: _T
) -> dict[str, _T]:
    """Returns an option of each group, from one value for all or a mapping by group.

    Args:
        check: what makes a checked value of the name to show and the caller's value.
        default: of the groups that a mapping leaves out.

    Raises:
        TypeError, ValueError: as `check`; a group that there is not.
    """
    names = [MAIN, *groups]
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, check(option, value))
    for name in value:
        if name not in names:
            known = ", ".join(f'"{known}"' for known in names)
            raise ValueError(f"{option} names {name!r}, which is no group; the groups are {known}")
    return {name: check(f'{option}["{name}"]', value[name]) if name in value else default for name in names}


def by_group(keys: Iterable[str], groups: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Returns the keys of each group that has any, the main group first, then the others in their own order."""
    group_of = {key: name for name, named in groups.items() for key in named}
    divided: dict[str, list[str]] = {name: [] for name in (MAIN, *groups)}
    for key in keys:
        divided[group_of.get(key, MAIN)].append(key)
    return {name: of_group for name, of_group in divided.items() if of_group}


def offsets_by_group(
    lengths: Mapping[str, npt.NDArray[np.int64]],
    groups: Mapping[str, Collection[str]],
    where: Callable[[int, str], str],
) -> dict[str, npt.NDArray[np.int64]]:
    """Returns of each group `[n_samples + 1]`, int64: tokens before each sample and at the end.

    Args:
        lengths: of each key `[n_samples]`, int64.
        where: how errors call a row, by its sample and key.

    Raises:
        ValueError: keys of different numbers of samples, or keys of one group whose rows differ in length.
    """
    offsets = {}
    sizes = {key: len(of_key) for key, of_key in lengths.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"the keys have different numbers of samples, {sizes}; give every sample all of them")
    for name, keys in by_group(lengths, groups).items():
        first = lengths[keys[0]]
        for key in keys[1:]:
            if not np.array_equal(first, lengths[key]):
                _refuse(keys[0], first, key, lengths[key], groups, where)
        offsets[name] = np.zeros(len(first) + 1, np.int64)
        np.cumsum(first, out=offsets[name][1:])
    return offsets


def _refuse(
    first: str,
    lengths: npt.NDArray[np.int64],
    key: str,
    other: npt.NDArray[np.int64],
    groups: Mapping[str, Collection[str]],
    where: Callable[[int, str], str],
) -> NoReturn:
    i = int(np.flatnonzero(lengths != other)[0])
    name = next(name for name in ("target", f"{key}_group") if name not in groups)
    shown = {**{name: list(keys) for name, keys in groups.items()}, name: [key]}
    raise ValueError(
        f'{where(i, key)} has {other[i]} tokens, but its "{first}" has {lengths[i]}; keys of one group have one '
        f"length: name a fixed shape in stack, or pad to its own length with PadCollator(groups={shown})"
    )


def stacked_lengths(offsets: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Returns the lengths of each sample, read-only: `[n_samples]` of one group, `[n_samples, n_groups]` of several.

    Raises:
        ValueError: groups of different numbers of samples.
    """
    sizes = {group: len(of_group) - 1 for group, of_group in offsets.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"offsets has groups of different numbers of samples, {sizes}; they belong to different data")
    lengths = [np.diff(of_group) for of_group in offsets.values()]
    together: npt.NDArray[np.int64] = lengths[0] if len(lengths) == 1 else np.stack(lengths, axis=1)
    together.flags.writeable = False
    return together
