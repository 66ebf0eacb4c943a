"""What must hold of a store whatever happens, as functions of how to open it: tests and planted mutants share them.

A scenario raises `AssertionError` (or the store's own error) when the store breaks a promise.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from zlib import crc32

from knotline.backends import Backend, MemoryBackend, Outcome, Write
from knotline.codec import encode, private
from knotline.errors import Conflict, Fenced, NotFound, Unavailable, Unstorable
from knotline.records import NOWHERE, Header
from knotline.store import Store, sweep, verify
from knotline.store.gate import Gate
from knotline.store.log import Held
from knotline.store.names import document_name, is_run, run_key, run_name
from knotline.testing import FakeClock, FaultyBackend, Plan, StrictBackend

TTL = 30.0
NEVER = Plan(at=1 << 60)
# Read at import: while tests run, no setting of the developer's is visible.
_COUNTS = os.environ.get("KNOTLINE_COUNT")


def count(what: str, number: int) -> None:
    """For the soak's report: one line into the file that it names."""
    if _COUNTS:
        with open(_COUNTS, "a", encoding="utf-8") as file:
            file.write(f"{what} {number}\n")


def crc(value: object) -> int:
    return crc32(encode(private(value)))


# -- what is in a store ------------------------------------------------------------------------------------


@dataclass
class View:
    """Visible values by run and document, values by revision, and what stands beside them."""

    heads: dict[str, int | None] = field(default_factory=dict[str, int | None])
    states: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    documents: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    attached: set[tuple[str, int, bytes, int, int]] = field(default_factory=set[tuple[str, int, bytes, int, int]])
    pins: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def visible(self) -> tuple[object, ...]:
        return self.heads, self.documents, self.attached


def look(backend: Backend, *, also: Iterable[tuple[str, int]] = (), stride: int = 8) -> View:
    """Everything, through a store that knows nothing yet. Of logs every `stride`-th state, the last, `also`."""
    wanted = set(also)
    store = Store(backend)
    view = View()
    for key, head in backend.runs():
        said = document_name(key)
        name = run_name(key)
        top = store.reader.head(key)
        assert top is not None
        if said is not None:
            if top.pos != NOWHERE:
                view.documents[said] = crc(store.get(*said))
            continue
        if not is_run(key):
            continue
        view.heads[name] = None if top.op == "delete" or top.pos == NOWHERE else crc(store.load(name))
        view.pins[name] = tuple(sorted(store.pins(name)))
        for entry in backend.entries(key, 0, head, bodies=False):
            header = store.reader.header(key, entry.rev)
            if header.has_state and (entry.rev % stride == 0 or entry.rev > head - 2 or (name, entry.rev) in wanted):
                view.states[name, entry.rev] = crc(store.reader.load(key, header).tree)
        for found, value in store.attachments(name):
            view.attached.add((name, found.rev, found.task, found.idx, crc(value)))
    return view


def clean(backend: Backend) -> None:
    report = verify(Store(backend))
    assert report.clean, report.damage


# -- a store with something of everything, and what can be done to it --------------------------------------------


def state(n: int) -> dict[str, Any]:
    """Long enough for leaves, with values that become objects; the next one differs in a few places."""
    return {
        "n": n,
        "log": [{"role": "user", "text": f"message {i} " + "x" * 40, "ok": True} for i in range(60 + n)],
        "file": f"file {n // 20} " + "lorem ipsum " * 450,
        "done": [n, -0.0, None, (1, 2)],
    }


def prepare(store: Store, clock: FakeClock) -> None:
    """Run `a` is one save before its seal, `b` has been rolled back, `c` undone, `p` sealed, `dead` left objects."""
    value = state(0)
    for n in range(32):
        store.append("a", state(n) if n % 20 == 0 else {**value, "n": n, "log": state(n)["log"]}, labels=["l"])
        value = value if n % 20 else state(n)
    for run in ("b", "c"):
        for n in range(5):
            store.append(run, {"run": run, "n": n, "blob": "y" * 300})
        store.rollback(run, 1)
    store.undo("c")
    store.append("dead", {"big": "z" * 9000, "parts": ["p" * 5000, "q" * 6000]})
    store.delete("dead")
    for n in range(6):
        store.append("p", {"run": "p", "n": n, "blob": "q" * 300})
        if n == 2:
            store.seal("p")
    store.put("config", "old", {"v": 1})
    store.attach("a", 3, "task", 0, {"result": 1})
    store.acquire("b", "first", ttl=TTL)
    clock.advance(TTL + 1)


@dataclass(frozen=True)
class Operation:
    """`again` is what a caller does who does not know whether it happened; `moves` may be half done in `pins` only."""

    act: Callable[[Store], object]
    again: Callable[[Store, View], object] | None = None
    after: Callable[[Store], None] = lambda store: None


NEW_A = {"n": 99, "log": state(40)["log"], "file": "another " * 900, "more": ["m" * 4500, {"k": "v" * 5000}]}
NEW_B = {"run": "b", "n": 99, "list": [1, 2, 3]}


def _fork_again(store: Store, now: View) -> None:
    # The store cannot tell our own lost fork from somebody else's: the caller reads and sees.
    if "f" in now.heads:
        try:
            store.fork("a", "f")
        except Conflict:
            return
        raise AssertionError("a run was forked over")
    store.fork("a", "f")


def _step_again(verb: str, run: str, rev: int) -> Callable[[Store, View], None]:
    def again(store: Store, now: View) -> None:
        # An undo is relative: whoever does not know whether it happened reads the head first.
        if store.header(run).rev == rev:
            getattr(store, verb)(run)

    return again


def _delete_again(store: Store, now: View) -> None:
    with suppress(NotFound):
        store.delete("b")


def _fences(store: Store) -> None:
    """Whoever held `b` before can write no more."""
    before = Held("b", "first", 1, 1, 0.0)
    try:
        store.append("b", {"stale": True}, held=before)
    except Fenced:
        return
    raise AssertionError("a stale owner wrote")


def _swept(store: Store) -> None:
    assert sweep(store).objects == 0


def _prune(store: Store) -> None:
    assert store.prune("p", keep_from=5).note["floor"] == 3, "nothing was dropped"


OPERATIONS: dict[str, Operation] = {
    "append": Operation(lambda s: s.append("b", NEW_B, note={"step": 1}, labels=["x"])),
    "append new": Operation(lambda s: s.append("fresh", NEW_A)),
    "append and seal": Operation(lambda s: s.append("a", NEW_A, labels=["x"])),
    "seal": Operation(lambda s: s.seal("a")),
    "fork": Operation(lambda s: s.fork("a", "f"), _fork_again),
    "rollback": Operation(lambda s: s.rollback("a", 8)),
    "undo": Operation(lambda s: s.undo("b"), _step_again("undo", "b", 6)),
    "redo": Operation(lambda s: s.redo("c"), _step_again("redo", "c", 6)),
    "annotate": Operation(lambda s: s.annotate("b", {"why": "because"}, labels=["note"])),
    "pin": Operation(lambda s: s.pin("b", 3, why="keep"), after=lambda store: _pinned(store=store)),
    "prune": Operation(_prune),
    "delete": Operation(lambda s: s.delete("b"), _delete_again),
    "put": Operation(lambda s: s.put("config", "new", {"v": 2, "big": "w" * 6000})),
    "put over": Operation(lambda s: s.put("config", "old", {"v": 2})),
    "remove": Operation(lambda s: s.remove("config", "old")),
    "attach": Operation(lambda s: s.attach("a", 4, "task", 1, {"result": 2})),
    "take over": Operation(lambda s: s.acquire("b", "second", ttl=TTL), after=_fences),
    "sweep": Operation(sweep, after=_swept),
}


def _pinned(*, store: Store) -> None:
    assert store.pins("b") == {3: "keep"}


# -- places --------------------------------------------------------------------------------------------------


class Place(Protocol):
    """Somewhere a store can be opened, die and be opened again."""

    def open(self) -> Backend:
        """As the program opens it: this is what a mutant gets between."""
        ...

    def survivor(self) -> Backend:
        """What another process finds, now."""
        ...


Wrap = Callable[[Backend], Backend]


def same(backend: Backend) -> Backend:
    return backend


class InMemory:
    """Memory outlives the store above it, as a disk does. `wrap` goes between the store and the faults."""

    def __init__(self, wrap: Wrap = same, *, strict: bool = True) -> None:
        self.clock = FakeClock()
        self.memory = MemoryBackend(clock=self.clock)
        self.faults = FaultyBackend(StrictBackend(self.memory) if strict else self.memory, NEVER)
        self.wrap = wrap

    def open(self) -> Backend:
        return self.wrap(self.faults)

    def survivor(self) -> Backend:
        return self.memory

    def arm(self, plan: Plan) -> None:
        self.faults.plan = plan
        self.faults.calls = self.faults.injected = 0


# -- 1. a fault at every call ----------------------------------------------------------------------------------


def check_after(name: str, backend: Backend, old: View, new: View, *, acknowledged: bool) -> View:
    """Old or new and nothing else; everything acknowledged is there; nothing is damaged."""
    now = look(backend, also=old.states)
    if acknowledged:
        assert now.visible() == new.visible(), f"{name}: acknowledged, and it is not there"
    assert now.visible() in (old.visible(), new.visible()), f"{name}: neither old nor new"
    for place, value in old.states.items():
        if place in new.states:
            assert now.states.get(place) == value, f"{name}: {place} was lost"
    clean(backend)
    return now


def goes_on(backend: Backend, n: int) -> None:
    """A fresh store appends and loads, in runs that there were and in a new one."""
    store = Store(backend)
    for run in ("a", "b", f"another {n}"):
        value = {"fresh": n, "run": run, "list": list(range(70))}
        header = store.append(run, value)
        assert crc(store.load(run)) == crc(value)
        assert crc(store.load(run, header.rev)) == crc(value)


Kind = Literal["before", "after", "partial"]


def outcomes_of(operation: Operation, make: Callable[[], InMemory]) -> tuple[View, View]:
    """The view before and after, undisturbed."""
    place = make()
    store = Store(place.open())
    prepare(store, place.clock)
    old = look(place.survivor())
    operation.act(store)
    return old, look(place.survivor(), also=old.states)


def faults_at_every_call(
    name: str, kind: Kind, *, warm: bool, make: Callable[[], InMemory] = InMemory
) -> tuple[int, int]:
    """Returns how many faults were injected, and after how many of them it had happened nevertheless."""
    operation = OPERATIONS[name]
    old, new = outcomes_of(operation, make)
    injected = happened = 0
    for at in itertools.count(1):
        place = make()
        store = Store(place.open())
        prepare(store, place.clock)
        if not warm:
            store = Store(place.open())
        place.arm(Plan(at=at, kind=kind))
        acknowledged = True
        try:
            operation.act(store)
        except Unavailable:
            acknowledged = False
        struck = place.faults.injected
        place.arm(NEVER)
        assert acknowledged or struck, f"{name}: it failed without a fault"
        now = check_after(f"{name} {kind} {at}", place.survivor(), old, new, acknowledged=acknowledged)
        injected += struck
        happened += bool(struck) and now.visible() == new.visible() != old.visible()
        if not acknowledged:
            # The same store is told to do it again, and is not confused by what happened.
            if operation.again is None:
                operation.act(store)
            else:
                operation.again(store, now)
        check_after(f"{name} {kind} {at}, again", place.survivor(), old, new, acknowledged=True)
        operation.after(store)
        goes_on(place.survivor(), at)
        clean(place.survivor())
        if not struck:
            return injected, happened
    raise AssertionError


# -- 2. races and crashes of whole stores --------------------------------------------------------------------------


def no_update_is_lost(open_: Callable[[], Backend], *, writers: int = 2, each: int = 12) -> int:
    """Load, change, append with `expected`, again after a conflict: every item of every writer is there."""
    conflicts = 0
    backends = [open_() for _ in range(writers)]
    stores = [Store(backend) for backend in backends]
    stores[0].append("shared", {"items": []})
    todo = [list(range(each)) for _ in stores]
    # In one thread, interleaved so that every writer reads before any of them writes.
    while any(todo):
        read: list[tuple[int, int, Any]] = []
        for number, store in enumerate(stores):
            if todo[number]:
                header = store.header("shared")
                read.append((number, header.rev, store.load("shared", header.rev)))
        for number, rev, value in read:
            value["items"].append([number, todo[number][0]])
            try:
                stores[number].append("shared", value, expected=rev)
            except Conflict:
                conflicts += 1
            else:
                todo[number].pop(0)
    found = Store(open_()).load("shared")["items"]
    assert sorted(map(tuple, found)) == [(w, n) for w in range(writers) for n in range(each)], "an update was lost"
    for number in range(writers):
        assert [n for w, n in found if w == number] == list(range(each))
    assert conflicts, "nobody lost a race: nothing was tried"
    return conflicts


def acknowledged_survives(
    open_: Callable[[], Backend], survivor: Callable[[], Backend], *, saves: int = 40, every: int = 1
) -> int:
    """Whatever an append has returned for is there for whoever comes after the process has vanished."""
    store = Store(open_())
    facts: dict[tuple[str, int], int] = {}
    value = state(0)
    checked = 0
    for n in range(saves):
        run = "ab"[n % 2]
        value = {**value, "n": n, "log": [*value["log"], {"n": n}], "big": "b" * (5000 + n)}
        header = store.append(run, value)
        facts[run, header.rev] = crc(value)
        if n % every == 0 or n == saves - 1:
            found = survivor()
            other = Store(found)
            head = other.reader.head(run_key(run))
            assert head is not None, "acknowledged, and the run is not there"
            assert head.rev >= header.rev, f"acknowledged {header.rev}, found {head.rev}"
            assert crc(other.load(run, header.rev)) == facts[run, header.rev]
            checked += 1
            if n == saves - 1:
                for place, expected in facts.items():
                    assert crc(other.load(*place)) == expected
                clean(found)
    return checked


# -- 3. the crossing from asyncio ----------------------------------------------------------------------------------


class Hold:
    """Lets the first commit wait until the test has queued the others: they become one batch."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.release = threading.Event()
        self.batches: list[int] = []
        self.entered = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        if not self.batches:
            self.entered.set()
            assert self.release.wait(20)
        self.batches.append(len(writes))
        return self.inner.commit(writes, sync=sync)


def group(
    make: Callable[[], tuple[Backend, Callable[[], Backend], Callable[[Plan], None], Callable[[], int]]],
    *,
    gate_of: Callable[[Store], Gate] = Gate,
    runs: int = 100,
    keep: int = 40,
) -> dict[str, int]:
    """Saves of many runs in one batch: each outcome is its own, whatever becomes of its neighbours."""
    backend, survivor, arm, injected = make()
    first = Store(backend)
    for n in range(runs):
        first.append(f"run {n}", {"n": n, "old": True})
    hold = Hold(backend)
    store = Store(hold)  # pyright: ignore[reportArgumentType]
    expected_conflicts = set(range(3, runs, 11))
    silent_conflicts = set(range(5, runs, 13)) - expected_conflicts
    unstorable, cancelled = 7, runs - 2
    tally: dict[str, int] = {}

    def value(n: int) -> dict[str, Any]:
        told = {"n": n, "new": True, "list": list(range(n))}
        return {**told, "bad": object()} if n == unstorable else told

    async def main() -> list[Header | BaseException]:
        gate = gate_of(store)
        try:
            for n in range(runs):
                store.warm(run_key(f"run {n}"))
            # Somebody else moves some of the heads that this store holds warm.
            for n in expected_conflicts | silent_conflicts:
                first.append(f"run {n}", {"n": n, "other": True})
            opener = asyncio.create_task(gate.append("opener", {"x": 1}))
            await asyncio.to_thread(hold.entered.wait, 20)
            tasks = [
                asyncio.create_task(gate.append(f"run {n}", value(n), expected=0 if n in expected_conflicts else None))
                for n in range(runs)
            ]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            tasks[cancelled].cancel()
            arm(Plan(at=2, kind="partial", only="commit", keep=keep))
            hold.release.set()
            await opener
            results = await asyncio.gather(*tasks, return_exceptions=True)
            # The run of the cancelled caller can go on, as can those that failed.
            for n in (cancelled, unstorable, *[n for n, it in enumerate(results) if isinstance(it, Unavailable)][:5]):
                header = await gate.append(f"run {n}", {"n": n, "later": True})
                assert crc(Store(survivor()).load(f"run {n}", header.rev)) == crc({"n": n, "later": True})
            return results
        finally:
            gate.close()

    results = asyncio.run(main())
    assert max(hold.batches) > runs // 2, f"no batch to speak of: {hold.batches}"
    found = Store(survivor())
    for n, result in enumerate(results):
        run = f"run {n}"
        states = [crc(found.load(run, h.rev)) for h in found.lineage(run)] if n != unstorable else []
        stored = n != unstorable and crc(value(n)) in states
        if n == unstorable:
            kind = "unstorable"
            assert isinstance(result, Unstorable), result
            assert found.header(run).rev == 1
        elif n == cancelled:
            kind = "cancelled"
            assert isinstance(result, asyncio.CancelledError), result
        elif isinstance(result, Conflict):
            kind = "conflict"
            assert n in expected_conflicts
            assert (result.expected, result.found) == (0, 1)
            assert not stored
        elif isinstance(result, Unavailable):
            kind = "failed"
            assert not stored, f"{run}: failed, and it is there"
        else:
            kind = "written"
            assert isinstance(result, Header), result
            assert n not in expected_conflicts, f"{run}: a conflict was ignored"
            assert crc(found.load(run, result.rev)) == crc(value(n)), f"{run}: acknowledged, and it is not there"
            assert result.rev == (2 if n in silent_conflicts else 1)
        tally[kind] = tally.get(kind, 0) + 1
    assert injected() == 1
    assert tally["failed"], tally
    assert tally["written"] >= keep // 2, tally
    clean(survivor())
    return {**tally, "injected": injected()}


def closing_drains(
    open_: Callable[[], Backend], survivor: Callable[[], Backend], *, gate_of: Callable[[Store], Gate] = Gate
) -> int:
    """What was handed over before the gate was closed is written, and its callers hear of it."""
    store = Store(open_())
    for n in range(50):
        store.warm(run_key(f"run {n}"))

    async def main() -> list[Header]:
        gate = gate_of(store)
        tasks = [asyncio.create_task(gate.append(f"run {n}", {"n": n})) for n in range(50)]
        await asyncio.sleep(0)
        gate.close()
        gate.close()
        found = Store(survivor())
        for n in range(50):
            assert crc(found.load(f"run {n}")) == crc({"n": n}), "closed, and not drained"
        return await asyncio.gather(*tasks)

    headers = asyncio.run(asyncio.wait_for(main(), 20))
    assert [header.rev for header in headers] == [0] * 50
    return len(headers)


__all__ = [
    "NEVER",
    "OPERATIONS",
    "Hold",
    "InMemory",
    "Kind",
    "Operation",
    "Place",
    "View",
    "acknowledged_survives",
    "check_after",
    "clean",
    "closing_drains",
    "count",
    "crc",
    "faults_at_every_call",
    "goes_on",
    "group",
    "look",
    "no_update_is_lost",
    "outcomes_of",
    "prepare",
    "state",
]
