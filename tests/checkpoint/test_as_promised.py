"""The storages, line by line as a user is told to type them; and the first lists of unit tests."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from knotline import (
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
from knotline.errors import ConfigError, Unavailable, Unsupported

KEY = b"thirty-two bytes of key material"


def run(work: Coroutine[Any, Any, object]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a name, and a home beside it."""
    (tmp_path / "work" / "app").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "app")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


# -- where they are --------------------------------------------------------------------------------------------


def test_sqlite_storage(tmp: Path) -> None:
    async def main() -> None:
        storage = SQLiteStorage(project_name="demo", base_dir=tmp)
        assert (tmp / "projects" / "demo" / "persistence.db").is_file()
        assert await storage.save("checkpoint", "ckpt-exec-123-0", {"id": "x"}) == "checkpoint:ckpt-exec-123-0"
        await storage.aclose()

    run(main())


def test_json_storage(tmp: Path) -> None:
    async def main() -> None:
        storage = JSONStorage(project_name="demo", base_dir=tmp)
        file = tmp / "projects" / "demo" / "persistence" / "checkpoint" / "ckpt-exec-123-0.json"
        assert await storage.save("checkpoint", "ckpt-exec-123-0", {"id": "x", "名": "值"}) == str(file)
        said = json.loads(file.read_text(encoding="utf-8"))
        assert (said["id"], said["名"]) == ("x", "值")
        assert "值" in file.read_text(encoding="utf-8")  # to be read by people
        assert await storage.delete("checkpoint", "ckpt-exec-123-0")
        assert not file.exists()
        await storage.aclose()

    run(main())


def test_memory_storage() -> None:
    async def main() -> None:
        storage = MemoryStorage()
        await storage.save("config", "x", {"a": 1})
        assert await storage.load("config", "x") == {"a": 1}
        await storage.aclose()

    run(main())


def test_encrypted_storage(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[tuple[dict[str, Any], str, str]] = [
        ({"key": KEY}, "", ""),
        ({"passphrase": "correct horse"}, "", ""),
        ({}, "KNOTLINE_KEY", KEY.hex()),
        ({}, "KNOTLINE_PASSPHRASE", "correct horse"),
    ]

    async def main() -> None:
        for number, (more, name, secret) in enumerate(ways):
            with monkeypatch.context() as patch:
                if name:
                    patch.setenv(name, secret)
                storage = EncryptedStorage(SQLiteStorage(f"p{number}", tmp), **more)
                await storage.save("config", "x", {"word": "xyzzy"})
                assert await storage.load("config", "x") == {"word": "xyzzy"}
                await storage.aclose()
            for file in (tmp / "projects" / f"p{number}").iterdir():
                assert b"xyzzy" not in file.read_bytes()

    run(main())
    assert inspect.signature(EncryptedStorage).parameters["key"].default is None


def test_older_spellings(tmp: Path) -> None:
    async def main() -> None:
        assert StorageBackend is BaseStorage
        assert await JSONBackend(str(tmp / "dir")).save("c", "k", {}) == str(tmp / "dir" / "c" / "k.json")
        assert await JSONBackend(storage_dir=tmp / "dir").load("c", "k") == {}
        assert await SQLiteBackend(str(tmp / "x.db")).save("c", "k", {}) == "c:k"
        assert await SQLiteBackend(db_path=tmp / "x.db").load("c", "k") == {}
        assert (tmp / "x.db").is_file()

    run(main())


# -- by configuration ------------------------------------------------------------------------------------------


def test_create_storage_from_config(tmp: Path) -> None:
    """storage_type: json when the block names none; sqlite; memory. No base_dir: the platform's data directory."""
    named = create_storage_from_config({"persistence": {"storage_type": "sqlite", "base_dir": tmp}})
    assert isinstance(named, SQLiteStorage)
    assert named.db_path.name == "persistence.db"
    assert named.db_path.parent.parent == tmp / "projects"
    # No project_name: the folder's name and a hash of its absolute path.
    name, _, digest = named.db_path.parent.name.rpartition("-")
    assert name == "app"
    assert len(digest) == 16
    assert int(digest, 16)
    assert named.db_path == SQLiteStorage(base_dir=tmp).db_path
    home = create_storage_from_config({"persistence": {"storage_type": "sqlite"}})
    assert isinstance(home, SQLiteStorage)
    assert tmp / "home" in home.db_path.parents
    tilde = create_storage_from_config({"persistence": {"storage_type": "sqlite", "base_dir": "~/.cache/tiny"}})
    assert isinstance(tilde, SQLiteStorage)
    assert tilde.db_path.parents[2] == tmp / "home" / ".cache" / "tiny"
    assert isinstance(create_storage_from_config({"persistence": {"storage_type": "memory"}}), MemoryStorage)
    for storage in (named, home, tilde):
        run(storage.aclose())


def test_json_is_what_a_block_means_that_names_none(tmp: Path) -> None:
    for config in ({"persistence": {"base_dir": tmp}}, {"persistence": {}}, {}):
        storage = create_storage_from_config(config)
        assert isinstance(storage, JSONStorage)
        assert storage.storage_dir.name == "persistence"
        assert storage.storage_dir.parents[1].name == "projects"
        run(storage.aclose())


@pytest.mark.parametrize(
    ("kind", "path", "where"),
    [("sqlite", "data.db", "data.db"), ("sqlite", "folder", "folder/persistence.db"), ("json", "folder", "folder")],
)
def test_a_path_is_a_database_file_or_a_folder(kind: str, path: str, where: str, tmp: Path) -> None:
    (tmp / "work" / "app" / "folder").mkdir()
    storage = create_storage_from_config({"persistence": {"storage_type": kind, "path": path}})
    found = storage.db_path if isinstance(storage, SQLiteStorage) else None
    found = storage.storage_dir if isinstance(storage, JSONStorage) else found
    assert found == tmp / "work" / "app" / where
    run(storage.aclose())


PLANNED = """{
  "persistence": {
    "storage_type": "sqlite",  // "json" or "sqlite"
    "path": ".cache/tiny-claude-code/data.db"
  }
}
"""


@pytest.mark.parametrize("switched", ["sqlite", "json"])
def test_the_config_file(switched: str, tmp: Path) -> None:
    """Their file as it stands, `//` included; then switched by editing one word of it."""
    file = tmp / "config.json"
    file.write_text(PLANNED.replace('"storage_type": "sqlite"', f'"storage_type": "{switched}"'), encoding="utf-8")

    async def main() -> None:
        async with create_storage_from_config(file) as storage:
            assert type(storage) is {"sqlite": SQLiteStorage, "json": JSONStorage}[switched]
            await storage.save("checkpoint", "ckpt-e-0", {"id": "ckpt-e-0"})
            assert await storage.list("checkpoint") == ["ckpt-e-0"]
        there = tmp / ".cache" / "tiny-claude-code" / "data.db"
        assert there.is_file() if switched == "sqlite" else (there / "checkpoint" / "ckpt-e-0.json").is_file()

    run(main())


def test_what_a_mistake_says(tmp: Path) -> None:
    """The thing, what was found, what may stand there, and what was probably meant."""
    with pytest.raises(ConfigError) as caught:
        create_storage_from_config({"persistence": {"storage_type": "sqllite"}})
    found, _, meant = str(caught.value).partition("; ")
    assert found == "config: persistence.storage_type: found text 'sqllite', wanted one of json, sqlite, memory"
    assert meant == "did you mean 'sqlite'?"
    with pytest.raises(ConfigError, match=r"nowhere\.json: found No such file or directory, wanted a file to read"):
        create_storage_from_config(tmp / "nowhere.json")
    (tmp / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(Unavailable, match="Not a directory"):
        SQLiteStorage("p", tmp / "file")


# -- the four methods, and the fifth ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "sqlite", "memory", "encrypted"])
def test_the_four_methods(kind: str, tmp: Path) -> None:
    """The first lists: every category; nothing there is None, False and []; saving again replaces."""

    async def main() -> None:
        storage = create_storage_from_config(
            {"persistence": {"storage_type": "memory" if kind == "encrypted" else kind, "base_dir": tmp}}
        )
        if kind == "encrypted":
            storage = EncryptedStorage(storage, key=KEY)
        async with storage as same:
            assert same is storage
            for category in ("checkpoint", "conversation", "history"):
                assert await storage.load(category, "k") is None
                assert await storage.delete(category, "k") is False
                assert await storage.list(category) == []
                place = await storage.save(category, "k", {"n": 1})
                assert place == (place if kind == "json" else f"{category}:k")
                assert await storage.save(category, "k", {"n": 2}) == place
                assert await storage.load(category, "k") == {"n": 2}
                assert await storage.list(category) == ["k"]
                assert await storage.delete(category, "k") is True
                assert await storage.load(category, "k") is None
        with pytest.raises(Unavailable, match="closed"):
            await storage.save("c", "k", {})

    run(main())


def test_leases_of_a_third_party_are_unsupported() -> None:
    class MyStorage(BaseStorage):
        kept: dict[tuple[str, str], dict[str, Any]] = {}  # noqa: RUF012 - as people write it

        async def save(self, category: str, key: str, data: dict[str, Any]) -> str:
            self.kept[category, key] = data
            return key

        async def load(self, category: str, key: str) -> dict[str, Any] | None:
            return self.kept.get((category, key))

        async def delete(self, category: str, key: str) -> bool:
            return self.kept.pop((category, key), None) is not None

        async def list(self, category: str) -> list[str]:
            return [key for at, key in self.kept if at == category]

    async def main() -> None:
        async with MyStorage() as storage:
            await storage.gate.append("r", {"n": 1})
            with pytest.raises(Unsupported, match="a lease"):
                await storage.gate.call(storage.store.acquire, "r", "me", ttl=1.0)

    run(main())
