"""A clock that moves only when it is told to, so that tests of leases and ages neither wait nor race."""

from __future__ import annotations

import threading

__all__ = ["FakeClock"]


class FakeClock:
    """Call it for the time; `advance` moves it (backwards too, as real clocks do)."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds
