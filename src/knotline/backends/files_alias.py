"""The files that people look for: `<category>/<key>.json`. They show entries and are never read back.

Where an entry says all that there is, its file gets this name too. Where parts of it stand apart, a copy is made that
has them in their places.
"""

from __future__ import annotations

import secrets
from typing import Final

from knotline.backends.files_entry import Page, state_text
from knotline.backends.files_log import Log, Run
from knotline.backends.files_medium import TEMPORARY, Medium
from knotline.backends.files_names import Names
from knotline.backends.files_objects import Objects
from knotline.codec.frames import links_of
from knotline.errors import Error

__all__ = ["Aliases"]

_TRIES: Final = 100


class Aliases:
    def __init__(self, medium: Medium, names: Names, objects: Objects, log: Log) -> None:
        self._medium = medium
        self._names = names
        self._objects = objects
        self._log = log

    def show(self, run: Run, page: Page, objects: dict[bytes, bytes]) -> list[str]:
        """Under the entry's alias; the folders that must be synced for it to last."""
        folders = self._show(run, page, objects)
        for _ in range(_TRIES):
            # Whoever saved the next entry meanwhile may have shown it before us.
            if self._log.there(run, page.rev + 1) is None and self._log.there(run, page.rev) is not None:
                break
            newer = self._newest(run)
            if newer is None or newer.rev <= page.rev or newer.alias != page.alias:
                break
            page = newer
            folders += self._show(run, page, {})
        return folders

    def _newest(self, run: Run) -> Page | None:
        revs = self._log.revs(run)
        return self._log.read(run, revs[-1], bodies=True) if revs else None

    def mend(self, run: Run) -> None:
        """What a process that was killed did not get to: asked when a run is first looked at."""
        page = run.page
        if page is None:
            return
        for rev in self._log.revs(run) if run.low < page.floor else ():
            if rev < page.floor:
                self.hide(run, rev, page)
        if page.alias is not None:
            whole = self._log.read(run, run.head, bodies=True)
            if whole is not None and not self.right(run, whole):
                self._medium.sync(self.show(run, whole, {}))

    def _show(self, run: Run, page: Page, objects: dict[bytes, bytes]) -> list[str]:
        assert page.alias is not None  # noqa: S101 - asked by the caller
        path = self._names.alias(*page.alias)
        folder = path.rpartition("/")[0]
        folders = [*self._medium.ensure(folder), folder]
        text = self._copy(page, objects)
        if text is not None:
            self._medium.replace(folder, path, text)
        else:
            self._link(self._names.entry(run.folder, page.rev), folder, path)
        return folders

    def _copy(self, page: Page, objects: dict[bytes, bytes]) -> bytes | None:
        body = page.body or b""
        try:
            if not links_of(body, "body"):
                return None
            return state_text(body, lambda oid: objects.get(oid) or self._objects.get(oid))
        except Error:
            return None

    def _link(self, entry: str, folder: str, path: str) -> None:
        try:
            self._medium.disk.link(entry, path)
        except FileExistsError:
            temporary = f"{folder}/{TEMPORARY}{secrets.token_hex(8)}"
            self._medium.disk.link(entry, temporary)
            try:
                self._medium.disk.rename(temporary, path)
            finally:
                # Where both names were the same file already, renaming does nothing at all.
                self._medium.forget(temporary)

    def right(self, run: Run, page: Page) -> bool:
        """Does the alias show this entry?"""
        assert page.alias is not None  # noqa: S101 - asked by the caller
        path = self._names.alias(*page.alias)
        text = self._copy(page, {})
        if text is not None:
            return self._medium.read(path) == text
        entry = self._names.entry(run.folder, page.rev)
        one, two = self._medium.stat(path), self._medium.stat(entry)
        if one is None or two is None or one.st_size != two.st_size:
            return False
        # Whoever copies a store makes two files of one.
        return one.st_ino == two.st_ino or self._medium.read(path) == self._medium.read(entry)

    def hide(self, run: Run, rev: int, newest: Page) -> None:
        """The entry at `rev` goes: so does its alias, unless a newer entry has it."""
        entry = self._medium.stat(self._names.entry(run.folder, rev))
        if entry is None:
            return
        try:
            page = self._log.read(run, rev, bodies=True)
        except Error:
            return
        if page is None or page.alias is None or page.alias == newest.alias:
            return
        path = self._names.alias(*page.alias)
        shown = self._medium.stat(path)
        if shown is not None and (shown.st_ino == entry.st_ino or entry.st_nlink == 1):
            self._medium.forget(path)
