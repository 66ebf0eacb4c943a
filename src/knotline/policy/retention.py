"""What may be thrown away, what stays, and why: decided here from a list, done elsewhere.

Limits (`older_than`, `keep_last`, `max_size`) each name what is too much, and together they are a union: whatever
passes one of them goes. `status` chooses whose checkpoints are looked at, by how their run ended; alone it names all
of them. What protects is stronger than any limit: pins, each run's newest checkpoint, what a fork stands on, what an
unfinished run would resume from, and the newest `min_retention` of each run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, NamedTuple, Self

from knotline.errors import ConfigError
from knotline.policy.amounts import seconds, size

__all__ = ["CleanReport", "Fate", "Reason", "Retention", "Row", "plan"]

Reason = Literal[
    "pinned",
    "newest of its run",
    "a fork stands on it",
    "an unfinished run resumes from it",
    "min_retention",
    "in use since",
    "within the limits",
    "its run is not meant",
    "older_than",
    "keep_last",
    "max_size",
    "status",
]

_WITHIN: Final[tuple[Reason, ...]] = ("within the limits",)
_FINISHED: Final = frozenset(("success", "failed", "cancelled"))


class Row(NamedTuple):
    """A checkpoint as far as this decision goes. `at` in microseconds; `status` is its own, `ended` its run's."""

    run: str
    id: str
    rev: int
    at: int
    status: str
    ended: str
    size: int
    pinned: bool = False
    origin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """`older_than` in seconds, `keep_last` per run, `max_size` of the store in bytes."""

    older_than: float | None = None
    keep_last: int | None = None
    max_size: int | None = None
    status: str | None = None
    min_retention: int = 1

    def __post_init__(self) -> None:
        for name in ("older_than", "keep_last", "max_size", "min_retention"):
            found = getattr(self, name)
            if found is not None and found < 0:
                raise ConfigError("argument", name, found=repr(found), wanted="0 or more")

    @classmethod
    def of(
        cls,
        *,
        older_than: str | float | timedelta | None = None,
        keep_last: int | None = None,
        max_size: str | int | None = None,
        status: str | None = None,
        min_retention: int = 1,
    ) -> Self:
        """As a person says it: `older_than="30d"`, `max_size="2GB"`."""
        return cls(
            older_than=None if older_than is None else seconds(older_than, "older_than"),
            keep_last=keep_last,
            max_size=None if max_size is None else size(max_size, "max_size"),
            status=status,
            min_retention=min_retention,
        )

    @property
    def limits(self) -> bool:
        return not (self.older_than is None and self.keep_last is None and self.max_size is None)


class Fate(NamedTuple):
    row: Row
    keep: bool
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class CleanReport:
    """What goes and what stays, each with its reasons. `freed` is measured; in a dry run it is what the rows say."""

    remove: list[Fate]
    keep: list[Fate]
    freed: int
    dry_run: bool

    def __len__(self) -> int:
        return len(self.remove)


def plan(rows: Sequence[Row], retention: Retention, *, now: int, size: int) -> list[Fate]:
    """One fate for each row, in their order. `now` in microseconds; `size` is what the whole store takes."""
    if not retention.limits and retention.status is None:
        return [Fate(row, keep=True, reasons=("within the limits",)) for row in rows]
    runs = _by_run(rows)
    shields = _shields(rows, runs, retention)
    excess = _excess(rows, runs, retention, now)
    if retention.max_size is not None:
        left = size - sum(row.size for at, row in enumerate(rows) if excess[at] and not shields[at])
        for at in sorted(range(len(rows)), key=lambda at: rows[at].at):
            if left <= retention.max_size:
                break
            if excess[at] or not _meant(rows[at], retention):
                continue
            excess[at] = ("max_size",)
            if shields[at]:
                continue
            left -= rows[at].size
    return [_fate(row, shields[at], excess[at], retention) for at, row in enumerate(rows)]


def _fate(row: Row, shield: tuple[Reason, ...], excess: tuple[Reason, ...], retention: Retention) -> Fate:
    if not _meant(row, retention):
        return Fate(row, True, ("its run is not meant", *shield))  # noqa: FBT003 - a hundred thousand of these
    if shield and excess:
        return Fate(row, True, shield)  # noqa: FBT003 - as above
    if excess:
        return Fate(row, False, excess)  # noqa: FBT003 - as above
    return Fate(row, True, _WITHIN)  # noqa: FBT003 - as above


def _meant(row: Row, retention: Retention) -> bool:
    return retention.status is None or row.ended == retention.status


def _shields(rows: Sequence[Row], runs: Iterable[list[int]], retention: Retention) -> list[tuple[Reason, ...]]:
    shields: list[tuple[Reason, ...]] = [()] * len(rows)
    for run in runs:
        resumes = next((at for at in run if rows[at].status == "success"), run[0])
        for place, at in enumerate(run):
            row = rows[at]
            if not (place < retention.min_retention or place == 0 or row.pinned or row.origin or at == resumes):
                continue
            reasons: list[Reason] = []
            if row.pinned:
                reasons.append("pinned")
            if place == 0:
                reasons.append("newest of its run")
            elif place < retention.min_retention:
                reasons.append("min_retention")
            if row.origin:
                reasons.append("a fork stands on it")
            if at == resumes and row.ended not in _FINISHED:
                reasons.append("an unfinished run resumes from it")
            shields[at] = tuple(reasons)
    return shields


def _excess(rows: Sequence[Row], runs: Iterable[list[int]], retention: Retention, now: int) -> list[tuple[Reason, ...]]:
    excess: list[tuple[Reason, ...]] = [()] * len(rows)
    oldest = None if retention.older_than is None else now - int(retention.older_than * 1_000_000)
    keep = retention.keep_last
    only_status = not retention.limits
    for run in runs:
        if not _meant(rows[run[0]], retention):
            continue
        for place, at in enumerate(run):
            reasons: list[Reason] = []
            if only_status:
                reasons.append("status")
            if oldest is not None and rows[at].at < oldest:
                reasons.append("older_than")
            if keep is not None and place >= keep:
                reasons.append("keep_last")
            if reasons:
                excess[at] = tuple(reasons)
    return excess


def _by_run(rows: Sequence[Row]) -> list[list[int]]:
    """Places in the list, newest first, run by run."""
    runs: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        runs.setdefault(row.run, []).append(at)
    for places in runs.values():
        places.sort(key=lambda at: rows[at].rev, reverse=True)
    return list(runs.values())
