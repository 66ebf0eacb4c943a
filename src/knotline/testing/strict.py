"""A backend that takes nothing from a caller that the contract does not allow.

Production must not be damaged by a caller's mistake, so it often survives one in silence. This wrapper turns
each into `ContractBroken`, so that the tests of the rooms above find it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeVar

from knotline.backends.contract import (
    MAX_REV,
    MAX_RUN_KEY,
    MAX_TOKEN,
    Attach,
    Attachment,
    Backend,
    Entry,
    Lease,
    Outcome,
    Save,
    Write,
)
from knotline.errors import ContractBroken

__all__ = ["StrictBackend"]

_T = TypeVar("_T")
_ID = 16


def _must(truth: object, said: str) -> None:
    if not truth:
        raise ContractBroken(said)


def _raw(value: object, said: str) -> None:
    # Not a bytearray either: a backend may keep what it was given.
    _must(type(value) is bytes, f"{said} is not bytes but {type(value).__name__}")


def _whole(value: object, lo: int, hi: int, said: str) -> None:
    _must(type(value) is int and lo <= value <= hi, f"{said} is {value!r}, outside {lo} … {hi}")


def _key(run: object) -> None:
    _raw(run, "a run key")
    _must(isinstance(run, bytes) and 1 <= len(run) <= MAX_RUN_KEY, "a run key has 1 to 512 bytes")


def _id(oid: object) -> None:
    _raw(oid, "an object id")
    _must(isinstance(oid, bytes) and len(oid) == _ID, "an object id has 16 bytes")


class StrictBackend:
    """Everything goes to `inner`, after it was looked at."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self._closed = False
        self._lock = threading.Lock()
        self._seen: dict[bytes, bytes] = {}
        self._marks: set[int] = set()
        self._inside = threading.local()

    @property
    def lanes(self) -> int:
        return self.inner.lanes

    @property
    def name(self) -> str:
        return self.inner.name

    def _call(self, method: Callable[[], _T]) -> _T:
        _must(not self._closed, "used after it was closed")
        _must(not getattr(self._inside, "yes", False), "called from inside a call")
        self._inside.yes = True
        try:
            return method()
        finally:
            self._inside.yes = False

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        _must(not self._closed, "used after it was closed")
        writes = tuple(writes)
        _must(writes, "a commit of nothing")
        heads: dict[bytes, int] = {}
        for write in writes:
            _key(write.run)
            _whole(write.rev, 0, MAX_REV, "a rev")
            if isinstance(write, Save):
                self._look_at_save(write, heads)
            else:
                self._look_at_attach(write)
        outcomes = self._call(lambda: self.inner.commit(writes, sync=sync))
        _must(len(outcomes) == len(writes), f"{len(outcomes)} outcomes for {len(writes)} writes")
        return outcomes

    def _look_at_save(self, save: Save, heads: dict[bytes, int]) -> None:
        _raw(save.head, "a head")
        _raw(save.body, "a body")
        for token in save.tokens:
            _whole(token, 0, MAX_TOKEN, "a token")
        if save.run not in heads:
            head = self._call(lambda: self.inner.head(save.run))
            heads[save.run] = -1 if head is None else head.rev
        # At or below the head is a stale writer's right: it conflicts. Heads only rise, so this cannot race.
        known = heads[save.run]
        next_or_first = save.rev <= known + 1 or save.drop == save.rev
        _must(next_or_first, f"rev {save.rev} is not contiguous: the head is {known}")
        heads[save.run] = max(known, save.rev)
        _whole(save.drop, 0, save.rev, "drop")
        self._look_at_objects(save.objects)
        for rev, body in save.recast:
            _whole(rev, 0, save.rev - 1, "a recast rev")
            _must(rev >= save.drop, f"rev {rev} is recast and dropped at once")
            _raw(body, "a recast body")
        revs = [rev for rev, _ in save.recast]
        _must(len(revs) == len(set(revs)), "a rev is recast twice in one save")

    def _look_at_objects(self, objects: Iterable[tuple[bytes, bytes]]) -> None:
        for oid, data in objects:
            _id(oid)
            _raw(data, "an object")
            digest = blake2b(data, digest_size=16).digest()
            with self._lock:
                before = self._seen.setdefault(oid, digest)
            _must(before == digest, f"object {oid.hex()} was given with other bytes before")

    def _look_at_attach(self, attach: Attach) -> None:
        _raw(attach.task, "a task")
        _raw(attach.data, "attached data")
        _whole(attach.idx, -(2**31), 2**31 - 1, "idx")
        _whole(attach.epoch, 0, 2**63 - 1, "epoch")

    # -- reading -------------------------------------------------------------------------------------------

    def head(self, run: bytes) -> Entry | None:
        _key(run)
        return self._call(lambda: self.inner.head(run))

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        _key(run)
        _whole(lo, 0, MAX_REV, "lo")
        _whole(hi, 0, MAX_REV, "hi")
        return self._call(lambda: self.inner.entries(run, lo, hi, bodies=bodies))

    def find(
        self,
        tokens: Sequence[int] = (),
        *,
        run: bytes | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 100,
    ) -> list[Entry]:
        for token in tokens:
            _whole(token, 0, MAX_TOKEN, "a token")
        if run is not None:
            _key(run)
        _whole(limit, 1, 2**31, "limit")
        return self._call(lambda: self.inner.find(tokens, run=run, beyond=beyond, newest=newest, limit=limit))

    def runs(self, *, after: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, int]]:
        if after is not None:
            _key(after)
        _whole(limit, 1, 2**31, "limit")
        return self._call(lambda: self.inner.runs(after=after, limit=limit))

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        for oid in ids:
            _id(oid)
        return self._call(lambda: self.inner.objects(ids))

    def object_ids(self, *, after: bytes | None = None, limit: int = 10000) -> list[bytes]:
        if after is not None:
            _id(after)
        _whole(limit, 1, 2**31, "limit")
        return self._call(lambda: self.inner.object_ids(after=after, limit=limit))

    def attachments(self, run: bytes, *, lo: int = 0, hi: int = MAX_REV) -> list[Attachment]:
        _key(run)
        _whole(lo, 0, MAX_REV, "lo")
        _whole(hi, 0, MAX_REV, "hi")
        return self._call(lambda: self.inner.attachments(run, lo=lo, hi=hi))

    # -- leases --------------------------------------------------------------------------------------------

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:
        self._look_at_lease(run, owner)
        _must(ttl > 0, f"a lease for {ttl} s")
        return self._call(lambda: self.inner.acquire(run, owner, ttl))

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:
        self._look_at_lease(run, owner)
        _must(ttl > 0, f"a lease for {ttl} s")
        return self._call(lambda: self.inner.renew(run, owner, epoch, ttl))

    def release(self, run: bytes, owner: str, epoch: int) -> bool:
        self._look_at_lease(run, owner)
        return self._call(lambda: self.inner.release(run, owner, epoch))

    def lease(self, run: bytes) -> Lease | None:
        _key(run)
        return self._call(lambda: self.inner.lease(run))

    def _look_at_lease(self, run: bytes, owner: str) -> None:
        _key(run)
        _must(type(owner) is str and owner, "an owner is a name")

    # -- space ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        mark = self._call(self.inner.mark)
        self._marks.add(mark)
        return mark

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int:
        _must(mark in self._marks, f"mark {mark} was not given by mark()")
        for oid in ids:
            _id(oid)
        return self._call(lambda: self.inner.discard(ids, mark=mark))

    def check(self) -> list[str]:
        return self._call(self.inner.check)

    def size(self) -> int:
        return self._call(self.inner.size)

    def compact(self) -> None:
        self._call(self.inner.compact)

    def close(self) -> None:
        self._closed = True
        self.inner.close()
