"""The loop that a third party's storage is called back on: its own, the next one that asks, or one on a thread.

Apart from the adapter because it is the one place where the core calls upwards into asyncio, and knows no bytes.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, Final, TypeVar

from knotline.errors import ContractBroken, Error, Unavailable

__all__ = ["Home"]

_T = TypeVar("_T")
# How often somebody who waits looks whether the loop still runs.
_LOOK: Final = 1.0


class Home:
    """The loop that runs where this is made; without one, one of its own from the first call on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = _running()
        self._own: threading.Thread | None = None
        self._moving = threading.Lock()

    def settle(self) -> None:
        """Move to the loop that runs here, if the one before has ended: a program may call `asyncio.run` twice."""
        here = _running()
        with self._moving:
            if here is not None and self._loop is not None and self._loop.is_closed():
                self._loop = here

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run this on the loop, and wait here."""
        loop = self._found()
        if _running() is loop:
            work.close()
            raise ContractBroken(f"{self._name}: called on its own loop's thread, which would wait for itself")
        try:
            waiting = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError as error:
            work.close()
            raise Unavailable(self._name, why="its event loop has ended") from error
        while not wait([waiting], timeout=_LOOK).done and loop.is_running():
            pass
        if not waiting.done() and waiting.cancel():
            # Stopped between two calls of its owner: who waits here would wait for ever.
            raise Unavailable(self._name, why="its event loop does not run")
        try:
            return waiting.result()
        except Error:
            raise
        except Exception as error:
            raise Unavailable(self._name, why=f"{type(error).__name__}: {error}") from error

    def end(self) -> None:
        """The thread, if there is one. A loop of somebody else's goes on."""
        if self._own is not None and self._loop is not None:
            _stop(self._loop)
            self._own.join()

    def _found(self) -> asyncio.AbstractEventLoop:
        with self._moving:
            loop = self._loop
            if loop is None or (loop.is_closed() and self._own is None):
                loop = self._loop = asyncio.new_event_loop()
                self._own = threading.Thread(target=_run, args=(loop,), name="knotline-storage", daemon=True)
                self._own.start()
                weakref.finalize(self, _stop, loop).atexit = False
            return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it has ended already
        loop.call_soon_threadsafe(loop.stop)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
