"""`ExecutionTracker`: each attempt at a step is written down in the run's log, and its history is the fold of that."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from knotline.checkpoint.execution_log import lines
from knotline.checkpoint.persistence import PersistenceManager
from knotline.errors import NotFound
from knotline.records import ExecutionHistory, StepRecord, moment
from knotline.timeline import Timeline

__all__ = ["ExecutionTracker", "failed", "succeeded"]

_LOOK: Final = 0.2
"""Seconds between two looks of `tail` at the log."""


class ExecutionTracker:
    def __init__(self, persistence_manager: PersistenceManager) -> None:
        self.persistence = persistence_manager

    async def track_step(
        self,
        execution_id: str,
        step: Any,
        result: Any,
        duration: float,
        *,
        given: Any = None,
        attempt: int = 1,
    ) -> StepRecord:
        """`step` is anything with a `name`; its `index` counts if it has one. `given` is the record's `input`."""
        return await self._track(
            execution_id, lambda at: succeeded(step, result, duration, at=at, given=given, attempt=attempt)
        )

    async def track_error(
        self,
        execution_id: str,
        step: Any,
        error: BaseException | str,
        duration: float = 0.0,
        *,
        given: Any = None,
        attempt: int = 1,
    ) -> StepRecord:
        return await self._track(
            execution_id, lambda at: failed(step, error, duration, at=at, given=given, attempt=attempt)
        )

    async def _track(self, execution_id: str, make: Callable[[int], StepRecord]) -> StepRecord:
        timeline = await self.persistence.timeline()
        record = make(timeline.store.clock())
        await self.persistence.record(execution_id, record)
        return record

    async def get_execution_history(self, execution_id: str) -> ExecutionHistory:
        """Empty, with status "unknown", for an execution that nothing is known of."""
        try:
            return await self.persistence.cross(lambda timeline: timeline.history(execution_id))
        except NotFound as error:
            if error.kind != "execution":
                raise
            return ExecutionHistory(execution_id=execution_id, status="unknown")

    async def execution_log(self, execution_id: str) -> list[str]:
        """The run's log as lines for a person, oldest first."""
        return await self.persistence.cross(lambda timeline: [text for _, text in lines(timeline, execution_id)])

    async def tail(self, execution_id: str, *, sleep: Callable[[float], Any] = asyncio.sleep) -> AsyncIterator[str]:
        """The lines that are there and those that come, until the run has ended."""
        seen = -1

        def read(timeline: Timeline) -> tuple[list[tuple[int, str]], str]:
            # The status first: what was said before it are then all the lines there are.
            try:
                status = timeline.status(execution_id).status
            except NotFound:
                status = "running"
            return lines(timeline, execution_id, after=seen), status

        while True:
            fresh, status = await self.persistence.cross(read)
            for rev, text in fresh:
                seen = max(seen, rev)
                yield text
            if status in ("success", "failed", "cancelled") and not fresh:
                return
            if not fresh:
                await sleep(_LOOK)


def succeeded(
    step: Any,
    result: Any,
    duration: float,
    *,
    at: int,
    given: Any = None,
    attempt: int = 1,
) -> StepRecord:
    return StepRecord(
        step_name=str(step.name),
        step_index=_index(step),
        timestamp=moment(at),
        attempt=attempt,
        input=given,
        result=result,
        duration=duration,
    )


def failed(
    step: Any,
    error: BaseException | str,
    duration: float,
    *,
    at: int,
    given: Any = None,
    attempt: int = 1,
) -> StepRecord:
    trace = None
    if isinstance(error, BaseException):
        trace = "".join(traceback.format_exception(error))
    return StepRecord(
        step_name=str(step.name),
        step_index=_index(step),
        timestamp=moment(at),
        attempt=attempt,
        status="failed",
        input=given,
        error=str(error) or type(error).__name__,
        error_type=type(error).__name__ if isinstance(error, BaseException) else None,
        traceback=trace,
        duration=duration,
    )


def _index(step: Any) -> int:
    index: Any = getattr(step, "index", None)
    return index if type(index) is int and index >= 0 else 0
