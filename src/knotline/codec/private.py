"""The private copy of a user's value: checked, cut off from later changes, cheap to compare.

A save must refuse what cannot be stored before anything is written, must not be touched by what the program does
to its state afterwards, and must find what changed since the last save without encoding everything again. One
copy serves all three. It shares with the user's value only what cannot change, and is made of exact builtin
types, the immutable classes of `leaves.py`, and the shapes in `forms.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from enum import Enum
from math import nan
from typing import Any, Final, cast

from knotline.codec.forms import (
    BYTEARRAY,
    CUSTOM,
    ENUM,
    FROZENSET,
    MAX_DEPTH,
    SET,
    Boxed,
    OddDict,
    OddStr,
    Refused,
    exact,
)  # fmt: skip
from knotline.codec.frozen import FrozenDict, FrozenList, height
from knotline.codec.leaves import load_late, zone_refused
from knotline.codec.types import Plan, plan_of
from knotline.codec.values import encode, sorted_array
from knotline.errors import TooLarge, Unstorable

__all__ = ["SHARED", "copy", "is_leaf", "private", "report", "show_path"]

SHARED: Final[set[type]] = {int, bool, type(None), bytes, date, timedelta, OddStr, Boxed}
"""Classes whose instances are their own private form, whatever they hold. Late leaves join."""


def private(value: object, path: str = "state", *, depth: int = 0) -> object:
    """A checked copy of `value`; Unstorable with the path to what cannot be stored (`path` names the root).

    `depth`: how many containers the value will stand in.
    """
    try:
        return _COPY.get(type(value), copy)(value, depth)
    except Refused as refused:
        raise report(refused, path) from refused.__cause__


def show_path(path: tuple[object, ...]) -> str:
    """Keys and indexes as they are written in messages."""
    return "".join([f"[{step}]" if type(step) is int else _name(step) for step in path])


def is_leaf(cls: type) -> bool:
    """Are instances of this class immutable, so that the same object is the same value?"""
    return cls in SHARED or cls in _LEAVES or issubclass(cls, Enum)


def report(refused: Refused, path: str) -> Unstorable:
    """What the user is told: the way to the value, and whether it only went in circles."""
    # The cause of an error lives as long as the error: the state that it was found in must not.
    trail, refused.trail = refused.trail, []
    seen: dict[int, str] = {}
    for container, name in reversed(trail):
        first = seen.setdefault(id(container), path)
        if refused.deep and first is not path:
            return Unstorable(path, why=f"is the same object as {first}: a cycle")
        path += name
    if refused.deep:
        return TooLarge(path, why=refused.why)
    return Unstorable(path, why=refused.why)


def copy(value: Any, depth: int) -> Any:
    """One value of any class; Refused when it cannot be stored."""
    cls = exact(value)
    make = _COPY.get(cls)
    if make is not None:
        return make(value, depth)
    if cls in SHARED:
        return value
    if load_late(cls):
        SHARED.add(cls)
        return value
    plan = plan_of(cls)
    if plan is None:
        raise Refused(_why(cls))
    return _object(value, plan, depth)


def _dict(value: dict[Any, Any], depth: int) -> dict[Any, Any]:
    if depth >= MAX_DEPTH:
        raise _deep(value)
    made = value.copy()
    odd = False
    key: object = None
    try:
        for key, item in made.items():
            if type(key) is not str or not (key.isascii() or _text(key) is key):
                odd = True
            cls = exact(item)
            if cls is str:
                if not item.isascii():
                    made[key] = _text(item)
            elif cls is float:
                if item != item:
                    made[key] = nan
            elif cls not in SHARED:
                made[key] = _COPY.get(cls, copy)(item, depth + 1)
    except Refused as refused:
        refused.trail.append((value, _name(key)))
        raise
    return _odd_dict(made, value, depth) if odd else made


def _odd_dict(made: dict[Any, Any], value: object, depth: int) -> OddDict:
    odd = OddDict()
    for key, item in made.items():
        try:
            odd[copy(key, depth + 1)] = item
        except Refused as refused:
            refused.why = f"as a key, {refused.why}"
            refused.trail.append((value, f"[{_short(key)}]"))
            raise
    if len(odd) != len(made):
        refused = Refused("two keys of this dict are the same value")
        refused.trail.append((value, ""))
        raise refused
    return odd


def _list(value: list[Any], depth: int) -> list[Any]:
    if depth >= MAX_DEPTH:
        raise _deep(value)
    made = value[:]
    at = 0
    try:
        for at, item in enumerate(made):
            cls = exact(item)
            if cls is str:
                if not item.isascii():
                    made[at] = _text(item)
            elif cls is float:
                if item != item:
                    made[at] = nan
            elif cls not in SHARED:
                made[at] = _COPY.get(cls, copy)(item, depth + 1)
    except Refused as refused:
        refused.trail.append((value, f"[{at}]"))
        raise
    return made


def _tuple(value: tuple[Any, ...], depth: int) -> tuple[Any, ...]:
    if depth >= MAX_DEPTH:
        raise _deep(value)
    made: list[Any] = []
    changed = False
    try:
        for item in value:
            new = copy(item, depth + 1)
            changed = changed or new is not item
            made.append(new)
    except Refused as refused:
        refused.trail.append((value, f"[{len(made)}]"))
        raise
    return tuple(made) if changed else value


def _set(value: set[Any] | frozenset[Any], depth: int) -> Boxed:
    if depth >= MAX_DEPTH:
        raise _deep(value)
    item: object = None
    try:
        items = [encode(copy(item := each, depth + 1)) for each in tuple(value)]
    except Refused as refused:
        # An element of a set is no key: it is content, and errors show none.
        refused.trail.append((value, f"{{{type(item).__name__}}}"))
        raise
    return Boxed(SET if type(value) is set else FROZENSET, sorted_array(items))


def _object(value: object, plan: Plan, depth: int) -> Boxed:
    if depth >= MAX_DEPTH:
        raise _deep(value)
    at = ""
    try:
        parts = plan.parts(value)
        if plan.code == ENUM:
            known = plan.boxes.get(parts[0][1])
            if known is None:
                known = plan.boxes[parts[0][1]] = Boxed(ENUM, encode([plan.tag, parts[0][1]]))
            return known
        made: list[object] = [plan.tag]
        for at, part in parts:  # noqa: B007 - told when refused
            # The fields are the object itself, so they stand at its depth; what to_dict gives may be anything.
            made.append(copy(part, depth + 1 if plan.code == CUSTOM else depth))
    except Refused as refused:
        refused.trail.append((value, at))
        raise
    return Boxed(plan.code, encode(made))


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        return OddStr(value)
    return value


def _str(value: str, _: int = 0) -> str:
    return value if value.isascii() else _text(value)


def _float(value: float, _: int = 0) -> float:
    return value if value == value else nan


def _zoned(value: datetime | time, _: int = 0) -> datetime | time:
    why = zone_refused(value.tzinfo)
    if why is not None:
        raise Refused(f"{type(value).__name__} with {why}")
    return value


def _bytearray(value: bytearray, _: int = 0) -> Boxed:
    return Boxed(BYTEARRAY, bytes(value))


def _frozen(value: FrozenDict | FrozenList, depth: int) -> FrozenDict | FrozenList:
    if depth + height(value) > MAX_DEPTH:
        raise _deep(value)
    return value


def _again(value: OddDict, depth: int) -> dict[Any, Any]:
    return _dict(dict(value), depth)


_LEAVES: Final = frozenset((str, float, datetime, time, FrozenDict, FrozenList))

_COPY: Final[dict[type, Callable[[Any, int], Any]]] = {
    dict: _dict,
    list: _list,
    str: _str,
    tuple: _tuple,
    float: _float,
    set: _set,
    frozenset: _set,
    datetime: _zoned,
    time: _zoned,
    bytearray: _bytearray,
    FrozenDict: _frozen,
    FrozenList: _frozen,
    OddDict: _again,
}


def _deep(value: object) -> Refused:
    return Refused(f"nested more than {MAX_DEPTH} levels deep", deep=True, at=value)


def _name(key: object) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{_short(key)}]"


def _short(key: object) -> str:
    """A key as it is written in a path. Of one that is not plain, only the class: what it holds is nobody's to see."""
    if type(key) is tuple:
        parts = cast("tuple[object, ...]", key)[:8]
        return f"({', '.join(['tuple' if type(part) is tuple else _short(part) for part in parts])})"
    if not isinstance(key, (str, bytes, int, float, type(None))):
        return type(key).__name__
    try:
        shown = repr(key)
    except Exception:  # noqa: BLE001 - a subclass's __repr__ may do anything; the path must still be told
        shown = object.__repr__(key)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


_HOW: Final = (
    (dict, "dict"), (list, "list"), (tuple, "tuple"), (str, "str"), (bytes, "bytes"), (int, "int"), (float, "float"),
    (set, "set"), (frozenset, "frozenset"), (bytearray, "bytearray"), (memoryview, "bytes"),
)  # fmt: skip


def _why(cls: type) -> str:
    named: object = cls
    name = cls.__name__
    if callable(getattr(cls, "to_dict", None)) and callable(getattr(cls, "from_dict", None)):
        return f"{name}: its class has to_dict and from_dict, register it with @serializable"
    for base, how in _HOW:
        if cls is base:
            return f"{name}: convert it with {how}(...)"
        if issubclass(cls, base):
            return f"{name}, a subclass of {base.__name__}: convert it with {how}(...)"
    for base in (datetime, date, time, timedelta):
        if issubclass(cls, base):
            return f"{name}, a subclass of {base.__name__}: convert it to a plain {base.__name__}"
    return f"{name}: convert it with .tolist()" if hasattr(named, "tolist") else name
