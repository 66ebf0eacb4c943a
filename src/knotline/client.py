"""`open` and `Knotline`: everything below under one roof, for asyncio. No logic lives here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from knotline.config import Settings, load_settings, open_backend
from knotline.errors import Unavailable
from knotline.events import Bus
from knotline.policy import CleanReport, Redaction, Retention
from knotline.records import Checkpoint, CheckpointHeader, ExecutionHistory, RunSummary
from knotline.runner.execute import step_on
from knotline.runner.steps import ExecutionResult
from knotline.store import Report, Store, export_run, import_file, verify
from knotline.timeline import Diff, Moved, Page, RunPage, Timeline

__all__ = ["Knotline", "open"]

_T = TypeVar("_T")


def open(  # noqa: A001 - `knotline.open`, as `gzip.open`
    where: str | Settings | None = None, *, bus: Bus | None = None, redaction: Redaction | None = None
) -> Knotline:
    """A store by its address: `memory:`, `files:DIR`, `sqlite:FILE`; without one, this project's default.

    `async with knotline.open() as k:` closes it. It is opened at the first call, off the event loop.
    """
    return Knotline(where, bus=bus, redaction=redaction)


class Knotline:
    """Unknown ids raise `NotFound` here."""

    def __init__(
        self,
        where: str | Settings | None = None,
        *,
        bus: Bus | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        self._where = where
        self._redaction = redaction
        self.bus = bus or Bus()
        self._timeline: Timeline | None = None
        self._opening: asyncio.Lock | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.timeline()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Drains what is saved in the background. Idempotent."""
        self._closed = True
        timeline, self._timeline = self._timeline, None
        if timeline is not None:
            await asyncio.to_thread(timeline.close)

    async def timeline(self) -> Timeline:
        """The synchronous heart of this store."""
        if self._closed:
            raise Unavailable("the store", why="it is closed")
        if self._timeline is None:
            self._opening = self._opening or asyncio.Lock()
            async with self._opening:
                if self._timeline is None:
                    self._timeline = await asyncio.to_thread(self._open)
        return self._timeline

    def _open(self) -> Timeline:
        settings = self._where if isinstance(self._where, Settings) else load_settings()
        backend = open_backend(self._where)
        shown = backend.name.startswith("files:")
        return Timeline(
            Store(backend), bus=self.bus, redaction=self._redaction, durability=settings.durability, shown=shown
        )

    async def _ask(self, verb: Callable[[Timeline], _T]) -> _T:
        timeline = await self.timeline()
        return await asyncio.to_thread(verb, timeline)

    # -- looking -------------------------------------------------------------------------------------------

    async def executions(
        self,
        *,
        status: str | None = None,
        workflow_id: str | None = None,
        tag: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> RunPage:
        return await self._ask(
            lambda it: it.executions(status=status, workflow_id=workflow_id, tag=tag, limit=limit, after=after)
        )

    async def checkpoints(
        self, execution_id: str | None = None, *, limit: int = 50, after: int | None = None, **filters: Any
    ) -> Page:
        """As `Timeline.list`, with the same filters."""
        return await self._ask(lambda it: it.list(execution_id, limit=limit, after=after, **filters))

    async def load(self, checkpoint_id: str) -> Checkpoint:
        return await self._ask(lambda it: it.load(checkpoint_id))

    async def status(self, execution_id: str) -> RunSummary:
        return await self._ask(lambda it: it.status(execution_id))

    async def history(self, execution_id: str) -> ExecutionHistory:
        return await self._ask(lambda it: it.history(execution_id))

    async def diff(self, a: str, b: str) -> Diff:
        return await self._ask(lambda it: it.diff(a, b))

    # -- moves ---------------------------------------------------------------------------------------------

    async def rollback(self, checkpoint_id: str) -> Moved:
        return await self._ask(lambda it: it.rollback(checkpoint_id))

    async def undo(self, execution_id: str) -> Moved:
        return await self._ask(lambda it: it.undo(execution_id))

    async def redo(self, execution_id: str) -> Moved:
        return await self._ask(lambda it: it.redo(execution_id))

    async def fork(self, checkpoint_id: str, *, id: str) -> CheckpointHeader:  # noqa: A002 - the promised name
        return await self._ask(lambda it: it.fork(checkpoint_id, execution_id=id))

    async def pin(self, checkpoint_id: str, *, why: str = "") -> CheckpointHeader:
        return await self._ask(lambda it: it.pin(checkpoint_id, why=why))

    async def unpin(self, checkpoint_id: str) -> CheckpointHeader:
        return await self._ask(lambda it: it.unpin(checkpoint_id))

    async def annotate(self, checkpoint_id: str, **said: Any) -> CheckpointHeader:
        """As `Timeline.annotate`."""
        return await self._ask(lambda it: it.annotate(checkpoint_id, **said))

    async def run_step(self, checkpoint_id: str, step: Any) -> ExecutionResult:
        """One step alone, on that checkpoint's data; nothing is recorded."""
        return await step_on(await self.load(checkpoint_id), step)

    # -- the store -----------------------------------------------------------------------------------------

    async def clean(
        self,
        *,
        older_than: str | float | None = None,
        keep_last: int | None = None,
        max_size: str | int | None = None,
        status: str | None = None,
        min_retention: int = 1,
        execution_id: str | None = None,
        dry_run: bool = False,
    ) -> CleanReport:
        """What goes, what stays, and why; unless it is a dry run, it then goes."""
        retention = Retention.of(
            older_than=older_than, keep_last=keep_last, max_size=max_size, status=status, min_retention=min_retention
        )
        return await self._ask(lambda it: it.clean(retention, execution_id=execution_id, dry_run=dry_run))

    async def verify(self) -> Report:
        return await self._ask(lambda it: verify(it.store))

    async def export_run(self, execution_id: str, path: str | os.PathLike[str], **more: Any) -> None:
        """As `knotline.export_run`: one portable file, encrypted if a `key` is given."""
        await self._ask(lambda it: export_run(it.store, execution_id, path, **more))

    async def import_run(self, path: str | os.PathLike[str], **more: Any) -> None:
        """As `knotline.import_file`."""
        await self._ask(lambda it: import_file(it.store, path, **more))

    async def flush(self) -> None:
        await self._ask(Timeline.flush)
