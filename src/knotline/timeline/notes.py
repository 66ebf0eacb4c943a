"""What a checkpoint, a step or a run's status says in the header of its entry, under which labels, and back.

Headers are read to list and to decide, so they stay small: what is long goes with the state (`more`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, cast

from knotline.codec import encode, private
from knotline.errors import Damaged, TooLarge, Unstorable
from knotline.records import Checkpoint, CheckpointHeader, CheckpointMetadata, Header, StepRecord, moment

__all__ = [
    "ABOUT",
    "CHECKPOINT",
    "DATED",
    "NAMED",
    "RECORD",
    "STATUS",
    "about_labels",
    "checkpoint_of",
    "found_by",
    "header_of",
    "is_checkpoint",
    "labels_of",
    "named",
    "note_of",
    "record_note",
    "record_of",
    "remark_note",
    "short",
    "stands",
    "value_of",
]

CHECKPOINT: Final = "kind=checkpoint"
RECORD: Final = "kind=step"
STATUS: Final = "kind=status"
ABOUT: Final = "kind=about"
DATED: Final = "kind=dated"
"""A checkpoint that was made elsewhere: its time is not that of its entry."""
NAMED: Final = "ckpt="
_ERROR: Final = 2000
_META: Final = 2048
_RESULT: Final = 2048
_SHORT: Final = 200
_REMARK: Final = 16_384
_SCALARS: Final = (str, int, float, bool, type(None))


def named(checkpoint_id: str) -> str:
    return NAMED + checkpoint_id


def stands(status: str) -> str:
    """The label of an entry that says how its run stands."""
    return f"run={status}"


def found_by(name: str, value: object) -> str:
    """The label under which a field of the metadata is found; none for what is long or no plain value."""
    if not isinstance(value, _SCALARS) or len(str(value)) > _SHORT:
        return ""
    return f"meta={name}={type(value).__name__}={value}"


def is_checkpoint(header: Header) -> bool:
    return "id" in header.note and header.pos == header.rev


# -- writing -----------------------------------------------------------------------------------------------


def note_of(
    *,
    id: str,  # noqa: A002 - the promised name of it
    step_name: str,
    step_index: int,
    attempt: int,
    status: str,
    error: str | None,
    metadata: CheckpointMetadata,
    workflow_id: str | None,
    top: int,
    timestamp: int | None = None,
    last: int = 0,
) -> dict[str, Any]:
    """Defaults are left out: a header is written with every save."""
    note: dict[str, Any] = {"id": id, "step": step_name, "index": step_index}
    if attempt != 1:
        note["attempt"] = attempt
    if last > attempt:
        note["last"] = last
    if status != "success":
        note["status"] = status
    if error is not None:
        note["error"] = short(error)
    meta = metadata.to_dict()
    if meta:
        note["meta"] = meta if _weight(meta) <= _META else _short(meta)
    if workflow_id is not None:
        note["workflow"] = workflow_id
    if top > step_index:
        note["top"] = top
    if timestamp is not None:
        note["at"] = timestamp
    return note


def value_of(
    *,
    state: Any,
    context: Any,
    variables: Any,
    messages: Any,
    error: str | None,
    metadata: CheckpointMetadata,
) -> dict[str, Any]:
    """What is saved as the run's state: the parts that a person speaks of, and what was too long for the header."""
    value: dict[str, Any] = {"state": state, "context": context, "variables": variables}
    if messages is not None:
        value["messages"] = messages
    more: dict[str, Any] = {}
    if error is not None and len(error) > _ERROR:
        more["error"] = error
    meta = metadata.to_dict()
    if meta and _weight(meta) > _META:
        more["meta"] = meta
    if more:
        value["more"] = more
    return value


def short(error: str) -> str:
    """So much of an error as a header takes; its step's record has all of it."""
    return error[:_ERROR]


def labels_of(note: Mapping[str, Any], base: str) -> tuple[str, ...]:
    """`base` is the id without its attempt: the bare id finds the newest attempt."""
    meta: Mapping[str, Any] = note.get("meta", {})
    return tuple(
        dict.fromkeys(
            [
                CHECKPOINT,
                named(note["id"]),
                named(base),
                f"status={note.get('status', 'success')}",
                f"step={note['step']}",
                f"index={note['index']}",
                *_found_by(meta),
                *([f"workflow={note['workflow']}"] if "workflow" in note else []),
                *([DATED] if "at" in note else []),
            ]
        )
    )


def about_labels(it: CheckpointHeader) -> tuple[str, ...]:
    """Of an entry that remarks on a checkpoint: all by which the checkpoint is found now, but for its names."""
    note = note_of(
        id=it.id,
        step_name=it.step_name,
        step_index=it.step_index,
        attempt=it.attempt,
        status=it.status,
        error=None,
        metadata=it.metadata,
        workflow_id=it.workflow_id,
        top=it.step_index,
    )
    return tuple(label for label in labels_of(note, "") if label != CHECKPOINT and not label.startswith(NAMED))


def _found_by(meta: Mapping[str, Any]) -> Iterator[str]:
    for name, value in meta.items():
        if name == "tags" and isinstance(value, list):
            yield from (f"tag={tag}" for tag in cast("list[object]", value))
        elif label := found_by(name, value):
            yield label


def _weight(value: Any) -> int:
    return len(encode(private(value, "metadata")))


def _short(meta: Mapping[str, Any]) -> dict[str, Any]:
    """So much of it as fits, what is found by first."""
    kept: dict[str, Any] = {}
    for name, value in sorted(meta.items(), key=lambda pair: pair[0] != "tags"):
        one = {name: value}
        if _weight(one) <= (_META // 2 if name == "tags" else _SHORT) and _weight(kept | one) <= _META:
            kept |= one
    return kept


def remark_note(rev: int, said: Mapping[str, Any]) -> dict[str, Any]:
    """Of an entry that remarks on the checkpoint at `rev`. It has nothing but a header, so it has to be short."""
    if (weight := _weight(said)) > _REMARK:
        raise TooLarge("metadata", why=f"a remark of {weight} bytes; the limit is {_REMARK}")
    return {"about": rev, "meta": said}


def record_note(record: StepRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """What fits into a header, and what does not."""
    note: dict[str, Any] = {"step": record.step_name, "index": record.step_index}
    if record.attempt != 1:
        note["attempt"] = record.attempt
    if record.status != "success":
        note["status"] = record.status
    if record.duration:
        note["took"] = record.duration
    large: dict[str, Any] = {}
    for name, value in (
        ("input", record.input),
        ("result", record.result),
        ("error", record.error),
        ("type", record.error_type),
        ("traceback", record.traceback),
    ):
        if value is None:
            continue
        try:
            weight = _weight(value)
        except Unstorable as error:
            raise type(error)(name + error.path.removeprefix("metadata"), why=error.why) from error
        (note if weight <= _RESULT else large)[name] = value
    return note, large


# -- reading -----------------------------------------------------------------------------------------------


def header_of(
    header: Header, *, pinned: bool = False, about: Mapping[str, Any] | None = None, cursor: int = -1
) -> CheckpointHeader:
    """`about` is what was said of it later."""
    note: Mapping[str, Any] = header.note
    try:
        return CheckpointHeader(
            id=note["id"],
            execution_id=header.run,
            step_name=note["step"],
            step_index=note["index"],
            attempt=note.get("attempt", 1),
            status=note.get("status", "success"),
            timestamp=moment(note.get("at", header.at)),
            rev=header.rev,
            parent=header.parent,
            size=note.get("size", 0),
            error=note.get("error"),
            metadata=CheckpointMetadata.of({**note.get("meta", {}), **(about or {})}),
            workflow_id=note.get("workflow"),
            pinned=pinned,
            origin=note.get("from"),
            cursor=cursor,
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise Damaged(
            f"entry {header.run!r} at {header.rev}", why="it is no checkpoint that this release knows"
        ) from error


def checkpoint_of(header: CheckpointHeader, value: Any) -> Checkpoint:
    if not isinstance(value, dict) or "state" not in value:
        raise Damaged(f"checkpoint {header.id!r}", why="its state is not one of a checkpoint")
    parts = cast("dict[str, Any]", value)
    more: Mapping[str, Any] = parts.get("more", {})
    meta = header.metadata
    if "meta" in more:
        meta = CheckpointMetadata.of({**more["meta"], **meta.to_dict()})
    return Checkpoint(
        id=header.id,
        execution_id=header.execution_id,
        step_name=header.step_name,
        step_index=header.step_index,
        timestamp=header.timestamp,
        state=parts["state"],
        context=parts.get("context", {}),
        variables=parts.get("variables", {}),
        status=header.status,
        error=more.get("error", header.error),
        metadata=meta,
        attempt=header.attempt,
        workflow_id=header.workflow_id,
        messages=parts.get("messages"),
    )


def record_of(run: str, note: Mapping[str, Any], at: datetime, large: Mapping[str, Any] | None = None) -> StepRecord:
    said = {**note, **(large or {})}
    return StepRecord(
        execution_id=run,
        step_name=said["step"],
        step_index=said["index"],
        timestamp=at,
        attempt=said.get("attempt", 1),
        status=said.get("status", "success"),
        input=said.get("input"),
        result=said.get("result"),
        error=said.get("error"),
        error_type=said.get("type"),
        traceback=said.get("traceback"),
        duration=said.get("took", 0.0),
    )
