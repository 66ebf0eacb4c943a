"""Values of every kind that may be stored, for Hypothesis; a strict comparison; and one small change to a value.

Nothing here uses the code under test, apart from `serializable` and `freeze`, which make the values.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import pathlib
import struct
import uuid
import zoneinfo
from collections import OrderedDict
from decimal import Decimal
from typing import Any, ClassVar

import pydantic
from hypothesis import strategies as st

from knotline.codec import FrozenDict, FrozenList, freeze, serializable

# ---------------------------------------------------------------- classes of a user's


class Color(enum.Enum):
    RED = 1
    GREEN = "g"
    CRIMSON = 1  # noqa: PIE796 - an alias, on purpose


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Mode(enum.StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Perm(enum.Flag):
    R = 4
    W = 2
    X = 1


class Bits(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0
    tags: list[Any] = dataclasses.field(default_factory=list)
    many: ClassVar[int] = 7


@dataclasses.dataclass(frozen=True)
class Fixed:
    name: str
    at: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = None


@dataclasses.dataclass
class Deep(Point):
    z: Any = None
    late: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.late = ("late", self.x)
        self.beside = [self.z]


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)

    name: str
    age: int = 3
    friends: list[Any] = []
    _secret: Any = pydantic.PrivateAttr(default=None)

    @pydantic.field_validator("age")
    @classmethod
    def _small(cls, age: int) -> int:
        assert age < 200
        return age


@serializable(name="tests.Celsius")
class Celsius:
    def __init__(self, degrees: Any) -> None:
        self.degrees = degrees

    def to_dict(self) -> dict[str, Any]:
        return {"degrees": self.degrees}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Celsius:
        return cls(data["degrees"])


# ---------------------------------------------------------------- strategies

_ZONES = ["Europe/Oslo", "America/New_York", "UTC", "Asia/Kathmandu"]


def zones() -> st.SearchStrategy[dt.tzinfo | None]:
    offsets = st.integers(-86_399, 86_399).map(lambda s: dt.timezone(dt.timedelta(seconds=s)))
    named = st.builds(dt.timezone, st.just(dt.timedelta(hours=1)), st.text(max_size=3))
    return st.none() | st.just(dt.UTC) | offsets | named | st.sampled_from(_ZONES).map(zoneinfo.ZoneInfo)


def datetimes() -> st.SearchStrategy[dt.datetime]:
    return st.builds(
        lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.datetimes(), zones(), st.integers(0, 1)
    )


def times() -> st.SearchStrategy[dt.time]:
    return st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.times(), zones(), st.integers(0, 1))


def texts() -> st.SearchStrategy[str]:
    """Also with lone surrogates."""
    anything = st.characters(exclude_categories=[])
    return st.text(max_size=8) | st.text(anything, max_size=8) | st.sampled_from(["\ud800", "é\udfff", "日本", ""])


def integers() -> st.SearchStrategy[int]:
    edges = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 127, 128, -32, -33]
    return st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from(edges) | st.integers(-(2**300), 2**300)


def paths() -> st.SearchStrategy[pathlib.PurePath]:
    names = st.text(st.characters(exclude_characters="\0/\\", exclude_categories=["Cs"]), max_size=6)
    kinds = st.sampled_from([pathlib.Path, pathlib.PurePosixPath, pathlib.PureWindowsPath])
    roots = st.sampled_from(["", "/", "a/../b", "c:/", "//host/share/"])
    return st.builds(lambda kind, root, name: kind(root) / name, kinds, roots, names)


def plain_leaves() -> st.SearchStrategy[Any]:
    """What JSON has."""
    return st.none() | st.booleans() | integers() | st.floats() | st.text(max_size=8)


def leaves() -> st.SearchStrategy[Any]:
    """Immutable, hashable, and not of a user's class."""
    return (
        plain_leaves()
        | texts()
        | st.sampled_from([0.0, -0.0, 1, 1.0, True, False, 0, float("nan"), float("inf")])
        | st.binary(max_size=8)
        | st.dates()
        | datetimes()
        | times()
        | st.timedeltas()
        | st.decimals()
        | st.sampled_from([Decimal("1.0"), Decimal("1.00"), Decimal("-0"), Decimal("sNaN12"), Decimal("1E+999999")])
        | st.uuids()
        | paths()
    )


def members() -> st.SearchStrategy[enum.Enum]:
    return (
        st.sampled_from(Color)
        | st.sampled_from(Level)
        | st.sampled_from(Mode)
        | st.integers(0, 7).map(Perm)
        | st.integers(0, 3).map(Bits)
    )


def _usable(value: Any) -> bool:
    """Can it be a key or in a set? sNaN cannot be hashed."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def still() -> st.SearchStrategy[Any]:
    """Immutable and hashable, containers too."""
    atoms = (leaves() | members()).filter(_usable)
    return st.recursive(
        atoms,
        lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
        max_leaves=4,
    )


def keys() -> st.SearchStrategy[Any]:
    # NaN is never equal to itself: as a key, two of them would be one after storing.
    return (st.text(max_size=5) | st.text(max_size=5) | still()).filter(lambda key: alike(key, key, nan=False))


def frozen() -> st.SearchStrategy[Any]:
    def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        lists = st.lists(inner, max_size=3)
        return lists | st.dictionaries(keys(), inner, max_size=3) | lists.map(tuple)

    flat = st.dictionaries(st.sampled_from(["role", "content"]), texts(), max_size=2)
    return (st.lists(st.recursive(still(), containers, max_leaves=6), max_size=3) | flat).map(freeze)


def _people(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Person]:
    def build(name: str, friends: list[Any] | None, more: Any, secret: Any) -> Person:
        given = {} if friends is None else {"friends": friends, "more": more}
        person = Person.model_validate({"name": name, **given})
        person._secret = secret
        if friends is None:
            person.age = 1_000  # past the validator, on purpose
        return person

    return st.builds(build, st.text(max_size=4), st.none() | st.lists(inner, max_size=2), inner, inner)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.dictionaries(keys(), inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.builds(Point, inner, inner, st.lists(inner, max_size=2))
        | st.builds(Slotted, inner, inner)
        | st.builds(Deep, inner, z=inner)
        | _people(inner)
        | inner.map(Celsius)
    )


def values(*, max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Anything that may be stored."""
    atoms = (
        leaves()
        | leaves()
        | members()
        | still()
        | st.sets(still(), max_size=4)
        | st.binary(max_size=6).map(bytearray)
        | st.builds(Fixed, st.text(max_size=3), still())
        | frozen()
    )
    return st.recursive(atoms, _containers, max_leaves=max_leaves)


def states() -> st.SearchStrategy[dict[str, Any]]:
    """What a run's state looks like: a dict of anything."""
    return st.dictionaries(st.text(max_size=6), values(max_leaves=8), max_size=5)


def plain(*, max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """Lists, dicts with text keys, and what JSON has."""
    return st.recursive(
        plain_leaves(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=max_leaves,
    )


# ---------------------------------------------------------------- strict comparison


def _inside(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot) and slot not in ("__dict__", "__weakref__"):
                found[slot] = getattr(value, slot)
    return found


def _zone(zone: dt.tzinfo | None) -> object:
    if isinstance(zone, zoneinfo.ZoneInfo):
        return "zone", zone.key
    return zone if zone is None else ("fixed", repr(zone))


def alike(a: Any, b: Any, *, nan: bool = True) -> bool:
    """The same value, to the last detail that storing must keep. `nan`: NaN is itself."""
    cls = type(a)
    if cls is not type(b):
        return False
    if isinstance(a, enum.Enum):
        return a is b or (isinstance(a, enum.Flag) and a == b)
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(alike(k, m, nan=nan) and alike(v, w, nan=nan) for (k, v), (m, w) in pairs)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(alike(x, y, nan=nan) for x, y in zip(a, b, strict=True))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(alike(x, y, nan=nan) for y in b) for x in a)
    if cls is float:
        return struct.pack(">d", a) == struct.pack(">d", b) if a == a else nan and b != b
    if cls is Decimal:
        return a.as_tuple() == b.as_tuple() and (nan or not a.is_nan())
    if cls in (dt.datetime, dt.time):
        bare = {"tzinfo": None, "fold": 0}
        return a.replace(**bare) == b.replace(**bare) and a.fold == b.fold and _zone(a.tzinfo) == _zone(b.tzinfo)
    if isinstance(a, pathlib.PurePath):
        return str(a) == str(b)
    if cls in (Point, Fixed, Slotted, Deep, Person, Celsius):
        # Attributes have no order.
        mine, other = _inside(a), _inside(b)
        return mine.keys() == other.keys() and all(alike(mine[name], other[name], nan=nan) for name in mine)
    return bool(a == b)


# ---------------------------------------------------------------- one change


def _instead(value: Any) -> list[Any]:
    """Values that a careless comparison takes for `value`, or that differ in one detail."""
    cls: Any = type(value)
    found: list[Any] = ["changed", -12_345]
    if cls is type(None):
        found += [False, 0]
    if cls in (int, bool, float) and abs(value - 0.5) == 0.5:  # 0 and 1
        found += [kind(value) for kind in (int, bool, float)]
        found += [Level(int(value))]
    if cls is float and value == value:
        found += [-value, int(value) if abs(value) < 1e300 else 0]
    if cls is str:
        made: Any = enum.StrEnum("Made", {"M": value})
        found += [OddText(value), made.M, value + "\ud800", value.encode("utf-8", "surrogatepass")]
    if cls is bytes:
        found += [bytearray(value), memoryview(value)]
    if cls is tuple:
        found += [list(value), (*value, 0)]
    if cls is set:
        found += [frozenset(value), value ^ {"changed"}]
    if cls is frozenset:
        found += [set(value)]
    if cls is bytearray:
        found += [bytes(value), value + b"1"]
    if cls in (dt.datetime, dt.time):
        found += [value.replace(fold=1 - value.fold)]
        found += [value.replace(tzinfo=zone) for zone in (None, dt.UTC, zoneinfo.ZoneInfo("UTC"))]
    if cls is dt.datetime:
        found += [value.date()]
    if cls is Decimal:
        found += [str(value), Decimal(value.as_tuple()._replace(sign=1 - value.as_tuple().sign))]
    if issubclass(cls, enum.Enum):
        found += [value.value, value.name]
    if cls is uuid.UUID or issubclass(cls, pathlib.PurePath):
        found += [str(value)]
    if cls is list:
        found += [tuple(value), [*value, None], value[:-1], value[::-1]]
    if cls is dict:
        found += _other_dicts(value)
    if cls is FrozenDict:
        found += [dict(value), freeze({**value, "changed": 0})]
    if cls is FrozenList:
        found += [list(value), tuple(value), freeze([*value, 0])]
    if dataclasses.is_dataclass(cls):
        name = dataclasses.fields(value)[0].name
        found += [_inside(value), dataclasses.replace(value, **{name: Fixed("changed")})]
    if cls is Person:
        found += [value.model_copy(update={"age": value.age + 1}), value.model_dump()]
    if cls is Celsius:
        found += [Celsius(("changed", value.degrees)), value.to_dict()]
    return found


def _other_dicts(value: dict[Any, Any]) -> list[Any]:
    def typed(key: Any) -> Any:
        made: Any = enum.StrEnum("Made", {"M": key}) if type(key) is str and key else None
        return key if made is None else made.M

    def other_number(key: Any) -> Any:
        return float(key) if type(key) is int and abs(key) < 2**50 else True if key == 1 else key

    return [
        OrderedDict(value),
        dict(reversed(value.items())),
        {**value, "changed": 0},
        dict(list(value.items())[1:]),
        {typed(key): item for key, item in value.items()},
        {other_number(key): item for key, item in value.items()},
    ]


class OddText(str):
    """A subclass that nobody registered."""

    __slots__ = ()


def changed(value: Any) -> st.SearchStrategy[Any]:
    """`value` with one strict change somewhere in it. The value itself stays as it is."""

    def here(value: Any) -> st.SearchStrategy[Any]:
        options = [other for other in _instead(value) if not alike(other, value)]
        return st.sampled_from(options)

    if type(value) is list and value:
        return here(value) | st.integers(0, len(value) - 1).flatmap(
            lambda at: changed(value[at]).map(lambda new: [*value[:at], new, *value[at + 1 :]])
        )
    if type(value) is tuple and value:
        return here(value) | st.integers(0, len(value) - 1).flatmap(
            lambda at: changed(value[at]).map(lambda new: (*value[:at], new, *value[at + 1 :]))
        )
    if type(value) is dict and value:
        return here(value) | st.integers(0, len(value) - 1).flatmap(
            lambda at: changed(list(value.values())[at]).map(
                lambda new: {key: new if n == at else old for n, (key, old) in enumerate(value.items())}
            )
        )
    return here(value)


def spoil(value: Any) -> None:
    """Change everything in `value` that can be changed in place."""
    if type(value) in (list, dict, tuple):
        for item in list(value.values()) if type(value) is dict else list(value):
            spoil(item)
    if type(value) is list:
        value.append("spoilt")
    elif type(value) is dict:
        value["spoilt"] = 1
    elif type(value) is set:
        value.add("spoilt")
    elif type(value) is bytearray:
        value += b"spoilt"
    elif type(value) in (Point, Slotted, Deep, Celsius, Person):
        for name, item in _inside(value).items():
            if not name.startswith("__pydantic"):
                spoil(item)
                object.__setattr__(value, name, "spoilt")
