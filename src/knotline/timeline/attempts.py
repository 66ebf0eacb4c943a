"""Which attempt at a step a save is: nothing is overwritten, so every attempt has a name of its own.

Asked with the head that the save will follow, and asked again when the save lost a race for it. What was learned is
remembered while nobody else writes to the run, so that a save reads nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from knotline.records import NOWHERE, Header, checkpoint_id
from knotline.store import Store
from knotline.timeline import notes

__all__ = ["Attempts"]

_LINES: Final = 4096
_UNKNOWN: Final = NOWHERE - 1


@dataclass(slots=True)
class _Line:
    """What is known of a run as of revision `rev`: past index `top` every attempt is the first."""

    rev: int = _UNKNOWN
    top: int = NOWHERE
    numbers: dict[int, int] = field(default_factory=dict[int, int])
    pending: int = 0
    """Saves that were named and are not written yet: their names count, and the log does not know them."""


class Attempts:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._lock = threading.RLock()

    def _line(self, run: str) -> _Line:
        line = self._lines.get(run)
        if line is None:
            line = self._lines[run] = _Line()
            for oldest in list(self._lines)[: len(self._lines) - _LINES]:
                if not self._lines[oldest].pending:
                    del self._lines[oldest]
        else:
            self._lines.move_to_end(run)
        return line

    def next(self, run: str, index: int, head: Header | None) -> tuple[int, int]:
        """The number of this attempt, and the highest index that the run then has."""
        rev = NOWHERE if head is None else head.rev
        with self._lock:
            line = self._line(run)
            if not line.pending and line.rev != rev:
                line.rev, line.numbers = rev, {}
                line.top = NOWHERE if head is None else self._top(run)
            if index > line.top:
                return 1, index
            known = line.numbers.get(index)
            if known is None:
                known = line.numbers[index] = self._last(run, index)
            if line.pending:
                line.numbers[index] = known + 1  # who reserves next must not get this one
            return known + 1, line.top

    def saved(self, run: str, header: Header, index: int, number: int) -> None:
        with self._lock:
            line = self._line(run)
            if line.rev == header.rev - 1:
                line.rev = header.rev
            elif not line.pending:
                return
            line.top = max(line.top, index)
            line.numbers[index] = max(number, line.numbers.get(index, 0))

    def passed(self, run: str, header: Header) -> None:
        """An entry of ours that ties no knot: what is known stays true."""
        with self._lock:
            line = self._lines.get(run)
            if line is not None and line.rev == header.rev - 1:
                line.rev = header.rev

    def known(self, run: str, index: int) -> bool:
        """Would `reserve` answer without reading?"""
        with self._lock:
            line = self._lines.get(run)
            return line is not None and line.pending > 0 and (index > line.top or index in line.numbers)

    def reserve(self, run: str, index: int) -> tuple[int, int]:
        """As `next`, for a save that is written later; `release` follows when it is."""
        with self._lock:
            line = self._line(run)
            number, top = self.next(run, index, None if line.pending else self._store.head(run))
            line.pending += 1
            line.top = max(line.top, top)
            line.numbers[index] = number
            return number, top

    def counted(self, run: str, index: int) -> tuple[int, int]:
        """For a save that was reserved, when it is written: saves that were named later may have come before it."""
        with self._lock:
            line = self._line(run)
            return line.numbers.get(index, 0), line.top

    def release(self, run: str) -> None:
        with self._lock:
            line = self._line(run)
            line.pending -= 1
            line.rev = _UNKNOWN

    def _top(self, run: str) -> int:
        for found in self._store.find([notes.CHECKPOINT], run=run, limit=1).items:
            note: Mapping[str, Any] = found.header.note
            return max(note.get("top", NOWHERE), note.get("index", NOWHERE))
        return NOWHERE

    def _last(self, run: str, index: int) -> int:
        for found in self._store.find([notes.named(checkpoint_id(run, index))], run=run, limit=50).items:
            note: Mapping[str, Any] = found.header.note
            if note.get("index") == index and "id" in note:
                return max(note.get("attempt", 1), note.get("last", 0))
        return 0
