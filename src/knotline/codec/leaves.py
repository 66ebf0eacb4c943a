"""Immutable values of the standard library, one by one, to bytes and back.

They get their own module because each is a small format: fixed layouts, chosen once, readable for ever.
Everything rare (decimal, uuid, pathlib, zoneinfo) is imported when the first such value is met, by a name
written here and never by one found in bytes.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import cache
from typing import Any, Final, cast

from knotline.codec.forms import BIGINT, DATE, DATETIME, DECIMAL, PATH, TEXT, TIME, TIMEDELTA, UUID
from knotline.errors import Damaged, UnknownType

__all__ = ["READERS", "WRITERS", "load_late", "read_leaf", "zone_refused"]

_DATE: Final = struct.Struct(">HBB")
_TIME: Final = struct.Struct(">BBBIB")
_DELTA: Final = struct.Struct(">iII")

# The zone after a time: nothing (naive) | "U" for datetime.UTC | "F", the offset as a TIMEDELTA and, if the zone has
# a name of its own, "=" and the name as TEXT | "Z" and the key of a zoneinfo.ZoneInfo.
_ZONE_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-/")
_PATHS: Final = ("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath")


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "surrogatepass")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _is_zone_key(key: str) -> bool:
    """A name as the tz database has them. zoneinfo looks for a file of that name, so no other gets there."""
    return _ZONE_CHARACTERS.issuperset(key) and "" not in key.split("/")


def zone_refused(zone: tzinfo | None) -> str | None:
    """Why this zone cannot be stored; None when it can."""
    if zone is None or type(zone) is timezone:
        return None
    name = type(zone).__name__
    zones = sys.modules.get("zoneinfo")
    if zones is None or type(zone) is not zones.ZoneInfo:
        return f"tzinfo {name}: only datetime.timezone and zoneinfo.ZoneInfo can be stored"
    key: object = cast("Any", zone).key
    if type(key) is not str or not _is_zone_key(key):
        return "tzinfo ZoneInfo without a key: make it with ZoneInfo(key)"
    return None


def _write_zone(zone: tzinfo | None) -> bytes:
    if zone is None:
        return b""
    if zone is UTC:
        return b"U"
    if type(zone) is timezone:
        offset, *name = cast("tuple[Any, ...]", cast("Any", zone).__getinitargs__())
        told = b"=" + _bytes(name[0]) if name else b""
        return b"F" + _write_delta(offset) + told
    return b"Z" + _bytes(cast("Any", zone).key)


def _read_zone(payload: bytes) -> tzinfo | None:
    if not payload:
        return None
    kind, rest = payload[:1], payload[1:]
    if payload == b"U":
        return UTC
    if kind == b"F":
        offset = _read_delta(rest[: _DELTA.size])
        name = rest[_DELTA.size :]
        if not name and offset:
            return timezone(offset)
        if name[:1] == b"=":
            return timezone(offset, _text(name[1:]))
    elif kind == b"Z":
        key = rest.decode("ascii")
        if _is_zone_key(key):
            return _zone(key)
    raise ValueError("not a time zone")


def _zone(key: str) -> tzinfo:
    """zoneinfo asks the package tzdata for what it has no file of, and so imports what a key names: only for keys
    that tzdata is known to have."""
    from zoneinfo import TZPATH, ZoneInfo  # noqa: PLC0415 - rare

    name = f"zoneinfo.ZoneInfo({key!r})"
    # The bytes are good: it is this machine that lacks the zone.
    why = "no such time zone here; install tzdata"
    if not any(os.path.isfile(os.path.join(place, *key.split("/"))) for place in TZPATH) and key not in _zones():
        raise UnknownType(name, why=why)
    try:
        return ZoneInfo(key)
    except Exception as error:
        raise UnknownType(name, why=why) from error


@cache
def _zones() -> set[str]:
    from zoneinfo import available_timezones  # noqa: PLC0415 - rare

    return available_timezones()


def _write_date(value: date) -> bytes:
    return _DATE.pack(value.year, value.month, value.day)


def _read_date(payload: bytes) -> date:
    return date(*_DATE.unpack(payload))


def _write_time(value: time | datetime) -> bytes:
    clock = _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold)
    return clock + _write_zone(value.tzinfo)


def _read_time(payload: bytes) -> time:
    hour, minute, second, micro, fold = _TIME.unpack(payload[: _TIME.size])
    return time(hour, minute, second, micro, _read_zone(payload[_TIME.size :]), fold=fold)


def _write_datetime(value: datetime) -> bytes:
    return _DATE.pack(value.year, value.month, value.day) + _write_time(value)


def _read_datetime(payload: bytes) -> datetime:
    day, clock = _read_date(payload[: _DATE.size]), _read_time(payload[_DATE.size :])
    return datetime(
        day.year, day.month, day.day, clock.hour, clock.minute, clock.second, clock.microsecond, clock.tzinfo,
        fold=clock.fold,
    )  # fmt: skip


def _write_delta(value: timedelta) -> bytes:
    return _DELTA.pack(value.days, value.seconds, value.microseconds)


def _read_delta(payload: bytes) -> timedelta:
    days, seconds, micros = _DELTA.unpack(payload)
    if seconds >= 86_400 or micros >= 1_000_000:
        raise ValueError("a time span that is not normalised")
    return timedelta(days, seconds, micros)


def _write_int(value: int) -> bytes:
    # Only integers that msgpack cannot hold come here.
    size = (value.bit_length() if value >= 0 else (value + 1).bit_length()) // 8 + 1
    return value.to_bytes(size, "big", signed=True)


def _read_int(payload: bytes) -> int:
    return int.from_bytes(payload, "big", signed=True)


def _write_decimal(value: object) -> bytes:
    # str() of a Decimal names sign, digits and exponent one to one, also for NaN with a payload.
    return str(value).encode("ascii")


def _read_decimal(payload: bytes) -> object:
    from decimal import Decimal  # noqa: PLC0415 - rare

    text = payload.decode("ascii")
    value = Decimal(text)
    if str(value) != text:
        raise ValueError("not how a Decimal is written")
    return value


def _write_uuid(value: Any) -> bytes:
    return cast("bytes", value.bytes)


def _read_uuid(payload: bytes) -> object:
    import uuid  # noqa: PLC0415 - rare

    return uuid.UUID(bytes=payload)


def _write_path(value: object) -> bytes:
    return bytes((_PATHS.index(type(value).__name__),)) + _bytes(str(value))


def _read_path(payload: bytes) -> object:
    import pathlib  # noqa: PLC0415 - rare

    kind, text = payload[0], _text(payload[1:])
    if kind >= len(_PATHS):
        raise ValueError("not a kind of path")
    # A concrete path of another system cannot exist here; its pure form is the same value without the I/O.
    foreign = kind == (2 if sys.platform == "win32" else 3)
    value: pathlib.PurePath = getattr(pathlib, _PATHS[kind - 2 if foreign else kind])(text)
    if str(value) != text:
        raise ValueError("not how a path is written")
    return value


WRITERS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    int: (BIGINT, _write_int),
    date: (DATE, _write_date),
    time: (TIME, _write_time),
    datetime: (DATETIME, _write_datetime),
    timedelta: (TIMEDELTA, _write_delta),
}
"""By exact class. Late classes join when `load_late` first meets one."""

READERS: Final[dict[int, Callable[[bytes], object]]] = {
    BIGINT: _read_int,
    TEXT: _text,
    DATE: _read_date,
    TIME: _read_time,
    DATETIME: _read_datetime,
    TIMEDELTA: _read_delta,
    DECIMAL: _read_decimal,
    UUID: _read_uuid,
    PATH: _read_path,
}


def load_late(cls: type) -> bool:
    """Is this a leaf class that was not met before? From now on it is in `WRITERS`.

    An instance exists, so its module is loaded already: looking the class up there imports nothing.
    """
    name = cls.__name__
    if name == "Decimal":
        home, code, write = "decimal", DECIMAL, _write_decimal
    elif name == "UUID":
        home, code, write = "uuid", UUID, _write_uuid
    elif name in _PATHS:
        home, code, write = "pathlib", PATH, _write_path
    else:
        return False
    if getattr(sys.modules.get(home), name, None) is not cls:
        return False
    WRITERS[cls] = (code, write)
    return True


def read_leaf(code: int, payload: bytes) -> object:
    """The value of a leaf's payload; Damaged when it is not one."""
    try:
        return READERS[code](payload)
    except (ValueError, TypeError, ArithmeticError, IndexError, struct.error) as error:
        raise Damaged("stored value", why=f"extension {code}: {error}") from error
