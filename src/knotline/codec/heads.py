"""The head of a log entry: a `Header` and its bytes.

`version 1 | hash 16 | check 8 | payload`. The hash is over the run, the revision, the payload and the plain
body; it binds an entry to its place. The check is over hash and payload, so that a list of heads can be
trusted without reading bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from knotline.codec.forms import exact
from knotline.codec.frames import ID, digest, digest_front, digest_piece
from knotline.codec.private import private
from knotline.codec.reading import decode
from knotline.codec.values import encode
from knotline.errors import Damaged, UnknownFormat
from knotline.records import NOWHERE, OPS, Header

__all__ = ["PREV", "check_body", "check_piece", "close_head", "glance", "open_head"]

PREV: Final = 8
_VERSION: Final = b"\x01"
_CHECK: Final = 8
_FRONT: Final = 1 + ID + _CHECK
_SHAPE: Final[list[type]] = [int, int, int, int, int, int, int, bytes, bytes, dict]
_CODES: Final = {op: code for code, op in enumerate(OPS)}


def _entry_hash(key: bytes, rev: int, payload: bytes, links: bytes, body: bytes) -> bytes:
    return digest(b"ent", key, rev.to_bytes(4, "big"), payload, links, body)


def close_head(header: Header, key: bytes, links: bytes, body: bytes) -> tuple[bytes, bytes]:
    """The head's bytes and the entry's hash. Revisions are written relative to the entry's own: small numbers."""
    rev = header.rev
    payload = encode(
        [
            _CODES[header.op],
            header.at,
            header.epoch,
            _relative(rev, header.pos),
            _relative(rev, header.parent),
            _relative(rev, header.undo),
            _relative(rev, header.redo),
            header.prev,
            header.writer,
            private(dict(header.note), "note"),
        ]
    )
    entry_hash = _entry_hash(key, rev, payload, links, body)
    return b"%b%b%b%b" % (_VERSION, entry_hash, digest(b"hd", entry_hash + payload)[:_CHECK], payload), entry_hash


def _relative(rev: int, target: int) -> int:
    return -1 if target == NOWHERE else rev - target


def open_head(stored: bytes, run: str, rev: int) -> Header:
    """Checked against its own check bytes only; `check_body` needs the body."""
    fields = _fields(stored, run, rev)
    code: int = fields[0]
    at, epoch, pos, parent, undo, redo, prev, writer, note = fields[1:]
    return Header(
        run=run,
        rev=rev,
        op=OPS[code],
        at=at,
        epoch=epoch,
        pos=_absolute(rev, pos),
        parent=_absolute(rev, parent),
        undo=_absolute(rev, undo),
        redo=_absolute(rev, redo),
        prev=prev,
        writer=writer,
        hash=stored[1 : 1 + ID],
        note=note,
    )


def glance(stored: bytes, run: str, rev: int) -> tuple[int, bool, dict[str, Any]]:
    """When it was written, whether it has a state, and what it says: for those who look at very many."""
    _, at, _, pos, _, _, _, _, _, note = _fields(stored, run, rev)
    return at, pos == 0, note


def _fields(stored: bytes, run: str, rev: int) -> list[Any]:
    if stored[:1] != _VERSION:
        if len(stored) < _FRONT:
            raise Damaged(_what(run, rev), why="it is cut short")
        raise UnknownFormat(_what(run, rev), found=stored[:1].hex())
    payload = stored[_FRONT:]
    if digest(b"hd", stored[1 : 1 + ID] + payload)[:_CHECK] != stored[1 + ID : _FRONT]:
        raise Damaged(_what(run, rev), why="its check does not match")
    fields: Any = decode(payload)
    if exact(fields) is not list or list(map(exact, fields)) != _SHAPE:
        raise UnknownFormat(_what(run, rev), found="other fields")
    if not 0 <= fields[0] < len(OPS):
        raise UnknownFormat(_what(run, rev), found=f"operation {fields[0]}")
    return fields


def _what(run: str, rev: int) -> str:
    return f"head of {run!r} at {rev}"


def _absolute(rev: int, relative: int) -> int:
    return NOWHERE if relative < 0 else rev - relative


def check_body(header: Header, head: bytes, key: bytes, links: bytes, body: bytes) -> None:
    if _entry_hash(key, header.rev, head[_FRONT:], links, body) != header.hash:
        raise Damaged(f"entry {header.run!r} at {header.rev}", why="its bytes do not match their hash")


def check_piece(
    entry_head: bytes, key: bytes, run: str, rev: int, stored: bytes, *, seal: Callable[[int], Any]
) -> tuple[Header, list[bytes], bytes]:
    """An entry that nobody vouches for: its header, its links and the beginning of its body's payload."""
    header = open_head(entry_head, run, rev)

    def front(links: list[bytes], size: int) -> bytes:
        return digest_front(b"ent", key, rev.to_bytes(4, "big"), entry_head[_FRONT:], b"".join(links), size=size)

    links, found, beginning = digest_piece(stored, f"body of {run!r} at {rev}", front, seal=seal)
    if found != header.hash:
        raise Damaged(f"entry {run!r} at {rev}", why="its bytes do not match their hash")
    return header, links, beginning
