"""The one crossing from asyncio to the synchronous core, and the place where concurrent saves share one sync.

Values are compared and encoded on the caller's side, before the first await; only bytes cross. A writer thread
takes whatever has queued up while it was busy and commits it as one batch. Each save has its own outcome, and
a caller that is cancelled harms nobody: its save is settled all the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, cast

from knotline.backends import Failed, Outcome, Save
from knotline.codec import private
from knotline.errors import Unavailable, Unstorable
from knotline.records import Header
from knotline.store.log import Decide, Held, Store, decided
from knotline.store.names import run_key
from knotline.store.warm import Draft, Warm

__all__ = ["Gate"]

_BATCH: Final = 512
_TRIES: Final = 10_000
_MOMENT: Final = 0.002


class _Crossing:
    """A save on its way to the writer, and what to do on the loop when its outcome is known."""

    __slots__ = ("deliver", "loop", "outcome", "save", "sync")

    def __init__(self, save: Save, deliver: Callable[[Outcome], None], *, sync: bool) -> None:
        self.save = save
        self.sync = sync
        self.deliver = deliver
        self.loop = asyncio.get_running_loop()
        self.outcome: Outcome | None = None


class Gate:
    """Saves for asyncio. Close it before the store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._queue: SimpleQueue[_Crossing | None] = SimpleQueue()
        self._turns: dict[bytes, deque[asyncio.Future[None]]] = {}
        self._freed: dict[bytes, asyncio.Event] = {}
        self._closed = False
        self._writers = [
            threading.Thread(target=self._write, name=f"knotline-writer-{lane}", daemon=True)
            for lane in range(max(1, min(store.backend.lanes, 32)))
        ]
        for writer in self._writers:
            writer.start()

    async def append(
        self,
        run: str,
        value: object,
        *,
        note: Mapping[str, object] | Decide | None = None,
        labels: Iterable[str] = (),
        expected: int | None = None,
        held: Held | None = None,
        sync: bool = True,
    ) -> Header:
        """As `Store.append`. What is saved is the value at the time of the call, whatever the caller does next."""
        key = run_key(run)
        decide = decided(note, labels)
        store = self.store
        for _ in range(_TRIES):
            warm = store.ready(key)
            if warm is None or key in self._turns or not warm.lock.acquire(blocking=False):
                value = _copied(value)
                warm = await self._turn(key)
            try:
                if expected not in (None, warm.rev) and store.outdated(warm):
                    self._leave(warm)
                    value = _copied(value)
                    continue
                draft = store.draft(warm, value, decide=decide, expected=expected, held=held)
            except BaseException:
                self._leave(warm)
                raise
            if await self._cross(draft, expected, sync=sync):
                return draft.header
            value = warm.shadow.value if warm.shadow is not None else value
        raise Unavailable(f"run {run!r}", why=f"lost {_TRIES} races for its head")

    async def call(self, verb: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Any other verb of the store, on a thread."""
        return await asyncio.to_thread(verb, *args, **more)

    def close(self) -> None:
        """Wait for everything that was handed over. Idempotent."""
        if not self._closed:
            self._closed = True
            for _ in self._writers:
                self._queue.put(None)
            for writer in self._writers:
                writer.join()

    # -- turns --------------------------------------------------------------------------------------------

    async def _turn(self, key: bytes) -> Warm:
        """Our turn to write this run, in the order of asking, with its head warm and locked."""
        turns = self._turns.setdefault(key, deque())
        mine = asyncio.get_running_loop().create_future()
        turns.append(mine)
        try:
            if turns[0] is mine:
                mine.set_result(None)
            await mine
            while True:
                warm = await asyncio.to_thread(self.store.warm, key)
                while not warm.lock.acquire(blocking=False):
                    await self._free(key)
                if not warm.spent:
                    return warm
                warm.lock.release()
        finally:
            self._freed.pop(key, None)
            turns.remove(mine)
            if not turns:
                self._turns.pop(key, None)
            elif not turns[0].done():
                turns[0].set_result(None)

    async def _free(self, key: bytes) -> None:
        """Until the run's save that is under way has ended; or a moment, since a plain thread may hold the head."""
        freed = self._freed[key] = asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(freed.wait(), _MOMENT)

    def _leave(self, warm: Warm) -> None:
        warm.lock.release()
        freed = self._freed.get(warm.key)
        if freed is not None:
            freed.set()

    # -- the crossing -------------------------------------------------------------------------------------

    async def _cross(self, draft: Draft, expected: int | None, *, sync: bool) -> bool:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()

        def deliver(outcome: Outcome) -> None:
            # On the loop, and whether or not anybody still waits: a cancelled caller's save is settled too.
            try:
                result = self.store.settle(draft, outcome, expected=expected)
            except Exception as error:  # noqa: BLE001 - handed to the caller as it is
                if not waiting.done():
                    waiting.set_exception(error)
            else:
                if not waiting.done():
                    waiting.set_result(result)
            finally:
                self._leave(draft.warm)

        if self._closed:
            self._leave(draft.warm)
            raise Unavailable(self.store.backend.name, why="it is closed")
        self._queue.put(_Crossing(draft.save, deliver, sync=sync))
        return await waiting

    def _write(self) -> None:
        queue = self._queue
        backend = self.store.backend
        while True:
            crossing = queue.get()
            if crossing is None:
                return
            batch = [crossing]
            ending = False
            while len(batch) < _BATCH and not queue.empty():
                more = queue.get()
                if more is None:
                    ending = True
                    break
                batch.append(more)
            try:
                outcomes = backend.commit([each.save for each in batch], sync=any(each.sync for each in batch))
            except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
                # Closed under us, or broken: this thread must go on, or nobody who waits would ever be answered.
                outcomes = [Failed(cast("Unavailable", error)) for _ in batch]
            loops: dict[asyncio.AbstractEventLoop, list[_Crossing]] = {}
            for each, outcome in zip(batch, outcomes, strict=True):
                each.outcome = outcome
                loops.setdefault(each.loop, []).append(each)
            for loop, each_of in loops.items():
                try:
                    loop.call_soon_threadsafe(_deliver, each_of)
                except RuntimeError:  # the loop is closed: its callers are gone, their saves are written
                    for each in each_of:
                        _deliver([each])
            if ending:
                return


def _copied(value: object) -> object:
    """Named in an error as every other save names it."""
    try:
        return private(value, "")
    except Unstorable as error:
        raise type(error)(error.path.lstrip(".") or "value", why=error.why) from error


def _deliver(crossings: list[_Crossing]) -> None:
    for crossing in crossings:
        if crossing.outcome is not None:
            crossing.deliver(crossing.outcome)
