"""A file that is written whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from typing import IO

from bucketshuffle.data.mapped import refuse_irregular


def write_file(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Lets `write` fill `path`, which then holds either all of that or what it held before.

    A link stays a link and its target is replaced; a file that is replaced keeps its mode.

    Raises:
        OSError: the folder cannot be written to, or is full.
        ValueError: `path` is no regular file, such as a pipe.
    """
    target = os.path.realpath(os.fsdecode(path))
    mode = None
    if os.path.lexists(target):
        status = os.stat(target)
        refuse_irregular(path, status)
        mode = stat.S_IMODE(status.st_mode)
    # Not made from the target's name, which may be as long as a name can be.
    temporary = os.path.join(os.path.dirname(target), f".bucketshuffle-{secrets.token_hex(8)}.tmp")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)  # the umask applies
    except OSError as error:  # the folder is missing, or not to be written to
        raise type(error)(error.errno, error.strerror, os.path.dirname(target)) from None
    try:
        with open(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_folder(os.path.dirname(target))


def _sync_folder(folder: str) -> None:
    """Makes the rename last through a power loss, where the system allows it."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # the file is saved, whether or not its folder may be listed
        return
    try:
        os.fsync(descriptor)
    except OSError:  # some file systems sync no folders
        pass
    finally:
        os.close(descriptor)
