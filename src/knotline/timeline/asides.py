"""What was said of a run's entries after they were made: which are in sight, which are pinned, what was remarked.

Remembered for each run until its head moves, since a list asks it of every entry that it shows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from knotline.records import NOWHERE, CheckpointHeader, Header
from knotline.store import Store, View
from knotline.timeline import notes

__all__ = ["Aside", "Asides", "found"]

_MOST: Final = 4096
_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Aside:
    """As of revision `rev`. `origins`: revisions that forks stand on; `about`: what was added to the metadata.

    `remarks`: for each checkpoint the newest entry that did so.
    """

    rev: int
    view: View
    pins: frozenset[int]
    origins: frozenset[int]
    about: Mapping[int, dict[str, Any]]
    remarks: Mapping[int, int]

    def header(self, header: Header, *, cursor: int = -1) -> CheckpointHeader:
        about = self.about.get(header.rev)
        return notes.header_of(header, pinned=header.rev in self.pins, about=about, cursor=cursor)

    def sees(self, header: Header) -> bool:
        return header.rev in self.view and notes.is_checkpoint(header)


class Asides:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, Aside] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: str) -> Aside:
        head = self._store.head(run)
        rev = NOWHERE if head is None else head.rev
        with self._lock:
            known = self._known.get(run)
            if known is not None and known.rev == rev:
                self._known.move_to_end(run)
                return known
        gone = head is None or head.op == "delete"
        fresh = Aside(rev, View(()), frozenset(), frozenset(), {}, {}) if gone else self._read(run, rev)
        with self._lock:
            self._known[run] = fresh
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        return fresh

    def grew(self, run: str, header: Header) -> None:
        """A checkpoint was tied and nothing else happened: what is remembered is brought up to it without reading."""
        with self._lock:
            known = self._known.get(run)
            if known is not None and known.rev == header.rev - 1:
                self._known[run] = replace(known, rev=header.rev, view=known.view.until(header.rev))

    def _read(self, run: str, rev: int) -> Aside:
        about: dict[int, dict[str, Any]] = {}
        remarks: dict[int, int] = {}
        for said in reversed(list(found(self._store, [notes.ABOUT], run=run))):
            note: Mapping[str, Any] = said.note
            if "about" in note:
                about.setdefault(note["about"], {}).update(note["meta"])
                remarks[note["about"]] = said.rev
        pins, origins = self._store.pinned(run)
        return Aside(rev, self._store.view(run, rev), frozenset(pins), frozenset(origins), about, remarks)


def found(store: Store, labels: list[str], *, run: str | None = None) -> Iterator[Header]:
    """Headers under all these labels, newest first; a collision of labels is the caller's to notice."""
    beyond: int | None = None
    limit = 4
    while True:
        page = store.find(labels, run=run, beyond=beyond, limit=limit)
        yield from (each.header for each in page.items)
        if page.next is None:
            return
        beyond, limit = page.next, _PAGE
