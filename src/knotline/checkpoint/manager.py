"""`CheckpointManager`: create, load, list and delete checkpoints, and the history that a person chooses from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from knotline.checkpoint.persistence import PersistenceManager, in_order
from knotline.errors import Unsupported
from knotline.policy import CleanReport
from knotline.records import Checkpoint, CheckpointHeader, RunSummary, StepRecord, moment
from knotline.timeline import Timeline

__all__ = ["CheckpointManager", "age", "weight"]

_PAGE: Final = 1000
_AGES: Final = ((60, "s"), (60, "m"), (24, "h"), (7, "d"), (52, "w"))


class CheckpointManager:
    """Thin over the timeline of its persistence: every rule is there."""

    def __init__(self, persistence_manager: PersistenceManager) -> None:
        self.persistence = persistence_manager

    async def create_checkpoint(
        self,
        execution_id: str,
        step_name: str,
        step_index: int,
        state: Any,
        context: Any = None,
        variables: Any = None,
        status: str = "success",
        error: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        messages: list[Any] | None = None,
        workspace: object = None,
        *,
        workflow_id: str | None = None,
        record: StepRecord | None = None,
        run_status: str | None = None,
    ) -> Checkpoint:
        """Durable when it returns, unless the storage's durability says otherwise. Nothing is overwritten: a second
        checkpoint of a step gets the suffix `.2`. `record` and `run_status` go into the same entry.
        """
        if workspace is not None:
            raise Unsupported("workspace", why="this release does not capture files yet")
        saving = await self.persistence.saving(
            execution_id,
            step_name=step_name,
            step_index=step_index,
            state=state,
            context=context,
            variables=variables,
            status=status,
            error=error,
            metadata=metadata,
            messages=messages,
            workflow_id=workflow_id,
            record=record,
            run_status=run_status,
        )
        return await self.persistence.tie(saving)

    async def load_checkpoint(self, checkpoint_id: str) -> Checkpoint | None:
        return await self.persistence.load_checkpoint(checkpoint_id)

    async def list_checkpoints(self, execution_id: str) -> list[Checkpoint]:
        """Whole checkpoints by step; `Timeline.list` gives pages of headers, which cost less."""

        def read(timeline: Timeline) -> list[Checkpoint]:
            return [timeline.read(it) for it in in_order(timeline, execution_id)]

        return await self.persistence.cross(read)

    async def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """False if there was none in sight. `undo` brings it back until cleaning takes it."""
        return await self.persistence.delete_checkpoint(checkpoint_id)

    async def get_last_successful_checkpoint(
        self, execution_id: str, before_step: int | None = None
    ) -> Checkpoint | None:
        """Of the highest step that was successful; of its attempts the newest."""

        def read(timeline: Timeline) -> Checkpoint | None:
            found = last_successful(timeline, execution_id, before_step)
            return None if found is None else timeline.read(found)

        return await self.persistence.cross(read)

    async def clean(
        self,
        *,
        execution_id: str | None = None,
        older_than: str | float | timedelta | None = None,
        keep_last: int | None = None,
        max_size: str | int | None = None,
        status: str | None = None,
        min_retention: int = 1,
        dry_run: bool = False,
    ) -> CleanReport:
        """As `PersistenceManager.clean`."""
        return await self.persistence.clean(
            execution_id=execution_id,
            older_than=older_than,
            keep_last=keep_last,
            max_size=max_size,
            status=status,
            min_retention=min_retention,
            dry_run=dry_run,
        )

    async def get_formatted_checkpoint_history(self) -> list[tuple[str, str]]:
        """`(execution_id, display_text)` of every run that has a checkpoint, the newest first."""

        def read(timeline: Timeline) -> list[tuple[str, str]]:
            now = moment(timeline.store.clock())
            items: list[tuple[str, str]] = []
            after: str | None = None
            while True:
                page = timeline.executions(limit=_PAGE, after=after)
                items += [(run.execution_id, _shown(run, run.newest, now)) for run in page if run.newest is not None]
                if page.next is None:
                    return items
                after = page.next

        return await self.persistence.cross(read)


def last_successful(timeline: Timeline, execution_id: str, before_step: int | None) -> CheckpointHeader | None:
    fits = [
        it
        for it in in_order(timeline, execution_id)
        if it.status == "success" and (before_step is None or it.step_index < before_step)
    ]
    return fits[-1] if fits else None


def _shown(run: RunSummary, newest: CheckpointHeader, now: datetime) -> str:
    words = [
        f"{newest.step_index} {newest.step_name}",
        newest.status,
        f"{age(newest.timestamp, now)} ago",
        weight(newest.size),
    ]
    text = f"Restore {run.execution_id}\n  Step: {' · '.join(words)}"
    if run.status not in ("running", newest.status):
        text += f" · run {run.status}"
    if newest.tags:
        text += f" · {' '.join('#' + tag for tag in newest.tags)}"
    if newest.metadata.description:
        text += f"\n  {newest.metadata.description}"
    return text


def age(then: datetime, now: datetime) -> str:
    """How long ago, in its largest unit: `42s`, `9m`, `3d`."""
    amount = max((now - then).total_seconds(), 0.0)
    for size, unit in _AGES:
        if amount < size:
            return f"{int(amount)}{unit}"
        amount /= size
    return f"{int(amount)}y"


def weight(size: int) -> str:
    """Bytes for a person: `512 B`, `1.2 KB`, `18 MB`."""
    amount = float(size)
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
