"""Storages as a third party would write them: four methods, nothing else of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from knotline.checkpoint import BaseStorage


class DictStorage(BaseStorage):
    """Keeps JSON text, so that what JSON cannot hold does not pass. `kept` may be shared: that is the medium."""

    def __init__(self, kept: dict[tuple[str, str], str] | None = None) -> None:
        self.kept = {} if kept is None else kept
        self.loops: set[object] = set()
        self.fault: Callable[[str, str, str], None] = lambda verb, category, key: None

    async def _see(self, verb: str, category: str, key: str = "") -> None:
        self.loops.add(asyncio.get_running_loop())
        self.fault(verb, category, key)
        await asyncio.sleep(0)

    async def save(self, category: str, key: str, data: dict[str, Any]) -> str:
        text = json.dumps(data, allow_nan=False)
        await self._see("save", category, key)
        self.kept[category, key] = text
        return f"{category}/{key}"

    async def load(self, category: str, key: str) -> dict[str, Any] | None:
        await self._see("load", category, key)
        text = self.kept.get((category, key))
        return None if text is None else json.loads(text)

    async def delete(self, category: str, key: str) -> bool:
        await self._see("delete", category, key)
        return self.kept.pop((category, key), None) is not None

    async def list(self, category: str) -> list[str]:
        await self._see("list", category)
        return [key for kept, key in self.kept if kept == category]


class NaiveFiles(BaseStorage):
    """the first sketch: a file per document, named by the raw key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def save(self, category: str, key: str, data: dict[str, Any]) -> str:
        path = self.folder / category / f"{key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=2), encoding="utf-8")
        return str(path)

    async def load(self, category: str, key: str) -> dict[str, Any] | None:
        path = self.folder / category / f"{key}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    async def delete(self, category: str, key: str) -> bool:
        path = self.folder / category / f"{key}.json"
        found = path.exists()
        path.unlink(missing_ok=True)
        return found

    async def list(self, category: str) -> list[str]:
        return [path.stem for path in (self.folder / category).glob("*.json")]
