"""The contract once more, as one flat list and no cleverness: what differential tests believe.

It shares no line with a real backend. Every answer is a scan, so it is slow and easy to check by eye.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

__all__ = ["RawOracle"]


@dataclass
class _Kept:
    save: Save
    body: bytes
    cursor: int

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.save.tokens)))


class RawOracle:
    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.log: list[_Kept] = []
        self.attached: list[Attach] = []
        self.blobs: dict[bytes, bytes] = {}
        self.claims: dict[bytes, int] = {}
        self.leases: dict[bytes, Lease] = {}
        self.saved = 0
        self.closed = False

    @property
    def lanes(self) -> int:
        return 1

    @property
    def name(self) -> str:
        return "oracle"

    def _use(self) -> None:
        if self.closed:
            raise Unavailable("oracle", why="it is closed")

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:  # noqa: ARG002 - no medium
        self._use()
        return [self._save(write) if isinstance(write, Save) else self._attach(write) for write in writes]

    def _save(self, save: Save) -> Outcome:
        of_run = [kept for kept in self.log if kept.save.run == save.run]
        for kept in of_run:
            if kept.save.rev == save.rev:
                same = kept.save.head == save.head
                return Done() if same else Conflicted()
        if any(kept.save.rev > save.rev for kept in of_run):
            return Conflicted()
        self.saved += 1
        for oid, data in save.objects:
            if oid not in self.blobs:
                self.blobs[oid] = data
            self.claims[oid] = self.saved
        for rev, body in save.recast:
            for kept in of_run:
                if kept.save.rev == rev:
                    kept.body = body
        self.log.append(_Kept(save, save.body, self.saved))
        self.log = [k for k in self.log if k.save.run != save.run or k.save.rev >= save.drop]
        self.attached = [a for a in self.attached if a.run != save.run or a.rev >= save.drop]
        return Done()

    def _attach(self, attach: Attach) -> Outcome:
        for there in self.attached:
            if (there.run, there.rev, there.task, there.idx) == (attach.run, attach.rev, attach.task, attach.idx):
                return Done() if there == attach else Conflicted()
        self.attached.append(attach)
        return Done()

    def head(self, run: bytes) -> Entry | None:
        found = self.entries(run, 0, MAX_REV)
        return found[-1] if found else None

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        self._use()
        found = [
            Entry(run, kept.save.rev, kept.save.head, kept.body if bodies else None, kept.cursor, kept.tokens)
            for kept in self.log
            if kept.save.run == run and lo <= kept.save.rev <= hi
        ]
        return sorted(found, key=lambda entry: entry.rev)

    def find(
        self,
        tokens: Sequence[int] = (),
        *,
        run: bytes | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 100,
    ) -> list[Entry]:
        self._use()
        found: list[Entry] = []
        for kept in reversed(self.log) if newest else self.log:
            if run is not None and kept.save.run != run:
                continue
            if beyond is not None and (kept.cursor >= beyond if newest else kept.cursor <= beyond):
                continue
            if all(token in kept.save.tokens for token in tokens):
                found.append(Entry(kept.save.run, kept.save.rev, kept.save.head, None, kept.cursor, kept.tokens))
        return found[: max(limit, 0)]

    def runs(self, *, after: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, int]]:
        self._use()
        heads: dict[bytes, int] = {}
        for kept in self.log:
            heads[kept.save.run] = max(heads.get(kept.save.run, 0), kept.save.rev)
        return [pair for pair in sorted(heads.items()) if after is None or pair[0] > after][: max(limit, 0)]

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        self._use()
        return {oid: data for oid, data in self.blobs.items() if oid in ids}

    def object_ids(self, *, after: bytes | None = None, limit: int = 10000) -> list[bytes]:
        self._use()
        return [oid for oid in sorted(self.blobs) if after is None or oid > after][: max(limit, 0)]

    def attachments(self, run: bytes, *, lo: int = 0, hi: int = MAX_REV) -> list[Attachment]:
        self._use()
        found = [a for a in self.attached if a.run == run and lo <= a.rev <= hi]
        found.sort(key=lambda a: (a.rev, a.task, a.idx))
        return [Attachment(a.rev, a.task, a.idx, a.epoch, a.data) for a in found]

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:
        held = self.lease(run)
        if held is not None and held.live:
            if held.owner != owner:
                return held
            until = max(held.until, self.clock() + ttl)
            lease = Lease(owner, held.epoch, until, live=True)
        else:
            until = self.clock() + ttl
            lease = Lease(owner, 1 if held is None else held.epoch + 1, until, live=until > self.clock())
        self.leases[run] = lease
        return lease

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:
        held = self.lease(run)
        if held is None or not held.live or held.owner != owner or held.epoch != epoch:
            return None
        self.leases[run] = Lease(owner, epoch, max(held.until, self.clock() + ttl), live=True)
        return self.leases[run]

    def release(self, run: bytes, owner: str, epoch: int) -> bool:
        held = self.lease(run)
        if held is None or not held.live or held.owner != owner or held.epoch != epoch:
            return False
        self.leases[run] = Lease(owner, epoch, self.clock(), live=False)
        return True

    def lease(self, run: bytes) -> Lease | None:
        self._use()
        held = self.leases.get(run)
        return None if held is None else Lease(held.owner, held.epoch, held.until, live=self.clock() < held.until)

    def mark(self) -> int:
        self._use()
        return self.saved

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int:
        self._use()
        before = len(self.blobs)
        spared = {oid for oid, claim in self.claims.items() if claim > mark}
        self.blobs = {oid: data for oid, data in self.blobs.items() if oid in spared or oid not in ids}
        return before - len(self.blobs)

    def check(self) -> list[str]:
        self._use()
        return []

    def size(self) -> int:
        self._use()
        kept = sum(len(kept.save.head) + len(kept.body) for kept in self.log)
        return kept + sum(len(a.data) for a in self.attached) + sum(len(data) for data in self.blobs.values())

    def compact(self) -> None:
        self._use()

    def close(self) -> None:
        self.closed = True
