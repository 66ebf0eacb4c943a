"""The storages that every promise of the managers is tested on. One line is one storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.strangers import DictStorage

from knotline.checkpoint import (
    BaseStorage,
    CheckpointManager,
    EncryptedStorage,
    ExecutionTracker,
    JSONStorage,
    MemoryStorage,
    PersistenceManager,
    SQLiteStorage,
)
from knotline.runner import ExecutionRecovery

KEY = bytes(range(32))
STORAGES: dict[str, Callable[[Path], BaseStorage]] = {
    "memory": lambda place: MemoryStorage(),
    "sqlite": lambda place: SQLiteStorage("demo", place),
    "json": lambda place: JSONStorage("demo", place),
    "encrypted": lambda place: EncryptedStorage(SQLiteStorage("demo", place), key=KEY),
    "stranger": lambda place: DictStorage(),
}
on_every_storage = pytest.mark.parametrize("kind", STORAGES)


@dataclass
class Desk:
    """All the promised classes on one storage; nothing waits, and chance is a half."""

    storage: BaseStorage
    persistence: PersistenceManager
    manager: CheckpointManager
    tracker: ExecutionTracker
    recovery: ExecutionRecovery
    slept: list[float]


@asynccontextmanager
async def desk(kind: str, place: Path, **more: Any) -> AsyncIterator[Desk]:
    storage = STORAGES[kind](place)
    persistence = PersistenceManager(storage)
    manager = CheckpointManager(persistence)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    recovery = ExecutionRecovery(manager, persistence, **{"sleep": sleep, "chance": lambda: 0.5, **more})
    try:
        yield Desk(storage, persistence, manager, ExecutionTracker(persistence), recovery, slept)
    finally:
        await persistence.aclose()


def run(work: Coroutine[Any, Any, object]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work, 60)

    asyncio.run(main())
