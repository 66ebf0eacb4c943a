"""Objects as files: 8 bytes that check the rest, and the rest.

Saves come back to ids that a sweep may just be deleting, in another process, and neither takes a lock. The journal's
order decides. A sweep condemns files by name in a line, reads on to its own line, spares whatever was claimed
before it, and deletes. A save claims in its line, reads on to its own line, and does not use a file that was
condemned before it: it writes its own copy, under a name that nobody has condemned.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import Final

from blake3 import blake3

from knotline.backends.files_journal import Journal
from knotline.backends.files_medium import TEMPORARY, Medium
from knotline.backends.files_names import Names
from knotline.errors import Damaged

__all__ = ["Objects"]

_CHECK: Final = 8
_ID: Final = 16
_SURE: Final = 200_000
_AT_ONCE: Final = 500


class Objects:
    def __init__(self, medium: Medium, names: Names, journal: Journal) -> None:
        self._medium = medium
        self._names = names
        self._journal = journal
        self._sure: set[str] = set()
        """Files of which this process knows that they are whole and synced."""

    # -- writing -------------------------------------------------------------------------------------------

    def put(self, oid: bytes, data: bytes) -> list[str]:
        """See that it is there, whole and synced; the folders that must be synced before its entry."""
        folder = self._names.shard(oid)
        folders = [*self._medium.ensure(folder), folder]
        path = self._names.object(oid)
        for name in [path, *self._others(oid)]:
            if self._journal.condemned(_short(name)):
                continue
            if self._medium.stat(name) is None:
                if name != path:
                    continue
                if self._medium.create(folder, name, _closed(data)):
                    self._sure.add(name)
                    return folders
            if name not in self._sure or folder in self._medium.poisoned:
                if folder in self._medium.poisoned or _opened(self._medium.read(name)) is None:
                    self._medium.replace(folder, name, _closed(data))
                else:
                    self._medium.disk.open_sync(name)
            if len(self._sure) > _SURE:
                self._sure.clear()
            self._sure.add(name)
            return folders
        self._medium.create(folder, f"{path}.{secrets.token_hex(6)}", _closed(data))
        return folders

    def folders(self, ids: Sequence[bytes]) -> list[str]:
        return [self._names.shard(oid) for oid in ids]

    # -- reading -------------------------------------------------------------------------------------------

    def get(self, oid: bytes) -> bytes | None:
        path = self._names.object(oid)
        found = self._medium.read(path)
        data = None if found is None else _opened(found)
        if data is not None:
            return data
        for name in self._others(oid):
            other = self._medium.read(name)
            if other is not None and (data := _opened(other)) is not None:
                return data
        if found is not None:
            raise Damaged(f"object {oid.hex()}", why="its file is not what was written")
        return None

    def there(self, oid: bytes) -> bool:
        return self._medium.stat(self._names.object(oid)) is not None or bool(self._others(oid))

    def _others(self, oid: bytes) -> list[str]:
        """Copies that were made while the file itself was condemned: rare, so nothing is kept about them."""
        folder, front = self._names.shard(oid), f"{oid.hex()}."
        if self._medium.stat(self._names.object(oid)) is not None and not self._journal.condemned(oid.hex()):
            return []
        return [f"{folder}/{name}" for name in sorted(self._medium.names(folder)) if name.startswith(front)]

    def ids(self, *, after: bytes | None, limit: int) -> list[bytes]:
        found: list[bytes] = []
        first = 0 if after is None else after[0]
        shards = {name for name in self._medium.names(self._names.objects) if len(name) == 2}
        for number in range(first, 256):
            if f"{number:02x}" not in shards:
                continue
            names = {name[: 2 * _ID] for name in self._medium.names(f"{self._names.objects}/{number:02x}")}
            ids = sorted(bytes.fromhex(name) for name in names if not name.startswith(TEMPORARY) and _is_hex(name))
            found += [oid for oid in ids if after is None or oid > after]
            if len(found) >= limit:
                break
        return found[: max(limit, 0)]

    # -- deleting ------------------------------------------------------------------------------------------

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int:
        wanted = list(dict.fromkeys(ids))
        return sum(self._discard(wanted[at : at + _AT_ONCE], mark) for at in range(0, len(wanted), _AT_ONCE))

    def _discard(self, ids: list[bytes], mark: int) -> int:
        self._journal.catch_up()
        files: dict[bytes, list[str]] = {}
        for oid in ids:
            if self._journal.claimed(oid) > mark:
                continue
            path = self._names.object(oid)
            names = [path] if self._medium.stat(path) is not None else []
            if names := names + [name for name in self._others(oid) if name not in names]:
                files[oid] = names
        if not files:
            return 0
        token = secrets.token_hex(8)
        self._journal.append([["x", token, [_short(name) for names in files.values() for name in names]]])
        self._journal.catch_up()
        gone = 0
        for oid, names in files.items():
            if self._journal.claimed(oid) > mark:
                continue
            for name in names:
                self._sure.discard(name)
                with contextlib.suppress(FileNotFoundError):
                    self._medium.disk.unlink(name)
            gone += 1
        self._journal.append([["y", token]])
        return gone


def _short(path: str) -> str:
    return path.rpartition("/")[2]


def _closed(data: bytes) -> bytes:
    return blake3(data).digest(_CHECK) + data


def _opened(file: bytes | None) -> bytes | None:
    if file is None:
        return None
    data = file[_CHECK:]
    return data if len(file) >= _CHECK and blake3(data).digest(_CHECK) == file[:_CHECK] else None


def _is_hex(name: str) -> bool:
    return len(name) == 2 * _ID and not name.strip("0123456789abcdef")
