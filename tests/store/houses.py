"""Stores with something of everything, and what two of them must have in common: shared by the tests of moving."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.checkpoint.strangers import DictStorage

from knotline.backends import Backend, EncryptedBackend, MemoryBackend, SqliteBackend
from knotline.checkpoint import AdapterBackend
from knotline.codec import open_piece, seal_of
from knotline.store import Store, verify
from knotline.store.log import open_attachment
from knotline.store.names import document_name, run_key
from knotline.store.reading import Reader
from knotline.testing import FakeClock, RawOracle, StrictBackend

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))

PLACES: dict[str, Callable[[Path, str], Backend]] = {
    "memory": lambda _, __: MemoryBackend(),
    "sqlite": lambda folder, name: SqliteBackend(folder / f"{name}.db"),
    "encrypted": lambda folder, name: EncryptedBackend(SqliteBackend(folder / f"{name}-sealed.db"), KEY),
    "four methods": lambda _, __: AdapterBackend(DictStorage()),
}


def message(n: int) -> dict[str, Any]:
    return {"role": "user", "text": f"message {n} " + random.Random(n).randbytes(120).hex(), "ok": True}


def furnish(store: Store, *, turns: int = 70) -> None:
    """Sealed and recast runs, pruned ones, forks of forks, deleted runs, pins, labels, attachments, documents."""
    log: list[dict[str, Any]] = []
    for n in range(turns):
        log += [message(2 * n), message(2 * n + 1)]
        state = {"n": n, "log": log, "file": f"file {n // 20} " + "lorem ipsum " * 450, "odd": [-0.0, (1, 2), None]}
        store.append("long", state, labels=[f"turn={n % 7}", "l"], note={"step": n})
        store.append("small", {"n": n, "log": log[-3:]}, labels=["l"])
    middle = turns // 2
    store.fork("long", "fork", rev=middle)
    store.append("fork", {"n": -1, "log": log[:middle]})
    store.fork("fork", "fork of fork")
    store.append("fork of fork", {"n": -2, "log": [*log[:middle], message(-1)]})
    store.rollback("small", 10)
    store.append("small", {"n": 10, "branch": True})
    store.undo("small")
    for n in range(40):
        store.append("pruned", {"n": n, "log": log[: n + 60], "big": "b" * 5000 + str(n // 10)})
    store.pin("pruned", 35, why="a good one")
    store.prune("pruned", keep_from=37)
    store.append("pruned", {"n": 99, "log": log[:80]})
    store.append("origin", {"kept": "for its fork", "big": "o" * 6000})
    store.fork("origin", "orphan")
    store.append("origin", {"more": 1})
    store.delete("origin")
    store.append("gone", {"big": "z" * 9000})
    store.delete("gone")
    store.append("revived", {"v": 1})
    store.delete("revived")
    store.fork("small", "revived")
    for n in range(5):
        store.put("config", "main", {"v": n, "large": "large " * 900})
    store.put("config", "../x", {"v": "odd name"})
    store.put("session", "s", [1, 2])
    store.remove("session", "s")
    store.attach("long", 3, "task", 0, {"result": 1})
    store.attach("long", turns - 1, "task", -7, {"result": "y" * 3000})
    store.attach("long", turns + 5, "not yet", 2, None)
    store.append("run \udc80 odd", {"surrogate": "\udc80"})


def house(backend: Backend | None = None, *, turns: int = 70) -> Store:
    """Equal to any other that was made here: time and writers are the same."""
    ticks = itertools.count(1_000_000)
    at = MemoryBackend(clock=FakeClock()) if backend is None else backend
    store = Store(at, clock=lambda: next(ticks), entropy=lambda size: bytes(range(size)))
    furnish(store, turns=turns)
    return store


def cottage() -> Store:
    """Little of everything: what every fault is tried on."""
    ticks = itertools.count(1_000_000)
    store = Store(MemoryBackend(clock=FakeClock()), clock=lambda: next(ticks), entropy=lambda size: bytes(range(size)))
    log = [message(n) for n in range(66)]
    for n in range(36):
        log.append(message(100 + n))
        store.append("long", {"n": n, "log": log, "file": "lorem ipsum " * 450}, labels=[f"turn={n % 3}"])
    store.fork("long", "fork", rev=30)
    store.append("fork", {"n": -1})
    for n in range(6):
        store.append("pruned", {"n": n, "big": "b" * 5000 + str(n // 2)})
    store.prune("pruned", keep_from=4)
    store.append("gone", 1)
    store.delete("gone")
    store.put("config", "main", {"large": "large " * 900})
    store.put("config", "main", {"large": "larger " * 900})
    store.attach("long", 3, "task", 0, {"result": 1})
    store.attach("long", 50, "not yet", 0, None)
    return store


@dataclass(frozen=True)
class Contents:
    """All that a copy promises to keep. `bodies` are as they rest; `meanings` their links and payloads."""

    order: list[tuple[bytes, int]]
    heads: dict[tuple[bytes, int], bytes]
    tokens: dict[tuple[bytes, int], tuple[int, ...]]
    meanings: dict[tuple[bytes, int], tuple[list[bytes], bytes]]
    bodies: dict[tuple[bytes, int], bytes]
    attached: dict[bytes, list[object]]
    objects: dict[bytes, bytes]

    def means(self, other: Contents) -> bool:
        """Equal but for how bodies are compressed, and the order in which runs were written."""
        mine = (self.heads, self.tokens, self.meanings, self.attached, self.objects)
        return mine == (other.heads, other.tokens, other.meanings, other.attached, other.objects)


def contents(backend: Backend) -> Contents:
    """By the contract alone; objects are those that entries lead to."""
    order: list[tuple[bytes, int]] = []
    beyond: int | None = None
    while page := backend.find(beyond=beyond, newest=False, limit=1000):
        order += [(entry.run, entry.rev) for entry in page]
        beyond = page[-1].cursor
    reader = Reader(backend)
    found = Contents(order, {}, {}, {}, {}, {}, {})
    for run, head in backend.runs(limit=10_000):
        for entry in backend.entries(run, 0, head):
            place = (run, entry.rev)
            opened = reader.open(entry)
            found.heads[place] = entry.head
            found.tokens[place] = entry.tokens
            found.bodies[place] = entry.body or b""
            found.meanings[place] = (opened.links, opened.payload)
            todo = [oid for oid in opened.links if oid not in found.objects]
            while todo:
                there = backend.objects(todo)
                assert set(there) == set(todo), "an object is missing"
                found.objects.update(there)
                deeper = {link for oid, stored in there.items() for link in open_piece(stored, oid.hex())[0]}
                todo = [oid for oid in deeper if oid not in found.objects]
        beside = backend.attachments(run)
        for each in beside:
            open_attachment(run, each)
        found.attached[run] = list(beside)
    return found


def recast_bodies(found: Contents) -> int:
    return sum(seal_of(body) is not None for body in found.bodies.values())


def clean(backend: Backend) -> None:
    report = verify(Store(backend))
    assert report.clean, report.damage


def strict_target() -> Backend:
    """The plainest target there is, under the eyes that see every breach of the contract."""
    return StrictBackend(RawOracle())


def cut_log(backend: MemoryBackend, run: str, rev: int) -> None:
    """Lose one entry, as no prune does."""
    rows = backend._runs[run_key(run)].rows
    gone = next(row for row in rows if row.rev == rev)
    rows.remove(gone)
    del backend._rows[gone.cursor]
    backend._all.remove(gone.cursor)
    for token in gone.tokens:
        backend._carriers[token].remove(gone.cursor)


def is_document(key: bytes) -> bool:
    return document_name(key) is not None
