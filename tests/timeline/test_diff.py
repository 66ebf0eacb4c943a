"""What differs between two checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tests.codec.strategies import alike, values
from tests.timeline.places import save

from knotline.backends import MemoryBackend
from knotline.timeline import Change, Timeline


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ({"n": 1}, {"n": 1}, []),
        ({"n": 1}, {"n": 2}, [Change("n", "changed", 1, 2)]),
        ({"n": 1}, {"n": True}, [Change("n", "changed", 1, True)]),
        ({"n": 0.0}, {"n": -0.0}, [Change("n", "changed", 0.0, -0.0)]),
        ({"n": None}, {}, [Change("n", "removed", None)]),
        ({}, {"n": None}, [Change("n", "added", after=None)]),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, [Change("a.b.c", "changed", 1, 2)]),
        ({"l": [1, 2, 3]}, {"l": [1, 3]}, [Change("l[1]", "removed", 2)]),
        ({"l": [1, 3]}, {"l": [1, 2, 3]}, [Change("l[1]", "added", after=2)]),
        ({"l": [{"x": 1}]}, {"l": [{"x": 2}]}, [Change("l[0].x", "changed", 1, 2)]),
        ({"l": [1]}, {"l": (1,)}, [Change("l", "changed", [1], (1,))]),
        ({"s": {1, 2}}, {"s": {1, 3}}, [Change("s", "changed", {1, 2}, {1, 3})]),
        ({1: "a"}, {"1": "a"}, [Change("[1]", "removed", "a"), Change("['1']", "added", after="a")]),
    ],
)
def test_values_by_path(a: Any, b: Any, wanted: list[Change]) -> None:
    timeline = Timeline(MemoryBackend())
    save(timeline, "r", 0, a, context=a, variables=a)
    save(timeline, "r", 1, b, context=b, variables=b)
    found = timeline.diff("ckpt-r-0", "ckpt-r-1")
    assert alike([_row(it) for it in found.state], [_row(it) for it in wanted])
    assert found.state == found.context == found.variables
    assert bool(found) == bool(wanted)


def _row(it: Change) -> list[Any]:
    return [it.path, it.kind, it.before, it.after]


def test_the_conversation_by_message() -> None:
    timeline = Timeline(MemoryBackend())
    talk = [{"role": "user", "content": f"m{n}"} for n in range(6)]
    save(timeline, "r", 0, messages=talk)
    changed = [talk[0], {"role": "user", "content": "new"}, *talk[2:], {"role": "user", "content": "end"}]
    save(timeline, "r", 1, messages=changed)
    save(timeline, "q", 0)
    found = timeline.diff("ckpt-r-0", "ckpt-r-1").conversation
    assert [(it.at, it.removed, it.added) for it in found] == [(1, [talk[1]], [changed[1]]), (6, [], [changed[-1]])]
    back = timeline.diff("ckpt-r-1", "ckpt-r-0").conversation
    assert [(it.at, it.removed, it.added) for it in back] == [(1, [changed[1]], [talk[1]]), (6, [changed[-1]], [])]
    other = timeline.diff("ckpt-r-0", "ckpt-q-0").conversation
    assert [(it.at, it.removed, it.added) for it in other] == [(0, talk, [])]


def test_long_lists_take_no_quadratic_time() -> None:
    timeline = Timeline(MemoryBackend())
    save(timeline, "r", 0, {"l": list(range(20_000))})
    save(timeline, "r", 1, {"l": [-1, *range(1, 19_999), -2]})
    found = timeline.diff("ckpt-r-0", "ckpt-r-1").state
    assert [(it.path, it.before, it.after) for it in found] == [("l[0]", 0, -1), ("l[19999]", 19_999, -2)]


@given(values(), values())
def test_nothing_differs_exactly_where_values_are_alike(a: Any, b: Any) -> None:
    timeline = Timeline(MemoryBackend())
    save(timeline, "r", 0, {"v": a})
    save(timeline, "r", 1, {"v": a})
    save(timeline, "r", 2, {"v": b})
    assert not timeline.diff("ckpt-r-0", "ckpt-r-1")
    one, two = timeline.load("ckpt-r-1").state, timeline.load("ckpt-r-2").state
    if timeline.diff("ckpt-r-1", "ckpt-r-2"):
        assert not alike(one, two)
