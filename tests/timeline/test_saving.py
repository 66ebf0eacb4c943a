"""What a save is called, what it keeps, and what it refuses."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isnan, nan
from pathlib import PurePosixPath
from typing import Any

import pytest
from tests.timeline.places import Place, ids, save, there

from knotline.errors import Conflict, NotFound, TooLarge, Unavailable, Unstorable
from knotline.records import Checkpoint, CheckpointMetadata
from knotline.store import verify
from knotline.testing import FaultyBackend, Plan
from knotline.timeline import Timeline


def test_ids_are_those_promised_and_a_second_attempt_has_a_suffix(timeline: Timeline) -> None:
    assert save(timeline, "exec-1", 3) == "ckpt-exec-1-3"
    assert save(timeline, "exec-1", 3) == "ckpt-exec-1-3.2"
    assert save(timeline, "exec-1", 3) == "ckpt-exec-1-3.3"
    assert save(timeline, "exec-1", 1) == "ckpt-exec-1-1"
    assert save(timeline, "exec-1", 1) == "ckpt-exec-1-1.2"
    assert save(timeline, "exec-12", 3) == "ckpt-exec-12-3"


def test_the_numbers_go_on_after_reopening_and_beside_another_handle(place: Place) -> None:
    first, second = place.open(), place.open()
    assert [save(first, "r", 0), save(second, "r", 0), save(first, "r", 0)] == [
        "ckpt-r-0",
        "ckpt-r-0.2",
        "ckpt-r-0.3",
    ]
    assert save(second, "r", 5) == "ckpt-r-5"
    assert save(first, "r", 5) == "ckpt-r-5.2"
    assert save(place.open(), "r", 5) == "ckpt-r-5.3"


def test_the_bare_id_means_itself_and_then_the_newest_attempt_in_sight(timeline: Timeline) -> None:
    save(timeline, "r", 0, {"v": 0})
    save(timeline, "r", 1, {"v": 1})
    save(timeline, "r", 1, {"v": 2})
    assert timeline.load("ckpt-r-1").state == {"v": 1}
    timeline.rollback("ckpt-r-0")
    save(timeline, "r", 1, {"v": 3})
    assert timeline.load("ckpt-r-1").state == {"v": 3}
    assert timeline.load("ckpt-r-1").id == "ckpt-r-1.3"
    with pytest.raises(NotFound):
        timeline.load("ckpt-r-1.2")
    assert timeline.load("ckpt-r-1", hidden=True).state == {"v": 1}


def test_verbs_that_remark_mean_the_checkpoint_that_load_gives(timeline: Timeline) -> None:
    """After a retry the bare id is the new attempt's: to pin, to annotate and to fork as well as to load."""
    save(timeline, "r", 0)
    save(timeline, "r", 1, {"v": "old"})
    timeline.rollback("ckpt-r-0")
    save(timeline, "r", 1, {"v": "new"})
    assert timeline.pin("ckpt-r-1").id == "ckpt-r-1.2"
    assert timeline.annotate("ckpt-r-1", tags=["x"]).id == "ckpt-r-1.2"
    assert timeline.load(timeline.fork("ckpt-r-1", execution_id="f").id).state == {"v": "new"}
    assert timeline.diff("ckpt-r-1", "ckpt-r-1.2").state != []  # two attempts, each by its exact name


def test_of_two_under_one_id_the_one_in_sight_is_meant(timeline: Timeline) -> None:
    given = Checkpoint(
        id="mine", execution_id="r", step_name="s", step_index=0, timestamp=datetime.now(UTC), state={"v": 1}
    )
    for value in (1, 2):
        timeline.save("r", step_name="s", step_index=0, state={"v": value}, id=given.id)
    assert timeline.load("mine").state == {"v": 2}
    assert timeline.delete("mine")
    assert timeline.load("mine").state == {"v": 1}
    assert timeline.load("mine", hidden=True).state == {"v": 1}
    timeline.save("other", step_name="s", step_index=0, state={"v": 3}, id="mine")
    assert timeline.load("mine").execution_id == "other"


def test_a_checkpoint_that_was_made_elsewhere_does_not_make_the_run_forget_its_numbers(place: Place) -> None:
    timeline = place.open()
    for index in range(5):
        save(timeline, "r", index)
    save(timeline, "r", 4)
    timeline.save(
        "r", step_name="old", step_index=2, state={}, id="ckpt-r-2", timestamp=datetime(2020, 1, 1, tzinfo=UTC)
    )
    timeline.save("r", step_name="old", step_index=4, state={}, id="ckpt-r-4")
    for again in (timeline, place.open()):
        taken = set(ids(timeline, hidden=True, limit=100))
        fresh = save(again, "r", 4)
        assert fresh not in taken
    assert save(place.open(), "r", 2) == "ckpt-r-2.2"


@pytest.mark.parametrize(
    "value",
    [nan, b"\0\xff", (1, (2, "x")), {1, 2}, frozenset("ab"), Decimal("1.50"), -0.0, True, 1, 1.0, 2**80,
     datetime(2024, 1, 1, tzinfo=UTC), timedelta(days=1), PurePosixPath("a/b"), "\ud800", {1: "int", "1": "text"}],
    ids=repr,
)  # fmt: skip
def test_values_come_back_as_they_went_in(timeline: Timeline, value: Any) -> None:
    made = timeline.save(
        "r", step_name="s", step_index=0, state={"v": value}, context={"v": value}, variables={"v": value}
    )
    for found in (timeline.load(made.id), Checkpoint.from_dict(timeline.load(made.id).to_dict())):
        for part in (found.state, found.context, found.variables):
            back = part["v"]
            assert type(back) is type(value)
            assert back == value or (isnan(back) and isnan(value))
            assert str(back) == str(value)


def test_what_cannot_be_stored_is_refused_with_its_path_and_nothing_is_written(timeline: Timeline) -> None:
    save(timeline, "r", 0)
    with pytest.raises(Unstorable) as caught:
        save(timeline, "r", 1, {"items": [1, {"lock": threading.Lock()}]})
    assert caught.value.path == "state.items[1].lock"
    with pytest.raises(Unstorable, match=r"variables\.x"):
        save(timeline, "r", 1, variables={"x": object()})
    with pytest.raises(Unstorable, match="metadata"):
        save(timeline, "r", 1, metadata={"x": object()})
    for wrong in (-1, 2**31, True, "1"):
        with pytest.raises(Unstorable, match="step_index"):
            timeline.save("r", step_name="s", step_index=wrong, state={})  # pyright: ignore[reportArgumentType] - on purpose
    with pytest.raises(Unstorable, match="status"):
        save(timeline, "r", 1, status="fine")
    assert ids(timeline) == ["ckpt-r-0"]
    assert save(timeline, "r", 1) == "ckpt-r-1"


def test_a_save_that_failed_leaves_no_gap(place: Place) -> None:
    faulty = FaultyBackend(place.backend(), Plan(at=2, only="commit"))
    timeline = place.open(lambda _: faulty)
    save(timeline, "r", 0)
    with pytest.raises(Unavailable):
        save(timeline, "r", 0)
    assert faulty.injected == 1
    assert save(timeline, "r", 0) == "ckpt-r-0.2"
    assert ids(timeline) == ["ckpt-r-0.2", "ckpt-r-0"]


def test_expected_is_the_head_that_the_caller_knows(place: Place) -> None:
    timeline, other = place.open(), place.open()
    save(timeline, "r", 0)
    rev = timeline.store.header("r").rev
    save(other, "r", 1)
    with pytest.raises(Conflict):
        save(timeline, "r", 2, expected=rev)
    assert save(timeline, "r", 2, expected=rev + 1) == "ckpt-r-2"


@pytest.mark.parametrize(
    ("said", "tags", "own"),
    [
        ({"tags": ["a", "b"], "creator": "me", "n": 1}, ("a", "b"), {"n": 1}),
        ({"tags": "abc"}, (), {"tags": "abc"}),
        ({"tags": None}, (), {"tags": None}),
        ({"tags": ["a", 1]}, (), {"tags": ["a", 1]}),
        ({"creator": 5}, (), {"creator": 5}),
        (CheckpointMetadata(tags="abc"), ("abc",), {}),
        (CheckpointMetadata(tags={"b", "a"}), ("a", "b"), {}),
        (CheckpointMetadata(tags=None), (), {}),
        ({1: "x"}, (), {1: "x"}),
        (None, (), {}),
    ],
)
def test_metadata_of_every_shape(timeline: Timeline, said: Any, tags: tuple[str, ...], own: dict[Any, Any]) -> None:
    made = timeline.save("r", step_name="s", step_index=0, state={}, metadata=said)
    for found in (made, timeline.load(made.id), timeline.header(made.id)):
        assert found.metadata.tags == tags
        assert found.metadata.custom_fields == own
    assert Checkpoint(
        id="x",
        execution_id="r",
        step_name="s",
        step_index=0,
        timestamp=made.timestamp,
        state={},
        metadata=said or {},  # pyright: ignore[reportArgumentType] - a plain mapping is taken too
    ).metadata == made.metadata  # fmt: skip


def test_metadata_that_is_too_large_for_a_header_comes_back_whole_and_its_tags_are_found(timeline: Timeline) -> None:
    tags = [f"tag-{n:03}" for n in range(60)]
    said = {"notes": "x" * 50_000, "rows": list(range(5000)), "small": 1, "tags": tags}
    made = timeline.save("r", step_name="s", step_index=0, state={}, metadata=said)
    assert timeline.load(made.id).metadata == said
    assert ids(timeline, tag="tag-059") == [made.id]
    assert ids(timeline, metadata={"small": 1}) == [made.id]
    assert timeline.annotate(made.id, fields={"small": 2, "notes": "short"}).metadata["small"] == 2
    assert timeline.load(made.id).metadata == {**said, "small": 2, "notes": "short"}
    head = timeline.store.header("r", 0)
    assert len(str(head.note)) < 5000


def test_a_long_error_comes_back_whole(timeline: Timeline) -> None:
    error = "boom " * 10_000
    made = timeline.save("r", step_name="s", step_index=0, state={}, status="failed", error=error)
    assert timeline.load(made.id).error == error
    header = timeline.header(made.id)
    assert header.error is not None
    assert error.startswith(header.error)


def test_the_conversation_is_none_or_a_list(timeline: Timeline) -> None:
    without = save(timeline, "r", 0)
    empty = save(timeline, "r", 1, messages=[])
    some = save(timeline, "r", 2, messages=[{"role": "user", "content": "hi"}])
    assert [timeline.load(it).messages for it in (without, empty, some)] == [
        None,
        [],
        [{"role": "user", "content": "hi"}],
    ]


def test_parallel_saves_to_one_run_all_arrive(place: Place) -> None:
    timelines = [place.open(), place.open()]
    failures: list[BaseException] = []

    def work(who: int) -> None:
        try:
            for n in range(10):
                save(timelines[who % 2], "r", who, {"who": who, "n": n})
        except BaseException as error:  # noqa: BLE001 - told to the test, which raises it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = timelines[0].list("r", limit=1000).items
    assert len(found) == len({it.id for it in found}) == 60
    for who in range(6):
        mine = [timelines[0].read(it).state for it in reversed(found) if it.step_index == who]
        assert mine == [{"who": who, "n": n} for n in range(10)]
    assert verify(timelines[0].store).clean


def test_deleting_the_newest_and_saving_goes_on(timeline: Timeline) -> None:
    save(timeline, "r", 0)
    save(timeline, "r", 1)
    assert timeline.delete("ckpt-r-1")
    assert not timeline.delete("ckpt-r-1")
    newest = timeline.newest("r")
    assert newest is not None
    assert newest.id == "ckpt-r-0"
    assert save(timeline, "r", 1, {"n": "again"}) == "ckpt-r-1.2"
    assert timeline.load("ckpt-r-1").state == {"n": "again"}
    assert there(timeline, "ckpt-r-0")


def test_headers_stay_short_whatever_is_said(timeline: Timeline) -> None:
    save(timeline, "r", 0)
    with pytest.raises(TooLarge, match="metadata"):
        timeline.annotate("ckpt-r-0", description="x" * 20_000)
    assert timeline.header("ckpt-r-0").metadata.description is None
    timeline.annotate("ckpt-r-0", description="x" * 9000)
    assert timeline.load("ckpt-r-0").metadata.description == "x" * 9000
    timeline.say("r", "failed", error="boom " * 50_000)
    status = timeline.status("r")
    assert status.error is not None
    assert status.error.startswith("boom boom")
    assert len(str(timeline.store.header("r").note)) < 3000
