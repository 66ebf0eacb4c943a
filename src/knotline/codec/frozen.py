"""Dicts and lists that cannot change, so that nobody has to look whether they did.

A conversation is thousands of messages of which two are new. Frozen messages are shared between the user's
list and the store's copy, and `identical` then finds the first new one at the speed of a pointer comparison.
They read, print, compare and dump to JSON like the plain dict and list that they extend; only writing is
refused. `freeze` (in freeze.py) makes them; the classes cannot be called.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from typing import Any, Never, SupportsIndex

from knotline.codec.forms import exact

__all__ = ["FrozenDict", "FrozenList", "identical"]

_HOW = "make a plain copy first: .copy() for this level, thaw() for all of it"

# Threads that are inside `strictly` right now. A set and not a thread-local: reading an empty set is what every
# ordinary comparison pays.
_strict: set[int] = set()


class _Strictly:
    """While this is entered, a FrozenDict equals nothing but itself, in this thread.

    The list comparison in C takes identical items as equal without asking them, so comparing two lists becomes
    an exact identity test that stops at the first difference.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        _strict.add(get_ident())

    def __exit__(self, *failure: object) -> None:
        _strict.discard(get_ident())


strictly = _Strictly()


def identical(a: list[Any], b: list[Any]) -> bool:
    """Do both lists hold the very same objects? Exact when every item of `a` is a FrozenDict."""
    with strictly:
        # list's own comparison, so that no subclass of list has a say.
        return list.__eq__(a, b) is True  # pyright: ignore[reportUnknownMemberType]


class FrozenDict(dict[Any, Any]):
    """A dict that refuses to change. Made by `freeze`; holds only values that cannot change either."""

    __slots__ = ("deep", "packed")

    packed: bytes | None
    """Its canonical bytes (of the equal plain value), once somebody needed them."""
    deep: int
    """Containers from here down; 0 until somebody needed it."""

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("frozen dicts are made by freeze()")

    def __init_subclass__(cls) -> None:
        raise TypeError("FrozenDict cannot be subclassed")

    def _refuse(self, *_: object, **__: object) -> Never:
        raise TypeError(f"frozen dict: {_HOW}")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def __eq__(self, other: object) -> bool:
        if _strict and get_ident() in _strict:
            return self is other
        return super().__eq__(other)

    __hash__ = None  # as for dict: equal to dicts, which have none

    def __repr__(self) -> str:
        return f"FrozenDict({super().__repr__()})"

    def __copy__(self) -> FrozenDict:
        return self

    def __deepcopy__(self, memo: object) -> FrozenDict:
        # As for tuples of constants. A framework that deep-copies state between steps keeps cheap messages.
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return frozen_dict, (dict(self),)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return self.__reduce__()


class FrozenList(list[Any]):
    """A list that refuses to change. Made by `freeze`; holds only values that cannot change either."""

    __slots__ = ("deep", "packed")

    packed: bytes | None
    deep: int

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("frozen lists are made by freeze()")

    def __init_subclass__(cls) -> None:
        raise TypeError("FrozenList cannot be subclassed")

    def _refuse(self, *_: object, **__: object) -> Never:
        raise TypeError(f"frozen list: {_HOW}")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = reverse = _refuse
    sort = _refuse  # pyright: ignore[reportAssignmentType] - its overloads ask for items that compare

    def __repr__(self) -> str:
        return f"FrozenList({super().__repr__()})"

    def __copy__(self) -> FrozenList:
        return self

    def __deepcopy__(self, memo: object) -> FrozenList:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return frozen_list, (list(self),)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return self.__reduce__()


def frozen_dict(items: dict[Any, Any]) -> FrozenDict:
    """For this room only: the items must be immutable already."""
    made = FrozenDict.__new__(FrozenDict)
    dict.update(made, items)  # pyright: ignore[reportUnknownMemberType]
    made.packed = None
    made.deep = 0
    return made


def frozen_list(items: Iterable[Any]) -> FrozenList:
    """For this room only: the items must be immutable already."""
    made = FrozenList.__new__(FrozenList)
    list.extend(made, items)  # pyright: ignore[reportUnknownMemberType]
    made.packed = None
    made.deep = 0
    return made


def height(value: FrozenDict | FrozenList) -> int:
    """Containers from here down, counted once."""
    if not value.deep:
        items = value.values() if isinstance(value, FrozenDict) else value
        value.deep = 1 + max(map(_height, items), default=0)
    return value.deep


def _height(value: Any) -> int:
    cls = exact(value)
    if cls is FrozenDict or cls is FrozenList:
        return height(value)
    if cls is tuple or cls is frozenset:
        return 1 + max(map(_height, value), default=0)
    return 0
