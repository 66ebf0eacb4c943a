"""What a store must answer, in plain dicts and lists: full copies of every state, and no cleverness.

The model knows moves, not bytes. The one thing it cannot know is how far down a prune reaches, since that
depends on where states were sealed: it is told the floor, and checks that nothing was taken that it was promised.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

NOWHERE = -1
PIN = "op=pin"

Key = tuple[str, ...]
"""`("r", run)` or `("d", category, name)`."""


@dataclass
class Knot:
    op: str
    pos: int
    parent: int
    undo: int
    redo: int
    epoch: int
    labels: frozenset[str]
    note: dict[str, Any] | None
    value: Any = None


@dataclass
class Line:
    knots: list[Knot] = field(default_factory=list)
    floor: int = 0
    unsure: set[int] = field(default_factory=set)
    """States whose entries are there but that no prune promised to keep."""
    pins: list[tuple[int, str, str | None]] = field(default_factory=list)
    """Revision, why, and the run that was forked from it, in the order in which they were given."""

    @property
    def rev(self) -> int:
        return len(self.knots) - 1

    @property
    def head(self) -> Knot:
        return self.knots[-1]

    def pin(self, rev: int, why: str, fork: str | None = None, *, keep: bool = True) -> None:
        self.pins = [pin for pin in self.pins if (pin != (rev, why, fork) if keep else pin[0] != rev or pin[2])]
        if keep:
            self.pins.append((rev, why, fork))

    def sight(self, rev: int) -> set[int]:
        """The entries that led to the situation after `rev`, so far as they are still there."""
        seen: set[int] = set()
        while rev >= 0:
            seen.add(rev)
            knot = self.knots[rev]
            if knot.op in ("fork", "delete"):
                break
            rev = knot.note["to"] if knot.op in ("rollback", "undo", "redo") and knot.note else rev - 1
        return {each for each in seen if each >= self.floor}

    def pinned(self) -> list[Knot]:
        return [self.knots[rev] for rev, _, _ in self.pins if rev >= self.floor]


class Absent(Exception):
    """The store must raise the error of this name."""


class Model:
    def __init__(self) -> None:
        self.lines: dict[Key, Line] = {}
        self.log: list[tuple[Key, int]] = []
        self.attached: dict[tuple[str, int, str, int], tuple[int, Any]] = {}
        self.leases: dict[str, tuple[str, int, float]] = {}

    # -- looking --------------------------------------------------------------------------------------------

    def line(self, run: str) -> Line | None:
        return self.lines.get(("r", run))

    def lives(self, run: str) -> Line:
        line = self.line(run)
        if line is None or line.head.op == "delete":
            raise Absent("NotFound")
        return line

    def knot(self, line: Line, rev: int) -> Knot:
        if not line.floor <= rev <= line.rev:
            raise Absent("NotFound")
        return line.knots[rev]

    def state(self, line: Line, knot: Knot, error: str = "NotFound") -> Knot:
        """The entry that holds the state that is current after `knot`."""
        if knot.pos == NOWHERE or knot.pos < line.floor:
            raise Absent(error)
        return line.knots[knot.pos]

    def runs(self) -> list[tuple[str, int]]:
        found = [(key[1], line.rev) for key, line in self.lines.items() if key[0] == "r" and line.head.pos != NOWHERE]
        return sorted(found, key=lambda it: it[0].encode("utf-8", "surrogatepass"))

    def names(self, category: str) -> list[str]:
        docs = {key[2] for key, line in self.lines.items() if key[:2] == ("d", category) and line.head.op != "delete"}
        return sorted(docs)

    def found(self, labels: Iterable[str], run: str | None) -> list[tuple[str, int]]:
        """Oldest first, as `(shown name, rev)`."""
        wanted = set(labels)
        return [
            ("/".join(key[1:]), rev)
            for key, rev in self.log
            if (run is None or key == ("r", run))
            and rev >= self.lines[key].floor
            and wanted <= self.lines[key].knots[rev].labels
        ]

    def lineage(self, line: Line, rev: int) -> list[int]:
        at = self.knot(line, rev).pos
        found: list[int] = []
        while at != NOWHERE and at >= line.floor:
            found.append(at)
            at = line.knots[at].parent
        return found

    # -- moving ---------------------------------------------------------------------------------------------

    def put(self, key: Key, knot: Knot) -> int:
        line = self.lines.setdefault(key, Line())
        line.knots.append(knot)
        self.log.append((key, line.rev))
        return line.rev

    def save(
        self, key: Key, op: str, value: Any, *, labels: Iterable[str] = (), note: Any = None, epoch: int = 0
    ) -> int:
        line = self.lines.get(key)
        rev = 0 if line is None else line.rev + 1
        before = NOWHERE if line is None else line.head.pos
        undo = NOWHERE if before == NOWHERE else rev - 1
        knot = Knot(op, rev, before, undo, NOWHERE, epoch, frozenset(labels), note or {}, copy.deepcopy(value))
        return self.put(key, knot)

    def aside(
        self, key: Key, op: str, *, labels: Iterable[str] = (), note: Any = None, epoch: int | None = None
    ) -> int:
        head = self.lines[key].head
        epoch = head.epoch if epoch is None else epoch
        return self.put(key, Knot(op, head.pos, NOWHERE, head.undo, head.redo, epoch, frozenset(labels), note))

    def drop(self, key: Key, floor: int, promised: set[int]) -> None:
        line = self.lines[key]
        kept = {pos for pos in promised if pos != NOWHERE and pos not in line.unsure and pos >= line.floor}
        assert floor <= min(kept, default=line.rev), f"{key}: {floor} takes one of {sorted(kept)}"
        assert floor >= line.floor
        line.floor = floor
        states = {rev for rev in range(floor, line.rev + 1) if line.knots[rev].pos == rev}
        line.unsure = {rev for rev in states if rev not in kept}
        if key[0] == "r":
            self.attached = {at: it for at, it in self.attached.items() if at[0] != key[1] or at[1] >= floor}
