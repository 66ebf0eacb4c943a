"""What is refused, with the path to it; and the limits."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import socket
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
from tests.codec.strategies import Color, Fixed, Person, Point

from knotline.codec import MAX_DEPTH, decode, encode, fits, freeze, private, serializable
from knotline.errors import TooLarge, Unstorable

Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - the very thing that is refused


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Zone(dt.tzinfo):
    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(0)

    dst = utcoffset


class Later(dt.datetime):
    pass


class Convertible:
    def to_dict(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_dict(cls, _: dict[str, Any]) -> Convertible:
        return cls()


class Anything:
    pass


@dataclasses.dataclass
class Failure(Exception):
    code: int


class Loose(enum.IntFlag, boundary=enum.KEEP):
    A = 1


@serializable
class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held

    def to_dict(self) -> dict[str, Any]:
        if self.held == "raise":
            raise LookupError("no")
        return {"held": self.held}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Holder:
        return cls(data["held"])


class SubHolder(Holder):
    pass


SOCKET = socket.socket.__new__(socket.socket)
THING = Anything()
REGISTER = "its class has to_dict and from_dict, register it with @serializable"
ZONES = "only datetime.timezone and zoneinfo.ZoneInfo can be stored"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"items": [0, 1, 2, {"socket": SOCKET}]}, "state.items[3].socket: socket"),
        (THING, "state: Anything"),
        ({"a b": THING}, "state['a b']: Anything"),
        ({"": THING}, "state['']: Anything"),
        ({1: {None: THING}}, "state[1][None]: Anything"),
        ({"a": (1, [THING])}, "state.a[1][0]: Anything"),
        ({"a": Point(1, {"k": THING})}, "state.a.y.k: Anything"),
        ({"p": Person.model_validate({"name": "x", "more": THING})}, "state.p.more: Anything"),
        ([Holder([THING])], "state[0].to_dict().held[0]: Anything"),
        ([Holder("raise")], "state[0]: Holder.to_dict raised LookupError: no"),
        ([SubHolder(1)], f"state[0]: SubHolder: {REGISTER}"),
        (
            {"c": Convertible()},
            f"state.c: Convertible: {REGISTER}",
        ),
        ({"s": {1, Pair(1, 2)}}, "state.s{Pair}: Pair, a subclass of tuple: convert it with tuple(...)"),
        ({"f": frozenset([Text("x")])}, "state.f{Text}: Text, a subclass of str: convert it with str(...)"),
        ({Text("x"): 1}, "state['x']: as a key, Text, a subclass of str: convert it with str(...)"),
        ({"d": {Number(1): 1}}, "state.d[1]: as a key, Number, a subclass of int: convert it with int(...)"),
        (OrderedDict(a=1), "state: OrderedDict, a subclass of dict: convert it with dict(...)"),
        (defaultdict(list), "state: defaultdict, a subclass of dict: convert it with dict(...)"),
        (Counter("a"), "state: Counter, a subclass of dict: convert it with dict(...)"),
        (memoryview(b"x"), "state: memoryview: convert it with bytes(...)"),
        (
            dt.datetime(2020, 1, 1, tzinfo=Zone()),
            f"state: datetime with tzinfo Zone: {ZONES}",
        ),
        (Later(2020, 1, 1), "state: Later, a subclass of datetime: convert it to a plain datetime"),
        (Failure(3), "state: Failure, which is also Exception: give its class to_dict and from_dict"),
        (Loose(8), "state: Loose with bits or a value that no member has"),
        (1j, "state: complex"),
        (..., "state: ellipsis"),
        (int, "state: type"),
        (print, "state: builtin_function_or_method"),
        ((x for x in ""), "state: generator"),
    ],
)
def test_refused_with_its_path(value: Any, said: str) -> None:
    with pytest.raises(Unstorable) as caught:
        private(value)
    assert str(caught.value).startswith(f"{said} ("), str(caught.value)
    assert f"{caught.value.path}: {caught.value.why}" == said
    assert not isinstance(caught.value, TooLarge)
    assert not fits(private({}), value)


def test_the_root_is_named_by_the_caller() -> None:
    with pytest.raises(Unstorable) as caught:
        private({"a": THING}, "variables")
    assert caught.value.path == "variables.a"


def test_a_zone_without_a_key() -> None:
    import importlib.resources
    import io

    with (
        importlib.resources.files("tzdata.zoneinfo").joinpath("UTC").open("rb")
        if _has_tzdata()
        else io.BytesIO(_minimal_zone()) as file
    ):
        zone = zoneinfo.ZoneInfo.from_file(file)
    with pytest.raises(Unstorable, match="without a key"):
        private(dt.datetime(2020, 1, 1, tzinfo=zone))


def _has_tzdata() -> bool:
    import importlib.util

    return importlib.util.find_spec("tzdata") is not None


def _minimal_zone() -> bytes:
    """A TZif file, version 1, of one type at offset zero."""
    counts = (0, 0, 0, 0, 1, 4)
    return b"TZif" + bytes(16) + b"".join(n.to_bytes(4, "big") for n in counts) + bytes(6) + b"UTC\0"


def _list_cycle() -> Any:
    a: list[Any] = [1, {"b": []}]
    a[1]["b"].append(a)
    return {"a": a}


def _object_cycle() -> Any:
    point = Point(1)
    point.y = {"back": (point,)}
    return [point]


def _set_cycle() -> Any:
    held: list[Any] = []
    held.append(Holder(held))
    return held


@pytest.mark.parametrize(
    ("make", "path", "why"),
    [
        (_list_cycle, "state.a[1].b[0]", "is the same object as state.a: a cycle"),
        (_object_cycle, "state[0].y.back[0]", "is the same object as state[0]: a cycle"),
        (_set_cycle, "state[0].to_dict().held", "is the same object as state: a cycle"),
    ],
)
def test_cycles_name_both_paths(make: Callable[[], Any], path: str, why: str) -> None:
    with pytest.raises(Unstorable) as caught:
        private(make())
    assert not isinstance(caught.value, TooLarge)
    assert (caught.value.path, caught.value.why) == (path, why)


def test_shared_references_become_equal_values() -> None:
    shared = [1]
    kept = private({"a": shared, "b": [shared, shared]})
    back: Any = decode(encode(kept))
    assert back == {"a": [1], "b": [[1], [1]]}
    assert back["b"][0] is not back["b"][1]


def _wrap(value: Any, kind: str) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "list": lambda: [value],
        "dict": lambda: {"k": value},
        "odd": lambda: {1: value},
        "tuple": lambda: (value,),
        "point": lambda: Point(value, "é" * 2_000),
        "holder": lambda: Holder(value),
        "frozenset": lambda: frozenset([value]),
        "fixed": lambda: Fixed("x", value),
        "frozen": lambda: freeze([value]),
        "model": lambda: Person.model_validate({"name": "x", "more": value}),
    }
    return made[kind]()


@pytest.mark.parametrize("kind", ["list", "dict", "odd", "tuple", "point", "frozenset", "fixed", "frozen", "model"])
def test_depth(kind: str) -> None:
    value: Any = [] if kind in ("point", "model") else [1] if kind not in ("frozenset", "fixed") else (1,)
    for _ in range(MAX_DEPTH - 1):
        value = _wrap(value, kind)
    kept = private(value)
    data = encode(kept)
    assert encode(private(decode(data))) == data
    assert encode(decode(data, private=True)) == data
    with pytest.raises(TooLarge, match="nested more than 100 levels deep"):
        private(_wrap(value, kind))
    with pytest.raises(TooLarge):
        private([value])


def test_depth_of_mixed_containers() -> None:
    value: Any = 1
    kinds = ["list", "point", "tuple", "dict", "model", "odd"]
    for n in range(MAX_DEPTH):
        value = _wrap(value, kinds[n % len(kinds)])
    data = encode(private(value))
    assert encode(private(decode(data))) == data


def test_an_object_that_unfolds_for_ever() -> None:
    @serializable(name="tests.Endless")
    class Endless:
        def to_dict(self) -> Any:
            return Endless()

        @classmethod
        def from_dict(cls, _: Any) -> Any:
            return cls()

    with pytest.raises(TooLarge):
        private(Endless())


def test_two_keys_that_are_one_value() -> None:
    @dataclasses.dataclass(eq=False)
    class Key:
        n: int

    with pytest.raises(Unstorable, match="two keys of this dict are the same value"):
        private({"a": {Key(1): 1, Key(1): 2}})


@pytest.mark.parametrize(
    "value", [{1}, bytearray(b"x"), Point(1), [Fixed("x")], {"a": Holder(1)}, (set(),), Person(name="x")]
)
def test_what_can_change_cannot_be_frozen(value: Any) -> None:
    with pytest.raises(Unstorable, match="only immutable values can be frozen"):
        freeze(value)


def test_freezing_says_where() -> None:
    with pytest.raises(Unstorable) as caught:
        freeze({"a": [1, {"b c": {2}}]}, path="message")
    assert caught.value.path == "message.a[1]['b c']"
    assert freeze({"a": Color.RED}) == {"a": Color.RED}
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(Unstorable, match=r"value\[0\]: is the same object as value: a cycle"):
        freeze(cycle)


def test_nothing_but_private_values_is_encoded() -> None:
    with pytest.raises(Unstorable):
        encode({"a": [THING]})
    with pytest.raises(Unstorable):
        encode({1, 2})


def test_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    from knotline.codec import values

    monkeypatch.setattr(values, "MAX_BYTES", 100)
    with pytest.raises(TooLarge):
        encode("x" * 101)


def test_errors_show_the_way_and_no_content() -> None:
    """Elements of sets are content, and so is what a key that is no plain value holds."""

    class Telling:
        def __repr__(self) -> str:
            return "secret"

    for value in ({"s": {Telling()}}, {Telling(): 1}, {("a", Telling()): 1}, {"s": frozenset([("secret", Telling())])}):
        with pytest.raises(Unstorable) as caught:
            private(value)
        assert "Telling" in str(caught.value)
        cause = caught.value.__cause__
        while cause is not None:
            assert "secret" not in f"{cause!r} {vars(cause)}"
            cause = cause.__cause__
        assert "secret" not in f"{caught.value} {vars(caught.value)}"
