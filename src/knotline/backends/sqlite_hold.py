"""Locks of our own on the files, so that no other copy of the engine in this process takes itself for their only user.

The engine's locks belong to the process. When somebody opens the store in this process with another copy of the engine
(the standard library's `sqlite3` is one), that copy meets no lock of ours: it takes the shared index for left over and
cuts it off under us, and when it closes it copies the write-ahead log home and deletes it, so that what we commit then
goes into a file without a name and is gone with this process. Locks of an open file description, where the system has
them, stand against those of the same process too: one on each of the two places where the engine asks whether
anybody else is there gives the right answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import Final

__all__ = ["Hold"]

# Where each user of a database has a lock, by the file format: first byte and how many. In the file, in the index.
_FILE: Final = (0x40000000 + 2, 510)
_INDEX: Final = (128, 1)
_SET: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)


class _Held:
    """One handle of each file in this process: closing any handle of a file drops all of the engine's locks on it."""

    __slots__ = ("fds", "users")

    def __init__(self, path: Path) -> None:
        self.users = 0
        self.fds: list[tuple[int, tuple[int, int]]] = [(os.open(path, os.O_RDWR | os.O_CLOEXEC), _FILE)]
        with contextlib.suppress(FileNotFoundError):
            self.fds.append((os.open(f"{path}-shm", os.O_RDWR | os.O_CLOEXEC), _INDEX))

    def set(self, kind: int) -> None:
        if _SET is not None:
            for fd, (first, size) in self.fds:
                # Busy only while another process is about to be the last: it then finds us and is not.
                with contextlib.suppress(BlockingIOError, PermissionError):
                    fcntl.fcntl(fd, _SET, struct.pack("hhqqi", kind, os.SEEK_SET, first, size, 0))

    def close(self) -> None:
        for fd, _ in self.fds:
            os.close(fd)


_lock = threading.Lock()
_held: dict[tuple[int, int], _Held] = {}
# Of stores that were never closed. Whoever collects garbage may stand anywhere, also in here: it only leaves them.
_orphans: deque[Hold] = deque()


class Hold:
    """Taken when a store is open; let go in two steps around the closing of its connections."""

    def __init__(self, path: Path) -> None:
        while _orphans:
            _orphans.popleft().drop()
        with _lock:
            about = os.stat(path)
            self._key = (about.st_dev, about.st_ino)
            held = _held.get(self._key)
            if held is None:
                held = _held[self._key] = _Held(path)
            held.users += 1
            self._mine: _Held | None = held
            held.set(fcntl.F_RDLCK)

    def watch(self, owner: object) -> None:
        """Let go, some time, also when the owner is collected without having been closed."""
        weakref.finalize(owner, _orphans.append, self).atexit = False

    def loosen(self) -> None:
        """Before the last connections close: now the engine may find that it is the last."""
        with _lock:
            if self._mine is not None and self._mine.users == 1:
                self._mine.set(fcntl.F_UNLCK)

    def drop(self) -> None:
        """After they are closed. Idempotent."""
        with _lock:
            held, self._mine = self._mine, None
            if held is not None:
                held.users -= 1
                if not held.users:
                    del _held[self._key]
                    held.close()
