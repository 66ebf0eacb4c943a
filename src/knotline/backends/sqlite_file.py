"""One file and what makes it ours: the gate on the engine, the format marks, the layout, the way to open it.

Apart from the backend because opening has rules of its own: never touch a file that is not ours, and let any
number of processes open a fresh path at once.

The layout, and why:

- `log` is a rowid table, so that entries of all runs pack densely at its end; `seq` is the cursor. A save is
  accepted only above its run's head and is inserted before it drops anything, so the highest `seq` is never
  deleted and `max + 1` is never a number that was given before: no counter page to write.
- `obj` has a unique index beside a rowid table: a `WITHOUT ROWID` table of blobs wastes overflow pages.
- `idx` holds the tokens of entries up to `meta.indexed`; younger ones are read from the log itself, so that a
  lone save does not dirty a page per token.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import apsw

from knotline.errors import Damaged, Error, Unavailable, UnknownFormat, Unsupported

__all__ = ["APPLICATION_ID", "FORMAT", "WAL_FRAME", "WAL_PAGES", "Cursor", "Place", "busy", "cursor", "translate"]

APPLICATION_ID = int.from_bytes(b"knot", "big")
FORMAT = 1
_OLDEST_ENGINE = (3, 51, 3)
_MAGIC = b"SQLite format 3\0"
_PAGE = 4096
# How far the write-ahead log of a small store grows, and what a page takes in it.
WAL_PAGES = 64
WAL_FRAME = _PAGE + 24

_SCHEMA = """
CREATE TABLE run(n INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE);
CREATE TABLE log(seq INTEGER PRIMARY KEY, run INT NOT NULL, rev INT NOT NULL,
                 tokens BLOB, head BLOB NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX log_rev ON log(run, rev);
CREATE TABLE obj(n INTEGER PRIMARY KEY, id BLOB NOT NULL, claim INT NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX obj_id ON obj(id);
CREATE TABLE attach(n INTEGER PRIMARY KEY, run INT NOT NULL, rev INT NOT NULL, task BLOB NOT NULL,
                    idx INT NOT NULL, epoch INT NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX attach_key ON attach(run, rev, task, idx);
CREATE TABLE lease(run INTEGER PRIMARY KEY, owner TEXT NOT NULL, epoch INT NOT NULL, until REAL NOT NULL);
CREATE TABLE idx(token INT NOT NULL, seq INT NOT NULL, PRIMARY KEY(token, seq)) WITHOUT ROWID;
CREATE TABLE meta(name TEXT PRIMARY KEY, value INT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES('indexed', 0), ('touched', 0);
"""


class Cursor(Protocol):
    """What is used of the engine's cursor; its own annotations need a newer Python than our oldest."""

    @property
    def connection(self) -> apsw.Connection: ...

    def execute(self, statements: str, bindings: Sequence[object] = ..., /) -> Cursor: ...

    def executemany(self, statements: str, bindings: Iterable[Sequence[object]], /) -> Cursor: ...

    def fetchall(self) -> list[Any]:
        """Always to the end: a statement that is left half-way keeps its transaction open."""
        ...


def cursor(connection: apsw.Connection) -> Cursor:
    return cast("Cursor", connection.cursor())


def busy(error: BaseException) -> bool:
    return isinstance(error, apsw.BusyError | apsw.LockedError)


def translate(error: apsw.Error, name: str) -> Damaged | Unavailable:
    """The engine's error as one of ours. The caller raises it `from` the original."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return Damaged(name, why=str(error))
    return Unavailable(name, why=str(error) or type(error).__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is and how its connections are made."""

    path: Path
    vfs: str | None
    timeout: float

    @property
    def name(self) -> str:
        return f"sqlite:{self.path}"

    def prepare(self) -> apsw.Connection:
        """The first connection: checks the engine and the file, and creates the store in an empty one."""
        version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
        if version < _OLDEST_ENGINE:
            why = f"SQLite {apsw.sqlite_lib_version()} can corrupt its write-ahead log; 3.51.3 is needed"
            raise Unsupported(self.name, why=why)
        try:
            self._create()
        except OSError as error:
            raise Unavailable(self.name, why=str(error)) from error
        try:
            return self.connect()
        except apsw.NotADBError as error:
            raise UnknownFormat(self.name, found="not a SQLite database") from error
        except apsw.Error as error:
            raise translate(error, self.name) from error

    def _create(self) -> None:
        """The file, empty, readable by its owner only, and its folders; what is there already stays as it is."""
        missing = [folder for folder in self.path.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(folder.parent)
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            self._look()
            return
        os.close(handle)
        _sync_folder(self.path.parent)

    def _look(self) -> None:
        """The engine takes a file shorter than its header for an empty database, and would overwrite it."""
        if not self.path.is_file() or Path(f"{self.path}-journal").exists():
            # With a journal beside it, what is in the file counts only after the engine has rolled it back.
            return
        with self.path.open("rb") as file:
            start = file.read(len(_MAGIC))
        if start and start != _MAGIC:
            raise UnknownFormat(self.name, found="not a SQLite database")

    def connect(self, *, reading: bool = False) -> apsw.Connection:
        """A connection with every setting made.

        The engine does not wait for some locks (the switch to WAL, recovery, another's last close), however
        long its busy timeout is. So this waits itself.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            connection: apsw.Connection | None = None
            try:
                connection = apsw.Connection(
                    str(self.path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=self.vfs, statementcachesize=64
                )
                self._settle(connection, reading=reading)
            except BaseException as error:
                if connection is not None:
                    with contextlib.suppress(apsw.Error):
                        connection.close(force=True)
                if not busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - only spreads the contenders
            else:
                return connection

    def _settle(self, connection: apsw.Connection, *, reading: bool) -> None:
        connection.set_busy_handler(self._wait())
        run = cursor(connection).execute
        run("PRAGMA foreign_keys=ON").fetchall()
        run("PRAGMA trusted_schema=OFF").fetchall()
        run("PRAGMA cell_size_check=ON").fetchall()
        run("PRAGMA mmap_size=0").fetchall()
        run("PRAGMA cache_size=-8000").fetchall()
        run("PRAGMA synchronous=FULL").fetchall()
        # Nothing is changed, not even the journal mode, before the file is known to be ours or empty.
        if not self._ours(connection):
            run(f"PRAGMA page_size={_PAGE}").fetchall()
            self._write_ahead(connection)
            self._lay_out(connection)
        else:
            self._write_ahead(connection)
        connection.wal_autocheckpoint(WAL_PAGES)
        run(f"PRAGMA journal_size_limit={WAL_PAGES * WAL_FRAME}").fetchall()
        if reading:
            run("PRAGMA query_only=ON").fetchall()

    def _wait(self) -> Callable[[int], bool]:
        """How to wait for another writer. The engine's own way soon sleeps 100 ms for a lock that is held for one."""
        began = 0.0

        def wait(tries: int) -> bool:
            nonlocal began
            now = time.monotonic()
            if tries == 0:
                began = now
            elif now - began > self.timeout:
                return False
            time.sleep(random.uniform(0.0002, min(0.0005 * (tries + 1), 0.01)))  # noqa: S311 - only spreads the contenders
            return True

        return wait

    def _ours(self, connection: apsw.Connection) -> bool:
        """True if it is a store of this format, False if it is empty; anything else is not ours to open."""
        run = cursor(connection).execute
        run("BEGIN")
        try:
            marks = [run(f"PRAGMA {mark}").fetchall()[0][0] for mark in ("application_id", "user_version")]
            tables = run("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
        finally:
            if connection.in_transaction:
                run("ROLLBACK")
        if marks == [APPLICATION_ID, FORMAT]:
            return True
        if marks == [0, 0] and tables == 0:
            return False
        if marks[0] == APPLICATION_ID:
            raise UnknownFormat(self.name, found=f"store format {marks[1]}")
        raise UnknownFormat(self.name, found="another program's SQLite database")

    def _write_ahead(self, connection: apsw.Connection) -> None:
        mode = cursor(connection).execute("PRAGMA journal_mode=WAL").fetchall()[0][0]
        if mode != "wal":
            raise Unsupported(self.name, why=f"write-ahead logging does not work here (journal mode {mode})")

    def _lay_out(self, connection: apsw.Connection) -> None:
        run = cursor(connection).execute
        run("BEGIN IMMEDIATE")
        try:
            if run("SELECT count(*) FROM sqlite_schema").fetchall()[0][0] == 0:
                run(_SCHEMA).fetchall()
                run(f"PRAGMA application_id={APPLICATION_ID}").fetchall()
                run(f"PRAGMA user_version={FORMAT}").fetchall()
            run("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(apsw.Error):
                    run("ROLLBACK")
            raise
        # Another process may have been first with it: then it must be the same format.
        if not self._ours(connection):
            raise Error(f"{self.name}: the layout is not there after it was written")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
