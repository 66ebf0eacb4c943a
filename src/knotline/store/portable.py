"""The portable file: a log, or many, as one stream of records in checked frames. `docs/format.md` has the picture.

    front | frame … | end frame
    frame   4 bytes length of the sealed data | kind 1 | sealed data

Small records share a frame, compressed where that helps; a large one is cut into frames of its own, as it is, since
its pieces are compressed already. A frame's seal binds it to its place, and the last says how much there was: what
is cut, turned round or changed is an error at the first frame that is not as it was. Nothing is allocated because of
a number that is read: what is held of a file is bounded by how much of it was read.

Reading here knows streams and records only. What the records mean is asked of `meaning`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from knotline.backends import MAX_REV, MAX_RUN_KEY, Attach, Save
from knotline.backends.keys import KeySource
from knotline.codec import ID
from knotline.errors import Damaged, Tampered, TooLarge
from knotline.store.portable_seals import SEAL, Seals, fresh, front_size, reopened

if TYPE_CHECKING:
    from backports import zstd
elif sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["Piece", "Record", "Tally", "Writer", "records"]

_BATCH: Final = 0
_SMALL: Final = 1
_PART: Final = 2
_LAST: Final = 3
_END: Final = 4

_FRAME: Final = 1 << 20
"""The most data in a frame."""
_FLUSH: Final = 1 << 18
_LARGE: Final = 1 << 16
_RATIO: Final = 32
"""A frame never opens to more than this many times its size; what compresses better is not compressed."""
_MAX_RECORD: Final = (1 << 31) - 1

_OBJECT: Final = 0
_SAVE: Final = 1
_ATTACH: Final = 2

_SAVED: Final = struct.Struct(">II")  # revision, drop
_ATTACHED: Final = struct.Struct(">IiQ")  # revision, index, epoch
_TALLY: Final = struct.Struct(">QQQQ")
_SIZE: Final = struct.Struct(">I")
_FRONT_START: Final = 10


@dataclass(frozen=True, slots=True)
class Piece:
    """An object; it belongs to the next entry."""

    oid: bytes
    stored: bytes


@dataclass(slots=True)
class Tally:
    """What a file holds. `bytes` are those of the records."""

    entries: int = 0
    objects: int = 0
    attachments: int = 0
    bytes: int = 0

    def add(self, kind: int, size: int) -> None:
        self.objects += kind == _OBJECT
        self.entries += kind == _SAVE
        self.attachments += kind == _ATTACH
        self.bytes += size


Record = Piece | Save | Attach | Tally
"""A `Save` has no objects and no alias of its own here. The `Tally` is the last."""


# -- records -----------------------------------------------------------------------------------------------


def _long(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def _close(record: Piece | Save | Attach) -> tuple[int, bytes]:
    if isinstance(record, Piece):
        return _OBJECT, record.oid + record.stored
    if isinstance(record, Attach):
        place = _ATTACHED.pack(record.rev, record.idx, record.epoch)
        return _ATTACH, b"".join((_long(record.run), place, _long(record.task), record.data))
    tokens = struct.pack(f">I{len(record.tokens)}I", len(record.tokens), *record.tokens)
    recast = [part for rev, body in record.recast for part in (_SIZE.pack(rev), _long(body))]
    place = _SAVED.pack(record.rev, record.drop)
    front = (_long(record.run), place, tokens, _long(record.head), _long(record.body), _SIZE.pack(len(record.recast)))
    return _SAVE, b"".join((*front, *recast))


class _Cursor:
    """Reads fields; whatever does not fit is damage."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def wrong(self, why: str) -> Damaged:
        return Damaged(self._what, why=why)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise self.wrong("a record of it is shorter than it says")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self) -> int:
        return _SIZE.unpack(self.take(4))[0]

    def long(self) -> bytes:
        return self.take(self.number())

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def run(self) -> bytes:
        run = self.long()
        if not 1 <= len(run) <= MAX_RUN_KEY:
            raise self.wrong(f"the key of a run has {len(run)} bytes")
        return run

    def done(self) -> bool:
        return self._at == len(self._data)


def _open(kind: int, data: bytes, what: str) -> Piece | Save | Attach:
    cursor = _Cursor(data, what)
    if kind == _OBJECT:
        return Piece(cursor.take(ID), cursor.rest())
    if kind == _ATTACH:
        run = cursor.run()
        rev, idx, epoch = _ATTACHED.unpack(cursor.take(_ATTACHED.size))
        if rev > MAX_REV or epoch >= 1 << 63:
            raise cursor.wrong("an attachment of it is in no place that there is")
        return Attach(run, rev, cursor.long(), idx, epoch, cursor.rest())
    if kind != _SAVE:
        raise cursor.wrong(f"a record of it is of kind {kind}")
    run = cursor.run()
    rev, drop = _SAVED.unpack(cursor.take(_SAVED.size))
    count = cursor.number()
    tokens = struct.unpack(f">{count}I", cursor.take(4 * count))
    head, body = cursor.long(), cursor.long()
    recast = tuple((cursor.number(), cursor.long()) for _ in range(_bounded(cursor.number(), data)))
    revs = [old for old, _ in recast]
    if rev > MAX_REV or drop > rev or not cursor.done() or any(not drop <= old < rev for old in revs):
        raise cursor.wrong("an entry of it does not read as one")
    if len(set(revs)) < len(revs) or list(tokens) != sorted(set(tokens)):
        raise cursor.wrong("an entry of it says something twice")
    return Save(run, rev, head, body, tokens, (), drop, recast)


def _bounded(count: int, data: bytes) -> int:
    # One more than fit: then a field is missing, and that is said where it is read.
    return min(count, len(data) // 8 + 1)


# -- writing -----------------------------------------------------------------------------------------------


class Writer:
    """Records into a stream. Nothing is whole before `finish`."""

    def __init__(self, stream: BinaryIO, sources: Sequence[KeySource] | None, what: str) -> None:
        self._stream = stream
        self._what = what
        front, self._seals = fresh(sources, what)
        self._batch: list[bytes] = []
        self._size = 0
        self._machine = zstd.ZstdCompressor(level=1)
        self.tally = Tally()
        stream.write(front)

    def put(self, record: Piece | Save | Attach) -> None:
        kind, data = _close(record)
        if len(data) >= _MAX_RECORD:
            raise TooLarge("record", why=f"{len(data)} bytes in one record of a file; the limit is {_MAX_RECORD}")
        self.tally.add(kind, len(data))
        if len(data) >= _LARGE:
            self._flush()
            data = bytes((kind,)) + data
            for at in range(0, len(data), _FRAME):
                self._frame(_PART if at + _FRAME < len(data) else _LAST, data[at : at + _FRAME])
            return
        self._batch += (bytes((kind,)), _long(data))
        self._size += 5 + len(data)
        if self._size >= _FLUSH:
            self._flush()

    def finish(self) -> None:
        self._flush()
        tally = self.tally
        self._frame(_END, _TALLY.pack(tally.entries, tally.objects, tally.attachments, tally.bytes))

    def _flush(self) -> None:
        if not self._batch:
            return
        plain = b"".join(self._batch)
        self._batch, self._size = [], 0
        small = self._machine.compress(plain, zstd.ZstdCompressor.FLUSH_FRAME)
        if len(small) + 4 < len(plain) <= _RATIO * len(small):
            self._frame(_SMALL, _SIZE.pack(len(plain)) + small)
        else:
            self._frame(_BATCH, plain)

    def _frame(self, kind: int, data: bytes) -> None:
        sealed = self._seals.close(kind, data)
        self._stream.write(b"%b%c" % (_SIZE.pack(len(sealed)), kind))
        self._stream.write(sealed)


# -- reading -----------------------------------------------------------------------------------------------


def records(stream: BinaryIO, sources: Sequence[KeySource], what: str) -> Iterator[Record]:
    """All that a file holds, in order, each checked to be what was written; ends with a `Tally`, or with an error."""
    start = stream.read(_FRONT_START)
    front = start + stream.read(max(front_size(start, what) - len(start), 0))
    seals = reopened(front, sources, what)
    tally = Tally()
    for kind, data in _joined(stream, seals, what):
        if kind is None:
            if data != _TALLY.pack(tally.entries, tally.objects, tally.attachments, tally.bytes):
                raise Damaged(what, why="it does not hold what its end says")
            yield tally
            return
        record = _open(kind, data, what)
        tally.add(kind, len(data))
        yield record


def _joined(stream: BinaryIO, seals: Seals, what: str) -> Iterator[tuple[int | None, bytes]]:
    """Kinds and bytes of records; in the end no kind, and what the end says."""
    large: list[bytes] = []
    held = 0
    for kind, data in _frames(stream, seals, what):
        if kind in (_PART, _LAST):
            large.append(data)
            held += len(data)
            if held > _MAX_RECORD or not data:
                raise Damaged(what, why="a record of it is longer than any that is written")
            if kind == _LAST:
                whole = b"".join(large)
                large, held = [], 0
                yield whole[0], whole[1:]
        elif large:
            raise Damaged(what, why="a record of it does not end")
        elif kind == _END:
            yield None, data
        else:
            cursor = _Cursor(_inflated(data, what) if kind == _SMALL else data, what)
            while not cursor.done():
                yield cursor.take(1)[0], cursor.long()


def _inflated(data: bytes, what: str) -> bytes:
    size = int.from_bytes(data[:4], "big")
    if size > min(_RATIO * len(data), _FRAME):
        raise Damaged(what, why=f"a frame of {len(data)} bytes declares {size}")
    machine = zstd.ZstdDecompressor()
    try:
        plain = machine.decompress(data[4:], max_length=size + 1)
    except (zstd.ZstdError, EOFError, ValueError) as error:
        raise Damaged(what, why="its compressed bytes do not open") from error
    if len(plain) != size or not machine.eof or machine.unused_data:
        raise Damaged(what, why="its compressed bytes do not have the declared length")
    return plain


def _frames(stream: BinaryIO, seals: Seals, what: str) -> Iterator[tuple[int, bytes]]:
    wrong = Tampered if seals.encrypted else Damaged
    number = 0
    while True:
        number += 1
        front = stream.read(5)
        if len(front) < 5:
            raise wrong(what, why="it is cut short")
        size, kind = _SIZE.unpack(front[:4])[0], front[4]
        if not SEAL <= size <= _FRAME + SEAL or kind > _END:
            raise wrong(what, why=f"frame {number} is none that is ever written")
        sealed = stream.read(size)
        if len(sealed) < size:
            raise wrong(what, why="it is cut short")
        data = seals.open(kind, sealed, what)
        if kind == _END and stream.read(1):
            raise wrong(what, why="something follows its end")
        yield kind, data
        if kind == _END:
            return
