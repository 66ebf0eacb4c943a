"""A save on its way: what is decided before it is written, and what becomes of it afterwards.

The same for a caller who waits on a thread, one who awaits, and one who goes on at once, so that none of them has
rules of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Required, TypedDict

from knotline.errors import Unstorable
from knotline.policy import Redaction
from knotline.records import STATUSES, Checkpoint, CheckpointMetadata, Header, StepRecord, checkpoint_id, moment
from knotline.store import Said
from knotline.timeline import notes
from knotline.timeline.attempts import Attempts

__all__ = ["Saving", "Tied"]

_INDEX: Final = 2**31 - 1


class Tied(TypedDict, total=False):
    """What a checkpoint is made of. `record` puts the step that led here into the same entry, `run_status` how the run
    stands; `id`, `attempt` and `timestamp` are for checkpoints that were made elsewhere.
    """

    step_name: Required[str]
    step_index: Required[int]
    state: Required[Any]
    context: Any
    variables: Any
    status: str
    error: str | None
    metadata: Mapping[str, Any] | None
    messages: list[Any] | None
    workflow_id: str | None
    record: StepRecord | None
    run_status: str | None
    id: str | None
    attempt: int
    timestamp: datetime | None


@dataclass(slots=True, kw_only=True)
class Saving:
    execution_id: str
    step_name: str
    step_index: int
    value: dict[str, Any]
    status: str
    error: str | None
    metadata: CheckpointMetadata
    workflow_id: str | None
    record: Mapping[str, Any] | None
    large: Mapping[str, Any]
    """Of the record, what is too much for a header: attached to the entry."""
    run_status: str | None
    timestamp: datetime | None
    shown: bool
    id: str | None
    attempt: int
    top: int
    attempts: Attempts
    reserved: bool = False

    @classmethod
    def of(
        cls,
        attempts: Attempts,
        redaction: Redaction,
        execution_id: str,
        *,
        step_name: str,
        step_index: int,
        state: Any,
        context: Any = None,
        variables: Any = None,
        status: str = "success",
        error: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        messages: list[Any] | None = None,
        workflow_id: str | None = None,
        record: StepRecord | None = None,
        run_status: str | None = None,
        id: str | None = None,  # noqa: A002 - the promised name of it
        attempt: int = 1,
        timestamp: datetime | None = None,
        shown: bool = False,
    ) -> Saving:
        """Raises what is wrong with the arguments."""
        if type(step_index) is not int or not 0 <= step_index <= _INDEX:
            raise Unstorable("step_index", why=f"{step_index!r}; wanted an index from 0")
        if status not in STATUSES:
            raise Unstorable("status", why=f"{status!r}; wanted one of {', '.join(STATUSES)}")
        meta = CheckpointMetadata.of(redaction.note(CheckpointMetadata.of(metadata).to_dict()))
        error = None if error is None else redaction.text(error)
        said, large = (None, {}) if record is None else notes.record_note(record)
        value = notes.value_of(
            state=state,
            context={} if context is None else context,
            variables={} if variables is None else variables,
            messages=messages,
            error=error,
            metadata=meta,
        )
        return cls(
            execution_id=execution_id,
            step_name=step_name,
            step_index=step_index,
            value=value,
            status=status,
            error=error,
            metadata=meta,
            workflow_id=workflow_id,
            record=None if said is None else redaction.note(said),
            large=redaction.note(large) if large else {},
            run_status=run_status,
            timestamp=timestamp,
            shown=shown,
            id=id,
            attempt=attempt,
            top=step_index,
            attempts=attempts,
        )

    def reserve(self) -> None:
        """Decide the name now, for a save that is written later."""
        number, self.top = self.attempts.reserve(self.execution_id, self.step_index)
        self.attempt = number if self.id is None else self.attempt
        self.id = self.id or checkpoint_id(self.execution_id, self.step_index, self.attempt)
        self.reserved = True

    def decide(self, head: Header | None) -> Said:
        last = 0
        if self.id is None:
            self.attempt, self.top = self.attempts.next(self.execution_id, self.step_index, head)
        elif not self.reserved:
            # Made elsewhere, with a number of its own: what this run has counted so far must not be forgotten over it.
            number, self.top = self.attempts.next(self.execution_id, self.step_index, head)
            last = number - 1
        else:
            last, self.top = self.attempts.counted(self.execution_id, self.step_index)
        note = notes.note_of(
            id=self.id or checkpoint_id(self.execution_id, self.step_index, self.attempt),
            step_name=self.step_name,
            step_index=self.step_index,
            attempt=self.attempt,
            status=self.status,
            error=self.error,
            metadata=self.metadata,
            workflow_id=self.workflow_id,
            top=self.top,
            timestamp=None if self.timestamp is None else round(self.timestamp.timestamp() * 1_000_000),
            last=last,
        )
        labels = notes.labels_of(note, checkpoint_id(self.execution_id, self.step_index))
        if self.record is not None:
            # What the checkpoint says already is left out; a checkpoint counts its attempts in its own way.
            same = {"step": self.step_name, "index": self.step_index, "attempt": self.attempt}
            said = {"attempt": 1, **self.record}
            note["record"] = {key: part for key, part in said.items() if same.get(key) != part}
            labels += (notes.RECORD,)
            if self.large:
                note["record"]["large"] = True
        if self.run_status is not None:
            note["run"] = self.run_status
            labels += (notes.STATUS, notes.stands(self.run_status))
        alias = ("checkpoint", str(note["id"])) if self.shown else None
        return Said(note, labels, alias, sized=True)

    def checkpoint(self, header: Header | None, at: int) -> Checkpoint:
        """What the caller gets; without a header, of a save that is still to be written."""
        return Checkpoint(
            id=self.id or checkpoint_id(self.execution_id, self.step_index, self.attempt),
            execution_id=self.execution_id,
            step_name=self.step_name,
            step_index=self.step_index,
            timestamp=self.timestamp or moment(at if header is None else header.at),
            state=self.value["state"],
            context=self.value["context"],
            variables=self.value["variables"],
            status=self.status,
            error=self.error,
            metadata=self.metadata,
            attempt=self.attempt,
            workflow_id=self.workflow_id,
            messages=self.value.get("messages"),
        )
