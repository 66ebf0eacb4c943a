"""Looking after a store of files as a whole: what is wrong with it, how large it is, and what is only garbage.

Garbage is what a killed process or a power cut left: temporary files, entries below what their run dropped, lines of
the journal for entries that are gone. It costs space and nothing else, so it is removed when somebody asks, and only
by a process that is alone with the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import stat
import time
from collections.abc import Callable, Generator, Iterator
from typing import Final

from knotline.backends.files_alias import Aliases
from knotline.backends.files_entry import Page
from knotline.backends.files_journal import Journal, nonce
from knotline.backends.files_log import Log, Run
from knotline.backends.files_medium import TEMPORARY, Medium
from knotline.backends.files_names import Names
from knotline.errors import Damaged, Error

__all__ = ["Care"]

_TRIES: Final = 8
_MOMENT: Final = 0.01


class Care:
    def __init__(self, medium: Medium, names: Names, log: Log, journal: Journal, aliases: Aliases) -> None:
        self._medium = medium
        self._names = names
        self._log = log
        self._journal = journal
        self._aliases = aliases

    # -- looking -------------------------------------------------------------------------------------------

    def files(self, folder: str) -> Iterator[tuple[str, int, int]]:
        """`(path, size, inode)` of all below."""
        for name in self._medium.names(folder):
            path = f"{folder}/{name}"
            about = self._medium.stat(path)
            if about is None:
                continue
            if stat.S_ISDIR(about.st_mode):
                yield from self.files(path)
            else:
                yield path, about.st_size, about.st_ino

    def size(self) -> int:
        """A file with two names is there once."""
        return sum({inode: size for _, size, inode in self.files(self._names.root)}.values())

    def check(self) -> list[str]:
        found: list[str] = []
        folders = self._known()
        for name in self._log.folders():
            key = folders.get(name)
            if key is None and self._log.revs(Run(b"", f"{self._names.log}/{name}")):
                # An empty one is what a cut left of a run that was never acknowledged; another may be a new one.
                folders = self._known()
                key = folders.get(name)
                if key is None:
                    found.append(f"the folder {name!r} in the log holds no run that can be read")
            if key is not None:
                found += self._check_run(self._log.run(key))
        return found

    def _known(self) -> dict[str, bytes]:
        self._journal.catch_up()
        return {self._names.run_name(key): key for key in self._journal.runs()}

    def _check_run(self, run: Run) -> list[str]:
        """Whoever saves meanwhile is not wrong, and has more to do after the commit: what is found must stay so."""
        sure, unsure = self._wrong(run, *self._state(run))
        for tries in range(_TRIES):
            if not unsure:
                break
            time.sleep(_MOMENT * (tries + 1))
            sure, again = self._wrong(run, *self._state(run))
            unsure = [what for what in unsure if what in again]
        return sure + unsure

    def _state(self, run: Run) -> tuple[int, int]:
        with run.lock:
            self._log.refresh(run)
            self._journal.catch_up()
            return run.floor, run.head

    def _wrong(self, run: Run, floor: int, head: int) -> tuple[list[str], list[str]]:
        """What is damaged for certain, and what may be somebody's work that is not finished."""
        sure: list[str] = []
        found: list[str] = []
        for rev in range(floor, head + 1):
            try:
                page = self._log.read(run, rev, bodies=True)
            except Damaged as error:
                sure.append(str(error))
                continue
            if page is None:
                found.append(f"entry {run.key!r} at {rev} is missing")
            elif self._journal.cursor(run.key, rev, page.head) is None:
                found.append(f"the journal has no line for entry {run.key!r} at {rev}")
            elif rev == head and page.alias is not None and not self._aliases.right(run, page):
                found.append(f"{self._names.alias(*page.alias)} does not show what is stored")
        return sure, found

    # -- cleaning ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def alone(self, users: int) -> Generator[bool]:
        """Is there nobody else who has the store open? If so nobody comes until this is over."""
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            # The change of a lock is not one step: it may have been lost on the way.
            fcntl.flock(users, fcntl.LOCK_SH)

    def clean(self, runs: list[bytes], now: Callable[[], float]) -> None:
        for key in runs:
            run = self._log.run(key)
            with run.lock:
                self._log.refresh(run)
                for rev in self._log.revs(run):
                    if rev < run.floor:
                        self._medium.forget(self._names.entry(run.folder, rev))
                run.low = run.floor
                self._show(run)
        for path, _, _ in list(self.files(self._names.root)):
            folder, _, name = path.rpartition("/")
            # Other threads of this process may be at work: their runs are locked while they have such files.
            if name.startswith(TEMPORARY) and self._idle(folder):
                self._medium.forget(path)
        self._journal.rewrite(self._keep, now())

    def _idle(self, folder: str) -> bool:
        return not any(run.folder == folder and not _free(run) for run in self._log.known())

    def _show(self, run: Run) -> None:
        page = None if run.head < 0 else self._log.read(run, run.head, bodies=True)
        if page is not None and page.alias is not None and not self._aliases.right(run, page):
            with contextlib.suppress(OSError, Error):
                self._medium.sync(self._aliases.show(run, page, {}))

    def _keep(self, key: bytes, rev: int, mark: str) -> bool:
        run = self._log.run(key)
        if not run.floor <= rev:
            return False
        if rev > run.head:
            return True  # it may be under way in another thread
        try:
            page: Page | None = self._log.read(run, rev)
        except Damaged:
            return True
        return page is not None and nonce(page.head) == mark


def _free(run: Run) -> bool:
    if not run.lock.acquire(blocking=False):
        return False
    run.lock.release()
    return True
