"""Who looks at a storage finds the checkpoints where they were promised to be."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from knotline import CheckpointManager, JSONStorage, MemoryStorage, PersistenceManager, SQLiteStorage
from knotline.checkpoint import BaseStorage

KINDS = {
    "memory": lambda place: MemoryStorage(),
    "sqlite": lambda place: SQLiteStorage("demo", place),
    "json": lambda place: JSONStorage("demo", place),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_category_checkpoint(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        storage: BaseStorage = KINDS[kind](tmp_path)
        async with storage:
            manager = CheckpointManager(PersistenceManager(storage))
            made = [await manager.create_checkpoint("exec-1", f"s{n}", n, {"n": n}) for n in range(3)]
            await storage.save("checkpoint", "by hand", {"mine": 1})
            assert await storage.list("checkpoint") == ["by hand", *(it.id for it in made)]
            found = await storage.load("checkpoint", "ckpt-exec-1-1")
            assert found == made[1].to_dict()
            assert await storage.load("checkpoint", "by hand") == {"mine": 1}
            assert await storage.load("checkpoint", "ckpt-exec-1-9") is None
            assert await storage.delete("checkpoint", "ckpt-exec-1-1")
            assert not await storage.delete("checkpoint", "ckpt-exec-1-1")
            assert await storage.list("checkpoint") == ["by hand", "ckpt-exec-1-0", "ckpt-exec-1-2"]

    asyncio.run(main())


def test_a_person_reads_them(tmp_path: Path) -> None:
    async def main(storage: BaseStorage) -> str:
        async with storage:
            manager = CheckpointManager(PersistenceManager(storage))
            await manager.create_checkpoint("exec-1", "fetch", 0, {"rows": [1, 2]}, {"c": 1}, {})
            return storage.place_of("checkpoint", "ckpt-exec-1-0")

    file = Path(asyncio.run(main(JSONStorage("demo", tmp_path))))
    assert file == tmp_path / "projects" / "demo" / "persistence" / "checkpoint" / "ckpt-exec-1-0.json"
    shown = json.loads(file.read_text())
    assert (shown["state"], shown["context"]) == ({"rows": [1, 2]}, {"c": 1})
    assert asyncio.run(main(SQLiteStorage("demo", tmp_path))) == "checkpoint:ckpt-exec-1-0"
    other = sqlite3.connect(tmp_path / "projects" / "demo" / "persistence.db")
    (row,) = other.execute("SELECT id, data FROM persistence WHERE category='checkpoint'").fetchall()
    other.close()
    assert row[0] == "checkpoint:ckpt-exec-1-0"
    assert json.loads(row[1])["state"] == {"rows": [1, 2]}


def test_an_execution_log_is_tailed(tmp_path: Path) -> None:
    async def main() -> Path:
        async with SQLiteStorage("demo", tmp_path) as storage:
            manager = CheckpointManager(PersistenceManager(storage))
            await manager.create_checkpoint("exec-1", "fetch", 0, {"rows": [1, 2]})
            assert storage.logs is not None
            return storage.logs / "exec-1" / "execution.log"

    file = asyncio.run(main())
    said = file.read_text()
    assert "checkpoint ckpt-exec-1-0 success" in said
