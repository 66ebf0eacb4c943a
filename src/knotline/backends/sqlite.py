"""A store in one SQLite file: durable, shared by any number of processes, nothing to run.

One connection writes and another reads, each under a lock of its own, so that reading never waits for a sync.
What is special about the file is in `sqlite_file`, about writing in `sqlite_writer`, about tokens in
`sqlite_find`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import apsw

from knotline.backends.contract import MAX_REV, Attachment, Entry, Lease, Outcome, Write
from knotline.backends.sqlite_file import Cursor, Place, busy, cursor, translate
from knotline.backends.sqlite_find import find, unpack
from knotline.backends.sqlite_hold import Hold
from knotline.backends.sqlite_shown import disagreeing
from knotline.backends.sqlite_writer import Writer, forked
from knotline.errors import Damaged, Unavailable, Unsupported

__all__ = ["SqliteBackend"]


class _Reader:
    """The connection that reads, opened when it is first needed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._connection: apsw.Connection | None = None

    @contextlib.contextmanager
    def snapshot(self) -> Generator[Cursor]:
        """A cursor on one state of the store, and errors of ours."""
        with self._lock:
            if self._closed:
                raise Unavailable(self._place.name, why="it is closed")
            forked(self._pid, self._place.name)
            try:
                if self._connection is None:
                    self._connection = self._place.connect(reading=True)
                at = cursor(self._connection)
                at.execute("BEGIN")
                yield at
                at.execute("COMMIT")
            except BaseException as error:
                self._undo(error)
                if isinstance(error, apsw.Error):
                    raise translate(error, self._place.name) from error
                if isinstance(error, UnicodeDecodeError | OverflowError):
                    raise Damaged(self._place.name, why=f"a row that cannot be read: {error}") from error
                raise

    def _undo(self, error: BaseException) -> None:
        connection = self._connection
        if connection is None:
            return
        healthy = not isinstance(error, apsw.Error) or busy(error)
        try:
            if connection.in_transaction:
                cursor(connection).execute("ROLLBACK")
        except apsw.Error:
            healthy = False
        if not healthy:
            self._connection = None
            with contextlib.suppress(apsw.Error):
                connection.close(force=True)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._connection is not None and self._pid == os.getpid():
                with contextlib.suppress(apsw.Error):
                    self._connection.close(force=True)
                self._connection = None


class SqliteBackend:
    """The store in the file `path`, which is created if it is missing.

    Without a `clock`, leases go by this machine's time. `timeout` is how long a call waits for the writers of
    other processes, in seconds. `vfs` names one that was registered with the engine.
    """

    _opened: ClassVar[weakref.WeakSet[SqliteBackend]] = weakref.WeakSet()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] | None = None,
        vfs: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._place = Place(Path(os.path.abspath(path)), vfs, timeout)
        self._clock = time.time if clock is None else clock
        self._pid = os.getpid()
        for other in list(SqliteBackend._opened):
            # The engine keeps its locks on a file per process and does not notice a fork.
            if other._pid != self._pid and other._place.path == self._place.path:
                why = "this process was forked while it was open; close it before the fork, or spawn"
                raise Unsupported(self.name, why=why)
        self._writer = Writer(self._place, self._place.prepare())
        self._reader = _Reader(self._place)
        self._hold = Hold(self._place.path)
        self._hold.watch(self)
        SqliteBackend._opened.add(self)

    @property
    def lanes(self) -> int:
        return 1

    @property
    def name(self) -> str:
        return self._place.name

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        return self._writer.commit(writes, sync=sync)

    # -- reading -------------------------------------------------------------------------------------------

    def head(self, run: bytes) -> Entry | None:
        sql = (
            "SELECT rev, head, body, seq, tokens FROM log"
            " WHERE run=(SELECT n FROM run WHERE key=?) ORDER BY rev DESC LIMIT 1"
        )
        with self._reader.snapshot() as at:
            rows = at.execute(sql, (run,)).fetchall()
        return self._entries(run, rows)[0] if rows else None

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        body = "body" if bodies else "NULL"
        sql = (
            f"SELECT rev, head, {body}, seq, tokens FROM log"  # noqa: S608 - one of the two words above
            " WHERE run=(SELECT n FROM run WHERE key=?) AND rev BETWEEN ? AND ? ORDER BY rev"
        )
        with self._reader.snapshot() as at:
            rows = at.execute(sql, (run, lo, hi)).fetchall()
        return self._entries(run, rows, bodies=bodies)

    def _entries(self, run: bytes, rows: list[Any], *, bodies: bool = True) -> list[Entry]:
        self._typed([row[:-1] for row in rows], int, bytes, bytes if bodies else type(None), int)
        return [Entry(run, rev, head, body, cursor, unpack(tokens)) for rev, head, body, cursor, tokens in rows]

    def _typed(self, rows: list[Any], *kinds: type) -> None:
        """A damaged row may come back with other types: SQLite stores them value by value."""
        for row in rows:
            if tuple(map(type, row)) != kinds:
                raise Damaged(self.name, why="a row with other types than were written")

    def find(
        self,
        tokens: Sequence[int] = (),
        *,
        run: bytes | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 100,
    ) -> list[Entry]:
        with self._reader.snapshot() as at:
            found = find(at, tokens, run=run, beyond=beyond, newest=newest, limit=limit)
        self._typed([(it.run, it.rev, it.head, it.cursor) for it in found], bytes, int, bytes, int)
        return found

    def runs(self, *, after: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, int]]:
        sql = (
            "SELECT key, (SELECT rev FROM log WHERE log.run=run.n ORDER BY rev DESC LIMIT 1) AS top FROM run"
            " WHERE key>? AND top IS NOT NULL ORDER BY key LIMIT ?"
        )
        with self._reader.snapshot() as at:
            # No key is empty, so the empty one is before them all.
            rows = at.execute(sql, (after or b"", max(limit, 0))).fetchall()
        self._typed(rows, bytes, int)
        return rows

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._reader.snapshot() as at:
            each = ((oid,) for oid in ids)
            rows = at.executemany("SELECT id, data FROM obj WHERE id=?", each).fetchall()
        self._typed(rows, bytes, bytes)
        return dict(rows)

    def object_ids(self, *, after: bytes | None = None, limit: int = 10000) -> list[bytes]:
        sql = "SELECT id FROM obj WHERE id>? ORDER BY id LIMIT ?"
        with self._reader.snapshot() as at:
            rows = at.execute(sql, (after or b"", max(limit, 0))).fetchall()
        self._typed(rows, bytes)
        return [row[0] for row in rows]

    def attachments(self, run: bytes, *, lo: int = 0, hi: int = MAX_REV) -> list[Attachment]:
        sql = (
            "SELECT rev, task, idx, epoch, data FROM attach WHERE run=(SELECT n FROM run WHERE key=?)"
            " AND rev BETWEEN ? AND ? ORDER BY rev, task, idx"
        )
        with self._reader.snapshot() as at:
            rows = at.execute(sql, (run, lo, hi)).fetchall()
        self._typed(rows, int, bytes, int, int, bytes)
        return [Attachment(*row) for row in rows]

    # -- leases --------------------------------------------------------------------------------------------

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:
        with self._writer.transaction() as at:
            number = self._writer.intern(at, run)
            # Read once the lock is held: a wait for it must not make the time stale.
            now = self._clock()
            holder, epoch, until = self._held(at, number) or ("", 0, now)
            if now < until and holder != owner:
                return Lease(holder, epoch, until, live=True)
            if now < until:
                until = max(until, now + ttl)
            else:
                epoch, until = epoch + 1, now + ttl
            at.execute("INSERT OR REPLACE INTO lease VALUES(?,?,?,?)", (number, owner, epoch, until))
            return Lease(owner, epoch, until, live=now < until)

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:
        # Not synced: a renewal that a power loss takes back is a lease that ends sooner.
        with self._writer.transaction(sync=False) as at:
            number = self._writer.number(at, run)
            now = self._clock()
            held = None if number is None else self._held(at, number)
            if held is None or held[:2] != (owner, epoch) or now >= held[2]:
                return None
            until = max(held[2], now + ttl)
            at.execute("UPDATE lease SET until=? WHERE run=?", (until, number))
            return Lease(owner, epoch, until, live=True)

    def release(self, run: bytes, owner: str, epoch: int) -> bool:
        with self._writer.transaction(sync=False) as at:
            number = self._writer.number(at, run)
            now = self._clock()
            held = None if number is None else self._held(at, number)
            if held is None or held[:2] != (owner, epoch) or now >= held[2]:
                return False
            at.execute("UPDATE lease SET until=? WHERE run=?", (now, number))
            return True

    def lease(self, run: bytes) -> Lease | None:
        with self._reader.snapshot() as at:
            rows = at.execute("SELECT n FROM run WHERE key=?", (run,)).fetchall()
            held = self._held(at, rows[0][0]) if rows else None
        return None if held is None else Lease(*held, live=self._clock() < held[2])

    def _held(self, at: Cursor, number: int) -> tuple[str, int, float] | None:
        rows = at.execute("SELECT owner, epoch, until FROM lease WHERE run=?", (number,)).fetchall()
        self._typed(rows, str, int, float)
        return rows[0] if rows else None

    # -- space ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        with self._reader.snapshot() as at:
            return _highest(at)

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int:
        with self._writer.transaction() as at:
            before = at.connection.total_changes()
            at.executemany("DELETE FROM obj WHERE id=? AND claim<=?", ((oid, mark) for oid in ids))
            return at.connection.total_changes() - before

    def check(self) -> list[str]:
        with self._reader.snapshot() as at:
            found = [str(row[0]) for row in at.execute("PRAGMA integrity_check(20)").fetchall()]
            lost = (
                "SELECT count(*) FROM log WHERE rev<0 OR rev>?"
                " OR run NOT IN (SELECT n FROM run WHERE typeof(key)='blob')"
            )
            astray = at.execute(lost, (MAX_REV,)).fetchall()[0][0]
            found += disagreeing(at)
        return [text for text in found if text != "ok"] + (
            [f"{astray} entries of no run or revision"] if astray else []
        )

    def size(self) -> int:
        with self._reader.snapshot():
            total = 0
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(f"{self._place.path}{suffix}").st_size
            return total

    def compact(self) -> None:
        self._writer.compact()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._hold.loosen()
        try:
            self._reader.close()
            self._writer.close()
        finally:
            self._hold.drop()
        SqliteBackend._opened.discard(self)


def _highest(at: Cursor) -> int:
    rows = at.execute("SELECT coalesce(max(seq), 0) FROM log").fetchall()
    return rows[0][0]
