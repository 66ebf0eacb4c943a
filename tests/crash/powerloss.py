"""Every disk that a power cut may leave behind, from a record of what a program asked its disk to do.

Killing a process proves nothing about power: the kernel keeps what it was given. So the calls are recorded while
they are really made, and afterwards every state is built that a file system may show after a cut at any point:

- a change of a directory (a name that comes or goes) is certain only once that directory was synced; until then each
  is there or not, on its own, in any combination. A renamed file may be seen under both names, never under none;
- bytes of a file are certain only once the file was synced; until then it may hold all of them, none, any beginning,
  or blocks of zeros in their place;
- what lies in a directory that is not there is not there.

ext4 promises more. Other file systems do not, and code that needs the promise is wrong on them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["Cut", "PlainDisk", "Recording", "Tape", "materialise"]

BLOCK = 512


class PlainDisk:
    """The primitives of `knotline.backends.files_disk.Disk`, for the toy store that proves this module."""

    def create(self, path: str) -> int:
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: bytes) -> None:
        os.write(fd, data)

    def fsync(self, fd: int) -> None:
        pass  # nothing here outlives the test

    def close(self, fd: int) -> None:
        os.close(fd)

    def link(self, a: str, b: str) -> None:
        os.link(a, b)

    def rename(self, a: str, b: str) -> None:
        os.replace(a, b)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        pass

    def open_append(self, path: str) -> int:
        return os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def append(self, fd: int, data: bytes) -> None:
        os.write(fd, data)

    def open_sync(self, path: str) -> None:
        pass


# -- what was asked of the disk ------------------------------------------------------------------------------------


@dataclass
class _Name:
    """A name in a directory comes (to stand for `node`) or goes (`node` is None)."""

    step: int
    folder: int
    name: str
    node: int | None
    needs: _Name | None = None
    """A renamed file's old name goes only if its new one is there."""


@dataclass
class _File:
    writes: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    syncs: list[int] = field(default_factory=list[int])


class Tape:
    """What happened below `root`, in order, resolved to files and folders; and what the program was promised when."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.lock = threading.RLock()
        self.step = 0
        self.names: list[_Name] = []
        self.folders: dict[int, dict[str, int]] = {0: {}}
        """As the running program sees them."""
        self.folder_syncs: dict[int, list[int]] = {0: []}
        self.files: dict[int, _File] = {}
        self.open: dict[int, int] = {}
        self.marks: list[tuple[int, Any]] = []
        self.calls: dict[str, int] = {}
        self._joined: dict[tuple[int, int], bytes] = {}

    # -- recording -----------------------------------------------------------------------------------------

    def told(self, what: str) -> int:
        self.calls[what] = self.calls.get(what, 0) + 1
        self.step += 1
        return self.step

    def mark(self, what: Any) -> None:
        """From here on the program knows this."""
        with self.lock:
            self.step += 1
            self.marks.append((self.step, what))

    def _parts(self, path: str | os.PathLike[str]) -> list[str]:
        text = os.path.abspath(os.fspath(path))
        for root in (self.root, os.path.abspath(self.root)):
            if text == root:
                return []
            if text.startswith(root + os.sep):
                return text[len(root) + 1 :].split(os.sep)
        text = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
        if text == self.root:
            return []
        assert text.startswith(self.root + os.sep), f"{text} lies outside"
        return text[len(self.root) + 1 :].split(os.sep)

    def at(self, path: str | os.PathLike[str]) -> int:
        node = 0
        for part in self._parts(path):
            node = self.folders[node][part]
        return node

    def above(self, path: str | os.PathLike[str]) -> tuple[int, str]:
        *front, last = self._parts(path)
        node = 0
        for part in front:
            node = self.folders[node][part]
        return node, last

    def comes(self, path: str | os.PathLike[str], node: int, step: int) -> _Name:
        folder, name = self.above(path)
        self.folders[folder][name] = node
        change = _Name(step, folder, name, node)
        self.names.append(change)
        return change

    def goes(self, path: str | os.PathLike[str], step: int, needs: _Name | None = None) -> None:
        folder, name = self.above(path)
        self.folders[folder].pop(name, None)
        self.names.append(_Name(step, folder, name, None, needs))

    def fresh(self) -> int:
        return 1 + len(self.files) + len(self.folders)

    # -- building ------------------------------------------------------------------------------------------

    def now(self) -> dict[str, bytes | None]:
        """What the running program sees: folders are None."""
        return self._tree({node: dict(names) for node, names in self.folders.items()}, self._whole)

    def _whole(self, node: int) -> bytes:
        return b"".join(data for _, data in self.files[node].writes)

    def _tree(self, folders: dict[int, dict[str, int]], content: Any) -> dict[str, bytes | None]:
        tree: dict[str, bytes | None] = {}
        todo = [(0, "")]
        while todo:
            folder, path = todo.pop()
            for name, node in folders.get(folder, {}).items():
                if node in self.files:
                    tree[path + name] = content(node)
                else:
                    tree[path + name] = None
                    todo.append((node, f"{path}{name}/"))
        return tree

    def cuts(self, dice: Random, *, each: int, since: int = 0) -> Iterator[Cut]:
        """The distinct states of cuts after `since`, each with the last point at which it may be found.

        Up to `each` of them at every point: all where there are no more, else a choice in which the extremes
        always are.
        """
        found: dict[bytes, Cut] = {}
        digests: dict[bytes, bytes] = {}
        for step in range(since, self.step + 1):
            for tree in self._states(step, dice, each):
                key = _key(tree, digests)
                known = found.get(key)
                if known is None:
                    found[key] = Cut(tree, step)
                else:
                    known.step = step
        yield from found.values()

    def _states(self, step: int, dice: Random, each: int) -> Iterator[dict[str, bytes | None]]:
        past = [change for change in self.names if change.step <= step]
        loose = [change for change in past if not self._sure(change, step)]
        variants = {node: self._contents(node, file, step, dice) for node, file in self.files.items()}
        open_files = [node for node, some in variants.items() if len(some) > 1 and self._named(node, past)]
        total = 2 ** len(loose)
        for node in open_files:
            total *= len(variants[node])
        for there, chosen in (
            self._all(loose, open_files, variants)
            if total <= each
            else self._some(loose, open_files, variants, dice, each)
        ):
            kept = {id(change) for change in there}
            out = {id(change) for change in loose} - kept
            folders: dict[int, dict[str, int]] = {}
            for change in past:
                if id(change) in out or (change.needs is not None and id(change.needs) in out):
                    continue
                names = folders.setdefault(change.folder, {})
                if change.node is None:
                    names.pop(change.name, None)
                else:
                    names[change.name] = change.node
            yield self._tree(folders, lambda node, chosen=chosen: variants[node][chosen.get(node, 0)])

    def _sure(self, change: _Name, step: int) -> bool:
        return any(change.step < sync <= step for sync in self.folder_syncs[change.folder])

    @staticmethod
    def _named(node: int, past: list[_Name]) -> bool:
        return any(change.node == node for change in past)

    @staticmethod
    def _all(
        loose: list[_Name], files: list[int], variants: dict[int, list[bytes]]
    ) -> Iterator[tuple[list[_Name], dict[int, int]]]:
        for bits in itertools.product((True, False), repeat=len(loose)):
            there = [change for change, bit in zip(loose, bits, strict=True) if bit]
            for which in itertools.product(*(range(len(variants[node])) for node in files)):
                yield there, dict(zip(files, which, strict=True))

    @staticmethod
    def _some(
        loose: list[_Name], files: list[int], variants: dict[int, list[bytes]], dice: Random, each: int
    ) -> Iterator[tuple[list[_Name], dict[int, int]]]:
        shapes: list[list[_Name]] = [loose, []]
        shapes += [loose[:n] for n in range(1, len(loose))]
        shapes += [[each for each in loose if each is not one] for one in loose]
        shapes += [[one] for one in loose]
        extremes: list[dict[int, int]] = [{}, dict.fromkeys(files, 1)]
        extremes += [{node: n} for node in files for n in range(1, len(variants[node]))]
        known = [(shape, which) for shape in shapes for which in extremes[:2]]
        known += [(loose, which) for which in extremes[2:]]
        if len(known) > each:
            known = known[:2] + dice.sample(known[2:], each - 2)
        yield from known
        for _ in range(each - len(known)):
            often = dice.choice((0.1, 0.5, 0.9))
            there = [change for change in loose if dice.random() < often]
            rare = dice.choice((0.1, 0.5))
            yield there, {node: dice.randrange(len(variants[node])) for node in files if dice.random() < rare}

    def _contents(self, node: int, file: _File, step: int, dice: Random) -> list[bytes]:
        """All of it first, then only what is sure, then what lies between."""
        last = max((sync for sync in file.syncs if sync <= step), default=0)
        count = sum(at < last for at, _ in file.writes)
        sure = self._joined.get((node, count))
        if sure is None:
            sure = self._joined[node, count] = b"".join(data for _, data in file.writes[:count])
        loose = b"".join(data for at, data in file.writes if last < at <= step)
        if not loose:
            return [sure]
        size = len(loose)
        cuts = {1, size - 1, size // 2, dice.randrange(size), *(BLOCK - len(sure) % BLOCK,)}
        some = [sure + loose[:cut] for cut in sorted(cuts) if 0 < cut < size]
        edge = min(size, BLOCK - len(sure) % BLOCK)
        zeros = [bytes(size), loose[:edge] + bytes(size - edge), bytes(edge) + loose[edge:]]
        some += [sure + each for each in zeros]
        return list(dict.fromkeys([sure + loose, sure, *some]))


@dataclass
class Cut:
    """One state of the disk: file contents by path, None for a folder; `step` is the latest at which it may be."""

    tree: dict[str, bytes | None]
    step: int


def _key(tree: dict[str, bytes | None], digests: dict[bytes, bytes]) -> bytes:
    whole = blake2b(digest_size=16)
    for path in sorted(tree):
        data = tree[path]
        if data is None:
            digest = b"-"
        elif (digest := digests.get(data)) is None:
            digest = digests[data] = blake2b(data, digest_size=16).digest()
        whole.update(b"%d %b%b" % (len(path), path.encode("utf-8", "surrogateescape"), digest))
    return whole.digest()


def materialise(tree: dict[str, bytes | None], folder: Path) -> None:
    """This state as real files, in a folder of which nothing is left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    front = str(folder) + os.sep
    for path in sorted(tree):
        data = tree[path]
        if data is None:
            os.mkdir(front + path, 0o700)
        else:
            fd = os.open(front + path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            if data:
                os.write(fd, data)
            os.close(fd)


def found(folder: Path) -> dict[str, bytes | None]:
    """The real files, in the shape of a tree."""
    tree: dict[str, bytes | None] = {}
    for path in folder.rglob("*"):
        tree[path.relative_to(folder).as_posix()] = None if path.is_dir() else path.read_bytes()
    return tree


class Recording:
    """Goes in front of a disk class: `class RecordingDisk(Recording, Disk)`. Does it, then writes down that it did."""

    tape: Tape

    def create(self, path: Any) -> int:
        with self.tape.lock:
            fd: int = super().create(path)  # pyright: ignore[reportAttributeAccessIssue]
            step = self.tape.told("create")
            node = self.tape.fresh()
            self.tape.files[node] = _File()
            self.tape.comes(path, node, step)
            self.tape.open[fd] = node
            return fd

    def write(self, fd: int, data: Any) -> Any:
        with self.tape.lock:
            done = super().write(fd, data)  # pyright: ignore[reportAttributeAccessIssue]
            self.tape.files[self.tape.open[fd]].writes.append((self.tape.told("write"), bytes(data)))
            return done

    def fsync(self, fd: int) -> Any:
        with self.tape.lock:
            done = super().fsync(fd)  # pyright: ignore[reportAttributeAccessIssue]
            self.tape.files[self.tape.open[fd]].syncs.append(self.tape.told("fsync"))
            return done

    def close(self, fd: int) -> Any:
        with self.tape.lock:
            self.tape.open.pop(fd, None)
            return super().close(fd)  # pyright: ignore[reportAttributeAccessIssue]

    def link(self, a: Any, b: Any) -> Any:
        with self.tape.lock:
            done = super().link(a, b)  # pyright: ignore[reportAttributeAccessIssue]
            self.tape.comes(b, self.tape.at(a), self.tape.told("link"))
            return done

    def rename(self, a: Any, b: Any) -> Any:
        with self.tape.lock:
            done = super().rename(a, b)  # pyright: ignore[reportAttributeAccessIssue]
            step = self.tape.told("rename")
            self.tape.goes(a, step, self.tape.comes(b, self.tape.at(a), step))
            return done

    def unlink(self, path: Any) -> Any:
        with self.tape.lock:
            done = super().unlink(path)  # pyright: ignore[reportAttributeAccessIssue]
            self.tape.goes(path, self.tape.told("unlink"))
            return done

    def mkdir(self, path: Any) -> Any:
        with self.tape.lock:
            done = super().mkdir(path)  # pyright: ignore[reportAttributeAccessIssue]
            step = self.tape.told("mkdir")
            node = self.tape.fresh()
            self.tape.folders[node] = {}
            self.tape.folder_syncs[node] = []
            self.tape.comes(path, node, step)
            return done

    def rmdir(self, path: Any) -> Any:
        with self.tape.lock:
            done = super().rmdir(path)  # pyright: ignore[reportAttributeAccessIssue]
            self.tape.goes(path, self.tape.told("rmdir"))
            return done

    def fsync_dir(self, path: Any) -> Any:
        with self.tape.lock:
            done = super().fsync_dir(path)  # pyright: ignore[reportAttributeAccessIssue]
            self.tape.folder_syncs[self.tape.at(path)].append(self.tape.told("fsync_dir"))
            return done

    def open_append(self, path: Any) -> int:
        with self.tape.lock:
            fd: int = super().open_append(path)  # pyright: ignore[reportAttributeAccessIssue]
            folder, name = self.tape.above(path)
            node = self.tape.folders[folder].get(name)
            if node is None:
                step = self.tape.told("create by open_append")
                node = self.tape.fresh()
                self.tape.files[node] = _File()
                self.tape.comes(path, node, step)
            self.tape.open[fd] = node
            return fd

    def append(self, fd: int, data: Any) -> Any:
        with self.tape.lock:
            done = super().append(fd, data)  # pyright: ignore[reportAttributeAccessIssue]
            self.tape.files[self.tape.open[fd]].writes.append((self.tape.told("append"), bytes(data)))
            return done

    def open_sync(self, path: Any) -> Any:
        with self.tape.lock:
            done = super().open_sync(path)  # pyright: ignore[reportAttributeAccessIssue]
            self.tape.files[self.tape.at(path)].syncs.append(self.tape.told("open_sync"))
            return done
