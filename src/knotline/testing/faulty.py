"""A backend that fails at a call of your choice, so that every step of a room above can be interrupted.

Three things happen to real calls: they fail before anything was done, they are done and the answer is lost, and
a batch is done in part. A test walks `at` from 1 upwards until `injected` stays 0: then no call was left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from knotline.backends.contract import (
    MAX_REV,
    Attachment,
    Backend,
    Entry,
    Failed,
    Lease,
    Outcome,
    Write,
)
from knotline.errors import Unavailable

__all__ = ["FaultyBackend", "Plan"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Plan:
    """Fail at the `at`-th call (from 1), and if `forever` at every later one too.

    `before`: nothing is done. `after`: it is done, but the caller hears that it failed. `partial`: only the
    first `keep` writes of a commit are handed on (other calls fail as with `before`). `only` counts the calls
    of one method alone. `close` never fails: a test must be able to let go.
    """

    at: int
    kind: Literal["before", "after", "partial"] = "before"
    only: str | None = None
    keep: int = 1
    forever: bool = False


class FaultyBackend:
    def __init__(self, inner: Backend, plan: Plan) -> None:
        self.inner = inner
        self.plan = plan
        self.calls = 0
        self.injected = 0
        self._lock = threading.Lock()

    @property
    def lanes(self) -> int:
        return self.inner.lanes

    @property
    def name(self) -> str:
        return f"faulty:{self.inner.name}"

    def _due(self, method: str) -> bool:
        if self.plan.only not in (None, method):
            return False
        with self._lock:
            self.calls += 1
            due = self.calls == self.plan.at or (self.plan.forever and self.calls > self.plan.at)
            self.injected += due
        return due

    def _error(self, method: str) -> Unavailable:
        return Unavailable(self.name, why=f"injected {self.plan.kind} {method}")

    def _call(self, method: str, call: Callable[[], _T]) -> _T:
        if not self._due(method):
            return call()
        if self.plan.kind == "after":
            call()
        raise self._error(method)

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        if not self._due("commit"):
            return self.inner.commit(writes, sync=sync)
        done: list[Outcome] = []
        if self.plan.kind == "after":
            self.inner.commit(writes, sync=sync)
        elif self.plan.kind == "partial":
            done = self.inner.commit(writes[: self.plan.keep], sync=sync)
        return done + [Failed(self._error("commit")) for _ in writes[len(done) :]]

    def head(self, run: bytes) -> Entry | None:
        return self._call("head", lambda: self.inner.head(run))

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        return self._call("entries", lambda: self.inner.entries(run, lo, hi, bodies=bodies))

    def find(
        self,
        tokens: Sequence[int] = (),
        *,
        run: bytes | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 100,
    ) -> list[Entry]:
        return self._call("find", lambda: self.inner.find(tokens, run=run, beyond=beyond, newest=newest, limit=limit))

    def runs(self, *, after: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, int]]:
        return self._call("runs", lambda: self.inner.runs(after=after, limit=limit))

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._call("objects", lambda: self.inner.objects(ids))

    def object_ids(self, *, after: bytes | None = None, limit: int = 10000) -> list[bytes]:
        return self._call("object_ids", lambda: self.inner.object_ids(after=after, limit=limit))

    def attachments(self, run: bytes, *, lo: int = 0, hi: int = MAX_REV) -> list[Attachment]:
        return self._call("attachments", lambda: self.inner.attachments(run, lo=lo, hi=hi))

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:
        return self._call("acquire", lambda: self.inner.acquire(run, owner, ttl))

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:
        return self._call("renew", lambda: self.inner.renew(run, owner, epoch, ttl))

    def release(self, run: bytes, owner: str, epoch: int) -> bool:
        return self._call("release", lambda: self.inner.release(run, owner, epoch))

    def lease(self, run: bytes) -> Lease | None:
        return self._call("lease", lambda: self.inner.lease(run))

    def mark(self) -> int:
        return self._call("mark", self.inner.mark)

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int:
        return self._call("discard", lambda: self.inner.discard(ids, mark=mark))

    def check(self) -> list[str]:
        return self._call("check", self.inner.check)

    def size(self) -> int:
        return self._call("size", self.inner.size)

    def compact(self) -> None:
        self._call("compact", self.inner.compact)

    def close(self) -> None:
        self.inner.close()
