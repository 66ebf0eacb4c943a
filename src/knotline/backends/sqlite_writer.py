"""The one connection that writes, and what happens to it when the medium fails.

Apart from the backend because its care is outcomes: a batch is one transaction as long as all goes well, and
as soon as it does not, every write is on its own, and what was reported is what is there.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Generator, Sequence

import apsw

from knotline.backends import sqlite_shown
from knotline.backends.contract import Attach, Conflicted, Done, Failed, Outcome, Save, Write
from knotline.backends.sqlite_file import WAL_FRAME, WAL_PAGES, Cursor, Place, busy, cursor, translate
from knotline.backends.sqlite_find import pack, unpack
from knotline.errors import ContractBroken, Unavailable, UnknownFormat, Unsupported

__all__ = ["Writer", "forked"]

# So many young entries are read from the log by `find`; then they are worth a page per token.
_TAIL = 64
# The write-ahead log may hold about a sixteenth of the store before it is copied home, and at most so many pages:
# small stores stay small on disk, and in large ones pages that change often are copied less often.
_WAL_MOST = 1024
_CACHED_RUNS = 100_000
# What the medium can do to a commit: the last two when the connection has to be opened again.
_TROUBLE = (apsw.Error, UnknownFormat, Unsupported)


def forked(pid: int, name: str) -> None:
    """A connection must not cross a fork: its locks do not."""
    if pid != os.getpid():
        raise Unsupported(name, why="it was opened before this process was forked; open it after the fork")


class Writer:
    """Every method holds the lock; errors of the engine leave `commit` only as outcomes."""

    def __init__(self, place: Place, connection: apsw.Connection) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._connection: apsw.Connection | None = connection
        self._at = cursor(connection)
        # Every connection comes with synchronous=FULL.
        self._full = True
        self._wal = WAL_PAGES
        # Commits that no sync has followed yet.
        self._unsynced = False
        self._runs: dict[bytes, int] = {}
        self._indexed = 0
        # What the present transaction adds to the two above; it counts only once it is committed.
        self._new_runs: dict[bytes, int] = {}
        self._last = 0
        self._next_indexed = 0
        self._wrote = False
        # Is the table of what is shown there? Also known only once it is committed.
        self._shows = self._will_show = False

    # -- connection and transaction ------------------------------------------------------------------------

    def _usable(self) -> None:
        if self._closed:
            raise Unavailable(self._place.name, why="it is closed")
        forked(self._pid, self._place.name)

    def _ready(self) -> Cursor:
        if self._connection is None:
            connection = self._place.connect()
            if self._unsynced:
                # After a failed sync the system may take lost pages of the log for clean. Copying the log into
                # the store reads them from memory, where they still are, and syncs them in a new place.
                with contextlib.suppress(apsw.Error):
                    cursor(connection).execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._connection, self._at, self._full = connection, cursor(connection), True
            self._wal = WAL_PAGES
        return self._at

    def _begin(self, *, sync: bool) -> Cursor:
        at = self._ready()
        if sync != self._full:
            at.execute("PRAGMA synchronous=FULL" if sync else "PRAGMA synchronous=NORMAL").fetchall()
            self._full = sync
        self._wrote = self._will_show = False
        self._last = self._next_indexed = 0
        self._new_runs.clear()
        at.execute("BEGIN IMMEDIATE")
        return at

    def _end(self) -> None:
        self._at.execute("COMMIT")
        if self._wrote:
            # The sync of a commit covers everything that is in the log before it.
            self._unsynced = not self._full
        if self._new_runs:
            if len(self._runs) > _CACHED_RUNS:
                self._runs.clear()
            self._runs.update(self._new_runs)
        self._indexed = max(self._indexed, self._next_indexed)
        self._shows = self._shows or self._will_show

    def _undo(self, error: BaseException) -> None:
        connection = self._connection
        if connection is None:
            return
        healthy = not isinstance(error, apsw.Error) or busy(error) or isinstance(error, apsw.FullError)
        try:
            if connection.in_transaction:
                self._at.execute("ROLLBACK")
        except apsw.Error:
            healthy = False
        if not healthy:
            # A handle on which a sync failed must never be trusted with a second one.
            self._connection = None
            with contextlib.suppress(apsw.Error):
                connection.close(force=True)

    @contextlib.contextmanager
    def transaction(self, *, sync: bool = True) -> Generator[Cursor]:
        """For leases and discards: these raise."""
        with self._lock:
            self._usable()
            try:
                at = self._begin(sync=sync)
                before = at.connection.total_changes()
                yield at
                self._wrote = at.connection.total_changes() != before
                self._end()
            except apsw.Error as error:
                self._undo(error)
                raise translate(error, self._place.name) from error
            except BaseException as error:
                self._undo(error)
                raise

    # -- commit --------------------------------------------------------------------------------------------

    def commit(self, writes: Sequence[Write], *, sync: bool) -> list[Outcome]:
        with self._lock:
            self._usable()
            try:
                return self._together(writes, sync=sync)
            except _TROUBLE as error:
                trouble = error
            outcomes: list[Outcome] = []
            for write in writes:
                # One that failed alone is not tried again, and whoever waited for a lock once does not wait
                # again for each write.
                if len(writes) > 1 and not busy(trouble):
                    try:
                        outcomes += self._together([write], sync=sync)
                        continue
                    except _TROUBLE as error:
                        trouble = error
                outcomes.append(self._settled(write, trouble, sync=sync))
            return outcomes

    def _together(self, writes: Sequence[Write], *, sync: bool) -> list[Outcome]:
        """The whole batch in one transaction, or an error and nothing of it."""
        try:
            at = self._begin(sync=sync)
            outcomes = [self._save(at, w) if isinstance(w, Save) else self._attach(at, w) for w in writes]
            if sync and not self._wrote and Done() in outcomes:
                # Its own earlier write, perhaps not synced: only a commit that writes something syncs.
                self._touch(at)
            if self._last - self._indexed >= _TAIL:
                self._index(at)
            self._end()
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            self._undo(error)
            raise ContractBroken(f"{self._place.name}: not a write of the contract: {error}") from error
        except BaseException as error:
            self._undo(error)
            raise
        return outcomes

    def _settled(self, write: Write, error: Exception, *, sync: bool) -> Outcome:
        """What is true of a write whose transaction raised: it may be there nevertheless."""
        try:
            at = self._ready()
            if self._stands(at, write):
                if sync:
                    self._begin(sync=True)
                    self._touch(at)
                    self._end()
                return Done()
        except _TROUBLE as second:
            self._undo(second)
        unavailable = Unavailable(self._place.name, why=str(error) or type(error).__name__)
        unavailable.__cause__ = error
        return Failed(unavailable)

    def _stands(self, at: Cursor, write: Write) -> bool:
        if isinstance(write, Save):
            sql = "SELECT 1 FROM run JOIN log ON log.run=run.n WHERE run.key=? AND log.rev=? AND log.head=?"
            return bool(at.execute(sql, (write.run, write.rev, write.head)).fetchall())
        sql = (
            "SELECT 1 FROM run JOIN attach a ON a.run=run.n"
            " WHERE run.key=? AND a.rev=? AND a.task=? AND a.idx=? AND a.epoch=? AND a.data=?"
        )
        key = (write.run, write.rev, write.task, write.idx)
        return bool(at.execute(sql, (*key, write.epoch, write.data)).fetchall())

    def _touch(self, at: Cursor) -> None:
        at.execute("UPDATE meta SET value=value+1 WHERE name='touched'")
        self._wrote = True

    # -- one write, inside a transaction -------------------------------------------------------------------

    def number(self, at: Cursor, key: bytes) -> int | None:
        """The run's number; runs are never removed, so one that was committed once is known for good."""
        number = self._runs.get(key) or self._new_runs.get(key)
        if number is None:
            for (found,) in at.execute("SELECT n FROM run WHERE key=?", (key,)).fetchall():
                number = self._new_runs[key] = found
        return number

    def intern(self, at: Cursor, key: bytes) -> int:
        number = self.number(at, key)
        if number is None:
            at.execute("INSERT INTO run(key) VALUES(?)", (key,))
            number = self._new_runs[key] = at.connection.last_insert_rowid()
        return number

    def _save(self, at: Cursor, save: Save) -> Outcome:
        run = self.number(at, save.run)
        if run is None:
            run = self.intern(at, save.run)
        else:
            # Not only an entry that exists conflicts: a revision that was dropped is below the head too.
            sql = "SELECT 1 FROM log WHERE run=? AND rev>=? LIMIT 1"
            if at.execute(sql, (run, save.rev)).fetchall():
                return Done() if self._stands(at, save) else Conflicted()
        self._wrote = True
        if save.recast:
            self._recast(at, run, {rev: body for rev, body in save.recast if rev < save.rev})
        at.execute(
            "INSERT INTO log(run, rev, tokens, head, body) VALUES(?,?,?,?,?)",
            (run, save.rev, pack(save.tokens), save.head, save.body),
        )
        self._last = at.connection.last_insert_rowid()
        if save.objects:
            at.executemany(
                "INSERT INTO obj(id, claim, data) VALUES(?,?,?) ON CONFLICT(id) DO UPDATE SET claim=excluded.claim",
                [(oid, self._last, data) for oid, data in save.objects],
            )
        if save.alias is not None:
            ready = self._shows or self._will_show
            self._will_show = sqlite_shown.show(at, run, save, save.alias, ready=ready) or self._will_show
        if save.drop:
            self._drop(at, run, min(save.drop, save.rev))
        return Done()

    @staticmethod
    def _recast(at: Cursor, run: int, bodies: dict[int, bytes]) -> None:
        """Rows are taken out and put in again: an UPDATE to fewer bytes leaves the pages as empty as it made them."""
        if not bodies:
            return
        rows = at.execute(
            "SELECT seq, rev, tokens, head FROM log WHERE run=? AND rev BETWEEN ? AND ?",
            (run, min(bodies), max(bodies)),
        ).fetchall()
        rows = [row for row in rows if row[1] in bodies]
        at.executemany("DELETE FROM log WHERE seq=?", [(seq,) for seq, *_ in rows])
        at.executemany(
            "INSERT INTO log(seq, run, rev, tokens, head, body) VALUES(?,?,?,?,?,?)",
            [(seq, run, rev, tokens, head, bodies[rev]) for seq, rev, tokens, head in rows],
        )

    def _drop(self, at: Cursor, run: int, below: int) -> None:
        carried = at.execute(
            "SELECT seq, tokens FROM log WHERE run=? AND rev<? AND tokens IS NOT NULL", (run, below)
        ).fetchall()
        if carried:
            # Those that are not in the index yet are simply not found there.
            at.executemany("DELETE FROM idx WHERE token=? AND seq=?", _postings(carried))
        at.execute("DELETE FROM log WHERE run=? AND rev<?", (run, below))
        at.execute("DELETE FROM attach WHERE run=? AND rev<?", (run, below))
        # Asked every time: another process may have made the table since.
        if sqlite_shown.exists(at):
            sqlite_shown.hide(at, run, below)

    def _attach(self, at: Cursor, attach: Attach) -> Outcome:
        run = self.intern(at, attach.run)
        key = (run, attach.rev, attach.task, attach.idx)
        sql = "SELECT 1 FROM attach WHERE run=? AND rev=? AND task=? AND idx=?"
        if at.execute(sql, key).fetchall():
            return Done() if self._stands(at, attach) else Conflicted()
        self._wrote = True
        at.execute(
            "INSERT INTO attach(run, rev, task, idx, epoch, data) VALUES(?,?,?,?,?,?)",
            (*key, attach.epoch, attach.data),
        )
        return Done()

    def _index(self, at: Cursor) -> None:
        """Bring the young entries' tokens into the index, and let the write-ahead log grow with the store."""
        indexed: int = at.execute("SELECT value FROM meta WHERE name='indexed'").fetchall()[0][0]
        self._next_indexed = indexed
        if self._last - indexed < _TAIL:
            return
        young = at.execute("SELECT seq, tokens FROM log WHERE seq>? AND tokens IS NOT NULL", (indexed,)).fetchall()
        at.executemany("INSERT OR IGNORE INTO idx(token, seq) VALUES(?,?)", _postings(young))
        at.execute("UPDATE meta SET value=? WHERE name='indexed'", (self._last,))
        self._next_indexed = self._last
        pages: int = at.execute("PRAGMA page_count").fetchall()[0][0]
        while self._wal < min(pages // 16, _WAL_MOST):
            self._wal *= 2
            at.connection.wal_autocheckpoint(self._wal)
            at.execute(f"PRAGMA journal_size_limit={self._wal * WAL_FRAME}").fetchall()

    # -- the file as a whole -------------------------------------------------------------------------------

    def compact(self) -> None:
        with self._lock:
            self._usable()
            try:
                at = self._ready()
                at.execute("VACUUM").fetchall()
                at.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except apsw.Error as error:
                self._undo(error)
                raise translate(error, self._place.name) from error

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                # In a forked child nothing is ours to sync, and closing would break the parent's locks.
                if self._unsynced and self._pid == os.getpid():
                    self._touch(self._begin(sync=True))
                    self._end()
            except apsw.Error as error:
                self._undo(error)
                raise translate(error, self._place.name) from error
            finally:
                self._closed = True
                if self._connection is not None and self._pid == os.getpid():
                    with contextlib.suppress(apsw.Error):
                        self._connection.close(force=True)
                    self._connection = None


def _postings(rows: Sequence[tuple[int, bytes]]) -> list[tuple[int, int]]:
    """Sorted, so that neighbours share a page."""
    postings: list[tuple[int, int]] = []
    for seq, packed in rows:
        postings += [(token, seq) for token in unpack(packed)]
    postings.sort()
    return postings
