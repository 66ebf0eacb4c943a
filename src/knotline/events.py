"""Names of what happens, who wants to hear of it, and delivery that can never break, delay or reorder a save.

`emit` only appends to a queue; one thread of the bus calls the subscribers, in order, each with its failures caught
and reported as an event of their own. A coroutine function is run on the loop it was subscribed from.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = [
    "CHECKPOINTS_CLEANED",
    "CHECKPOINT_CREATED",
    "CHECKPOINT_RESTORED",
    "CHECKPOINT_ROLLED_BACK",
    "CLEANING_FAILED",
    "EXECUTION_COMPLETED",
    "EXECUTION_FAILED",
    "EXECUTION_PAUSED",
    "EXECUTION_RESUMED",
    "EXECUTION_STARTED",
    "NAMES",
    "SAVE_FAILED",
    "SUBSCRIBER_FAILED",
    "Bus",
    "Event",
]

CHECKPOINT_CREATED: Final = "CHECKPOINT_CREATED"
CHECKPOINT_RESTORED: Final = "CHECKPOINT_RESTORED"
CHECKPOINT_ROLLED_BACK: Final = "CHECKPOINT_ROLLED_BACK"
CHECKPOINTS_CLEANED: Final = "CHECKPOINTS_CLEANED"
EXECUTION_STARTED: Final = "EXECUTION_STARTED"
EXECUTION_PAUSED: Final = "EXECUTION_PAUSED"
EXECUTION_RESUMED: Final = "EXECUTION_RESUMED"
EXECUTION_COMPLETED: Final = "EXECUTION_COMPLETED"
EXECUTION_FAILED: Final = "EXECUTION_FAILED"
SAVE_FAILED: Final = "SAVE_FAILED"
"""A save in the background did not arrive; the next flush raises its error."""
CLEANING_FAILED: Final = "CLEANING_FAILED"
"""The cleaner in the background could not do its work this time; it tries again at its next turn."""
SUBSCRIBER_FAILED: Final = "SUBSCRIBER_FAILED"

NAMES: Final = frozenset(
    (
        CHECKPOINT_CREATED, CHECKPOINT_RESTORED, CHECKPOINT_ROLLED_BACK, CHECKPOINTS_CLEANED, EXECUTION_STARTED,
        EXECUTION_PAUSED, EXECUTION_RESUMED, EXECUTION_COMPLETED, EXECUTION_FAILED, SAVE_FAILED, CLEANING_FAILED,
        SUBSCRIBER_FAILED,
    )
)  # fmt: skip
_MOST: Final = 10_000
"""Events that wait. A subscriber that hangs must not eat the memory: past this the oldest are dropped and counted."""


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    execution_id: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


Subscriber = Callable[[Event], Any]


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str | None
    call: Subscriber
    loop: asyncio.AbstractEventLoop | None


class Bus:
    """With no subscriber an event is one look at an empty tuple."""

    def __init__(self) -> None:
        self._wanted: tuple[_Wanted, ...] = ()
        self._lock = threading.Condition()
        self._queue: deque[Event] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def subscribe(self, name: str | None, call: Subscriber) -> Callable[[], None]:
        """Hear of events of this name (None: of all). What it gives back ends the subscription."""
        if name is not None and name not in NAMES:
            raise ValueError(f"no event is called {name!r}; there are {', '.join(sorted(NAMES))}")
        loop = asyncio.get_running_loop() if inspect.iscoroutinefunction(call) else _running()
        wanted = _Wanted(name, call, loop)
        with self._lock:
            self._wanted = (*self._wanted, wanted)

        def end() -> None:
            with self._lock:
                self._wanted = tuple(each for each in self._wanted if each is not wanted)

        return end

    def emit(self, name: str, execution_id: str, /, **fields: Any) -> None:
        if not self._wanted:
            return
        with self._lock:
            if len(self._queue) >= _MOST:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append(Event(name, execution_id, fields))
            if self._thread is None:
                self._thread = threading.Thread(target=self._deliver, name="knotline-events", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def drain(self, *, timeout: float = 5.0) -> bool:
        """Wait until everything that was emitted has been delivered; False if it took too long."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._queue and not self._busy, timeout)

    def _deliver(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                self._lock.notify_all()
                # An idle bus has no thread: nothing keeps a forgotten one alive.
                if not self._lock.wait_for(lambda: bool(self._queue), 1.0):
                    self._thread = None
                    return
                event = self._queue.popleft()
                wanted = self._wanted
                self._busy = True
            for each in wanted:
                if each.name in (None, event.name):
                    self._tell(each, event)

    def _tell(self, wanted: _Wanted, event: Event) -> None:
        try:
            heard = wanted.call(event)
            if not inspect.isawaitable(heard):
                return
            answer = _awaited(heard)
            if wanted.loop is None or wanted.loop.is_closed():
                for one in (answer, heard):  # nobody is there to run it
                    if inspect.iscoroutine(one):
                        one.close()
                return
            waiting = asyncio.run_coroutine_threadsafe(answer, wanted.loop)
            waiting.add_done_callback(
                lambda done: self._heard(None if done.cancelled() else done.exception(), wanted, event)
            )
        except BaseException as error:  # noqa: BLE001 - a stranger's code: even its SystemExit must not end the delivery
            self._heard(error, wanted, event)

    def _heard(self, error: BaseException | None, wanted: _Wanted, event: Event) -> None:
        if error is None or event.name == SUBSCRIBER_FAILED:
            return  # who fails at hearing of a failure is not told of it again
        with contextlib.suppress(RuntimeError):
            self.emit(
                SUBSCRIBER_FAILED,
                event.execution_id,
                event=event.name,
                subscriber=getattr(wanted.call, "__qualname__", repr(wanted.call)),
                error=error,
            )


async def _awaited(heard: Awaitable[Any]) -> Any:
    return await heard


def _running() -> asyncio.AbstractEventLoop | None:
    """A plain function may give an awaitable all the same."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
