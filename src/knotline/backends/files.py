"""A store in files that one can read: an entry is one JSON file, created once by `link(2)`, which is the commit.

    log/<run>/00000012.json             entries; attached/ has what stands beside them
    objects/<2 hex>/<id>                large values and the leaves of long lists, compressed
    <category>/<key>.json               what people look for, shown
    .store/                             format, journal, leases

The order of writing is in `files_writer`, what a power cut may leave in `files_log`, the index in `files_journal`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Final

from knotline.backends.contract import MAX_REV, Attachment, Entry, Lease, Outcome, Write
from knotline.backends.files_care import Care
from knotline.backends.files_disk import Disk
from knotline.backends.files_entry import Page
from knotline.backends.files_journal import Journal, nonce
from knotline.backends.files_leases import Leases
from knotline.backends.files_log import Log, Run
from knotline.backends.files_medium import TEMPORARY, Medium, translate
from knotline.backends.files_names import Names
from knotline.backends.files_objects import Objects
from knotline.backends.files_writer import Writer, attachment_of
from knotline.errors import Damaged, Error, Unavailable, UnknownFormat

__all__ = ["FilesBackend"]

_FORMAT: Final = 1
_LANES: Final = 8
_TRIES: Final = 1000


class FilesBackend:
    """The store in `folder`, which is created if it is missing. Any number of processes may share it.

    Without a `clock`, leases go by this machine's time. `disk` makes the calls on the file system.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        clock: Callable[[], float] | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._folder = Path(os.path.abspath(folder))
        self._closed = False
        self._names = Names(self._folder)
        self._disk = Disk() if disk is None else disk
        self._disk.folder = self._folder
        self._medium = Medium(self._disk, self._names.root)
        self._journal = Journal(self._medium, self._names.journal)
        self._objects = Objects(self._medium, self._names, self._journal)
        self._log = Log(self._medium, self._names, self._objects)
        self._leases = Leases(self._medium, self._names, time.time if clock is None else clock)
        self._writer = Writer(self.name, self._medium, self._names, self._log, self._objects, self._journal, time.time)
        self._care = Care(self._medium, self._names, self._log, self._journal, self._writer.aliases)
        self._log.met = self._writer.aliases.mend
        self._reconciled = False
        self._users: int | None = None
        with self._ours():
            self._open()

    @property
    def lanes(self) -> int:
        return _LANES

    @property
    def name(self) -> str:
        return f"files:{self._folder}"

    def alias_path(self, category: str, key: str) -> Path:
        """Where a document is shown."""
        return Path(self._names.alias(category, key))

    @contextlib.contextmanager
    def _ours(self) -> Generator[None]:
        """Errors of ours, and none of it after `close`."""
        if self._closed:
            raise Unavailable(self.name, why="it is closed")
        try:
            yield
        except OSError as error:
            raise translate(error, self.name) from error

    # -- opening -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        missing = [folder for folder in (self._folder, *self._folder.parents) if not folder.exists()]
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(folder)
            self._disk.fsync_dir(folder.parent)
        text = self._medium.read(self._names.format)
        if text is None:
            folders = self._medium.ensure(self._names.inner)
            said = json.dumps({"knotline": "files", "format": _FORMAT}, indent=1).encode() + b"\n"
            self._medium.create(self._names.inner, self._names.format, said)
            if self._medium.sync([self._names.inner, *folders]) and self._medium.failure:
                raise self._medium.failure
            text = self._medium.read(self._names.format) or b""
        try:
            said = json.loads(text)
        except ValueError as error:
            raise UnknownFormat(self.name, found="no store of files") from error
        if said != {"knotline": "files", "format": _FORMAT}:
            raise UnknownFormat(self.name, found=said)
        # Held by everybody who has the store open, so that `compact` knows when it is alone.
        self._users = self._disk.open_append(self._names.users)
        fcntl.flock(self._users, fcntl.LOCK_SH)

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        if self._closed:
            raise Unavailable(self.name, why="it is closed")
        return self._writer.commit(writes, sync=sync)

    # -- reading -------------------------------------------------------------------------------------------

    def head(self, run: bytes) -> Entry | None:
        with self._ours():
            at = self._log.run(run)
            for _ in range(_TRIES):
                rev, _ = self._state(at)
                if rev < 0:
                    return None
                page = self._log.read(at, rev, bodies=True)
                if page is not None:
                    return self._entry(page)
            raise Unavailable(self.name, why=f"the log of {run!r} does not hold still")

    def _state(self, run: Run) -> tuple[int, int]:
        """Head and floor, as they were at one moment."""
        with run.lock:
            self._log.refresh(run)
            return run.head, run.floor

    def _entry(self, page: Page) -> Entry:
        cursor = self._journal.cursor(page.run, page.rev, page.head)
        if cursor is None:
            self._journal.catch_up()
            cursor = self._journal.cursor(page.run, page.rev, page.head)
        if cursor is None:
            self._reconcile()
            cursor = self._journal.cursor(page.run, page.rev, page.head)
        if cursor is None:
            cursor = self._list(page)
        return Entry(page.run, page.rev, page.head, page.body, cursor, page.tokens)

    def _list(self, page: Page) -> int:
        """A line for an entry whose own was lost, while that of a writer who lost the race for it was not."""
        self._journal.append([Journal.line(page.run, page.rev, page.head, page.tokens, (), 0)])
        self._journal.catch_up()
        return self._journal.cursor(page.run, page.rev, page.head) or 0

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        with self._ours():
            at = self._log.run(run)
            state = self._state(at)
            for _ in range(_TRIES):
                head, floor = state
                found: list[Entry] = []
                whole = True
                for rev in range(max(lo, floor), min(hi, head) + 1):
                    page = self._log.read(at, rev, bodies=bodies)
                    if page is None:
                        whole = False
                    else:
                        found.append(self._entry(page))
                before, state = state, state if whole else self._state(at)
                if before == state:
                    return found
            raise Unavailable(self.name, why=f"the log of {run!r} does not hold still")

    def find(
        self,
        tokens: Sequence[int] = (),
        *,
        run: bytes | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 100,
    ) -> list[Entry]:
        with self._ours():
            self._indexed()
            if limit <= 0:
                return []
            wanted = frozenset(tokens)
            for _ in range(_TRIES):
                found = self._find(wanted, run=run, beyond=beyond, newest=newest, limit=limit)
                if found is not None:
                    return found
            raise Unavailable(self.name, why="the store does not hold still")

    def _find(
        self, wanted: frozenset[int], *, run: bytes | None, beyond: int | None, newest: bool, limit: int
    ) -> list[Entry] | None:
        """None when entries went while they were looked at."""
        last = self._journal.catch_up()
        states: dict[bytes, tuple[int, int]] = {}
        found: list[Entry] = []
        for line in self._journal.walk(wanted, run=run, beyond=beyond, newest=newest):
            if not wanted.issubset(line.tokens) or (run is not None and line.run != run):
                continue
            at = self._log.run(line.run)
            state = states.get(line.run)
            if state is None:
                state = states[line.run] = self._state(at)
                if state[0] > self._journal.top(line.run, last):
                    return None
            if line.rev > state[0]:
                continue
            if line.rev < state[1]:
                self._journal.lose(line)
                continue
            page = self._log.read(at, line.rev)
            if page is None:
                if self._state(at) != state:
                    return None
                continue
            if nonce(page.head) != line.nonce:
                self._journal.lose(line)
                if self._journal.cursor(page.run, page.rev, page.head) is None:
                    self._list(page)
                    return None
                continue
            found.append(Entry(page.run, page.rev, page.head, None, line.cursor, page.tokens))
            if len(found) == limit:
                break
        return found

    def runs(self, *, after: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, int]]:
        with self._ours():
            self._indexed()
            self._journal.catch_up()
            found: list[tuple[bytes, int]] = []
            for key in sorted(key for key in self._journal.runs() if after is None or key > after):
                if len(found) >= limit:
                    break
                head, _ = self._state(self._log.run(key))
                if head >= 0:
                    found.append((key, head))
            return found

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._ours():
            found = {oid: self._objects.get(oid) for oid in dict.fromkeys(ids)}
            return {oid: data for oid, data in found.items() if data is not None}

    def object_ids(self, *, after: bytes | None = None, limit: int = 10000) -> list[bytes]:
        with self._ours():
            return self._objects.ids(after=after, limit=limit)

    def attachments(self, run: bytes, *, lo: int = 0, hi: int = MAX_REV) -> list[Attachment]:
        with self._ours():
            at = self._log.run(run)
            folder = self._names.attached(at.folder)
            texts = [
                text
                for name in self._medium.names(folder)
                if not name.startswith(TEMPORARY) and (text := self._medium.read(f"{folder}/{name}")) is not None
            ]
            with at.lock:
                self._log.refresh(at)
                drops = () if at.page is None else at.page.drops
            found: list[Attachment] = []
            for text in texts:
                made, seen = attachment_of(text, run)
                if lo <= made.rev <= hi and not any(rev > seen and made.rev < below for rev, below in drops):
                    found.append(made)
            found.sort(key=lambda it: (it.rev, it.task, it.idx))
            return found

    # -- the index -----------------------------------------------------------------------------------------

    def _indexed(self) -> None:
        if not self._reconciled:
            self._reconcile()

    def _reconcile(self) -> None:
        """Lines for entries that have none: a power cut takes what was not synced."""
        self._journal.catch_up()
        lost: list[tuple[int, bytes, int, Page]] = []
        known = {os.path.basename(self._names.run(key)): key for key in self._journal.runs()}
        for name in self._log.folders():
            key = known.get(name) or self._key(name)
            if key is None:
                continue
            run = self._log.run(key)
            head, floor = self._state(run)
            moved, latest = False, 0
            for rev in self._log.revs(run):
                if not floor <= rev <= head:
                    continue
                line = self._journal.has(key, rev)
                if line and not moved:
                    continue
                try:
                    page = self._log.read(run, rev)
                except Damaged:
                    continue
                if page is None or (not moved and self._journal.cursor(key, rev, page.head) is not None):
                    continue
                # From here on the run's lines are written again: they must stand in the order of its entries.
                moved = True
                about = self._medium.stat(self._names.entry(run.folder, rev))
                latest = max(latest, 0 if about is None else about.st_mtime_ns)
                lost.append((latest, key, rev, page))
        lost.sort(key=lambda it: it[:3])
        if lost:
            self._journal.append([Journal.line(key, rev, page.head, page.tokens, (), 0) for _, key, rev, page in lost])
            self._journal.catch_up()
        self._reconciled = True

    def _key(self, name: str) -> bytes | None:
        """The run of a folder that the journal does not know."""
        run = Run(b"", f"{self._names.log}/{name}")
        for rev in self._log.revs(run):
            try:
                page = self._log.named(run, rev)
            except Error:
                continue
            if page is not None and page.run and os.path.basename(self._names.run(page.run)) == name:
                return page.run
        return None

    # -- leases --------------------------------------------------------------------------------------------

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:
        with self._ours():
            return self._leases.acquire(run, owner, ttl)

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:
        with self._ours():
            return self._leases.renew(run, owner, epoch, ttl)

    def release(self, run: bytes, owner: str, epoch: int) -> bool:
        with self._ours():
            return self._leases.release(run, owner, epoch)

    def lease(self, run: bytes) -> Lease | None:
        with self._ours():
            return self._leases.lease(run)

    # -- space ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        with self._ours():
            self._indexed()
            self._journal.catch_up()
            last = self._journal.last
            for run, rev, cursor in self._journal.under_way(time.time()):
                head, _ = self._state(self._log.run(run))
                if head >= rev:
                    self._journal.arrived(run, rev)
                else:
                    last = min(last, cursor - 1)
            return last

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int:
        with self._ours():
            return self._objects.discard(ids, mark=mark)

    def check(self) -> list[str]:
        with self._ours():
            self._indexed()
            return self._care.check()

    def size(self) -> int:
        with self._ours():
            return self._care.size()

    def compact(self) -> None:
        """While others have the store open, what they may be using stays."""
        with self._ours():
            assert self._users is not None  # noqa: S101 - it is open
            with self._care.alone(self._users) as alone:
                if alone:
                    self._writer.flush()
                    self._reconcile()
                    self._care.clean(self._journal.runs(), time.time)

    def close(self) -> None:
        if self._closed:
            return
        try:
            with self._ours():
                self._writer.flush()
        finally:
            self._closed = True
            self._journal.close()
            if self._users is not None:
                self._disk.close(self._users)
            self._disk.release()
