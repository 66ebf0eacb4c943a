"""What a run did, folded from its log: one pass over headers, and never a second book that could disagree.

After a rollback the history is that of the entries in sight. A retry or resume takes later checkpoints out of sight
but is part of what happened: the steps that it replaced stay in the history, as attempts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from knotline.errors import NotFound
from knotline.records import CheckpointHeader, ExecutionHistory, Header, StepRecord, moment
from knotline.store import Store, View
from knotline.timeline import notes

if TYPE_CHECKING:
    from knotline.timeline.asides import Aside

__all__ = ["FINISHED", "INITIAL_TASK", "RECORD_TASK", "fold", "happened", "status_in"]

FINISHED: Final = frozenset(("success", "failed", "cancelled"))
RECORD_TASK: Final = "record"
INITIAL_TASK: Final = "initial"
AGAIN: Final = ("retry", "resume")


def happened(store: Store, run: str, view: View) -> Iterator[tuple[Header, bool]]:
    """The headers that the history is made of, ascending, and whether each is in sight."""
    seen: set[int] = set()
    todo: list[Header] = []
    shown: list[Header] = []
    for lo, hi in view:
        for header in store.headers(run, lo, hi):
            seen.add(header.rev)
            shown.append(header)
            if _again(header):
                todo.append(header)
    past: list[Header] = []
    while todo:
        move = todo.pop()
        try:
            before = store.view(run, move.rev - 1)
        except NotFound:
            continue  # pruned
        for lo, hi in before.minus(store.view(run, move.rev)):
            for header in store.headers(run, lo, hi):
                if header.rev not in seen:
                    seen.add(header.rev)
                    past.append(header)
                    if _again(header):
                        todo.append(header)
    visible = {header.rev for header in shown}
    for header in sorted([*shown, *past], key=lambda each: each.rev):
        yield header, header.rev in visible


def _again(header: Header) -> bool:
    return "view" in header.note and header.note.get("why") in AGAIN


def status_in(headers: list[Header]) -> tuple[str, Mapping[str, Any]]:
    """How a run stands by its entries in sight: what was said last, else what its last step came to."""
    for header in reversed(headers):
        if "run" in header.note:
            return str(header.note["run"]), header.note
    for header in reversed(headers):
        note: Mapping[str, Any] = header.note
        if "record" in note or notes.is_checkpoint(header):
            last = {**note, **note.get("record", {})}.get("status", "success")
            return {"failed": "failed", "pending": "paused"}.get(last, "running"), {}
    return "running", {}


def fold(store: Store, run: str, aside: Aside) -> ExecutionHistory:
    """All but the last checkpoint's state. NotFound when nothing is known of the run."""
    steps: list[StepRecord] = []
    checkpoints: list[CheckpointHeader] = []
    shown: list[Header] = []
    failed_last = False
    resumed = 0
    large: dict[int, Mapping[str, Any]] | None = None
    started = ended = None
    workflow: str | None = None
    for header, visible in happened(store, run, aside.view):
        note: Mapping[str, Any] = header.note
        if visible:
            shown.append(header)
        workflow = note.get("workflow", workflow)
        if note.get("why") in AGAIN and ("run" in note or _again(header)):
            # A way back answers the failure before it, which is counted already.
            resumed += not failed_last
            failed_last = True
        record: Mapping[str, Any] | None = note.get("record")
        if record is not None:
            said = (
                {name: note.get(name) for name in ("step", "index")}
                | {"attempt": note.get("attempt", 1)}
                | dict(record)
            )
            more: Mapping[str, Any] = {}
            if said.pop("large", False):
                large = _attached(store, run) if large is None else large
                more = large.get(header.rev, {})
            at = moment(header.at)
            step = notes.record_of(run, said, at, more)
            steps.append(step)
            failed_last = step.status == "failed"
            began = header.at - int(step.duration * 1_000_000)
            started = began if started is None else min(started, began)
            ended = header.at
        if visible and notes.is_checkpoint(header):
            checkpoints.append(aside.header(header))
            started = header.at if started is None else min(started, header.at)
            ended = header.at
        if "run" in note:
            started = header.at if started is None else started
            ended = header.at
    if started is None and not shown:
        raise NotFound("execution", run)
    status, said_last = status_in(shown)
    return ExecutionHistory(
        execution_id=run,
        steps=steps,
        checkpoints=checkpoints,
        status=status,
        error=said_last.get("error") if status == "failed" else None,
        workflow_id=workflow,
        start_time=None if started is None else moment(started),
        end_time=None if ended is None or status not in FINISHED else moment(ended),
        resumed=resumed,
    )


def _attached(store: Store, run: str) -> dict[int, Mapping[str, Any]]:
    return {
        each.rev: cast("Mapping[str, Any]", value)
        for each, value in store.attachments(run)
        if each.task == RECORD_TASK.encode() and isinstance(value, dict)
    }
