"""Every call on the file system, in one place.

All that the files backend changes on its medium is changed by a method of `Disk`, so that a test can put another one
in its place: one that fails at the n-th call, or that forgets what was not synced. Errors are the system's own here;
the rooms above make them ours.

No symbolic link is ever followed below the store's folder: each folder is opened from the one that holds it, with
`O_NOFOLLOW`, and its handle is kept for the calls to come. That also makes a call a single step in the system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, TypeVar

__all__ = ["Disk"]

_HANDLES: Final = 96
_MOST: Final = 1 << 32
_CHUNK: Final = 1 << 24
_OPEN: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A planted pipe must not make an open wait for its other end.
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | _OPEN
_GONE: Final = (errno.ENOENT, errno.ESTALE)

AnyPath = str | os.PathLike[str]
_T = TypeVar("_T")


class _Handle:
    """An open folder. Closed when it is no longer remembered and nobody is in the middle of using it."""

    __slots__ = ("fd", "forgotten", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.forgotten = False


class Disk:
    """The calls that the files backend makes. Paths are under `folder`, which the backend sets."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """What is above it is the user's own choice, links and all; below it none is followed."""
        self._lock = threading.Lock()
        self._handles: OrderedDict[str, _Handle] = OrderedDict()

    # -- files ---------------------------------------------------------------------------------------------

    def create(self, path: AnyPath) -> int:
        """A new file that only its owner may read; an error if there is anything of that name."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        return self._in(path, lambda at, name: os.open(name, flags, 0o600, dir_fd=at))

    def write(self, fd: int, data: bytes) -> None:
        """All of it: the system may take less than it is given."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def fsync(self, fd: int) -> None:
        _sync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def open_sync(self, path: AnyPath) -> None:
        """Make durable what somebody else may have written to this file."""
        fd = self._in(path, lambda at, name: os.open(name, _READ, dir_fd=at))
        try:
            _sync(fd)
        finally:
            os.close(fd)

    def open_append(self, path: AnyPath) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | _OPEN
        fd = self._in(path, lambda at, name: os.open(name, flags, 0o600, dir_fd=at))
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ELOOP, "not a regular file", os.fspath(path))
        return fd

    def append(self, fd: int, data: bytes) -> None:
        """In one step: what others append at the same time stands before or after it, never inside."""
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, "only a part was appended")

    def read(self, path: AnyPath, offset: int = 0) -> bytes:
        """The whole file, or what follows `offset`."""
        fd = self._in(path, lambda at, name: os.open(name, _READ, dir_fd=at))
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                raise OSError(errno.ELOOP, "not a regular file", os.fspath(path))
            size = about.st_size - offset
            if size > _MOST:
                raise OSError(errno.EFBIG, "larger than anything that is written here", os.fspath(path))
            # One byte more than there should be, so that a file which just grew is seen to end.
            data = os.pread(fd, max(size, 0) + 1, offset)
            while len(data) > size and (more := os.pread(fd, _CHUNK, offset + len(data))):
                data += more
            while len(data) < size and (more := os.pread(fd, min(_CHUNK, size - len(data)), offset + len(data))):
                data += more
            return data
        finally:
            os.close(fd)

    # -- names ---------------------------------------------------------------------------------------------

    def link(self, a: AnyPath, b: AnyPath) -> None:
        """Give the file `a` the name `b` too, unless there is anything of that name: this is what commits."""
        with self._folder_of(a) as (source, name):
            self._in(b, lambda at, new: os.link(name, new, src_dir_fd=source, dst_dir_fd=at, follow_symlinks=False))

    def rename(self, a: AnyPath, b: AnyPath) -> None:
        with self._folder_of(a) as (source, name):
            self._in(b, lambda at, new: os.rename(name, new, src_dir_fd=source, dst_dir_fd=at))

    def unlink(self, path: AnyPath) -> None:
        self._in(path, lambda at, name: os.unlink(name, dir_fd=at))

    def stat(self, path: AnyPath) -> os.stat_result:
        """Of the name itself, also where it is a link."""
        return self._in(path, lambda at, name: os.stat(name, dir_fd=at, follow_symlinks=False))

    # -- folders -------------------------------------------------------------------------------------------

    def mkdir(self, path: AnyPath) -> None:
        self._in(path, lambda at, name: os.mkdir(name, 0o700, dir_fd=at))

    def rmdir(self, path: AnyPath) -> None:
        self._forget(os.fspath(path))
        self._in(path, lambda at, name: os.rmdir(name, dir_fd=at))

    def listdir(self, path: AnyPath) -> list[str]:
        def names() -> list[str]:
            with self._open_folder(os.fspath(path)) as at:
                # A handle has one position for all its users: a listing needs its own.
                own = os.open(".", _FOLDER, dir_fd=at)
            try:
                return os.listdir(own)
            finally:
                os.close(own)

        return self._fresh(os.fspath(path), names)

    def fsync_dir(self, path: AnyPath) -> None:
        def sync() -> None:
            with self._open_folder(os.fspath(path)) as at:
                _sync(at)

        self._fresh(os.fspath(path), sync)

    def release(self) -> None:
        """Close the handles of folders; the next call opens what it needs again."""
        with self._lock:
            for path in list(self._handles):
                self._drop(path)

    # -- handles -------------------------------------------------------------------------------------------

    def _in(self, path: AnyPath, call: Callable[[int, str], _T]) -> _T:
        """A call on the last name of a path, in the open folder that holds it."""
        folder, name = os.path.split(_text(path))

        def attempt() -> _T:
            with self._open_folder(folder) as at:
                return call(at, name)

        return self._fresh(folder, attempt)

    def _fresh(self, folder: str, attempt: Callable[[], _T]) -> _T:
        """Once more if a remembered folder is not the one that has this name now."""
        known = folder in self._handles
        try:
            return attempt()
        except OSError as error:
            if not known or error.errno not in _GONE or not self._moved(folder):
                raise
        self._forget(folder)
        return attempt()

    def _moved(self, folder: str) -> bool:
        handle = self._handles.get(folder)
        if handle is None:
            return True
        try:
            return os.fstat(handle.fd).st_nlink == 0
        except OSError:
            return True

    @contextlib.contextmanager
    def _folder_of(self, path: AnyPath) -> Generator[tuple[int, str]]:
        folder, name = os.path.split(_text(path))
        with self._open_folder(folder) as at:
            yield at, name

    @contextlib.contextmanager
    def _open_folder(self, folder: str) -> Generator[int]:
        handle = self._use(folder)
        try:
            yield handle.fd
        finally:
            with self._lock:
                handle.users -= 1
                if handle.forgotten and not handle.users:
                    os.close(handle.fd)

    def _use(self, folder: str) -> _Handle:
        with self._lock:
            handle = self._handles.get(folder)
            if handle is not None:
                self._handles.move_to_end(folder)
                handle.users += 1
                return handle
        fd = self._descend(folder)
        with self._lock:
            known = self._handles.get(folder)
            if known is not None:
                os.close(fd)
                handle = known
            else:
                handle = self._handles[folder] = _Handle(fd)
            handle.users += 1
            while len(self._handles) > _HANDLES:
                self._drop(next(iter(self._handles)))
            return handle

    def _descend(self, folder: str) -> int:
        """From the folder above it, which never is a link either, down to the store's own."""
        above, name = os.path.split(folder)
        root = self.folder
        if root is None or folder == os.fspath(root) or not folder.startswith(os.fspath(root) + os.sep):
            return os.open(folder or ".", _FOLDER)
        with self._open_folder(above) as at:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)

    def _forget(self, folder: str) -> None:
        with self._lock:
            for path in [p for p in self._handles if p == folder or p.startswith(folder + os.sep)]:
                self._drop(path)

    def _drop(self, folder: str) -> None:
        handle = self._handles.pop(folder)
        handle.forgotten = True
        if not handle.users:
            os.close(handle.fd)


def _text(path: AnyPath) -> str:
    return os.fspath(path)


def _sync(fd: int) -> None:
    # On a Mac, fsync leaves the data in the drive's own memory.
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        fcntl.fcntl(fd, full)
    else:
        os.fsync(fd)
