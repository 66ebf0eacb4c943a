"""Users' own classes: which may be stored, under which name, and how they are found on reading.

The danger lives here, so the rules are short. Bytes name a class; they never import and never call. A class is
found because (a) the program registered it with `serializable`, (b) this process stored an instance of it, or
(c) its module is loaded already and holds, under exactly that name, a dataclass, an Enum or a pydantic model.
Only a class of kind (a) has a method of its own called (`from_dict`); the others are rebuilt field by field,
without `__init__`, `__post_init__` or validators (`rebuild.py`). pydantic is known by its marks and never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from enum import Enum, Flag
from types import ModuleType
from typing import Any, Final, TypeVar, cast, overload
from weakref import WeakValueDictionary, ref

from knotline.codec.forms import CUSTOM, DATACLASS, ENUM, MODEL, Boxed, Refused
from knotline.errors import UnknownType

__all__ = ["Plan", "find_class", "flag_mask", "model_fields_of", "other_slots", "plan_of", "serializable"]

_C = TypeVar("_C", bound=type)
_HEAP_TYPE: Final = 1 << 9

_registered: dict[str, type] = {}
_names: dict[int, tuple[ref[type], str]] = {}
_seen: WeakValueDictionary[str, type] = WeakValueDictionary()
_plans: dict[int, Plan] = {}


class Plan:
    """What this process knows about one class of the user's."""

    __slots__ = ("boxes", "cls", "code", "names", "slots", "tag")

    def __init__(self, cls: type, code: int, tag: str) -> None:
        key = id(cls)
        # Weak, and forgotten with the class: programs make classes in loops.
        self.cls: Callable[[], type | None] = ref(cls, lambda _: _plans.pop(key, None))
        self.code = code
        self.tag = tag
        self.names: tuple[str, ...] = _fields(cls, code)
        self.slots: tuple[str, ...] = other_slots(cls, self.names) if code == DATACLASS else ()
        self.boxes: dict[object, Boxed] = {}

    def parts(self, value: Any) -> list[tuple[str, object]]:
        """What to store of an instance after the tag, each part with what its path is called."""
        if self.code == ENUM:
            return [("", _member(value))]
        if self.code == CUSTOM:
            try:
                return [(".to_dict()", value.to_dict())]
            except Exception as error:
                raise Refused(f"{type(value).__name__}.to_dict raised {type(error).__name__}: {error}") from error
        if self.code == MODEL:
            return self._model(value)
        return self._dataclass(value)

    def _dataclass(self, value: Any) -> list[tuple[str, object]]:
        own: dict[str, object] = getattr(value, "__dict__", {})
        kept: dict[str, object] = {}
        for name in self.names:
            try:
                kept[name] = own[name] if name in own else getattr(value, name)
            except AttributeError:
                if _needed(type(value), name):
                    raise Refused(f"{type(value).__name__} without its field {name!r}") from None
        # __post_init__ will not run on reading: what it or anybody else put beside the fields must be kept too.
        more = {name: item for name, item in own.items() if name not in kept}
        for name in self.slots:
            if hasattr(value, name):
                more[name] = getattr(value, name)
        return [("", kept), ("", more)] if more else [("", kept)]

    def _model(self, value: Any) -> list[tuple[str, object]]:
        own: dict[str, object] = value.__dict__
        kept = {name: own[name] for name in self.names if name in own}
        more = {name: item for name, item in own.items() if name not in kept}
        given: set[str] | None = getattr(value, "__pydantic_fields_set__", None)
        return [
            ("", kept),
            ("", None if given is None else sorted(given)),
            ("", getattr(value, "__pydantic_extra__", None)),
            ("", getattr(value, "__pydantic_private__", None)),
            ("", more or None),
        ]


def _fields(cls: Any, code: int) -> tuple[str, ...]:
    if code == DATACLASS:
        from dataclasses import fields  # noqa: PLC0415 - loaded already, or there is no dataclass

        return tuple(field.name for field in fields(cls))
    if code == MODEL:
        return tuple(model_fields_of(cls))
    return ()


def model_fields_of(cls: Any) -> Mapping[str, Any]:
    found = getattr(cls, "__pydantic_fields__", None)
    return cast("Mapping[str, Any]", cls.model_fields if found is None else found)


def other_slots(cls: type, names: tuple[str, ...]) -> tuple[str, ...]:
    """Slots that are not fields, under the names by which their attributes are set."""
    found: list[str] = []
    for base in cls.__mro__:
        slots: str | tuple[str, ...] = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else tuple(slots):
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{base.__name__.lstrip('_')}{slot}" if private else slot
            if name not in names and name not in ("__dict__", "__weakref__"):
                found.append(name)
    return tuple(found)


def _needed(cls: Any, name: str) -> bool:
    return bool(cls.__dataclass_fields__[name].init)


def _member(value: Enum) -> str | int:
    """The name of a member; the value of a composite of known members."""
    cls = type(value)
    name = cast("str | None", value._name_)  # None for some composites
    if name is not None and cls._member_map_.get(name) is value:
        return name
    if isinstance(value, Flag) and value._value_ & ~flag_mask(cls) == 0:
        return int(value._value_)
    raise Refused(f"{cls.__name__} with bits or a value that no member has")


def flag_mask(cls: Any) -> int:
    return cast("int", cls._flag_mask_)


def _code(cls: type[Any], *, custom: bool) -> int | None:
    if custom and callable(getattr(cls, "to_dict", None)) and callable(getattr(cls, "from_dict", None)):
        return CUSTOM
    if issubclass(cls, Enum):
        return ENUM
    if isinstance(getattr(cls, "__dataclass_fields__", None), dict):
        return DATACLASS
    if hasattr(cls, "__pydantic_core_schema__") and hasattr(cls, "__pydantic_fields_set__"):
        return MODEL
    return None


def _qualified(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def plan_of(cls: type) -> Plan | None:
    """How to store instances of exactly this class; None when it is not a kind that can be stored."""
    plan = _plans.get(id(cls))
    if plan is not None and plan.cls() is cls:
        return plan
    named = _names.get(id(cls))
    tag = named[1] if named is not None and named[0]() is cls else None
    code = _code(cls, custom=tag is not None)
    if code is None:
        return None
    if code in (DATACLASS, MODEL):
        # object.__new__ makes only plain instances, not ones that are also an exception, a dict, a str…
        for base in cls.__mro__[:-1]:
            if not base.__flags__ & _HEAP_TYPE:
                raise Refused(f"{cls.__name__}, which is also {base.__name__}: give its class to_dict and from_dict")
    plan = Plan(cls, code, _qualified(cls) if tag is None else tag)
    if tag is None:
        _seen[plan.tag] = cls
    _plans[id(cls)] = plan
    return plan


@overload
def serializable(cls: _C, /) -> _C: ...
@overload
def serializable(*, name: str) -> Callable[[_C], _C]: ...
def serializable(cls: type | None = None, /, *, name: str | None = None) -> object:
    """Let knotline store instances of a class, under a name that stays when the class moves.

    The class has `to_dict()` and a class method `from_dict(data)`, or is a dataclass, an Enum or a pydantic
    model (which need no registration, but keep their stored instances readable after a rename this way).
    """
    if name is not None and (not name or ":" in name):
        raise ValueError(f"{name!r}: a registered name is not empty and has no colon")
    if cls is None:

        def register(cls: type) -> type:
            return _register(cls, name)

        return register
    return _register(cls, name)


def _register(cls: _C, name: str | None) -> _C:
    if _code(cls, custom=True) is None:
        raise TypeError(
            f"{cls.__qualname__} needs to_dict and from_dict, or to be a dataclass, an Enum or a pydantic model "
            "(put @serializable above @dataclass)"
        )
    own = _qualified(cls)
    tag = own if name is None else name
    for key in {tag, own}:
        known = _registered.get(key)
        if known is not None and _qualified(known) != own:
            raise ValueError(f"{key!r} is registered for {_qualified(known)} already")
    # Also under its own name: what was stored before it got a better one stays readable.
    _registered[tag] = _registered[own] = cls
    key = id(cls)
    _names[key] = (ref(cls, lambda _: _names.pop(key, None)), tag)
    _plans.pop(key, None)
    return cls


def find_class(tag: str, code: int) -> Any:
    cls = _registered.get(tag)
    if cls is None:
        cls = _seen.get(tag)
    if cls is None and code != CUSTOM:
        cls = _loaded(tag)
    if cls is None:
        raise UnknownType(tag)
    kind = _code(cls, custom=code == CUSTOM)
    if kind != code:
        raise UnknownType(tag, why="the class is no longer of the kind that was stored")
    return cls


def _loaded(tag: str) -> type | None:
    """The class of that name in a loaded module, if it is one that says so itself."""
    home, _, qualname = tag.partition(":")
    module = sys.modules.get(home)
    if not qualname or not isinstance(module, ModuleType):
        return None
    # Plain dictionary look-ups: a module's or a class's __getattr__ could import or do anything.
    space: Mapping[str, object] = object.__getattribute__(module, "__dict__")
    found: object = space.get(qualname)
    if found is None:
        for part in qualname.split("."):
            found = space.get(part)
            if not isinstance(found, type):
                return None
            space = type.__getattribute__(found, "__dict__")
    if not isinstance(found, type) or _qualified(found) != tag:
        return None
    return found
