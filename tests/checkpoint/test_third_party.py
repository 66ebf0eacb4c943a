"""A storage as somebody else writes it: four methods, synchronous inside, and used in every way that people use it."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from knotline import BaseStorage, EncryptedStorage, JSONStorage, MemoryStorage, SQLiteStorage, Store, verify
from knotline.errors import Error, Unavailable, Unsupported

KEY = bytes(range(32))


class Minimal(BaseStorage):
    """Nothing of ours is called, and nothing is awaited."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], dict[str, Any]] = {}

    async def save(self, category: str, key: str, data: dict[str, Any]) -> str:
        self.kept[category, key] = data
        return key

    async def load(self, category: str, key: str) -> dict[str, Any] | None:
        return self.kept.get((category, key))

    async def delete(self, category: str, key: str) -> bool:
        return self.kept.pop((category, key), None) is not None

    async def list(self, category: str) -> list[str]:
        return [key for kept, key in self.kept if kept == category]


async def use(storage: BaseStorage, n: int) -> None:
    await storage.save("config", f"own {n}", {"n": n})
    await asyncio.gather(*(storage.gate.append(f"run {each}", {"n": n}) for each in range(5)))
    await storage.gate.append("long", {"n": n, "text": "x" * 5000})
    assert await storage.gate.call(storage.store.load, "long") == {"n": n, "text": "x" * 5000}
    assert await storage.load("config", f"own {n}") == {"n": n}
    assert (await storage.gate.call(verify, storage.store)).clean


def test_from_one_loop_and_then_from_another() -> None:
    storage = Minimal()
    for n in range(3):
        asyncio.run(use(storage, n))
    store = storage.store
    assert [header.rev for header in store.lineage("long")] == [2, 1, 0]
    asyncio.run(storage.aclose())


def test_two_loops_and_plain_code_between_them() -> None:
    storage = Minimal()
    storage.store.append("long", {"n": -1})
    asyncio.run(use(storage, 0))
    storage.store.rollback("long", 0)
    assert storage.store.load("long") == {"n": -1}
    asyncio.run(use(storage, 1))
    storage.store.undo("long")
    asyncio.run(storage.aclose())


def test_encrypted_from_one_loop_and_then_from_another() -> None:
    storage = EncryptedStorage(Minimal(), key=KEY)

    async def first(n: int) -> None:
        await storage.opened()
        await use(storage, n)

    for n in range(3):
        asyncio.run(first(n))
    asyncio.run(storage.aclose())


def test_from_plain_code() -> None:
    with Store(Minimal().store.backend) as store:
        store.append("r", {"a": 1})
        store.append("r", {"a": 2})
        store.undo("r")
        assert store.load("r") == {"a": 1}
        with pytest.raises(Unsupported):
            store.acquire("r", "me", ttl=1.0)


def test_closed_twice_and_used_after() -> None:
    async def main() -> None:
        storage = Minimal()
        await use(storage, 1)
        await storage.aclose()
        await storage.aclose()
        with pytest.raises(Unavailable, match="closed"):
            await storage.gate.append("r", {})
        with pytest.raises(Unavailable, match="closed"):
            await asyncio.to_thread(storage.store.append, "r", {})
        # Its four methods are its own affair.
        assert await storage.load("config", "own 1") == {"n": 1}
        assert not await storage.list("knotline-owner")

    asyncio.run(main())


NEVER_CLOSED = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.checkpoint.test_third_party import KEY, Minimal, use
from knotline import EncryptedStorage, MemoryStorage, SQLiteStorage

async def main():
    for storage in ({made}):
        await storage.opened()
        kept.append(storage)
        await use(storage, 1)

kept = []
asyncio.run(main())
{after}
print("reached the end")
"""


@pytest.mark.parametrize("after", ["", "kept[0].store.append('r', {})", "del kept"])
@pytest.mark.parametrize(
    "made", ["Minimal(),", "EncryptedStorage(Minimal(), key=KEY),", "SQLiteStorage('p', sys.argv[1]),"]
)
def test_never_closed_does_not_hang_the_interpreter(made: str, after: str, tmp_path: Path) -> None:
    program = NEVER_CLOSED.format(root=str(Path(__file__).parents[2]), made=made, after=after)
    asked = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(asked, timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "reached the end\n", "")


# -- nothing is left over ------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Path], BaseStorage]] = {
    "memory": lambda place: MemoryStorage(),
    "sqlite": lambda place: SQLiteStorage("p", place),
    "sqlite, background": lambda place: SQLiteStorage("p", place, durability="background"),
    "json": lambda place: JSONStorage("p", place),
    "encrypted sqlite": lambda place: EncryptedStorage(SQLiteStorage("p", place), key=KEY),
    "encrypted json": lambda place: EncryptedStorage(JSONStorage("p", place), key=KEY),
    "third party": lambda place: Minimal(),
    "encrypted third party": lambda place: EncryptedStorage(Minimal(), key=KEY),
}
TIMES = 200


def handles() -> int:
    gc.collect()  # what earlier tests left to the collector must not be counted, now or then
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this platform does not show a process its handles")
@pytest.mark.parametrize("kind", list(KINDS))
def test_opened_and_closed_two_hundred_times(kind: str, tmp_path: Path) -> None:
    """On one loop: no thread of ours and no file more than after the first."""

    async def once(n: int) -> None:
        async with KINDS[kind](tmp_path) as storage:
            await storage.save("c", f"k{n % 3}", {"n": n})
            await storage.gate.append(f"r{n % 3}", {"n": n})

    async def main() -> None:
        await once(0)
        before = handles()
        settled()
        threads = threading.active_count()
        for n in range(TIMES):
            await once(n)
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("knotline")]
        assert ours == []
        # The loop's own executor may have grown to its size.
        assert threading.active_count() <= threads + (os.cpu_count() or 1) + 4
        assert handles() <= before

    asyncio.run(main())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this platform does not show a process its handles")
def test_stores_on_a_third_party_without_a_loop_two_hundred_times() -> None:
    """Each has a loop of its own, which ends with it."""
    before: int | None = None
    for n in range(TIMES):
        with Store(Minimal().store.backend) as store:
            store.append("r", {"n": n})
        before = handles() if before is None else before
    assert handles() <= (before or 0)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("knotline")]


def settled() -> None:
    """Those that earlier tests never closed are closed by the collector, on threads of their own."""
    for thread in threading.enumerate():
        if thread.name == "knotline-closing":
            thread.join(10)


def test_one_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with EncryptedStorage(SQLiteStorage("p", tmp_path), key=KEY):
            pass
        before = handles()
        for _ in range(20):
            wrong = EncryptedStorage(SQLiteStorage("p", tmp_path), key=KEY[::-1])
            with pytest.raises(Error):
                await wrong.save("c", "k", {})
            await wrong.aclose()
        assert handles() <= before

    asyncio.run(main())
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("knotline")]
