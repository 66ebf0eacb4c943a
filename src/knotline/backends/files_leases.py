"""Leases as files, one a run, changed under one lock. They are advice: entries decide, whatever happens here."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Generator
from typing import Any, Final

from knotline.backends.contract import Lease
from knotline.backends.files_medium import Medium
from knotline.backends.files_names import Names
from knotline.errors import Damaged

__all__ = ["Leases"]

_FORM: Final = {"run": str, "owner": str, "epoch": int, "until": float}


class Leases:
    def __init__(self, medium: Medium, names: Names, clock: Callable[[], float]) -> None:
        self._medium = medium
        self._names = names
        self._clock = clock

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        """The lock goes with its holder, however that ends; the file stays for good."""
        fd = self._medium.disk.open_append(self._names.leases_lock)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self._medium.disk.close(fd)

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:
        with self._locked():
            # Read once the lock is held: a wait for it must not make the time stale.
            now = self._clock()
            holder, epoch, until = self._held(run) or ("", 0, now)
            if now < until and holder != owner:
                return Lease(holder, epoch, until, live=True)
            if now < until:
                until = max(until, now + ttl)
            else:
                epoch, until = epoch + 1, now + ttl
            self._keep(run, owner, epoch, until, sync=True)
            return Lease(owner, epoch, until, live=now < until)

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:
        with self._locked():
            now = self._clock()
            held = self._held(run)
            if held is None or held[:2] != (owner, epoch) or now >= held[2]:
                return None
            until = max(held[2], now + ttl)
            self._keep(run, owner, epoch, until, sync=False)
            return Lease(owner, epoch, until, live=True)

    def release(self, run: bytes, owner: str, epoch: int) -> bool:
        with self._locked():
            now = self._clock()
            held = self._held(run)
            if held is None or held[:2] != (owner, epoch) or now >= held[2]:
                return False
            self._keep(run, owner, epoch, now, sync=False)
            return True

    def lease(self, run: bytes) -> Lease | None:
        held = self._held(run)
        return None if held is None else Lease(*held, live=self._clock() < held[2])

    def _held(self, run: bytes) -> tuple[str, int, float] | None:
        text = self._medium.read(self._names.lease(run))
        if text is None:
            return None
        try:
            said: dict[str, Any] = json.loads(text)
            sound = {name: type(value) for name, value in said.items()} == _FORM and said["run"] == run.hex()
        except (ValueError, AttributeError, RecursionError) as error:
            raise Damaged(f"lease of {run!r}", why=str(error)) from error
        if not sound:
            raise Damaged(f"lease of {run!r}", why="it has other fields than were written")
        return said["owner"], said["epoch"], said["until"]

    def _keep(self, run: bytes, owner: str, epoch: int, until: float, *, sync: bool) -> None:
        """Without `sync` a power cut may take it back: a lease that ends sooner."""
        folders = self._medium.ensure(self._names.leases)
        said = {"run": run.hex(), "owner": owner, "epoch": epoch, "until": float(until)}
        text = json.dumps(said, indent=1).encode() + b"\n"
        self._medium.replace(self._names.leases, self._names.lease(run), text)
        if (sync or folders) and self._medium.sync([*folders, self._names.leases]) and self._medium.failure:
            raise self._medium.failure
