"""Retention carried out: what goes is gone for good and gives its room back, and what stays is whole."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.timeline.places import DAY, START, Place, ids, save, step, there

from knotline import events
from knotline.errors import NotFound, NothingToUndo
from knotline.events import Bus, Event
from knotline.policy import CleanReport, Retention
from knotline.store import verify
from knotline.timeline import Timeline, cleaning


def fates(report: CleanReport) -> dict[str, tuple[str, ...]]:
    return {fate.row.id: fate.reasons for fate in (*report.remove, *report.keep)}


def fill(timeline: Timeline, run: str = "r", count: int = 10) -> None:
    for n in range(count):
        save(timeline, run, n, {"n": n, "blob": f"{run}{n}" * 3000})


def test_a_dry_run_says_what_a_real_run_does(place: Place) -> None:
    timeline = place.open()
    fill(timeline)
    fill(timeline, "q", 3)
    timeline.pin("ckpt-r-2")
    timeline.fork("ckpt-r-3", execution_id="f")
    before = ids(timeline, limit=100)
    dry = timeline.clean(Retention(keep_last=2), dry_run=True)
    assert dry.dry_run
    assert dry.freed > 0
    assert ids(timeline, limit=100) == before
    real = timeline.clean(Retention(keep_last=2))
    assert (fates(real), len(real)) == (fates(dry), len(dry))
    assert fates(real)["ckpt-r-2"] == ("pinned",)
    assert fates(real)["ckpt-r-3"] == ("a fork stands on it",)
    assert ids(timeline, "r") == ["ckpt-r-9", "ckpt-r-8", "ckpt-r-3", "ckpt-r-2"]
    for each in (timeline, place.open()):
        for name in ids(each, limit=100):
            run, _, index = name.removeprefix("ckpt-").partition("-")
            said = each.load(name).state
            assert said == {"n": int(index), "blob": f"{'r' if run == 'f' else run}{index}" * 3000}
        assert verify(each.store).clean


def test_disk_is_given_back(place: Place) -> None:
    timeline = place.open()
    fill(timeline, count=120)
    for index in range(3):
        fill(timeline, f"q{index}", 40)
    before = timeline.store.backend.size()
    report = timeline.clean(Retention(keep_last=1))
    after = timeline.store.backend.size()
    assert report.freed > 0
    assert after < before / 4
    assert len(report) == 119 + 3 * 39


def test_time_count_size_and_status(place: Place) -> None:
    timeline = place.open()
    for day in range(6):
        place.clock.at = START + day * DAY
        save(timeline, "done", day, run_status="success" if day == 5 else None)
        save(timeline, "open", day)
    place.clock.at = START + 6 * DAY
    assert [it.row.id for it in timeline.clean(Retention.of(older_than="3d"), dry_run=True).remove] == [
        *(f"ckpt-{run}-{day}" for day in range(3) for run in ("done", "open"))
    ]
    only = timeline.clean(Retention(status="success", keep_last=2), dry_run=True)
    assert [it.row.id for it in only.remove] == [f"ckpt-done-{day}" for day in range(4)]
    one = timeline.clean(Retention(keep_last=1), execution_id="open", dry_run=True)
    assert {it.row.run for it in (*one.remove, *one.keep)} == {"open"}
    small = timeline.clean(Retention(max_size=0))
    assert ids(timeline) == ["ckpt-open-5", "ckpt-done-5"]
    assert all(reason == ("max_size",) for reason in (it.reasons for it in small.remove))


def test_an_unfinished_run_keeps_what_it_resumes_from(timeline: Timeline) -> None:
    save(timeline, "r", 0)
    save(timeline, "r", 1)
    save(timeline, "r", 2, status="failed")
    save(timeline, "r", 3, status="failed")
    report = timeline.clean(Retention(keep_last=1))
    assert fates(report)["ckpt-r-1"] == ("an unfinished run resumes from it",)
    assert ids(timeline, "r") == ["ckpt-r-3", "ckpt-r-1"]


def test_what_is_cleaned_is_gone_for_good(place: Place) -> None:
    """No undo and no rollback leads to it again, also while it cannot leave the disk yet."""
    timeline = place.open()
    for n in range(5):
        save(timeline, "r", n)
    timeline.pin("ckpt-r-0")  # the log cannot be cut behind it
    timeline.clean(Retention(keep_last=1))
    assert ids(timeline) == ["ckpt-r-4", "ckpt-r-0"]
    with pytest.raises(NothingToUndo):
        timeline.undo("r")
    with pytest.raises(NotFound):
        timeline.rollback("ckpt-r-3", hidden=True)
    save(timeline, "r", 5)
    timeline.undo("r")
    assert ids(timeline) == ["ckpt-r-4", "ckpt-r-0"]
    timeline.redo("r")
    assert ids(timeline) == ["ckpt-r-5", "ckpt-r-4", "ckpt-r-0"]
    timeline.rollback("ckpt-r-0")
    assert ids(timeline) == ["ckpt-r-0"]
    timeline.undo("r")
    assert ids(timeline) == ["ckpt-r-5", "ckpt-r-4", "ckpt-r-0"]
    assert not there(timeline, "ckpt-r-2")


def test_cleaning_twice_changes_nothing_more(place: Place) -> None:
    timeline = place.open()
    fill(timeline)
    timeline.clean(Retention(keep_last=3))
    rev = timeline.store.header("r").rev
    again = timeline.clean(Retention(keep_last=3))
    assert again.remove == []
    assert timeline.store.header("r").rev == rev


def test_what_was_deleted_by_hand_goes_with_the_rest(place: Place) -> None:
    timeline = place.open()
    fill(timeline, count=40)
    for n in range(30):
        timeline.delete(f"ckpt-r-{n}")
    before = timeline.store.backend.size()
    timeline.clean(Retention(keep_last=5))
    assert timeline.store.backend.size() < before / 2
    assert [timeline.load(name).state["n"] for name in ids(timeline, "r")] == [39, 38, 37, 36, 35]


@pytest.mark.parametrize("what", ["pin", "fork", "rollback", "save"])
def test_what_happens_while_it_is_planned_is_respected(
    place: Place, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline, other = place.open(), place.open()
    fill(timeline)
    real = cleaning.plan

    def then(*args: Any, **more: Any) -> Any:
        made = real(*args, **more)
        match what:
            case "pin":
                other.pin("ckpt-r-4")
            case "fork":
                other.fork("ckpt-r-4", execution_id="f")
            case "rollback":
                other.rollback("ckpt-r-4")
            case _:
                save(other, "r", 10, {"n": 10})
        return made

    monkeypatch.setattr(cleaning, "plan", then)
    report = timeline.clean(Retention(keep_last=2))
    monkeypatch.undo()
    if what == "save":
        assert ids(timeline, "r") == ["ckpt-r-10", "ckpt-r-9", "ckpt-r-8"]
    else:
        assert fates(report)["ckpt-r-4"] == ("in use since",)
        assert "ckpt-r-4" in ids(timeline, "r")
        assert timeline.load("ckpt-r-4").state["n"] == 4
    for each in (timeline, place.open()):
        for name in ids(each, limit=100):
            each.load(name)
        assert verify(each.store).clean


def test_cleaning_beside_saves(place: Place) -> None:
    timeline, other = place.open(), place.open()
    failures: list[BaseException] = []
    done = threading.Event()

    def work(run: str) -> None:
        try:
            for n in range(60):
                save(other, run, n, {"n": n, "blob": f"{run}{n}" * 500}, durability="process")
        except BaseException as error:  # noqa: BLE001 - told to the test, which raises it
            failures.append(error)

    writers = [threading.Thread(target=work, args=(run,)) for run in ("a", "b")]

    def clean() -> None:
        try:
            while not done.is_set():
                timeline.clean(Retention(keep_last=3))
        except BaseException as error:  # noqa: BLE001 - the same
            failures.append(error)

    cleaner = threading.Thread(target=clean)
    for thread in (*writers, cleaner):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    cleaner.join()
    assert failures == []
    timeline.clean(Retention(keep_last=3))
    for run in ("a", "b"):
        assert [other.load(name).state["n"] for name in ids(other, run)] == [59, 58, 57]
    assert verify(timeline.store).clean


def test_an_event_tells_what_went(place: Place) -> None:
    bus, heard = Bus(), list[Event]()
    bus.subscribe(events.CHECKPOINTS_CLEANED, heard.append)
    timeline = place.open(bus=bus)
    fill(timeline, count=3)
    timeline.clean(Retention(keep_last=1), dry_run=True)
    timeline.clean(Retention(keep_last=1))
    timeline.clean(Retention(keep_last=1))
    assert bus.drain()
    assert [it["removed"] for it in heard] == [["ckpt-r-0", "ckpt-r-1"]]


def test_records_that_stay_are_still_there(place: Place) -> None:
    timeline = place.open()
    for n in range(50):
        save(timeline, "r", n, {"blob": str(n) * 4000}, record=step(n, result="y" * 3000))
    timeline.clean(Retention(keep_last=2))
    assert [it.step_index for it in timeline.history("r").steps][-2:] == [48, 49]
    assert all(it.result == "y" * 3000 for it in timeline.history("r").steps)
