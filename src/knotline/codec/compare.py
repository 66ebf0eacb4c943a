"""Did the user's value change? Strict equality, without copying and without encoding where that can be helped.

`==` will not do: to it `1`, `1.0` and `True` are one value, key order does not matter, and a class may define it
as it likes. Comparing encoded bytes would do, at several times the price for each of thousands of values that did
not change. What equality means is written in `values.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from math import copysign
from typing import Any, Final

from knotline.codec.forms import BYTEARRAY, FROZEN, FROZENSET, SET, Boxed, Node, OddDict, OddStr, Refused, exact
from knotline.codec.frozen import FrozenDict, FrozenList
from knotline.codec.leaves import WRITERS, zone_refused
from knotline.codec.private import copy
from knotline.codec.types import plan_of
from knotline.codec.values import packed
from knotline.errors import Unstorable

__all__ = ["fits", "same"]

# Within one exact class, `==` is strict equality for these.
_PLAIN: Final = frozenset((str, int, bool, type(None), bytes, date, timedelta))


def same(a: object, b: object) -> bool:
    """Are two private values the same value: do they have the same bytes?"""
    return fits(a, b)


def fits(kept: object, value: object) -> bool:
    """Would `private(value)` be the same as `kept`, which is private? False for what cannot be stored at all."""
    if kept is value:
        return True
    cls = exact(kept)
    if cls in _PLAIN:
        return type(value) is cls and kept == value
    return _FITS.get(cls, _leaf)(kept, value)


def _dict(kept: dict[str, Any], value: Any) -> bool:
    if exact(value) is not dict or len(kept) != len(value):
        return False
    # A second iterator by hand: half the cost of zip over two views.
    pairs = iter(value.items())
    for key, a in kept.items():
        name, b = next(pairs)
        if key is not name and (type(name) is not str or key != name):
            return False
        if a is not b:
            cls = exact(a)
            if cls in _PLAIN:
                if type(b) is not cls or a != b:
                    return False
            elif not _FITS.get(cls, _leaf)(a, b):
                return False
    return True


def _list(kept: list[Any], value: Any) -> bool:
    return exact(value) is list and len(kept) == len(value) and _items(kept, value)


def _tuple(kept: tuple[Any, ...], value: Any) -> bool:
    return exact(value) is tuple and len(kept) == len(value) and _items(kept, value)


def _items(kept: Any, value: Any) -> bool:
    for a, b in zip(kept, value):  # noqa: B905 - lengths are equal, and the keyword costs as much as three items
        if a is not b:
            cls = exact(a)
            if cls in _PLAIN:
                if type(b) is not cls or a != b:
                    return False
            elif not _FITS.get(cls, _leaf)(a, b):
                return False
    return True


def _float(kept: float, value: Any) -> bool:
    if type(value) is not float:
        return False
    if kept == value:
        return kept != 0.0 or copysign(1.0, kept) == copysign(1.0, value)
    return kept != kept and value != value


def _leaf(kept: object, value: Any) -> bool:
    cls = exact(kept)
    leaf = WRITERS.get(cls)
    if leaf is None or exact(value) is not cls:
        return False
    if (cls is datetime or cls is time) and zone_refused(value.tzinfo) is not None:
        return False
    return leaf[1](kept) == leaf[1](value)


def _odd_str(kept: OddStr, value: Any) -> bool:
    return type(value) in (str, OddStr) and kept == value


def _odd_dict(kept: OddDict, value: Any) -> bool:
    if type(value) not in (dict, OddDict) or len(kept) != len(value):
        return False
    return all(fits(key, name) and fits(a, b) for (key, a), (name, b) in zip(kept.items(), value.items(), strict=True))


def _node(kept: Node, value: object) -> bool:
    return kept == value


def _frozen(kept: FrozenDict | FrozenList, value: Any) -> bool:
    cls = exact(value)
    if cls is Boxed:
        return value.code == FROZEN and value.payload == packed(kept)
    return cls is type(kept) and len(kept) == len(value) and packed(kept) == packed(value)


_CODES: Final[dict[type, int]] = {
    set: SET,
    frozenset: FROZENSET,
    bytearray: BYTEARRAY,
    FrozenDict: FROZEN,
    FrozenList: FROZEN,
}


def _boxed(kept: Boxed, value: Any) -> bool:
    cls = exact(value)
    if cls is Boxed:
        return kept == value
    try:
        code = _CODES.get(cls)
        if code is None:
            plan = plan_of(cls)
            code = None if plan is None else plan.code
        if code != kept.code:
            return False
        if code == FROZEN:
            return kept.payload == packed(value)
        return copy(value, 0) == kept
    except (Refused, Unstorable):
        return False


_FITS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    dict: _dict,
    list: _list,
    tuple: _tuple,
    float: _float,
    OddStr: _odd_str,
    OddDict: _odd_dict,
    Node: _node,
    FrozenDict: _frozen,
    FrozenList: _frozen,
    Boxed: _boxed,
}
