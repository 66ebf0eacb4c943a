"""Saves that their callers do not wait for: in the order of the calls, bounded, drained by `flush`, never silent.

One thread does what stands in line, each to its end before the next begins. A failure is told to `failed` at once and
raised at the next flush; what stands behind it is done all the same, since each save of a run holds the whole of what
changed since the last that arrived. Whoever asks while the line is full stands in it nevertheless, so that order is
the order of the calls, and waits until its turn comes near: memory is bounded, and the disk sets the pace.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from knotline.errors import Error, Unavailable

__all__ = ["Behind"]

_MOST: Final = 256

Work = Callable[[], object]


class Behind:
    """The thread lives while there is work, and the interpreter waits for it at its end: what was asked for is done
    also when nobody closes anything, and a line that rests has no thread.
    """

    def __init__(self, *, failed: Callable[[str, Error], None] | None = None, most: int = _MOST) -> None:
        self._failed = failed
        self._most = most
        self._lock = threading.Lock()
        self._line: deque[tuple[str, Work, Future[None]]] = deque()
        self._first: Error | None = None
        self._lost = 0
        self._works = False
        self._ended = False

    @property
    def waiting(self) -> int:
        return len(self._line)

    def full(self) -> bool:
        """Would `put` wait?"""
        return len(self._line) >= self._most

    def stand(self, what: str, work: Work) -> Future[None] | None:
        """In line at once. What it gives is done when the line is short enough again; None if it is."""
        done: Future[None] = Future()
        # So that nobody who stops waiting for it can cancel it.
        done.set_running_or_notify_cancel()
        with self._lock:
            if self._ended:
                raise Unavailable(what, why="it is closed")
            self._line.append((what, work, done))
            ahead = self._line[-1 - self._most][2] if len(self._line) > self._most else None
            start, self._works = not self._works, True
        if start:
            threading.Thread(target=self._work, name="knotline-behind").start()
        return ahead

    def put(self, what: str, work: Work) -> None:
        ahead = self.stand(what, work)
        if ahead is not None:
            ahead.result()

    def last(self, what: str | None = None) -> Future[None] | None:
        """Done when all that stands in line now (for this run, say) is done, well or badly; None if nothing does."""
        with self._lock:
            return next((done for name, _, done in reversed(self._line) if what in (None, name)), None)

    def wait(self, what: str | None = None) -> None:
        """Until it is done, or has failed: `flush` says which."""
        if self._line:
            last = self.last(what)
            if last is not None:
                last.result()

    def flush(self) -> None:
        """Wait until all that stands in line is done. Raises the first failure since the last flush."""
        self.wait()
        self.complain()

    def complain(self) -> None:
        """Raise the first failure since the last flush, once."""
        with self._lock:
            first, lost, self._first, self._lost = self._first, self._lost, None, 0
        if first is not None:
            first.add_note(f"saved in the background; {lost} of what was asked for since the last flush failed")
            raise first

    def end(self) -> None:
        """Take no more. What stands in line is done."""
        with self._lock:
            self._ended = True

    def close(self) -> None:
        """End, and wait. Failures are `flush`'s to raise. Idempotent."""
        self.end()
        self.wait()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._line:
                    self._works = False
                    return
                what, work, done = self._line[0]
            try:
                work()
            except Error as error:
                self._keep(what, error)
            except Exception as error:  # noqa: BLE001 - whatever it is, flush must raise it and the thread go on
                wrapped = Unavailable(what, why=f"{type(error).__name__}: {error}")
                wrapped.__cause__ = error
                self._keep(what, wrapped)
            with self._lock:
                self._line.popleft()
            done.set_result(None)

    def _keep(self, what: str, error: Error) -> None:
        with self._lock:
            self._lost += 1
            self._first = self._first or error
        if self._failed is not None:
            self._failed(what, error)
