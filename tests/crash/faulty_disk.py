"""A disk whose n-th call fails, in every way that a disk can: it is what `Disk` is one class for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Literal

from knotline.backends.files_disk import Disk

__all__ = ["CHANGES", "SYNCS", "FaultyDisk", "Kind"]

Kind = Literal["eio", "full", "short", "sync", "after"]
"""Refused; no space; half of the bytes and then no space; a sync that fails; done, and said to have failed."""

READS = ("open_sync", "read", "stat", "listdir")
CHANGES = ("create", "write", "close", "open_append", "append", "link", "rename", "unlink", "mkdir")
SYNCS = ("fsync", "fsync_dir", "open_sync")
_STRUCK: dict[Kind, tuple[str, ...]] = {
    "eio": tuple(it for it in (*READS, *CHANGES, "fsync", "fsync_dir") if it != "close"),
    "full": ("create", "write", "append", "link", "rename", "mkdir", "open_append"),
    "short": ("write", "append"),
    "sync": SYNCS,
    "after": ("create", "write", "append", "link", "rename", "unlink", "mkdir", "fsync_dir"),
}


def _struck(name: str) -> Callable[..., Any]:
    real = getattr(Disk, name)

    def call(self: FaultyDisk, *args: Any) -> Any:
        kind = self.kind
        if kind is None or name not in _STRUCK[kind]:
            return real(self, *args)
        self.calls += 1
        if not (self.calls == self.at or (self.forever and self.calls > self.at)):
            self.synced(name, args[0])
            return real(self, *args)
        self.injected += 1
        self.struck.append(name)
        if kind == "short":
            fd, data = args
            os.write(fd, data[: len(data) // 2])
        elif kind == "after":
            made = real(self, *args)
            if name == "create":
                os.close(made)
        elif kind == "sync":
            self.unsynced(name, args[0])
        raise OSError(errno.ENOSPC if kind in ("full", "short") else errno.EIO, f"injected {kind} {name}")

    return call


_create = _struck("create")
_link = _struck("link")
_rename = _struck("rename")


class FaultyDisk(Disk):
    """Unarmed it is a disk like others.

    A sync that failed is remembered as Linux does it: what was to be written is taken for clean and may be lost, and
    the next sync of the same file succeeds. `lost` holds what has not been made anew since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind: Kind | None = None
        self.at = self.calls = self.injected = 0
        self.forever = False
        self.struck: list[str] = []
        self.lost: dict[str, bool] = {}
        """Folders of which a sync failed, and whether a name in them was made since."""
        self.hollow: set[str] = set()
        """Files of which a sync failed: nobody may give them another name."""
        self._paths: dict[int, str] = {}

    def unsynced(self, name: str, what: Any) -> None:
        if name == "fsync_dir":
            self.lost[os.fspath(what)] = False
        elif name == "fsync":
            self.hollow.add(self._paths.get(what, ""))

    def synced(self, name: str, what: Any) -> None:
        if name == "fsync_dir" and self.lost.get(os.fspath(what)):
            del self.lost[os.fspath(what)]

    def create(self, path: Any) -> int:
        fd = _create(self, path)
        self._changed(path)
        self._paths[fd] = os.fspath(path)
        return fd

    def link(self, a: Any, b: Any) -> None:
        self._named(a, b)
        _link(self, a, b)

    def rename(self, a: Any, b: Any) -> None:
        self._named(a, b)
        _rename(self, a, b)

    def _named(self, a: Any, b: Any) -> None:
        assert os.fspath(a) not in self.hollow, "a file whose sync failed gets a name"
        self._changed(b)

    def _changed(self, path: Any) -> None:
        folder = os.path.dirname(os.fspath(path))
        if folder in self.lost:
            self.lost[folder] = True

    def arm(self, kind: Kind, *, at: int, forever: bool = False) -> None:
        self.kind, self.at, self.forever = kind, at, forever
        self.calls = self.injected = 0

    def disarm(self) -> None:
        self.kind = None

    write = _struck("write")
    fsync = _struck("fsync")
    open_sync = _struck("open_sync")
    open_append = _struck("open_append")
    append = _struck("append")
    read = _struck("read")
    unlink = _struck("unlink")
    stat = _struck("stat")
    mkdir = _struck("mkdir")
    listdir = _struck("listdir")
    fsync_dir = _struck("fsync_dir")
