"""Which entries of a log are in sight: those that led to the present situation. Pure intervals of revisions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

__all__ = ["View"]


@dataclass(frozen=True, slots=True)
class View:
    """Ascending, apart from each other, both ends included."""

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, rows: Any, rev: int) -> Self:
        """As a move at `rev` wrote it; the move itself is in sight too."""
        return cls(_joined([*((lo, hi) for lo, hi in rows if lo <= hi), (rev, rev)]))

    @classmethod
    def over(cls, revs: Collection[int]) -> Self:
        """Of exactly these."""
        return cls(_joined([(rev, rev) for rev in sorted(revs)]))

    def until(self, rev: int) -> View:
        """Everything that came after is in sight, up to `rev`."""
        top = self.spans[-1][1] if self.spans else -1
        return View(_joined([*self.spans, (top + 1, rev)])) if rev > top else self

    def without(self, revs: Collection[int]) -> View:
        spans: list[tuple[int, int]] = []
        for lo, hi in self.spans:
            edges = [lo - 1, *sorted(rev for rev in revs if lo <= rev <= hi), hi + 1]
            spans += [(before + 1, after - 1) for before, after in pairwise(edges)]
        return View(tuple((lo, hi) for lo, hi in spans if lo <= hi))

    def minus(self, other: View) -> View:
        left = list(self.spans)
        for lo, hi in other.spans:
            left = [part for a, b in left for part in ((a, min(b, lo - 1)), (max(a, hi + 1), b)) if part[0] <= part[1]]
        return View(tuple(left))

    def rows(self) -> list[list[int]]:
        return [[lo, hi] for lo, hi in self.spans]

    def __contains__(self, rev: int) -> bool:
        # Newest first: that is where most questions are about.
        for lo, hi in reversed(self.spans):
            if lo <= rev:
                return rev <= hi
        return False

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.spans)


def _joined(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for lo, hi in spans:
        if joined and lo <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return tuple(joined)
