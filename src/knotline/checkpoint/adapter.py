"""A backend on a third party's four asynchronous methods: what works on a store works on it, for one process.

**What is where.** An entry is one document, and its save is the commit; a save's objects are written before it, and
what it drops is deleted after it. An index of all that exists (heads, tokens, ids; of bodies only those of the
heads) is read once, at the first call, and kept in a `MemoryBackend`; bodies and objects are loaded when they are
asked for. Bytes are base64, so JSON is all that the storage must be able to keep.

**What cannot be.** Four methods that load and save cannot compare and swap: two writers would both be
acknowledged, and one of them lost. So there are no leases, and a second process is refused. A process that was
killed does not stand in the way: its successor takes over, and should it live after all (on another machine),
it is refused at its next commit.

**The loop.** A storage belongs to the event loop it was made on, and is called back there, the one place where the
core calls upwards into asyncio. Without a loop, or when that one has ended, the adapter runs one of its own on a
thread; a storage that cannot live on another loop raises there, and the error is `Unavailable`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, Final, NoReturn, TypeVar, cast

from knotline.backends import (
    MAX_REV,
    MAX_RUN_KEY,
    Attach,
    Attachment,
    Conflicted,
    Done,
    Entry,
    Failed,
    Lease,
    MemoryBackend,
    Outcome,
    Save,
    Write,
)
from knotline.checkpoint.adapter_forms import (
    attach_document,
    attach_key,
    entry_document,
    entry_key,
    object_document,
    open_attach,
    open_entry,
    open_object,
)
from knotline.checkpoint.adapter_loop import Home
from knotline.checkpoint.base import BaseStorage
from knotline.errors import ContractBroken, Damaged, Error, Unavailable, Unsupported

__all__ = ["AdapterBackend"]

_T = TypeVar("_T")
_LOG: Final = "knotline-log"
_OBJECTS: Final = "knotline-objects"
_ATTACHED: Final = "knotline-attached"
_OWNER: Final = ("knotline-owner", "owner")
_TOGETHER: Final = 32
_ID: Final = 16


class AdapterBackend:
    """See the module's text. Closing it leaves the storage itself open: whoever made it closes it."""

    _here: ClassVar[set[str]] = set()

    def __init__(self, storage: BaseStorage) -> None:
        self._storage = storage
        self._home = Home(self.name)
        # Reading and writing the index; commits hold it while they wait for the storage.
        self._lock = threading.RLock()
        # Changing what heads are made of, on the loop; held for a moment, and never while anybody waits.
        self._moment = threading.Lock()
        self._index = MemoryBackend()
        self._tops: dict[bytes, bytes] = {}
        # Cursors are the documents' own numbers, which outlive this process: by the index's cursor, less one.
        self._numbers: list[int] = []
        self._next = 1
        # Keys whose save failed here: nobody was told that they are there, so they may be written over.
        self._doubtful: set[str] = set()
        self._ready = False
        self._closed = False
        self._nonce = f"{os.getpid()}-{os.urandom(8).hex()}"

    @property
    def lanes(self) -> int:
        return 1

    @property
    def name(self) -> str:
        return f"storage:{type(self._storage).__name__}"

    def settle(self) -> None:
        """Move to the loop that runs here, if the one before has ended."""
        self._home.settle()

    @contextmanager
    def _open(self) -> Generator[None]:
        """The index, read and locked."""
        with self._lock:
            if self._closed:
                raise Unavailable(self.name, why="it is closed")
            if not self._ready:
                self._home.wait(self._read())
                self._ready = True
            yield

    # -- opening -------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        await self._take_over()
        entries = await self._every(_LOG, open_entry)
        attached = await self._every(_ATTACHED, open_attach)
        ids = sorted(_object_ids(await self._keys(_OBJECTS)))
        floors: dict[bytes, tuple[int, int]] = {}
        for number, save in entries:
            floors[save.run] = max(floors.get(save.run, (0, 0)), (save.drop, number))
        # Begun anew if this is a second try.
        self._index, self._tops, self._numbers = MemoryBackend(), {}, []
        last: dict[bytes, Save] = {}
        for number, save in sorted(entries, key=lambda each: each[0]):
            if save.rev < floors[save.run][0]:
                await self._storage.delete(_LOG, entry_key(save.run, save.rev))  # a drop that was cut short
                continue
            self._tops[save.run] = save.body
            last[save.run] = save
            objects = tuple((oid, b"") for oid in ids)
            (outcome,) = self._index.commit([replace(save, body=b"", drop=0, objects=objects)])
            if outcome != Done() or (self._numbers and self._numbers[-1] == number):
                raise Damaged(f"{self.name}: {entry_key(save.run, save.rev)}", why="two processes wrote at once")
            self._numbers.append(number)
            ids = []
        for number, attach in attached:
            floor, dropped_at = floors.get(attach.run, (0, 0))
            if attach.rev < floor and number <= dropped_at:
                await self._storage.delete(_ATTACHED, attach_key(attach.run, attach.rev, attach.task, attach.idx))
            else:
                self._index.commit([attach])
        self._next = 1 + max([number for number, _ in (*entries, *attached)], default=0)
        # A list that stops at its first thousand would show an old state as the newest, and the next save would
        # replace what it left out.
        beyond = [entry_key(run, save.rev + 1) for run, save in last.items()]
        for key, found in await self._load(_LOG, beyond):
            if found is not None:
                raise Damaged(f"{self.name}: {key}", why="`load` finds it and `list` leaves it out")

    async def _take_over(self) -> None:
        found = await self._storage.load(*_OWNER)
        if isinstance(found, dict) and found.get("nonce") != self._nonce:
            nonce, pid, host = (found.get(name) for name in ("nonce", "pid", "host"))
            mine = host == socket.gethostname()
            alive = mine and isinstance(pid, int) and (nonce in self._here if pid == os.getpid() else _runs(pid))
            if alive:
                why = f"process {pid} has it open, and this kind of storage serves one process at a time"
                raise Unsupported(self.name, why=why)
        owner = {"nonce": self._nonce, "pid": os.getpid(), "host": socket.gethostname()}
        await self._storage.save(*_OWNER, owner)
        self._here.add(self._nonce)

    async def _every(self, category: str, read: Callable[[str, str, object], _T]) -> list[_T]:
        found = await self._load(category, await self._keys(category))
        return [read(self.name, key, document) for key, document in found]

    async def _keys(self, category: str) -> list[str]:
        """Each once, whatever the storage says."""
        found = cast("object", await self._storage.list(category))
        if not isinstance(found, Iterable) or isinstance(found, str):
            raise Unavailable(self.name, why=f"its list of {category} is a {type(found).__name__}, not a list")
        keys = list(cast("Iterable[object]", found))
        if not all(isinstance(key, str) for key in keys):
            raise Unavailable(self.name, why=f"its list of {category} holds what is no text")
        return list(dict.fromkeys(cast("list[str]", keys)))

    async def _load(self, category: str, keys: list[str]) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = []
        for start in range(0, len(keys), _TOGETHER):
            page = keys[start : start + _TOGETHER]
            found += zip(page, await asyncio.gather(*(self._storage.load(category, key) for key in page)), strict=True)
        return found

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:  # noqa: ARG002 - its `save` decides
        with self._lock:
            if self._closed:
                raise Unavailable(self.name, why="it is closed")
            for write in writes:
                self._look_at(write)
            try:
                with self._open():
                    return self._home.wait(self._together(writes)) if writes else []
            except Unavailable as error:
                return [Failed(error) for _ in writes]

    def _look_at(self, write: Write) -> None:
        if not (1 <= len(write.run) <= MAX_RUN_KEY and 0 <= write.rev <= MAX_REV):
            raise ContractBroken(f"{self.name}: not a write of the contract")

    async def _together(self, writes: Sequence[Write]) -> list[Outcome]:
        if await self._owner() != self._nonce:
            why = "another process opened it since, and this kind of storage serves one at a time"
            raise Unsupported(self.name, why=why)
        return [await self._one(write) for write in writes]

    async def _owner(self) -> object:
        found: object = await self._storage.load(*_OWNER)
        return cast("dict[str, object]", found).get("nonce") if isinstance(found, dict) else None

    async def _one(self, write: Write) -> Outcome:
        try:
            return await (self._save(write) if isinstance(write, Save) else self._attach(write))
        except Exception as error:  # noqa: BLE001 - a stranger's code: whatever it raises, the outcome says so
            failed = Unavailable(self.name, why=f"{type(error).__name__}: {error}")
            failed.__cause__ = error
            return Failed(failed)

    async def _save(self, save: Save) -> Outcome:
        top = self._index.head(save.run)
        if top is not None and save.rev <= top.rev:
            same = self._index.entries(save.run, save.rev, save.rev)
            return Done() if same and same[0].head == save.head else Conflicted()
        known = self._index.objects([oid for oid, _ in save.objects])
        for oid, data in dict(reversed(save.objects)).items():
            if oid not in known:
                await self._storage.save(_OBJECTS, oid.hex(), object_document(data))
        floor = min(save.drop, save.rev)
        document = entry_document(replace(save, drop=floor), self._next)
        key = entry_key(save.run, save.rev)
        await self._certainly(_LOG, key, document)
        old = [entry.rev for entry in self._index.entries(save.run, 0, floor - 1, bodies=False)] if floor else []
        beside = self._index.attachments(save.run, hi=floor - 1) if floor else []
        objects = tuple((oid, b"") for oid, _ in save.objects)
        with self._moment:
            self._index.commit([replace(save, body=b"", objects=objects, recast=())])
            self._tops[save.run] = save.body
            self._numbers.append(self._next)
            self._next += 1
        # It is saved. What cannot be deleted now is deleted when the storage is opened next.
        with suppress(Exception):
            for rev in old:
                await self._storage.delete(_LOG, entry_key(save.run, rev))
            for each in beside:
                await self._storage.delete(_ATTACHED, attach_key(save.run, each.rev, each.task, each.idx))
        return Done()

    async def _attach(self, attach: Attach) -> Outcome:
        for there in self._index.attachments(attach.run, lo=attach.rev, hi=attach.rev):
            if (there.task, there.idx) == (attach.task, attach.idx):
                return Done() if (there.epoch, there.data) == (attach.epoch, attach.data) else Conflicted()
        key = attach_key(attach.run, attach.rev, attach.task, attach.idx)
        await self._certainly(_ATTACHED, key, attach_document(attach, self._next))
        self._next += 1
        return self._index.commit([attach])[0]

    async def _certainly(self, category: str, key: str, document: dict[str, Any]) -> None:
        """Saved, or an error and not there: a save that raised may have been done nevertheless."""
        if key not in self._doubtful and await self._storage.load(category, key) is not None:
            # What `list` left out when this was opened would be lost here, and nobody would know.
            raise Damaged(f"{self.name}: {key}", why="`load` finds it and `list` left it out")
        self._doubtful.add(key)
        try:
            await self._storage.save(category, key, document)
        except Exception:
            if await self._storage.load(category, key) != document:
                raise
        self._doubtful.discard(key)

    # -- reading -------------------------------------------------------------------------------------------

    def head(self, run: bytes) -> Entry | None:
        if self._closed or not self._ready:
            with self._open():
                pass
        # Out of memory, and not behind a commit: a save that lost a race looks at the head on the loop's own thread,
        # and a commit that is under way waits for that loop.
        with self._moment:
            found = self._index.head(run)
            return None if found is None else self._shown(found, self._tops[run])

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        with self._open():
            found = self._index.entries(run, lo, hi, bodies=False)
            if not bodies:
                return [self._shown(entry, None) for entry in found]
            top = self._index.head(run)
            older = [entry.rev for entry in found if top is None or entry.rev != top.rev]
            loaded = dict(zip(older, self._home.wait(self._bodies(run, older)), strict=True)) if older else {}
            return [self._shown(entry, loaded.get(entry.rev, self._tops[run])) for entry in found]

    async def _bodies(self, run: bytes, revs: list[int]) -> list[bytes]:
        keys = [entry_key(run, rev) for rev in revs]
        return [open_entry(self.name, key, found)[1].body for key, found in await self._load(_LOG, keys)]

    def find(
        self,
        tokens: Sequence[int] = (),
        *,
        run: bytes | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 100,
    ) -> list[Entry]:
        with self._open():
            if beyond is not None:
                # From numbers to the index's own cursors, which begin at 1: the first that is further.
                beyond = bisect_left(self._numbers, beyond) + 1 if newest else bisect_right(self._numbers, beyond)
            found = self._index.find(tokens, run=run, beyond=beyond, newest=newest, limit=limit)
            return [self._shown(entry, None) for entry in found]

    def _shown(self, entry: Entry, body: bytes | None) -> Entry:
        return replace(entry, body=body, cursor=self._numbers[entry.cursor - 1])

    def runs(self, *, after: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, int]]:
        with self._open():
            return self._index.runs(after=after, limit=limit)

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._open():
            known = list(self._index.objects(ids))
            found = self._home.wait(self._load(_OBJECTS, [oid.hex() for oid in known])) if known else []
            return {oid: open_object(self.name, key, said) for oid, (key, said) in zip(known, found, strict=True)}

    def object_ids(self, *, after: bytes | None = None, limit: int = 10000) -> list[bytes]:
        with self._open():
            return self._index.object_ids(after=after, limit=limit)

    def attachments(self, run: bytes, *, lo: int = 0, hi: int = MAX_REV) -> list[Attachment]:
        with self._open():
            return self._index.attachments(run, lo=lo, hi=hi)

    # -- leases --------------------------------------------------------------------------------------------

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:  # noqa: ARG002 - there are none
        self._no_lease()

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:  # noqa: ARG002 - the same
        self._no_lease()

    def release(self, run: bytes, owner: str, epoch: int) -> bool:  # noqa: ARG002 - the same
        self._no_lease()

    def lease(self, run: bytes) -> Lease | None:
        """None: there was never one to be had."""
        with self._open():
            return self._index.lease(run)

    def _no_lease(self) -> NoReturn:
        with self._open():
            raise Unsupported(f"{self.name}: a lease", why="load and save cannot tell two owners apart")

    # -- space ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        with self._open():
            return self._index.mark()

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int:
        with self._open():
            before = self._index.objects(ids)
            gone = self._index.discard(ids, mark=mark)
            dead = before.keys() - self._index.objects(list(before)).keys()
            self._home.wait(self._delete(dead))
            return gone

    async def _delete(self, ids: Iterable[bytes]) -> None:
        for oid in ids:
            await self._storage.delete(_OBJECTS, oid.hex())

    def size(self) -> int:
        """Loads everything: a storage of four methods does not say how large it is."""
        with self._open():
            return self._home.wait(self._measure())

    async def _measure(self) -> int:
        total = 0
        for category in (_LOG, _OBJECTS, _ATTACHED):
            for _, found in await self._load(category, await self._keys(category)):
                said = cast("dict[str, object]", found) if isinstance(found, dict) else {}
                total += sum(len(str(key)) + len(str(value)) for key, value in said.items())
        return total

    def compact(self) -> None:
        """Nothing to give back: what was dropped is deleted already."""
        with self._open():
            pass

    def check(self) -> list[str]:
        with self._open():
            return []

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._ready:
                # On the loop's own thread this cannot be told to the storage. The next process finds out anyway.
                with suppress(Error):
                    self._home.wait(self._leave())
            self._here.discard(self._nonce)
            self._home.end()

    async def _leave(self) -> None:
        if await self._owner() == self._nonce:
            await self._storage.delete(*_OWNER)


def _object_ids(keys: Iterable[str]) -> Iterable[bytes]:
    for key in keys:
        with suppress(ValueError):
            if len(key) == 2 * _ID:
                yield bytes.fromhex(key)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
