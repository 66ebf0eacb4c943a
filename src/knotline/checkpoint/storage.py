"""The storages that ship: documents in memory, in a SQLite file, in JSON files, and encrypted over any of them.

They are one class on four backends: what is saved is a document of the store (a log with retention 1), so that it
is durable, never torn, and hashed when it is read, whichever storage keeps it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from knotline.backends import Backend, MemoryBackend, SqliteBackend
from knotline.backends.keys import KEY_VARIABLE, PASSPHRASE_VARIABLE, KeySource, Passphrase, as_sources
from knotline.checkpoint.base import BaseStorage, Names
from knotline.codec import private
from knotline.config import Durability, Settings, expand, from_block, load_settings, nearest, read_config
from knotline.errors import ConfigError, NotFound, Unstorable
from knotline.store.names import document_key
from knotline.timeline import Timeline
from knotline.timeline.behind import Behind

if TYPE_CHECKING:
    from knotline.backends.files import FilesBackend

__all__ = [
    "EncryptedStorage",
    "JSONBackend",
    "JSONStorage",
    "MemoryStorage",
    "SQLiteBackend",
    "SQLiteStorage",
    "StorageBackend",
    "create_storage_from_config",
]

StorageBackend = BaseStorage
"""The older spelling."""

_ARGUMENT: Final = "argument"
_KNOTS: Final = "checkpoint"
_PAGE: Final = 1000
_KEY_BYTES: Final = 32


async def _until(done: Future[None] | None) -> None:
    if done is not None:
        await asyncio.wrap_future(done)


class _Documents(BaseStorage):
    """The four methods on a store. The checkpoints of all runs are in the category `checkpoint` too."""

    def __init__(self, durability: Durability = "disk") -> None:
        known: tuple[str, ...] = get_args(Durability)
        if durability not in known:
            meant = nearest(str(durability), known)
            wanted = f"one of {', '.join(known)}"
            raise ConfigError(_ARGUMENT, "durability", found=repr(durability), wanted=wanted, suggestion=meant)
        self.durability: Durability = durability
        self._behind = Behind()

    async def save(self, category: str, key: str, data: Mapping[str, Any]) -> str:
        if not isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise Unstorable(key, why=f"a document is a dict, not {type(data).__name__}")
        # Copied before the first await: what the caller does to it next is not saved, and cannot tear it.
        copy = private(data, key)
        if self.durability == "background":
            document_key(category, key)  # refused here and now, not at some flush
            self._prepare()  # before the first await: the order of the calls is the order of the saves
            await _until(self._behind.stand(f"{category}/{key}", lambda: self.store.put(category, key, copy)))
            if self._opened is None:
                await self.opened()  # a wrong key is said at once, and `place_of` needs the store
        else:
            await self._cross(lambda: self.store.put(category, key, copy, sync=self.durability == "disk"))
        return self.place_of(category, key)

    async def load(self, category: str, key: str) -> dict[str, Any] | None:
        await _until(self._behind.last())
        try:
            return await self._cross(lambda: cast("dict[str, Any]", self.store.get(category, key)))
        except NotFound as error:
            if (error.kind, error.name) != (category, key):
                raise  # something that it is made of is missing, which is not the same as nothing
            return await self._cross(lambda: self._knot(key)) if category == _KNOTS else None
        except Unstorable:
            return None  # a name under which nothing can be saved

    async def delete(self, category: str, key: str) -> bool:
        await _until(self._behind.last())
        try:
            gone = await self._cross(lambda: self.store.remove(category, key))
        except Unstorable:
            return False
        if category != _KNOTS:
            return gone
        return await self._cross(lambda: Timeline(self.store).delete(key)) or gone

    async def list(self, category: str) -> Names:
        await _until(self._behind.last())
        names = await self._cross(lambda: self.store.names(category))
        return names if category != _KNOTS else sorted({*names, *await self._cross(self._knots)})

    def _knot(self, key: str) -> dict[str, Any] | None:
        try:
            return Timeline(self.store).load(key).to_dict()
        except NotFound as error:
            if error.kind != _KNOTS:
                raise
            return None

    def _knots(self) -> Names:
        timeline, found, after = Timeline(self.store), list[str](), None
        while True:
            page = timeline.list(limit=_PAGE, after=after)
            found += [each.id for each in page]
            if page.next is None:
                return found
            after = page.next

    async def flush(self) -> None:
        await _until(self._behind.last())
        self._behind.complain()

    async def _drain(self) -> None:
        self._behind.end()
        await self.flush()

    def _prepare(self) -> None:
        """Nothing: opening these needs no loop."""


class MemoryStorage(_Documents):
    """Gone when it is closed: for tests, and for runs that need not outlive their process."""

    def __init__(self) -> None:
        super().__init__()

    def _open(self) -> Backend:
        return MemoryBackend()


class SQLiteStorage(_Documents):
    """`<base_dir>/projects/<project>/persistence.db`, or the file `path`; any number of processes may share it.

    Without a `base_dir` it is the platform's data folder. Without a `project_name` the project is the folder that
    one works in: its name and a hash of its path.
    """

    shown = True

    def __init__(
        self,
        project_name: str | None = None,
        base_dir: str | os.PathLike[str] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "disk",
    ) -> None:
        super().__init__(durability)
        self.db_path = _place("sqlite", project_name, base_dir, path)
        self.logs = _logs(self.db_path, path)
        # Opened at once: a file that is not ours is refused where it is named.
        _ = self.store

    def _open(self) -> Backend:
        return SqliteBackend(self.db_path)


class JSONStorage(_Documents):
    """`<base_dir>/projects/<project>/persistence/<category>/<key>.json`, or the same under the folder `path`.

    The files are for reading: `save` gives the path of the one that it wrote.
    """

    shown = True

    def __init__(
        self,
        project_name: str | None = None,
        base_dir: str | os.PathLike[str] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "disk",
    ) -> None:
        super().__init__(durability)
        self.storage_dir = _place("json", project_name, base_dir, path)
        self.logs = _logs(self.storage_dir, path)
        _ = self.store

    def _open(self) -> Backend:
        from knotline.backends.files import FilesBackend  # noqa: PLC0415 - looked up only by those who use it

        return FilesBackend(self.storage_dir)

    def place_of(self, category: str, key: str) -> str:
        return str(cast("FilesBackend", self.store.backend).alias_path(category, key))


class SQLiteBackend(SQLiteStorage):
    """The older spelling: by the path of the file."""

    def __init__(self, db_path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(path=db_path)


class JSONBackend(JSONStorage):
    """The older spelling: by the folder."""

    def __init__(self, storage_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__(path=storage_dir)


class EncryptedStorage(_Documents):
    """Everything that `inner` would keep, encrypted: by a key of 32 bytes, a passphrase, or a source of either.

    With neither, the environment has it: `KNOTLINE_KEY` or `KNOTLINE_PASSPHRASE`. The storage is opened when it is
    first used (making a key of a passphrase takes a tenth of a second), and a wrong key is refused then. Closing it
    closes `inner`, which must not be used beside it.
    """

    def __init__(
        self,
        inner: BaseStorage,
        key: bytes | KeySource | Sequence[KeySource] | None = None,
        passphrase: str | None = None,
    ) -> None:
        super().__init__(inner.durability if isinstance(inner, _Documents) else "disk")
        self.inner: BaseStorage = inner
        self._sources = _sources(key, passphrase)

    def _prepare(self) -> None:
        self.inner._prepare()

    def _open(self) -> Backend:
        from knotline.backends.encrypted import EncryptedBackend  # noqa: PLC0415 - needs an extra

        return EncryptedBackend(self.inner.store.backend, self._sources)

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            await self.inner.aclose()


def create_storage_from_config(
    config: Mapping[str, Any] | str | os.PathLike[str] | Settings | None = None,
) -> BaseStorage:
    """The storage that the block "persistence" of a configuration describes; encrypted if "encryption" says so.

    A path is a file that holds it (comments are fine, and relative paths in it start at its folder). None is the
    configuration that holds here: arguments are missing then, so it begins with the environment.
    """
    if config is None:
        settings = load_settings()
    elif isinstance(config, Settings):
        settings = config
    elif isinstance(config, Mapping):
        settings = from_block(config)
    else:
        file = Path(os.path.abspath(config))
        settings = from_block(read_config(file), origin=str(file), base=file.parent)
    if settings.place is None:
        storage: BaseStorage = MemoryStorage()
    elif settings.storage_type == "json":
        storage = JSONStorage(path=settings.place, durability=settings.durability)
    else:
        storage = SQLiteStorage(path=settings.place, durability=settings.durability)
    sources = settings.sources()
    return EncryptedStorage(storage, key=sources) if sources else storage


def _place(
    kind: str,
    project_name: str | None,
    base_dir: str | os.PathLike[str] | None,
    path: str | os.PathLike[str] | None,
) -> Path:
    """The settings know where things are; here only what a caller said is brought to them."""
    settings = Settings(
        storage_type="sqlite" if kind == "sqlite" else "json",
        path=_expanded("path", path),
        base_dir=_expanded("base_dir", base_dir),
        project_name=project_name,
    )
    assert settings.place is not None  # noqa: S101 - neither of the two kinds is in memory
    return settings.place


def _logs(place: Path, path: str | os.PathLike[str] | None) -> Path:
    """In the project's folder; for a place of the caller's own choice, under its name."""
    return place.parent / "executions" if path is None else place.with_name(f"{place.name}.executions")


def _expanded(key: str, said: str | os.PathLike[str] | None) -> Path | None:
    return None if said is None else expand(said, Path.cwd(), file=_ARGUMENT, key=key)


def _sources(key: bytes | KeySource | Sequence[KeySource] | None, passphrase: str | None) -> tuple[KeySource, ...]:
    if key is not None and passphrase is not None:
        raise ConfigError(_ARGUMENT, "key", found="both a key and a passphrase", wanted="one of them")
    if passphrase is not None:
        return (Passphrase(passphrase),)
    if isinstance(key, str) or (isinstance(key, bytes) and len(key) != _KEY_BYTES):
        found = "text" if isinstance(key, str) else f"{len(key)} bytes"
        raise ConfigError(_ARGUMENT, "key", found=found, wanted=f"{_KEY_BYTES} bytes")
    if key is None and not {KEY_VARIABLE, PASSPHRASE_VARIABLE} & os.environ.keys():
        wanted = f"key=, passphrase=, {KEY_VARIABLE} or {PASSPHRASE_VARIABLE}"
        raise ConfigError(_ARGUMENT, "key", found="neither a key nor a passphrase", wanted=wanted)
    return as_sources(key)
