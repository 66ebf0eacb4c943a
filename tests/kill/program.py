"""Programs that are killed, stopped and traced. Started as `python -P program.py <verb> <json>`; they import little.

Whatever was acknowledged is told on stdout, a line of JSON each, before the program goes on; a mistake that a
program finds by itself is a line with `error`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from knotline.backends import Backend, Done, Outcome, Save, SqliteBackend, Write
from knotline.backends.files import FilesBackend
from knotline.codec import encode, private
from knotline.errors import Conflict, Fenced, LeaseHeld, NotFound, NothingToUndo
from knotline.store import Store, sweep, verify
from knotline.store.gate import Gate


def crc(value: object) -> int:
    return crc32(encode(private(value)))


def tell(**said: object) -> None:
    """One write, so that a kill cannot leave half a line behind a whole one."""
    os.write(1, json.dumps(said).encode() + b"\n")


# -- planted mutants -----------------------------------------------------------------------------------------


class Wrapped:
    """A backend around a backend; mutants change `commit`."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Early(Wrapped):
    """Acknowledges first and writes a little later, on a thread: as fast as a cache, and as forgetful."""

    def __init__(self, inner: Backend, *, delay: float = 0.02) -> None:
        super().__init__(inner)
        self.delay = delay
        self.waiting: list[Write] = []
        self.lock = threading.Lock()
        self.heads: dict[tuple[bytes, int], Save] = {}
        threading.Thread(target=self._flush, daemon=True).start()

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        with self.lock:
            self.waiting += writes
        return [Done() for _ in writes]

    def _flush(self) -> None:
        while True:
            time.sleep(self.delay)
            with self.lock:
                waiting, self.waiting = self.waiting, []
            if waiting:
                self.inner.commit(waiting)


class Late(Wrapped):
    """Objects in a second commit, after the entry that needs them."""

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for write in writes:
            if not isinstance(write, Save) or not write.objects:
                outcomes += self.inner.commit([write], sync=sync)
                continue
            bare = Save(write.run, write.rev, write.head, write.body, write.tokens, (), write.drop, write.recast)
            outcome = self.inner.commit([bare], sync=sync)[0]
            if isinstance(outcome, Done):
                head = self.inner.head(b"r-objects")
                rev = 0 if head is None else head.rev + 1
                side = Save(b"r-objects", rev, os.urandom(16), b"", (), write.objects, rev)
                outcome = self.inner.commit([side], sync=sync)[0]
            outcomes.append(outcome)
        return outcomes


MUTANTS: dict[str, Callable[[Backend], Any]] = {"": lambda backend: backend, "early": Early, "late": Late}


def backend_at(path: str | os.PathLike[str], *, timeout: float = 30.0) -> Backend:
    """A file that ends in .db is SQLite's; anything else is a folder of files."""
    return SqliteBackend(path, timeout=timeout) if str(path).endswith(".db") else FilesBackend(path)


def open_backend(path: str, *, mutant: str = "", timeout: float = 30.0) -> Any:
    return MUTANTS[mutant](backend_at(path, timeout=timeout))


# -- writers that are killed ------------------------------------------------------------------------------------


def changed(value: Any, dice: random.Random) -> dict[str, Any]:
    """Another state: mostly more of the same, sometimes an edit in the middle, sometimes a large value."""
    value = dict(value) if isinstance(value, dict) else {"n": -1, "log": []}
    value["n"] += 1
    log = list(value["log"])
    log += [{"role": "user", "text": dice.randbytes(dice.randrange(120)).hex()} for _ in range(dice.randrange(4))]
    luck = dice.random()
    if luck < 0.1 and log:
        log[dice.randrange(len(log))] = {"edited": value["n"]}
    elif luck < 0.15:
        del log[: len(log) // 2]
    elif luck < 0.3:
        value["blob"] = dice.randbytes(4500 + dice.randrange(3000))
    elif luck < 0.35:
        value["map"] = {f"key {i}": dice.randrange(1000) for i in range(300)}
    value["log"] = log
    return value


def _current(store: Store, run: str) -> Any:
    try:
        return store.load(run)
    except NotFound:
        return None


def write_sync(path: str, *, seed: int, runs: int = 1, moves: bool = False, mutant: str = "") -> None:
    dice = random.Random(seed)
    store = Store(open_backend(path, mutant=mutant))
    values = {f"run {n}": _current(store, f"run {n}") for n in range(runs)}
    tell(ready=True)
    step = 0
    while True:
        step += 1
        run = f"run {dice.randrange(runs)}"
        luck = dice.random() if moves and values[run] is not None else 1.0
        if luck < 0.12:
            _move(store, run, dice, values)
            continue
        values[run] = changed(values[run], dice)
        header = store.append(run, values[run], labels=[f"step {step % 7}"])
        tell(run=run, rev=header.rev, crc=crc(values[run]))


def _move(store: Store, run: str, dice: random.Random, values: dict[str, Any]) -> None:
    """Rollback, undo, fork, prune, documents, sweep: each tells the state that is current after it."""
    luck = dice.randrange(7)
    try:
        if luck == 0:
            back = [header.rev for header, _ in zip(store.lineage(run), range(6), strict=False)]
            header = store.rollback(run, dice.choice(back))
        elif luck == 1:
            header = store.undo(run)
        elif luck == 2:
            name = f"{run} fork {os.getpid()} {dice.randrange(1 << 30)}"
            header = store.fork(run, name)
            tell(run=name, rev=header.rev, crc=crc(store.load(name)))
            return
        elif luck == 3:
            floor = max(0, store.header(run).rev - 60)
            tell(prune=run, floor=floor)
            header = store.prune(run, keep_from=floor)
        elif luck == 4:
            value = {"n": dice.random(), "large": dice.randbytes(5000)}
            tell(putting=run, crc=crc(value))
            store.put("config", run, value)
            tell(document=run, crc=crc(value))
            return
        elif luck == 5:
            sweep(store)
            return
        else:
            header = store.seal(run)
    except NothingToUndo:
        return
    values[run] = store.load(run)
    tell(run=run, rev=header.rev, crc=crc(values[run]))


def write_async(path: str, *, seed: int, runs: int = 1, mutant: str = "") -> None:
    store = Store(open_backend(path, mutant=mutant))
    first = {f"run {n}": _current(store, f"run {n}") for n in range(runs)}

    async def one(gate: Gate, run: str) -> None:
        dice = random.Random(f"{seed} {run}")
        value = first[run]
        while True:
            value = changed(value, dice)
            header = await gate.append(run, value)
            tell(run=run, rev=header.rev, crc=crc(value))

    async def main() -> None:
        gate = Gate(store)
        await asyncio.gather(*[one(gate, run) for run in first])

    tell(ready=True)
    asyncio.run(main())


# -- many writers at once -----------------------------------------------------------------------------------------


def append_items(path: str, *, worker: int, each: int, run: str, expected: bool, mutant: str = "") -> None:
    """Adds its own numbered items to a list in the state; other processes do the same."""
    store = Store(open_backend(path, mutant=mutant))
    conflicts = 0
    facts: list[tuple[int, int]] = []
    for n in range(each):
        while True:
            header = _head(store, run)
            value = {"items": []} if header is None else store.load(run, header.rev)
            value["items"].append([worker, n])
            try:
                known = -1 if header is None else header.rev
                done = store.append(run, value, expected=known if expected else None, labels=[f"w{worker}"])
            except Conflict:
                conflicts += 1
                continue
            facts.append((done.rev, crc(value)))
            break
    store.close()
    tell(worker=worker, facts=facts, conflicts=conflicts)


def _head(store: Store, run: str) -> Any:
    try:
        return store.header(run)
    except NotFound:
        return None


def append_own(path: str, *, worker: int, each: int) -> None:
    store = Store(open_backend(path))
    value: Any = None
    dice = random.Random(worker)
    facts: list[tuple[int, int]] = []
    for _ in range(each):
        value = changed(value, dice)
        facts.append((store.append(f"own {worker}", value).rev, crc(value)))
    store.close()
    tell(worker=worker, facts=facts, conflicts=0)


def read(path: str, *, runs: list[str], documents: list[str], check: bool) -> None:
    """Loads heads, older states and documents until stdin closes. What it reads must agree with itself."""
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    store = Store(open_backend(path))
    loads = verified = 0
    seen: dict[str, int] = {}
    tell(ready=True)
    while not stop.is_set():
        for run in runs:
            header = _head(store, run)
            if header is None:
                continue
            assert header.rev >= seen.get(run, -1), f"{run} went back from {seen[run]} to {header.rev}"
            seen[run] = header.rev
            value = store.load(run)
            loads += 1
            if "check" in value:
                assert value["check"] == crc(value["data"]), "a torn read"
            if "items" in value:
                for worker in {worker for worker, _ in value["items"]}:
                    own = [n for w, n in value["items"] if w == worker]
                    assert own == sorted(set(own)), "a torn list"
        for name in documents:
            try:
                value = store.get("config", name)
            except NotFound as error:
                if error.kind != "config":
                    raise
            else:
                assert value["check"] == crc(value["data"]), "a torn document"
                loads += 1
        if check:
            report = verify(store)
            assert report.clean, f"verify beside writers: {report.damage}"
            verified += 1
    store.close()
    tell(loads=loads, verified=verified)


def churn(path: str, *, run: str, seconds: float, seed: int) -> None:
    """Saves states that carry their own checksum, with objects that come and go."""
    dice = random.Random(seed)
    store = Store(open_backend(path))
    until = time.monotonic() + seconds
    saves = 0
    last: tuple[int, int] | None = None
    while time.monotonic() < until:
        data = {"n": saves, "blob": dice.randbytes(5000), "same": "s" * 6000, "log": list(range(dice.randrange(200)))}
        value = {"data": data, "check": crc(data)}
        last = store.append(run, value).rev, crc(value)
        saves += 1
        if saves % 5 == 0:
            store.put("config", run, value)
    store.close()
    tell(saves=saves, last=last, run=run)


def prune_loop(path: str, *, runs: list[str], seconds: float, keep: int) -> None:
    store = Store(open_backend(path))
    until = time.monotonic() + seconds
    pruned = swept = 0
    while time.monotonic() < until:
        for run in runs:
            header = _head(store, run)
            if header is not None:
                store.prune(run, keep_from=max(0, header.rev - keep))
                pruned += 1
        swept += sweep(store).objects
    store.close()
    tell(pruned=pruned, swept=swept)


# -- leases --------------------------------------------------------------------------------------------------------


def own(path: str, *, run: str, owner: str, ttl: float, pause: float, fenced: bool = True) -> None:
    """Holds the run and writes under the lease until somebody fences it."""
    store = Store(open_backend(path))
    while True:
        try:
            held = store.acquire(run, owner, ttl=ttl)
            break
        except LeaseHeld:
            time.sleep(0.01)
    tell(epoch=held.epoch)
    n = 0
    try:
        while True:
            header = store.append(run, {"owner": owner, "n": n}, held=held if fenced else None)
            tell(rev=header.rev, epoch=header.epoch)
            n += 1
            time.sleep(pause)
    except Fenced as error:
        tell(fenced=True, epoch=error.epoch, current=error.current)


# -- system calls ---------------------------------------------------------------------------------------------------


def marked(path: str, *, scene: str) -> None:
    """One scene between two calls of getppid, which nothing else here makes: what is traced is what is between."""
    store = Store(open_backend(path))
    act = SCENES[scene]
    act_before = BEFORE.get(scene)
    if act_before is not None:
        act_before(store)
    tell(ready=True)
    os.getppid()
    told = act(store)
    os.getppid()
    tell(done=told)
    store.close()


def _grown(n: int) -> dict[str, Any]:
    return {"n": n, "log": [{"text": f"message {i}" * 5} for i in range(60 + n)], "file": f"{n} " * 3000}


def _fill(store: Store, saves: int) -> None:
    for n in range(saves):
        store.append("r", {**_grown(0), "n": n, "log": _grown(n)["log"]})


def _loads(store: Store, run: str = "r") -> list[Any]:
    header = store.header(run)
    return [run, header.rev, crc(store.load(run))]


BEFORE: dict[str, Callable[[Store], object]] = {
    "save": lambda s: _fill(s, 3),
    "seal": lambda s: _fill(s, 32),
    "checkpoint": lambda s: (_fill(s, 3), s.append("x", {"blob": random.Random(1).randbytes(200_000)})),
    "prune": lambda s: _fill(s, 40),
    "fork": lambda s: _fill(s, 5),
    "document": lambda s: s.put("config", "x", {"v": 1}),
    "delete": lambda s: (_fill(s, 3), s.append("x", {"blob": "y" * 9000}), s.delete("x")),
}

SCENES: dict[str, Callable[[Store], Any]] = {
    "save": lambda s: [["r", s.append("r", _grown(3), labels=["l"]).rev, crc(_grown(3))]],
    "seal": lambda s: [["r", s.append("r", {**_grown(32), "more": ["b" * 5000]}).rev]],
    "checkpoint": lambda s: [
        ["x", s.append("x", {"blob": random.Random(2).randbytes(150_000)}).rev],
        ["r", s.append("r", _grown(3)).rev, crc(_grown(3))],
    ],
    "prune": lambda s: [["r", s.prune("r", keep_from=35).rev]],
    "fork": lambda s: [["f", s.fork("r", "f").rev]],
    "document": lambda s: [["config/x", s.put("config", "x", {"v": 2, "large": "w" * 5000}).rev]],
    "delete": lambda s: [["swept", sweep(s).objects]],
}


VERBS: dict[str, Callable[..., None]] = {
    "sync": write_sync,
    "async": write_async,
    "items": append_items,
    "own items": append_own,
    "read": read,
    "churn": churn,
    "prune": prune_loop,
    "own": own,
    "marked": marked,
}


def main() -> None:
    verb, options = sys.argv[1], json.loads(sys.argv[2])
    try:
        VERBS[verb](options.pop("path"), **options)
    except Exception as error:
        tell(error=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
