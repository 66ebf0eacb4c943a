"""A file system for SQLite that fails at an operation of your choice, below everything that we wrote.

The faults are those that disks have: an error, no space, a write that stops half-way, a sync that fails. Counting
starts when it is armed, and only operations that can fail in that way are counted; so a test that walks `at` from
1 upwards until `injected` stays 0 has failed every one of them.

It can also lose power: `after_power_loss` gives the files with nothing but what had been synced, which is the worst
that a disk may do.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Literal

import apsw

__all__ = ["FaultVFS", "Kind"]

Kind = Literal["eio", "full", "short", "sync"]

# What each kind can befall, and what the engine is told.
_BEFALLS: dict[Kind, dict[str, int]] = {
    "eio": {
        "xOpen": apsw.SQLITE_CANTOPEN,
        "xDelete": apsw.SQLITE_IOERR_DELETE,
        "xWrite": apsw.SQLITE_IOERR_WRITE,
        "xSync": apsw.SQLITE_IOERR_FSYNC,
        "xTruncate": apsw.SQLITE_IOERR_TRUNCATE,
        "xFileControl": apsw.SQLITE_IOERR,
    },
    "full": {"xWrite": apsw.SQLITE_FULL, "xTruncate": apsw.SQLITE_FULL},
    "short": {"xWrite": apsw.SQLITE_IOERR_WRITE},
    "sync": {"xSync": apsw.SQLITE_IOERR_FSYNC},
}


class FaultVFS(apsw.VFS):
    """Registered under `name` while it lives; give that name to `SqliteBackend(vfs=…)`.

    `counts` are all operations since it was made; `calls` and `injected` those since it was armed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: dict[str, int] = {}
        self.calls = 0
        self.injected = 0
        self._lock = threading.Lock()
        self._kind: Kind | None = None
        self._at = 0
        self._forever = False
        self._synced: dict[str, bytes] = {}
        super().__init__(name, "")

    def arm(self, kind: Kind, *, at: int, forever: bool = False) -> None:
        """Fail the `at`-th operation (from 1) that can fail so; with `forever` every later one too."""
        with self._lock:
            self._kind, self._at, self._forever = kind, at, forever
            self.calls = self.injected = 0

    def disarm(self) -> None:
        with self._lock:
            self._kind = None

    def due(self, operation: str) -> Kind | None:
        """Count one operation; the fault it must suffer, if any."""
        with self._lock:
            self.counts[operation] = self.counts.get(operation, 0) + 1
            if self._kind is None or operation not in _BEFALLS[self._kind]:
                return None
            self.calls += 1
            if self.calls != self._at and not (self._forever and self.calls > self._at):
                return None
            self.injected += 1
            return self._kind

    def after_power_loss(self, folder: Path) -> None:
        """Put every file as it was when it was last synced into `folder`; one that never was is not there."""
        with self._lock:
            for path, content in self._synced.items():
                (folder / os.path.basename(path)).write_bytes(content)

    def remember(self, path: str) -> None:
        content = Path(path).read_bytes()
        with self._lock:
            self._synced[path] = content

    def suffer(self, operation: str) -> None:
        kind = self.due(operation)
        if kind is not None:
            raise fault(kind, operation)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - engine
        self.suffer("xOpen")
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802 - engine
        self.suffer("xDelete")
        super().xDelete(filename, syncdir)
        with self._lock:
            self._synced.pop(filename, None)

    def excepthook(
        self,
        etype: type[BaseException] | None,  # noqa: ARG002 - engine
        evalue: BaseException | None,  # noqa: ARG002 - engine
        etraceback: TracebackType | None,  # noqa: ARG002 - engine
    ) -> bool:
        """An injected fault that the engine ignores is no news."""
        return True


def fault(kind: Kind, operation: str) -> Exception:
    return apsw.exception_for(_BEFALLS[kind][operation])


class _File(apsw.VFSFile):
    def __init__(self, vfs: FaultVFS, filename: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._faults = vfs
        self._path = filename.filename() if isinstance(filename, apsw.URIFilename) else filename
        super().__init__("", filename, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - engine
        kind = self._faults.due("xWrite")
        written = len(data) if kind is None else len(data) // 2 if kind == "short" else 0
        if written:
            # The engine's annotation needs a newer Python than our oldest.
            super().xWrite(data[:written], offset)  # pyright: ignore[reportUnknownMemberType]
        if kind is None:
            return
        raise fault(kind, "xWrite")

    def xSync(self, flags: int) -> None:  # noqa: N802 - engine
        self._faults.suffer("xSync")
        super().xSync(flags)
        if self._path is not None:
            self._faults.remember(self._path)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - engine
        self._faults.suffer("xTruncate")
        super().xTruncate(newsize)

    def xFileControl(self, op: int, ptr: int) -> bool:  # noqa: N802 - engine
        self._faults.suffer("xFileControl")
        return super().xFileControl(op, ptr)

    def excepthook(
        self,
        etype: type[BaseException] | None,  # noqa: ARG002 - engine
        evalue: BaseException | None,  # noqa: ARG002 - engine
        etraceback: TracebackType | None,  # noqa: ARG002 - engine
    ) -> bool:
        return True
