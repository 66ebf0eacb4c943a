"""Instances of users' classes from their stored parts, field by field.

Apart from the registry (`types.py`, which says what may be found) because this is where bytes become objects: every
name in them is held against the class, and what does not fit is named in an UnknownType.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Flag
from typing import Any, cast

from knotline.codec.forms import CUSTOM, DATACLASS, ENUM, MODEL
from knotline.codec.types import find_class, flag_mask, model_fields_of, other_slots
from knotline.errors import Damaged, UnknownType

__all__ = ["rebuild"]


def rebuild(code: int, contents: object) -> object:
    """An instance from its decoded parts."""
    tag, *parts = cast("list[object]", contents) if isinstance(contents, list) and contents else (None,)
    made = _rebuild(code, tag, parts) if isinstance(tag, str) else None
    if made is None:
        raise Damaged("stored value", why=f"extension {code} does not hold what it should")
    return made


def _rebuild(code: int, tag: str, parts: list[object]) -> object | None:
    if code == CUSTOM and len(parts) == 1:
        return _rebuild_custom(find_class(tag, code), tag, parts[0])
    if code == ENUM and len(parts) == 1 and isinstance(parts[0], (str, int)):
        return _rebuild_enum(find_class(tag, code), tag, parts[0])
    maps = [cast("dict[str, object]", part) if type(part) is dict else None for part in parts]
    if code == DATACLASS and maps and len(maps) <= 2 and None not in maps:
        return _rebuild_dataclass(find_class(tag, code), tag, maps[0] or {}, (maps[1] if maps[1:] else None) or {})
    if code == MODEL and len(maps) == 5 and maps[0] is not None:
        given = cast("list[str] | None", parts[1])
        sound = given is None or (type(given) is list and all(type(name) is str for name in given))
        if sound and all(part is None or type(part) is dict for part in parts[2:]):
            return _rebuild_model(find_class(tag, code), tag, maps[0], given, *maps[2:])
    return None


def _rebuild_custom(cls: Any, tag: str, data: object) -> object:
    try:
        return cls.from_dict(data)
    except Exception as error:
        raise UnknownType(tag, why=f"from_dict raised {type(error).__name__}: {error}") from error


def _rebuild_enum(cls: Any, tag: str, member: str | int) -> object:
    if isinstance(member, str):
        found = cls._member_map_.get(member)
    else:
        known = issubclass(cls, Flag) and member & ~flag_mask(cls) == 0
        try:
            found = cls(member) if known else None
        except Exception:  # noqa: BLE001 - the class's own machinery; it has no such member
            found = None
    if type(found) is not cls:
        raise UnknownType(f"{tag}.{member}", why="the class has no such member")
    return found


def _rebuild_dataclass(cls: Any, tag: str, kept: dict[str, object], others: dict[str, object]) -> object:
    from dataclasses import MISSING, fields  # noqa: PLC0415 - loaded already, or there is no dataclass

    made = _blank(cls, tag)
    for field in fields(cls):
        if field.name in kept:
            value = kept.pop(field.name)
        elif field.default is not MISSING:
            value = field.default
        elif field.default_factory is not MISSING:
            value = _default(tag, field.name, field.default_factory)
        elif field.init:
            raise UnknownType(tag, why=f"its field {field.name!r} was not stored and has no default")
        else:
            continue
        _put(made, tag, field.name, value)
    for name in kept:
        raise UnknownType(tag, why=f"the class has no field {name!r} any more")
    if others:
        # Names that only the bytes vouch for: to where plain attributes rest, and never through a descriptor.
        slots = other_slots(cls, tuple(field.name for field in fields(cls)))
        for name, value in others.items():
            if name in slots:
                _put(made, tag, name, value)
                continue
            try:
                vars(made)[name] = value
            except TypeError:
                raise UnknownType(tag, why=f"cannot set {name!r}: the class has slots now") from None
    return made


def _rebuild_model(
    cls: Any,
    tag: str,
    kept: dict[str, object],
    given: list[str] | None,
    extra: dict[str, object] | None = None,
    private: dict[str, object] | None = None,
    others: dict[str, object] | None = None,
) -> object:
    made = _blank(cls, tag)
    own: dict[str, object] = {}
    for name, field in model_fields_of(cls).items():
        if name in kept:
            own[name] = kept.pop(name)
        elif field.is_required():
            raise UnknownType(tag, why=f"its field {name!r} was not stored and has no default")
        else:
            own[name] = _default(tag, name, lambda field=field: field.get_default(call_default_factory=True))
    for name in kept:
        raise UnknownType(tag, why=f"the class has no field {name!r} any more")
    own.update(others or {})
    _put(made, tag, "__pydantic_fields_set__", set(given or ()))
    _put(made, tag, "__pydantic_extra__", extra)
    _put(made, tag, "__pydantic_private__", private)
    # Last: a RootModel has no slots for two of the above, and they must not stay among its fields.
    _put(made, tag, "__dict__", own)
    return made


def _blank(cls: Any, tag: str) -> object:
    try:
        return object.__new__(cls)
    except TypeError as error:
        raise UnknownType(tag, why=f"cannot be made: {error}") from error


def _default(tag: str, name: str, make: Callable[[], object]) -> object:
    try:
        return make()
    except Exception as error:
        raise UnknownType(tag, why=f"the default of {name!r} raised {type(error).__name__}: {error}") from error


def _put(made: object, tag: str, name: str, value: object) -> None:
    try:
        object.__setattr__(made, name, value)
    except Exception as error:
        raise UnknownType(tag, why=f"cannot set {name!r}: {error}") from error
