"""Frozen dicts and lists: like the plain ones for whoever reads, refusing for whoever writes."""

from __future__ import annotations

import copy
import itertools
import json
import operator
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.codec.strategies import Color

from knotline.codec import (
    FrozenDict,
    FrozenList,
    decode,
    encode,
    fits,
    freeze,
    identical,
    private,
    same,
    strictly,
    thaw,
)

PLAIN: dict[str, Any] = {"role": "user", "content": [{"text": "hi"}, (1, [2])], "n": None}


def _set(value: Any, key: Any) -> None:
    value[key] = 1


def _del(value: Any, key: Any) -> None:
    del value[key]


def _ior(value: Any) -> None:
    value |= {"a": 1}


def _iadd(value: Any) -> None:
    value += [1]


def _imul(value: Any) -> None:
    value *= 2


@pytest.mark.parametrize(
    "write",
    [
        lambda value: _set(value, "role"),
        lambda value: _set(value, "new"),
        lambda value: _del(value, "role"),
        _ior,
        lambda value: value.clear(),
        lambda value: value.pop("role"),
        lambda value: value.popitem(),
        lambda value: value.setdefault("x", 1),
        lambda value: value.update(x=1),
        lambda value: value.__init__({"x": 1}),
    ],
    ids=itertools.count(),
)
def test_a_frozen_dict_refuses_to_change(write: Callable[[Any], None]) -> None:
    value = freeze(PLAIN)
    with pytest.raises(TypeError, match="frozen"):
        write(value)
    assert value == PLAIN


@pytest.mark.parametrize(
    "write",
    [
        lambda value: _set(value, 0),
        lambda value: _set(value, slice(0, 1)),
        lambda value: _del(value, 0),
        _iadd,
        _imul,
        lambda value: value.append(1),
        lambda value: value.extend([1]),
        lambda value: value.insert(0, 1),
        lambda value: value.pop(),
        lambda value: value.remove(1),
        lambda value: value.clear(),
        lambda value: value.sort(),
        lambda value: value.reverse(),
        lambda value: value.__init__([1]),
    ],
    ids=itertools.count(),
)
def test_a_frozen_list_refuses_to_change(write: Callable[[Any], None]) -> None:
    value = freeze([3, 1, 2])
    with pytest.raises(TypeError, match="frozen"):
        write(value)
    assert value == [3, 1, 2]


def test_every_writer_is_covered() -> None:
    def writers(kind: type) -> set[str]:
        harmless = {"copy", "count", "fromkeys", "get", "index", "items", "keys", "values"}
        dunder = {"__setitem__", "__delitem__", "__ior__", "__iadd__", "__imul__", "__init__"}
        return {name for name in dir(kind) if name in dunder or not name.startswith("_")} - harmless

    for plain, still in ((dict, FrozenDict), (list, FrozenList)):
        for name in writers(plain):
            assert name in vars(still), name
    with pytest.raises(TypeError, match="frozen"):
        FrozenDict.fromkeys("ab")


def test_it_reads_like_a_plain_one() -> None:
    value: Any = freeze(PLAIN)
    assert type(value) is FrozenDict
    assert type(value["content"]) is FrozenList
    assert type(value["content"][1][1]) is FrozenList
    assert value == PLAIN
    assert value == PLAIN
    assert value != {**PLAIN, "n": 0}
    assert json.dumps(value) == json.dumps(PLAIN)
    assert repr(freeze({"a": [1]})) == "FrozenDict({'a': FrozenList([1])})"
    for plain in (value.copy(), value | {}, {} | value, dict(value), {**value}):
        assert type(plain) is dict
    items = value["content"]
    for plain in (items.copy(), items[:], items.__add__([]), items * 1, list(items)):
        assert type(plain) is list
    with pytest.raises(TypeError):
        hash(value)
    with pytest.raises(TypeError):
        hash(items)


def test_they_are_made_by_freeze_only() -> None:
    for make in (FrozenDict, FrozenList):
        with pytest.raises(TypeError, match="freeze"):
            make()
        with pytest.raises(TypeError, match="subclassed"):
            type("Sub", (make,), {})


def test_copies_of_it_are_itself_and_thawing_makes_a_plain_one() -> None:
    value: Any = freeze(PLAIN)
    assert copy.copy(value) is copy.deepcopy(value) is freeze(value) is private(value) is value
    plain = thaw(value)
    assert plain == PLAIN
    assert type(plain["content"][1][1]) is list
    plain["content"][0]["text"] = "changed"
    assert value == PLAIN


def test_freezing_copies() -> None:
    plain = copy.deepcopy(PLAIN)
    value = freeze(plain)
    plain["content"].append(1)
    assert value == PLAIN


def test_it_comes_back_frozen() -> None:
    value = [freeze(PLAIN), freeze([Color.RED, frozenset([1]), {1: "\ud800", "\udfff": ()}])]
    data = encode(private(value))
    back: Any = decode(data)
    assert [type(item) for item in back] == [FrozenDict, FrozenList]
    assert back == value
    assert back[1][0] is Color.RED
    with pytest.raises(TypeError, match="frozen"):
        back[0]["content"].append(1)
    assert encode(private(back)) == data
    assert same(decode(data, private=True), private(value))
    assert same(private(value), decode(data, private=True))
    assert fits(decode(data, private=True), value)


def test_its_bytes_are_made_once() -> None:
    value: Any = freeze(PLAIN)
    encode([value])
    assert value.packed == encode(private(PLAIN))
    assert value.packed is value.packed
    first = value.packed
    encode({"a": value})
    assert value.packed is first


def test_frozen_is_part_of_the_type() -> None:
    kept = private({"m": freeze({"a": 1})})
    assert not fits(kept, {"m": {"a": 1}})
    assert not fits(private({"m": {"a": 1}}), {"m": freeze({"a": 1})})
    assert fits(kept, {"m": freeze({"a": 1})})
    assert not fits(kept, {"m": freeze({"a": True})})


def test_identical_asks_for_the_same_objects() -> None:
    items = [freeze({"n": n}) for n in range(5)]
    assert identical(items, list(items))
    assert identical([], [])
    twin = freeze({"n": 2})
    assert items[2] == twin
    replaced = [[*items[:2], other, *items[3:]] for other in (twin, {"n": 2}, None)]
    for other in (*replaced, items[:-1], [*items, 1], items[::-1]):
        assert not identical(items, other)
    assert identical(items, items)
    # Out of it again, equality is what it was; in other threads it never changed.
    assert items[2] == twin
    seen: list[bool] = []
    with strictly:
        assert not operator.eq(items[2], twin)
        assert operator.eq(items[2], items[2])
        thread = threading.Thread(target=lambda: seen.append(items[2] == twin))
        thread.start()
        thread.join()
    assert seen == [True]
    assert items[2] == twin
