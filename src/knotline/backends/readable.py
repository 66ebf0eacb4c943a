"""Canonical bytes as JSON that a person can read, and exactly those bytes back.

What JSON has is written as it is. What it lacks is a dict with one key that begins with `$`: `{"$datetime": "…"}`,
`{"$tuple": […]}`, `{"$bytes": "base64"}`. A key of the user's that begins with `$` gets another one in front.

It works on bytes, not on values: no class is looked up and nothing of the user's is called, so that a store can be read
and copied by a process that knows none of the types in it. Whoever writes compares what comes back (see
`files_entry`), and keeps base64 where it differs: what is shown here never decides what is stored.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
import ormsgpack
from ormsgpack import Ext, packb, unpackb

from knotline.codec.forms import (
    BIGINT,
    BYTEARRAY,
    CUSTOM,
    DATACLASS,
    DATE,
    DATETIME,
    DECIMAL,
    ENUM,
    FIRST_NODE,
    FROZEN,
    FROZENSET,
    MAX_DEPTH,
    MODEL,
    PAIRS,
    PATH,
    SET,
    TEXT,
    TIME,
    TIMEDELTA,
    TUPLE,
    UUID,
)
from knotline.codec.frames import ID
from knotline.codec.scan import depth_of, may_nest

__all__ = ["BLOCK", "Tag", "canonical", "parse", "show", "write"]

BLOCK: Final = "$knotline"
"""The one key with a `$` that is no value: under it an entry keeps what is not the user's."""

_FRAMES: Final = 1024
_FEW_FRAMES: Final = 16
_ALL_FRAMES: Final = 3072
_LEVELS: Final = 16
_OPTIONS: Final = ormsgpack.OPT_PASSTHROUGH_BIG_INT | ormsgpack.OPT_PASSTHROUGH_TUPLE
_DATE: Final = struct.Struct(">HBB")
_TIME: Final = struct.Struct(">BBBIB")
_DELTA: Final = struct.Struct(">iII")
_DAY_TEXT: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME_TEXT: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{6}))?(Z|[+-]\d\d:\d\d(?::\d\d)?)?", re.ASCII)

_VALUE: Final = FIRST_NODE
_LIST: Final = FIRST_NODE + 1
_DICT: Final = FIRST_NODE + 2


class Tag(dict[str, Any]):
    """What stands for a value that JSON lacks: its key is ours and is not escaped."""

    __slots__ = ()


def show(data: bytes, *, resolve: Callable[[bytes], bytes | None] | None = None) -> Any:
    """The readable form of canonical bytes. ValueError if they have none.

    With `resolve`, what stands apart is shown where it belongs: it gives the canonical bytes of an object, or None.
    That is for reading only; without the objects nobody could make the bytes of it again.
    """
    return _Shower(resolve).show(data)


def canonical(value: object) -> bytes:
    """The bytes of a form that `parse` has read."""
    try:
        return packb(value, None, _OPTIONS)
    except TypeError as error:
        raise ValueError(str(error)) from error


def write(value: object, *, indent: int = 1) -> bytes:
    """As JSON text, in lines."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_default)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_default)
    return msgspec.json.format(text.encode(), indent=indent)


def parse(text: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was written, ready for `canonical`, and its block. ValueError for anything else."""
    try:
        top = json.loads(text.decode(), object_hook=_unescape_hook if b'"$$' in text else _hook)
    except (KeyError, TypeError, IndexError, RecursionError, OverflowError, struct.error) as error:
        raise ValueError(f"not a readable form: {error}") from error
    if type(top) is not _Top:
        raise ValueError("it has no block")
    return dict(top), top.block


# -- bytes to JSON -----------------------------------------------------------------------------------------


class _Shower:
    """One value: how deep it may still go, and where to find what stands apart."""

    __slots__ = ("frames", "level", "resolve")

    def __init__(self, resolve: Callable[[bytes], bytes | None] | None) -> None:
        self.resolve = resolve
        self.level = 0
        self.frames = 0

    def show(self, data: bytes) -> Any:
        """Stack is counted: ormsgpack counts arrays too, but begins again inside each extension."""
        before = self.frames
        deep = min(may_nest(data), _FRAMES)
        if self.level and deep > _FEW_FRAMES:
            # Inside of an extension a guess would add up: text in other scripts looks like containers.
            deep = depth_of(data, limit=_FRAMES)
        if before + deep > _ALL_FRAMES or self.level > MAX_DEPTH + 8:
            raise ValueError("nested too deeply")
        self.level += 1
        self.frames += deep
        value = unpackb(data, ext_hook=self.extension)
        self.level -= 1
        self.frames = before
        return _escaped(value) if b"$" in data else value

    def extension(self, code: int, payload: bytes) -> Any:
        name = _NESTED.get(code)
        if name is not None:
            return Tag({name: self.show(payload)})
        if self.resolve is not None and code >= FIRST_NODE:
            found = self.resolved(code, payload)
            if found is not None:
                return found[0]
        leaf = _LEAVES.get(code)
        if leaf is not None:
            said = leaf(payload)
            if said is not None and _back(said) == (code, payload):
                return said
        return Tag({"$ext": [code, _base64(payload)]})

    def resolved(self, code: int, payload: bytes) -> tuple[Any] | None:
        """The whole of it, or None if a part is not at hand."""
        assert self.resolve is not None  # noqa: S101 - asked by the caller
        if code == _VALUE:
            found = self.resolve(payload)
            return None if found is None else (self.show(found),)
        parts: list[Any] = []
        if code == _LIST:
            return (parts,) if self.span(payload, parts) else None
        if code != _DICT or not self.leaves(payload, parts):
            return None
        keys = parts[::2]
        if all(type(key) is str for key in keys):
            return (Tag(zip(map(_escaped_key, keys), parts[1::2], strict=True)),)
        return (Tag({"$pairs": parts}),)

    def span(self, payload: bytes, into: list[Any]) -> bool:
        level, ids, _ = cast("tuple[int, bytes, list[int]]", tuple(unpackb(payload)))
        if not level:
            return self.leaves(ids, into)
        if level > _LEVELS or self.resolve is None:
            return False
        for name in _cut(ids):
            index = self.resolve(name)
            if index is None or cast("list[Any]", unpackb(index))[0] >= level or not self.span(index, into):
                return False
        return True

    def leaves(self, ids: bytes, into: list[Any]) -> bool:
        for name in _cut(ids):
            found = None if self.resolve is None else self.resolve(name)
            if found is None:
                return False
            into += cast("list[Any]", self.show(found))
        return True


def _cut(ids: bytes) -> list[bytes]:
    return [ids[at : at + ID] for at in range(0, len(ids), ID)]


def _escaped_key(key: str) -> str:
    return f"${key}" if key[:1] == "$" else key


def _escaped(value: Any) -> Any:
    """A user's keys that look like ours; what is in a Tag has been seen to already."""
    if isinstance(value, dict) and not isinstance(value, Tag):
        return {_escaped_key(key): _escaped(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_escaped(item) for item in cast("list[Any]", value)]
    return value


def _default(value: object) -> object:
    if type(value) is bytes:
        return {"$bytes": _base64(value)}
    raise ValueError(f"no readable form of {type(value).__name__}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_finite(item) for item in cast("list[Any]", value)]
    if type(value) is float and not math.isfinite(value):
        return {"$float": repr(value)}
    return value


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _show_text(payload: bytes) -> Tag:
    # Escaped twice: text with lone surrogates cannot stand in UTF-8.
    return Tag({"$text": json.dumps(payload.decode("utf-8", "surrogatepass"))[1:-1]})


def _show_clock(payload: bytes) -> tuple[str, str, int] | None:
    """Time of day with its offset, the key of its zone, its fold."""
    hour, minute, second, micro, fold = _TIME.unpack(payload[: _TIME.size])
    zone = payload[_TIME.size :]
    text = f"{hour:02}:{minute:02}:{second:02}" + (f".{micro:06}" if micro else "")
    if not zone:
        return text, "", fold
    if zone == b"U":
        return text + "Z", "", fold
    if zone[:1] == b"Z":
        return text, zone[1:].decode("ascii"), fold
    if len(zone) != 1 + _DELTA.size:
        return None
    days, seconds, micros = _DELTA.unpack(zone[1:])
    offset = days * 86_400 + seconds
    if micros:
        return None
    hours, rest = divmod(abs(offset), 3600)
    sign = "-" if offset < 0 else "+"
    shown = f"{sign}{hours:02}:{rest // 60:02}" + (f":{rest % 60:02}" if rest % 60 else "")
    return text + shown, "", fold


def _show_time(payload: bytes, *, day: str = "", name: str = "$time") -> Tag | None:
    said = _show_clock(payload)
    if said is None:
        return None
    text, zone, fold = said
    if zone or fold:
        return Tag({name: [day + text, zone, fold]})
    return Tag({name: day + text})


def _show_day(payload: bytes) -> str:
    year, month, day = _DATE.unpack(payload)
    return f"{year:04}-{month:02}-{day:02}"


def _show_datetime(payload: bytes) -> Tag | None:
    return _show_time(payload[_DATE.size :], day=_show_day(payload[: _DATE.size]) + "T", name="$datetime")


def _hexes(ids: bytes) -> list[str]:
    return [name.hex() for name in _cut(ids)]


def _show_list(payload: bytes) -> Tag:
    level, ids, counts = cast("tuple[int, bytes, list[int]]", tuple(unpackb(payload)))
    return Tag({"$list": [level, _hexes(ids), counts]})


def _show_path(payload: bytes) -> Tag:
    return Tag({"$path": [payload[0], payload[1:].decode()]})


_NESTED: Final = {
    TUPLE: "$tuple",
    PAIRS: "$pairs",
    SET: "$set",
    FROZENSET: "$frozenset",
    FROZEN: "$frozen",
    ENUM: "$enum",
    DATACLASS: "$dataclass",
    MODEL: "$model",
    CUSTOM: "$custom",
}
_LEAVES: Final[dict[int, Callable[[bytes], Tag | None]]] = {
    BIGINT: lambda payload: Tag({"$int": str(int.from_bytes(payload, "big", signed=True))}),
    TEXT: _show_text,
    BYTEARRAY: lambda payload: Tag({"$bytearray": _base64(payload)}),
    DATE: lambda payload: Tag({"$date": _show_day(payload)}),
    TIME: _show_time,
    DATETIME: _show_datetime,
    TIMEDELTA: lambda payload: Tag({"$timedelta": list(_DELTA.unpack(payload))}),
    DECIMAL: lambda payload: Tag({"$decimal": payload.decode("ascii")}),
    UUID: lambda payload: Tag({"$uuid": payload.hex()}),
    PATH: _show_path,
    _VALUE: lambda payload: Tag({"$object": payload.hex()}),
    _LIST: _show_list,
    _DICT: lambda payload: Tag({"$map": _hexes(payload)}),
}


# -- JSON to bytes -----------------------------------------------------------------------------------------


class _Top(dict[str, Any]):
    """Apart from its block at once: the user may have a key of that name, which is only now unescaped."""

    __slots__ = ("block",)

    def __init__(self, read: dict[str, Any], block: Any) -> None:
        super().__init__(read)
        self.block = cast("dict[str, Any]", block)


def _hook(read: dict[str, Any]) -> Any:
    if BLOCK in read:
        return _Top(read, read.pop(BLOCK))
    if len(read) == 1:
        ((key, value),) = read.items()
        if key[:1] == "$" and key[1:2] != "$":
            return _READERS[key](value)
    return read


def _unescape_hook(read: dict[str, Any]) -> Any:
    made = _hook(read)
    if made is not read and type(made) is not _Top:
        return made
    plain = {key[1:] if key[:2] == "$$" else key: item for key, item in read.items()}
    return _Top(plain, made.block) if type(made) is _Top else plain


def _back(said: Tag) -> tuple[int, bytes] | None:
    try:
        made = _hook(said)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error):
        return None
    if not isinstance(made, Ext):
        return None
    return cast("tuple[int, bytes]", unpackb(packb(made), ext_hook=lambda code, payload: (code, payload)))


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _read_text(text: str) -> Ext:
    return Ext(TEXT, cast("str", json.loads(f'"{text}"')).encode("utf-8", "surrogatepass"))


def _read_int(text: str) -> Ext:
    value = int(text)
    size = (value.bit_length() if value >= 0 else (value + 1).bit_length()) // 8 + 1
    return Ext(BIGINT, value.to_bytes(size, "big", signed=True))


def _read_day(text: str) -> bytes:
    found = _DAY_TEXT.fullmatch(text)
    if found is None:
        raise ValueError("not a date")
    return _DATE.pack(*map(int, found.groups()))


def _read_clock(text: str, zone: str, fold: int) -> bytes:
    found = _TIME_TEXT.fullmatch(text)
    if found is None:
        raise ValueError("not a time")
    hour, minute, second, micro, offset = found.groups()
    clock = _TIME.pack(int(hour), int(minute), int(second), int(micro or 0), fold)
    if zone:
        return clock + b"Z" + zone.encode("ascii")
    if offset is None:
        return clock
    if offset == "Z":
        return clock + b"U"
    numbers = [int(part) for part in offset[1:].split(":")] + [0]
    seconds = (numbers[0] * 3600 + numbers[1] * 60 + numbers[2]) * (-1 if offset[0] == "-" else 1)
    return clock + b"F" + _DELTA.pack(*divmod(seconds, 86_400), 0)


def _clock_parts(said: str | list[Any]) -> tuple[str, str, int]:
    if isinstance(said, str):
        return said, "", 0
    text, zone, fold = said
    return text, zone, fold


def _read_time(said: Any) -> Ext:
    text, zone, fold = _clock_parts(said)
    return Ext(TIME, _read_clock(text, zone, fold))


def _read_datetime(said: Any) -> Ext:
    text, zone, fold = _clock_parts(said)
    day, _, clock = text.partition("T")
    return Ext(DATETIME, _read_day(day) + _read_clock(clock, zone, fold))


def _read_list(said: list[Any]) -> Ext:
    level, ids, counts = said
    return Ext(_LIST, packb([level, bytes.fromhex("".join(ids)), counts]))


def _read_ext(said: list[Any]) -> Ext:
    code, payload = said
    return Ext(code, _unbase64(payload))


def _nested_reader(code: int) -> Callable[[Any], object]:
    return lambda value: Ext(code, canonical(value))


_READERS: Final[dict[str, Callable[[Any], object]]] = {
    **{name: _nested_reader(code) for code, name in _NESTED.items()},
    "$bytes": _unbase64,
    "$float": float,
    "$text": _read_text,
    "$int": _read_int,
    "$bytearray": lambda text: Ext(BYTEARRAY, _unbase64(text)),
    "$date": lambda text: Ext(DATE, _read_day(text)),
    "$time": _read_time,
    "$datetime": _read_datetime,
    "$timedelta": lambda parts: Ext(TIMEDELTA, _DELTA.pack(*parts)),
    "$decimal": lambda text: Ext(DECIMAL, text.encode("ascii")),
    "$uuid": lambda text: Ext(UUID, bytes.fromhex(text)),
    "$path": lambda parts: Ext(PATH, bytes((parts[0],)) + parts[1].encode()),
    "$object": lambda text: Ext(_VALUE, bytes.fromhex(text)),
    "$list": _read_list,
    "$map": lambda ids: Ext(_DICT, bytes.fromhex("".join(ids))),
    "$ext": _read_ext,
}
