"""Everything of one backend, or some of its runs, into another: by the contract alone, byte for byte.

A log is *poured* from a source into a sink, in the order of its commits: another backend (`copying_landing`) or a
file. Both ends are apart because an export, an import, a copy and a change of keys are the same two halves, put
together differently. What the bytes mean is asked of a `Meaning`, so that this room need not know it.

What is read is checked before it is handed on, and so is what is not there: a log with a hole is not poured as if it
had none.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from knotline.backends.contract import (
    MAX_REV,
    Attach,
    Attachment,
    Backend,
    Entry,
    Save,
    Write,
)
from knotline.errors import Damaged, Error, NotFound, UnknownFormat

__all__ = ["Meaning", "Progress", "Sent", "Sink", "Source", "oldest"]

_PAGE: Final = 500
_ROUNDS: Final = 8
"""How often a copy goes after what was written meanwhile: a source that never rests must not hold it for ever."""
_FURTHER: Final = 8
_AHEAD: Final = 32
_AHEAD_BYTES: Final = 4 << 20
_OBJECTS: Final = 64
_KNOWN: Final = 1 << 19
_UNREADABLE: Final = (Damaged, NotFound, UnknownFormat)
_WINDOW: Final = 64

Progress = Callable[[int, int, int | None], None]
"""Told bytes and entries that are done, and how many entries there are if that is known."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An entry's body as it can be read in a place where what comes after it is not there yet.

    `seal` is the revision with which the body that the source holds can be had back, by a recast. `origin` is an
    entry of another run that this one is worth nothing without.
    """

    body: bytes
    links: list[bytes]
    seal: int | None = None
    origin: tuple[bytes, int] | None = None


class Meaning(Protocol):
    """What a copy asks about bytes. Each of these may raise `Damaged`: what is damaged is not handed on."""

    def name(self, run: bytes) -> str: ...

    def alias(self, run: bytes) -> tuple[str, str] | None: ...

    def begins(self, run: bytes, rev: int, head: bytes) -> None:
        """May the log of this run begin here, above 0?"""
        ...

    def follows(self, run: bytes, rev: int, head: bytes, before: bytes) -> bool:
        """Does this head itself say that it was made after that one?"""
        ...

    def entry(self, entry: Entry) -> Sent: ...

    def links(self, oid: bytes, stored: bytes) -> list[bytes]: ...

    def attachment(self, run: bytes, found: Attachment) -> None: ...


class Sink(Protocol):
    """Where a log is poured. Of each entry it is asked first, before the body is read."""

    def wants(self, run: bytes, rev: int, head: bytes) -> bool: ...

    def put(self, write: Write) -> None: ...


def oldest(backend: Backend, run: bytes) -> int | None:
    """The lowest revision of a run that is still there."""
    found = backend.find(run=run, newest=False, limit=1)
    return found[0].rev if found else None


class Source:
    """A backend that is read. `runs` are keys; None is everything.

    With `damaged`, a run ends before its first damaged entry, which is told (None: it is what is attached to some that
    is damaged); without, damage is an error.
    """

    def __init__(
        self,
        backend: Backend,
        meaning: Meaning,
        runs: Sequence[bytes] | None = None,
        *,
        damaged: Callable[[bytes, int | None, Error], None] | None = None,
    ) -> None:
        self.backend = backend
        self.meaning = meaning
        self._runs = runs
        self._damaged = damaged
        self._ended: dict[bytes, int] = {}
        # By run: the revision that was last looked at, and whether the sink was given any yet.
        self._last: dict[bytes, int] = {}
        self._given: set[bytes] = set()
        # What the sink has by now; forgotten when it becomes long, which costs only sending some things twice.
        self._known: set[bytes] = set()
        self._waiting: dict[tuple[bytes, int], list[int]] = {}
        self._ahead: dict[tuple[bytes, int], Entry] = {}
        self._mean = _AHEAD_BYTES // _AHEAD
        # Runs of which an entry was dropped between its listing and its reading.
        self._torn: set[bytes] = set()
        # Runs that were poured with a drop that the source had not when it was first looked at.
        self._cut: set[bytes] = set()

    def runs(self) -> Iterator[tuple[bytes, int]]:
        """Keys and heads."""
        if self._runs is not None:
            for run in self._runs:
                head = self.backend.head(run)
                if head is not None:
                    yield run, head.rev
            return
        after: bytes | None = None
        while page := self.backend.runs(after=after):
            yield from page
            after = page[-1][0]

    def count(self) -> int:
        """Entries, roughly if somebody writes meanwhile."""
        return sum(head + 1 - (oldest(self.backend, run) or 0) for run, head in self.runs())

    def heads(self, run: bytes, hi: int) -> Iterator[Entry]:
        lo = oldest(self.backend, run)
        while lo is not None and lo <= hi:
            yield from self.backend.entries(run, lo, min(lo + _PAGE - 1, hi), bodies=False)
            lo += _PAGE

    # -- pouring -------------------------------------------------------------------------------------------

    def pour(self, sink: Sink) -> bool:
        """All entries, then all attachments. False if writers were still ahead when it ended.

        What was committed before the call is certainly poured.
        """
        start = beyond = self._newest(None)
        caught_up = beyond is None
        if beyond is not None and start is not None:
            self._pass(sink, self._entries(None, beyond), start)
            for _ in range(_ROUNDS):
                end = self._newest(None) or beyond
                caught_up = end <= beyond
                if caught_up:
                    break
                self._pass(sink, self._entries(beyond, end), start)
                beyond = end
            self._explained(sink, beyond, start)
        for run in self._runs if self._runs is not None else (run for run, _ in self.runs()):
            for attach in self._attached(run):
                sink.put(attach)
        return caught_up

    def _newest(self, run: bytes | None) -> int | None:
        newest = self.backend.find(run=run, limit=1)
        return newest[0].cursor if newest else None

    def _pass(self, sink: Sink, entries: Iterable[Entry], start: int) -> None:
        for entry in entries:
            if entry.run not in self._ended:
                save = self._looked(sink, entry, late=entry.cursor > start)
                if save is not None:
                    sink.put(save)

    def _explained(self, sink: Sink, beyond: int, start: int) -> None:
        """What was dropped beside us was dropped by an entry that may not have been poured yet: without it, the rest
        of its run looks as if it had lost its beginning. Such runs are followed some way further; so is one whose
        only entry was another whenever it was to be read.
        """
        reached: dict[bytes, int] = {}
        for _ in range(_FURTHER):
            behind = self._cut | self._torn
            if not behind:
                return
            self._cut = set()
            for run in behind:
                head = self.backend.head(run)
                if head is None or head.cursor <= reached.get(run, beyond):
                    continue
                if (oldest(self.backend, run) or 0) >= head.rev:
                    # It stands alone, and was read in one step.
                    self._ahead[run, head.rev] = head
                    self._pass(sink, (head,), start)
                else:
                    self._pass(sink, self._listed(run, reached.get(run, beyond), head.cursor, _PAGE), start)
                reached[run] = head.cursor

    def _looked(self, sink: Sink, entry: Entry, *, late: bool) -> Save | None:
        """What the sink is to be given of this entry; None when it has it, or must not have it."""
        try:
            self._in_order(entry)
            if not sink.wants(entry.run, entry.rev, entry.head):
                return None
            return self._save(entry, late=late)
        except _UNREADABLE as error:
            if self._damaged is None:
                raise
            self._end(entry.run, entry.rev, error)
            return None

    def _end(self, run: bytes, rev: int, error: Error) -> None:
        self._ended[run] = rev
        if self._damaged is not None:
            self._damaged(run, rev, error)

    def _in_order(self, entry: Entry) -> None:
        """An entry that is gone is either dropped, with all below it, or lost."""
        last = self._last.get(entry.run)
        self._last[entry.run] = entry.rev
        if last is None:
            if entry.rev:
                self.meaning.begins(entry.run, entry.rev, entry.head)
        elif entry.rev != last + 1:
            lowest = oldest(self.backend, entry.run)
            if lowest is not None and lowest < entry.rev:
                raise Damaged(f"entry {self.meaning.name(entry.run)!r} at {last + 1}", why="it is missing")
            self._torn.add(entry.run)

    def _entries(self, beyond: int | None, end: int) -> Iterator[Entry]:
        """Heads in the order of their commits."""
        if self._runs is None:
            return self._listed(None, beyond, end, _PAGE)
        page = min(max(4 * _PAGE // max(len(self._runs), 1), 8), _PAGE)
        each = (self._listed(run, beyond, end, page) for run in self._runs)
        return heapq.merge(*each, key=lambda entry: entry.cursor)

    def _listed(self, run: bytes | None, beyond: int | None, end: int, limit: int) -> Iterator[Entry]:
        while page := self.backend.find(run=run, beyond=beyond, newest=False, limit=limit):
            for entry in page:
                if entry.cursor > end:
                    return
                yield entry
            beyond = page[-1].cursor

    def _save(self, entry: Entry, *, late: bool) -> Save | None:
        """None when a prune beside us took it: then it is no part of the source any more."""
        found = self._read(entry)
        try:
            sent = None if found is None else self.meaning.entry(found)
            objects = () if sent is None else self._objects(sent.links)
        except _UNREADABLE:
            if self.backend.entries(entry.run, entry.rev, entry.rev, bodies=False):
                raise
            sent, objects = None, ()
        if sent is None:
            self._torn.add(entry.run)
            return None
        if sent.origin is not None:
            self._check_origin(entry, *sent.origin)
        if entry.run not in self._given:
            self._given.add(entry.run)
            self._look_back(entry.run, entry.rev)
        drop = 0
        if late or entry.run in self._torn:
            # Somebody drops beside us, and what is dropped there is dropped here with the same entry.
            self._torn.discard(entry.run)
            drop = min(oldest(self.backend, entry.run) or 0, entry.rev)
            if drop:
                self._known.clear()
                self._cut.add(entry.run)
        if sent.seal is not None and sent.seal > entry.rev:
            self._waiting.setdefault((entry.run, sent.seal), []).append(entry.rev)
        if len(self._known) > _KNOWN:
            self._known.clear()
        self._known.update(oid for oid, _ in objects)
        recast = self._recast(entry.run, entry.rev, drop)
        alias = self.meaning.alias(entry.run)
        return Save(entry.run, entry.rev, entry.head, sent.body, entry.tokens, objects, drop, recast, alias)

    def _check_origin(self, entry: Entry, run: bytes, rev: int) -> None:
        """What a run was forked from is pinned: where it is not, it was lost, or it is left out for its damage."""
        if self._ended.get(run, rev + 1) <= rev or not self.backend.entries(run, rev, rev, bodies=False):
            origin = f"{self.meaning.name(run)!r} at {rev}"
            raise Damaged(f"entry {self.meaning.name(entry.run)!r} at {entry.rev}", why=f"{origin} is missing under it")

    def _read(self, entry: Entry) -> Entry | None:
        """With its body; its run's next ones are read with it, as far as they are small."""
        place = (entry.run, entry.rev)
        if place not in self._ahead:
            many = max(1, min(_AHEAD, _AHEAD_BYTES // (self._mean + 1)))
            if len(self._ahead) * self._mean > 4 * _AHEAD_BYTES:
                many = 1
            try:
                found = self.backend.entries(entry.run, entry.rev, min(entry.rev + many - 1, MAX_REV))
            except Damaged:
                # One of those after it, perhaps: then this one alone is well.
                found = self.backend.entries(entry.run, entry.rev, entry.rev)
            for each in found:
                self._ahead[each.run, each.rev] = each
                self._mean = (7 * self._mean + len(each.body or b"")) // 8
        return self._ahead.pop(place, None)

    def _objects(self, links: Iterable[bytes]) -> tuple[tuple[bytes, bytes], ...]:
        """What these lead to, so far as the sink does not have it."""
        found: dict[bytes, bytes] = {}
        wanted = [oid for oid in dict.fromkeys(links) if oid not in self._known]
        while wanted:
            deeper: dict[bytes, None] = {}
            for at in range(0, len(wanted), _OBJECTS):
                part = wanted[at : at + _OBJECTS]
                there = self.backend.objects(part)
                for oid in part:
                    stored = there.get(oid)
                    if stored is None:
                        raise Damaged(f"object {oid.hex()}", why="it is missing")
                    found[oid] = stored
                    deeper.update(dict.fromkeys(self.meaning.links(oid, stored)))
            wanted = [oid for oid in deeper if oid not in found and oid not in self._known]
        return tuple(found.items())

    def _look_back(self, run: bytes, rev: int) -> None:
        """What the sink has from an earlier try may wait for a seal that it does not have."""
        hi = rev - 1
        while hi >= 0:
            lo = max(hi - _WINDOW + 1, 0)
            seals = [(entry.rev, self._seal(entry)) for entry in self.backend.entries(run, lo, hi)]
            waiting = [(old, seal) for old, seal in seals if seal is not None and seal >= rev]
            if not waiting:
                return
            for old, seal in waiting:
                self._waiting.setdefault((run, seal), []).append(old)
            hi = lo - 1

    def _recast(self, run: bytes, seal: int, drop: int) -> tuple[tuple[int, bytes], ...]:
        """The small bodies that wait for this seal, read and checked once more: there may be many runs that wait."""
        revs = {rev for rev in self._waiting.pop((run, seal), ()) if rev >= drop}
        if not revs:
            return ()
        there = [entry for entry in self.backend.entries(run, min(revs), max(revs)) if entry.rev in revs]
        return tuple((each.rev, each.body or b"") for each in there if self._seal(each) == seal)

    def _seal(self, entry: Entry) -> int | None:
        """Of an entry that the sink has: should it be damaged by now, nothing is taken from it."""
        try:
            return self.meaning.entry(entry).seal
        except _UNREADABLE:
            return None

    def _attached(self, run: bytes) -> Iterator[Attach]:
        head, lo = self.backend.head(run), oldest(self.backend, run)
        edges = [0, 0 if lo is None else lo, MAX_REV + 1]
        if head is not None and lo is not None:
            edges[2:2] = [*range(lo + _WINDOW, head.rev + 2, _WINDOW), head.rev + 2]
        beyond = self._ended.get(run, MAX_REV + 1)
        for start, end in pairwise(edges):
            for each in self._beside(run, start, end - 1) if start < end else ():
                if each.rev >= beyond:
                    return  # it would come to lie beside another entry, should the run go on there
                try:
                    self.meaning.attachment(run, each)
                except _UNREADABLE as error:
                    self._attachments_damaged(run, error)
                else:
                    yield Attach(run, each.rev, each.task, each.idx, each.epoch, each.data)

    def _beside(self, run: bytes, lo: int, hi: int) -> list[Attachment]:
        try:
            return self.backend.attachments(run, lo=lo, hi=hi)
        except _UNREADABLE as error:
            self._attachments_damaged(run, error)
            return []

    def _attachments_damaged(self, run: bytes, error: Error) -> None:
        if self._damaged is None:
            raise error
        self._damaged(run, None, error)
