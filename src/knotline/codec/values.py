"""Private values to canonical bytes: msgpack, with an extension code for each type that it lacks.

What equality means here, for bytes and for change detection alike:

- types are part of the value: `1`, `1.0` and `True` are three values, a list is not a tuple, `Decimal("1.0")` is
  not `Decimal("1.00")`, and a datetime is not another of the same instant with another kind of zone or fold;
- the order of a dict's keys is part of the value, and dicts come back in the order they had;
- sets have no order: they are written sorted by their elements' bytes;
- `-0.0` is not `0.0`; infinities and NaN are stored, and there is one NaN (sign and payload are dropped);
- integers have any size; text may hold lone surrogates; two references to one object become two equal values;
- `encode` is deterministic: equal values have equal bytes, different values different ones.

Reading (`reading.py`) trusts nothing. Whatever the bytes, `decode` gives a value or raises Damaged, UnknownFormat or
UnknownType; it makes nothing that its input does not pay for, and its stack is bounded. The codes are in `forms.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from threading import get_ident
from typing import Any, Final, cast

import ormsgpack
from ormsgpack import Ext, Fragment, packb

from knotline.codec.forms import (
    ENUM,
    FROZEN,
    FROZENSET,
    MAX_BYTES,
    MAX_DEPTH,
    PAIRS,
    TEXT,
    TUPLE,
    Boxed,
    Node,
    OddDict,
    OddStr,
    exact,
)
from knotline.codec.frozen import FrozenDict, FrozenList
from knotline.codec.leaves import WRITERS, load_late
from knotline.codec.types import plan_of
from knotline.errors import TooLarge, Unstorable

__all__ = ["encode", "packed", "sorted_array"]

_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_Hook = Callable[[Any], object]

# ormsgpack turns whatever a hook raises into a TypeError without a cause. These must not be lost.
_stopped: dict[int, BaseException] = {}


def encode(value: object) -> bytes:
    """The canonical bytes of a private value."""
    data = _pack(value, _extend)
    if len(data) > MAX_BYTES:
        raise TooLarge("value", why=f"{len(data):,} bytes encoded, more than {MAX_BYTES:,}")
    return data


def _pack(value: object, hook: _Hook) -> bytes:
    try:
        return packb(value, hook, _OPTIONS)
    except TypeError as error:
        stopped = _stopped.pop(get_ident(), None)
        if stopped is not None:
            raise stopped from None
        # Frozen values are in the user's form: odd text and odd keys are only seen now, which is rare.
        try:
            return packb(_explicit(value, 0), hook, _OPTIONS)
        except TypeError:
            raise Unstorable("value", why=f"not a private value: {error}") from error


def _explicit(value: object, depth: int) -> object:
    """The same value with OddStr and OddDict where msgpack's own text and maps will not do."""
    cls = exact(value)
    if depth > 2 * MAX_DEPTH:
        raise TooLarge("value", why="nested too deeply")
    if cls is str:
        try:
            cast("str", value).encode()
        except UnicodeEncodeError:
            return OddStr(value)
    elif cls is list:
        return [_explicit(item, depth + 1) for item in cast("list[object]", value)]
    elif cls is tuple:
        return tuple([_explicit(item, depth + 1) for item in cast("tuple[object, ...]", value)])
    elif cls is dict:
        items = cast("dict[object, object]", value).items()
        made = {_explicit(key, depth + 1): _explicit(item, depth + 1) for key, item in items}
        return made if all(type(key) is str for key in made) else OddDict(made)
    return value


def _extend(value: Any) -> object:
    """For ormsgpack: the extension that stands for what msgpack lacks."""
    try:
        cls = exact(value)
        if cls is Boxed or cls is Node:
            return Ext(value.code, value.payload)
        if cls is FrozenDict or cls is FrozenList:
            return Ext(FROZEN, packed(value))
        return _write(value, cls, _extend)
    except (KeyboardInterrupt, SystemExit, MemoryError) as stop:
        _stopped[get_ident()] = stop
        raise


def _extend_frozen(value: Any) -> object:
    """The same inside a frozen value, whose frozen parts are written like plain ones."""
    try:
        cls = exact(value)
        if cls is FrozenDict or cls is FrozenList:
            return Fragment(packed(value))
        return _write(value, cls, _extend_frozen)
    except (KeyboardInterrupt, SystemExit, MemoryError) as stop:
        _stopped[get_ident()] = stop
        raise


def _write(value: Any, cls: type, hook: _Hook) -> object:
    if cls is tuple:
        return Ext(TUPLE, _pack(list(value), hook))
    leaf = WRITERS.get(cls)
    if leaf is not None or (load_late(cls) and (leaf := WRITERS[cls])):
        return Ext(leaf[0], leaf[1](value))
    if cls is OddStr:
        return Ext(TEXT, value.encode("utf-8", "surrogatepass"))
    if cls is OddDict:
        return Ext(PAIRS, _pack([part for pair in value.items() for part in pair], hook))
    # Only frozen values hold these as themselves; elsewhere they are Boxed.
    if cls is frozenset:
        return Ext(FROZENSET, sorted_array([_pack(item, hook) for item in value]))
    if isinstance(value, Enum):
        plan = plan_of(cls)
        if plan is not None and plan.code == ENUM:
            return Ext(ENUM, _pack([plan.tag, plan.parts(value)[0][1]], hook))
    raise TypeError(f"{cls.__name__} is not a private value")


def sorted_array(items: list[bytes]) -> bytes:
    """A msgpack array of encoded items, in the order of their bytes."""
    return packb([Fragment(item) for item in sorted(items)])


def packed(value: FrozenDict | FrozenList) -> bytes:
    """The bytes of the plain value that equals a frozen one, made once."""
    data = value.packed
    if data is None:
        plain = dict(value) if isinstance(value, FrozenDict) else list(value)
        data = value.packed = _pack(plain, _extend_frozen)
    return data
