"""A store, or a run, as one file that can be carried elsewhere, and back into any store. `portable` says what is in it.

The file appears whole or not at all; it is read and checked whole before anything of it is stored.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from knotline.backends import Attach, Attachment, Backend, Entry, MemoryBackend, Save, Write
from knotline.backends.copying import Progress
from knotline.backends.copying_landing import Landing, Standing, weight
from knotline.backends.keys import KeySource, as_sources
from knotline.codec import links_of, open_head, seal_of
from knotline.errors import Damaged, NotFound, Unavailable, Unsupported
from knotline.store.check import Damage
from knotline.store.log import Store
from knotline.store.meaning import StoreMeaning, checked_name, floor_of
from knotline.store.moving import Moved, followed, landed, source_of, with_origins
from knotline.store.names import run_name
from knotline.store.portable import Piece, Record, Tally, Writer, records
from knotline.store.portable_seals import AskedOnce

__all__ = ["decode_file", "export_run", "export_store", "import_file"]

_CARRIED: Final = 256 << 20
_BUFFER: Final = 1 << 20
_KNOWN: Final = 1 << 19
_OBJECTS: Final = 64
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

Keys = KeySource | Sequence[KeySource] | bytes
AnyPath = str | os.PathLike[str]


def export_run(
    store: Store,
    run: str,
    path: AnyPath,
    *,
    key: Keys | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Moved:
    """A run, and what it was forked from, as one file. With `key` it is encrypted."""
    return _export(store, with_origins(store, [run]), path, key, overwrite=overwrite, progress=progress)


def export_store(
    store: Store,
    path: AnyPath,
    *,
    key: Keys | None = None,
    overwrite: bool = False,
    skip_damaged: bool = False,
    progress: Progress | None = None,
) -> Moved:
    """Everything that a store holds as one file. With `key` it is encrypted."""
    return _export(store, None, path, key, overwrite=overwrite, skip_damaged=skip_damaged, progress=progress)


def import_file(
    store: Store,
    path: AnyPath,
    *,
    key: Keys | None = None,
    follow: bool = False,
    progress: Progress | None = None,
) -> Moved:
    """All that a file holds into a store, which may hold other runs and part of these, as for `copy_store`.

    The whole file is read and checked before anything is written. For an encrypted one without a `key` the
    environment is asked. Runs keep their names, since what they hold is bound to them: fork to have another.
    """
    what = f"file {os.fspath(path)!r}"
    with _reading(path) as stream:
        landing, _ = _receive(store.backend, stream, as_sources(key), what, follow=follow, progress=progress)
    return landed(landing, caught_up=True, damage=())


def decode_file(data: bytes, *, key: Keys = ()) -> Tally:
    """Read the bytes of a file as an import does, into nowhere: what it holds, or the error that an import gives."""
    into = MemoryBackend()
    try:
        return _receive(into, BytesIO(data), as_sources(key), "file", follow=False, progress=None)[1]
    finally:
        into.close()


def _receive(
    into: Backend,
    stream: BinaryIO,
    sources: Sequence[KeySource],
    what: str,
    *,
    follow: bool,
    progress: Progress | None,
) -> tuple[Landing, Tally]:
    """Twice: first all of it is checked, then it is stored."""
    sources = [AskedOnce(source) for source in sources]
    meaning = StoreMeaning(into)
    standing = Standing(into, meaning, follow=followed(follow=follow))
    said = Tally()
    ledger = _Ledger()
    for record in records(stream, sources, what):
        if isinstance(record, Save):
            ledger.see(record)
            standing.see(record.run, record.rev, record.head)
        elif isinstance(record, Attach):
            meaning.name(record.run)
        elif isinstance(record, Tally):
            said = record
    ledger.close()
    standing.settle()
    stream.seek(0)
    landing = Landing(into, standing, meaning, progress=progress, total=said.entries)
    reception = _Reception(into, meaning, standing, landing, what)
    for write in reception.writes(records(stream, sources, what)):
        landing.put(write)
    landing.finish()
    return landing, said


# -- into a file -------------------------------------------------------------------------------------------


class _Filing:
    """A file as a sink: it has nothing yet."""

    def __init__(self, writer: Writer, progress: Progress | None, total: int | None) -> None:
        self._writer = writer
        self._progress = progress
        self._total = total
        self.runs: set[bytes] = set()
        self.bytes = 0
        self.ledger = _Ledger()

    def wants(self, run: bytes, rev: int, head: bytes) -> bool:  # noqa: ARG002 - all of it
        return True

    def put(self, write: Write) -> None:
        if isinstance(write, Save):
            self.runs.add(write.run)
            self.ledger.see(write)
            for oid, stored in write.objects:
                self._writer.put(Piece(oid, stored))
        self._writer.put(write)
        self.bytes += weight(write)
        if self._progress is not None:
            done = self._writer.tally.entries
            self._progress(self.bytes, done, None if self._total is None else max(self._total, done))


def _export(
    store: Store,
    keys: list[bytes] | None,
    path: AnyPath,
    key: Keys | None,
    *,
    overwrite: bool,
    skip_damaged: bool = False,
    progress: Progress | None,
) -> Moved:
    sources = None if key is None else as_sources(key)
    lost: list[Damage] = []
    pouring = source_of(store, StoreMeaning(store.backend), keys, lost if skip_damaged else None)
    total = None if progress is None else pouring.count()
    with _writing(Path(path), overwrite=overwrite) as stream:
        writer = Writer(stream, sources, f"file {os.fspath(path)!r}")
        filing = _Filing(writer, progress, total)
        caught_up = pouring.pour(filing)
        try:
            filing.ledger.close()
        except Damaged as error:
            # The source had an answer when it was asked; what it is comes later than this file could follow.
            why = "it was pruned faster than it could be read; try again, or stop its writers"
            raise Unavailable(store.backend.name, why=why) from error
        writer.finish()
    tally = writer.tally
    return Moved(
        runs=len(filing.runs),
        entries=tally.entries,
        objects=tally.objects,
        attachments=tally.attachments,
        bytes=filing.bytes,
        caught_up=caught_up,
        damage=tuple(lost),
    )


@contextlib.contextmanager
def _writing(path: Path, *, overwrite: bool) -> Generator[BinaryIO]:
    """A file that is there whole, durable and readable by its owner only, or not at all."""
    there = Unavailable(f"file {str(path)!r}", why="it is there already; give another name, or overwrite it")
    if not overwrite and os.path.lexists(path):
        raise there
    beside = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        try:
            with os.fdopen(os.open(beside, flags, 0o600), "wb", buffering=_BUFFER) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if overwrite:
                os.replace(beside, path)
            else:
                _link(beside, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError as error:
        raise there from error
    except OSError as error:
        raise Unavailable(f"file {str(path)!r}", why=error.strerror or type(error).__name__) from error


def _link(beside: Path, path: Path) -> None:
    """Unlike a rename this does not take the place of a file that appeared meanwhile."""
    try:
        os.link(beside, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        why = "its file system has no hard links, by which no file is lost that appears meanwhile; `overwrite` it"
        raise Unavailable(f"file {str(path)!r}", why=why) from error


# -- out of a file -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reading(path: AnyPath) -> Generator[BinaryIO]:
    try:
        with open(path, "rb", buffering=_BUFFER) as stream:
            yield stream
    except FileNotFoundError as error:
        raise NotFound("file", os.fspath(path)) from error
    except OSError as error:
        raise Unavailable(f"file {os.fspath(path)!r}", why=error.strerror or type(error).__name__) from error


class _Ledger:
    """Is what comes by a log for every run: no hole in it, and no beginning that nothing dropped?"""

    def __init__(self) -> None:
        self._runs: dict[bytes, tuple[int, int, int]] = {}

    def see(self, save: Save) -> None:
        name = checked_name(save.run)
        floor = floor_of(open_head(save.head, name, save.rev))
        first, last, below = self._runs.get(save.run, (save.rev, save.rev - 1, 0))
        if save.rev != last + 1:
            if save.rev <= last or save.drop != save.rev:
                raise Damaged(f"entry {name!r} at {last + 1}", why="it is missing")
            first = save.rev
        self._runs[save.run] = (max(first, save.drop), save.rev, max(below, floor))

    def close(self) -> None:
        for run, (first, _, floor) in self._runs.items():
            if first > floor:
                raise Damaged(f"run {run_name(run)!r}", why=f"its entries before {first} are missing")


class _Reception:
    """Makes writes of records: what the target lacks, each piece held against its hash, each entry with all that it
    leads to.
    """

    def __init__(self, into: Backend, meaning: StoreMeaning, standing: Standing, landing: Landing, what: str) -> None:
        self._into = into
        self._meaning = meaning
        self._standing = standing
        self._landing = landing
        self._what = what
        # Of the entry that comes next; of entries that the target had and dropped: what comes next may need them.
        self._objects: dict[bytes, bytes] = {}
        self._kept: dict[bytes, bytes] = {}
        self._kept_size = 0
        # Objects that the target has by now; forgotten when they become many, which costs only looking for some.
        self._known: set[bytes] = set()

    def writes(self, found: Iterable[Record]) -> Iterator[Write]:
        for record in found:
            if isinstance(record, Piece):
                self._meaning.links(record.oid, record.stored)
                self._objects[record.oid] = record.stored
            elif isinstance(record, Attach):
                place = Attachment(record.rev, record.task, record.idx, record.epoch, record.data)
                self._meaning.attachment(record.run, place)
                yield record
            elif isinstance(record, Save):
                brought, self._objects = self._objects, {}
                if len(self._known) > _KNOWN:
                    self._known.clear()
                if self._landing.wants(record.run, record.rev, record.head):
                    yield self._save(record, self._kept | brought)
                    self._kept, self._kept_size = {}, 0
                elif self._standing.has(record.run, record.rev, record.head):
                    self._known.update(brought)
                else:
                    self._keep(brought)
        if self._objects:
            raise Damaged(self._what, why="objects of it belong to no entry")

    def _keep(self, brought: dict[bytes, bytes]) -> None:
        self._kept |= brought
        self._kept_size += sum(map(len, brought.values()))
        if self._kept_size > _CARRIED:
            why = "too much of what it holds was here and has been pruned; import it into an empty store"
            raise Unsupported(self._what, why=why)

    def _save(self, save: Save, objects: dict[bytes, bytes]) -> Save:
        what = f"entry {run_name(save.run)!r} at {save.rev}"
        if seal_of(save.body) is not None:
            raise Damaged(what, why="it needs what comes after it")
        sent = self._meaning.arrival(Entry(save.run, save.rev, save.head, save.body, 0))
        wanted = dict.fromkeys(sent.links)
        for oid, stored in objects.items():
            wanted.update(dict.fromkeys(links_of(stored, oid.hex())))
        self._find([oid for oid in wanted if oid not in objects and oid not in self._known])
        self._known.update(objects)
        if sent.origin is not None:
            self._landing.flush()
            run, rev = sent.origin
            if not self._into.entries(run, rev, rev, bodies=False):
                raise Damaged(what, why="what it was forked from is not there")
        recast = self._recast(save, objects) if save.recast else ()
        return replace(save, objects=tuple(objects.items()), recast=recast, alias=self._meaning.alias(save.run))

    def _find(self, missing: list[bytes]) -> None:
        for at in range(0, len(missing), _OBJECTS):
            part = missing[at : at + _OBJECTS]
            there = self._into.objects(part)
            for oid in part:
                if oid not in there:
                    raise Damaged(f"object {oid.hex()}", why=f"it is missing in {self._what}")
            self._known.update(part)

    def _recast(self, save: Save, objects: dict[bytes, bytes]) -> tuple[tuple[int, bytes], ...]:
        """Of those entries that are there, each held against the head that it has there."""
        self._landing.flush()
        self._meaning.learn(save.run, save.rev, save.body, objects)
        bodies = dict(save.recast)
        recast: list[tuple[int, bytes]] = []
        for entry in self._into.entries(save.run, min(bodies), max(bodies), bodies=False):
            body = bodies.get(entry.rev)
            if body is not None:
                if seal_of(body) != save.rev:
                    raise Damaged(f"entry {run_name(save.run)!r} at {entry.rev}", why="its seal is another")
                self._meaning.arrival(replace(entry, body=body))
                recast.append((entry.rev, body))
        return tuple(recast)
