"""Saves that nobody waits for: what `durability="background"` means for documents.

They are done one after the other, in the order in which they were asked for. The line is bounded: whoever asks while
it is full waits for its turn to come near. Apart from the storages because it knows nothing of documents.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from knotline.errors import Unavailable

__all__ = ["Behind"]

_LONGEST: Final = 256


class Behind:
    """A line of work and the thread that does it.

    The thread lives while there is work, and the interpreter waits for it at its end: what was asked for is done also
    when nobody closes anything, and a storage that rests has no thread.
    """

    def __init__(self, *, longest: int = _LONGEST) -> None:
        self._longest = longest
        self._lock = threading.Lock()
        self._line: deque[tuple[Callable[[], object], Future[None]]] = deque()
        self._failed: list[Exception] = []
        self._lost = 0
        self._works = False
        self._ended = False

    async def add(self, work: Callable[[], object]) -> None:
        """In line at once, before anything is awaited; back when the line is short enough."""
        ahead = self._stand(work)
        if ahead is not None:
            await asyncio.wrap_future(ahead)

    def _stand(self, work: Callable[[], object]) -> Future[None] | None:
        done: Future[None] = Future()
        # So that nobody who stops waiting for it can cancel it.
        done.set_running_or_notify_cancel()
        with self._lock:
            if self._ended:
                raise Unavailable("saving in the background", why="it is closed")
            self._line.append((work, done))
            ahead = self._line[-1 - self._longest][1] if len(self._line) > self._longest else None
            start, self._works = not self._works, True
        if start:
            threading.Thread(target=self._work, name="knotline-behind").start()
        return ahead

    async def settled(self) -> None:
        """All that was in line before is done, well or badly."""
        with self._lock:
            last = self._line[-1][1] if self._line else None
        if last is not None:
            await asyncio.wrap_future(last)

    async def flush(self) -> None:
        """All that was in line before is done, or its first failure since the last flush is raised, once."""
        await self.settled()
        with self._lock:
            failed, lost, self._failed, self._lost = self._failed, self._lost, [], 0
        if failed:
            failed[0].add_note(f"saved in the background; {lost} of what was asked for since the last flush failed")
            raise failed[0]

    async def end(self) -> None:
        """Take no more, and flush."""
        with self._lock:
            self._ended = True
        await self.flush()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._line:
                    self._works = False
                    return
                work, done = self._line[0]
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next flush raises it
                with self._lock:
                    self._lost += 1
                    if not self._failed:
                        self._failed.append(error)
            with self._lock:
                self._line.popleft()
            done.set_result(None)
