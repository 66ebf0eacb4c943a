"""Bytes to values, believing nothing.

It stands apart from writing (`values.py`, which says what the bytes mean) because its work is another: limits on
stack and memory, and errors that say what is wrong. ormsgpack reads the plain parts; each extension comes here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Never, cast

from ormsgpack import unpackb

from knotline.codec.forms import (
    BYTEARRAY,
    CUSTOM,
    DATACLASS,
    ENUM,
    FIRST_NODE,
    FROZEN,
    FROZENSET,
    LAST_NODE,
    MAX_BYTES,
    MAX_DEPTH,
    MODEL,
    PAIRS,
    SET,
    TEXT,
    TUPLE,
    Boxed,
    OddDict,
    OddStr,
    exact,
)  # fmt: skip
from knotline.codec.frozen import frozen_dict, frozen_list
from knotline.codec.leaves import READERS, WRITERS, load_late, read_leaf
from knotline.codec.rebuild import rebuild
from knotline.codec.scan import depth_of, may_nest
from knotline.errors import Damaged, UnknownFormat

__all__ = ["decode", "public"]

# Array frames that may be alive at once while decoding: each takes up to 1 KB of the thread's stack. How many an
# extension needs is guessed from its length while there is plenty, then from its bytes, then counted.
_FRAMES_EACH: Final = 1024  # ormsgpack's own limit, taken for granted for what is outermost
_PLENTY: Final = 2048
_SOME: Final = 2560
_FRAMES: Final = 3072
_NESTED: Final = MAX_DEPTH + 8
_BOXES: Final = frozenset((SET, FROZENSET, BYTEARRAY, ENUM, DATACLASS, MODEL, CUSTOM))
_KNOWN: Final = _BOXES | {TUPLE, PAIRS, FROZEN}
# msgpack's values are followed by this number, so that bytes after the value (which ormsgpack ignores) show.
_seal: Final = os.urandom(8)
_SEAL: Final = b"\xcf" + _seal
_SEALED: Final = int.from_bytes(_seal, "big")


def decode(
    data: bytes | bytearray | memoryview,
    *,
    resolve: Callable[[int, bytes], object] | None = None,
    private: bool = False,
    what: str = "stored value",
) -> object:
    """The value of canonical bytes: as the user gave it, or (`private=True`) in its private form.

    `resolve` gives what stands in the place of a Node; what it raises passes through. `what` names the value in errors.
    """
    if len(data) > MAX_BYTES:
        raise Damaged(what, why=f"{len(data):,} bytes, more than {MAX_BYTES:,}")
    return _Reader(resolve, private=private, what=what).read(data)


class _Reader:
    """One decode: what it may use up, and the failure that ormsgpack would swallow."""

    __slots__ = ("boxed", "failure", "frames", "frozen", "level", "private", "resolve", "what")

    def __init__(self, resolve: Callable[[int, bytes], object] | None, *, private: bool, what: str) -> None:
        self.resolve = resolve
        self.private = private
        self.what = what
        self.failure: BaseException | None = None
        self.level = self.boxed = self.frozen = 0
        self.frames = _FRAMES_EACH

    def read(self, data: bytes | bytearray | memoryview) -> object:
        try:
            value, end = unpackb(b"\x92" + data + _SEAL, ext_hook=self.extension)
        except ValueError as error:
            why = str(error)
        else:
            if end == _SEALED and type(end) is int:
                return value
            why = "it does not end where it should"
        # Outside of the handler: what a hook raised keeps its own cause.
        raise self.failure or self.damaged(why)

    def damaged(self, why: str) -> Damaged:
        return Damaged(self.what, why=why)

    def extension(self, code: int, payload: bytes) -> object:
        try:
            if code in READERS:
                value = read_leaf(code, payload)
                return self.odd(cast("str", value)) if code == TEXT else value
            return self.composite(code, payload)
        except BaseException as error:
            self.failure = error
            raise

    def odd(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            return OddStr(text) if self.private else text
        raise self.damaged("plain text written as odd text")

    def composite(self, code: int, payload: bytes) -> object:
        if code == FROZEN:
            return self.freeze(payload)
        if FIRST_NODE <= code <= LAST_NODE:
            if self.resolve is None:
                raise UnknownFormat(self.what, found=f"extension {code}")
            if self.frozen:
                raise self.damaged("a node inside a frozen value")
            return self.resolve(code, payload)
        if code not in _KNOWN:
            raise UnknownFormat(self.what, found=f"extension {code}")
        if self.private and code in _BOXES:
            self.boxed += 1
            return Boxed(code, payload)
        return self.unbox(code, payload)

    def unbox(self, code: int, payload: bytes) -> object:
        if code == BYTEARRAY:
            return bytearray(payload)
        if code == FROZEN:
            return self.freeze(payload)
        contents = self.nested(payload)
        if code >= ENUM:
            return rebuild(code, contents)
        if type(contents) is not list:
            raise self.damaged(f"extension {code} without an array")
        items = cast("list[object]", contents)
        if code == TUPLE:
            return tuple(items)
        try:
            if code == PAIRS:
                return self.pairs(items)
            return set(items) if code == SET else frozenset(items)
        except TypeError as error:
            raise self.damaged(f"extension {code}: {error}") from error

    def pairs(self, items: list[object]) -> dict[object, object]:
        if len(items) % 2:
            raise self.damaged("a key without a value")
        each = iter(items)
        made = dict(zip(each, each, strict=True))
        if 2 * len(made) != len(items):
            raise self.damaged("a key twice in a dict")
        return OddDict(made) if self.private else made

    def nested(self, payload: bytes) -> object:
        frames = self.frames
        deep = min(len(payload), _FRAMES_EACH)
        if frames + deep > _PLENTY or self.level >= _NESTED:
            deep = self.measure(payload)
        self.level += 1
        self.frames = frames + deep
        value = self.read(payload)
        self.frames = frames
        self.level -= 1
        return value

    def measure(self, payload: bytes) -> int:
        """The array frames that reading this may take; Damaged when there are not so many left."""
        deep = min(may_nest(payload), _FRAMES_EACH)
        if self.frames + deep > _SOME:
            deep = depth_of(payload, limit=_FRAMES - self.frames)
        if self.frames + deep > _FRAMES or self.level >= _NESTED:
            raise self.damaged("nested too deeply")
        return deep

    def freeze(self, payload: bytes) -> object:
        boxed = self.boxed
        self.frozen += 1
        contents = self.nested(payload)
        self.frozen -= 1
        if self.boxed != boxed:
            # It holds something of the user's, which a private value must not need.
            return Boxed(FROZEN, payload)
        if type(contents) not in (dict, list, OddDict):
            raise self.damaged("neither dict nor list in a frozen value")
        return self.still(contents, 0)

    def still(self, value: Any, depth: int) -> Any:
        """The frozen form of what was just read, and of nobody else yet: containers may be used up."""
        if depth > MAX_DEPTH:
            raise self.damaged("nested too deeply")
        cls = exact(value)
        if cls is dict or cls is OddDict:
            for key, item in value.items():
                if type(item) not in _SHARED:
                    value[key] = self.still(item, depth + 1)
            if cls is OddDict:
                value = {str(key) if type(key) is OddStr else key: item for key, item in value.items()}
            return frozen_dict(value)
        if cls is list:
            return frozen_list([item if type(item) in _SHARED else self.still(item, depth + 1) for item in value])
        if cls is tuple:
            return tuple([item if type(item) in _SHARED else self.still(item, depth + 1) for item in value])
        if cls is OddStr:
            return str(value)
        if cls in WRITERS or load_late(cls) or cls is frozenset or isinstance(value, Enum):
            return value
        raise self.damaged(f"{cls.__name__} in a frozen value")


_SHARED: Final = frozenset((str, int, float, bool, bytes, type(None)))


def public(value: object) -> object:
    """The user's value of a private one: as decoding its bytes would give, sharing only what cannot change."""
    return _public(value, 0)


def _public(value: Any, depth: int) -> Any:
    cls = exact(value)
    if cls in _SHARED:
        return value
    if depth > MAX_DEPTH:
        _too_deep()
    if cls is dict:
        return {key: item if type(item) in _SHARED else _public(item, depth + 1) for key, item in value.items()}
    if cls is list:
        return [item if type(item) in _SHARED else _public(item, depth + 1) for item in value]
    if cls is tuple:
        return tuple([_public(item, depth + 1) for item in value])
    if cls is Boxed:
        return _Reader(None, private=False, what="stored value").unbox(value.code, value.payload)
    if cls is OddStr:
        return str(value)
    if cls is OddDict:
        return {_public(key, depth + 1): _public(item, depth + 1) for key, item in value.items()}
    return value


def _too_deep() -> Never:
    raise Damaged("stored value", why="nested too deeply")
