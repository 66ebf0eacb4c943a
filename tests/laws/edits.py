"""What agents do to their state between two saves: small changes in place, anywhere, told by a few numbers.

Hypothesis draws `(name, a, b, leaf)`; what that means depends on the value it meets, so every draw is useful and
shrinks well, and a plain `random.Random` can draw the same for the mutants. Nothing here uses the code under
test, apart from `freeze`, which makes values.
"""

from __future__ import annotations

import copy
import datetime as dt
import enum
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import strategies as st
from tests.codec.strategies import Celsius, Color, Level, Mode, Point, Slotted, values

from knotline.codec import FrozenDict, FrozenList, freeze

Edit = tuple[str, int, int, Any]

MOST = 330
"""Long lists are kept near this: past 64 (leaves) and 256 (blocks), and no longer than the law needs."""
WHOLE = 12 * MOST
"""Items of all containers together, shared ones as often as they are met."""
BORDERS = (0, 1, 31, 32, 63, 64, 65, 127, 128, 255, 256, 257, 299, 300)


class Same(enum.StrEnum):
    A = "a"
    USER = "user"


def message(n: int) -> dict[str, Any]:
    return {"role": ("user", "assistant")[n % 2], "content": f"message {n} " + "word " * (n % 7), "n": n % 3}


def fresh(a: int = 0) -> dict[str, Any]:
    """A state as a run begins with. The larger ones have long lists and large dicts from the start."""
    state: dict[str, Any] = {
        "messages": [message(n) for n in range((0, 3, 63, 64, 70, 256, 300)[a % 7])],
        "context": {"goal": "a", "flags": [1, True, 1.0, 0.0, -0.0], "deep": {"list": [{"x": [1]}], "n": 1}},
        "count": 0,
    }
    if a % 3 == 1:
        state["table"] = {f"key {n}": n for n in range(250 + a % 20)}
    if a % 5 == 2:
        state["notes"] = "".join(f"line {n}\n" for n in range(120 * (a % 11)))
    return state


# ---------------------------------------------------------------- where


def _places(value: Any, kinds: tuple[type, ...]) -> list[Any]:
    """Every container of these kinds that can be reached through plain dicts and lists; messages only a few."""
    found: list[Any] = []
    seen: set[int] = set()
    todo = [value]
    while todo:
        at = todo.pop(0)
        if id(at) in seen:
            continue
        seen.add(id(at))
        if type(at) in kinds:
            found.append(at)
        if type(at) is dict:
            todo += at.values()
        elif type(at) in (list, tuple):
            wanted = {0, 1, len(at) // 2, len(at) - 1, *BORDERS}
            todo += [at[n] for n in sorted(wanted) if 0 <= n < len(at)]
    return found


def _pick(state: Any, kinds: tuple[type, ...], a: int) -> Any:
    found = [place for place in _places(state, kinds) if place]
    return found[a % len(found)] if found else None


def _long(state: Any, a: int) -> list[Any]:
    """A list worth calling long: the messages, mostly."""
    if a % 4 or type(state) is not dict:
        lists = sorted(_places(state, (list,)), key=len, reverse=True)
        if lists:
            return lists[0]
    lists = _places(state, (list,))
    if lists:
        return lists[a % len(lists)]
    if type(state) is dict:
        return state.setdefault("messages", [])
    return []


def _at(items: list[Any], b: int) -> int:
    """A position, often on a border of blocks and leaves, often near the end."""
    if not items:
        return 0
    if b % 3 == 0:
        return min(BORDERS[b // 3 % len(BORDERS)], len(items) - 1)
    if b % 3 == 1:
        return max(len(items) - 1 - b // 3 % 8, 0)
    return b // 3 % len(items)


def _dict(state: Any, a: int) -> dict[Any, Any]:
    found = _pick(state, (dict,), a)
    return {} if found is None else found


# ---------------------------------------------------------------- edits in lists


def _append(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    items += [message(a + n) for n in range((1, 2, 1, 5)[b % 4])]


def _grow(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    to = BORDERS[b % len(BORDERS)] + b % 2
    items += [message(len(items) + n) for n in range(max(min(to, MOST) - len(items), 0))]


def _insert(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    items.insert(_at(items, b), leaf if b % 2 else message(b))


def _trim(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    size = (1, 2, 3, 40, 70, 200)[a % 6]
    if b % 3 == 0:
        del items[:size]
    elif b % 3 == 1:
        del items[len(items) - min(size, len(items)) :]
    else:
        at = _at(items, b)
        del items[at : at + size]


def _window(state: Any, a: int, b: int, leaf: Any) -> None:
    """What a context window does: the oldest two leave, two come."""
    items = _long(state, a)
    del items[:2]
    items += [message(b), message(b + 1)]


def _swap(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    if items:
        i, j = _at(items, b), _at(items, b // 7 + 1)
        items[i], items[j] = items[j], items[i]


def _move(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    if items:
        item = items.pop(_at(items, b))
        items.insert(_at(items, b // 11 + 2), item)


def _reverse(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    at = _at(items, b)
    items[at : at + 6] = items[at : at + 6][::-1]


def _double(state: Any, a: int, b: int, leaf: Any) -> None:
    """Equal neighbours: where does what belong?"""
    items = _long(state, a)
    if items:
        at = _at(items, b)
        items[at:at] = [items[at]] if b % 2 else [copy.deepcopy(items[at]) for _ in range(3)]


def _set_item(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    if items:
        items[_at(items, b)] = leaf


def _rebuild(state: Any, a: int, b: int, leaf: Any) -> None:
    """The same messages in new dicts, as frameworks do; one of them is another."""
    items = _long(state, a)
    items[:] = [dict(item) if type(item) is dict else item for item in items]
    if b % 2 and items:
        items[_at(items, b)] = message(b)


# ---------------------------------------------------------------- edits in dicts


def _inside(state: Any, a: int, b: int, leaf: Any) -> None:
    """A field of one message."""
    items = _long(state, a)
    if not items:
        return
    item = items[_at(items, b)]
    if type(item) is dict:
        kind = (a + b) % 4
        if kind == 0:
            item["n"] = b
        elif kind == 1 and type(item.get("content")) is str:
            item["content"] += " more"
        elif kind == 2:
            calls = item.setdefault("calls", [])
            if type(calls) is list:
                calls.append({"id": b, "done": False})
        else:
            item["extra"] = leaf
    elif type(item) is list:
        item.append(leaf)


def _counter(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, 1)
    if items and type(items[0]) is dict:
        items[0]["uses"] = b


def _set_key(state: Any, a: int, b: int, leaf: Any) -> None:
    _dict(state, a)[f"k{b % 5}"] = leaf


def _drop_key(state: Any, a: int, b: int, leaf: Any) -> None:
    place = _dict(state, a)
    if place and not (place is state and len(place) < 3):
        place.pop(list(place)[b % len(place)])


def _rename(state: Any, a: int, b: int, leaf: Any) -> None:
    place = _dict(state, a)
    if place and place is not state:
        at = b % len(place)
        pairs = list(place.items())
        pairs[at] = (f"new {b % 4}", pairs[at][1])
        place.clear()
        place.update(pairs)


def _order(state: Any, a: int, b: int, leaf: Any) -> None:
    place = _dict(state, a)
    if place:
        if b % 2:
            key = list(place)[b % len(place)]
            place[key] = place.pop(key)
        else:
            pairs = list(place.items())[::-1]
            place.clear()
            place.update(pairs)


def _pass_key(state: Any, a: int, b: int, leaf: Any) -> None:
    """A key moves from a message to the next."""
    items = _long(state, a)
    at = _at(items, b)
    if at + 1 < len(items) and type(items[at]) is dict and type(items[at + 1]) is dict and items[at]:
        key = list(items[at])[b % len(items[at])]
        items[at + 1][key] = items[at].pop(key)


_KEYS: list[Any] = [
    1, True, 1.0, 0, "1", "a", Same.A, Mode.FAST, Color.RED, Level.HIGH, (1, "x"), (True, "x"), None, "\ud800", "é",
    b"a", Decimal("1.0"), frozenset({1}), dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC),
    dt.datetime(2020, 1, 1, 13, tzinfo=dt.timezone(dt.timedelta(hours=1))), float("nan"), Celsius(3), (Celsius(4),),
]  # fmt: skip


def _odd_key(state: Any, a: int, b: int, leaf: Any) -> None:
    place = state.setdefault("odd", {1: "one"}) if type(state) is dict and a % 3 else _dict(state, a)
    if type(place) is not dict:
        return
    key = _KEYS[b % len(_KEYS)]
    if b % 5 == 0:
        place.pop(key, None)
    elif b % 5 == 1 and key in place:
        del place[key]
        place[key] = leaf
    else:
        place[key] = leaf


def _odd_list(state: Any, a: int, b: int, leaf: Any) -> None:
    """Changes below an odd key: the way to them leads over it."""
    place = _pick(state, (dict,), a) if a % 3 else state
    if type(place) is dict:
        below = place.setdefault(_KEYS[b % len(_KEYS)], [])
        if type(below) is list:
            below.append(b)


def _table(state: Any, a: int, b: int, leaf: Any) -> None:
    if type(state) is not dict:
        return
    table = state.setdefault("table", {})
    if type(table) is not dict:
        return
    if b % 4 == 0:
        table.update((f"key {n}", n) for n in range(a % 40, a % 40 + (30, 260)[b % 2]))
    elif b % 4 == 1:
        table[f"key {a % 300}"] = leaf
    elif b % 4 == 2:
        table.pop(f"key {a % 300}", None)
    else:
        table[f"key {a % 300}"] = table.pop(f"key {a % 300}", 0)


# ---------------------------------------------------------------- edits of values


def _instead(value: Any) -> list[Any]:
    """Other values that `==`, or a look at the surface, takes for this one."""
    kind = type(value)
    if kind in (int, bool, float) and value in (0, 1):
        return [int(value), bool(value), float(value), -0.0 if value == 0 else 1.0, Level(int(value))]
    if kind is Level:
        return [int(value), value.name]
    if kind is str:
        return [value + "\ud800", value.encode("utf-8", "surrogatepass"), *(m for m in Same if m == value), value]
    if kind is Same or kind is Mode:
        return [str(value)]
    if kind is tuple:
        return [list(value)]
    if kind is list:
        return [tuple(value), list(value), *_frozen(value)]
    if kind is dict:
        return [dict(reversed(value.items())), dict(value), *_frozen(value)]
    if kind is FrozenDict:
        return [dict(value)]
    if kind is FrozenList:
        return [list(value)]
    if kind is bytes:
        return [bytearray(value)]
    if kind is bytearray:
        return [bytes(value)]
    if kind is set:
        return [frozenset(value)]
    if kind is frozenset:
        return [set(value)]
    if kind is Decimal:
        return [Decimal("1.0"), Decimal("1.00"), Decimal(1)]
    if kind is dt.datetime and value.tzinfo is not None:
        try:
            return [
                value.astimezone(dt.UTC),
                value.astimezone(dt.timezone(dt.timedelta(hours=2))),
                value.replace(fold=1),
            ]
        except OverflowError:
            return []
    return []


def _frozen(value: Any) -> list[Any]:
    try:
        return [freeze(value)]
    except Exception:  # noqa: BLE001 - not everything can be frozen; then there is nothing to try
        return []


_SWAPPED: list[Any] = [
    1, True, 0.0, -0.0, "a", Same.A, (1, 2), [1, 2], {"x": 1, "y": 2}, b"ab", bytearray(b"ab"), {1, "s"},
    Decimal("1.0"), dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC), float("nan"), Point(1, [2]), Slotted({}, 0), ([], {}),
]  # fmt: skip


def _disguise(state: Any, a: int, b: int, leaf: Any) -> None:
    """Another value that compares equal takes a value's place."""
    place = _pick(state, (dict, list), a)
    if place is None:
        return
    at: Any = list(place)[b % len(place)] if type(place) is dict else _at(place, b)
    if place is state and at == "messages":
        return
    options = _instead(place[at]) or [copy.deepcopy(_SWAPPED[b % len(_SWAPPED)])]
    place[at] = options[(a + b) % len(options)]


def _mutate(state: Any, a: int, b: int, leaf: Any) -> None:
    """What lies outside dicts and lists is changed in place too."""
    place = _pick(state, (set, bytearray, Point, Slotted, Celsius), a)
    if place is None:
        home = _dict(state, a)
        if type(home) is dict and (home is not state or "m0" in home or len(home) < 12):
            home[f"m{b % 3}"] = [{1, 2}, bytearray(b"x"), Point(1, [1]), Slotted([], 2), Celsius([1])][b % 5]
    elif type(place) is set:
        place ^= {b % 3}
        place.add("s")
    elif type(place) is bytearray:
        place += b"%d" % (b % 10)
    elif type(place) is Point:
        place.y, place.x = b, place.y
        place.tags.append(b)
    elif type(place) is Slotted:
        place.b = (b, place.b) if b % 3 else [b]
    else:
        place.degrees = b


def _tupled(state: Any, a: int, b: int, leaf: Any) -> None:
    """A list inside a tuple grows: the tuple is the same object and another value."""
    place = _dict(state, a)
    if type(place.get("t")) is tuple and place["t"] and type(place["t"][0]) is list:
        place["t"][0].append(b)
    elif place:
        place["t"] = ([b], "t")


def _text(state: Any, a: int, b: int, leaf: Any) -> None:
    if type(state) is not dict:
        return
    place = state if a % 2 else _dict(state, a)
    name = ("notes", "log", "raw")[b % 3]
    text: Any = place.get(name)
    if type(text) not in (str, bytes):
        text = b"" if name == "raw" else ""
    more: Any = ("x", "日本 ", "\ud800", "word " * 200, "", "é")[b % 6]
    if type(text) is bytes:
        more = more.encode("utf-8", "surrogatepass")
    if type(text) is not type(more):
        text = type(more)()
    at = (len(text), 0, len(text) // 2)[a % 3]
    cut = (0, 0, 3, 600)[b % 4]
    text = (text[:at] + more + text[at + cut :])[-40_000:]
    place[name] = text


def _huge(state: Any, a: int, b: int, leaf: Any) -> None:
    place = _dict(state, a)
    if place:
        place["blob"] = (f"{a % 4} " * 2500, bytes([b % 4]) * 5000, [f"{n} {b % 3} item" for n in range(500)])[b % 3]


def _share(state: Any, a: int, b: int, leaf: Any) -> None:
    """One object in two places."""
    place, shared = _dict(state, a), _pick(state, (list, dict), b)
    if place and shared is not None and not _reaches(shared, place):
        place["shared"] = shared
        items = _long(state, a)
        if not _reaches(shared, items) and len(items) < MOST:
            items.append(shared)


def _reaches(value: Any, target: Any) -> bool:
    if value is target:
        return True
    below = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return any(_reaches(item, target) for item in below)


def _unshare(state: Any, a: int, b: int, leaf: Any) -> None:
    """Equal containers take the place of all, sharing included."""
    place = _dict(state, a)
    for key in list(place):
        place[key] = copy.deepcopy(place[key])


def _freeze(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    lo = _at(items, b)
    for at in range(lo, min(lo + (1, 5, 300)[b % 3], len(items))):
        items[at] = (_frozen(items[at]) or [items[at]])[0]


def _thaw(state: Any, a: int, b: int, leaf: Any) -> None:
    items = _long(state, a)
    if items:
        at = _at(items, b)
        if type(items[at]) is FrozenDict:
            items[at] = dict(items[at])


EDITS: dict[str, Callable[[Any, int, int, Any], None]] = {
    "append": _append,
    "grow": _grow,
    "insert": _insert,
    "trim": _trim,
    "window": _window,
    "swap": _swap,
    "move": _move,
    "reverse": _reverse,
    "double": _double,
    "set item": _set_item,
    "rebuild": _rebuild,
    "inside": _inside,
    "counter": _counter,
    "set key": _set_key,
    "drop key": _drop_key,
    "rename": _rename,
    "order": _order,
    "pass key": _pass_key,
    "odd key": _odd_key,
    "odd list": _odd_list,
    "table": _table,
    "disguise": _disguise,
    "mutate": _mutate,
    "tupled": _tupled,
    "text": _text,
    "huge": _huge,
    "share": _share,
    "unshare": _unshare,
    "freeze": _freeze,
    "thaw": _thaw,
}


def perform(state: Any, edit: Edit) -> None:
    """Change `state` in place."""
    name, a, b, leaf = edit
    EDITS[name](state, a, b, copy.deepcopy(leaf))
    _bound(state)


def _bound(state: Any) -> None:
    """Sharing and doubling multiply: what grows past a few times the interesting sizes is cut."""
    for items in _places(state, (list,)):
        if len(items) > 4 * MOST:
            del items[: len(items) - MOST]
    if type(state) is dict and _size(state, 0, WHOLE) > WHOLE:
        kept = fresh(1)
        state.clear()
        state.update(kept)


def _size(value: Any, depth: int, most: int) -> int:
    if depth > 40:
        return most + 1
    if type(value) is dict:
        below = list(value.values())
    elif type(value) in (list, tuple):
        below = list(value)
    else:
        return 1
    total = len(below)
    for item in below:
        if type(item) in (dict, list, tuple):
            total += _size(item, depth + 1, most)
            if total > most:
                break
    return total


_LEAVES = st.one_of(st.sampled_from(_SWAPPED), st.sampled_from(_SWAPPED), st.integers(0, 3), values(max_leaves=3))


def edits() -> st.SearchStrategy[Edit]:
    numbers = st.integers(0, 2**16)
    return st.tuples(st.sampled_from(sorted(EDITS)), numbers, numbers, _LEAVES)


def drawn(random: Random) -> Edit:
    """The same without Hypothesis: for scenarios that must be the same every time."""
    return (
        random.choice(sorted(EDITS)),
        random.randrange(2**16),
        random.randrange(2**16),
        copy.deepcopy(random.choice(_SWAPPED)),
    )
