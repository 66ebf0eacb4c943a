"""What a user writes, as pyright sees it: never run, only checked (`test_user_code.py`, and `make check`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import knotline
from knotline import (
    BaseStorage,
    EncryptedStorage,
    Header,
    Held,
    JSONBackend,
    JSONStorage,
    MemoryStorage,
    Settings,
    SQLiteBackend,
    SQLiteStorage,
    StorageBackend,
    Store,
    create_storage_from_config,
    load_settings,
    open_backend,
)
from knotline.backends import Backend
from knotline.errors import ConfigError, Conflict, Error, NotFound, Unstorable, WrongKey
from knotline.store.gate import Gate


class Mine(BaseStorage):
    """Four methods are all; the older name is the same class."""

    async def save(self, category: str, key: str, data: dict[str, Any]) -> str:
        return f"{category}:{key}"

    async def load(self, category: str, key: str) -> dict[str, Any] | None:
        return None

    async def delete(self, category: str, key: str) -> bool:
        return False

    async def list(self, category: str) -> list[str]:
        return []


class Three(StorageBackend):
    async def save(self, category: str, key: str, data: dict[str, Any]) -> str:
        return key


def abstract() -> None:
    Three()  # pyright: ignore[reportAbstractUsage]
    BaseStorage()  # pyright: ignore[reportAbstractUsage]


async def storages(place: Path, key: bytes) -> None:
    sqlite = SQLiteStorage(project_name="demo", base_dir=place)
    assert_type(sqlite.db_path, Path)
    json = JSONStorage("demo", str(place), durability="process")
    assert_type(json.storage_dir, Path)
    older: list[StorageBackend] = [SQLiteBackend(place / "x.db"), JSONBackend(str(place)), Mine(), MemoryStorage()]
    assert_type(EncryptedStorage(older[0], key=key).inner, BaseStorage)
    EncryptedStorage(sqlite, passphrase="correct horse")
    EncryptedStorage(sqlite)
    SQLiteStorage("demo", durability="backgroud")  # pyright: ignore[reportArgumentType]
    EncryptedStorage(sqlite, key="text")  # pyright: ignore[reportArgumentType]
    async with sqlite as storage:
        assert_type(storage, SQLiteStorage)
        assert_type(await storage.save("checkpoint", "k", {"a": 1}), str)
        assert_type(await storage.load("checkpoint", "k"), dict[str, Any] | None)
        assert_type(await storage.delete("checkpoint", "k"), bool)
        assert_type(await storage.list("checkpoint"), list[str])
        assert_type(await storage.flush(), None)
        assert_type(storage.store, Store)
        assert_type(await storage.opened(), Store)
        assert_type(storage.gate, Gate)
        assert_type(await storage.gate.append("r", {"a": 1}, labels=["x"]), Header)
    async with Mine() as mine:
        assert_type(mine, Mine)


def configured(place: Path) -> None:
    assert_type(create_storage_from_config({"persistence": {"storage_type": "sqlite", "base_dir": place}}), BaseStorage)
    assert_type(create_storage_from_config(place / "config.json"), BaseStorage)
    assert_type(create_storage_from_config(), BaseStorage)
    settings = load_settings(path=place, durability="process")
    assert_type(settings, Settings)
    assert_type(settings.place, Path | None)
    assert_type(settings.origin("path"), str)
    assert_type(open_backend(settings), Backend)
    load_settings(pth=place)  # pyright: ignore[reportCallIssue]


def saved() -> Iterator[int]:
    with Store(open_backend("memory:")) as store:
        header = store.append("r", {"messages": []}, note={"step": 1}, labels=["x"], expected=-1)
        assert_type(header, Header)
        assert_type(header.rev, int)
        assert_type(store.rollback("r", header.rev), Header)
        assert_type(store.header("r"), Header)
        held = store.acquire("r", "me", ttl=10.0)
        assert_type(held, Held)
        store.append("r", {}, held=held)
        store.append("r", {}, ["x"])  # pyright: ignore[reportCallIssue]
        yield header.rev


def failed() -> Error | None:
    try:
        next(saved())
    except Conflict as error:
        assert_type(error.expected, int)
        assert_type(error.found, int)
        assert_type(error.run, str)
    except NotFound as error:
        assert_type(error.kind, str)
        return error
    except Unstorable as error:
        assert_type(error.path, str)
    except WrongKey as error:
        assert_type(error.tried, tuple[str, ...])
    except ConfigError as error:
        assert_type(error.suggestion, str)
    except knotline.errors.Error as error:
        assert_type(error.hint, str)
    return None
