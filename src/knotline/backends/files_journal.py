"""A journal of what is about to be saved: what finds entries by their tokens, in the order of commits.

A line is appended, in one step, before its entry is created: no killed process can leave an entry without one. A
line alone means nothing: it counts once the entry is there, and only if it is that very entry. The journal is
derived. Lines that a power cut took are written again from the entries themselves.

Its order has one more use. Whoever deletes an object says so in a line first; whoever saves claims its objects
in its line first. The order of these lines decides which of the two must give way (see `files_objects`).
"""

from __future__ import annotations

import base64
import json
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blake3 import blake3

from knotline.backends.files_medium import Medium

__all__ = ["Journal", "Line", "nonce"]

_RECENT: Final = 1000
_DEAD: Final = 86_400
"""Seconds after which the process behind a line without an entry is taken for dead."""


def nonce(head: bytes) -> str:
    """Heads are unlike each other: so much of a hash tells which of two racing entries a line is of."""
    return blake3(head).hexdigest(6)


@dataclass(slots=True, eq=False)
class Line:
    cursor: int
    run: bytes
    rev: int
    nonce: str
    tokens: tuple[int, ...]
    gone: bool = False


@dataclass(slots=True)
class _Run:
    lines: list[Line] = field(default_factory=list[Line])
    top: int = -1
    pending: int = 0
    """The cursor of the first line for the highest revision, while it may still be under way; else 0."""
    since: int = 0


class Journal:
    def __init__(self, medium: Medium, path: str) -> None:
        self._medium = medium
        self._path = path
        self.lock = threading.RLock()
        self._fd: int | None = None
        self._offset = 0
        self._cursor = 0
        self._runs: dict[bytes, _Run] = {}
        self._tokens: dict[int, list[Line]] = {}
        self._all: list[Line] = []
        self._lines: dict[tuple[bytes, int], int] = {}
        self._known: dict[tuple[bytes, int, str], Line] = {}
        self._claims: dict[bytes, int] = {}
        self._condemned: dict[str, dict[str, None]] = {}

    # -- appending -----------------------------------------------------------------------------------------

    def append(self, lines: Sequence[list[Any]]) -> None:
        text = b"".join([_closed(line) for line in lines])
        with self.lock:
            if self._fd is None:
                self._fd = self._medium.disk.open_append(self._path)
            try:
                self._medium.disk.append(self._fd, text)
            except OSError:
                fd, self._fd = self._fd, None
                self._medium.disk.close(fd)
                raise

    @staticmethod
    def line(
        run: bytes, rev: int, head: bytes, tokens: Sequence[int], claims: Sequence[bytes], now: float
    ) -> list[Any]:
        key = base64.b64encode(run).decode()
        front = ["s", key, rev, nonce(head), int(now), sorted(set(tokens))]
        return [*front, "".join([oid.hex() for oid in claims])] if claims else front

    def sync(self) -> None:
        with self.lock:
            if self._fd is not None:
                self._medium.disk.fsync(self._fd)

    def close(self) -> None:
        with self.lock:
            if self._fd is not None:
                fd, self._fd = self._fd, None
                self._medium.disk.close(fd)

    # -- reading -------------------------------------------------------------------------------------------

    def catch_up(self) -> int:
        """Everything that was appended before this call, by anybody; the last cursor."""
        with self.lock:
            try:
                new = self._medium.disk.read(self._path, self._offset)
            except FileNotFoundError:
                return self._cursor
            end = new.rfind(b"\n") + 1
            self._offset += end
            for text in new[:end].split(b"\n"):
                if text:
                    self._take(text)
            return self._cursor

    def _take(self, text: bytes) -> None:
        body, _, check = text.rpartition(b"\t")
        if _check(body) != check:
            return  # cut or changed: what it was for is found by looking at the entries
        try:
            kind, *rest = json.loads(body)
            if kind == "s":
                self._save(*rest)
            elif kind == "c":
                self._cursor = max(self._cursor, int(rest[0]))
            elif kind == "x":
                self._condemned[str(rest[0])] = dict.fromkeys(map(str, rest[1]))
            elif kind == "y":
                self._condemned.pop(str(rest[0]), None)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return  # as above

    def _save(self, key: str, rev: int, mark: str, now: int, tokens: list[int], claims: str = "") -> None:
        run = base64.b64decode(key, validate=True)
        line = Line(self._cursor + 1, run, rev, mark, tuple(tokens))
        ids = bytes.fromhex(claims)
        self._cursor = line.cursor
        for at in range(0, len(ids), 16):
            self._claims[ids[at : at + 16]] = line.cursor
        before = self._known.pop((run, rev, mark), None)
        if before is not None:
            before.gone = True
        else:
            self._lines[run, rev] = self._lines.get((run, rev), 0) + 1
        self._known[run, rev, mark] = line
        of = self._runs.setdefault(run, _Run())
        of.lines.append(line)
        self._all.append(line)
        for token in line.tokens:
            self._tokens.setdefault(token, []).append(line)
        if rev > of.top:
            # Nobody writes a line for a revision before the one below it is there.
            of.top, of.pending, of.since = rev, line.cursor, now

    def cursor(self, run: bytes, rev: int, head: bytes) -> int | None:
        with self.lock:
            line = self._known.get((run, rev, nonce(head)))
            return None if line is None or line.gone else line.cursor

    def has(self, run: bytes, rev: int) -> bool:
        """Is there exactly one line for this entry? Of several only the entry's head tells which is its own."""
        with self.lock:
            return self._lines.get((run, rev), 0) == 1

    def top(self, run: bytes, last: int) -> int:
        """The highest revision that a line was written for, as far as the line `last`."""
        with self.lock:
            of = self._runs.get(run)
            lines = () if of is None else reversed(of.lines)
            return next((line.rev for line in lines if line.cursor <= last), -1)

    def runs(self) -> list[bytes]:
        with self.lock:
            return list(self._runs)

    @property
    def last(self) -> int:
        return self._cursor

    def under_way(self, now: float) -> list[tuple[bytes, int, int]]:
        """`(run, rev, cursor)` of lines whose entry may not be there yet."""
        with self.lock:
            return [
                (run, of.top, of.pending)
                for run, of in self._runs.items()
                if of.pending and abs(now - of.since) < _DEAD
            ]

    def arrived(self, run: bytes, rev: int) -> None:
        with self.lock:
            of = self._runs.get(run)
            if of is not None and of.top <= rev:
                of.pending = 0

    def walk(self, wanted: frozenset[int], *, run: bytes | None, beyond: int | None, newest: bool) -> Iterator[Line]:
        """Lines worth looking at, in the asked order: those of the rarest of the conditions."""
        with self.lock:
            ways = [self._tokens.get(token, []) for token in wanted]
            if run is not None:
                of = self._runs.get(run)
                ways.append([] if of is None else of.lines)
            way = min(ways, key=len) if ways else self._all
            if len(way) > 64 and sum(line.gone for line in way) > len(way) // 2:
                way[:] = [line for line in way if not line.gone]
            if newest:
                end = len(way) if beyond is None else bisect_left(way, beyond, key=_cursor)
                found = way[:end]
                found.reverse()
            else:
                found = way[0 if beyond is None else bisect_right(way, beyond, key=_cursor) :]
        return (line for line in found if not line.gone)

    def lose(self, line: Line) -> None:
        """Its entry was dropped, or another one won."""
        with self.lock:
            line.gone = True
            self._known.pop((line.run, line.rev, line.nonce), None)

    def rewrite(self, keep: Callable[[bytes, int, str], bool], now: float) -> None:
        """A shorter journal with the same cursors. Nobody else has the store open."""
        with self.lock:
            last = self.catch_up()
            lines: list[list[Any]] = []
            at = 0
            for line in self._all:
                if line.gone or not keep(line.run, line.rev, line.nonce):
                    self.lose(line)
                    continue
                if line.cursor != at + 1:
                    lines.append(["c", line.cursor - 1])
                at = line.cursor
                claims = [oid for oid, cursor in self._claims.items() if cursor == at] if at > last - _RECENT else []
                lines.append([*self.line(line.run, line.rev, b"", line.tokens, claims, now)])
                lines[-1][3] = line.nonce
            if at != last:
                lines.append(["c", last])
            text = b"".join([_closed(line) for line in lines])
            self.close()
            self._medium.replace(self._path.rpartition("/")[0], self._path, text)
            self._offset = len(text)
            self._all = [line for line in self._all if not line.gone]

    # -- objects -------------------------------------------------------------------------------------------

    def claimed(self, oid: bytes) -> int:
        with self.lock:
            return self._claims.get(oid, 0)

    def condemned(self, name: str) -> bool:
        with self.lock:
            return any(name in names for names in self._condemned.values())


def _closed(line: list[Any]) -> bytes:
    body = json.dumps(line, separators=(",", ":")).encode()
    # The newline in front ends what a full disk may have cut.
    return b"\n%b\t%b\n" % (body, _check(body))


def _check(body: bytes) -> bytes:
    """A line that is not what was written would hide an entry from every list."""
    return blake3(body).hexdigest(6).encode()


def _cursor(line: Line) -> int:
    return line.cursor
