"""The few shapes a stored value is made of, and the numbers that name them in bytes.

This module exists so that the walk over the user's values (`private.py`), the bytes (`values.py`) and the
registry (`types.py`) can agree on one vocabulary without importing one another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["MAX_BYTES", "MAX_DEPTH", "Boxed", "Node", "OddDict", "OddStr", "exact"]

exact: Callable[[object], type[Any]] = type
"""`type()` of one argument, for comparing classes without the checker taking the value for a bare container."""

MAX_DEPTH: Final = 100
"""Containers inside containers. Deep enough for any state, shallow enough for every stack."""

MAX_BYTES: Final = 1 << 30
"""One encoded value. A state that outgrows this belongs in the workspace."""

# Extension codes. They are part of the format: never renumber, never reuse; add at the end of a group.
TUPLE: Final = 1  # array of the items
BIGINT: Final = 2  # two's complement, big-endian, as short as possible
TEXT: Final = 3  # UTF-8 with lone surrogates kept ("surrogatepass")
PAIRS: Final = 4  # dict with a key that is not plain text: flat array key, value, key, value…
SET: Final = 5  # array of the elements, sorted by their own bytes
FROZENSET: Final = 6  # as SET
BYTEARRAY: Final = 7  # the bytes
DATE: Final = 8  # >HBB year, month, day
TIME: Final = 9  # >BBBIB hour, minute, second, microsecond, fold; then the zone (see leaves.py)
DATETIME: Final = 10  # DATE then TIME
TIMEDELTA: Final = 11  # >iII days, seconds, microseconds
DECIMAL: Final = 12  # its str() in ASCII
UUID: Final = 13  # 16 bytes
PATH: Final = 14  # one byte of flavour (0 PurePosix, 1 PureWindows, 2 Posix, 3 Windows), then str() as TEXT
FROZEN: Final = 20  # the bytes of the same value made of plain dicts and lists
ENUM: Final = 30  # array tag, member name | int value of a Flag composite
DATACLASS: Final = 31  # array tag, {field: value}; a third item {name: value} for other instance attributes
MODEL: Final = 32  # pydantic: array tag, fields, fields_set | nil, extra | nil, private | nil, others | nil
CUSTOM: Final = 33  # array registered name, to_dict()
FIRST_NODE: Final = 100  # 100..119 belong to the store (see Node)
LAST_NODE: Final = 119


class OddDict(dict[object, object]):
    """A private dict with at least one key that is not an exact `str` of encodable text."""

    __slots__ = ()


class OddStr(str):
    """Private text with lone surrogates, which UTF-8 cannot hold."""

    __slots__ = ()


class _Payload:
    """A code and bytes: immutable, hashable, equal by value within its own class."""

    __slots__ = ("code", "payload")

    code: int
    payload: bytes

    def __init__(self, code: int, payload: bytes) -> None:
        object.__setattr__(self, "code", code)
        object.__setattr__(self, "payload", payload)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.code == other.code and self.payload == other.payload

    def __hash__(self) -> int:
        return hash((self.code, self.payload))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code}, {self.payload!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.payload)


class Boxed(_Payload):
    """The private form of a mutable or user-defined value: its code and its canonical bytes.

    It needs no user class, so a value of a type unknown here can still be compared, carried and written again.
    """

    __slots__ = ()


class Node(_Payload):
    """A place in a value that the store fills in: written as an extension, resolved while decoding."""

    __slots__ = ()

    def __init__(self, code: int, payload: bytes) -> None:
        if not FIRST_NODE <= code <= LAST_NODE:
            raise ValueError(f"node codes are {FIRST_NODE}..{LAST_NODE}, not {code}")
        super().__init__(code, payload)


class Refused(Exception):
    """Raised deep in a walk over a value; each level adds where it was, and the top makes it an Unstorable."""

    def __init__(self, why: str, *, deep: bool = False, at: object = None) -> None:
        self.why = why
        self.deep = deep
        self.trail: list[tuple[object, str]] = [(at, "")] if deep else []
        super().__init__(why)
