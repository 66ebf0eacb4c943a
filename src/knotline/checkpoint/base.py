"""What a storage is: four methods that a third party writes, and what it gets for them.

Every storage has a `store`, so that runs, undo and forks work on it too: ours are made on one, a third party's is
put under one by the adapter. All of a storage's own I/O crosses from asyncio in `_cross`.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from knotline.backends import Backend
from knotline.errors import Unavailable
from knotline.store import Store
from knotline.store.gate import Gate

__all__ = ["BaseStorage", "Names"]

# In the class below, `list` is a method.
Names = list[str]
_T = TypeVar("_T")


class BaseStorage(ABC):
    """Documents by category and key. Write `save`, `load`, `delete` and `list`; everything else is here.

    What `save` is given is plain data (JSON's types), and a later `load` must give it back. One process at a time
    may write to a third party's storage: four such methods cannot tell two writers apart.
    """

    # Class attributes, because a third party need not call our constructor.
    _opened: Store | None = None
    _gate: Gate | None = None
    _aside: weakref.finalize[..., BaseStorage] | None = None
    _closed: bool = False

    logs: Path | None = None
    """The folder for execution logs that a person can tail; None where there is no place for them."""
    shown: bool = False
    """Are entries given the names under which people look for them?"""

    def place_of(self, category: str, key: str) -> str:
        """What `save` answers."""
        return f"{category}:{key}"

    @abstractmethod
    async def save(self, category: str, key: str, data: dict[str, Any]) -> str:
        """Keep it under this name, in place of what was there; gives the place where it is."""

    @abstractmethod
    async def load(self, category: str, key: str) -> dict[str, Any] | None:
        """What was saved last; None if there is nothing."""

    @abstractmethod
    async def delete(self, category: str, key: str) -> bool:
        """False if there was nothing."""

    @abstractmethod
    async def list(self, category: str) -> Names:
        """The keys of this category."""

    # -- what it gets ------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store on this storage, opened when it is first asked for. On a loop prefer `await opened()`."""
        if self._opened is None:
            with self._opening():
                if self._opened is None:
                    self._opened = Store(self._open())
        return self._opened

    async def opened(self) -> Store:
        """The store. Opening may take long (a passphrase) and may need this loop (a third party's storage)."""
        self._prepare()
        return self._opened or await asyncio.to_thread(lambda: self.store)

    @property
    def gate(self) -> Gate:
        """The crossing of this storage; whoever saves runs on its store does so here, and shares its syncs."""
        if self._gate is None:
            with self._opening():
                if self._gate is None:
                    gate = self._gate = Gate(self.store)
                    # Many never close a storage. Its writer threads must not outlive it; nobody waits for them.
                    self._aside = weakref.finalize(self, _close_aside, gate)
                    self._aside.atexit = False
        elif not self._closed:
            self._prepare()  # another loop than last time may ask
        return self._gate

    async def flush(self) -> None:  # noqa: B027 - a third party need not write it
        """Back when everything that was saved is safe. It is when `save` is back, except with "background"."""

    async def aclose(self) -> None:
        """Flushes, and gives back files and threads. Idempotent; what a flush would raise is raised here, once."""
        try:
            await self._drain()  # still open: what waits may be the first that needs the store
        finally:
            if not self._closed:
                self._closed = True
                if self._opened is not None:
                    await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        await self.opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _drain(self) -> None:  # noqa: B027 - the same
        """What closing waits for. Not `flush`: that is a third party's to write."""

    # -- parts -------------------------------------------------------------------------------------------------

    @contextmanager
    def _opening(self) -> Generator[None]:
        """One at a time. The lock is made here and not in a constructor, as above; `setdefault` is atomic."""
        with vars(self).setdefault("_lock", threading.RLock()):
            if self._closed:
                raise Unavailable(type(self).__name__, why="it is closed")
            yield

    def _prepare(self) -> None:
        """What must happen on the loop before the store is opened on a thread: the adapter has to know its loop."""
        from knotline.checkpoint.adapter import AdapterBackend  # noqa: PLC0415 - it needs the class above

        backend = self.store.backend
        if isinstance(backend, AdapterBackend):
            backend.settle()

    def _open(self) -> Backend:
        """The backend under the store. Here: the adapter, which reads nothing before it is first used."""
        from knotline.checkpoint.adapter import AdapterBackend  # noqa: PLC0415 - it needs the class above

        return AdapterBackend(self)

    async def _cross(self, verb: Callable[..., _T], *args: Any, **more: Any) -> _T:
        if self._gate is None:
            await self.opened()
        return await self.gate.call(verb, *args, **more)

    def _close(self) -> None:
        if self._aside is not None:
            self._aside.detach()
        if self._gate is not None:
            self._gate.close()
        if self._opened is not None:
            self._opened.close()


def _close_aside(gate: Gate) -> None:
    threading.Thread(target=gate.close, name="knotline-closing", daemon=True).start()
