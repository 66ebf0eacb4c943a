"""A backend as the end of a copy: what it has is compared, what it lacks is created, and all of it becomes durable.

Nothing is ever written over. So a copy that was interrupted is simply begun again, and goes on where it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from knotline.backends.contract import MAX_REV, Backend, Conflicted, Failed, Save, Write
from knotline.backends.copying import Meaning, Progress
from knotline.errors import Conflict

__all__ = ["Landing", "Standing", "weight"]

_BATCH: Final = 256
_BATCH_BYTES: Final = 8 << 20
_WINDOW: Final = 64
_WINDOWS: Final = 256


class Standing:
    """What of the logs that are coming the target has already.

    Heads are compared wherever both have one; another head is a `Conflict`. So is a run of which both have nothing
    in common (one was pruned past the other's end): nobody can tell whether they are one. Where `follow` says so
    they are taken for one, and the newer is what counts.
    """

    def __init__(self, into: Backend, meaning: Meaning, *, follow: Callable[[bytes], bool] = lambda _: False) -> None:
        self._into = into
        self._meaning = meaning
        self._follow = follow
        self._tops: dict[bytes, int] = {}
        self._last: dict[bytes, int] = {}
        self._shared: set[bytes] = set()
        self._windows: OrderedDict[tuple[bytes, int], dict[int, bytes]] = OrderedDict()

    def top(self, run: bytes) -> int:
        """The head that the run had when it was first asked for; -1 if there was none."""
        top = self._tops.get(run)
        if top is None:
            entry = self._into.head(run)
            top = self._tops[run] = -1 if entry is None else entry.rev
        return top

    def see(self, run: bytes, rev: int, head: bytes) -> None:
        top = self.top(run)
        if top < 0:
            return
        self._last[run] = rev
        if rev > top:
            if rev == top + 1 and run not in self._shared:
                before = self._window(run, top // _WINDOW).get(top)
                if before is not None and self._meaning.follows(run, rev, head, before):
                    self._shared.add(run)
            return
        there = self._window(run, rev // _WINDOW).get(rev)
        if there is None:
            return
        if there != head:
            raise Conflict(self._meaning.name(run), expected=rev, found=top)
        self._shared.add(run)

    def _window(self, run: bytes, number: int) -> dict[int, bytes]:
        key = (run, number)
        window = self._windows.get(key)
        if window is None:
            lo = number * _WINDOW
            found = self._into.entries(run, lo, min(lo + _WINDOW - 1, MAX_REV), bodies=False)
            window = self._windows[key] = {entry.rev: entry.head for entry in found}
            if len(self._windows) > _WINDOWS:
                self._windows.popitem(last=False)
        return window

    def settle(self) -> None:
        """After everything was seen."""
        for run in self._last:
            self.joined(run)

    def joined(self, run: bytes) -> None:
        """Is what comes next for this run known to continue what is there?"""
        top = self.top(run)
        if top >= 0 and run not in self._shared and not self._follow(run):
            raise Conflict(self._meaning.name(run), expected=self._last.get(run, -1), found=top)

    def has(self, run: bytes, rev: int, head: bytes) -> bool:
        return self._window(run, rev // _WINDOW).get(rev) == head

    def present(self) -> list[tuple[bytes, int]]:
        """Runs that were there, at least in part, and their heads then."""
        return [(run, self._tops[run]) for run in self._last]


class Landing:
    """A backend as a sink. Batches are bounded, and hold no run twice, as the contract asks.

    Each batch waits for its sync: the contract has no sync of what was written before.
    """

    def __init__(
        self,
        into: Backend,
        standing: Standing,
        meaning: Meaning,
        *,
        progress: Progress | None = None,
        total: int | None = None,
    ) -> None:
        self._into = into
        self._standing = standing
        self._meaning = meaning
        self._progress = progress
        self._total = total
        self._batch: list[Write] = []
        self._runs: set[bytes] = set()
        self._size = 0
        self._first: dict[bytes, int] = {}
        self._begun: set[bytes] = set()
        self.entries = 0
        self.present = 0
        self.objects = 0
        self.attachments = 0
        self.bytes = 0

    @property
    def runs(self) -> int:
        return len(self._first)

    def wants(self, run: bytes, rev: int, head: bytes) -> bool:
        self._first.setdefault(run, rev)
        self._standing.see(run, rev, head)
        if rev > self._standing.top(run):
            return True
        self.present += 1
        return False

    def put(self, write: Write) -> None:
        size = weight(write)
        again = isinstance(write, Save) and write.run in self._runs
        if again or len(self._batch) >= _BATCH or (self._batch and self._size + size > _BATCH_BYTES):
            self.flush()
        if isinstance(write, Save):
            if write.run not in self._begun:
                # What the source has no more is dropped here too; a run that begins late begins so.
                self._standing.joined(write.run)
                self._begun.add(write.run)
                first = min(self._first.get(write.run, write.rev), write.rev)
                write = replace(write, drop=max(write.drop, first))
            self._runs.add(write.run)
        self._batch.append(write)
        self._size += size

    def flush(self) -> None:
        batch, size = self._batch, self._size
        self._batch, self._size = [], 0
        self._runs.clear()
        self._commit(batch)
        for write in batch:
            if isinstance(write, Save):
                self.entries += 1
                self.objects += len(write.objects)
            else:
                self.attachments += 1
        self.bytes += size
        if self._progress is not None:
            done = self.entries + self.present
            self._progress(self.bytes, done, None if self._total is None else max(self._total, done))

    def _commit(self, batch: list[Write]) -> None:
        for write, outcome in zip(batch, self._into.commit(batch) if batch else (), strict=True):
            if isinstance(outcome, Failed):
                raise outcome.error
            if isinstance(outcome, Conflicted):
                head = self._into.head(write.run)
                expected = write.rev - 1 if isinstance(write, Save) else write.rev
                raise Conflict(self._meaning.name(write.run), expected=expected, found=-1 if head is None else head.rev)

    def finish(self) -> None:
        """When this returns, all of it is durable; also what a copy before this one left half-way.

        Whoever died between writing an entry and its sync left at most the one that was the run's head.
        """
        self.flush()
        there: list[Write] = []
        size = 0
        for run, top in self._standing.present():
            for entry in self._into.entries(run, top, top):
                there.append(Save(run, top, entry.head, entry.body or b""))
                size += weight(there[-1])
            if len(there) >= _BATCH or size > _BATCH_BYTES:
                self._commit(there)
                there, size = [], 0
        self._commit(there)


def weight(write: Write) -> int:
    """The bytes that a write brings."""
    if isinstance(write, Save):
        return len(write.head) + len(write.body) + sum(len(data) for _, data in write.objects)
    return len(write.data)
