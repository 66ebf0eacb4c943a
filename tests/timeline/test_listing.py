"""Lists of headers: every filter, both orders, pages, remarks, times; and that a list reads no states."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.timeline.places import SECOND, START, Place, every, ids, paged, save, step

from knotline.records import moment
from knotline.store import Store
from knotline.testing import FaultyBackend, Plan
from knotline.timeline import Timeline


def fill(timeline: Timeline) -> None:
    save(timeline, "exec-1", 0, metadata={"tags": ["a"], "who": 1}, workflow_id="etl", step_name="fetch")
    save(timeline, "exec-12", 0, metadata={"tags": ["a", "b"], "who": "1"}, step_name="fetch")
    save(timeline, "exec-1", 1, status="failed", error="no Route to host", metadata={"who": True})
    save(timeline, "exec-1", 2, metadata={"description": "before the Migration", "creator": "ann"})
    save(timeline, "exec-2", 2, status="pending", workflow_id="etl", metadata={"tags": ["b"]})


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, ["1-0", "12-0", "1-1", "1-2", "2-2"]),
        ({"execution_id": "exec-1"}, ["1-0", "1-1", "1-2"]),
        ({"execution_id": "exec"}, []),
        ({"workflow_id": "etl"}, ["1-0", "2-2"]),
        ({"status": "success"}, ["1-0", "12-0", "1-2"]),
        ({"status": "failed"}, ["1-1"]),
        ({"tag": "a"}, ["1-0", "12-0"]),
        ({"tag": ["a", "b"]}, ["12-0"]),
        ({"tag": "none"}, []),
        ({"step": "fetch"}, ["1-0", "12-0"]),
        ({"step": 2}, ["1-2", "2-2"]),
        ({"metadata": {"who": 1}}, ["1-0"]),
        ({"metadata": {"who": True}}, ["1-1"]),
        ({"metadata": {"who": "1"}}, ["12-0"]),
        ({"metadata": {"who": 2}}, []),
        ({"text": "migration"}, ["1-2"]),
        ({"text": "ROUTE"}, ["1-1"]),
        ({"text": "ANN"}, ["1-2"]),
        ({"text": "exec-12"}, ["12-0"]),
        ({"status": "success", "tag": "a", "execution_id": "exec-12"}, ["12-0"]),
    ],
)
def test_filters(timeline: Timeline, asked: dict[str, Any], wanted: list[str]) -> None:
    fill(timeline)
    wanted = [f"ckpt-exec-{name}" for name in wanted]
    assert ids(timeline, newest=False, **asked) == wanted
    assert ids(timeline, **asked) == wanted[::-1]
    for limit in (1, 2, 3):
        pages = list(every(timeline, limit=limit, **asked))
        assert [name for page in pages for name in page] == wanted[::-1]
        assert len(pages) == max(1, -(-len(wanted) // limit)), "a last page without anything in it"
        assert paged(timeline, limit=limit, newest=False, **asked) == wanted


def test_a_list_reads_no_states(place: Place) -> None:
    timeline = place.open()
    for index in range(5):
        save(timeline, "r", index, {"blob": "x" * 20_000})
    watched = FaultyBackend(place.backend(), Plan(at=10**9, only="objects"))
    again = Timeline(Store(watched))
    assert len(again.list("r").items) == 5
    assert watched.calls == 0
    again.load("ckpt-r-0")
    assert watched.calls > 0
    if place.kind != "memory":
        again.close()


def test_what_a_header_says(timeline: Timeline) -> None:
    save(timeline, "r", 0, workflow_id="w", metadata={"tags": ["x"]})
    it = timeline.header("ckpt-r-0")
    assert (it.execution_id, it.thread_id, it.step_name, it.step_index, it.attempt, it.status) == (
        "r", "r", "step0", 0, 1, "success",
    )  # fmt: skip
    assert (it.workflow_id, it.tags, it.pinned, it.origin, it.parent) == ("w", ("x",), False, None, -1)
    assert it.size > 0
    assert it.timestamp.tzinfo is not None
    assert it.to_dict()["timestamp"] == it.timestamp.isoformat()


# -- remarks ---------------------------------------------------------------------------------------------------


def test_what_was_remarked_later_is_found_in_the_order_of_the_checkpoints(timeline: Timeline) -> None:
    for index in range(6):
        save(timeline, "r", index, metadata={"tags": ["own"]} if index % 2 else None)
    timeline.annotate("ckpt-r-0", tags=["own"])
    timeline.annotate("ckpt-r-4", tags=["own"])
    timeline.annotate("ckpt-r-4", tags=["own", "more"])
    timeline.annotate("ckpt-r-1", tags=["other"])
    wanted = ["ckpt-r-5", "ckpt-r-4", "ckpt-r-3", "ckpt-r-0"]
    assert ids(timeline, tag="own") == wanted
    assert ids(timeline, tag="own", newest=False) == wanted[::-1]
    for limit in (1, 2, 3):
        assert paged(timeline, tag="own", limit=limit) == wanted
        assert paged(timeline, tag="own", limit=limit, newest=False) == wanted[::-1]
    assert ids(timeline, tag=["own", "more"]) == ["ckpt-r-4"]
    assert ids(timeline, tag="other") == ["ckpt-r-1"]
    timeline.annotate("ckpt-r-1", tags=[])
    assert ids(timeline, tag="other") == []


def test_a_remark_is_found_by_status_and_step_only_once(timeline: Timeline) -> None:
    save(timeline, "r", 0)
    timeline.annotate("ckpt-r-0", description="look", fields={"n": 1})
    assert ids(timeline) == ids(timeline, status="success") == ids(timeline, step=0) == ["ckpt-r-0"]
    assert ids(timeline, metadata={"n": 1}) == ids(timeline, text="look") == ["ckpt-r-0"]
    newest = timeline.newest("r", status="success")
    assert newest is not None
    assert newest.metadata.description == "look"


def test_a_remark_on_what_is_out_of_sight_is_not_shown(timeline: Timeline) -> None:
    save(timeline, "r", 0)
    save(timeline, "r", 1)
    timeline.annotate("ckpt-r-1", tags=["x"])
    timeline.rollback("ckpt-r-0")
    assert ids(timeline, tag="x") == []
    assert ids(timeline, tag="x", hidden=True) == ["ckpt-r-1"]
    timeline.undo("r")
    assert ids(timeline, tag="x") == ["ckpt-r-1"]


# -- time ------------------------------------------------------------------------------------------------------


def test_a_range_of_time(place: Place) -> None:
    timeline = place.open()
    days: dict[str, datetime] = {}
    for day in range(40):
        place.clock.at = START + day * 86_400 * SECOND
        name = save(timeline, f"r{day % 3}", day)
        days[name] = moment(place.clock.at)
    names = list(days)
    for lo, hi in ((0, 39), (5, 9), (39, 39), (0, 0), (12, 11)):
        since, until = days[names[lo]], days[names[hi]]
        wanted = names[lo : hi + 1]
        assert ids(timeline, since=since, until=until, newest=False) == wanted
        assert ids(timeline, since=since, until=until) == wanted[::-1]
        assert paged(timeline, since=since, until=until, limit=2) == wanted[::-1]
        assert paged(timeline, since=since, until=until, limit=2, newest=False) == wanted
    early, late = moment(START) - timedelta(days=9), moment(place.clock.at) + timedelta(days=9)
    assert ids(timeline, until=early) == ids(timeline, since=late) == ids(timeline, since=late, newest=False) == []


def test_a_range_of_time_reads_a_part_of_the_log(place: Place) -> None:
    timeline = place.open()
    for day in range(300):
        place.clock.at = START + day * 86_400 * SECOND
        save(timeline, "r", day, durability="process")
    heads: list[int] = []

    class Counted(FaultyBackend):
        def find(self, *args: Any, **more: Any) -> Any:
            found = super().find(*args, **more)
            heads.append(len(found))
            return found

    again = place.open(lambda backend: Counted(backend, Plan(at=10**9)))
    old = moment(START + 100 * 86_400 * SECOND)
    assert len(ids(again, until=old, limit=5)) == 5
    assert sum(heads) < 60


def test_a_remark_that_came_after_the_range_is_in_it_if_its_checkpoint_is(place: Place) -> None:
    timeline = place.open()
    save(timeline, "r", 0)
    edge = moment(place.clock.at)
    place.clock.at += 86_400 * SECOND
    save(timeline, "r", 1)
    timeline.annotate("ckpt-r-0", tags=["x"])
    timeline.annotate("ckpt-r-1", tags=["x"])
    assert ids(timeline, tag="x", until=edge) == ["ckpt-r-0"]
    assert ids(timeline, tag="x", until=edge, newest=False) == ["ckpt-r-0"]
    assert ids(timeline, tag="x", since=edge + timedelta(hours=1)) == ["ckpt-r-1"]


def test_checkpoints_that_were_made_elsewhere_are_found_by_their_own_time(timeline: Timeline) -> None:
    past = datetime(2001, 2, 3, tzinfo=UTC)
    save(timeline, "r", 0)
    save(timeline, "r", 1, timestamp=past)
    save(timeline, "r", 2)
    for newest in (True, False):
        assert ids(timeline, until=past + timedelta(days=1), newest=newest) == ["ckpt-r-1"]
        assert ids(timeline, since=past - timedelta(days=1), until=past, newest=newest) == ["ckpt-r-1"]
    assert ids(timeline, since=past + timedelta(days=1)) == ["ckpt-r-2", "ckpt-r-0"]


# -- runs ------------------------------------------------------------------------------------------------------


def runs(timeline: Timeline, **more: Any) -> list[tuple[str, str]]:
    return [(it.execution_id, it.status) for it in timeline.executions(**more)]


def test_executions_newest_first_with_every_status(timeline: Timeline) -> None:
    timeline.say("early", "running", workflow_id="w")
    timeline.record("early", step(0, status="failed", error="boom"))
    timeline.say("early", "failed", error="boom")  # before its first checkpoint
    save(timeline, "bare", 0)  # never said anything
    save(timeline, "waits", 0, status="pending")
    timeline.record("only-steps", step(0))
    timeline.say("done", "running")
    save(timeline, "done", 0, run_status="success", metadata={"tags": ["t"]})
    wanted = [
        ("done", "success"),
        ("only-steps", "running"),
        ("waits", "paused"),
        ("bare", "running"),
        ("early", "failed"),
    ]
    assert runs(timeline) == wanted
    for status in ("running", "paused", "failed", "success", "cancelled"):
        assert runs(timeline, status=status) == [pair for pair in wanted if pair[1] == status]
    assert runs(timeline, workflow_id="w") == [("early", "failed")]
    assert runs(timeline, tag="t") == [("done", "success")]
    assert timeline.status("early").error == "boom"
    for run, status in wanted:
        assert timeline.history(run, state=False).status == status


def test_a_run_whose_end_was_taken_back_is_running_again_and_listed_so(timeline: Timeline) -> None:
    save(timeline, "r", 0)
    save(timeline, "r", 1, run_status="success")
    timeline.rollback("ckpt-r-0")
    assert runs(timeline, status="running") == [("r", "running")]
    assert runs(timeline, status="success") == []
    timeline.undo("r")
    assert runs(timeline, status="success") == [("r", "success")]


def test_a_later_success_counts_more_than_an_earlier_failure(timeline: Timeline) -> None:
    timeline.record("r", step(0, status="failed", error="boom"))
    save(timeline, "r", 0)
    assert timeline.status("r").status == timeline.history("r").status == "running"


def test_pages_of_executions_survive_that_runs_go_on(timeline: Timeline) -> None:
    for n in range(7):
        save(timeline, f"r{n}", 0)
        timeline.say(f"r{n}", "failed")
    page = timeline.executions(limit=3, status="failed")
    assert [it.execution_id for it in page] == ["r6", "r5", "r4"]
    timeline.say("r4", "running")  # the last of the page leaves the list
    rest = timeline.executions(limit=3, status="failed", after=page.next)
    assert [it.execution_id for it in rest] == ["r3", "r2", "r1"]
    assert [it.execution_id for it in timeline.executions(limit=3, status="failed", after=rest.next)] == ["r0"]
    assert timeline.executions(limit=100).next is None
    assert timeline.executions(limit=7).next is None
