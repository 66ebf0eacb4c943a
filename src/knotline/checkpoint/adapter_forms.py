"""What the adapter's documents look like: entries, attachments and objects as data that JSON can hold.

Apart from the adapter because this is format: bytes are base64, keys are safe as file names and of one length, and
what comes back is believed only if it is the document that belongs under its key. Each carries a digest of itself:
what a drop or a number says is acted upon before any hash of the store above could speak.
"""

from __future__ import annotations

import base64
import json
from typing import Any, cast

from knotline.backends import Attach, Save
from knotline.codec import digest
from knotline.errors import Damaged

__all__ = [
    "attach_document",
    "attach_key",
    "entry_document",
    "entry_key",
    "object_document",
    "open_attach",
    "open_entry",
    "open_object",
]

# Whatever a stranger's storage gives back instead of what it was given.
_MISFIT = (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError)


def entry_key(run: bytes, rev: int) -> str:
    return f"{digest(b'run', run).hex()}.{rev}"


def attach_key(run: bytes, rev: int, task: bytes, idx: int) -> str:
    return f"{digest(b'run', run).hex()}.{rev}.{digest(b'tsk', task).hex()}.{idx}"


def entry_document(save: Save, number: int) -> dict[str, Any]:
    return _sealed(
        {
            "run": _text(save.run),
            "rev": save.rev,
            "number": number,
            "head": _text(save.head),
            "body": _text(save.body),
            "tokens": list(save.tokens),
            "drop": save.drop,
        }
    )


def open_entry(name: str, key: str, found: object) -> tuple[int, Save]:
    try:
        said = _unsealed(found)
        tokens = tuple(map(int, said["tokens"]))
        front = (_bytes(said["run"]), int(said["rev"]), _bytes(said["head"]), _bytes(said["body"]))
        save, number = Save(*front, tokens, drop=int(said["drop"])), int(said["number"])
    except _MISFIT as error:
        raise _damaged(name, key, repr(error)) from error
    if key != entry_key(save.run, save.rev):
        raise _damaged(name, key, "it belongs under another key")
    return number, save


def attach_document(attach: Attach, number: int) -> dict[str, Any]:
    return _sealed(
        {
            "run": _text(attach.run),
            "rev": attach.rev,
            "task": _text(attach.task),
            "idx": attach.idx,
            "epoch": attach.epoch,
            "data": _text(attach.data),
            "number": number,
        }
    )


def open_attach(name: str, key: str, found: object) -> tuple[int, Attach]:
    try:
        said = _unsealed(found)
        where = (_bytes(said["run"]), int(said["rev"]), _bytes(said["task"]), int(said["idx"]))
        attach, number = Attach(*where, int(said["epoch"]), _bytes(said["data"])), int(said["number"])
    except _MISFIT as error:
        raise _damaged(name, key, repr(error)) from error
    if key != attach_key(*where):
        raise _damaged(name, key, "it belongs under another key")
    return number, attach


def object_document(data: bytes) -> dict[str, Any]:
    return _sealed({"data": _text(data)})


def open_object(name: str, key: str, found: object) -> bytes:
    try:
        return _bytes(_unsealed(found)["data"])
    except _MISFIT as error:
        raise _damaged(name, key, repr(error)) from error


def _sealed(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "check": _check(document)}


def _unsealed(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError("nothing" if found is None else f"{type(found).__name__} instead of a dict")
    said = dict(cast("dict[str, Any]", found))
    if said.pop("check") != _check(said):
        raise ValueError("its digest is another")
    return said


def _check(document: dict[str, Any]) -> str:
    plain = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return digest(b"doc", plain.encode("ascii")).hex()


def _damaged(name: str, key: str, why: str) -> Damaged:
    return Damaged(f"{name}: {key}", why=f"not what was saved: {why}")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
