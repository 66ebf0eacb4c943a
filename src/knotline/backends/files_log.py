"""The logs as folders of entries: which entry is the head, what is below the floor, and what a power cut left over.

An entry's name is created once and is its commit. Names below what the head dropped may linger; nobody sees them.
After a power cut a name may be there while one before it is not: such an entry was never acknowledged, says itself
from where on it stood on unsure ground (`after`), and is taken away. In a running system names appear in order, so
this cannot be mistaken for a save that is under way.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from knotline.backends.files_entry import Page, open_page
from knotline.backends.files_medium import Medium
from knotline.backends.files_names import Names, entry_rev
from knotline.backends.files_objects import Objects
from knotline.errors import Damaged, Error, Unavailable

__all__ = ["Log", "Run"]

_TRIES = 1000


@dataclass(slots=True, eq=False)
class Run:
    """What this process knows of a run. Its lock is held while it is written to."""

    key: bytes
    folder: str
    lock: threading.RLock = field(default_factory=threading.RLock)
    head: int = -1
    page: Page | None = None
    """The head's, without its body."""
    mark: tuple[int, int] | None = None
    """Tells the head's file from another that has its name later."""
    known: bool = False
    low: int = 0
    """No entry is below."""
    durable: int = -1
    """Entries up to here are sure to survive a power cut."""
    copied: int = -1
    """The last entry that is shown elsewhere as a copy."""

    @property
    def floor(self) -> int:
        return 0 if self.page is None else self.page.floor


class Log:
    def __init__(self, medium: Medium, names: Names, objects: Objects) -> None:
        self._medium = medium
        self._names = names
        self._objects = objects
        self._lock = threading.Lock()
        self._runs: dict[bytes, Run] = {}
        self.met: Callable[[Run], None] = lambda _: None
        """Called when a run's folder was looked through."""
        self.behind: set[bytes] = set()
        """Runs of which what is shown could not be brought up to date."""

    def run(self, key: bytes) -> Run:
        with self._lock:
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = Run(key, self._names.run(key))
            return run

    def known(self) -> list[Run]:
        with self._lock:
            return list(self._runs.values())

    def folders(self) -> list[str]:
        """Names of the runs' folders. What begins with a dot is a system's or a killed process'."""
        return [name for name in self._medium.names(self._names.log) if name[:1] != "."]

    # -- one entry -----------------------------------------------------------------------------------------

    def read(self, run: Run, rev: int, *, bodies: bool = False) -> Page | None:
        text = self._medium.read(self._names.entry(run.folder, rev))
        return None if text is None else self.open(run, rev, text, bodies=bodies)

    def open(self, run: Run, rev: int, text: bytes, *, bodies: bool) -> Page:
        what = f"entry {run.key!r} at {rev}"
        page = open_page(text, what, bodies=bodies)
        if page.run != run.key or page.rev != rev:
            raise Damaged(what, why=f"its file is that of {page.run!r} at {page.rev}")
        return page

    def there(self, run: Run, rev: int) -> tuple[int, int] | None:
        found = self._medium.stat(self._names.entry(run.folder, rev))
        return None if found is None else (found.st_ino, found.st_mtime_ns)

    def revs(self, run: Run) -> list[int]:
        found = [rev for name in self._medium.names(run.folder) if (rev := entry_rev(name)) is not None]
        found.sort()
        return found

    # -- the head ------------------------------------------------------------------------------------------

    def refresh(self, run: Run) -> Run:
        """Learn what others did since. The caller holds the run's lock."""
        self._refresh(run)
        if run.key in self.behind:
            self.show(run)
        return run

    def _refresh(self, run: Run) -> Run:
        if run.known and run.head >= 0:
            # The next name first: whoever drops the head has created the next one before.
            if self.there(run, run.head + 1) is None:
                if self.there(run, run.head) is not None:
                    return run
            elif self._step(run):
                return run
        elif run.known and self._medium.stat(run.folder) is None:
            return run
        self._look(run)
        return run

    def _step(self, run: Run) -> bool:
        """To the head by the names after the one that is known, if none of them was dropped meanwhile."""
        head = run.head + 1
        while head - run.head < _TRIES and self.there(run, head + 1) is not None:
            head += 1
        page = self.named(run, head)
        mark = self.there(run, head)
        if page is None or page.rev != head or mark is None or self.there(run, run.head) is None:
            return False
        if self.there(run, head + 1) is not None:
            return False
        self._learn(run, head, page, mark)
        return True

    def named(self, run: Run, rev: int) -> Page | None:
        text = self._medium.read(self._names.entry(run.folder, rev))
        if text is None:
            return None
        try:
            page = open_page(text, f"entry {run.key!r} at {rev}", bodies=False)
        except Damaged:
            # It is the head nevertheless. Whoever reads it hears that it is damaged.
            return Page(run.key, rev, b"", None)
        return page

    def _look(self, run: Run) -> None:
        """By a listing. One that runs beside changes may lack names, so it must hold still."""
        before: list[int] | None = None
        for _ in range(_TRIES):
            revs = self.revs(run)
            if not revs:
                if before == [] or self._medium.stat(run.folder) is None:
                    run.head, run.page, run.mark, run.known = -1, None, None, True
                    run.low, run.durable = 0, -1
                    return
                before = revs
                continue
            top = revs[-1]
            alone = len(revs) == 1 or revs[-2] != top - 1
            if alone and (before is None or before[-1:] != [top]):
                # Nothing vouches for it: a stale writer may be about to take it away again.
                before = revs
                continue
            if self._settle(run, revs):
                return
            before = None
        raise Unavailable(self._names.root, why=f"the log of {run.key!r} does not hold still")

    def _settle(self, run: Run, revs: list[int]) -> bool:
        top = revs[-1]
        page = self.named(run, top)
        if page is None:
            return False
        if page.rev != top:
            if page.run == run.key and page.rev > top:
                # A jump that was cut short: its claim is there, its own name not yet.
                with contextlib.suppress(FileExistsError):
                    source = self._names.entry(run.folder, top)
                    self._medium.disk.link(source, self._names.entry(run.folder, page.rev))
                return False
            page = Page(run.key, top, b"", None)
        mark = self.there(run, top)
        if mark is None or self.there(run, top + 1) is not None:
            return False
        hole = self._hole(run, page, set(revs))
        if hole is not None:
            if self.revs(run) == revs and (self.there(run, hole) is None or not self._whole(run, hole)):
                self._medium.disk.unlink(self._names.entry(run.folder, top))
                self._medium.sync([run.folder])
            return False
        run.low = revs[0]
        if not page.head and not page.drops:
            page = replace(page, drops=((top, revs[0]),) if revs[0] else ())
        run.durable = -1
        self._learn(run, top, page, mark)
        self.show(run)
        return True

    def show(self, run: Run) -> None:
        """Mend what is shown of it. That is only for people's eyes: reading goes on without, and tries again."""
        try:
            self.met(run)
        except (OSError, Error):
            self.behind.add(run.key)
        else:
            self.behind.discard(run.key)

    def _learn(self, run: Run, head: int, page: Page, mark: tuple[int, int]) -> None:
        run.head, run.page, run.mark, run.known = head, page, mark, True
        sure = head - 1 if page.after is None else page.after - 1
        if page.loose:
            sure = min(sure, head - 1)
        run.durable = max(run.durable, sure)

    def _hole(self, run: Run, page: Page, revs: set[int]) -> int | None:
        """The first entry on which this one stands and which is not whole; itself, if its objects are not."""
        first = page.rev if page.after is None else max(page.after, page.floor)
        for rev in range(first, page.rev):
            if rev not in revs or not self._whole(run, rev):
                return rev
        return page.rev if page.loose and not self._objects_of(page) else None

    def _whole(self, run: Run, rev: int) -> bool:
        page = self.named(run, rev)
        return page is not None and (not page.loose or self._objects_of(page))

    def _objects_of(self, page: Page) -> bool:
        return all(self._objects.there(oid) for oid in page.objects)
