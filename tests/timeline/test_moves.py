"""Ways back and forth: rollback, undo, redo, fork, pin, restart; and their laws by example."""

from __future__ import annotations

import pytest
from tests.timeline.places import Place, ids, save, there

from knotline.errors import Conflict, NotFound, NothingToUndo
from knotline.store import verify
from knotline.timeline import Timeline


def line(timeline: Timeline, count: int = 4, run: str = "r") -> None:
    for index in range(count):
        save(timeline, run, index)


def test_a_rollback_takes_later_checkpoints_out_of_sight_and_undo_brings_them_back(timeline: Timeline) -> None:
    line(timeline)
    before = ids(timeline, "r")
    moved = timeline.rollback("ckpt-r-1")
    assert moved.checkpoint is not None
    assert moved.checkpoint.id == "ckpt-r-1"
    assert ids(timeline, "r") == ["ckpt-r-1", "ckpt-r-0"]
    assert not there(timeline, "ckpt-r-2")
    assert timeline.load("ckpt-r-2", hidden=True).state == {"n": 2}
    assert timeline.store.load("r")["state"] == {"n": 1}
    timeline.undo("r")
    assert ids(timeline, "r") == before
    assert timeline.store.load("r")["state"] == {"n": 3}


def test_every_move_is_undone_and_redone_in_order(timeline: Timeline) -> None:
    line(timeline, 3)
    timeline.rollback("ckpt-r-0")
    save(timeline, "r", 1)
    timeline.delete("ckpt-r-0")
    timeline.restart("r")
    seen = [ids(timeline, "r")]
    while True:
        try:
            timeline.undo("r")
        except NothingToUndo:
            break
        seen.append(ids(timeline, "r"))
    assert seen == [
        [],
        ["ckpt-r-1.2"],
        ["ckpt-r-1.2", "ckpt-r-0"],
        ["ckpt-r-0"],
        ["ckpt-r-2", "ckpt-r-1", "ckpt-r-0"],
        ["ckpt-r-1", "ckpt-r-0"],
        ["ckpt-r-0"],
    ]
    for wanted in reversed(seen[:-1]):
        timeline.redo("r")
        assert ids(timeline, "r") == wanted
    with pytest.raises(NothingToUndo):
        timeline.redo("r")


def test_a_save_after_an_undo_is_a_branch_and_ends_redo(timeline: Timeline) -> None:
    line(timeline, 3)
    timeline.undo("r")
    assert save(timeline, "r", 2, {"n": "other"}) == "ckpt-r-2.2"
    with pytest.raises(NothingToUndo):
        timeline.redo("r")
    assert [it.id for it in timeline.lineage("ckpt-r-2.2")] == ["ckpt-r-2.2", "ckpt-r-1", "ckpt-r-0"]


def test_a_rollback_does_not_bring_back_what_was_deleted(timeline: Timeline) -> None:
    line(timeline, 4)
    timeline.delete("ckpt-r-0")
    timeline.rollback("ckpt-r-2")
    assert ids(timeline, "r") == ["ckpt-r-2", "ckpt-r-1"]
    timeline.undo("r")
    timeline.undo("r")
    assert ids(timeline, "r") == ["ckpt-r-3", "ckpt-r-2", "ckpt-r-1", "ckpt-r-0"]


def test_what_is_said_of_a_run_is_no_move(timeline: Timeline) -> None:
    line(timeline, 2)
    timeline.say("r", "failed")
    timeline.annotate("ckpt-r-0", tags=["x"])
    timeline.pin("ckpt-r-0")
    timeline.undo("r")
    assert ids(timeline, "r") == ["ckpt-r-0"]
    assert timeline.header("ckpt-r-0").pinned
    assert timeline.header("ckpt-r-0").tags == ("x",)


def test_a_fork_has_its_lineage_and_never_changes_its_origin(place: Place) -> None:
    timeline = place.open()
    line(timeline, 3)
    origin = timeline.store.header("r")
    made = timeline.fork("ckpt-r-1", execution_id="f")
    assert (made.id, made.origin, made.step_index) == ("ckpt-f-1", "ckpt-r-1", 1)
    assert timeline.load(made.id).state == {"n": 1}
    save(timeline, "f", 2, {"n": "f2"})
    timeline.rollback("ckpt-f-1")
    again = timeline.fork("ckpt-f-2", execution_id="g")  # of a fork, out of sight
    assert timeline.load(again.id).state == {"n": "f2"}
    assert [it.id for it in timeline.lineage(again.id)] == ["ckpt-g-2", "ckpt-f-2", "ckpt-f-1", "ckpt-r-1", "ckpt-r-0"]
    assert timeline.store.header("r").pos == origin.pos
    assert [timeline.load(name).state for name in ids(timeline, "r")] == [{"n": 2}, {"n": 1}, {"n": 0}]
    assert ids(timeline, "f") == ["ckpt-f-1"]
    with pytest.raises(Conflict):
        timeline.fork("ckpt-r-0", execution_id="f")
    with pytest.raises(NotFound):
        timeline.fork("ckpt-r-9", execution_id="h")
    assert verify(timeline.store).clean


def test_undo_in_a_fork_ends_at_its_beginning(timeline: Timeline) -> None:
    line(timeline, 2)
    timeline.fork("ckpt-r-1", execution_id="f")
    save(timeline, "f", 2)
    timeline.undo("f")
    assert ids(timeline, "f") == ["ckpt-f-1"]
    with pytest.raises(NothingToUndo):
        timeline.undo("f")
    assert ids(timeline, "f") == ["ckpt-f-1"]


def test_moves_of_what_is_not_there(timeline: Timeline) -> None:
    for verb in (timeline.rollback, timeline.pin, timeline.unpin, timeline.load, timeline.header, timeline.lineage):
        with pytest.raises(NotFound):
            verb("ckpt-none-0")
    with pytest.raises(NotFound):
        timeline.undo("none")
    with pytest.raises(NotFound):
        timeline.status("none")
    with pytest.raises(NotFound):
        timeline.history("none")
    assert timeline.delete("ckpt-none-0") is False
    assert timeline.newest("none") is None
    assert ids(timeline, "none") == []


def test_another_handle_sees_every_move(place: Place) -> None:
    timeline, other = place.open(), place.open()
    line(timeline, 3)
    assert ids(other, "r") == ids(timeline, "r")
    timeline.rollback("ckpt-r-0")
    assert ids(other, "r") == ["ckpt-r-0"]
    assert not there(other, "ckpt-r-1")
    assert save(other, "r", 1) == "ckpt-r-1.2"
    assert ids(timeline, "r") == ["ckpt-r-1.2", "ckpt-r-0"]
    other.pin("ckpt-r-0")
    assert timeline.header("ckpt-r-0").pinned
    timeline.unpin("ckpt-r-0")
    assert not other.header("ckpt-r-0").pinned


def test_annotations_add_up(timeline: Timeline) -> None:
    save(timeline, "r", 0, metadata={"tags": ["a"], "n": 1, "creator": "me"})
    timeline.annotate("ckpt-r-0", description="first")
    timeline.annotate("ckpt-r-0", description="second", fields={"m": 2})
    it = timeline.annotate("ckpt-r-0", creator="you")
    assert it.metadata == {"tags": ["a"], "n": 1, "creator": "you", "description": "second", "m": 2}
    assert timeline.header("ckpt-r-0").metadata == timeline.load("ckpt-r-0").metadata == it.metadata
    fork = timeline.fork("ckpt-r-0", execution_id="f")
    assert timeline.load(fork.id).metadata == it.metadata
