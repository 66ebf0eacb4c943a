"""What a run did is the fold of its log: over attempts, rollbacks, retries, forks, cleaning and large results."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.timeline.places import Place, save, step

from knotline.errors import Unstorable
from knotline.policy import Retention
from knotline.timeline import Timeline


def names(timeline: Timeline, run: str = "r") -> list[tuple[str, int, str]]:
    return [(it.step_name, it.attempt, it.status) for it in timeline.history(run, state=False).steps]


def test_totals_are_derived(timeline: Timeline) -> None:
    timeline.say("r", "running", workflow_id="w", plan=["a", "b"])
    save(timeline, "r", 0, record=step(0, duration=1.5, input={"x": 1}, result=[1, 2]))
    timeline.record(
        "r", step(1, status="failed", error="boom", error_type="OSError", traceback="Traceback …", duration=0.5)
    )
    save(timeline, "r", 1, record=step(1, attempt=2, duration=2.0), run_status="success")
    history = timeline.history("r")
    assert names(timeline) == [("step0", 1, "success"), ("step1", 1, "failed"), ("step1", 2, "success")]
    assert history.total_duration == 4.0
    assert history.recovery_attempts == 1
    assert (history.status, history.error, history.workflow_id) == ("success", None, "w")
    assert [it.id for it in history.checkpoints] == ["ckpt-r-0", "ckpt-r-1"]
    assert history.last_checkpoint is not None
    assert history.last_checkpoint.state == {"n": 1}
    assert history.start_time is not None
    assert history.end_time is not None
    assert history.end_time > history.start_time
    first, second, _ = history.steps
    assert (first.input, first.result) == ({"x": 1}, [1, 2])
    assert (second.error, second.error_type, second.traceback) == ("boom", "OSError", "Traceback …")
    assert history.to_dict()["steps"][1]["error"] == "boom"


def test_a_step_before_any_checkpoint(timeline: Timeline) -> None:
    timeline.record("r", step(0, status="failed", error="boom"))
    history = timeline.history("r")
    assert (history.status, history.last_checkpoint) == ("failed", None)
    assert history.recovery_attempts == 1


def test_large_results_come_back_whole(place: Place) -> None:
    timeline = place.open()
    large = {"rows": ["x" * 1000] * 50}
    timeline.record("r", step(0, result=large, input="i" * 10_000))
    save(timeline, "r", 1, record=step(1, result=large, status="failed", traceback="t" * 30_000))
    for each in (timeline, place.open()):
        first, second = each.history("r").steps
        assert (first.result, first.input) == (large, "i" * 10_000)
        assert (second.result, second.traceback) == (large, "t" * 30_000)
    assert len(str(timeline.store.header("r", 0).note)) < 500


def test_a_record_counts_its_attempts_apart_from_its_checkpoint(place: Place) -> None:
    timeline = place.open()
    save(timeline, "r", 0)
    save(timeline, "r", 0, record=step(0))  # the second checkpoint there, of a first attempt
    save(timeline, "r", 0, record=step(0, attempt=3))
    save(timeline, "r", 0, record=step(0, attempt=5))
    assert [it.attempt for it in place.open().history("r").steps] == [1, 3, 5]
    assert timeline.header("ckpt-r-0.4").attempt == 4


def test_what_cannot_be_stored_of_a_record_is_refused_by_name(timeline: Timeline) -> None:
    with pytest.raises(Unstorable) as caught:
        timeline.record("r", step(0, result={"a": object()}))
    assert caught.value.path == "result.a"
    with pytest.raises(Unstorable, match="input"):
        save(timeline, "r", 0, record=step(0, input=object()))
    assert timeline.list("r").items == []


def test_a_rollback_takes_later_history_out_and_undo_brings_it_back(timeline: Timeline) -> None:
    for index in range(4):
        save(timeline, "r", index, record=step(index))
    timeline.record("r", step(4, status="failed", error="x"))
    before = timeline.history("r")
    timeline.rollback("ckpt-r-1")
    assert [name for name, _, _ in names(timeline)] == ["step0", "step1"]
    assert timeline.history("r").recovery_attempts == 0
    timeline.undo("r")
    assert timeline.history("r") == before


def test_a_retry_keeps_what_it_replaced_as_history(timeline: Timeline) -> None:
    for index in range(3):
        save(timeline, "r", index, record=step(index))
    timeline.rollback("ckpt-r-0", why="retry")
    save(timeline, "r", 1, record=step(1, attempt=2))
    assert names(timeline) == [(f"step{n}", a, "success") for n, a in ((0, 1), (1, 1), (2, 1), (1, 2))]
    history = timeline.history("r")
    assert [it.id for it in history.checkpoints] == ["ckpt-r-0", "ckpt-r-1.2"]
    assert history.recovery_attempts == 1
    timeline.restart("r")
    save(timeline, "r", 0, record=step(0, attempt=2))
    assert len(timeline.history("r").steps) == 5
    assert timeline.history("r").recovery_attempts == 2
    timeline.rollback("ckpt-r-0.2")  # a plain one forgets what came after it, not what it replaced
    assert len(timeline.history("r").steps) == 5


def test_a_resume_after_a_failure_is_one_attempt_at_recovery(timeline: Timeline) -> None:
    save(timeline, "r", 0, record=step(0))
    timeline.record("r", step(1, status="failed", error="x"))
    timeline.say("r", "failed")
    timeline.say("r", "running", why="resume")
    save(timeline, "r", 1, record=step(1, attempt=2))
    assert timeline.history("r").recovery_attempts == 1
    timeline.say("r", "running", why="resume")  # after a death, which left no failure
    assert timeline.history("r").recovery_attempts == 2


def test_the_history_of_a_fork_begins_with_it(timeline: Timeline) -> None:
    save(timeline, "r", 0, record=step(0))
    timeline.fork("ckpt-r-0", execution_id="f")
    save(timeline, "f", 1, record=step(1))
    history = timeline.history("f")
    assert names(timeline, "f") == [("step1", 1, "success")]
    assert [it.id for it in history.checkpoints] == ["ckpt-f-0", "ckpt-f-1"]
    assert history.checkpoints[0].origin == "ckpt-r-0"
    assert names(timeline) == [("step0", 1, "success")]


def test_after_cleaning_the_history_is_that_of_what_stays(place: Place) -> None:
    timeline = place.open()
    for index in range(80):
        save(timeline, "r", index, {"n": index, "big": "x" * 3000 + str(index)}, record=step(index, result="y" * 5000))
    timeline.rollback("ckpt-r-70", why="retry")
    save(timeline, "r", 71, record=step(71, attempt=2))
    timeline.clean(Retention(keep_last=3))
    for each in (timeline, place.open()):
        history = each.history("r")
        assert [it.id for it in history.checkpoints] == ["ckpt-r-69", "ckpt-r-70", "ckpt-r-71.2"]
        kept = {(it.step_index, it.attempt): it for it in history.steps}
        assert {(69, 1), (70, 1), (71, 2)} <= kept.keys()
        assert kept[70, 1].result == "y" * 5000
        assert history.last_checkpoint is not None
        assert history.last_checkpoint.id == "ckpt-r-71.2"


def test_writing_a_record_costs_the_same_however_many_there_are(place: Place) -> None:
    """O(1) by what is read: not one look at what is behind."""
    timeline = place.open()
    for index in range(200):
        timeline.record("r", step(index))
    read: list[int] = []
    inner = timeline.store.backend.entries
    timeline.store.backend.entries = lambda *a, **k: read.append(1) or inner(*a, **k)
    timeline.record("r", step(200))
    save(timeline, "r", 201, record=step(201))
    assert read == []
    assert len(timeline.history("r").steps) == 202


def test_what_was_said_and_what_it_began_with(timeline: Timeline) -> None:
    assert timeline.said("r", "plan") is None
    timeline.say("r", "running", plan=["a"], initial={"state": {"x": 1}})
    timeline.say("r", "running", plan=["a", "b"], why="resume")
    timeline.say("r", "paused")
    assert timeline.said("r", "plan") == ["a", "b"]
    assert timeline.initial("r") == {"state": {"x": 1}}
    assert timeline.status("r").status == "paused"
    assert timeline.history("r").end_time is None


def test_the_duration_of_a_run_begins_with_its_first_step(timeline: Timeline) -> None:
    timeline.record("r", step(0, duration=30.0))
    save(timeline, "r", 1, record=step(1), run_status="success")
    history = timeline.history("r")
    assert history.start_time is not None
    assert history.end_time is not None
    assert timedelta(seconds=30) <= history.end_time - history.start_time < timedelta(seconds=40)
