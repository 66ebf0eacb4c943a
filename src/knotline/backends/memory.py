"""The contract in plain dicts: for tests, for trying things out and for stores that need not outlive a process.

It keeps the whole contract except survival, so that what works here works on every other backend. One lock
guards everything: no method waits for a medium, so holding it is short.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from knotline.backends.contract import (
    MAX_REV,
    Attach,
    Attachment,
    Conflicted,
    Done,
    Entry,
    Lease,
    Outcome,
    Save,
    Write,
)
from knotline.errors import Unavailable

__all__ = ["MemoryBackend"]


@dataclass(slots=True)
class _Row:
    run: bytes
    rev: int
    head: bytes
    body: bytes
    tokens: tuple[int, ...]
    cursor: int

    def entry(self, *, body: bool) -> Entry:
        return Entry(self.run, self.rev, self.head, self.body if body else None, self.cursor, self.tokens)


@dataclass(slots=True)
class _Run:
    # Ascending by rev without sorting: a save at or below the head is never accepted.
    rows: list[_Row] = field(default_factory=list[_Row])
    attached: dict[tuple[int, bytes, int], tuple[int, bytes]] = field(
        default_factory=dict[tuple[int, bytes, int], tuple[int, bytes]]
    )

    def at(self, rev: int) -> int:
        return bisect_left(self.rows, rev, key=_rev)


def _rev(row: _Row) -> int:
    return row.rev


class MemoryBackend:
    """Everything in this process' memory; gone when it is closed."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._closed = False
        self._runs: dict[bytes, _Run] = {}
        self._keys: list[bytes] = []
        self._objects: dict[bytes, bytes] = {}
        # By object: the last save that carried it.
        self._claims: dict[bytes, int] = {}
        self._leases: dict[bytes, tuple[str, int, float]] = {}
        self._rows: dict[int, _Row] = {}
        # Ascending cursors of every entry, and of the entries that carry a token.
        self._all: list[int] = []
        self._carriers: dict[int, list[int]] = {}
        self._saves = 0

    @property
    def lanes(self) -> int:
        return 1

    @property
    def name(self) -> str:
        return "memory"

    def _open(self) -> None:
        if self._closed:
            raise Unavailable(self.name, why="it is closed")

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:  # noqa: ARG002 - nothing to sync
        with self._lock:
            self._open()
            return [self._save(w) if isinstance(w, Save) else self._attach(w) for w in writes]

    def _save(self, save: Save) -> Outcome:
        run = self._runs.get(save.run)
        if run is not None and run.rows and save.rev <= run.rows[-1].rev:
            # Also a revision that was dropped conflicts: a stale writer must not slip in below the head.
            at = run.at(save.rev)
            row = run.rows[at]
            same = row.rev == save.rev and row.head == save.head
            return Done() if same else Conflicted()
        if run is None:
            run = self._runs[save.run] = _Run()
        if not run.rows:
            insort(self._keys, save.run)
        self._saves += 1
        for oid, data in save.objects:
            self._objects.setdefault(oid, data)
            self._claims[oid] = self._saves
        row = _Row(save.run, save.rev, save.head, save.body, tuple(sorted(set(save.tokens))), self._saves)
        for rev, body in save.recast:
            at = run.at(rev)
            if at < len(run.rows) and run.rows[at].rev == rev:
                run.rows[at].body = body
        run.rows.append(row)
        self._rows[row.cursor] = row
        self._all.append(row.cursor)
        for token in row.tokens:
            self._carriers.setdefault(token, []).append(row.cursor)
        if save.drop:
            self._drop(run, min(save.drop, save.rev))
        return Done()

    def _drop(self, run: _Run, below: int) -> None:
        gone = run.rows[: run.at(below)]
        del run.rows[: len(gone)]
        for row in gone:
            del self._rows[row.cursor]
            del self._all[bisect_left(self._all, row.cursor)]
            for token in row.tokens:
                carriers = self._carriers[token]
                del carriers[bisect_left(carriers, row.cursor)]
                if not carriers:
                    del self._carriers[token]
        for key in [k for k in run.attached if k[0] < below]:
            del run.attached[key]

    def _attach(self, attach: Attach) -> Outcome:
        run = self._runs.setdefault(attach.run, _Run())
        value = (attach.epoch, attach.data)
        there = run.attached.setdefault((attach.rev, attach.task, attach.idx), value)
        return Done() if there == value else Conflicted()

    # -- reading -------------------------------------------------------------------------------------------

    def head(self, run: bytes) -> Entry | None:
        with self._lock:
            self._open()
            at = self._runs.get(run)
            return at.rows[-1].entry(body=True) if at is not None and at.rows else None

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        with self._lock:
            self._open()
            at = self._runs.get(run)
            if at is None:
                return []
            return [row.entry(body=bodies) for row in at.rows[at.at(lo) : at.at(hi + 1)]]

    def find(
        self,
        tokens: Sequence[int] = (),
        *,
        run: bytes | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 100,
    ) -> list[Entry]:
        with self._lock:
            self._open()
            wanted = frozenset(tokens)
            found: list[Entry] = []
            if limit <= 0:
                return found
            for cursor in self._walk(wanted, run=run, beyond=beyond, newest=newest):
                row = self._rows[cursor]
                if wanted.issubset(row.tokens) and (run is None or row.run == run):
                    found.append(row.entry(body=False))
                    if len(found) == limit:
                        break
            return found

    def _walk(self, wanted: frozenset[int], *, run: bytes | None, beyond: int | None, newest: bool) -> Iterator[int]:
        """Cursors worth looking at, in the asked order: those of the rarest of the conditions."""
        ways = [self._carriers.get(token, []) for token in wanted]
        if run is not None:
            at = self._runs.get(run)
            ways.append([] if at is None else [row.cursor for row in at.rows])
        way = min(ways, key=len) if ways else self._all
        if newest:
            end = len(way) if beyond is None else bisect_left(way, beyond)
            return (way[i] for i in range(end - 1, -1, -1))
        start = 0 if beyond is None else bisect_right(way, beyond)
        return (way[i] for i in range(start, len(way)))

    def runs(self, *, after: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, int]]:
        with self._lock:
            self._open()
            start = 0 if after is None else bisect_right(self._keys, after)
            keys = self._keys[start : start + max(limit, 0)]
            return [(key, self._runs[key].rows[-1].rev) for key in keys]

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._lock:
            self._open()
            return {oid: self._objects[oid] for oid in ids if oid in self._objects}

    def object_ids(self, *, after: bytes | None = None, limit: int = 10000) -> list[bytes]:
        with self._lock:
            self._open()
            ids = sorted(oid for oid in self._objects if after is None or oid > after)
            return ids[: max(limit, 0)]

    def attachments(self, run: bytes, *, lo: int = 0, hi: int = MAX_REV) -> list[Attachment]:
        with self._lock:
            self._open()
            at = self._runs.get(run)
            if at is None:
                return []
            keys = sorted(key for key in at.attached if lo <= key[0] <= hi)
            return [Attachment(*key, *at.attached[key]) for key in keys]

    # -- leases --------------------------------------------------------------------------------------------

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:
        with self._lock:
            self._open()
            now = self._clock()
            holder, epoch, until = self._leases.get(run, ("", 0, now))
            if now < until and holder != owner:
                return Lease(holder, epoch, until, live=True)
            if now < until:
                until = max(until, now + ttl)
            else:
                epoch, until = epoch + 1, now + ttl
            self._leases[run] = (owner, epoch, until)
            return Lease(owner, epoch, until, live=now < until)

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:
        with self._lock:
            self._open()
            now = self._clock()
            held = self._leases.get(run)
            if held is None or held[:2] != (owner, epoch) or now >= held[2]:
                return None
            until = max(held[2], now + ttl)
            self._leases[run] = (owner, epoch, until)
            return Lease(owner, epoch, until, live=True)

    def release(self, run: bytes, owner: str, epoch: int) -> bool:
        with self._lock:
            self._open()
            now = self._clock()
            held = self._leases.get(run)
            if held is None or held[:2] != (owner, epoch) or now >= held[2]:
                return False
            self._leases[run] = (owner, epoch, now)
            return True

    def lease(self, run: bytes) -> Lease | None:
        with self._lock:
            self._open()
            held = self._leases.get(run)
            return None if held is None else Lease(*held, live=self._clock() < held[2])

    # -- space ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        with self._lock:
            self._open()
            return self._saves

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int:
        with self._lock:
            self._open()
            dead = [oid for oid in dict.fromkeys(ids) if self._claims.get(oid, mark + 1) <= mark]
            for oid in dead:
                del self._objects[oid], self._claims[oid]
            return len(dead)

    def check(self) -> list[str]:
        return []

    def size(self) -> int:
        with self._lock:
            self._open()
            entries = sum(len(row.head) + len(row.body) + 4 * len(row.tokens) for row in self._rows.values())
            attached = sum(len(data) for run in self._runs.values() for _, data in run.attached.values())
            return entries + attached + sum(16 + len(data) for data in self._objects.values())

    def compact(self) -> None:
        with self._lock:
            self._open()

    def close(self) -> None:
        with self._lock:
            self._closed = True
