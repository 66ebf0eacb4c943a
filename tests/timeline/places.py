"""Timelines to test on: in memory and in a SQLite file, with a clock that goes one second at each look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from knotline.backends import Backend, MemoryBackend, SqliteBackend
from knotline.errors import NotFound
from knotline.records import StepRecord
from knotline.store import Store
from knotline.testing import StrictBackend
from knotline.timeline import Timeline

START = 1_700_000_000_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND
KINDS = ("memory", "sqlite")


class Ticks:
    """Each look is a second later; `at` may be set."""

    def __init__(self, at: int = START) -> None:
        self.at = at

    def __call__(self) -> int:
        self.at += SECOND
        return self.at


class Place:
    """A medium that outlives the timelines that are opened on it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.clock = Ticks()
        self._memory = MemoryBackend()
        self._opened: list[Timeline] = []

    def backend(self) -> Backend:
        return self._memory if self.kind == "memory" else SqliteBackend(self.folder / "knots.db")

    def open(self, wrap: Callable[[Backend], Backend] = StrictBackend, **more: Any) -> Timeline:
        timeline = Timeline(Store(wrap(self.backend()), clock=self.clock), **more)
        self._opened.append(timeline)
        return timeline

    def close(self) -> None:
        if self.kind != "memory":
            for timeline in self._opened:
                timeline.close()

    def raw(self) -> bytes:
        """Everything that is at rest, as bytes."""
        if self.kind != "memory":
            return b"".join(path.read_bytes() for path in sorted(self.folder.glob("knots.db*")))
        said: list[bytes] = []
        beyond: int | None = None
        while page := self._memory.find(newest=False, beyond=beyond):
            for entry in page:
                for each in self._memory.entries(entry.run, entry.rev, entry.rev):
                    said += [each.run, each.head, each.body or b""]
            beyond = page[-1].cursor
        ids = self._memory.object_ids()
        said += self._memory.objects(ids).values()
        for key, _ in self._memory.runs():
            said += [found.data for found in self._memory.attachments(key)]
        return b"\0".join(said)


def save(timeline: Timeline, run: str, index: int, state: Any = None, **more: Any) -> str:
    name = more.pop("step_name", f"step{index}")
    state = {"n": index} if state is None else state
    return timeline.save(run, step_name=name, step_index=index, state=state, **more).id


def ids(timeline: Timeline, *args: Any, **more: Any) -> list[str]:
    return [it.id for it in timeline.list(*args, **more)]


def every(timeline: Timeline, **more: Any) -> Iterator[list[str]]:
    """Page by page."""
    after = None
    for _ in count():
        page = timeline.list(after=after, **more)
        yield [it.id for it in page]
        if page.next is None:
            return
        after = page.next


def paged(timeline: Timeline, **more: Any) -> list[str]:
    return [name for page in every(timeline, **more) for name in page]


def there(timeline: Timeline, checkpoint: str) -> bool:
    try:
        timeline.load(checkpoint)
    except NotFound:
        return False
    return True


def step(index: int, **more: Any) -> StepRecord:
    return StepRecord(step_name=f"step{index}", step_index=index, timestamp=datetime(2024, 1, 1, tzinfo=UTC), **more)
