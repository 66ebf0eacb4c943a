"""Every call that a verb of the timeline makes fails once: afterwards the run is as before or as after, and goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.timeline.places import Place, ids, save, step

from knotline.errors import Conflict, Unavailable
from knotline.policy import Retention
from knotline.store import verify
from knotline.testing import FaultyBackend, Plan
from knotline.timeline import Timeline

VERBS: dict[str, Callable[[Timeline], Any]] = {
    "save": lambda t: save(t, "r", 9, {"n": 9, "big": "y" * 9000}, record=step(9, result="z" * 5000)),
    "save in the background": lambda t: (save(t, "r", 9, {"n": 9}, durability="background"), t.flush()),
    "rollback": lambda t: t.rollback("ckpt-r-3"),
    "undo": lambda t: t.undo("r"),
    "restart": lambda t: t.restart("r"),
    "delete": lambda t: t.delete("ckpt-r-4"),
    "fork": lambda t: t.fork("ckpt-r-3", execution_id="f"),
    "pin": lambda t: t.pin("ckpt-r-3"),
    "annotate": lambda t: t.annotate("ckpt-r-3", tags=["x"]),
    "record": lambda t: t.record("r", step(9, status="failed", error="x", traceback="t" * 5000)),
    "say": lambda t: t.say("r", "failed", initial={"state": {"x": 1}}),
    "clean": lambda t: t.clean(Retention(keep_last=2)),
}


def prepared() -> Place:
    place = Place("memory", Path())
    timeline = place.open()
    for n in range(40):
        save(timeline, "r", n % 8, {"n": n, "big": str(n) * 2000})
    timeline.rollback("ckpt-r-7.4")
    save(timeline, "r", 3, {"n": "new"})
    timeline.pin("ckpt-r-0")
    return place


def seen(timeline: Timeline) -> Any:
    runs = [it.execution_id for it in timeline.executions(limit=100)]
    return [(run, ids(timeline, run, limit=200), timeline.store.load(run)) for run in sorted(runs)]


@pytest.mark.parametrize("kind", ["before", "after"])
@pytest.mark.parametrize("name", VERBS)
def test_a_fault_at_every_call(name: str, kind: Literal["before", "after"]) -> None:
    verb = VERBS[name]
    before = seen(prepared().open())
    whole = prepared()
    verb(whole.open())
    after = seen(whole.open())
    injected = 0
    for at in itertools.count(1):
        place = prepared()
        faulty = FaultyBackend(place.backend(), Plan(at=at, kind=kind))
        timeline = place.open(lambda _, faulty=faulty: faulty)
        failed = False
        try:
            verb(timeline)
        except (Unavailable, Conflict):
            failed = True
        if not faulty.injected:
            assert not failed
            break
        injected += 1
        for each in (timeline, place.open()):
            assert seen(each) in (before, after), f"at call {at}"
            assert verify(each.store).clean, f"at call {at}"
        timeline.history("r")
        if name == "clean":
            timeline.clean(Retention(keep_last=2))
            assert seen(place.open()) == after
        # Writing goes on, and no name is given twice.
        taken = set(ids(timeline, "r", hidden=True, limit=200))
        assert save(timeline, "r", 9) not in taken
        assert verify(place.open().store).clean
    assert injected >= 1


def test_a_fork_that_was_begun_can_be_begun_again() -> None:
    """The pin on the origin comes first: what is left of a fork that failed is a pin, and nothing else."""
    for at in itertools.count(1):
        place = prepared()
        faulty = FaultyBackend(place.backend(), Plan(at=at, only="commit"))
        timeline = place.open(lambda _, faulty=faulty: faulty)
        try:
            timeline.fork("ckpt-r-3", execution_id="f")
        except Unavailable:
            assert timeline.fork("ckpt-r-3", execution_id="f").id == "ckpt-f-3"
        if not faulty.injected:
            assert at > 2
            return
        assert timeline.load("ckpt-f-3").state == timeline.load("ckpt-r-3").state
