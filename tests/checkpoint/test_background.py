"""`durability="background"`: in order, bounded, drained by flushing and closing, and a failure is told once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.strangers import DictStorage

from knotline.backends import MemoryBackend, SqliteBackend
from knotline.checkpoint import EncryptedStorage, MemoryStorage, SQLiteStorage, create_storage_from_config
from knotline.errors import ConfigError, Unavailable, Unstorable, WrongKey
from knotline.store import Store
from knotline.timeline.behind import Behind

KEY = bytes(range(32))


def make(place: Path, *, encrypted: bool = False) -> SQLiteStorage | EncryptedStorage:
    storage = SQLiteStorage("p", place, durability="background")
    return EncryptedStorage(storage, key=KEY) if encrypted else storage


class Doors:
    """Stands in the way of every put, until it is opened; counts, and fails on demand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.order: list[tuple[str, Any]] = []
        self.fails: set[int] = set()
        real = Store.put

        def put(store: Store, category: str, name: str, value: Any, **more: Any) -> Any:
            assert self.open.wait(30)
            self.order.append((name, value["n"]))
            if value["n"] in self.fails:
                raise Unavailable("the medium", why=f"full at {value['n']}")
            return real(store, category, name, value, **more)

        patch.setattr(Store, "put", put)


def behind() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "knotline-behind"]


@pytest.mark.parametrize("encrypted", [False, True])
def test_in_order_and_read_as_asked_for(tmp_path: Path, encrypted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    doors = Doors(monkeypatch)

    async def main() -> None:
        async with make(tmp_path, encrypted=encrypted) as storage:
            data = {"n": 0}
            for n in range(50):
                data["n"] = n  # what is saved is the value at the time of the call
                assert await storage.save("c", f"k{n % 3}", data) == f"c:k{n % 3}"
            assert doors.order == []
            later = asyncio.create_task(storage.load("c", "k1"))
            await asyncio.sleep(0.01)
            assert not later.done()
            doors.open.set()
            assert await later == {"n": 49}
            await asyncio.gather(*(storage.save("c", "together", {"n": n}) for n in range(100, 120)))
            assert await storage.delete("c", "k0")
            assert await storage.list("c") == ["k1", "k2", "together"]
            await storage.save("c", "k0", {"n": 50})
            await storage.flush()
            assert await storage.load("c", "together") == {"n": 119}
        assert doors.order == [(f"k{n % 3}", n) for n in range(50)] + [("together", n) for n in range(100, 120)] + [
            ("k0", 50)
        ]
        async with make(tmp_path, encrypted=encrypted) as storage:
            assert await storage.load("c", "k0") == {"n": 50}

    asyncio.run(main())
    assert not behind()


def test_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller past the bound waits, and those who wait are let on in order."""

    async def main() -> None:
        line = Behind(most=4)
        door = threading.Event()
        done: list[int] = []

        async def ask(n: int) -> None:
            ahead = line.stand("r", lambda: (door.wait(30), done.append(n)))
            if ahead is not None:
                await asyncio.wrap_future(ahead)

        asked = [asyncio.create_task(ask(n)) for n in range(10)]
        await asyncio.sleep(0.02)
        assert [task.done() for task in asked] == [True] * 4 + [False] * 6
        asked[7].cancel()  # who stops waiting has saved all the same
        door.set()
        await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.to_thread(line.flush)
        assert done == list(range(10))

    asyncio.run(main())


def test_a_failure_is_raised_at_the_next_flush_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doors = Doors(monkeypatch)
    doors.open.set()
    doors.fails = {2, 4}

    async def main() -> None:
        storage = make(tmp_path)
        for n in range(6):
            await storage.save("c", f"k{n}", {"n": n})
        with pytest.raises(Unavailable, match="full at 2") as caught:
            await storage.flush()
        assert "2 of what was asked for" in caught.value.__notes__[0]
        await storage.flush()
        assert await storage.list("c") == ["k0", "k1", "k3", "k5"]
        doors.fails = {7}
        await storage.save("c", "k7", {"n": 7})
        with pytest.raises(Unavailable, match="full at 7"):
            await storage.aclose()
        await storage.aclose()
        with pytest.raises(Unavailable, match="closed"):
            await storage.save("c", "k8", {"n": 8})

    asyncio.run(main())
    assert [n for _, n in doors.order] == [0, 1, 2, 3, 4, 5, 7]


def test_what_can_be_refused_at_once_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path) as storage:
            for category, key in (("", "k"), ("c", ""), ("c", "x" * 600)):
                with pytest.raises(Unstorable):
                    await storage.save(category, key, {})
            with pytest.raises(Unstorable, match="lock"):
                await storage.save("c", "k", {"lock": threading.Lock()})
            await storage.flush()
        await make(tmp_path / "e", encrypted=True).aclose()
        async with make(tmp_path / "e", encrypted=True) as storage:
            await storage.save("c", "k", {"n": 1})
        wrong = EncryptedStorage(SQLiteStorage("p", tmp_path / "e", durability="background"), key=KEY[::-1])
        with pytest.raises(WrongKey):
            await wrong.save("c", "k", {"n": 2})
        with pytest.raises(WrongKey):
            await wrong.aclose()
        async with make(tmp_path / "e", encrypted=True) as storage:
            assert await storage.load("c", "k") == {"n": 1}

    asyncio.run(main())


def test_first_save_is_the_first_use(tmp_path: Path) -> None:
    """Nothing is open yet, and many ask at once: opening must not change the order."""

    async def main() -> None:
        storage = make(tmp_path, encrypted=True)
        await asyncio.gather(*(storage.save("c", "k", {"n": n}) for n in range(30)))
        assert await storage.load("c", "k") == {"n": 29}
        await storage.aclose()
        over = EncryptedStorage(DictStorage(), key=KEY)
        over.durability = "background"
        await asyncio.gather(*(over.save("c", "k", {"n": n}) for n in range(30)))
        await over.aclose()

    asyncio.run(main())


def test_disk_is_synced_and_process_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each of the three asks of the backend."""
    asked: list[bool] = []
    real = SqliteBackend.commit

    def commit(self: SqliteBackend, writes: Any, *, sync: bool = True) -> Any:
        asked.append(sync)
        return real(self, writes, sync=sync)

    monkeypatch.setattr(SqliteBackend, "commit", commit)

    async def main() -> None:
        for durability, sync in (("disk", True), ("process", False), ("background", True)):
            block = {"storage_type": "sqlite", "path": str(tmp_path / durability), "durability": durability}
            async with create_storage_from_config({"persistence": block}) as storage:
                asked.clear()
                await storage.save("c", "k", {})
                await storage.flush()
                assert asked == [sync], durability

    asyncio.run(main())
    with pytest.raises(ConfigError) as caught:
        SQLiteStorage("p", tmp_path, durability="backgroud")  # pyright: ignore[reportArgumentType]
    assert caught.value.suggestion == "background"


def test_a_flush_of_what_is_safe_already() -> None:
    async def main() -> None:
        for storage in (MemoryStorage(), DictStorage()):
            await storage.save("c", "k", {})
            await storage.flush()
            await storage.aclose()

    asyncio.run(main())
    assert isinstance(MemoryStorage().store.backend, MemoryBackend)


def test_a_program_that_ends_without_closing(tmp_path: Path) -> None:
    """The interpreter waits for what was asked for, and not for ever."""
    program = """
import asyncio, sys
from knotline import SQLiteStorage

async def main():
    storage = SQLiteStorage("p", sys.argv[1], durability="background")
    for n in range(200):
        await storage.save("c", f"k{n}", {"n": n})

asyncio.run(main())
"""
    asked = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(asked, timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")

    async def main() -> None:
        async with make(tmp_path) as storage:
            assert len(await storage.list("c")) == 200

    asyncio.run(main())
