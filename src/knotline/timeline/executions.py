"""Lists of runs, and how each of them stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from knotline.records import Header, RunSummary, moment
from knotline.store import Store
from knotline.store.names import is_run
from knotline.timeline import notes
from knotline.timeline.asides import Asides, found
from knotline.timeline.history import status_in

__all__ = ["RunPage", "executions", "summary"]

_UNSAID: Final = ("running", "failed", "paused")
"""What a run may be without ever having said so."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """`next` goes into the next call as `after`; None when there is nothing further."""

    items: list[RunSummary]
    next: str | None

    def __iter__(self) -> Iterator[RunSummary]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def summary(store: Store, asides: Asides, run: str) -> RunSummary | None:
    """None when nothing is known of it. Says of the run's status what its history says."""
    head = store.head(run)
    if head is None or head.op == "delete":
        return None
    aside = asides.of(run)
    newest = next((aside.header(each) for each in found(store, [notes.CHECKPOINT], run=run) if aside.sees(each)), None)
    said = [each for each in found(store, [notes.STATUS], run=run) if each.rev in aside.view and "run" in each.note]
    step = next((each for each in found(store, [notes.RECORD], run=run) if each.rev in aside.view), None)
    last: list[Header] = []
    if newest is not None:
        last += store.headers(run, newest.rev, newest.rev)
    last += [each for each in (step, *said[:1]) if each is not None]
    if not last:
        return None
    last.sort(key=lambda each: each.rev)
    status, note = status_in(last)
    workflow = next((each.note["workflow"] for each in said if "workflow" in each.note), None)
    at = max(newest.timestamp if newest else moment(0), moment(said[0].at) if said else moment(last[-1].at))
    return RunSummary(
        execution_id=run,
        status=status,
        workflow_id=cast("str | None", workflow) or (newest.workflow_id if newest else None),
        newest=newest,
        timestamp=at,
        error=note.get("error") if status == "failed" else None,
    )


def executions(
    store: Store,
    asides: Asides,
    *,
    status: str | None,
    workflow_id: str | None,
    tag: str | None,
    limit: int,
    after: str | None,
) -> RunPage:
    """Those that something happened to last come first. `after` is what the page before gave as `next`."""
    meant = None if status is None or status in _UNSAID else {it.run for it in found(store, [notes.stands(status)])}
    lines = sorted(((at, run) for run, at in _touched(store) if meant is None or run in meant), reverse=True)
    if after is not None:
        place, _, name = after.partition(":")
        lines = [line for line in lines if line < (int(place), name)]
    items: list[RunSummary] = []
    following: str | None = None
    for at, run in lines:
        each = summary(store, asides, run)
        if each is None or (status is not None and each.status != status):
            continue
        if workflow_id is not None and each.workflow_id != workflow_id:
            continue
        if tag is not None and (each.newest is None or tag not in each.newest.tags):
            continue
        if len(items) == limit:
            return RunPage(items, following)
        items.append(each)
        following = f"{at}:{run}"
    return RunPage(items, None)


def _touched(store: Store) -> Iterator[tuple[str, int]]:
    """Every run and the time of its newest entry."""
    for key, rev in store.logs():
        if is_run(key):
            header = store.reader.header(key, rev)
            if header.op != "delete":
                yield header.run, header.at
