"""`Timeline`: save, load, list, diff, fork, rollback, undo; all that happens to checkpoints happens here.

A checkpoint is an entry of its run's log; what is said of it is in `notes`. Which entries are in sight follows from the
moves that were made since (`Store.view`), so going back is one small entry and takes nothing away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self, Unpack

from knotline import events
from knotline.backends import Backend
from knotline.codec import private
from knotline.errors import Error, NotFound
from knotline.policy import CleanReport, Redaction, Retention
from knotline.records import (
    Checkpoint,
    CheckpointHeader,
    CheckpointMetadata,
    ExecutionHistory,
    Header,
    RunSummary,
    StepRecord,
    checkpoint_id,
)
from knotline.store import Held, Store
from knotline.timeline import notes
from knotline.timeline.asides import Asides, found
from knotline.timeline.attempts import Attempts
from knotline.timeline.behind import Behind
from knotline.timeline.cleaning import clean
from knotline.timeline.diff import Diff, diff
from knotline.timeline.executions import RunPage, executions, summary
from knotline.timeline.history import INITIAL_TASK, RECORD_TASK, fold
from knotline.timeline.listing import Page, Query, listed
from knotline.timeline.saving import Saving, Tied

__all__ = ["Durability", "Moved", "Timeline"]

Durability = Literal["disk", "process", "background"]
_EVENTS: Final = {
    "paused": events.EXECUTION_PAUSED,
    "success": events.EXECUTION_COMPLETED,
    "failed": events.EXECUTION_FAILED,
}


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a run stands after a rollback, an undo or a redo."""

    execution_id: str
    checkpoint: CheckpointHeader | None
    """The newest checkpoint in sight; None before the first."""
    rev: int


class Timeline:
    """The synchronous heart. Safe to use from several threads.

    `shown`: each entry gets the name `checkpoint/<id>`, under which a backend for people to read shows it.
    `Redaction(defaults=False)` writes everything as it is.
    """

    def __init__(
        self,
        store: Store | Backend,
        *,
        bus: events.Bus | None = None,
        redaction: Redaction | None = None,
        durability: Durability = "disk",
        shown: bool = False,
    ) -> None:
        self.redaction = redaction or Redaction()
        self.store = store if isinstance(store, Store) else Store(store)
        self.bus = bus or events.Bus()
        self.durability: Durability = durability
        self.shown = shown
        self._attempts = Attempts(self.store)
        self._asides = Asides(self.store)
        self._behind = Behind(failed=lambda run, error: self.bus.emit(events.SAVE_FAILED, run, error=error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def flush(self) -> None:
        """Wait for the saves in the background; raises the first failure among them."""
        self._behind.flush()

    def close(self) -> None:
        """Everything in the background is written first; a failure there is raised after the store is closed."""
        try:
            self.drain()
        finally:
            self.store.close()

    def settle(self, execution_id: str | None = None) -> None:
        """Wait for what is saved in the background of this run (None: of all). Every verb but a save there does so
        first: a log is in the order of the calls, and whoever saved finds what was saved.
        """
        self._behind.wait(execution_id)

    def drain(self) -> None:
        """Write what is in the background and take no more there; raises the first failure. The store stays open."""
        self._behind.close()
        self._behind.flush()

    # -- saving --------------------------------------------------------------------------------------------

    def save(
        self,
        execution_id: str,
        *,
        expected: int | None = None,
        held: Held | None = None,
        durability: Durability | None = None,
        **tied: Unpack[Tied],
    ) -> Checkpoint:
        """Tie a knot: `step_name`, `step_index` and `state`, and whatever else is to be kept with them.

        `expected` is the head's revision that the caller knows: another one is a `Conflict`. Without it a save that
        lost a race is made again on what is there now.
        """
        how = durability or self.durability
        saving = self.saving(execution_id, **tied)
        if how == "background":
            return self.save_behind(saving, self.copied(saving))
        self.settle(execution_id)
        sync = how == "disk"
        header = self.store.append(
            execution_id, saving.value, note=saving.decide, expected=expected, held=held, sync=sync
        )
        return self.saved(saving, header)

    def saving(self, execution_id: str, **tied: Unpack[Tied]) -> Saving:
        """The save before it is written: for callers that have a way of their own to the store."""
        self.store.clean = self.redaction.clean
        return Saving.of(self._attempts, self.redaction, execution_id, shown=self.shown, **tied)

    def saved(self, saving: Saving, header: Header) -> Checkpoint:
        """What follows a save that was written."""
        if saving.large:
            self.store.attach(saving.execution_id, header.rev, RECORD_TASK, 0, saving.large)
        self._attempts.saved(saving.execution_id, header, saving.step_index, saving.attempt)
        self._asides.grew(saving.execution_id, header)
        made = saving.checkpoint(header, header.at)
        self.bus.emit(events.CHECKPOINT_CREATED, made.execution_id, checkpoint_id=made.id, rev=header.rev)
        if saving.run_status in _EVENTS:
            self.bus.emit(_EVENTS[saving.run_status], made.execution_id, status=saving.run_status)
        return made

    def copied(self, saving: Saving) -> Any:
        """The value of this moment, checked: what `save_behind` writes."""
        return {part: private(value, part) for part, value in saving.value.items()}

    def known(self, saving: Saving) -> bool:
        """Can this save be named without reading?"""
        return self._attempts.known(saving.execution_id, saving.step_index)

    def save_behind(self, saving: Saving, value: Any) -> Checkpoint:
        """Hand a save of this value (`copied`) over: its name is decided now."""
        run = saving.execution_id
        saving.reserve()
        made = saving.checkpoint(None, self.store.clock())

        def write() -> None:
            try:
                header = self.store.append(run, value, note=saving.decide)
            finally:
                self._attempts.release(run)
            self.saved(saving, header)

        try:
            self._behind.put(run, write)
        except Error:
            self._attempts.release(run)
            raise
        return made

    @property
    def crowded(self) -> bool:
        """Would a save in the background wait for room?"""
        return self._behind.full()

    # -- looking -------------------------------------------------------------------------------------------

    def header(self, checkpoint: str, *, hidden: bool = False) -> CheckpointHeader:
        """A checkpoint without its state. `hidden`: also one of exactly this id that a move took out of sight."""
        self.settle()
        best: Header | None = None
        past: Header | None = None
        for header in found(self.store, [notes.named(checkpoint)]):
            if not notes.is_checkpoint(header):
                continue
            exact = header.note["id"] == checkpoint
            if not self._asides.of(header.run).sees(header):
                past = past or (header if exact else None)
            elif exact:
                best = header
                break
            elif best is None and checkpoint_id(header.run, int(str(header.note["index"]))) == checkpoint:
                best = header
        if hidden and past is not None and (best is None or best.note["id"] != checkpoint):
            best = past
        if best is None:
            raise NotFound("checkpoint", checkpoint)
        return self._asides.of(best.run).header(best)

    def _meant(self, checkpoint: str) -> CheckpointHeader:
        """That which `load` gives; if there is none in sight, one that a move took out of it."""
        try:
            return self.header(checkpoint)
        except NotFound:
            return self.header(checkpoint, hidden=True)

    def load(self, checkpoint: str, *, hidden: bool = False) -> Checkpoint:
        """The whole checkpoint, every byte checked. The bare id means itself, or the newest attempt in sight."""
        return self.read(self.header(checkpoint, hidden=hidden))

    def read(self, header: CheckpointHeader) -> Checkpoint:
        return notes.checkpoint_of(header, self.store.load(header.execution_id, header.rev))

    def newest(
        self, execution_id: str, *, status: str | None = None, before_step: int | None = None
    ) -> CheckpointHeader | None:
        """The last one in sight; with `status` and `before_step`, of those."""
        self.settle(execution_id)
        aside = self._asides.of(execution_id)
        labels = [notes.CHECKPOINT] if status is None else [f"status={status}"]
        for header in found(self.store, labels, run=execution_id):
            if aside.sees(header) and "about" not in header.note:
                it = aside.header(header)
                if status in (None, it.status) and (before_step is None or it.step_index < before_step):
                    return it
        return None

    def list(
        self,
        execution_id: str | None = None,
        *,
        workflow_id: str | None = None,
        status: str | None = None,
        tag: str | Iterable[str] = (),
        step: str | int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        hidden: bool = False,
        limit: int = 50,
        after: int | None = None,
        newest: bool = True,
    ) -> Page:
        """A page of headers that fit everything that is given; `page.next` is the next call's `after`."""
        self.settle(execution_id)
        query = Query(
            execution_id=execution_id,
            workflow_id=workflow_id,
            status=status,
            tags=(tag,) if isinstance(tag, str) else tuple(tag),
            step=step,
            since=since,
            until=until,
            text=text,
            metadata=metadata or {},
            hidden=hidden,
        )
        return listed(self.store, self._asides, query, limit=limit, after=after, newest=newest)

    def lineage(self, checkpoint: str) -> list[CheckpointHeader]:
        """The checkpoints that led here, newest first, through the runs that this one was forked from."""
        line: list[CheckpointHeader] = []
        at: CheckpointHeader | None = self.header(checkpoint, hidden=True)
        while at is not None:
            aside = self._asides.of(at.execution_id)
            own = [aside.header(it) for it in self.store.lineage(at.execution_id, at.rev) if notes.is_checkpoint(it)]
            line += own
            origin = own[-1].origin if own else None
            at = None if origin is None else self.header(origin, hidden=True)
        return line

    def diff(self, a: str, b: str) -> Diff:
        """From checkpoint `a` to checkpoint `b`, of whatever runs."""
        return diff(self.load(a, hidden=True), self.load(b, hidden=True))

    # -- moves ---------------------------------------------------------------------------------------------

    def rollback(self, checkpoint: str, *, why: str = "rollback", hidden: bool = False) -> Moved:
        """Make this checkpoint the newest. What came after it leaves the view; `undo` brings it back."""
        target = self.header(checkpoint, hidden=hidden)
        note = {"why": why, "id": target.id}
        header = self.store.rollback(target.execution_id, target.rev, note=note)
        self.bus.emit(events.CHECKPOINT_ROLLED_BACK, target.execution_id, checkpoint_id=target.id, why=why)
        return self._moved(target.execution_id, header)

    def restart(self, execution_id: str, *, why: str = "retry") -> Moved:
        """Take every checkpoint of a run out of sight, so that it begins anew; `undo` brings them back."""
        self.settle(execution_id)
        view = self._asides.of(execution_id).view
        revs = [it.rev for lo, hi in view for it in self.store.headers(execution_id, lo, hi) if notes.is_checkpoint(it)]
        return self._moved(execution_id, self.store.hide(execution_id, revs, note={"why": why}))

    def undo(self, execution_id: str) -> Moved:
        self.settle(execution_id)
        return self._moved(execution_id, self.store.undo(execution_id))

    def redo(self, execution_id: str) -> Moved:
        self.settle(execution_id)
        return self._moved(execution_id, self.store.redo(execution_id))

    def _moved(self, run: str, header: Header) -> Moved:
        self._attempts.passed(run, header)
        return Moved(run, self.newest(run), header.rev)

    def fork(self, checkpoint: str, *, execution_id: str) -> CheckpointHeader:
        """A new run that begins with this checkpoint, at the same cost however large it is. Its `origin` says so."""
        origin = self._meant(checkpoint)
        fresh = checkpoint_id(execution_id, origin.step_index)
        note = notes.note_of(
            id=fresh,
            step_name=origin.step_name,
            step_index=origin.step_index,
            attempt=1,
            status=origin.status,
            error=origin.error,
            metadata=origin.metadata,
            workflow_id=origin.workflow_id,
            top=origin.step_index,
        )
        note["from"] = origin.id
        labels = notes.labels_of(note, fresh)
        header = self.store.fork(origin.execution_id, execution_id, rev=origin.rev, note=note, labels=labels)
        return self._asides.of(execution_id).header(header)

    def delete(self, checkpoint: str) -> bool:
        """Out of sight, and off the disk when cleaning reaches it; `undo` brings it back until then."""
        try:
            target = self.header(checkpoint)
        except NotFound:
            return False
        header = self.store.hide(target.execution_id, [target.rev], note={"why": "delete"})
        self._attempts.passed(target.execution_id, header)
        return True

    def pin(self, checkpoint: str, *, why: str = "") -> CheckpointHeader:
        """Keep this checkpoint whatever is cleaned."""
        return self._pin(checkpoint, keep=True, why=why)

    def unpin(self, checkpoint: str) -> CheckpointHeader:
        return self._pin(checkpoint, keep=False, why="")

    def _pin(self, checkpoint: str, *, keep: bool, why: str) -> CheckpointHeader:
        target = self._meant(checkpoint)
        header = self.store.pin(target.execution_id, target.rev, keep=keep, why=why)
        self._attempts.passed(target.execution_id, header)
        return replace(target, pinned=keep)

    def annotate(
        self,
        checkpoint: str,
        *,
        description: str | None = None,
        tags: Iterable[str] | None = None,
        creator: str | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> CheckpointHeader:
        """Say more of a checkpoint. What is given stands in the place of what was said under the same name."""
        target = self._meant(checkpoint)
        said: dict[str, Any] = {"description": description, "creator": creator}
        said = {name: value for name, value in said.items() if value is not None} | dict(fields or {})
        if tags is not None:
            said["tags"] = [*tags]
        said = self.redaction.note(said)
        merged = replace(target, metadata=CheckpointMetadata.of({**target.metadata.to_dict(), **said}))
        labels = [notes.ABOUT, *notes.about_labels(merged)]
        header = self.store.say(target.execution_id, notes.remark_note(target.rev, said), labels=labels)
        self._attempts.passed(target.execution_id, header)
        return merged

    # -- the run -------------------------------------------------------------------------------------------

    def record(self, execution_id: str, record: StepRecord) -> None:
        """Write down one attempt at a step. O(1), whatever the run has behind it."""
        note, large = notes.record_note(record)
        note, large = self.redaction.note(note), self.redaction.note(large)
        if large:
            note["large"] = True
        self.settle(execution_id)
        header = self.store.say(execution_id, {"record": note}, labels=[notes.RECORD])
        if large:
            self.store.attach(execution_id, header.rev, RECORD_TASK, 0, large)
        self._attempts.passed(execution_id, header)

    def say(
        self,
        execution_id: str,
        status: str,
        *,
        error: str | None = None,
        workflow_id: str | None = None,
        plan: Iterable[str] | None = None,
        why: str | None = None,
        initial: Mapping[str, Any] | None = None,
    ) -> None:
        """How the run stands: running, paused, success, failed or cancelled.

        `plan` is the names of its steps, `initial` what it begins with. That a run goes on promises nothing yet, so
        nobody waits for the disk because of it: the first save after it is synced, and it with that.
        """
        note: dict[str, Any] = {"run": status}
        error = None if error is None else notes.short(error)
        said = (("error", error), ("workflow", workflow_id), ("plan", None if plan is None else [*plan]), ("why", why))
        note |= {name: value for name, value in said if value is not None}
        labels = [notes.STATUS, notes.stands(status)]
        self.settle(execution_id)
        header = self.store.say(execution_id, self.redaction.note(note), labels=labels, sync=status != "running")
        if initial:
            self.store.attach(execution_id, header.rev, INITIAL_TASK, 0, self.redaction.note(initial, "initial"))
        self._attempts.passed(execution_id, header)
        began = events.EXECUTION_STARTED if why is None else events.EXECUTION_RESUMED
        event = began if status == "running" else _EVENTS.get(status)
        if event is not None:
            self.bus.emit(event, execution_id, status=status, error=error)

    def said(self, execution_id: str, name: str) -> Any:
        """What a run's newest entry about its status that has this field says: its `plan`, say. None if none does."""
        self.settle(execution_id)
        aside = self._asides.of(execution_id)
        for header in found(self.store, [notes.STATUS], run=execution_id):
            if header.rev in aside.view and name in header.note:
                return header.note[name]
        return None

    def initial(self, execution_id: str) -> dict[str, Any]:
        """What the run began with; empty if that was nothing."""
        for each, value in self.store.attachments(execution_id):
            if each.task == INITIAL_TASK.encode():
                return value
        return {}

    def status(self, execution_id: str) -> RunSummary:
        self.settle(execution_id)
        found_ = summary(self.store, self._asides, execution_id)
        if found_ is None:
            raise NotFound("execution", execution_id)
        return found_

    def executions(
        self,
        *,
        status: str | None = None,
        workflow_id: str | None = None,
        tag: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> RunPage:
        """Runs, newest first. `tag` is one of the newest checkpoint's."""
        self.settle()
        return executions(
            self.store, self._asides, status=status, workflow_id=workflow_id, tag=tag, limit=limit, after=after
        )

    def history(self, execution_id: str, *, state: bool = True) -> ExecutionHistory:
        """What the run did, over all attempts. Without `state` the last checkpoint is not loaded."""
        self.settle(execution_id)
        history = fold(self.store, execution_id, self._asides.of(execution_id))
        if not state or not history.checkpoints:
            return history
        return replace(history, last_checkpoint=self.read(history.checkpoints[-1]))

    # -- space ---------------------------------------------------------------------------------------------

    def clean(self, retention: Retention, *, execution_id: str | None = None, dry_run: bool = False) -> CleanReport:
        """What goes and what stays, each with its reasons; unless it is a dry run, it then goes."""
        self.settle(execution_id)
        now = self.store.clock()
        report = clean(self.store, self._asides, retention, now=now, run=execution_id, dry_run=dry_run)
        if report.remove and not dry_run:
            ids = [fate.row.id for fate in report.remove]
            self.bus.emit(events.CHECKPOINTS_CLEANED, execution_id or "", removed=ids, freed=report.freed)
        return report
