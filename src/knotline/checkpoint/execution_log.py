"""The run's `execution.log`: what happened as lines for a person, from the log itself, and as a file to tail.

The file is written beside a storage that lies in a folder, line by line, for `tail -f`. It is a convenience: the log in
the store is what counts. An encrypted storage has none, since its lines would be readable.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from knotline.checkpoint.base import BaseStorage
from knotline.config.places import folder_name
from knotline.records import NOWHERE, Header, StepRecord, moment
from knotline.timeline import Timeline
from knotline.timeline.notes import is_checkpoint, record_of

__all__ = ["LogFiles", "checkpoint_line", "line_of", "lines", "log_file", "move_line", "status_line"]

_NAME: Final = "execution.log"
_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_MOST: Final = 32


def log_file(storage: BaseStorage, execution_id: str) -> Path | None:
    return None if storage.logs is None else storage.logs / folder_name(execution_id) / _NAME


class LogFiles:
    """The files that were written to last, kept open: a line then costs one call. Safe to use from several threads."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._lock = threading.Lock()

    def append(self, file: Path, text: str) -> None:
        with self._lock:
            fd = self._open.get(file)
            if fd is not None and os.fstat(fd).st_nlink == 0:
                # Somebody put it away: the next line begins another.
                os.close(self._open.pop(file))
                fd = None
            if fd is None:
                file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                fd = self._open[file] = os.open(file, _APPEND, 0o600)
                if len(self._open) > _MOST:
                    os.close(self._open.popitem(last=False)[1])
            os.write(fd, (text + "\n").encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])


def line_of(record: StepRecord) -> str:
    front = f"{record.timestamp.isoformat(timespec='milliseconds')} step {record.step_index} {record.step_name}"
    attempt = "" if record.attempt == 1 else f" (attempt {record.attempt})"
    if record.status == "failed":
        error = (record.error or "").splitlines() or [""]
        return f"{front}{attempt} failed after {record.duration:.3f}s: {record.error_type or 'error'}: {error[0]}"
    return f"{front}{attempt} {record.status} in {record.duration:.3f}s"


def checkpoint_line(at: datetime, checkpoint_id: str, status: str) -> str:
    return f"{at.isoformat(timespec='milliseconds')} checkpoint {checkpoint_id} {status}"


def status_line(at: datetime, status: str, *, why: str | None = None, error: str | None = None) -> str:
    reason = f" ({why})" if why else ""
    trouble = f": {(error.splitlines() or [''])[0]}" if error else ""
    return f"{at.isoformat(timespec='milliseconds')} run {status}{reason}{trouble}"


def move_line(at: datetime, what: str) -> str:
    return f"{at.isoformat(timespec='milliseconds')} {what}"


def lines(timeline: Timeline, execution_id: str, *, after: int = NOWHERE) -> list[tuple[int, str]]:
    """Every move of the run, also those that are out of sight: a log tells what happened."""
    timeline.settle(execution_id)
    head = timeline.store.head(execution_id)
    if head is None:
        return []
    found: list[tuple[int, str]] = []
    for header in timeline.store.headers(execution_id, after + 1, head.rev):
        found += [(header.rev, text) for text in _lines(header)]
    return found


def _lines(header: Header) -> list[str]:
    note: Mapping[str, Any] = header.note
    at = moment(header.at)
    made: list[str] = []
    if "record" in note:
        said = {
            "step": note.get("step"),
            "index": note.get("index"),
            "attempt": note.get("attempt", 1),
            **note["record"],
        }
        made.append(line_of(record_of(header.run, said, at)))
    if is_checkpoint(header):
        made.append(checkpoint_line(at, note["id"], note.get("status", "success")))
    elif header.op in ("rollback", "undo", "redo", "prune", "delete", "takeover"):
        target = note.get("id") or (f"revision {note['to']}" if "to" in note else "")
        made.append(move_line(at, f"{note.get('why', header.op)} {target}".rstrip()))
    elif "about" in note:
        made.append(move_line(at, f"annotated revision {note['about']}"))
    if "run" in note:
        made.append(status_line(at, note["run"], why=note.get("why"), error=note.get("error")))
    return made
