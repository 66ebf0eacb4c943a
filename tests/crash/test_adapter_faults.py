"""A third party's four methods fail at every call, and lie: the store on them is old or new, and never wrong.

What the storage raises is a stranger's error, before or after it did what it was asked for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from tests.checkpoint.strangers import DictStorage
from tests.crash.store_scenarios import OPERATIONS, View, check_after, clean, count, crc, goes_on, look, prepare

from knotline.backends import Backend
from knotline.checkpoint import AdapterBackend
from knotline.errors import Damaged, Error, NotFound, Unavailable
from knotline.records import Header
from knotline.store import Store, verify
from knotline.store.log import Held
from knotline.testing import FakeClock

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
Kept = dict[tuple[str, str], str]
When = Literal["before", "after"]
KINDS: list[When] = ["before", "after"]
# There are no leases to take over.
NAMES = [name for name in OPERATIONS if name != "take over"]


class Leaseless(Store):
    """What was prepared with a lease has a note in its place, so that revisions are the same."""

    def acquire(self, run: str, owner: str, *, ttl: float) -> Held:
        found: Header = self.annotate(run, {"owner": owner})
        return Held(run, owner, 0, 0, float(found.rev))


class Failing(DictStorage):
    """Call `at` raises, before or after it was done."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(kept)
        self.at, self.when, self.calls, self.injected = 0, "before", 0, 0

    def arm(self, at: int, when: When = "before") -> None:
        self.at, self.when, self.calls, self.injected = at, when, 0, 0

    async def _hit(self, call: int, when: When) -> None:
        if call == self.at and self.when == when:
            self.injected += 1
            raise OSError(f"the line is down, {when} it was done")

    async def save(self, category: str, key: str, data: dict[str, Any]) -> str:
        call = self.calls = self.calls + 1
        await self._hit(call, "before")
        place = await super().save(category, key, data)
        await self._hit(call, "after")
        return place

    async def load(self, category: str, key: str) -> dict[str, Any] | None:
        call = self.calls = self.calls + 1
        await self._hit(call, "before")
        found = await super().load(category, key)
        await self._hit(call, "after")
        return found

    async def delete(self, category: str, key: str) -> bool:
        call = self.calls = self.calls + 1
        await self._hit(call, "before")
        found = await super().delete(category, key)
        await self._hit(call, "after")
        return found

    async def list(self, category: str) -> list[str]:
        call = self.calls = self.calls + 1
        await self._hit(call, "before")
        found = await super().list(category)
        await self._hit(call, "after")
        return found


@pytest.fixture(scope="module")
def prepared() -> Kept:
    """A store with something of everything, as documents."""
    kept: Kept = {}
    with Leaseless(AdapterBackend(DictStorage(kept))) as store:
        prepare(store, FakeClock())
    return kept


@contextmanager
def opened(kept: Kept) -> Iterator[Backend]:
    backend = AdapterBackend(DictStorage(kept))
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def survivor(kept: Kept) -> Iterator[Backend]:
    """What another process finds whose predecessor was killed now."""
    left = {key: text for key, text in kept.items() if key[0] != "knotline-owner"}
    with opened(left) as backend:
        yield backend


def outcomes(name: str, prepared: Kept) -> tuple[View, View]:
    kept = dict(prepared)
    with opened(kept) as backend:
        old = look(backend)
        OPERATIONS[name].act(Store(backend))
        return old, look(backend, also=old.states)


def one_fault(name: str, at: int, when: When, prepared: Kept, views: tuple[View, View], *, cold: bool) -> int:
    """The operation with a fault at call `at`; how many struck."""
    kept = dict(prepared)
    storage = Failing(kept)
    backend = AdapterBackend(storage)
    try:
        if not cold:
            backend.runs()
        store = Store(backend)
        storage.arm(at, when)
        acknowledged = True
        try:
            OPERATIONS[name].act(store)
        except Unavailable:
            acknowledged = False
        struck = storage.injected
        storage.arm(0)
        assert acknowledged or struck, f"{name}: it failed without a fault"
        what = f"{name} {when} {at}"
        with survivor(kept) as other:
            now = check_after(what, other, *views, acknowledged=acknowledged)
        if not acknowledged:
            again = OPERATIONS[name].again
            if again is None:
                OPERATIONS[name].act(store)
            else:
                again(store, now)
        OPERATIONS[name].after(store)
        with survivor(kept) as other:
            check_after(f"{what}, again", other, *views, acknowledged=True)
        if SOAK or at % 8 == 1:
            with survivor(kept) as other:
                goes_on(other, at)
                clean(other)
            goes_on(backend, at)
        return struck
    finally:
        backend.close()


@pytest.mark.parametrize("when", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_at_every_call(name: str, when: When, prepared: Kept) -> None:
    views = outcomes(name, prepared)
    injected = 0
    for at in itertools.count(1):
        struck = one_fault(name, at, when, prepared, views, cold=False)
        injected += struck
        if not struck:
            break
    count(f"adapter faults {when}", injected)
    assert injected >= 2


@pytest.mark.parametrize("when", KINDS)
def test_a_fault_at_every_call_of_opening(when: When, prepared: Kept) -> None:
    """The index is read at the first call: that call fails, and the next one reads it anew."""
    views = outcomes("append", prepared)
    injected = 0
    for at in itertools.count(1, 1 if SOAK else 7):
        struck = one_fault("append", at, when, prepared, views, cold=True)
        injected += struck
        if not struck:
            break
    count(f"adapter faults opening {when}", injected)
    assert injected >= 8


# -- lies --------------------------------------------------------------------------------------------------------


def told(text: str) -> Iterator[str]:
    """Other documents in the place of this one: each field gone, of another type, or of another value."""
    said = json.loads(text)
    for name, value in said.items():
        others: list[Any] = [None, [], {}, -1, 2**70, 1.5, "zz", float("inf")]
        if isinstance(value, int):
            others += [value + 1, value - 1, not value]
        if isinstance(value, str) and len(value) > 8:
            middle = len(value) // 2 // 4 * 4
            others.append(
                value[:middle] + ("AAAA" if value[middle : middle + 4] != "AAAA" else "BBBB") + value[middle + 4 :]
            )
        for other in others:
            if type(other) is not type(value) or other != value:
                yield json.dumps({**said, name: other})
        yield json.dumps({key: it for key, it in said.items() if key != name})
    yield "[]"
    yield "null"
    yield '"text"'
    yield "7"


def truth(kept: Kept) -> tuple[View, dict[tuple[str, int], int]]:
    with survivor(kept) as backend:
        view = look(backend, stride=1)
        return view, view.states


def never_wrong(kept: Kept, view: View, *, storage: Callable[[Kept], DictStorage] = DictStorage) -> bool:
    """Each answer is the truth or an error of ours. Was there an error?"""
    erred = False
    backend = AdapterBackend(storage({key: text for key, text in kept.items() if key[0] != "knotline-owner"}))
    store = Store(backend)
    try:
        for run, head in view.heads.items():
            try:
                found = crc(store.load(run))
            except NotFound:
                erred = erred or head is not None
            except Error:
                erred = True
            else:
                assert found == head, f"{run}: a wrong state was given as good"
        for place, value in view.states.items():
            try:
                assert crc(store.load(*place)) == value, f"{place}: a wrong state was given as good"
            except Error:
                erred = True
        for place, value in view.documents.items():
            try:
                assert crc(store.get(*place)) == value, f"{place}: a wrong document was given as good"
            except Error:
                erred = True
        for run in view.heads:
            try:
                attached = {(run, at.rev, at.task, at.idx, crc(value)) for at, value in store.attachments(run)}
            except Error:
                erred = True
            else:
                there = {each for each in view.attached if each[0] == run}
                assert attached <= there
                erred = erred or attached != there
        try:
            erred = not verify(store).clean or erred
        except Error:
            erred = True
    finally:
        backend.close()
    return erred


def small() -> Kept:
    kept: Kept = {}
    with Store(AdapterBackend(DictStorage(kept))) as store:
        for n in range(6):
            store.append("r", {"n": n, "blob": f"{n // 3}" * 5000}, labels=["l"])
        store.seal("r")
        store.append("r", {"n": 9, "blob": "9" * 6000})
        store.append("s", {"n": 1})
        store.put("config", "x", {"v": 1})
        store.attach("r", 2, "task", 0, {"result": 1})
    return kept


def test_another_document_than_was_saved() -> None:
    kept = small()
    view, _ = truth(kept)
    assert not never_wrong(kept, view)
    told_of = caught = 0
    every = 1 if SOAK else 5
    for key, text in kept.items():
        if key[0] == "knotline-owner":
            continue
        for number, lie in enumerate(told(text)):
            if number % every == len(key[1]) % every:
                told_of += 1
                caught += never_wrong({**kept, key: lie}, view)
    count("adapter lies", told_of)
    assert told_of >= 100
    assert caught == told_of, "a lie that nobody noticed"


def test_documents_that_changed_places() -> None:
    kept = small()
    view, _ = truth(kept)
    swapped = 0
    for category in ("knotline-log", "knotline-objects"):
        keys = [key for key in kept if key[0] == category]
        for one, two in itertools.combinations(keys, 2):
            swapped += 1
            assert never_wrong({**kept, one: kept[two], two: kept[one]}, view), (one, two)
    assert swapped >= 20


def test_documents_that_vanished() -> None:
    kept = small()
    view, _ = truth(kept)

    class Forgets(DictStorage):
        """`list` names it, `load` does not find it."""

        gone: tuple[str, str] = ("", "")

        async def load(self, category: str, key: str) -> dict[str, Any] | None:
            return None if (category, key) == self.gone else await super().load(category, key)

    vanished = 0
    for key in kept:
        if key[0] != "knotline-owner":
            vanished += 1
            Forgets.gone = key
            assert never_wrong(kept, view, storage=Forgets), key
    assert vanished >= 10


class Lists(DictStorage):
    """What `list` says goes through this."""

    says: Callable[[list[str]], Any] = staticmethod(lambda keys: keys)

    async def list(self, category: str) -> Any:
        return self.says(await super().list(category))


@pytest.mark.parametrize(
    "says",
    [
        lambda keys: None,
        lambda keys: "text",
        lambda keys: 7,
        lambda keys: [1, *keys],
        lambda keys: [None],
        lambda keys: [key.encode() for key in keys],
    ],
    ids=["nothing", "text", "a number", "a number in it", "nothing in it", "bytes in it"],
)
def test_a_list_that_is_none(says: Callable[[list[str]], Any]) -> None:
    class Odd(Lists):
        pass

    Odd.says = staticmethod(says)
    backend = AdapterBackend(Odd(small()))
    with pytest.raises(Unavailable, match="its list of"):
        backend.runs()
    backend.close()


@pytest.mark.parametrize(
    "says", [lambda keys: keys * 2, lambda keys: tuple(keys[::-1]), dict.fromkeys], ids=["twice", "turned", "a dict"]
)
def test_a_list_that_is_odd_but_right(says: Callable[[list[str]], Any]) -> None:
    class Odd(Lists):
        pass

    Odd.says = staticmethod(says)
    kept = small()
    assert not never_wrong(kept, truth(kept)[0], storage=Odd)


def test_a_list_that_stops_early() -> None:
    """As one that gives its first page only: neither an old state as the newest, nor a save over what it left out."""
    kept = small()
    view, _ = truth(kept)
    refused = 0
    log = [key for category, key in kept if category == "knotline-log"]
    for cut in range(len(log)):

        class Early(Lists):
            says = staticmethod(lambda keys, cut=cut: keys[:cut])

        assert never_wrong(kept, view, storage=Early)
        mine = {key: text for key, text in kept.items() if key[0] != "knotline-owner"}
        before = dict(mine)
        backend = AdapterBackend(Early(mine))
        store = Store(backend)
        for run in ("r", "s"):
            try:
                store.append(run, {"over": True})
            except (Unavailable, Damaged):
                refused += 1
        backend.close()
        assert {key: mine.get(key) for key in before} == before, "what list left out was written over"
    assert refused >= len(log)


def test_slow_and_many_at_once() -> None:
    """Eight threads, answers that come in any order."""
    turns = itertools.count()

    class Slow(DictStorage):
        async def _see(self, verb: str, category: str, key: str = "") -> None:
            await asyncio.sleep((next(turns) * 7 % 5) / 2000)
            await super()._see(verb, category, key)

    kept: Kept = {}
    store = Store(AdapterBackend(Slow(kept)))
    try:
        begin = threading.Barrier(8)

        def work(who: int) -> None:
            begin.wait()
            for n in range(5):
                store.append(f"own {who}", {"n": n, "blob": f"{who}" * 4500})
                store.append("shared", {"who": who, "n": n})
                assert store.load(f"own {who}")["n"] == n

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert store.header("shared").rev == 39
        states = [store.load("shared", rev) for rev in range(40)]
        assert len({(state["who"], state["n"]) for state in states}) == 40
        assert verify(store).clean
    finally:
        store.close()
    with opened(kept) as backend:
        assert Store(backend).header("shared").rev == 39
        clean(backend)
