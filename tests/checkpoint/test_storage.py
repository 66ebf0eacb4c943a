"""The storages: what the first test lists ask of them, on every kind, and what their sketches got wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.strangers import DictStorage, NaiveFiles

import knotline.checkpoint.storage as storages
from knotline.checkpoint import (
    BaseStorage,
    EncryptedStorage,
    JSONBackend,
    JSONStorage,
    MemoryStorage,
    SQLiteBackend,
    SQLiteStorage,
    StorageBackend,
    create_storage_from_config,
)
from knotline.errors import ConfigError, Damaged, Error, Unavailable, Unstorable, WrongKey
from knotline.store import Store, verify

KEY = bytes(range(32))
Maker = Callable[[Path], BaseStorage]

MAKERS: dict[str, Maker] = {
    "memory": lambda place: MemoryStorage(),
    "sqlite": lambda place: SQLiteStorage("demo", place),
    "sqlite, process": lambda place: SQLiteStorage("demo", place, durability="process"),
    "json": lambda place: JSONStorage("demo", place),
    "encrypted sqlite": lambda place: EncryptedStorage(SQLiteStorage("demo", place), key=KEY),
    "encrypted json": lambda place: EncryptedStorage(JSONStorage("demo", place), KEY),
    "encrypted memory": lambda place: EncryptedStorage(MemoryStorage(), key=KEY),
    "encrypted stranger": lambda place: EncryptedStorage(NaiveFiles(place), key=KEY),
    "stranger": NaiveFiles,
    "dict": lambda place: DictStorage(),
}


def kinds(*left_out: str) -> list[Any]:
    return [pytest.param(make, id=name) for name, make in MAKERS.items() if not any(part in name for part in left_out)]


def run(work: Awaitable[object]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work, 60)

    asyncio.run(main())


# -- the four methods ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", kinds())
def test_save_load_list_delete_in_every_category(make: Maker, tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path) as storage:
            for category in ("checkpoint", "conversation", "history", "config", "agent_state", "session"):
                assert await storage.load(category, "nobody") is None
                assert await storage.delete(category, "nobody") is False
                assert await storage.list(category) == []
                for key in ("b", "a"):
                    place = await storage.save(category, key, {"id": key, "n": [1, None, "é"]})
                    assert isinstance(place, str)
                    assert place
                assert await storage.load(category, "a") == {"id": "a", "n": [1, None, "é"]}
                await storage.save(category, "a", {"id": "again"})
                assert await storage.load(category, "a") == {"id": "again"}
                assert sorted(await storage.list(category)) == ["a", "b"]
                assert await storage.delete(category, "a") is True
                assert await storage.delete(category, "a") is False
                assert await storage.load(category, "a") is None
                assert await storage.list(category) == ["b"]
                await storage.save(category, "a", {"back": True})
                assert sorted(await storage.list(category)) == ["a", "b"]

    run(main())


@pytest.mark.parametrize("make", kinds("memory", "dict"))
def test_another_process_finds_it(make: Maker, tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path) as storage:
            await storage.save("config", "x", {"a": 1})
        async with make(tmp_path) as storage:
            assert await storage.load("config", "x") == {"a": 1}
            assert await storage.list("config") == ["x"]

    run(main())


@pytest.mark.parametrize("make", kinds())
def test_every_storage_has_a_store_for_runs(make: Maker, tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path) as storage:
            store = await storage.opened()
            assert isinstance(store, Store)
            assert store is storage.store
            assert storage.gate is storage.gate
            await asyncio.gather(*(storage.gate.append(f"r{n}", {"n": n}) for n in range(8)))
            assert await storage.gate.call(store.load, "r3") == {"n": 3}
            await storage.save("config", "x", {"a": 1})
            assert await storage.load("config", "x") == {"a": 1}
            assert (await storage.gate.call(verify, store)).clean

    run(main())


@pytest.mark.parametrize("make", kinds("stranger", "dict"))
def test_types_come_back_as_they_went_in(make: Maker, tmp_path: Path) -> None:
    data = {
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "t": (1, {2}),
        "b": b"\x00",
        "d": Decimal("1.10"),
        3: -0.0,
    }

    async def main() -> None:
        async with make(tmp_path) as storage:
            await storage.save("history", "h", data)
            found = await storage.load("history", "h")
            assert found == data
            assert found is not None
            assert str(found[3]) == "-0.0"  # pyright: ignore[reportArgumentType]
            with pytest.raises(Unstorable, match="socket"):
                await storage.save("history", "h", {"items": [1, {"socket": threading.Lock()}]})
            with pytest.raises(Unstorable, match="not list"):
                await storage.save("history", "h", [1])  # pyright: ignore[reportArgumentType]
            assert await storage.load("history", "h") == data

    run(main())


HOSTILE = [
    "../../etc/passwd",
    "/absolute",
    "a/b",
    "a\\b",
    ".",
    "..",
    ".hidden",
    "-rf",
    "con",
    "nul.json",
    "x" * 400,
    "é",
    "e\u0301",
    "键 值",
    "a\nb",
    "a\x00b",
    "%00",
    "*?",
    "'; DROP TABLE log; --",
    "\ud800",
    "a.json",
    "A",
    "a",
    " ",
    "exec-1",
    "exec-10",
]


@pytest.mark.parametrize("make", kinds("stranger", "dict"))
def test_hostile_keys_and_categories(make: Maker, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()

    async def main() -> None:
        async with make(tmp_path / "inside") as storage:
            for number, key in enumerate(HOSTILE):
                await storage.save("c", key, {"n": number})
                await storage.save(key, "k", {"m": number})
            for number, key in enumerate(HOSTILE):
                assert await storage.load("c", key) == {"n": number}, key
                assert await storage.load(key, "k") == {"m": number}, key
                assert await storage.list(key) == ["k"]
            assert sorted(await storage.list("c")) == sorted(HOSTILE)
            for number, key in enumerate(HOSTILE):
                assert await storage.delete("c", key)
                assert len(await storage.list("c")) == len(HOSTILE) - number - 1
            for impossible in ("", "x" * 600):
                assert await storage.load("c", impossible) is None
                assert await storage.delete("c", impossible) is False
                with pytest.raises(Unstorable):
                    await storage.save("c", impossible, {})

    run(main())
    assert os.listdir(tmp_path) == ["inside"]


# -- many at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", kinds("stranger", "dict"))
def test_concurrent_saves_to_one_key_are_never_torn(make: Maker, tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path) as storage:
            await storage.save("c", "k", {"who": -1, "all": [-1] * 200})
            seen: list[int] = []

            async def write(who: int) -> None:
                for turn in range(5):
                    await storage.save("c", "k", {"who": who * 100 + turn, "all": [who * 100 + turn] * 200})

            async def read() -> None:
                for _ in range(30):
                    found = await storage.load("c", "k")
                    assert found is not None
                    assert found["all"] == [found["who"]] * 200
                    seen.append(found["who"])

            await asyncio.gather(*(write(who) for who in range(8)), read(), read())
            last = await storage.load("c", "k")
            assert last is not None
            assert last["who"] % 100 == 4
            assert await storage.list("c") == ["k"]
            await asyncio.gather(*(storage.save("c", f"k{n}", {"n": n}) for n in range(50)))
            assert len(await storage.list("c")) == 51
            assert len(seen) == 60

    run(main())


@pytest.mark.parametrize("make", kinds("stranger", "dict"))
def test_what_is_saved_is_the_value_at_the_time_of_the_call(make: Maker, tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path) as storage:
            data: dict[str, Any] = {"items": [0] * 20_000}
            saving = asyncio.create_task(storage.save("c", "k", data))
            await asyncio.sleep(0)  # it runs up to its first await
            data["items"][:] = [1] * 20_000
            data["more"] = object()
            await saving
            assert await storage.load("c", "k") == {"items": [0] * 20_000}

    run(main())


@pytest.mark.parametrize("make", kinds("memory", "stranger", "dict", "encrypted"))
def test_two_storages_on_one_place(make: Maker, tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path) as one, make(tmp_path) as two:
            await asyncio.gather(*(each.save("c", "k", {"n": n}) for n in range(20) for each in (one, two)))
            assert await one.load("c", "k") == await two.load("c", "k")
            assert await one.delete("c", "k")
            assert await two.load("c", "k") is None

    run(main())


@pytest.mark.parametrize("make", kinds())
def test_closing(make: Maker, tmp_path: Path) -> None:
    async def main() -> None:
        threads = threading.active_count()
        storage = make(tmp_path)
        await storage.save("c", "k", {})
        await storage.gate.append("r", {})
        await storage.aclose()
        await storage.aclose()
        if "strangers" not in type(storage).__module__:
            with pytest.raises(Unavailable, match="closed"):
                await storage.load("c", "k")
        never = make(tmp_path)
        await never.aclose()
        with pytest.raises(Unavailable, match="closed"):
            await never.gate.append("r", {})
        assert not [t.name for t in threading.enumerate() if t.name.startswith("knotline-writer")], threads

    run(main())


def test_one_that_is_never_closed_leaves_no_thread(tmp_path: Path) -> None:
    """Many never close theirs."""

    async def main() -> None:
        for n in range(5):
            await SQLiteStorage(f"p{n}", tmp_path).save("c", "k", {})

    run(main())
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("knotline"):
            thread.join(10)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("knotline")]


# -- where things are ------------------------------------------------------------------------------------------


def test_the_database_is_where_it_is_promised(tmp_path: Path) -> None:
    async def main() -> None:
        async with SQLiteStorage(project_name="demo", base_dir=tmp_path) as storage:
            assert storage.db_path == tmp_path / "projects" / "demo" / "persistence.db"
            assert storage.db_path.exists()  # from the constructor on
            assert await storage.save("checkpoint", "ckpt-e-0", {"id": 1}) == "checkpoint:ckpt-e-0"
        async with SQLiteBackend(tmp_path / "projects" / "demo" / "persistence.db") as older:
            assert isinstance(older, StorageBackend)
            assert await older.load("checkpoint", "ckpt-e-0") == {"id": 1}
        assert await MemoryStorage().save("c", "k", {}) == "c:k"

    run(main())


def test_the_json_file_is_where_it_is_promised(tmp_path: Path) -> None:
    async def main() -> None:
        async with JSONStorage(project_name="demo", base_dir=str(tmp_path)) as storage:
            place = await storage.save("checkpoint", "ckpt-e-0", {"id": "ckpt-e-0", "state": {"a": [1, 2]}})
            file = tmp_path / "projects" / "demo" / "persistence" / "checkpoint" / "ckpt-e-0.json"
            assert place == str(file)
            said = json.loads(file.read_text(encoding="utf-8"))
            assert (said["id"], said["state"]) == ("ckpt-e-0", {"a": [1, 2]})
            await storage.save("checkpoint", "ckpt-e-0", {"id": "ckpt-e-0", "state": {"a": []}})
            assert json.loads(file.read_text(encoding="utf-8"))["state"] == {"a": []}
            assert await storage.delete("checkpoint", "ckpt-e-0")
            assert not file.exists()
        async with JSONBackend(tmp_path / "plain") as older:
            assert await older.save("c", "k", {}) == str(tmp_path / "plain" / "c" / "k.json")

    run(main())


def test_two_folders_of_one_name_are_two_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: set[Path] = set()
    for parent in ("one", "two"):
        folder = tmp_path / parent / "app"
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        storage = SQLiteStorage(base_dir=tmp_path / "data")
        assert storage.db_path.parent.name.startswith("app-")
        places.add(storage.db_path)
        assert SQLiteStorage(base_dir=tmp_path / "data").db_path == storage.db_path
        run(storage.save("config", "x", {"from": parent}))
    assert len(places) == 2
    monkeypatch.chdir(tmp_path / "one" / "app")
    found: list[object] = []

    async def main() -> None:
        found.append(await SQLiteStorage(base_dir=tmp_path / "data").load("config", "x"))

    run(main())
    assert found == [{"from": "one"}]


def test_hostile_project_names(tmp_path: Path) -> None:
    places = {name: SQLiteStorage(name, tmp_path).db_path for name in HOSTILE if name != "\ud800"}
    places[""] = SQLiteStorage("", tmp_path).db_path
    assert len(set(places.values())) == len(places)
    for name, place in places.items():
        assert place.parent.parent == tmp_path / "projects", name
        assert place.resolve() == place
    assert places["A"].parent.name == "A"
    assert places["键 值"].parent.name == "键 值"
    assert places["../../etc/passwd"].parent.name.startswith("_.._etc_passwd-")


def test_home_and_relative_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert SQLiteStorage("p", "~/kept").db_path == tmp_path / "home" / "kept" / "projects" / "p" / "persistence.db"
    assert SQLiteStorage("p", "kept").db_path == tmp_path / "kept" / "projects" / "p" / "persistence.db"
    assert tmp_path / "home" in SQLiteStorage("p").db_path.parents


# -- by configuration ------------------------------------------------------------------------------------------


def test_switching_by_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        for kind, cls in (
            ("json", JSONStorage),
            ("sqlite", SQLiteStorage),
            ("memory", MemoryStorage),
            (None, JSONStorage),
        ):
            block = {"base_dir": str(tmp_path), "project_name": "p"} | ({"storage_type": kind} if kind else {})
            async with create_storage_from_config({"persistence": block}) as storage:
                assert type(storage) is cls
                # What an earlier round kept is there again: each kind has its own place.
                assert await storage.load("config", "x") == ({"n": "json"} if kind is None else None)
                await storage.save("config", "x", {"n": kind})
                assert await storage.load("config", "x") == {"n": kind}

    run(main())


def test_the_block_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        """// config.json
{
  "persistence": {
    "storage_type": "sqlite",  // "json" or "sqlite"
    "path": ".cache/tiny-claude-code/data.db"
  },
  "model": "an application's own affair", /* really */
}
""",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    storage = create_storage_from_config(file)
    assert isinstance(storage, SQLiteStorage)
    assert storage.db_path == tmp_path / ".cache" / "tiny-claude-code" / "data.db"
    config = {"persistence": {"storage_type": "sqlite", "path": Path("x.db"), "project_name": None}, "other": 1}
    found = create_storage_from_config(config)
    assert isinstance(found, SQLiteStorage)
    assert found.db_path == tmp_path / "x.db"
    for wrong, said in (
        ({"persistence": {"storage_tpye": "json"}}, "storage_type"),
        ({"persistance": {}}, "persistence"),
        ({"persistence": {"storage_type": "sqllite"}}, "sqlite"),
        ({"persistence": {"storage_type": "redis"}}, ""),
    ):
        with pytest.raises(ConfigError) as caught:
            create_storage_from_config(wrong)
        assert caught.value.suggestion == said


def test_encrypted_by_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = {"storage_type": "sqlite", "path": "x.db"}

    async def main() -> None:
        monkeypatch.setenv("MY_KEY", KEY.hex())
        named = {"persistence": block, "encryption": {"key": "env:MY_KEY"}}
        async with create_storage_from_config(named) as storage:
            assert isinstance(storage, EncryptedStorage)
            await storage.save("config", "x", {"secret word": "xyzzy"})
        # The environment alone is enough, and it opens the same store.
        monkeypatch.setenv("KNOTLINE_KEY", KEY.hex())
        async with create_storage_from_config({"persistence": block}) as storage:
            assert await storage.load("config", "x") == {"secret word": "xyzzy"}
        # Set but empty never means plain text.
        monkeypatch.setenv("KNOTLINE_KEY", "")
        async with EncryptedStorageOf({"persistence": block}) as storage:
            with pytest.raises(Error):
                await storage.load("config", "x")

    run(main())


class EncryptedStorageOf:
    """Opens nothing on entering, so that what a first use raises can be seen."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.storage = create_storage_from_config(config)

    async def __aenter__(self) -> BaseStorage:
        assert isinstance(self.storage, EncryptedStorage)
        return self.storage

    async def __aexit__(self, *_: object) -> None:
        await self.storage.aclose()


# -- encrypted -------------------------------------------------------------------------------------------------


def resting(place: Path) -> tuple[bytes, str]:
    """All bytes and all names under this folder."""
    found = sorted(place.rglob("*"))
    content = b"".join(path.read_bytes() for path in found if path.is_file())
    return content, "".join(str(path.relative_to(place)) for path in found)


@pytest.mark.parametrize("make", kinds("memory", "dict", "encrypted", "process"))
def test_nothing_can_be_read_without_the_key(make: Maker, tmp_path: Path) -> None:
    async def main() -> None:
        async with EncryptedStorage(make(tmp_path), key=KEY) as storage:
            place = await storage.save("category-word", "key-word", {"field-word": "value-word"})
            assert place == "category-word:key-word"
            await storage.gate.append("run-word", {"state-word": 1}, labels=["label-word"])
        rests, names = resting(tmp_path)
        assert len(rests) > 100
        for word in ("category-word", "key-word", "field-word", "value-word", "run-word", "state-word", "label-word"):
            assert word.encode() not in rests
            assert word not in names
        wrong = EncryptedStorage(make(tmp_path), key=KEY[::-1])
        with pytest.raises(WrongKey):
            await wrong.load("category-word", "key-word")
        with pytest.raises(WrongKey):  # and not "it is closed"
            await wrong.load("category-word", "key-word")
        await wrong.aclose()
        async with EncryptedStorage(make(tmp_path), key=KEY) as storage:
            assert await storage.load("category-word", "key-word") == {"field-word": "value-word"}

    run(main())


def test_a_passphrase_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with EncryptedStorage(SQLiteStorage("p", tmp_path), passphrase="correct horse") as storage:
            await storage.save("c", "k", {"a": 1})
        with pytest.raises(ConfigError, match="neither a key nor a passphrase"):
            EncryptedStorage(MemoryStorage())
        monkeypatch.setenv("KNOTLINE_PASSPHRASE", "correct horse")
        async with EncryptedStorage(SQLiteStorage("p", tmp_path)) as storage:
            assert await storage.load("c", "k") == {"a": 1}

    run(main())
    wrongs: list[dict[str, Any]] = [{"key": b"short"}, {"key": "text"}, {"key": KEY, "passphrase": "x"}]
    for wrong in wrongs:
        with pytest.raises(ConfigError) as caught:
            EncryptedStorage(MemoryStorage(), **wrong)
        assert "short" not in str(caught.value)


def test_damage_is_an_error_and_not_an_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with SQLiteStorage("p", tmp_path) as storage:
            await storage.save("c", "k", {"text": "x" * 3000})
            path = storage.db_path
        with sqlite3.connect(path) as raw:
            raw.execute("UPDATE log SET body = zeroblob(length(body))")
        raw.close()
        async with SQLiteStorage("p", tmp_path) as storage:
            with pytest.raises(Damaged):
                await storage.load("c", "k")

    run(main())


def test_a_third_party_need_not_call_our_constructor() -> None:
    class Minimal(DictStorage):
        def __init__(self) -> None:
            self.kept, self.loops, self.fault = {}, set(), lambda verb, category, key: None

    async def main() -> None:
        async with Minimal() as storage:
            await storage.gate.append("r", {"a": 1})
            assert await storage.gate.call(storage.store.load, "r") == {"a": 1}

    run(main())
    with pytest.raises(TypeError, match="abstract"):
        type("Three", (BaseStorage,), {"save": None, "load": None, "list": None})()


def test_names() -> None:
    assert storages.StorageBackend is BaseStorage
