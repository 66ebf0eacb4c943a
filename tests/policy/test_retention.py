"""Retention as golden tables: what goes and what stays, each with its reasons."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knotline.errors import ConfigError
from knotline.policy import Fate, Retention, Row, plan, seconds, size

DAY = 86_400 * 1_000_000
NOW = 1_000 * DAY

# Three runs: "done" ended well long ago, "bad" failed lately, "open" is still going. Days are ages.
TABLE = [
    Row("done", "d0", 0, NOW - 90 * DAY, "success", "success", 100),
    Row("done", "d1", 1, NOW - 80 * DAY, "success", "success", 100, pinned=True),
    Row("done", "d2", 2, NOW - 70 * DAY, "success", "success", 100, origin=True),
    Row("done", "d3", 3, NOW - 60 * DAY, "success", "success", 100),
    Row("bad", "b0", 0, NOW - 50 * DAY, "success", "failed", 100),
    Row("bad", "b1", 1, NOW - 40 * DAY, "failed", "failed", 100),
    Row("open", "o0", 0, NOW - 50 * DAY, "success", "running", 100),
    Row("open", "o1", 1, NOW - 45 * DAY, "success", "running", 100),
    Row("open", "o2", 2, NOW - 1 * DAY, "failed", "running", 100),
]

GOLDEN: list[tuple[dict[str, Any], str]] = [
    (
        {},
        """
        d0 keep: within the limits
        d1 keep: within the limits
        d2 keep: within the limits
        d3 keep: within the limits
        b0 keep: within the limits
        b1 keep: within the limits
        o0 keep: within the limits
        o1 keep: within the limits
        o2 keep: within the limits
        """,
    ),
    (
        {"older_than": 45 * 86_400},
        """
        d0 remove: older_than
        d1 keep: pinned
        d2 keep: a fork stands on it
        d3 keep: newest of its run
        b0 remove: older_than
        b1 keep: within the limits
        o0 remove: older_than
        o1 keep: within the limits
        o2 keep: within the limits
        """,
    ),
    (
        {"older_than": 10 * 86_400},
        """
        d0 remove: older_than
        d1 keep: pinned
        d2 keep: a fork stands on it
        d3 keep: newest of its run
        b0 remove: older_than
        b1 keep: newest of its run
        o0 remove: older_than
        o1 keep: an unfinished run resumes from it
        o2 keep: within the limits
        """,
    ),
    (
        {"keep_last": 1},
        """
        d0 remove: keep_last
        d1 keep: pinned
        d2 keep: a fork stands on it
        d3 keep: within the limits
        b0 remove: keep_last
        b1 keep: within the limits
        o0 remove: keep_last
        o1 keep: an unfinished run resumes from it
        o2 keep: within the limits
        """,
    ),
    (
        {"keep_last": 0, "min_retention": 2},
        """
        d0 remove: keep_last
        d1 keep: pinned
        d2 keep: min_retention, a fork stands on it
        d3 keep: newest of its run
        b0 keep: min_retention
        b1 keep: newest of its run
        o0 remove: keep_last
        o1 keep: min_retention, an unfinished run resumes from it
        o2 keep: newest of its run
        """,
    ),
    (
        {"keep_last": 0, "min_retention": 0},
        """
        d0 remove: keep_last
        d1 keep: pinned
        d2 keep: a fork stands on it
        d3 keep: newest of its run
        b0 remove: keep_last
        b1 keep: newest of its run
        o0 remove: keep_last
        o1 keep: an unfinished run resumes from it
        o2 keep: newest of its run
        """,
    ),
    (
        {"status": "success"},
        """
        d0 remove: status
        d1 keep: pinned
        d2 keep: a fork stands on it
        d3 keep: newest of its run
        b0 keep: its run is not meant
        b1 keep: its run is not meant, newest of its run
        o0 keep: its run is not meant
        o1 keep: its run is not meant, an unfinished run resumes from it
        o2 keep: its run is not meant, newest of its run
        """,
    ),
    (
        {"status": "failed", "older_than": 45 * 86_400, "keep_last": 1},
        """
        d0 keep: its run is not meant
        d1 keep: its run is not meant, pinned
        d2 keep: its run is not meant, a fork stands on it
        d3 keep: its run is not meant, newest of its run
        b0 remove: older_than, keep_last
        b1 keep: within the limits
        o0 keep: its run is not meant
        o1 keep: its run is not meant, an unfinished run resumes from it
        o2 keep: its run is not meant, newest of its run
        """,
    ),
    (
        {"max_size": 750},  # of 900
        """
        d0 remove: max_size
        d1 keep: pinned
        d2 keep: a fork stands on it
        d3 keep: newest of its run
        b0 remove: max_size
        b1 keep: within the limits
        o0 keep: within the limits
        o1 keep: within the limits
        o2 keep: within the limits
        """,
    ),
    (
        {"max_size": 0, "older_than": 85 * 86_400},
        """
        d0 remove: older_than
        d1 keep: pinned
        d2 keep: a fork stands on it
        d3 keep: newest of its run
        b0 remove: max_size
        b1 keep: newest of its run
        o0 remove: max_size
        o1 keep: an unfinished run resumes from it
        o2 keep: newest of its run
        """,
    ),
]


def shown(fates: list[Fate]) -> list[str]:
    return [f"{it.row.id} {'keep' if it.keep else 'remove'}: {', '.join(it.reasons)}" for it in fates]


@pytest.mark.parametrize(("said", "wanted"), GOLDEN, ids=[repr(said) for said, _ in GOLDEN])
def test_golden(said: dict[str, Any], wanted: str) -> None:
    found = shown(plan(TABLE, Retention(**said), now=NOW, size=900))
    # What protects is named only where a limit would have taken the checkpoint.
    lines = [line.strip() for line in wanted.strip().splitlines()]
    assert found == lines


rows = st.lists(
    st.builds(
        lambda run, age, status, size_, pinned, origin: (run, age, status, size_, pinned, origin),
        st.sampled_from("abc"),
        st.integers(0, 100),
        st.sampled_from(["success", "failed", "pending"]),
        st.integers(0, 1000),
        st.booleans(),
        st.booleans(),
    ),
    max_size=25,
)
retentions = st.builds(
    Retention,
    older_than=st.none() | st.integers(0, 100 * 86_400),
    keep_last=st.none() | st.integers(0, 6),
    max_size=st.none() | st.integers(0, 20_000),
    status=st.sampled_from([None, "success", "failed", "running"]),
    min_retention=st.integers(0, 4),
)


@given(rows, retentions, st.sampled_from(["success", "failed", "running", "paused", "cancelled"]))
def test_what_protects_is_stronger_than_any_limit(made: list[Any], retention: Retention, ended: str) -> None:
    made.sort(key=lambda it: -it[1])
    table = [
        Row(run, f"{run}{at}", at, NOW - age * DAY, status, ended, size_, pinned, origin)
        for at, (run, age, status, size_, pinned, origin) in enumerate(made)
    ]
    fates = plan(table, retention, now=NOW, size=sum(row.size for row in table))
    assert [fate.row for fate in fates] == table
    assert all(fate.reasons for fate in fates)
    gone = {fate.row.id for fate in fates if not fate.keep}
    for run in {row.run for row in table}:
        mine = [row for row in table if row.run == run][::-1]
        safe = mine[: max(1, retention.min_retention)] + [row for row in mine if row.pinned or row.origin]
        if ended not in ("success", "failed", "cancelled"):
            safe += [row for row in mine if row.status == "success"][:1]
        assert gone.isdisjoint(row.id for row in safe)
        if retention.keep_last is not None:
            assert all(row.id in gone or row in safe for row in mine[retention.keep_last :]) or (
                retention.status not in (None, ended)
            )
    if retention.status not in (None, ended):
        assert gone == set()
    again = plan([row for row in table if row.id not in gone], retention, now=NOW, size=0)
    # What stays is not let go by doing the same again, unless it was the size.
    if retention.max_size is None:
        assert all(fate.keep for fate in again)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [("30d", 30 * 86_400), ("1h30m", 5400), (" 2W ", 2 * 7 * 86_400), ("1.5h", 5400), ("90s", 90), ("250ms", 0.25),
     ("1y", 365 * 86_400), (90, 90), (0, 0), (timedelta(days=1), 86_400), ("1d 2h", 93_600)],
)  # fmt: skip
def test_durations(said: Any, wanted: float) -> None:
    assert seconds(said, "older_than") == wanted


@pytest.mark.parametrize(
    "said", ["", "30", "d", "30x", "-1d", "1d-", "a30d", "\uff11d", -1, float("nan"), float("inf")]
)
def test_durations_that_are_none(said: Any) -> None:
    with pytest.raises(ConfigError, match="older_than"):
        seconds(said, "older_than")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [("2GB", 2 * 10**9), ("2GiB", 2 * 2**30), ("500 mb", 5 * 10**8), ("1.5k", 1500), ("10", 10), ("7B", 7), (5, 5)],
)
def test_sizes(said: Any, wanted: int) -> None:
    assert size(said, "max_size") == wanted


@pytest.mark.parametrize("said", ["", "GB", "2XB", "-1B", "1..5GB", "2 G B", -1])
def test_sizes_that_are_none(said: Any) -> None:
    with pytest.raises(ConfigError, match="max_size"):
        size(said, "max_size")


def test_a_retention_as_a_person_says_it() -> None:
    said = Retention.of(older_than="30d", keep_last=10, max_size="2GB", status="success", min_retention=1)
    wanted = Retention(older_than=30 * 86_400, keep_last=10, max_size=2 * 10**9, status="success", min_retention=1)
    assert said == wanted
    assert not Retention.of().limits
    for wrong in ({"keep_last": -1}, {"min_retention": -1}, {"older_than": "soon"}, {"max_size": "lots"}):
        with pytest.raises(ConfigError):
            Retention.of(**wrong)  # pyright: ignore[reportArgumentType] - on purpose
