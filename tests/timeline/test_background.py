"""Saves that nobody waits for: in order for each run, bounded, drained, never silent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.timeline.places import Place, ids, save, step

from knotline import events
from knotline.errors import Unavailable
from knotline.events import Bus, Event
from knotline.policy import Retention
from knotline.testing import FaultyBackend, Plan
from knotline.timeline import Timeline
from knotline.timeline.behind import Behind

WAIT = 20.0


class Held:
    """Holds every commit until `go` is set."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.go = threading.Event()
        self.reached = threading.Event()

    def commit(self, *args: Any, **more: Any) -> Any:
        self.reached.set()
        assert self.go.wait(WAIT)
        return self._inner.commit(*args, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_save_in_the_background_is_named_at_once_and_holds_the_value_of_that_moment(place: Place) -> None:
    held: Any = Held(place.backend())
    timeline = place.open(lambda _: held, durability="background")
    state: dict[str, Any] = {"items": []}
    made: list[str] = []
    for n in range(5):
        state["items"].append(n)
        made.append(save(timeline, "r", 0, state))
    state["items"].append("later")
    assert made == ["ckpt-r-0", *(f"ckpt-r-0.{n}" for n in range(2, 6))]
    held.go.set()
    timeline.flush()
    assert ids(timeline, "r", newest=False) == made
    assert [timeline.load(name).state["items"] for name in made] == [list(range(n + 1)) for n in range(5)]


def test_order_is_kept_for_each_run(place: Place) -> None:
    timeline = place.open(durability="background")
    for n in range(60):
        save(timeline, f"r{n % 3}", n)
    timeline.flush()
    for run in range(3):
        assert ids(timeline, f"r{run}", newest=False, limit=100) == [
            f"ckpt-r{run}-{n}" for n in range(60) if n % 3 == run
        ]


def test_a_failure_is_an_event_and_raised_at_the_next_flush_and_the_rest_arrives(place: Place) -> None:
    faulty = FaultyBackend(place.backend(), Plan(at=3, only="commit"))
    bus, heard = Bus(), list[Event]()
    bus.subscribe(events.SAVE_FAILED, heard.append)
    timeline = place.open(lambda _: faulty, durability="background", bus=bus)
    for n in range(6):
        save(timeline, "r", n)
    with pytest.raises(Unavailable, match="injected"):
        timeline.flush()
    timeline.flush()  # once only
    assert faulty.injected == 1
    assert bus.drain()
    assert [(it.execution_id, type(it["error"])) for it in heard] == [("r", Unavailable)]
    assert ids(timeline, "r", newest=False) == [f"ckpt-r-{n}" for n in (0, 1, 3, 4, 5)]
    assert [timeline.load(name).state["n"] for name in ids(timeline, "r")] == [5, 4, 3, 1, 0]
    assert save(timeline, "r", 2) == "ckpt-r-2"
    timeline.flush()


def test_closing_drains_and_raises_the_failure(place: Place) -> None:
    faulty = FaultyBackend(place.backend(), Plan(at=2, only="commit"))
    timeline = place.open(lambda _: faulty, durability="background")
    for n in range(3):
        save(timeline, "r", n)
    if place.kind == "memory":
        with pytest.raises(Unavailable):
            timeline.drain()
        timeline.drain()
    else:
        with pytest.raises(Unavailable):
            timeline.close()
        timeline.close()
    assert ids(place.open(), "r", newest=False) == ["ckpt-r-0", "ckpt-r-2"]
    with pytest.raises(Unavailable, match="closed"):
        save(timeline, "r", 9, durability="background")


def test_a_failure_while_closing_drains_is_not_lost() -> None:
    """Handed over between the flush and the end: closing has to raise for it too."""
    go, told = threading.Event(), list[Exception]()
    behind = Behind(failed=lambda run, error: told.append(error))

    def fail() -> None:
        assert go.wait(WAIT)
        raise OSError("disk")

    behind.put("r", fail)
    go.set()
    behind.close()
    with pytest.raises(Unavailable, match="OSError: disk"):
        behind.flush()
    assert len(told) == 1


def test_who_waits_for_room_when_it_is_closed_is_told_so() -> None:
    go = threading.Event()
    behind = Behind(failed=lambda run, error: None, most=1)
    behind.put("r", lambda: go.wait(WAIT))
    assert behind.full()
    seen: list[object] = []

    def third() -> None:
        try:
            behind.put("r", lambda: seen.append("written"))
        except Unavailable as error:
            seen.append(error.why)

    waits = threading.Thread(target=third)
    waits.start()
    closes = threading.Thread(target=behind.close)
    closes.start()
    waits.join(0.2)
    go.set()
    waits.join(WAIT)
    closes.join(WAIT)
    assert not waits.is_alive()
    assert not closes.is_alive()
    assert seen in (["it is closed"], ["written"]), "whoever stands in line is served, and nobody else"
    flushed = threading.Thread(target=behind.flush, daemon=True)
    flushed.start()
    flushed.join(WAIT)
    assert not flushed.is_alive(), "something is left that nobody will write"


def test_it_is_bounded() -> None:
    go, done = threading.Event(), list[int]()
    behind = Behind(failed=lambda run, error: None, most=4)

    def write(n: int) -> None:
        assert go.wait(WAIT)
        done.append(n)

    def hand_over() -> None:
        for n in range(40):
            behind.put("r", lambda n=n: write(n))

    thread = threading.Thread(target=hand_over)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert behind.waiting <= 5
    go.set()
    thread.join(WAIT)
    behind.flush()
    assert done == list(range(40))
    behind.close()


def test_numbers_stay_apart_when_some_saves_wait_and_some_do_not(place: Place) -> None:
    held: Any = Held(place.backend())
    held.go.set()
    timeline = place.open(lambda _: held)
    names = [save(timeline, "r", 0, durability="background")]
    for turn in range(30):
        names.append(save(timeline, "r", turn % 3, durability="background" if turn % 2 else "disk"))
        if turn % 7 == 0:
            names.append(save(timeline, "r", turn % 3, durability="process"))
    timeline.flush()
    assert len(names) == len(set(names))
    assert sorted(ids(timeline, "r", limit=100)) == sorted(names)


VERBS: dict[str, Callable[[Timeline], Any]] = {
    "load": lambda t: t.load("ckpt-r-3").state == {"n": 3},
    "list": lambda t: len(t.list("r").items) == 4,
    "list all": lambda t: len(t.list().items) == 4,
    "newest": lambda t: (it := t.newest("r")) is not None and it.id == "ckpt-r-3",
    "history": lambda t: len(t.history("r").checkpoints) == 4,
    "executions": lambda t: [it.execution_id for it in t.executions()] == ["r"],
    "status": lambda t: t.status("r").status == "running",
    "rollback": lambda t: t.rollback("ckpt-r-2").rev == 4,
    "undo": lambda t: t.undo("r").rev == 4,
    "restart": lambda t: t.restart("r").checkpoint is None,
    "delete": lambda t: t.delete("ckpt-r-3"),
    "fork": lambda t: t.fork("ckpt-r-3", execution_id="f").origin == "ckpt-r-3",
    "annotate": lambda t: t.annotate("ckpt-r-3", tags=["x"]).tags == ("x",),
    "save": lambda t: save(t, "r", 9, durability="disk") and t.store.header("r").rev == 4,
    "record": lambda t: t.record("r", step(4)) is None and t.store.header("r").rev == 4,
    "say": lambda t: t.say("r", "failed") is None and t.store.header("r").rev == 4,
    "clean": lambda t: len(t.clean(Retention(keep_last=1))) == 3,
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_comes_after_the_saves_before_it(place: Place, verb: str) -> None:
    """Who saved finds what was saved, and the log is in the order of the calls, without any flush."""
    held: Any = Held(place.backend())
    timeline = place.open(lambda _: held, durability="background")
    for n in range(4):
        save(timeline, "r", n)
    threading.Timer(0.03, held.go.set).start()
    assert VERBS[verb](timeline)


def test_runs_do_not_wait_for_each_other(place: Place) -> None:
    held: Any = Held(place.backend())
    timeline = place.open(lambda _: held, durability="background")
    save(timeline, "slow", 0)
    assert timeline.newest("other") is None
    assert timeline.list("other").items == []
    held.go.set()
    timeline.flush()


def test_a_store_that_was_closed_is_told_at_the_next_flush(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path)
    timeline = place.open(lambda backend: backend, durability="background")
    save(timeline, "r", 0)
    timeline.flush()
    timeline.store.close()

    def again() -> None:
        save(timeline, "r", 1)
        timeline.flush()

    with pytest.raises(Unavailable):
        again()
    timeline.drain()


def test_one_that_is_forgotten_leaves_no_thread_and_one_that_rested_goes_on() -> None:
    behind, done = Behind(failed=lambda run, error: None), list[int]()
    for n in range(2):
        behind.put("r", lambda n=n: done.append(n))
        behind.flush()
        for thread in threading.enumerate():
            if thread.name == "knotline-behind":
                thread.join(WAIT)
        assert not [it for it in threading.enumerate() if it.name == "knotline-behind"]
    assert done == [0, 1]
    behind.close()
