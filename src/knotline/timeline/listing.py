"""Lists of checkpoints: headers only, filtered by what is indexed first and by the rest of the header then, in pages.

A page is bounded by what it shows and not by what there is: each filter that has a label is asked of the index, and a
range of time is entered by halves. Times are those of the writers' clocks; where these disagree by more than a
minute, an entry may be missed at the edge of a range. The order is that in which checkpoints were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from knotline.records import CheckpointHeader, CheckpointMetadata, Header
from knotline.store import Store
from knotline.timeline import notes
from knotline.timeline.asides import Asides
from knotline.timeline.asides import found as _found

__all__ = ["Page", "Query", "listed"]

_SLACK: Final = 60_000_000
_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """`next` goes into the next call as `after`; None when there is nothing further."""

    items: list[CheckpointHeader]
    next: int | None

    def __iter__(self) -> Iterator[CheckpointHeader]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is wanted; None is anything. All of it must hold."""

    execution_id: str | None = None
    workflow_id: str | None = None
    status: str | None = None
    tags: tuple[str, ...] = ()
    step: str | int | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    hidden: bool = False

    def labels(self) -> list[str]:
        """What the index can be asked. Entries that remark on a checkpoint carry its labels too."""
        labels: list[str] = []
        if self.status is not None:
            labels.append(f"status={self.status}")
        if isinstance(self.step, int):
            labels.append(f"index={self.step}")
        elif self.step is not None:
            labels.append(f"step={self.step}")
        if self.workflow_id is not None:
            labels.append(f"workflow={self.workflow_id}")
        labels += [f"tag={tag}" for tag in self.tags]
        labels += [label for name, value in self.metadata.items() if (label := notes.found_by(name, value))]
        return labels or [notes.CHECKPOINT]

    def fits(self, it: CheckpointHeader) -> bool:
        if self.execution_id is not None and it.execution_id != self.execution_id:
            return False
        if self.status is not None and it.status != self.status:
            return False
        if self.step is not None and self.step != (it.step_index if isinstance(self.step, int) else it.step_name):
            return False
        if self.workflow_id is not None and it.workflow_id != self.workflow_id:
            return False
        if not set(self.tags) <= set(it.tags) or not _holds(it.metadata, self.metadata):
            return False
        if (self.since is not None and it.timestamp < self.since) or (
            self.until is not None and it.timestamp > self.until
        ):
            return False
        return self.text is None or self.text.casefold() in _words(it)


def _holds(said: CheckpointMetadata, wanted: Mapping[str, Any]) -> bool:
    there = said.to_dict() if wanted else {}
    return all(
        name in there and type(there[name]) is type(value) and there[name] == value for name, value in wanted.items()
    )


def _words(it: CheckpointHeader) -> str:
    meta = it.metadata
    words = (it.id, it.step_name, it.error, meta.description, meta.creator, it.workflow_id, *it.tags)
    return "\n".join(word for word in words if word).casefold()


def listed(store: Store, asides: Asides, query: Query, *, limit: int, after: int | None, newest: bool) -> Page:
    """One more than asked for is looked for, so that `next` is there only if something follows."""
    items: list[CheckpointHeader] = []
    for it in _matches(store, asides, query, after=after, newest=newest, size=min(max(limit, 1) + 1, _MOST)):
        if len(items) >= limit:
            return Page(items, items[-1].cursor if items else after)
        items.append(it)
    return Page(items, None)


def _matches(
    store: Store, asides: Asides, query: Query, *, after: int | None, newest: bool, size: int
) -> Iterator[CheckpointHeader]:
    labels = query.labels()
    late = iter(_remarked(store, asides, query, labels, after=after, newest=newest))
    next_late = next(late, None)
    for header, cursor in _under(store, query, labels, after=after, newest=newest, size=size):
        while next_late is not None and (next_late.cursor > cursor) == newest:
            yield next_late
            next_late = next(late, None)
        it = _shown(asides, query, header, cursor)
        if it is not None:
            yield it
    while next_late is not None:
        yield next_late
        next_late = next(late, None)


def _under(
    store: Store, query: Query, labels: list[str], *, after: int | None, newest: bool, size: int
) -> Iterator[tuple[Header, int]]:
    """What the index has under these labels; of a range of time only that part, if times go with the log."""
    bounded = query.since is not None or query.until is not None
    bounded = bounded and not store.find([*labels, notes.DATED], run=query.execution_id, limit=1).items
    edge = query.until if newest else query.since
    if bounded and after is None and edge is not None:
        after = _entered(store, labels, query.execution_id, round(edge.timestamp() * 1_000_000), newest=newest)
    while True:
        page = store.find(labels, run=query.execution_id, beyond=after, newest=newest, limit=size)
        for found in page.items:
            if bounded and _past(query, found.header, newest=newest):
                return
            yield found.header, found.cursor
        if page.next is None:
            return
        after = page.next


def _shown(asides: Asides, query: Query, header: Header, cursor: int) -> CheckpointHeader | None:
    if not notes.is_checkpoint(header):
        return None
    aside = asides.of(header.run)
    if not query.hidden and header.rev not in aside.view:
        return None
    it = aside.header(header, cursor=cursor)
    return it if query.fits(it) else None


def _remarked(
    store: Store, asides: Asides, query: Query, labels: list[str], *, after: int | None, newest: bool
) -> list[CheckpointHeader]:
    """Checkpoints that are meant only for what was remarked on them later. Remarks are made by hand: they are few.

    The newest remark on a checkpoint carries all its labels; what its own entry has got too is found there.
    """
    if labels == [notes.CHECKPOINT]:
        return []
    found: list[CheckpointHeader] = []
    for header in _found(store, [*labels, notes.ABOUT], run=query.execution_id):
        note: Mapping[str, Any] = header.note
        aside = asides.of(header.run)
        if "about" not in note or aside.remarks.get(note["about"]) != header.rev:
            continue
        own = next(iter(store.headers(header.run, note["about"], note["about"])), None)
        if own is None or not notes.is_checkpoint(own) or set(labels) <= set(notes.labels_of(own.note, "")):
            continue
        it = _shown(asides, query, own, _cursor(store, own))
        if it is not None and (after is None or (it.cursor < after if newest else it.cursor > after)):
            found.append(it)
    return sorted(found, key=lambda it: it.cursor, reverse=newest)


def _cursor(store: Store, own: Header) -> int:
    """Where a checkpoint stands among all entries."""
    beyond: int | None = None
    while True:
        page = store.find([notes.named(str(own.note["id"]))], run=own.run, beyond=beyond)
        for found in page.items:
            if found.header.rev == own.rev:
                return found.cursor
        if page.next is None:
            return -1  # pruned meanwhile
        beyond = page.next


def _past(query: Query, header: Header, *, newest: bool) -> bool:
    """Is everything from here on outside the range?"""
    if newest:
        return query.since is not None and header.at < round(query.since.timestamp() * 1_000_000) - _SLACK
    return query.until is not None and header.at > round(query.until.timestamp() * 1_000_000) + _SLACK


def _entered(store: Store, labels: list[str], run: str | None, edge: int, *, newest: bool) -> int | None:
    """A cursor just outside the range, by halves of what lies between the first entry and the last."""
    ends = [store.find(labels, run=run, newest=way, limit=1).items for way in (False, True)]
    if not ends[0]:
        return None
    lo, hi = ends[0][0].cursor, ends[1][0].cursor
    edge += _SLACK if newest else -_SLACK
    while lo < hi:
        middle = (lo + hi) // 2
        found = store.find(labels, run=run, beyond=middle, newest=False, limit=1).items
        if found and found[0].header.at <= edge:
            lo = found[0].cursor
        else:
            hi = middle
    return lo + 1 if newest else lo - 1
