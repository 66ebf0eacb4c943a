"""Making frozen values, and plain ones of them.

Apart from the classes (`frozen.py`) because freezing asks the rules of `private.py`, which must know the classes.
A frozen value is checked once, here; no later save walks it again.
"""

from __future__ import annotations

from enum import Enum
from operator import is_
from typing import Any, TypeVar, cast

from knotline.codec.forms import ENUM, MAX_DEPTH, Boxed, OddDict, OddStr, Refused, exact
from knotline.codec.frozen import FrozenDict, FrozenList, frozen_dict, frozen_list
from knotline.codec.private import copy, report

__all__ = ["freeze", "thaw"]

_T = TypeVar("_T")


def freeze(value: _T, *, path: str = "value") -> _T:
    """The same value with every dict and list in it frozen; Unstorable if anything in it could change or be refused."""
    try:
        return _freeze(value, 0)
    except Refused as refused:
        raise report(refused, path) from refused.__cause__


def _freeze(value: Any, depth: int) -> Any:
    cls = exact(value)
    if cls is str or cls is OddStr:
        return str(value)
    if cls is dict or cls is list or cls is tuple or cls is frozenset or cls is OddDict:
        return _container(value, cls, depth)
    if cls is FrozenDict or cls is FrozenList:
        return copy(value, depth)
    if cls is Boxed:
        raise Refused("a private value: freeze the user's")
    new = copy(value, depth)
    if type(new) is cls:
        return new
    # Boxed: fine for members of an Enum, which are the same objects for ever.
    if isinstance(value, Enum) and new.code == ENUM:
        return value
    raise Refused(f"{cls.__name__} can change: only immutable values can be frozen")


def _container(value: Any, cls: type, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise Refused(f"nested more than {MAX_DEPTH} levels deep", deep=True, at=value)
    name = ""
    try:
        if cls is dict or cls is OddDict:
            made: dict[Any, Any] = {}
            for key, item in value.items():
                name = f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r:.60}]"
                made[_freeze(key, depth + 1)] = _freeze(item, depth + 1)
            return frozen_dict(made)
        items: list[Any] = []
        for at, item in enumerate(value):
            name = f"[{at}]" if cls is not frozenset else f"{{{item!r:.60}}}"
            items.append(_freeze(item, depth + 1))
    except Refused as refused:
        refused.trail.append((value, name))
        raise
    if cls is list:
        return frozen_list(items)
    if cls is frozenset or all(map(is_, items, value)):
        return value
    return tuple(items)


def thaw(value: object) -> Any:
    """The same value with plain dicts and lists in the place of frozen ones, at every level."""
    cls = exact(value)
    if cls is FrozenDict or cls is dict:
        items = cast("dict[Any, Any]", value).items()
        return {key: thaw(item) for key, item in items}
    if cls is FrozenList or cls is list:
        return [thaw(item) for item in cast("list[Any]", value)]
    if cls is tuple:
        return tuple([thaw(item) for item in cast("tuple[Any, ...]", value)])
    return value
