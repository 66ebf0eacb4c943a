"""Every call that a store makes fails once, in every way; and every file operation under it.

Afterwards the store is as before or as after, nothing that was acknowledged is lost, `verify` is clean, doing it
again converges, and writing goes on.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.crash.store_scenarios import (
    NEVER,
    OPERATIONS,
    InMemory,
    Kind,
    View,
    acknowledged_survives,
    check_after,
    clean,
    closing_drains,
    count,
    crc,
    faults_at_every_call,
    goes_on,
    group,
    look,
    no_update_is_lost,
    prepare,
)

from knotline.backends import Backend, Done, SqliteBackend
from knotline.errors import Conflict, Unavailable
from knotline.store import Store
from knotline.store.gate import Gate
from knotline.store.log import decided
from knotline.store.names import label_token, run_key
from knotline.testing import FakeClock, FaultVFS, Plan
from knotline.testing.vfs import Kind as Medium

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
KINDS: list[Kind] = ["before", "after", "partial"]
MEDIA: list[Medium] = ["eio", "full", "short", "sync"]
_names = (f"store-faults-{number}" for number in itertools.count())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_at_every_call(name: str, kind: Kind) -> None:
    # A warm head changes what is read, so only of operations that use it.
    for warm in (False, True) if SOAK or name.startswith(("append", "seal")) else (False,):
        injected, happened = faults_at_every_call(name, kind, warm=warm)
        count(f"store faults {kind}", injected)
        assert injected >= 1
        if kind == "before":
            assert happened == 0, "a call that failed before anything was done had an effect"


# -- what a caller can do about a lost acknowledgement ---------------------------------------------------------


@pytest.mark.parametrize("sealing", [False, True])
def test_the_same_draft_again_is_the_same_entry(sealing: bool) -> None:
    """The backend knows its own earlier bytes: committing a draft twice makes one entry."""
    place = InMemory()
    store = Store(place.open())
    prepare(store, place.clock)
    run = "a" if sealing else "b"
    warm = store.warm(run_key(run))
    rev = warm.rev + 1
    value = {"n": "new", "blob": "z" * 9000}
    with warm.lock:
        draft = store.draft(warm, value, decide=decided(None, ()), expected=None, held=None)
        place.arm(Plan(at=1, kind="after", only="commit"))
        (lost,) = store.backend.commit([draft.save])
        assert place.faults.injected == 1
        assert not isinstance(lost, Done)
        place.arm(NEVER)
        (outcome,) = store.backend.commit([draft.save])
        assert outcome == Done()
        assert store.settle(draft, outcome)
    assert store.header(run).rev == rev
    assert crc(Store(place.survivor()).load(run)) == crc(value)
    clean(place.survivor())


def test_a_lost_acknowledgement_and_expected() -> None:
    """With `expected` the caller learns that somebody, perhaps itself, was first: nothing is saved twice."""
    place = InMemory()
    store = Store(place.open())
    prepare(store, place.clock)
    value = {"n": "new"}
    head = store.header("b").rev
    place.arm(Plan(at=1, kind="after", only="commit"))
    with pytest.raises(Unavailable):
        store.append("b", value, expected=head)
    assert place.faults.injected == 1
    place.arm(NEVER)
    with pytest.raises(Conflict) as caught:
        store.append("b", value, expected=head)
    assert (caught.value.expected, caught.value.found) == (head, head + 1)
    assert crc(store.load("b")) == crc(value)


def test_a_lost_acknowledgement_without_expected() -> None:
    """Saving again makes a second entry of the same state: it costs an empty delta, and an undo more."""
    place = InMemory()
    store = Store(place.open())
    prepare(store, place.clock)
    value = {"n": "new", "blob": "z" * 9000}
    head = store.header("b").rev
    place.arm(Plan(at=1, kind="after", only="commit"))
    with pytest.raises(Unavailable):
        store.append("b", value)
    assert place.faults.injected == 1
    place.arm(NEVER)
    assert store.append("b", value).rev == head + 2
    assert crc(store.load("b", head + 1)) == crc(store.load("b", head + 2)) == crc(value)
    (entry,) = place.survivor().entries(run_key("b"), head + 2, head + 2)
    assert len(entry.body or b"") < 40
    clean(place.survivor())


def test_a_medium_that_stays_broken() -> None:
    """From call n on nothing works any more; then it works again."""
    injected = 0
    for name, operation in OPERATIONS.items():
        place = InMemory()
        store = Store(place.open())
        prepare(store, place.clock)
        old = look(place.survivor())
        for at in (1, 2, 3):
            place.arm(Plan(at=at, kind="before", forever=True))
            for _ in range(3):
                try:
                    operation.act(store)
                except Unavailable:
                    continue
            injected += place.faults.injected
            place.arm(NEVER)
            if at == 1:
                assert look(place.survivor()).visible() == old.visible(), name
            clean(place.survivor())
        goes_on(place.survivor(), 0)
        clean(place.survivor())
    count("store faults forever", injected)
    assert injected >= len(OPERATIONS)


# -- below the backend ---------------------------------------------------------------------------------------


@pytest.fixture
def vfs() -> Iterator[FaultVFS]:
    vfs = FaultVFS(next(_names))
    yield vfs
    vfs.disarm()
    vfs.unregister()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A prepared store, closed, and the time at which it was left."""
    path = tmp_path_factory.mktemp("model") / "store.db"
    clock = FakeClock()
    store = Store(SqliteBackend(path, clock=clock))
    prepare(store, clock)
    store.close()
    return path, clock()


# In the quick run the operation that writes most meets every kind at every n; the others one kind, here and there.
MOST = "append and seal"
CASES = [(name, kind) for name in OPERATIONS for kind in MEDIA if SOAK or kind == "eio" or name == MOST]


def _views(model: tuple[Path, float], folder: Path, act: Callable[[Store], object]) -> tuple[View, View]:
    folder.mkdir()
    shutil.copy(model[0], folder / "store.db")
    backend = SqliteBackend(folder / "store.db", clock=FakeClock(model[1]))
    old = look(backend)
    act(Store(backend))
    new = look(backend, also=old.states)
    backend.close()
    return old, new


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_fault_at_every_file_operation(
    tmp_path: Path, vfs: FaultVFS, model: tuple[Path, float], name: str, kind: Medium
) -> None:
    operation = OPERATIONS[name]
    old, new = _views(model, tmp_path / "views", operation.act)
    injected = raised = 0
    for at in itertools.count(1, 1 if SOAK or (name, kind) == (MOST, "eio") else 3 if name == MOST else 11):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        shutil.copy(model[0], folder / "store.db")
        live = SqliteBackend(folder / "store.db", clock=FakeClock(model[1]), vfs=vfs.name)
        store = Store(live)
        vfs.arm(kind, at=at)
        acknowledged = True
        try:
            operation.act(store)
        except Unavailable:
            acknowledged = False
        struck = vfs.injected
        vfs.disarm()
        injected += struck
        raised += not acknowledged
        assert acknowledged or struck, "it failed without a fault"
        # What a crash now would leave, opened by another process.
        crashed = tmp_path / f"{at}-crashed"
        shutil.copytree(folder, crashed)
        other = SqliteBackend(crashed / "store.db", clock=FakeClock(model[1]))
        check_after(f"{name} {kind} {at}", other, old, new, acknowledged=acknowledged)
        if SOAK or at % 4 == 1:
            goes_on(other, at)
            clean(other)
        other.close()
        if not acknowledged:
            # Not what the crash left: this backend may have found out, and taken it back or completed it.
            now = check_after(f"{name} {kind} {at}, live", live, old, new, acknowledged=False)
            if operation.again is None:
                operation.act(store)
            else:
                operation.again(store, now)
        check_after(f"{name} {kind} {at}, again", live, old, new, acknowledged=True)
        operation.after(store)
        goes_on(live, at)
        live.close()
        shutil.rmtree(folder)
        shutil.rmtree(crashed)
        if not struck:
            break
    count(f"store file faults {kind}", injected)
    # Sealing what is sealed, for one, is still an entry: everything here writes.
    assert injected >= 1
    assert raised >= (kind != "full")


def test_power_loss_takes_nothing_acknowledged(tmp_path: Path, vfs: FaultVFS) -> None:
    """After every save, what had been synced, and nothing else, is what the next process finds."""
    opened: list[Backend] = []
    number = itertools.count()

    def survivor() -> Backend:
        folder = tmp_path / f"lost-{next(number)}"
        folder.mkdir()
        vfs.after_power_loss(folder)
        opened.append(SqliteBackend(folder / "store.db"))
        return opened[-1]

    def open_() -> Backend:
        opened.append(SqliteBackend(tmp_path / "store.db", vfs=vfs.name))
        return opened[-1]

    checked = acknowledged_survives(open_, survivor, saves=160 if SOAK else 70, every=3)
    for backend in opened:
        backend.close()
    count("store power losses", checked)
    assert checked >= 20


# -- races in one process, and the crossing from asyncio ----------------------------------------------------------


def test_no_update_is_lost_between_stores(tmp_path: Path) -> None:
    place = InMemory()
    assert no_update_is_lost(place.open, writers=3) >= 1
    opened: list[SqliteBackend] = []

    def open_() -> Backend:
        opened.append(SqliteBackend(tmp_path / "store.db"))
        return opened[-1]

    assert no_update_is_lost(open_, writers=3) >= 1
    for backend in opened:
        backend.close()


@pytest.mark.parametrize("keep", [1, 40, 90])
def test_a_batch_of_a_hundred_runs(keep: int) -> None:
    def make() -> tuple[Backend, Callable[[], Backend], Callable[[Plan], None], Callable[[], int]]:
        place = InMemory()
        return place.open(), place.survivor, place.arm, lambda: place.faults.injected

    tally = group(make, keep=keep)
    count("gate faults", tally["injected"])
    assert keep == 1 or tally["conflict"] >= 1
    assert tally["unstorable"] == tally["cancelled"] == 1


def test_closing_a_gate_drains_it(tmp_path: Path) -> None:
    place = InMemory()
    assert closing_drains(place.open, place.survivor) == 50
    backend = SqliteBackend(tmp_path / "store.db")
    assert closing_drains(lambda: backend, lambda: backend) == 50
    backend.close()


def test_a_backend_that_raises_leaves_no_caller_waiting() -> None:
    """A store that is closed under its gate is an error for those who save, not an answer that never comes."""
    place = InMemory()
    store = Store(place.open())

    async def main() -> list[object]:
        gate = Gate(store)
        try:
            await gate.append("a", 1)
            place.memory.close()
            saves = [gate.append("a", 2), gate.append("a", 3)]
            return list(await asyncio.wait_for(asyncio.gather(*saves, return_exceptions=True), 20))
        finally:
            gate.close()

    assert [type(it) for it in asyncio.run(main())] == [Unavailable, Unavailable]


def test_a_prune_keeps_whatever_is_newer() -> None:
    """States after `keep_from` may stand on older ones than `keep_from` itself does: on a branch from a rollback."""
    place = InMemory()
    store = Store(place.open())
    for n in range(40):
        store.append("r", {"n": n, "x": "y" * 200 * n if n % 3 else ""})
    store.rollback("r", 10)
    for n in range(3):
        store.append("r", {"n": 10, "branch": n})
    store.rollback("r", 39)
    right = {rev: crc(store.load("r", rev)) for rev in range(36, 45)}
    store.prune("r", keep_from=36)
    assert {rev: crc(Store(place.survivor()).load("r", rev)) for rev in range(36, 45)} == right
    clean(place.survivor())


def test_a_seal_that_stores_next_to_nothing() -> None:
    """One small number more in a sealed list: its leaf is too small for a dictionary, and the save must not mind."""
    place = InMemory()
    store = Store(place.open())
    for n in range(70):
        value = {"n": n, "log": [*range(64), *([5] if n >= 20 else [])]}
        store.append("r", value)
        assert crc(Store(place.survivor()).load("r")) == crc(value)
    clean(place.survivor())


def test_labels_of_half_a_save() -> None:
    """A label is found exactly when its entry is there."""
    injected = 0
    for at in itertools.count(1):
        place = InMemory()
        store = Store(place.open())
        prepare(store, place.clock)
        place.arm(Plan(at=at, kind="after"))
        with suppress(Unavailable):
            store.append("b", {"x": 1}, labels=["only"])
        struck = place.faults.injected
        place.arm(NEVER)
        injected += struck
        found = place.survivor().find((label_token("only"),), run=run_key("b"))
        assert [entry.rev for entry in found] == ([7] if store.header("b").rev == 7 else [])
        if not struck:
            break
    assert injected >= 1
