"""Lists in the order of what is hidden: the inner store's order says nothing, so all of it is read and sorted.

A list that is longer than a page is kept for the next one, while the inner store's mark says that nothing was
saved since. Apart from the backend because it is the one place with a memory of what the store holds.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from knotline.backends.contract import Backend, Entry
from knotline.backends.encrypted_cipher import Cipher, OpenHead
from knotline.backends.encrypted_ring import RING
from knotline.errors import Damaged

__all__ = ["Listing"]

_PAGE: Final = 10_000
_LOOK_BACK: Final = 64
"""When a run's head does not open, so many of its older entries are asked for its name."""


class Listing:
    def __init__(self, inner: Backend, cipher: Callable[[], Cipher], head: Callable[[Entry], OpenHead]) -> None:
        self._inner = inner
        self._cipher = cipher
        self._head = head
        self._lock = threading.Lock()
        # A hidden key has one real key for ever.
        self._keys: dict[bytes, bytes] = {}
        # With the mark at which they were read.
        self._runs: tuple[int, list[tuple[bytes, int]]] | None = None
        self._ids: tuple[int, list[bytes]] | None = None

    def forget(self) -> None:
        with self._lock:
            self._runs = self._ids = None

    def runs(self, *, after: bytes | None, limit: int) -> list[tuple[bytes, int]]:
        mark = self._inner.mark()
        with self._lock:
            kept = self._runs
        found = kept[1] if kept is not None and kept[0] == mark and after is not None else None
        if found is None:
            found = sorted(self._all_runs())
        start = 0 if after is None else bisect_right(found, after, key=_first)
        page = found[start : start + max(limit, 0)]
        with self._lock:
            self._runs = (mark, found) if start + len(page) < len(found) else None
        return page

    def _all_runs(self) -> list[tuple[bytes, int]]:
        found: list[tuple[bytes, int]] = []
        after: bytes | None = None
        while page := self._inner.runs(after=after, limit=_PAGE):
            found += [(self._key(hidden, rev), rev) for hidden, rev in page if hidden != RING]
            after = page[-1][0]
        return found

    def _key(self, hidden: bytes, rev: int) -> bytes:
        key = self._keys.get(hidden)
        if key is None:
            key = self._keys[hidden] = self._name(hidden, rev)
        return key

    def _name(self, hidden: bytes, rev: int) -> bytes:
        trouble: Damaged | None = None
        for entry in reversed(self._inner.entries(hidden, max(rev - _LOOK_BACK, 0), rev, bodies=False)):
            try:
                return self._head(entry).run
            except Damaged as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        # Dropped since it was listed: then there is a newer one.
        entry = self._inner.head(hidden)
        if entry is None:
            raise Damaged(f"run {hidden[:12]!r}", why="it was listed and is not there")
        return self._head(entry).run

    def object_ids(self, *, after: bytes | None, limit: int) -> list[bytes]:
        mark = self._inner.mark()
        with self._lock:
            kept = self._ids
        found = kept[1] if kept is not None and kept[0] == mark and after is not None else None
        if found is None:
            found = sorted(self._cipher().plain_ids(self._all_ids()))
        start = 0 if after is None else bisect_right(found, after)
        page = found[start : start + max(limit, 0)]
        with self._lock:
            self._ids = (mark, found) if start + len(page) < len(found) else None
        return page

    def _all_ids(self) -> list[bytes]:
        found: list[bytes] = []
        after: bytes | None = None
        while page := self._inner.object_ids(after=after, limit=_PAGE):
            found += page
            after = page[-1]
        return found


def _first(pair: tuple[bytes, int]) -> bytes:
    return pair[0]
