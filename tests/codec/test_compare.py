"""What `==` takes for the same and storing does not; by name, so that each is tried in every run."""

from __future__ import annotations

import datetime as dt
import math
import pathlib
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from tests.codec.strategies import Bits, Level, Mode, OddText, Perm, Point, Slotted

from knotline.codec import OddDict, OddStr, encode, fits, freeze, private, same

_NOON = dt.datetime.fromisoformat("2026-11-18T12:00:00")
_OSLO = zoneinfo.ZoneInfo("Europe/Oslo")

PAIRS: list[tuple[Any, Any]] = [
    (1, True),
    (0, False),
    (1, 1.0),
    (True, 1.0),
    (0.0, -0.0),
    (0.0, 0),
    (None, False),
    (2**70, float(2**70)),
    (1, Level.HIGH),
    (1, Bits.A),
    (Perm.R, Perm.R | Perm.X),
    ("fast", Mode.FAST),
    ("fast", OddText("fast")),
    ("\ud800", "\ud801"),
    (b"a", bytearray(b"a")),
    (b"a", memoryview(b"a")),
    ([1], (1,)),
    ((1,), (True,)),
    ({1}, frozenset({1})),
    ({1}, {True}),
    ({1, 2}, {1, 2, 3}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": 1}, OrderedDict(a=1)),
    ({"fast": 1}, {Mode.FAST: 1}),
    ({"fast": 1}, {OddText("fast"): 1}),
    ({1: 1}, {True: 1}),
    ({1: 1}, {1.0: 1}),
    ({1: 1, "a": 2}, {"a": 2, 1: 1}),
    ({0.0: 1}, {-0.0: 1}),
    ({"a": 1}, freeze({"a": 1})),
    ([1], freeze([1])),
    (freeze([1]), freeze([True])),
    (freeze({"a": 1, "b": 2}), freeze({"b": 2, "a": 1})),
    (Decimal("1.0"), Decimal("1.00")),
    (Decimal(1), 1),
    (Decimal(0), Decimal("-0")),
    (_NOON, _NOON.replace(fold=1)),
    (_NOON.replace(tzinfo=dt.UTC), _NOON.replace(tzinfo=zoneinfo.ZoneInfo("UTC"))),
    (_NOON.replace(tzinfo=dt.UTC), _NOON.replace(tzinfo=dt.timezone(dt.timedelta(0), "UTC"))),
    (_NOON.replace(tzinfo=dt.UTC), (_NOON + dt.timedelta(hours=1)).replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))),
    (_NOON.replace(tzinfo=_OSLO), _NOON.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Stockholm"))),
    (_NOON.date(), _NOON),
    (_NOON, _NOON.isoformat()),
    (dt.time(1), dt.time(1, fold=1)),
    (dt.time(1), dt.time(1, tzinfo=dt.UTC)),
    (dt.timedelta(0), 0),
    (pathlib.PurePosixPath("a"), pathlib.PosixPath("a")),
    (pathlib.PureWindowsPath("a"), pathlib.PureWindowsPath("A")),
    (pathlib.PosixPath("a"), "a"),
    (Point(1), Point(True)),
    (Point(1, 2), Point(1, 2.0)),
    (Point(1), Slotted(1, 0)),
]

WRAPS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "list": lambda value: [0, value],
    "dict": lambda value: {"k": value},
    "odd dict": lambda value: {0: 0, 1: value},
    "tuple": lambda value: (value, 0),
    "dataclass": lambda value: Point(0, value),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize(("a", "b"), PAIRS, ids=[f"{n}-{a!r:.20}" for n, (a, _) in enumerate(PAIRS)])
def test_almost_the_same_is_another_value(a: Any, b: Any, wrap: Callable[[Any], Any]) -> None:
    one, other = wrap(a), wrap(b)
    kept = private(one)
    assert fits(kept, wrap(a))
    assert not fits(kept, other)
    if type(b) in (OddText, OrderedDict, memoryview) or (type(b) is dict and OddText in map(type, b)):
        return
    assert not fits(private(other), one)
    assert not same(kept, private(other))
    assert encode(kept) != encode(private(other))


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_one_nan(wrap: Callable[[Any], Any]) -> None:
    kept = private(wrap(math.nan))
    for other in (float("nan"), -math.nan, math.inf - math.inf):
        assert fits(kept, wrap(other))
        assert same(kept, private(wrap(other)))
        assert encode(private(wrap(other))) == encode(kept)
    assert not fits(kept, wrap(math.inf))
    assert not fits(private(wrap(math.inf)), wrap(math.nan))
    assert not fits(kept, wrap(Decimal("nan")))


def test_the_private_forms() -> None:
    kept: Any = private({"a": "\ud800", "b": {"\ud800": 1}, "c": {"é": "日本"}})
    assert type(kept) is dict
    assert type(kept["a"]) is OddStr
    assert type(kept["b"]) is OddDict
    assert [type(key) for key in kept["b"]] == [OddStr]
    assert [type(part) for part in (kept["c"], *kept["c"], *kept["c"].values())] == [dict, str, str]
    assert type(private(["\ud800"])[0]) is OddStr  # pyright: ignore[reportIndexIssue]
    still = (1, ("a", None))
    assert private(still) is still
