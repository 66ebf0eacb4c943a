"""What is done to files and folders, in the few shapes that survive anything: the recipe in one place.

A file comes to its name complete and synced, or not at all; a name is sure once its folder was synced. A sync that
failed is never asked for again on the same file: what it was for is written anew.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from collections.abc import Iterable

from knotline.backends.files_disk import Disk
from knotline.errors import Damaged, Unavailable

__all__ = ["Medium", "translate"]

TEMPORARY = ".tmp-"


def translate(error: OSError, name: str) -> Damaged | Unavailable:
    """The system's error as one of ours. The caller raises it `from` the original."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return Damaged(name, why=f"a link or another thing stands where a file or folder of the store should: {error}")
    return Unavailable(name, why=str(error) or type(error).__name__)


class Medium:
    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self._lock = threading.Lock()
        self._folders: set[str] = set()
        self._made: dict[str, set[str]] = {}
        self.failure: OSError | None = None
        self.poisoned: set[str] = set()
        """Folders of which a sync failed: names in them are made again, not synced again."""

    # -- files ---------------------------------------------------------------------------------------------

    def prepare(self, folder: str, data: bytes) -> str:
        """A temporary file with these bytes, synced; its path."""
        path = f"{folder}/{TEMPORARY}{secrets.token_hex(8)}"
        fd = self.disk.create(path)
        try:
            try:
                self.disk.write(fd, data)
                self.disk.fsync(fd)
            finally:
                self.disk.close(fd)
        except BaseException:
            self.forget(path)
            raise
        return path

    def forget(self, path: str) -> bool:
        """Remove a file that nobody may need; True if it was there."""
        try:
            self.disk.unlink(path)
        except FileNotFoundError:
            return False
        except OSError:
            # It stays as garbage, which `compact` removes; what it was for must not fail because of it.
            return False
        return True

    def create(self, folder: str, path: str, data: bytes) -> bool:
        """A file of this name, unless there is one."""
        temporary = self.prepare(folder, data)
        try:
            self.disk.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            self.forget(temporary)
        return True

    def replace(self, folder: str, path: str, data: bytes) -> None:
        temporary = self.prepare(folder, data)
        try:
            self.disk.rename(temporary, path)
        except BaseException:
            self.forget(temporary)
            raise

    def read(self, path: str) -> bytes | None:
        try:
            return self.disk.read(path)
        except FileNotFoundError:
            return None

    def stat(self, path: str) -> os.stat_result | None:
        try:
            return self.disk.stat(path)
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return self.disk.listdir(folder)
        except FileNotFoundError:
            return []

    # -- folders -------------------------------------------------------------------------------------------

    def ensure(self, path: str) -> list[str]:
        """See that there is such a folder in the store; those that must be synced for it to last."""
        if path in self._folders or path == self.root:
            return []
        above = os.path.dirname(path)
        owed = self.ensure(above)
        with contextlib.suppress(FileExistsError):
            self.disk.mkdir(path)
        # Also when it was there: whoever made it may not have synced yet.
        with self._lock:
            self._made.setdefault(above, set()).add(path)
        return [*owed, above]

    def sync(self, folders: Iterable[str]) -> set[str]:
        """Each once; those of which it failed. The error is kept in `failure`."""
        failed: set[str] = set()
        for folder in dict.fromkeys(folders):
            with self._lock:
                made = set(self._made.get(folder, ()))
            try:
                if folder in self.poisoned:
                    # The system may take what it could not write for clean: a change makes it write again.
                    self.forget(self.prepare(folder, b""))
                self.disk.fsync_dir(folder)
            except OSError as error:
                self.failure = error
                failed.add(folder)
                with self._lock:
                    self.poisoned.add(folder)
                self.disk.release()
            else:
                with self._lock:
                    self.poisoned.discard(folder)
                    if folder == self.root or folder in self._folders:
                        self._folders |= made
        return failed
