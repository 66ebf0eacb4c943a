"""Delivery of events: in order, never in the way of whoever emits, and never silent about a subscriber that fails."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any

import pytest

from knotline import events
from knotline.events import Bus, Event

WAIT = 20.0


def test_in_order_and_by_name() -> None:
    bus, some, every = Bus(), list[Event](), list[str]()
    bus.subscribe(events.CHECKPOINT_CREATED, some.append)
    bus.subscribe(None, lambda event: every.append(event.name))
    bus.emit(events.CHECKPOINT_CREATED, "r", checkpoint_id="c1")
    bus.emit(events.EXECUTION_FAILED, "r")
    bus.emit(events.CHECKPOINT_CREATED, "r", checkpoint_id="c2")
    assert bus.drain()
    assert [(it.name, it.execution_id, it["checkpoint_id"]) for it in some] == [
        ("CHECKPOINT_CREATED", "r", "c1"),
        ("CHECKPOINT_CREATED", "r", "c2"),
    ]
    assert every == ["CHECKPOINT_CREATED", "EXECUTION_FAILED", "CHECKPOINT_CREATED"]


def test_a_subscription_ends() -> None:
    bus, heard = Bus(), list[Event]()
    end = bus.subscribe(None, heard.append)
    bus.emit(events.EXECUTION_STARTED, "r")
    assert bus.drain()
    end()
    end()
    bus.emit(events.EXECUTION_STARTED, "r")
    assert bus.drain()
    assert len(heard) == 1


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="CHECKPOINT_CREATED"):
        Bus().subscribe("checkpoint_created", print)


@pytest.mark.parametrize("error", [OSError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
def test_who_fails_is_reported_and_the_rest_hears_everything(error: BaseException) -> None:
    bus, heard, failed = Bus(), list[str](), list[Event]()

    def bad(event: Event) -> None:
        raise error

    bus.subscribe(events.EXECUTION_STARTED, bad)
    bus.subscribe(events.EXECUTION_STARTED, lambda event: heard.append(event.execution_id))
    bus.subscribe(events.SUBSCRIBER_FAILED, failed.append)
    bus.subscribe(events.SUBSCRIBER_FAILED, bad)  # is not told of its own failure for ever
    for n in range(3):
        bus.emit(events.EXECUTION_STARTED, f"r{n}")
    assert bus.drain()
    assert heard == ["r0", "r1", "r2"]
    assert [(it["event"], it["error"]) for it in failed] == [("EXECUTION_STARTED", error)] * 3
    assert "bad" in failed[0]["subscriber"]


def test_a_slow_subscriber_holds_nobody_up_and_memory_is_bounded() -> None:
    bus, go, seen = Bus(), threading.Event(), list[Event]()

    def slow(event: Event) -> None:
        assert go.wait(WAIT)
        seen.append(event)

    bus.subscribe(None, slow)
    began = time.perf_counter()
    for n in range(12_000):
        bus.emit(events.CHECKPOINT_CREATED, str(n))
    assert time.perf_counter() - began < 5
    assert not bus.drain(timeout=0.01)
    assert bus.dropped >= 1_900
    go.set()
    assert bus.drain()
    assert seen[-1].execution_id == "11999"
    assert len(seen) + bus.dropped == 12_000


def test_coroutine_functions_run_on_the_loop_they_were_subscribed_from() -> None:
    bus, heard, failed = Bus(), list[Any](), list[Event]()

    async def listen(more: str, event: Event) -> None:
        await asyncio.sleep(0)
        heard.append((more, event.execution_id, asyncio.get_running_loop()))

    class Listener:
        async def __call__(self, event: Event) -> None:
            heard.append(("object", event.execution_id, asyncio.get_running_loop()))

    async def bad(event: Event) -> None:
        raise OSError("x")

    async def main() -> None:
        told = asyncio.Event()
        bus.subscribe(events.EXECUTION_STARTED, functools.partial(listen, "partial"))
        bus.subscribe(events.EXECUTION_STARTED, Listener())
        bus.subscribe(events.EXECUTION_STARTED, bad)

        async def report(event: Event) -> None:
            failed.append(event)
            told.set()

        bus.subscribe(events.SUBSCRIBER_FAILED, report)
        bus.emit(events.EXECUTION_STARTED, "r")
        async with asyncio.timeout(WAIT):
            await told.wait()
        loop = asyncio.get_running_loop()
        assert sorted(heard, key=str) == sorted([("partial", "r", loop), ("object", "r", loop)], key=str)

    asyncio.run(main())
    bus.emit(events.EXECUTION_STARTED, "later")  # the loop is closed: nobody is there, and nothing breaks
    assert bus.drain()
    assert len(heard) == 2


def test_a_cancelled_listener_is_no_failure() -> None:
    bus, failed = Bus(), list[Event]()

    async def main() -> None:
        began = asyncio.Event()

        async def hang(event: Event) -> None:
            began.set()
            await asyncio.sleep(WAIT)

        bus.subscribe(events.EXECUTION_STARTED, hang)
        bus.subscribe(events.SUBSCRIBER_FAILED, failed.append)
        bus.emit(events.EXECUTION_STARTED, "r")
        async with asyncio.timeout(WAIT):
            await began.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert bus.drain()
    assert failed == []


def test_without_subscribers_there_is_no_thread() -> None:
    bus = Bus()
    before = threading.active_count()
    bus.emit(events.EXECUTION_STARTED, "r")
    assert threading.active_count() == before
    assert bus.drain(timeout=0)
