"""Laws of the moves, on runs of every shape; the machine has them all at once, here each stands alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.timeline.places import Place, ids, save, step

from knotline.policy import Retention
from knotline.records import moment
from knotline.store import verify
from knotline.timeline import Timeline

moves = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.integers(0, 4), st.integers(0, 3)),
        st.tuples(st.just("rollback"), st.integers(0, 9), st.none()),
        st.tuples(st.just("retry"), st.integers(0, 9), st.none()),
        st.tuples(st.just("delete"), st.integers(0, 9), st.none()),
        st.tuples(st.just("fail"), st.integers(0, 4), st.none()),
    ),
    min_size=1,
    max_size=14,
)


def play(timeline: Timeline, run: str, script: list[Any]) -> None:
    for verb, a, value in script:
        seen = ids(timeline, run, limit=100)
        if verb == "save":
            state = {"value": value, "list": list(range(value)), "text": "x" * 700 + str(a)}
            save(timeline, run, a, state, record=step(a))
        elif verb == "fail":
            timeline.record(run, step(a, status="failed", error="x"))
        elif seen and verb == "delete":
            timeline.delete(seen[a % len(seen)])
        elif seen:
            timeline.rollback(seen[a % len(seen)], why=verb)


def picture(timeline: Timeline, run: str) -> Any:
    """All that can be seen of a run."""
    every = [timeline.load(name) for name in ids(timeline, run, limit=100)]
    head = timeline.store.head(run)
    if head is None:
        return every
    current = None if head.pos < 0 else timeline.store.load(run)
    return every, current, timeline.history(run), timeline.status(run) if every else None


@given(moves, st.integers(0, 99))
def test_rollback_then_undo_is_identity_and_redo_is_the_rollback(script: list[Any], a: int) -> None:
    timeline = Place("memory", Path()).open()
    play(timeline, "r", script)
    seen = ids(timeline, "r", limit=100)
    if not seen:
        return
    before = picture(timeline, "r")
    timeline.rollback(seen[a % len(seen)])
    there = picture(timeline, "r")
    timeline.undo("r")
    assert picture(timeline, "r") == before
    timeline.redo("r")
    assert picture(timeline, "r") == there


@given(moves, moves, st.integers(0, 99))
def test_what_happens_to_a_fork_never_changes_its_origin(script: list[Any], after: list[Any], a: int) -> None:
    timeline = Place("memory", Path()).open()
    play(timeline, "r", script)
    seen = ids(timeline, "r", limit=100)
    if not seen:
        return
    origin = seen[a % len(seen)]
    before = picture(timeline, "r")
    fork = timeline.fork(origin, execution_id="f")
    assert timeline.load(fork.id).state == timeline.load(origin).state
    play(timeline, "f", after)
    timeline.clean(Retention(keep_last=1), execution_id="f")
    assert picture(timeline, "r") == before
    # And cleaning the origin never breaks the fork.
    kept = picture(timeline, "f")
    timeline.clean(Retention(keep_last=0, min_retention=0), execution_id="r")
    assert picture(timeline, "f") == kept
    assert verify(timeline.store).clean


@given(moves, st.integers(0, 3), st.integers(0, 2))
def test_retention_never_breaks_what_stays(script: list[Any], keep: int, least: int) -> None:
    place = Place("memory", Path())
    timeline = place.open()
    play(timeline, "r", script)
    states = {name: timeline.load(name) for name in ids(timeline, "r", limit=100)}
    steps = {(it.step_index, it.timestamp): it for it in timeline.history("r").steps} if states else {}
    report = timeline.clean(Retention(keep_last=keep, min_retention=least))
    stays = [fate.row.id for fate in report.keep]
    for each in (timeline, place.open()):
        assert sorted(ids(each, "r", limit=100)) == sorted(stays)
        for name in stays:
            assert each.load(name) == states[name]
        if stays:
            assert all(steps[it.step_index, it.timestamp] == it for it in each.history("r").steps)
        assert verify(each.store).clean


@given(moves)
def test_the_history_is_the_fold_of_the_log(script: list[Any]) -> None:
    """Another fold, by hand: what is in sight, and what a retry took out of it."""
    timeline = Place("memory", Path()).open()
    play(timeline, "r", script)
    head = timeline.store.head("r")
    if head is None:
        return
    headers = list(timeline.store.headers("r", 0, head.rev))
    sight: set[int] = set()
    past: set[int] = set()
    then: dict[int, set[int]] = {}
    for header in headers:
        note: Any = header.note
        if "view" in note:
            now = {rev for rev in range(header.rev) if any(lo <= rev <= hi for lo, hi in note["view"])}
            if note["why"] == "retry":
                past = past | (sight - now)
            elif note["why"] == "rollback":
                past = then[note["to"]]
            sight = now
        sight.add(header.rev)
        then[header.rev] = past
    history = timeline.history("r")
    records = [header for header in headers if "record" in header.note and header.rev in sight | past]
    assert [(it.step_index, moment(header.at)) for it, header in zip(history.steps, records, strict=True)] == [
        (it.step_index, it.timestamp) for it in history.steps
    ]
    assert [it.rev for it in history.checkpoints] == [
        header.rev for header in headers if header.rev in sight and "id" in header.note and header.pos == header.rev
    ]
    assert history.total_duration == sum(it.duration for it in history.steps)
    assert history.recovery_attempts >= sum(it.status == "failed" for it in history.steps)
