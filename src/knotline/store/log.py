"""Logs of runs: every verb that adds an entry or reads one. Knows moves and states, not what a step is."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from knotline.backends import MAX_REV, Attach, Attachment, Backend, Conflicted, Done, Entry, Failed, Outcome
from knotline.codec import decode, digest, encode, glance, open_head, private
from knotline.codec.bodies import Body, Delta, Fork, Nothing
from knotline.errors import Conflict, Damaged, Fenced, LeaseHeld, NotFound, NothingToUndo, Unavailable
from knotline.records import NOWHERE, Header, Op
from knotline.store.change import Clean
from knotline.store.names import document_key, document_name, is_run, label_token, label_tokens, run_key, run_name
from knotline.store.reading import Loaded, Reader
from knotline.store.view import View
from knotline.store.warm import Draft, Warm

__all__ = [
    "Decide",
    "Found",
    "Held",
    "Page",
    "Said",
    "Store",
    "check_attachment",
    "decided",
    "open_attachment",
]

_PIN: Final = "op=pin"
_VIEW: Final = "op=view"
_GONE: Final = "op=gone"
_TRIES: Final = 10_000
_CHECK: Final = 8


@dataclass(frozen=True, slots=True)
class Found:
    header: Header
    cursor: int


@dataclass(frozen=True, slots=True)
class Page:
    """`next` continues where this page ended; None when there is nothing further."""

    items: list[Found]
    next: int | None


@dataclass(frozen=True, slots=True)
class Said:
    """What a save says of itself besides its state."""

    note: Mapping[str, object]
    labels: tuple[str, ...] = ()
    alias: tuple[str, str] | None = None
    sized: bool = False
    """The note is to say how many bytes the save brought, as `size`."""


Decide = Callable[[Header | None], Said]
"""Asked with the head that a save will follow, each time it is tried: what it says may depend on what is there."""


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as its owner holds it. `epoch` goes into every entry written under it."""

    run: str
    owner: str
    epoch: int
    ticket: int
    until: float


@dataclass(frozen=True, slots=True)
class _Pin:
    rev: int
    why: str
    fork: str | None
    """The run that stands on it: such a pin is not taken away by hand."""

    @classmethod
    def read(cls, rev: object, why: object, fork: object) -> _Pin:
        """From a note, which may be anything."""
        if type(rev) is not int or type(why) is not str or not isinstance(fork, str | None):
            raise TypeError(f"no pin: {type(rev).__name__}, {type(why).__name__}, {type(fork).__name__}")
        return cls(rev, why, fork)


@dataclass(frozen=True, slots=True)
class Move:
    """What to append when it is not a state: decided on the head that it will follow."""

    op: Op
    pos: int
    undo: int
    redo: int
    note: Mapping[str, object]
    body: Body
    tokens: tuple[int, ...] = ()
    drop: int = 0


_SEEN: Final = (label_token(_VIEW),)


def now() -> int:
    return time.time_ns() // 1000


class Store:
    """Runs and documents on one backend. Safe to use from several threads."""

    def __init__(
        self,
        backend: Backend,
        *,
        clock: Callable[[], int] = now,
        entropy: Callable[[int], bytes] = os.urandom,
        warm_runs: int = 256,
        clean: Clean | None = None,
    ) -> None:
        """`clean` says what a value is stored as (`knotline.policy.Redaction.clean`)."""
        self.backend = backend
        self.clean = clean
        self.reader = Reader(backend)
        self.clock = clock
        self._writer = entropy(8)
        self._warm_runs = warm_runs
        self._warms: OrderedDict[bytes, Warm] = OrderedDict()
        self._mutex = threading.Lock()

    def close(self) -> None:
        self._warms.clear()
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- states -------------------------------------------------------------------------------------------

    def append(
        self,
        run: str,
        value: object,
        *,
        note: Mapping[str, object] | Decide | None = None,
        labels: Iterable[str] = (),
        expected: int | None = None,
        held: Held | None = None,
        sync: bool = True,
    ) -> Header:
        """Save a state. Only what changed is written; when this returns it is durable (unless `sync=False`).

        `expected` is the head's revision that the caller knows (-1: no such run); another head is a `Conflict`.
        Without it a save that lost a race reads the head again and appends.
        """
        key = run_key(run)
        decide = decided(note, labels)
        for _ in range(_TRIES):
            warm = self.warm(key)
            with warm.lock:
                if warm.spent:
                    continue
                if expected not in (None, warm.rev) and self.outdated(warm):
                    continue
                draft = self.draft(warm, value, decide=decide, expected=expected, held=held)
                outcome = self.backend.commit([draft.save], sync=sync)[0]
                if self.settle(draft, outcome, expected=expected):
                    return draft.header
                value = warm.shadow.value if warm.shadow is not None else value
        raise Unavailable(f"run {run!r}", why=f"lost {_TRIES} races for its head")

    def load(self, run: str, rev: int | None = None) -> Any:
        """The state that is current at the head, or after the entry `rev`."""
        key = run_key(run)
        return self._loaded(key, lambda: self._existing(key, rev)).tree

    def head(self, run: str) -> Header | None:
        """The newest entry, whatever it is; None if there never was one."""
        return self.reader.head(run_key(run))

    def header(self, run: str, rev: int | None = None) -> Header:
        return self._existing(run_key(run), rev)

    def seal(self, run: str, *, held: Held | None = None) -> Header:
        """Write the current state whole, so that nothing older is needed to read it."""
        key = run_key(run)
        for _ in range(_TRIES):
            warm = self.warm(key)
            with warm.lock:
                if warm.spent:
                    continue
                if (warm.head is None or warm.head.pos == NOWHERE) and self.outdated(warm):
                    continue
                head = self._visible(warm)
                draft = warm.draft_state(
                    None, op="seal", at=self.clock(), epoch=self._epoch(warm, held), note={}, tokens=(), seal=head
                )
                if self.settle(draft, self.backend.commit([draft.save])[0]):
                    return draft.header
        raise Unavailable(f"run {run!r}", why=f"lost {_TRIES} races for its head")

    # -- moves --------------------------------------------------------------------------------------------

    def rollback(
        self, run: str, rev: int, *, note: Mapping[str, object] | None = None, held: Held | None = None
    ) -> Header:
        """Make the state of entry `rev` current again. Nothing is destroyed; `undo` goes back."""
        key = run_key(run)

        def move(head: Header) -> Move:
            target = self._existing(key, rev)
            gone = self._gone(key, target.rev)
            if target.pos in gone or not self._stands(key, target.pos):
                raise NotFound("state", f"{run}@{rev}")
            view = self._view_at(key, head)
            if target.rev in view:
                # What was hidden on the way there stays hidden.
                view = view.minus(View(((target.rev + 1, head.rev),)))
            else:
                view = self._view_at(key, target).minus(gone)
            said: dict[str, object] = {**(note or {}), "to": rev, "view": view.rows()}
            return Move("rollback", target.pos, head.rev, NOWHERE, said, Nothing(), _SEEN)

        return self._move(key, move, held)

    def undo(self, run: str, *, held: Held | None = None) -> Header:
        return self._step(run, "undo", held)

    def redo(self, run: str, *, held: Held | None = None) -> Header:
        return self._step(run, "redo", held)

    def _step(self, run: str, verb: Op, held: Held | None) -> Header:
        key = run_key(run)

        def move(head: Header) -> Move:
            to = head.undo if verb == "undo" else head.redo
            try:
                if to == NOWHERE:
                    raise NothingToUndo(run, verb)
                there = self.reader.header(key, to)
            except NotFound as error:
                raise NothingToUndo(run, verb) from error
            gone = self._gone(key, there.rev)
            if there.pos in gone or not self._stands(key, there.pos):
                raise NothingToUndo(run, verb)
            redo = head.rev if verb == "undo" else there.redo
            said = {"to": to, "view": self._view_at(key, there).minus(gone).rows()}
            return Move(verb, there.pos, there.undo, redo, said, Nothing(), _SEEN)

        return self._move(key, move, held)

    def hide(self, run: str, revs: Iterable[int], *, note: Mapping[str, object] | None = None) -> Header:
        """Take entries out of the view; `undo` brings them back. What they hold goes when a prune reaches them."""
        key = run_key(run)
        out = frozenset(revs)

        def move(head: Header) -> Move:
            said: dict[str, object] = {**(note or {}), "view": self._view_at(key, head).without(out).rows()}
            return Move("annotate", head.pos, head.rev, NOWHERE, said, Nothing(), _SEEN)

        return self._move(key, move, None)

    def discard(self, run: str, revs: Iterable[int], *, note: Mapping[str, object] | None = None) -> View:
        """Take entries out of the view for good: no undo leads to them again. Gives those that went.

        What is current or pinned by the time that this is written stays.
        """
        key = run_key(run)
        wanted = frozenset(revs)

        def move(head: Header) -> Move:
            stays = {head.pos, *(pin.rev for pin in self._pins(key))}
            gone = View.over(wanted - stays)
            said: dict[str, object] = {
                **(note or {}),
                "gone": gone.rows(),
                "view": self._view_at(key, head).minus(gone).rows(),
            }
            tokens = (*_SEEN, label_token(_GONE))
            return Move("annotate", head.pos, head.undo, head.redo, said, Nothing(), tokens)

        return View(tuple((lo, hi) for lo, hi in cast("Any", self._move(key, move, None).note["gone"])))

    def _gone(self, key: bytes, since: int) -> View:
        """What was discarded after the entry `since`: a view of that time does not know it."""
        revs: set[int] = set()
        beyond: int | None = None
        while page := self.backend.find((label_token(_GONE),), run=key, beyond=beyond, limit=50):
            for entry in page:
                move = open_head(entry.head, run_name(key), entry.rev)
                if move.rev <= since:
                    return View.over(revs)
                for lo, hi in cast("Any", move.note.get("gone", ())):
                    revs.update(range(lo, hi + 1))
            beyond = page[-1].cursor
        return View.over(revs)

    def view(self, run: str, rev: int | None = None) -> View:
        """Which entries led to the situation at the head, or after the entry `rev`."""
        key = run_key(run)
        return self._view_at(key, self._existing(key, rev))

    def _view_at(self, key: bytes, header: Header) -> View:
        """The last move that changed the view says what it was then; all that came after it is in sight."""
        if "view" in header.note:
            return View.of(header.note["view"], header.rev)
        found = self.backend.entries(key, header.rev, header.rev, bodies=False)
        beyond = found[0].cursor if found else None
        while page := self.backend.find(_SEEN, run=key, beyond=beyond, limit=1):
            move = open_head(page[0].head, header.run, page[0].rev)
            if "view" in move.note and move.rev < header.rev:
                return View.of(move.note["view"], move.rev).until(header.rev)
            beyond = page[0].cursor
        return View(()).until(header.rev)

    def annotate(
        self, run: str, note: Mapping[str, object], *, labels: Iterable[str] = (), held: Held | None = None
    ) -> Header:
        tokens = label_tokens(labels)
        return self._move(run_key(run), lambda head: _aside(head, "annotate", note, tokens), held)

    def say(
        self,
        run: str,
        note: Mapping[str, object],
        *,
        labels: Iterable[str] = (),
        held: Held | None = None,
        sync: bool = True,
    ) -> Header:
        """An entry that only says something, also of a run that has no state yet. The warm head stays warm."""
        key = run_key(run)
        tokens = label_tokens(labels)
        for _ in range(_TRIES):
            warm = self.ready(key)
            if warm is None:
                warm = Warm(run, key, self._writer, self.reader.head(key), None)
            with warm.lock:
                head = warm.head
                if warm.spent:
                    continue
                draft = warm.draft_move(
                    "annotate",
                    at=self.clock(),
                    epoch=self._epoch(warm, held),
                    note=note,
                    pos=NOWHERE if head is None else head.pos,
                    undo=NOWHERE if head is None else head.undo,
                    redo=NOWHERE if head is None else head.redo,
                    body=Nothing(),
                    tokens=tokens,
                )
                if self.settle(draft, self.backend.commit([draft.save], sync=sync)[0]):
                    return draft.header
        raise Unavailable(f"run {run!r}", why=f"lost {_TRIES} races for its head")

    def pin(self, run: str, rev: int, *, keep: bool = True, why: str = "") -> Header:
        """Keep (or no longer keep) this revision's state whatever is pruned. What a fork stands on stays kept."""
        return self._pin(run_key(run), rev, {"rev": rev, "keep": keep, "why": why})

    def _pin(self, key: bytes, rev: int, note: Mapping[str, object]) -> Header:
        def move(head: Header) -> Move:
            if not self._stands(key, self.reader.header(key, rev).pos):
                raise NotFound("state", f"{head.run}@{rev}")
            return _aside(head, "pin", note, (label_token(_PIN),))

        return self._move(key, move, None)

    def pins(self, run: str) -> dict[int, str]:
        """Pinned revisions and why; where there are several reasons, the last that was given."""
        return {pin.rev: pin.why for pin in self._pins(run_key(run))}

    def pinned(self, run: str) -> tuple[set[int], set[int]]:
        """Revisions that were pinned by hand, and those that forks stand on."""
        pins = self._pins(run_key(run))
        return {pin.rev for pin in pins if pin.fork is None}, {pin.rev for pin in pins if pin.fork is not None}

    def fork(
        self,
        run: str,
        new: str,
        *,
        rev: int | None = None,
        note: Mapping[str, object] | None = None,
        labels: Iterable[str] = (),
    ) -> Header:
        """A new run that begins with the state of `run` (at `rev`). Costs the same however large the state is."""
        key, into = run_key(run), run_key(new)
        origin = self._existing(key, rev)
        if not self._stands(key, origin.pos):
            raise NotFound("state", f"{run}@{origin.rev}")
        state = self.reader.header(key, origin.pos)
        present = self.reader.head(into)
        if present is not None and present.op != "delete":
            raise Conflict(new, expected=NOWHERE, found=present.rev)
        # The pin comes first: an origin that is forked and then pruned must not lose what the fork stands on.
        self._pin(key, state.rev, {"rev": state.rev, "keep": True, "why": f"origin of {new}", "fork": new})
        warm = Warm(new, into, self._writer, present, None)
        body = Fork(key, state.rev, state.hash)
        said: dict[str, object] = {"origin": run, "origin_rev": state.rev, "view": [], **(note or {})}
        draft = warm.draft_move(
            "fork",
            at=self.clock(),
            epoch=warm.epoch,
            note=said,
            pos=warm.rev + 1,
            undo=NOWHERE,
            redo=NOWHERE,
            body=body,
            tokens=(*_SEEN, *label_tokens(labels)),
        )
        if not self.settle(draft, self.backend.commit([draft.save])[0], expected=NOWHERE):
            raise Conflict(new, expected=NOWHERE, found=warm.rev + 1)
        return draft.header

    def prune(self, run: str, *, keep_from: int, held: Held | None = None) -> Header:
        """Drop entries older than what the states from `keep_from` on stand on. Pins and the head stay readable.

        What is current after any entry from `keep_from` on stays readable; what is older may be gone, also where
        its entry is still there.
        """
        key = run_key(run)

        def move(head: Header) -> Move:
            pins = self._pins(key)
            kept = [pin.rev for pin in pins]
            floor = self._floor(key, [head.pos, *kept, *self._behind(key, keep_from, head.rev)])
            note = {"floor": floor, "pins": _pin_rows(pins)}
            move = _aside(head, "prune", note, (label_token(_PIN),))
            return Move(move.op, move.pos, move.undo, move.redo, note, move.body, move.tokens, drop=floor)

        return self._move(key, move, held)

    def delete(self, run: str, *, held: Held | None = None) -> Header:
        """The run is gone; a tombstone stays, so that a writer that still knows it conflicts."""
        key = run_key(run)

        def move(head: Header) -> Move:
            pins = self._pins(key)
            drop = self._floor(key, [pin.rev for pin in pins]) if pins else head.rev + 1
            note = {"floor": drop, "pins": _pin_rows(pins), "view": []}
            return Move("delete", NOWHERE, NOWHERE, NOWHERE, note, Nothing(), (label_token(_PIN), *_SEEN), drop)

        return self._move(key, move, held)

    def _floor(self, key: bytes, revs: Iterable[int]) -> int:
        """The lowest revision that these states stand on; what a prune took before holds nothing back."""
        places: set[int] = set()
        for rev in dict.fromkeys(revs):
            if rev != NOWHERE:
                for entry in self.backend.entries(key, rev, rev, bodies=False):
                    places.add(open_head(entry.head, run_name(key), rev).pos)
        return min((anchor for anchor in (self._anchor(key, pos) for pos in places) if anchor is not None), default=0)

    def _anchor(self, key: bytes, pos: int) -> int | None:
        """The first of the run's entries that a state is made of; None if a prune took it, or there is no state."""
        for entry in self.backend.entries(key, pos, pos) if pos != NOWHERE else ():
            body = self.reader.open(entry).body
            if not isinstance(body, Delta):
                return pos
            if self.backend.entries(key, body.anchor, body.anchor, bodies=False):
                return body.anchor
        return None

    def _stands(self, key: bytes, pos: int) -> bool:
        return self._anchor(key, pos) is not None

    def _behind(self, key: bytes, lo: int, hi: int) -> Iterator[int]:
        """Of the entries from `lo` on: the first, and those with a state that is older or was made on an older one.

        A rollback leads there. What all the others stand on is not lower.
        """
        first: int | None = None
        for start in range(max(lo, 0), hi + 1, 500):
            for entry in self.backend.entries(key, start, min(start + 499, hi), bodies=False):
                first = entry.rev if first is None else first
                header = open_head(entry.head, run_name(key), entry.rev)
                if entry.rev == first or (header.parent if header.has_state else header.pos) < first:
                    yield entry.rev

    def _pins(self, key: bytes) -> list[_Pin]:
        """In the order in which they were given, from the last prune's list and the moves after it."""
        pins: dict[_Pin, None] = {}
        moves: list[Header] = []
        beyond: int | None = None
        while True:
            page = self.backend.find((label_token(_PIN),), run=key, beyond=beyond, limit=100)
            headers = [open_head(entry.head, run_name(key), entry.rev) for entry in page]
            moves += [header for header in headers if header.op in ("pin", "prune", "delete")]
            if len(page) < 100 or (moves and moves[-1].op != "pin"):
                break
            beyond = page[-1].cursor
        for header in reversed(moves):
            note: Mapping[str, Any] = header.note
            try:
                if header.op != "pin":
                    pins = dict.fromkeys(_Pin.read(*row) for row in note["pins"])
                elif note["keep"]:
                    pin = _Pin.read(note["rev"], note["why"], note.get("fork"))
                    pins.pop(pin, None)
                    pins[pin] = None
                else:
                    pins = {pin: None for pin in pins if pin.rev != note["rev"] or pin.fork is not None}
            except (KeyError, TypeError, ValueError) as error:
                raise Damaged(f"entry {header.run!r} at {header.rev}", why="it does not say what it pins") from error
        return list(pins)

    # -- leases and attachments ---------------------------------------------------------------------------

    def acquire(self, run: str, owner: str, *, ttl: float) -> Held:
        """Hold the run. From the first entry of the new epoch on, whoever held it before can write no more."""
        key = run_key(run)
        lease = self.backend.acquire(key, owner, ttl)
        if lease.owner != owner:
            raise LeaseHeld(run, owner=lease.owner, until=lease.until)
        while True:
            head = self.reader.head(key)
            current = 0 if head is None else head.epoch
            epoch = lease.epoch if lease.epoch >= current else current + 1
            held = Held(run, owner, epoch, lease.epoch, lease.until)
            if epoch == current or (head is None and epoch == 1):
                return held
            warm = Warm(run, key, self._writer, head, None)
            pos, undo, redo = (NOWHERE,) * 3 if head is None else (head.pos, head.undo, head.redo)
            draft = warm.draft_move(
                "takeover",
                at=self.clock(),
                epoch=epoch,
                note={"owner": owner},
                pos=pos,
                undo=undo,
                redo=redo,
                body=Nothing(),
            )
            if self.settle(draft, self.backend.commit([draft.save])[0]):
                self._forget(key)
                return held

    def renew(self, held: Held, *, ttl: float) -> Held:
        lease = self.backend.renew(run_key(held.run), held.owner, held.ticket, ttl)
        if lease is None:
            found = self.backend.lease(run_key(held.run))
            raise Fenced(held.run, epoch=held.ticket, current=0 if found is None else found.epoch)
        return Held(held.run, held.owner, held.epoch, held.ticket, lease.until)

    def release(self, held: Held) -> bool:
        return self.backend.release(run_key(held.run), held.owner, held.ticket)

    def attach(self, run: str, rev: int, task: str, idx: int, value: object, *, held: Held | None = None) -> bool:
        """Keep a value beside an entry without moving the head; False if another value is there already."""
        payload = encode(self._checked(value, task))
        epoch = 0 if held is None else held.epoch
        key, name = run_key(run), task.encode("utf-8", "surrogatepass")
        head = None if held is None else self.reader.head(key)
        if head is not None and epoch < head.epoch:
            raise Fenced(run, epoch=epoch, current=head.epoch)
        check = attachment_check(key, rev, name, idx, epoch, payload)
        write = Attach(key, rev, name, idx, epoch, check + payload)
        outcome = self.backend.commit([write])[0]
        if isinstance(outcome, Failed):
            raise outcome.error
        return isinstance(outcome, Done)

    def _checked(self, value: object, path: str) -> Any:
        fresh = private(value, path)
        return fresh if self.clean is None else self.clean(fresh, ())

    def attachments(self, run: str, *, lo: int = 0, hi: int = MAX_REV) -> list[tuple[Attachment, Any]]:
        key = run_key(run)
        return [(found, open_attachment(key, found)) for found in self.backend.attachments(key, lo=lo, hi=hi)]

    # -- documents ----------------------------------------------------------------------------------------

    def put(self, category: str, name: str, value: object, *, sync: bool = True) -> Header:
        """Keep the newest value under a name: a log with retention 1."""
        key = document_key(category, name)
        tokens = (label_token(f"document={category}"),)
        copy = private(value, name)
        for _ in range(_TRIES):
            warm = Warm(run_name(key), key, self._writer, self.reader.head(key), None)
            draft = warm.draft_state(
                copy,
                op="document",
                at=self.clock(),
                epoch=0,
                note={},
                tokens=tokens,
                drop=warm.rev + 1,
                alias=(category, name),
            )
            if self.settle(draft, self.backend.commit([draft.save], sync=sync)[0]):
                return draft.header
        raise Unavailable(f"document {category}/{name}", why=f"lost {_TRIES} races")

    def get(self, category: str, name: str) -> Any:
        key = document_key(category, name)

        def newest() -> Header:
            header = self.reader.head(key)
            if header is None or header.pos == NOWHERE:
                raise NotFound(category, name)
            return header

        return self._loaded(key, newest).tree

    def remove(self, category: str, name: str) -> bool:
        key = document_key(category, name)

        def move(head: Header) -> Move:
            if head.pos == NOWHERE:
                raise NotFound(category, name)
            floor = {"floor": head.rev + 1}
            return Move("delete", NOWHERE, NOWHERE, NOWHERE, floor, Nothing(), (), head.rev + 1)

        try:
            self._move(key, move, None)
        except NotFound:
            return False
        return True

    def names(self, category: str) -> list[str]:
        found: dict[str, None] = {}
        for entry in self._every((label_token(f"document={category}"),)):
            said = document_name(entry.run)
            if said is not None and said[0] == category:
                found[said[1]] = None
        return sorted(found)

    # -- looking around -----------------------------------------------------------------------------------

    def find(
        self,
        labels: Iterable[str] = (),
        *,
        run: str | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 50,
    ) -> Page:
        """Headers of entries that carry all these labels. A collision of labels is possible: check the header."""
        key = None if run is None else run_key(run)
        tokens = label_tokens(labels)
        found = self.backend.find(tokens, run=key, beyond=beyond, newest=newest, limit=limit)
        items = [Found(open_head(entry.head, run_name(entry.run), entry.rev), entry.cursor) for entry in found]
        return Page(items, found[-1].cursor if len(found) == limit else None)

    def runs(self) -> Iterator[tuple[str, int]]:
        """Names and head revisions of all runs that have a state; deleted ones have none."""
        for key, rev in self.logs():
            if is_run(key):
                header = self.reader.header(key, rev)
                if header.pos != NOWHERE:
                    yield header.run, rev

    def logs(self) -> Iterator[tuple[bytes, int]]:
        after: bytes | None = None
        while page := self.backend.runs(after=after, limit=1000):
            yield from page
            after = page[-1][0]

    def glances(
        self, labels: Iterable[str], *, run: str | None = None
    ) -> Iterator[tuple[str, int, int, bool, Mapping[str, Any]]]:
        """Of every entry under these labels, oldest first: run, revision, time, whether it has a state, its note."""
        tokens, beyond = label_tokens(labels), None
        key = None if run is None else run_key(run)
        names: dict[bytes, str] = {}
        while page := self.backend.find(tokens, run=key, beyond=beyond, newest=False, limit=2000):
            for entry in page:
                name = names.get(entry.run) or names.setdefault(entry.run, run_name(entry.run))
                yield (name, entry.rev, *glance(entry.head, name, entry.rev))
            beyond = page[-1].cursor

    def headers(self, run: str, lo: int, hi: int) -> Iterator[Header]:
        """Entries with `lo <= rev <= hi` that are there, ascending."""
        key = run_key(run)
        for start in range(max(lo, 0), hi + 1, 500):
            for entry in self.backend.entries(key, start, min(start + 499, hi), bodies=False):
                yield open_head(entry.head, run, entry.rev)

    def lineage(self, run: str, rev: int | None = None) -> Iterator[Header]:
        """The states that led to the current one, newest first, within this run."""
        key = run_key(run)
        wanted = self._existing(key, rev).pos
        window: dict[int, Header] = {}
        while wanted != NOWHERE:
            if wanted not in window:
                entries = self.backend.entries(key, max(0, wanted - 99), wanted, bodies=False)
                window = {entry.rev: open_head(entry.head, run, entry.rev) for entry in entries}
            header = window.get(wanted)
            if header is None:
                return  # pruned
            yield header
            wanted = header.parent

    def _every(self, tokens: tuple[int, ...]) -> Iterator[Entry]:
        beyond: int | None = None
        while page := self.backend.find(tokens, beyond=beyond, newest=False, limit=1000):
            yield from page
            beyond = page[-1].cursor

    # -- the way of every entry ---------------------------------------------------------------------------

    def warm(self, key: bytes) -> Warm:
        """The run's decoded head, from memory or read now."""
        with self._mutex:
            warm = self._warms.get(key)
            if warm is not None and not warm.spent:
                self._warms.move_to_end(key)
                return warm
            if warm is not None and warm.lock.locked():
                return warm  # somebody's draft is under way; the caller waits for its lock and looks again
        head, loaded = self.reader.head(key), None
        while head is not None and head.pos != NOWHERE:
            try:
                loaded = self.reader.load(key, head, private=True)
                break
            except (Damaged, NotFound):
                # As in `_loaded`: another process may have pruned what we were reading.
                before, head = head, self.reader.head(key)
                if head is None or head.rev == before.rev:
                    raise
        fresh = Warm(run_name(key), key, self._writer, head, loaded, clean=self.clean)
        with self._mutex:
            present = self._warms.get(key)
            if present is not None and not present.spent:
                return present
            self._warms[key] = fresh
            self._warms.move_to_end(key)
            while len(self._warms) > self._warm_runs:
                self._warms.popitem(last=False)
        return fresh

    def outdated(self, warm: Warm) -> bool:
        """Did another handle move the head? Then this warm head says nothing about it and is spent."""
        head = self.backend.head(warm.key)
        if warm.rev == (NOWHERE if head is None else head.rev):
            return False
        warm.spent = True
        return True

    def ready(self, key: bytes) -> Warm | None:
        """The warm head if it can be had without reading."""
        with self._mutex:
            warm = self._warms.get(key)
            if warm is None or warm.spent:
                return None
            self._warms.move_to_end(key)
            return warm

    def draft(
        self,
        warm: Warm,
        value: object,
        *,
        decide: Decide,
        expected: int | None,
        held: Held | None,
    ) -> Draft:
        if expected is not None and expected != warm.rev:
            raise Conflict(warm.run, expected=expected, found=warm.rev)
        epoch = self._epoch(warm, held)
        said = decide(warm.head)
        tokens = label_tokens(said.labels)
        return warm.draft_state(
            value,
            op="save",
            at=self.clock(),
            epoch=epoch,
            note=said.note,
            tokens=tokens,
            alias=said.alias,
            sized=said.sized,
        )

    def settle(self, draft: Draft, outcome: Outcome, *, expected: int | None = None) -> bool:
        """True when it is written; False when somebody else was first and the caller may try again."""
        written = isinstance(outcome, Done)
        draft.warm.settle(draft, written=written)
        if isinstance(outcome, Failed):
            raise outcome.error
        if isinstance(outcome, Conflicted) and expected is not None:
            found = self.reader.head(draft.warm.key)
            raise Conflict(draft.warm.run, expected=expected, found=NOWHERE if found is None else found.rev)
        return written

    def _move(self, key: bytes, decide: Callable[[Header], Move], held: Held | None) -> Header:
        for _ in range(_TRIES):
            head = self.reader.head(key)
            if head is None or (head.op == "delete" and is_run(key)):
                raise NotFound("run", run_name(key))
            move = decide(head)
            warm = Warm(head.run, key, self._writer, head, None)
            draft = warm.draft_move(
                move.op,
                at=self.clock(),
                epoch=self._epoch(warm, held),
                note=move.note,
                pos=move.pos,
                undo=move.undo,
                redo=move.redo,
                body=move.body,
                tokens=move.tokens,
                drop=move.drop,
            )
            if self.settle(draft, self.backend.commit([draft.save])[0]):
                self._forget(key)
                return draft.header
        raise Unavailable(f"run {run_name(key)!r}", why=f"lost {_TRIES} races for its head")

    def _epoch(self, warm: Warm, held: Held | None) -> int:
        if held is None:
            return warm.epoch
        if held.epoch < warm.epoch:
            raise Fenced(warm.run, epoch=held.epoch, current=warm.epoch)
        return held.epoch

    def _loaded(self, key: bytes, find: Callable[[], Header]) -> Loaded:
        """Reading a state takes several looks at the store. If the log went on between them, what the first one
        led to may have been dropped since, and swept: that is no damage, and there is a newer answer.
        """
        while True:
            header = find()
            try:
                return self.reader.load(key, header)
            except (Damaged, NotFound):
                if find().rev == header.rev:
                    raise

    def _existing(self, key: bytes, rev: int | None) -> Header:
        head = self.reader.head(key)
        if head is None or head.op == "delete":
            raise NotFound("run", run_name(key))
        return head if rev is None or rev == head.rev else self.reader.header(key, rev)

    @staticmethod
    def _visible(warm: Warm) -> Header:
        if warm.head is None or warm.head.pos == NOWHERE:
            raise NotFound("state", warm.run)
        return warm.head

    def _forget(self, key: bytes) -> None:
        """Our own move made the warm head stale: the next save would only find that out by a conflict."""
        with self._mutex:
            self._warms.pop(key, None)


def decided(note: Mapping[str, object] | Decide | None, labels: Iterable[str]) -> Decide:
    if callable(note):
        return note
    said = Said(note or {}, tuple(labels))
    return lambda _: said


def attachment_check(key: bytes, rev: int, task: bytes, idx: int, epoch: int, payload: bytes) -> bytes:
    """Stands in front of what is attached: media return wrong bytes, and nothing else would notice here."""
    place = b"%d %d %d" % (rev, idx, epoch)
    return digest(b"att", key, place, task, payload)[:_CHECK]


def check_attachment(key: bytes, found: Attachment) -> bytes:
    """The payload, which is what was attached in this place."""
    check, payload = found.data[:_CHECK], found.data[_CHECK:]
    if attachment_check(key, found.rev, found.task, found.idx, found.epoch, payload) != check:
        what = f"attachment {found.task!r} {found.idx} of {run_name(key)!r} at {found.rev}"
        raise Damaged(what, why="its check does not match")
    return payload


def open_attachment(key: bytes, found: Attachment) -> Any:
    return decode(check_attachment(key, found))


def _pin_rows(pins: list[_Pin]) -> list[list[object]]:
    return [[pin.rev, pin.why, pin.fork] for pin in pins]


def _aside(head: Header, op: Op, note: Mapping[str, object], tokens: tuple[int, ...]) -> Move:
    """A move that leaves the position and the undo stack where they are."""
    return Move(op, head.pos, head.undo, head.redo, note, Nothing(), tokens)
