"""Retention while an application runs: at its start and from time to time, beside the saves and never in their way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

__all__ = ["Cleaner"]


class Cleaner:
    """A task of the loop that it was made on. What goes wrong in a turn is told to `failed`; the next tries again."""

    def __init__(
        self,
        clean: Callable[[], Awaitable[object]],
        *,
        every: float | None,
        failed: Callable[[Exception], object],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`every` is in seconds; None cleans once, now."""
        self._clean = clean
        self._every = every
        self._failed = failed
        self._sleep = sleep
        self._busy = self._ending = False
        self._task = asyncio.get_running_loop().create_task(self._work(), name="knotline-cleaner")

    async def _work(self) -> None:
        while not self._ending:
            self._busy = True
            try:
                await self._clean()
            except Exception as error:  # noqa: BLE001 - whatever it was, whoever saves must not notice
                self._failed(error)
            self._busy = False
            if self._every is None or self._ending:
                return
            await self._sleep(self._every)

    async def aclose(self) -> None:
        """Ends it, after the turn that is under way. Idempotent."""
        if self._task.get_loop() is not asyncio.get_running_loop():
            return  # the loop that it ran on is gone, and it with it
        self._ending = True
        if not self._busy:
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
