"""What to begin with: the bytes of real stores, which hold every type, operation and shape that there is."""

from __future__ import annotations

import atexit
import itertools
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden.content import states

from knotline.backends import EncryptedBackend
from knotline.backends.contract import MAX_REV, Attachment, Entry
from knotline.backends.encrypted_ring import RING
from knotline.backends.files import FilesBackend
from knotline.codec.bodies import Delta, Root
from knotline.store import Store, export_run, export_store
from knotline.store.reading import Sight
from knotline.testing import RawOracle

__all__ = ["KEY", "Bytes", "beside", "encrypted", "files", "pages", "plain", "portable", "small"]

KEY = bytes(range(32))


@dataclass
class Bytes:
    """By what they are; `objects` are as they are stored, by id."""

    heads: list[bytes] = field(default_factory=list[bytes])
    bodies: list[bytes] = field(default_factory=list[bytes])
    payloads: list[bytes] = field(default_factory=list[bytes])
    trees: list[bytes] = field(default_factory=list[bytes])
    ops: list[bytes] = field(default_factory=list[bytes])
    objects: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    attached: list[Attachment] = field(default_factory=list[Attachment])
    keys: list[bytes] = field(default_factory=list[bytes])


def _filled(store: Store) -> None:
    for n, state in enumerate(itertools.islice(states(), 90)):
        store.append("all", state, note={"step": n}, labels=[f"step={n}"])
    store.fork("all", "fork", rev=40)
    store.append("fork", {"left": "all", "noise": [f"{n:x}" * 40 for n in range(70)]})
    store.rollback("all", 50)
    store.undo("all")
    store.annotate("all", {"why": "corpus"})
    store.put("config", "settings", {"theme": "dark"})
    store.attach("all", 0, "task", 0, {"result": (1, 2)})
    store.append("short", {"n": 0})
    for n in range(1, 40):
        store.append("short", {"n": n})
    store.pin("short", 20, why="kept")
    store.prune("short", keep_from=39)
    store.append("gone", {})
    store.delete("gone")


def _ticks() -> Any:
    ticks = itertools.count(1_700_000_000_000_000)
    return lambda: next(ticks)


def small(oracle: RawOracle) -> Store:
    """A seal, deltas, a fork, moves, a document, an attachment: one of each, so that a whole store is quick to read."""
    store = Store(oracle, clock=_ticks(), entropy=lambda n: b"\x05" * n)
    state: dict[str, Any] = {"n": 0, "log": [], "large": "large " * 700}
    for n in range(3):
        state = {**state, "n": n, "log": [*state["log"], {"text": f"{n} " * 40}]}
        store.append("a", state, labels=["even"] if n % 2 == 0 else [])
    store.seal("a")
    store.append("a", {**state, "n": 4})
    store.fork("a", "f", rev=1)
    store.rollback("a", 1)
    store.put("config", "x", {"v": 1})
    store.attach("a", 3, "task", 0, {"result": "right"})
    return store


@cache
def plain() -> Bytes:
    found = Bytes()
    oracle = RawOracle()
    store = Store(oracle, clock=_ticks(), entropy=lambda n: b"\x05" * n)
    _filled(store)
    for key, head in oracle.runs(limit=MAX_REV):
        found.keys.append(key)
        found.attached += oracle.attachments(key)
        sight = Sight()
        for entry in oracle.entries(key, 0, head):
            opened = store.reader.open(entry, sight)
            found.heads.append(entry.head)
            found.bodies.append(entry.body or b"")
            found.payloads.append(opened.payload)
            if isinstance(opened.body, Root):
                found.trees.append(opened.body.tree)
            elif isinstance(opened.body, Delta):
                found.ops.append(opened.body.ops)
    found.objects = dict(oracle.blobs)
    return found


@cache
def encrypted() -> tuple[EncryptedBackend, list[Entry], dict[bytes, bytes], list[tuple[bytes, Attachment]], bytes, str]:
    """The open store, its entries, objects by their real ids, attachments by hidden run, the slots, a hidden owner."""
    inner = RawOracle()
    backend = EncryptedBackend(inner, KEY)
    store = Store(backend)
    store.append("run", {"secret": "x" * 200, "large": "large " * 900}, labels=["one"])
    store.append("run", {"secret": "y" * 200, "large": "large " * 900})
    store.attach("run", 0, "task", 0, "value")
    backend.acquire(b"rrun", "owner", 60)
    hidden = next(kept.save.run for kept in inner.log if kept.save.run != RING)
    ring = inner.head(RING)
    assert ring is not None
    return (
        backend,
        inner.entries(hidden, 0, MAX_REV),
        {oid: inner.blobs[backend._cipher.hidden_ids([oid])[0]] for oid in backend.object_ids()},
        [(hidden, each) for each in inner.attachments(hidden)],
        ring.head,
        inner.leases[hidden].owner,
    )


_rooms = ExitStack()
atexit.register(_rooms.close)


@cache
def files() -> Path:
    """A store of files."""
    folder = Path(_rooms.enter_context(TemporaryDirectory(prefix="fuzz-"))) / "store"
    with Store(FilesBackend(folder), clock=_ticks(), entropy=lambda n: b"\x05" * n) as store:
        _filled(store)
    return folder


@cache
def pages() -> list[bytes]:
    return [path.read_bytes() for path in sorted((files() / "log").glob("*/*.json"))]


@cache
def beside() -> list[bytes]:
    return [path.read_bytes() for path in sorted((files() / "log").glob("*/attached/*"))]


@cache
def portable() -> list[bytes]:
    room = Path(_rooms.enter_context(TemporaryDirectory(prefix="fuzz-")))
    store = small(RawOracle())
    export_run(store, "a", room / "run.knot")
    export_store(store, room / "store.knot")
    export_store(store, room / "sealed.knot", key=KEY)
    return [path.read_bytes() for path in sorted(room.iterdir())]
