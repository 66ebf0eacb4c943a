"""Users' classes: what is kept of them, how they are found again, and what is never done to find them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import subprocess
import sys
import textwrap
import types
import weakref
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pydantic
import pytest
from tests.codec.strategies import Bits, Celsius, Color, Deep, Level, Mode, Perm, Person, Point, alike

from knotline.codec import Boxed, decode, encode, fits, private, public, same, serializable
from knotline.codec import types as registry
from knotline.errors import UnknownType

T = TypeVar("T")


UNWANTED: list[type] = []


class Unregistered:
    def to_dict(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_dict(cls, _: Any) -> Any:
        UNWANTED.append(cls)
        return cls()


def there_and_back(value: Any) -> Any:
    kept = private(value)
    back = decode(encode(kept))
    assert fits(kept, back)
    assert same(decode(encode(kept), private=True), kept)
    return back


def test_nothing_of_a_dataclass_is_called() -> None:
    @dataclasses.dataclass
    class Loud:
        a: int
        b: list[int] = dataclasses.field(default_factory=list)
        seen: ClassVar[list[str]] = []

        def __post_init__(self) -> None:
            self.seen.append("post_init")

    value = Loud(1, [2])
    assert Loud.seen == ["post_init"]
    back = there_and_back(value)
    assert back == value
    assert type(back) is Loud
    assert back.b is not value.b
    assert Loud.seen == ["post_init"]


def test_what_stands_beside_the_fields_is_kept() -> None:
    class Base:
        __slots__ = ("__hidden", "shown")

        def __init__(self) -> None:
            self.__hidden = 1

        def hidden(self) -> int:
            return self.__hidden

    @dataclasses.dataclass(slots=True)
    class Child(Base):
        a: int

        def __post_init__(self) -> None:
            Base.__init__(self)
            self.shown = [self.a]

    back = there_and_back(Child(5))
    assert (back.a, back.shown, back.hidden()) == (5, [5], 1)

    deep = Deep(1, z=2)
    deep.extra = {3}  # pyright: ignore[reportAttributeAccessIssue]
    back = there_and_back(deep)
    assert alike(back, deep)
    assert back.beside == [2]
    assert back.late == ("late", 1)

    kept = private(deep)
    deep.beside.append(0)
    assert not fits(kept, deep)


def test_bytes_reach_no_descriptor_but_fields_and_slots() -> None:
    called: list[Any] = []

    @dataclasses.dataclass
    class Guarded:
        a: int = 1

        @property
        def danger(self) -> int:
            return 0

        @danger.setter
        def danger(self, value: Any) -> None:
            called.append(value)

    data = bytearray(encode(private(Guarded())))
    tag = f"{Guarded.__module__}:{Guarded.__qualname__}"
    assert tag.encode() in data
    back: Any = decode(encode(Boxed(31, encode([tag, {"a": 2}, {"danger": 3, "__class__": 4}]))))
    assert called == []
    assert type(back) is Guarded
    assert back.a == 2

    @dataclasses.dataclass(slots=True)
    class Slots:
        a: int = 1

    tag = f"{Slots.__module__}:{Slots.__qualname__}"
    encode(private(Slots()))
    with pytest.raises(UnknownType, match="cannot set 'b'"):
        decode(encode(Boxed(31, encode([tag, {"a": 2}, {"b": 3}]))))


def test_cached_properties_are_kept() -> None:
    @dataclasses.dataclass
    class Lazy:
        n: int

        @functools.cached_property
        def square(self) -> int:
            return self.n**2

    value = Lazy(3)
    assert value.square == 9
    assert there_and_back(value).__dict__ == {"n": 3, "square": 9}


def test_generic_and_frozen_and_inherited_dataclasses() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Pair(Generic[T]):
        left: T
        right: T

    @dataclasses.dataclass(frozen=True)
    class Named(Pair[int]):
        name: str = "n"

    assert there_and_back(Pair([1], (2,))) == Pair([1], (2,))
    assert there_and_back(Named(1, 2)) == Named(1, 2)


def test_members() -> None:
    for value in [*Color, *Level, *Mode, *Perm, Perm.R | Perm.X, Perm(0), Bits.A | Bits.B, Bits(0)]:
        back = there_and_back(value)
        assert back is value
        assert type(back) is type(value)
    assert not fits(private(Level.HIGH), 1)
    assert not fits(private(1), Level.HIGH)
    assert not fits(private("fast"), Mode.FAST)
    assert not fits(private({"fast": 1}), {Mode.FAST: 1})
    assert there_and_back({Mode.FAST: {Color.RED}}) == {Mode.FAST: {Color.RED}}


def test_pydantic_keeps_everything_and_validates_nothing() -> None:
    person = Person.model_validate({"name": "Ada", "more": [1], "age": 9})
    person.age = 1_000
    person._secret = {"k"}
    back = there_and_back(person)
    assert alike(back, person)
    assert back.model_fields_set == person.model_fields_set == {"name", "more", "age"}
    assert back.model_extra == {"more": [1]}
    assert back._secret == {"k"}
    assert back == person
    assert there_and_back(Person(name="x")).model_fields_set == {"name"}

    kept = private(person)
    person.model_fields_set.discard("age")
    assert not fits(kept, person)


def test_other_pydantic_models() -> None:
    class Numbers(pydantic.RootModel[list[int]]):
        pass

    class Box(pydantic.BaseModel, Generic[T]):
        held: T

    @pydantic.dataclasses.dataclass
    class Checked:
        n: int = 3

    class Fixed(pydantic.BaseModel, frozen=True):
        n: int

        @functools.cached_property
        def double(self) -> int:
            return self.n * 2

    assert there_and_back(Numbers([1, 2])) == Numbers([1, 2])
    assert there_and_back(Box[int](held=3)) == Box[int](held=3)
    assert there_and_back(Checked(4)) == Checked(4)
    value = Fixed(n=2)
    assert value.double == 4
    assert there_and_back(value) == value
    assert there_and_back({value}) == {value}


def test_registered_classes() -> None:
    back = there_and_back([Celsius({1, 2})])
    assert type(back[0]) is Celsius
    assert back[0].degrees == {1, 2}


def _point(**more: Any) -> Any:
    def body(space: dict[str, Any]) -> None:
        space.update(__annotations__={"x": int, **dict.fromkeys(more, Any)}, **more, __module__="made.up")

    return dataclasses.dataclass(types.new_class("Evolving", (), {}, body))


def test_a_class_that_changed_since() -> None:
    old = serializable(name="tests.Evolving")(_point())
    data = encode(private(old(x=1)))

    new = serializable(name="tests.Evolving")(_point(y=7, z=dataclasses.field(default_factory=list)))
    back: Any = decode(data)
    assert type(back) is new
    assert (back.x, back.y, back.z) == (1, 7, [])

    newer = encode(private(new(x=1, y=2)))
    serializable(name="tests.Evolving")(_point())
    with pytest.raises(UnknownType, match=r"tests\.Evolving: the class has no field 'y' any more"):
        decode(newer)
    serializable(name="tests.Evolving")(_point(w=dataclasses.field()))
    with pytest.raises(UnknownType, match="its field 'w' was not stored and has no default"):
        decode(data)

    class Evolving(enum.Enum):
        A = 1

    Evolving.__module__, Evolving.__qualname__ = "made.up", "Evolving"
    serializable(name="tests.Evolving")(Evolving)
    with pytest.raises(UnknownType, match="no longer of the kind"):
        decode(data)


def test_a_model_that_changed_since() -> None:
    def model(**fields: Any) -> Any:
        made = pydantic.create_model("Changing", __module__="made.up", **fields)
        return serializable(name="tests.Changing")(made)

    data = encode(private(model(a=(int, 1))(a=5)))
    new = model(a=(int, 1), b=(list[int], pydantic.Field(default_factory=list)), c=(int, 4))
    back: Any = decode(data)
    assert type(back) is new
    assert (back.a, back.b, back.c, back.model_fields_set) == (5, [], 4, {"a"})
    model(a=(int, 1), b=(int, ...))
    with pytest.raises(UnknownType, match="its field 'b' was not stored"):
        decode(data)
    model(b=(int, 1))
    with pytest.raises(UnknownType, match="no field 'a' any more"):
        decode(data)


def test_an_enum_that_changed_since() -> None:
    def make(**names: int) -> Any:
        made = enum.Flag("Sides", names, module="made.up")
        return serializable(name="tests.Sides")(made)

    both = make(A=1, B=2)
    data, one = encode(private(both(3))), encode(private(both.B))
    make(A=1, C=4)
    with pytest.raises(UnknownType, match=r"tests\.Sides\.3: the class has no such member"):
        decode(data)
    with pytest.raises(UnknownType, match=r"tests\.Sides\.B"):
        decode(one)


def test_what_from_dict_raises_is_told() -> None:
    @serializable(name="tests.Picky")
    class Picky:
        def to_dict(self) -> Any:
            return {}

        @classmethod
        def from_dict(cls, data: Any) -> Any:
            raise ValueError("never")

    with pytest.raises(UnknownType, match=r"tests\.Picky: from_dict raised ValueError: never") as caught:
        decode(encode(private(Picky())))
    assert isinstance(caught.value.__cause__, ValueError)


def test_one_name_one_class() -> None:
    def make(qualname: str) -> Any:
        made = _point()
        made.__qualname__ = qualname
        return made

    first = serializable(name="tests.One")(make("First"))
    again = serializable(name="tests.One")(make("First"))
    assert type(decode(encode(private(first(x=1))))) is again
    with pytest.raises(ValueError, match=r"'tests\.One' is registered for made\.up:First already"):
        serializable(name="tests.One")(make("Second"))
    for name in ("", "a:b"):
        with pytest.raises(ValueError, match="a registered name is not empty"):
            serializable(name=name)(make("Third"))
    with pytest.raises(TypeError, match="put @serializable above @dataclass"):

        @serializable
        class _Plain:
            pass


def test_a_better_name_later() -> None:
    made = _point()
    made.__qualname__ = "Renamed"
    data = encode(private(made(x=1)))
    serializable(name="tests.Renamed")(made)
    assert b"tests.Renamed" in encode(private(made(x=1)))
    assert decode(data) == made(x=1)


def test_classes_are_forgotten_with_their_last_user() -> None:
    def use() -> weakref.ref[type]:
        @dataclasses.dataclass
        class Local:
            n: int

        assert there_and_back(Local(1)) == Local(1)
        return weakref.ref(Local)

    before = len(registry._plans)
    gone = use()
    gc.collect()
    assert gone() is None
    assert len(registry._plans) <= before


def test_a_loaded_module_is_asked_without_running_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_up_module")
    ran: list[str] = []

    def reach(name: str) -> Any:
        ran.append(name)
        return Point

    vars(module)["__getattr__"] = reach
    monkeypatch.setitem(sys.modules, "made_up_module", module)
    fields = {"x": 1, "y": 2, "tags": []}
    for name in ("made_up_module:Point", "made_up_module:Borrowed", "os:system", "builtins:print", "no_such:Thing"):
        vars(module)["Borrowed"] = Point
        with pytest.raises(UnknownType):
            decode(encode(Boxed(31, encode([name, fields]))))
    assert ran == []
    # The one way that works: the module is loaded, and the class there says that this is its name.
    assert decode(encode(Boxed(31, encode([f"{Point.__module__}:Point", fields])))) == Point(1, 2)
    # A class with from_dict is called only if the program registered it.
    assert f"{Unregistered.__module__}:Unregistered" == f"{__name__}:Unregistered"
    assert __name__ in sys.modules
    with pytest.raises(UnknownType):
        decode(encode(Boxed(33, encode([f"{__name__}:Unregistered", {}]))))
    assert UNWANTED == []


_ELSEWHERE = textwrap.dedent(
    """
    import sys
    import ormsgpack, knotline.codec, knotline.errors
    from knotline.codec import decode, encode, fits, private, public, same
    from knotline.errors import UnknownType
    data = bytes.fromhex(sys.stdin.read())
    loaded = set(sys.modules)
    events = []
    watching = True
    names = ("import", "exec", "compile", "open", "marshal.loads", "ctypes.dlopen", "subprocess.Popen", "os.system")
    sys.addaudithook(lambda event, args: events.append((event, args)) if watching and event in names else None)
    kept = decode(data, private=True)
    again = encode(kept)
    unknown = []
    for call in (lambda: decode(data), lambda: public(kept)):
        try:
            call()
        except UnknownType as error:
            unknown.append(error.name)
    equal = same(kept, private(kept))
    watching = False
    print(unknown, again == data, equal, events, set(sys.modules) - loaded)
    """
)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Point(1), "tests.codec.strategies:Point"),
        (Color.RED, "tests.codec.strategies:Color"),
        (Person(name="x"), "tests.codec.strategies:Person"),
        (Celsius(1), "tests.Celsius"),
        ({"a": [({Color.RED},)]}, "tests.codec.strategies:Color"),
    ],
)
def test_a_process_that_does_not_know_the_class(value: Any, name: str, tmp_path: Path) -> None:
    data = encode(private(value))
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE],
        input=data.hex(),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],  # so that tests.codec.strategies could be imported, were anybody to try
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{[name, name]} True True [] set()"


def test_public_opens_boxes() -> None:
    value = {"a": {1, 2}, "p": Point({3}), ("k", Color.RED): bytearray(b"x")}
    assert alike(public(private(value)), value)
