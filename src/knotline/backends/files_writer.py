"""How a batch of writes gets onto the disk: what is done in which order, and what may share a sync.

1. a line in the journal for each save, in one step;
2. objects, each synced; then the folders that hold them;
3. each entry under a temporary name, synced;
4. each entry gets its own name, which fails if there is one: the commit;
5. the folders of the entries: now they are acknowledged;
6. only then what they dropped is deleted.

No directory is read on the way, and nothing is locked that another process could hold.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from knotline.backends.contract import (
    MAX_REV,
    MAX_RUN_KEY,
    MAX_TOKEN,
    Attach,
    Attachment,
    Conflicted,
    Done,
    Failed,
    Outcome,
    Save,
    Write,
)
from knotline.backends.files_alias import Aliases
from knotline.backends.files_entry import Page, close_page
from knotline.backends.files_journal import Journal
from knotline.backends.files_log import Log, Run
from knotline.backends.files_medium import Medium, translate
from knotline.backends.files_names import Names
from knotline.backends.files_objects import Objects
from knotline.codec.frames import ID
from knotline.errors import ContractBroken, Damaged, Error, Unavailable

__all__ = ["Writer", "attachment_of"]

_T = TypeVar("_T")
_FEW: Final = 1000


@dataclass(slots=True)
class _Plan:
    """One save of a batch on its way."""

    at: int
    save: Save
    run: Run
    page: Page
    temporary: str = ""
    folders: list[str] = field(default_factory=list[str])
    outcome: Outcome | None = None


class Writer:
    def __init__(
        self,
        name: str,
        medium: Medium,
        names: Names,
        log: Log,
        objects: Objects,
        journal: Journal,
        wall: Callable[[], float],
    ) -> None:
        self._name = name
        self._medium = medium
        self._names = names
        self._log = log
        self._objects = objects
        self._journal = journal
        self._wall = wall
        self.aliases = Aliases(medium, names, objects, log)
        self._lock = threading.Lock()
        self._owed: set[str] = set()
        """Folders that a sync is owed to, for what was not waited for."""
        self._loose: dict[bytes, Run] = {}

    def commit(self, writes: Sequence[Write], *, sync: bool) -> list[Outcome]:
        self._check(writes)
        runs = {key: self._log.run(key) for key in sorted({write.run for write in writes})}
        with contextlib.ExitStack() as stack:
            for run in runs.values():
                stack.enter_context(run.lock)
            return self._commit(writes, runs, sync=sync)

    def _commit(self, writes: Sequence[Write], runs: dict[bytes, Run], *, sync: bool) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(writes)
        broken: dict[bytes, Outcome] = {}
        for key, run in runs.items():
            try:
                self._log.refresh(run)
            except (OSError, Error) as error:
                broken[key] = self._failed(error)
        plans = self._plan(writes, runs, outcomes, broken, sync=sync)
        self._announce(plans)
        for plan in plans:
            if plan.outcome is None:
                self._prepare(plan, sync=sync)
        if sync:
            self._sync_objects(plans)
        by_place = {plan.at: plan for plan in plans}
        again: list[int] = []
        folders: list[str] = []
        for at, write in enumerate(writes):
            if outcomes[at] is not None:
                continue
            run, plan = runs[write.run], by_place.get(at)
            if isinstance(write, Attach):
                outcomes[at], owed = self._attach(write, run)
                folders += owed
            elif plan is None:
                again.append(at)  # at or below the head: what is true of it shows when the others are done
            elif write.run in broken:
                self._give_up(plan)
                again.append(at)
            else:
                outcomes[at] = plan.outcome or self._link(plan)
                if outcomes[at] != Done():
                    self._give_up(plan)
                    broken[write.run] = Conflicted()
                folders += plan.folders
        self._finish(plans, writes, runs, outcomes, folders, sync=sync)
        for at in again:
            write = writes[at]
            assert isinstance(write, Save)  # noqa: S101 - attachments are answered above
            run = runs[write.run]
            if write.run in broken and write.rev > run.head:
                outcomes[at] = self._commit([write], {write.run: run}, sync=sync)[0]
            else:
                outcomes[at] = self._settled(write, run, sync=sync)
        return [outcome if outcome is not None else Conflicted() for outcome in outcomes]

    # -- 0. what there is to do ----------------------------------------------------------------------------

    def _check(self, writes: Sequence[Write]) -> None:
        for write in writes:
            try:
                sound = _sound(write)
            except (TypeError, ValueError, AttributeError) as error:
                raise ContractBroken(f"{self._name}: not a write of the contract: {error}") from error
            if not sound:
                raise ContractBroken(f"{self._name}: not a write of the contract: {write.run!r} at {write.rev}")

    def _plan(
        self,
        writes: Sequence[Write],
        runs: dict[bytes, Run],
        outcomes: list[Outcome | None],
        broken: dict[bytes, Outcome],
        *,
        sync: bool,
    ) -> list[_Plan]:
        plans: list[_Plan] = []
        tops: dict[bytes, tuple[int, Page | None]] = {}
        for at, write in enumerate(writes):
            if write.run in broken:
                outcomes[at] = broken[write.run]
                continue
            if isinstance(write, Attach):
                continue
            run = runs[write.run]
            top, before = tops.get(write.run, (run.head, run.page))
            if write.rev <= top:
                continue
            if write.rev > top + 1 and write.drop != write.rev:
                outcomes[at] = Conflicted()
                continue
            page = self._page(write, run, before, sync=sync)
            tops[write.run] = write.rev, page
            plans.append(_Plan(at, write, run, page))
        return plans

    def _page(self, save: Save, run: Run, before: Page | None, *, sync: bool) -> Page:
        drops = () if before is None else before.drops
        if drop := min(save.drop, save.rev):
            drops = (*(it for it in drops if it[1] > drop), (save.rev, drop))
        floor = drops[0][1] if drops else 0
        after = max(run.durable + 1, floor)
        top = -1 if before is None else before.rev
        return Page(
            save.run,
            save.rev,
            bytes(save.head),
            bytes(save.body),
            tuple(sorted(set(save.tokens))),
            tuple(dict.fromkeys(oid for oid, _ in save.objects)),
            drops,
            save.alias,
            after if after <= top and top >= floor else None,
            not sync,
        )

    # -- 1. to 3. ------------------------------------------------------------------------------------------

    def _announce(self, plans: list[_Plan]) -> None:
        if not plans:
            return
        now = self._wall()
        lines = [
            Journal.line(plan.save.run, plan.save.rev, plan.page.head, plan.page.tokens, plan.page.objects, now)
            for plan in plans
        ]
        try:
            self._journal.append(lines)
            if any(plan.save.objects for plan in plans):
                self._journal.catch_up()
        except OSError as error:
            for plan in plans:
                plan.outcome = self._failed(error)

    def _prepare(self, plan: _Plan, *, sync: bool) -> None:
        try:
            owed = [folder for oid, data in plan.save.objects for folder in self._objects.put(oid, data)]
            owed += self._medium.ensure(plan.run.folder)
            if sync:
                plan.folders = owed
                if plan.page.after is not None:
                    plan.folders += self._unsure(plan)
            else:
                self._owe(owed)
            plan.temporary = self._medium.prepare(plan.run.folder, close_page(plan.page))
        except (OSError, Error) as error:
            plan.outcome = self._failed(error)

    def _unsure(self, plan: _Plan) -> list[str]:
        """Where the objects of entries are that somebody else did not wait for."""
        folders: list[str] = []
        for rev in range(plan.page.after or 0, plan.run.head + 1):
            page = plan.run.page if rev == plan.run.head else self._log.read(plan.run, rev)
            if page is not None and page.loose:
                folders += self._objects.folders(page.objects)
        return folders

    def _sync_objects(self, plans: list[_Plan]) -> None:
        waiting = [plan for plan in plans if plan.outcome is None]
        failed = self._medium.sync(folder for plan in waiting for folder in plan.folders)
        for plan in waiting:
            if failed.intersection(plan.folders):
                plan.outcome = self._failed(self._medium.failure or OSError("a folder was not synced"))
            plan.folders = []

    # -- 4. the commit -------------------------------------------------------------------------------------

    def _link(self, plan: _Plan) -> Outcome:
        run, rev = plan.run, plan.save.rev
        # A jump claims the next name too: that is where it meets whoever else goes on from here.
        claims = dict.fromkeys((run.head + 1, rev))
        try:
            for claim in claims:
                try:
                    self._claim(plan, self._names.entry(run.folder, claim))
                except FileExistsError:
                    run.known = False
                    return self._beaten(plan, run)
            mark = _once_more(lambda: self._log.there(run, rev))
            if mark is None or not _once_more(lambda: self._fresh(run, rev)):
                # The name was free because it had been dropped: we come too late.
                for claim in claims:
                    self._medium.forget(self._names.entry(run.folder, claim))
                run.known = False
                return Conflicted()
        except (OSError, Error) as error:
            run.known = False
            return self._failed(error)
        finally:
            self._give_up(plan)
        if plan.save.alias is not None:
            # What shows the entry is derived from it: when that fails, the entry is there nevertheless, and nobody
            # waits for a sync of it.
            try:
                self.aliases.show(run, plan.page, dict(plan.save.objects))
            except (OSError, Error):
                self._log.behind.add(run.key)
        plan.folders.append(run.folder)
        if run.head < 0:
            run.low = 0
        run.head, run.mark = rev, mark
        run.page = replace(plan.page, body=None)
        return Done()

    def _claim(self, plan: _Plan, path: str) -> None:
        try:
            self._medium.disk.link(plan.temporary, path)
        except FileExistsError:
            raise
        except OSError:
            # It may have happened nevertheless; then it is the same file.
            mine, there = self._medium.stat(plan.temporary), self._medium.stat(path)
            if mine is None or there is None or mine.st_ino != there.st_ino:
                raise

    def _fresh(self, run: Run, rev: int) -> bool:
        """Nobody has gone further: the entry before is still the one that was the head."""
        if run.head >= 0 and self._log.there(run, run.head) == run.mark:
            return True
        return self._log.revs(run)[-1:] == [rev]

    def _beaten(self, plan: _Plan, run: Run) -> Outcome:
        """Somebody was first, perhaps ourselves."""
        self._log.refresh(run)
        page = self._log.read(run, plan.save.rev)
        mine = page is not None and page.head == plan.page.head and plan.save.rev >= run.floor
        return Done() if mine else Conflicted()

    def _give_up(self, plan: _Plan) -> None:
        if plan.temporary:
            self._medium.forget(plan.temporary)
            plan.temporary = ""

    # -- 5. and 6. -----------------------------------------------------------------------------------------

    def _finish(
        self,
        plans: list[_Plan],
        writes: Sequence[Write],
        runs: dict[bytes, Run],
        outcomes: list[Outcome | None],
        folders: list[str],
        *,
        sync: bool,
    ) -> None:
        done = [plan for plan in plans if outcomes[plan.at] == Done()]
        if not sync:
            self._owe(folders)
            with self._lock:
                self._loose.update({plan.run.key: plan.run for plan in done})
            for plan in done:
                self._recast(plan)
            return
        with self._lock:
            owed, self._owed = self._owed, set()
        failed = self._medium.sync([*owed, *folders])
        if failed:
            self._owe(owed & failed)
            for at, write in enumerate(writes):
                run = runs[write.run]
                places = {run.folder, self._names.attached(run.folder), self._names.log, *folders} & failed
                if outcomes[at] == Done() and places:
                    # It has its name, and nobody knows whether that lasts.
                    run.known = False
                    outcomes[at] = self._rescue(write, run)
        for plan in done:
            if outcomes[plan.at] == Done():
                plan.run.durable = max(plan.run.durable, plan.save.rev)
                self._journal.arrived(plan.run.key, plan.save.rev)
        for plan in done:
            if outcomes[plan.at] == Done():
                self._after(plan)

    def _rescue(self, write: Write, run: Run) -> Outcome:
        """A sync failed. The same bytes in a new file, under the same name, are a new question to the disk."""
        try:
            if isinstance(write, Attach):
                path = self._names.attachment(run.folder, write.rev, write.task, write.idx)
                folder = self._names.attached(run.folder)
            else:
                path, folder = self._names.entry(run.folder, write.rev), run.folder
            text = self._medium.read(path)
            if text is None:
                return Conflicted()
            self._medium.replace(folder, path, text)
            above = [self._names.root, self._names.log, run.folder]
            if self._medium.sync([*above, folder]):
                return self._failed(self._medium.failure or OSError("a folder was not synced"))
        except OSError as error:
            return self._failed(error)
        return Done()

    def _after(self, plan: _Plan) -> None:
        """What may be left undone: it is garbage, and whoever comes next finds it again."""
        with contextlib.suppress(OSError, Error):
            self._sweep_below(plan.run, plan.page)
        self._recast(plan)

    def _sweep_below(self, run: Run, page: Page) -> None:
        floor = page.floor
        if run.low < floor:
            revs = range(run.low, floor) if floor - run.low < _FEW else self._log.revs(run)
            for rev in revs:
                if rev < floor:
                    self.aliases.hide(run, rev, page)
                    self._medium.forget(self._names.entry(run.folder, rev))
            run.low = floor
        if page.drops and page.drops[-1][0] == page.rev:
            folder = self._names.attached(run.folder)
            for name in self._medium.names(folder):
                if name[:8].isdigit() and int(name.partition("-")[0]) < page.drops[-1][1]:
                    self._medium.forget(f"{folder}/{name}")

    def _recast(self, plan: _Plan) -> None:
        """Smaller bytes of the same meaning. The folder is not synced: what is there now is as good."""
        run = plan.run
        for rev, body in plan.save.recast:
            if run.floor <= rev < plan.save.rev:
                with contextlib.suppress(OSError, Error):
                    page = self._log.read(run, rev, bodies=True)
                    if page is not None and page.alias is None:
                        text = close_page(replace(page, body=body))
                        self._medium.replace(run.folder, self._names.entry(run.folder, rev), text)

    # -- what was there already ----------------------------------------------------------------------------

    def _settled(self, save: Save, run: Run, *, sync: bool) -> Outcome:
        """A save at or below the head: its own earlier self, or too late."""
        try:
            page = self._log.read(run, save.rev) if run.floor <= save.rev <= run.head else None
            if page is None or page.head != save.head:
                return Conflicted()
            if sync and run.durable < save.rev:
                if self._medium.poisoned:
                    return self._rescue_all(run, save.rev)
                self._make_durable(run)
        except (OSError, Error) as error:
            return self._failed(error)
        return Done()

    def _rescue_all(self, run: Run, rev: int) -> Outcome:
        for each in range(max(run.durable + 1, run.floor), run.head + 1):
            outcome = self._rescue(Save(run.key, each, b"", b""), run)
            if each <= rev and outcome != Done():
                return outcome
        run.durable = max(run.durable, rev)
        return Done()

    def _make_durable(self, run: Run) -> None:
        """Everything of this run, whoever wrote it."""
        folders = [self._names.root, self._names.log]
        for rev in range(max(run.durable + 1, run.floor), run.head + 1):
            page = self._log.read(run, rev)
            if page is not None:
                folders += self._objects.folders(page.objects)
        with self._lock:
            owed, self._owed = self._owed, set()
        if failed := self._medium.sync([*owed, *folders, run.folder]):
            self._owe(owed & failed)
            raise self._medium.failure or OSError("a folder was not synced")
        run.durable = max(run.durable, run.head)
        if run.page is not None:
            self._sweep_below(run, run.page)

    def flush(self) -> None:
        """Everything that was not waited for."""
        with self._lock:
            loose, self._loose = self._loose, {}
            owed, self._owed = self._owed, set()
        if failed := self._medium.sync(owed):
            self._owe(failed)
            raise self._medium.failure or OSError("a folder was not synced")
        for run in loose.values():
            with run.lock:
                self._log.refresh(run)
                self._make_durable(run)

    def _owe(self, folders: Sequence[str] | set[str]) -> None:
        with self._lock:
            self._owed.update(folders)

    # -- attachments ---------------------------------------------------------------------------------------

    def _attach(self, attach: Attach, run: Run) -> tuple[Outcome, list[str]]:
        folder = self._names.attached(run.folder)
        path = self._names.attachment(run.folder, attach.rev, attach.task, attach.idx)
        said: dict[str, Any] = {
            "run": run.key.hex(),
            "rev": attach.rev,
            "task": base64.b64encode(attach.task).decode(),
            "idx": attach.idx,
            "epoch": attach.epoch,
            "data": base64.b64encode(attach.data).decode(),
            "seen": run.head,
        }
        text = json.dumps(said, indent=1).encode() + b"\n"
        try:
            folders = [*self._medium.ensure(folder), folder]
            for _ in range(_FEW):
                if self._medium.create(folder, path, text):
                    return Done(), folders
                there = self._medium.read(path)
                if there is None:
                    continue
                found, seen = attachment_of(there, run.key)
                if run.page is not None and any(at > seen and attach.rev < below for at, below in run.page.drops):
                    self._medium.forget(path)
                    continue
                same = (found.epoch, found.data) == (attach.epoch, bytes(attach.data))
                if same and folder in self._medium.poisoned:
                    self._medium.replace(folder, path, there)
                return (Done() if same else Conflicted()), folders
        except (OSError, Error) as error:
            return self._failed(error), []
        return self._failed(OSError("it comes and goes")), []

    def _failed(self, error: OSError | Error) -> Failed:
        if isinstance(error, Unavailable):
            return Failed(error)
        made = Unavailable(self._name, why=str(translate(error, self._name) if isinstance(error, OSError) else error))
        made.__cause__ = error
        return Failed(made)


def _once_more(ask: Callable[[], _T]) -> _T:
    """A question whose answer decides about what is there already is worth a second try."""
    try:
        return ask()
    except OSError:
        return ask()


def _sound(write: Write) -> bool:
    """TypeError for what is not bytes where bytes must be."""
    if not 1 <= memoryview(write.run).nbytes <= MAX_RUN_KEY or not 0 <= write.rev <= MAX_REV:
        return False
    if isinstance(write, Attach):
        fits = -(2**63) <= write.idx < 2**63 and -(2**63) <= write.epoch < 2**63
        return fits and memoryview(write.task).nbytes + memoryview(write.data).nbytes >= 0
    parts = (write.head, write.body, *(data for _, data in write.objects))
    named = all(memoryview(oid).nbytes == ID for oid, _ in write.objects)
    return named and all(0 <= t <= MAX_TOKEN for t in write.tokens) and all(memoryview(p).nbytes >= 0 for p in parts)


def attachment_of(text: bytes, run: bytes) -> tuple[Attachment, int]:
    """What is attached, and the head that whoever attached it had seen."""
    try:
        said: dict[str, Any] = json.loads(text)
        found = Attachment(
            said["rev"],
            base64.b64decode(said["task"], validate=True),
            said["idx"],
            said["epoch"],
            base64.b64decode(said["data"], validate=True),
        )
        numbers = (found.rev, found.idx, found.epoch, said["seen"])
        sound = said["run"] == run.hex() and all(type(number) is int for number in numbers)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Damaged(f"attachment of {run!r}", why=str(error)) from error
    if not sound:
        raise Damaged(f"attachment of {run!r}", why="it is of another run, or of none")
    return found, said["seen"]
