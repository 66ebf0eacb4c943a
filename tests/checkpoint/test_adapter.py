"""A third party's four methods under the backend contract: all of it but leases and a second process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.strangers import DictStorage, NaiveFiles

from knotline.backends.contract import Attach, Attachment, Backend, Done, Failed
from knotline.checkpoint import AdapterBackend
from knotline.errors import Conflict, ContractBroken, Damaged, Unavailable, Unsupported
from knotline.store import Store, verify
from knotline.testing import BackendSuite
from knotline.testing.suite_place import append, done, object_id, save


class _Adapted(BackendSuite):
    # Leases: `test_without_leases` says what there is instead.
    test_a_lease_is_held_until_it_ends = None  # pyright: ignore[reportAssignmentType]
    test_an_ended_lease_of_ones_own_is_a_new_epoch = None  # pyright: ignore[reportAssignmentType]
    test_renew = None  # pyright: ignore[reportAssignmentType]
    test_release = None  # pyright: ignore[reportAssignmentType]
    test_leases_are_per_run_and_outlive_the_store_being_closed = None  # pyright: ignore[reportAssignmentType]
    test_one_of_many_gets_the_lease = None  # pyright: ignore[reportAssignmentType]
    # One process: `test_a_second_one_is_refused`.
    test_two_open_at_once_are_one_store = None  # pyright: ignore[reportAssignmentType]

    def test_run_keys_are_any_bytes(self, tmp_path: Path) -> None:
        """As in the suite, without the leases."""
        b = self.open(tmp_path)
        keys = [b"a", b"a\x00", b"aa", b"\x00", b"\xff\xfe", b"/../", b"%_'\"", b"A", b"\xff" * 512, b"k" * 512]
        for number, key in enumerate(keys):
            append(b, save(key, 0, body=b"%d" % number, tokens=[number]), save(key, 1, body=b"%d" % number))
            b.commit([Attach(key, 0, key[:8], 0, number, key)])
        assert b.runs() == [(key, 1) for key in sorted(keys)]
        for number, key in enumerate(keys):
            assert [(e.run, e.body) for e in b.entries(key, 0, 9)] == [(key, b"%d" % number)] * 2
            assert [e.run for e in b.find([number])] == [key]
            assert b.attachments(key) == [Attachment(0, key[:8], 0, number, key)]
        b.close()


class TestDict(_Adapted):
    persistent = True

    @pytest.fixture(autouse=True)
    def _medium(self) -> None:
        self.kept: dict[Path, dict[tuple[str, str], str]] = {}

    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        return AdapterBackend(DictStorage(self.kept.setdefault(place, {})))


class TestNaiveFiles(_Adapted):
    persistent = True

    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        return AdapterBackend(NaiveFiles(place / "stranger"))


def test_without_leases() -> None:
    b = AdapterBackend(DictStorage())
    for call in (lambda: b.acquire(b"r", "me", 1), lambda: b.renew(b"r", "me", 1, 1), lambda: b.release(b"r", "me", 1)):
        with pytest.raises(Unsupported, match="two owners"):
            call()
    assert b.lease(b"r") is None
    b.close()


def test_a_second_one_is_refused() -> None:
    kept: dict[tuple[str, str], str] = {}
    one, two = AdapterBackend(DictStorage(kept)), AdapterBackend(DictStorage(kept))
    append(one, save("r", 0))
    with pytest.raises(Unsupported, match=f"process {os.getpid()} has it open"):
        two.head(b"r")
    one.close()
    assert [e.rev for e in two.entries(b"r", 0, 9)] == [0]
    two.close()
    assert not [key for key in kept if key[0] == "knotline-owner"]


def owner(pid: int, host: str) -> str:
    return f'{{"nonce": "theirs", "pid": {pid}, "host": "{host}"}}'


def test_a_killed_one_does_not_stand_in_the_way() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = {("knotline-owner", "owner"): owner(ended.pid, socket.gethostname())}
    b = AdapterBackend(DictStorage(kept))
    append(b, save("r", 0))
    b.close()
    kept = {("knotline-owner", "owner"): owner(os.getppid(), socket.gethostname())}
    with pytest.raises(Unsupported, match=f"process {os.getppid()} has it open"):
        AdapterBackend(DictStorage(kept)).head(b"r")


def test_one_that_was_overtaken_from_afar_commits_no_more() -> None:
    kept: dict[tuple[str, str], str] = {}
    b = AdapterBackend(DictStorage(kept))
    append(b, save("r", 0))
    kept["knotline-owner", "owner"] = owner(1, "elsewhere")
    before = dict(kept)
    with pytest.raises(Unsupported, match="another process opened it since"):
        b.commit([save("r", 1)])
    assert kept == before
    b.close()
    assert kept == before  # what is theirs is not taken from them


@pytest.mark.parametrize("lands", [False, True])
def test_a_fault_at_every_call_of_a_commit(lands: bool) -> None:
    """Failed means not there, whatever the storage raised; trying again converges; what was cut short is finished."""
    injected = 0
    for at in range(1, 40):
        kept: dict[tuple[str, str], str] = {}
        storage = DictStorage(kept)
        b = AdapterBackend(storage)
        objects = [(object_id(1), b"one"), (object_id(2), b"two")]
        append(b, *(save("r", rev, objects=objects[:1]) for rev in range(3)))
        b.commit([Attach(b"r", 0, b"t", 0, 1, b"d")])
        calls = 0

        def fault(verb: str, category: str, key: str, at: int = at, kept: dict[tuple[str, str], str] = kept) -> None:
            nonlocal calls, injected
            calls += 1
            if calls == at:
                injected += 1
                if lands and verb == "delete":
                    kept.pop((category, key))
                raise OSError("the disk is gone")

        storage.fault = fault
        mine = save("r", 3, drop=2, objects=objects)
        outcome = b.commit([mine])[0]
        assert isinstance(outcome, Done | Failed)
        storage.fault = lambda verb, category, key: None
        assert [e.rev for e in b.entries(b"r", 0, 9)] == ([2, 3] if outcome == Done() else [0, 1, 2])
        assert done(b.commit([mine])) == [True]
        b.close()
        again = AdapterBackend(DictStorage(kept))
        assert [e.rev for e in again.entries(b"r", 0, 9)] == [2, 3]
        assert again.attachments(b"r") == []
        assert again.objects([object_id(1), object_id(2)]) == dict(objects)
        assert {key[-2:] for category, key in kept if category == "knotline-log"} == {".2", ".3"}
        again.close()
        if calls < at:
            break
    assert injected >= 5


def test_a_save_that_raised_and_was_done() -> None:
    storage = DictStorage()
    b = AdapterBackend(storage)
    append(b, save("r", 0))
    real = storage.save

    async def lost(category: str, key: str, data: dict[str, object]) -> str:
        await real(category, key, data)
        raise TimeoutError("no answer")

    storage.save = lost
    assert b.commit([save("r", 1)]) == [Done()]
    b.close()


def test_what_was_tampered_with_is_damage() -> None:
    kept: dict[tuple[str, str], str] = {}
    b = AdapterBackend(DictStorage(kept))
    append(b, save("r", 0, objects=[(object_id(1), b"x")]), save("r", 1), save("s", 0))
    zero, one, other = (key for category, key in kept if category == "knotline-log")
    good = dict(kept)
    for bad in ("{}", '{"run": 1}', kept["knotline-log", one], kept["knotline-log", other]):
        kept["knotline-log", zero] = bad
        with pytest.raises(Damaged):
            b.entries(b"r", 0, 9)
    kept["knotline-objects", object_id(1).hex()] = '{"data": "%"}'
    with pytest.raises(Damaged):
        b.objects([object_id(1)])
    kept.update(good)
    del kept["knotline-log", zero]
    with pytest.raises(Damaged):
        b.entries(b"r", 0, 0)
    b.close()


def test_it_is_called_back_on_its_own_loop() -> None:
    async def main() -> None:
        storage = DictStorage()
        async with storage:
            store = storage.store
            await asyncio.gather(*(storage.gate.append(f"run {n}", {"n": n}) for n in range(5)))
            for n in range(40):
                await storage.gate.append("long", {"items": list(range(n)), "text": "x" * 5000})
            await asyncio.gather(*(storage.gate.append("shared", {"n": n}) for n in range(10)))
            assert await storage.gate.call(store.load, "run 3") == {"n": 3}
            assert (await storage.gate.call(store.load, "long"))["items"] == list(range(39))
            assert (await storage.gate.call(verify, store)).clean
            assert storage.loops == {asyncio.get_running_loop()}
            with pytest.raises(ContractBroken, match="own loop"):
                store.load("long", 3)
        again = DictStorage(storage.kept)
        assert (await again.gate.call(again.store.load, "long"))["items"] == list(range(39))
        await again.aclose()

    asyncio.run(main())


def test_without_a_loop_it_has_one_of_its_own() -> None:
    storage = DictStorage()
    with Store(AdapterBackend(storage)) as store:
        store.append("r", {"a": 1})
        store.rollback("r", 0)
        store.put("config", "x", {"b": 2})
        assert store.get("config", "x") == {"b": 2}
        assert verify(store).clean
    assert len(storage.loops) == 1


def test_a_loop_that_has_ended() -> None:
    """What can live on any loop goes on, on one of the adapter's own; what cannot is unavailable, and never hangs."""

    async def make(storage: DictStorage) -> AdapterBackend:
        b = AdapterBackend(storage)
        await asyncio.to_thread(append, b, save("r", 0))
        return b

    storage = DictStorage()
    b = asyncio.run(make(storage))
    append(b, save("r", 1))
    assert [e.rev for e in b.entries(b"r", 0, 9)] == [0, 1]
    assert len(storage.loops) == 2
    b.close()
    bound = Bound()
    b = asyncio.run(make(bound))
    with pytest.raises(Unavailable, match="another loop"):
        b.size()
    assert isinstance(b.commit([save("r", 1)])[0], Failed)
    b.close()


class Bound(DictStorage):
    """Its connection belongs to the loop it was first used on."""

    async def _see(self, verb: str, category: str, key: str = "") -> None:
        await super()._see(verb, category, key)
        if len(self.loops) > 1:
            raise RuntimeError("attached to another loop")


def test_a_loop_that_stands_still() -> None:
    """Between two calls of `run_until_complete` nobody may wait for ever."""
    loop = asyncio.new_event_loop()
    try:
        storage = DictStorage()

        async def make() -> AdapterBackend:
            return AdapterBackend(storage)

        b = loop.run_until_complete(make())
        with pytest.raises(Unavailable, match="does not run"):
            b.runs()
        loop.run_until_complete(asyncio.to_thread(append, b, save("r", 0)))
        loop.run_until_complete(asyncio.to_thread(b.close))
    finally:
        loop.close()


def test_a_head_is_looked_at_while_a_save_is_under_way() -> None:
    """On the loop's own thread: whoever waited there for the save would wait for itself."""

    class Slow(DictStorage):
        async def save(self, category: str, key: str, data: dict[str, Any]) -> str:
            await asyncio.sleep(0.05)
            return await super().save(category, key, data)

    async def main() -> None:
        async with Slow() as storage:
            await storage.gate.append("a", {"n": 0})
            await storage.gate.append("b", {"n": 0})
            under_way = asyncio.create_task(storage.gate.append("a", {"n": 1}))
            await asyncio.sleep(0.02)
            with pytest.raises(Conflict):
                await storage.gate.append("b", {"n": 1}, expected=5)
            assert not under_way.done()
            assert (await under_way).rev == 1

    asyncio.run(asyncio.wait_for(main(), 20))
