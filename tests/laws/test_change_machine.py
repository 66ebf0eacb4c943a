"""Whatever happens to a value between two saves, and wherever: the next save sees it, and saves no more than it.

The machine holds a value as a program does and edits it in place. After every edit the value is saved, and what
was saved must be what the value was at that time, to the last type, for ever.
"""

from __future__ import annotations

import copy
import enum
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.codec.strategies import Celsius, Point, alike, spoil, values
from tests.laws.count import STEPS, tell
from tests.laws.edits import EDITS, Edit, drawn, edits, fresh, message, perform
from tests.laws.places import PLACES, Kind, place

from knotline.backends import Backend, MemoryBackend
from knotline.codec import decode, encode, freeze, private, same
from knotline.errors import Unstorable
from knotline.store.change import DICT, LIST, Shadow
from knotline.store.check import verify
from knotline.store.delta import apply
from knotline.store.log import Store
from knotline.store.names import run_key

NAME = "change-machine"


@pytest.fixture(scope="module", autouse=True)
def _count() -> Iterator[None]:
    before = STEPS[NAME]  # the mutants use the machines too: theirs are not counted
    yield
    tell(NAME, STEPS[NAME] - before)


def shadow_of(store: Store, run: str) -> Any:
    warm = store.warm(run_key(run))
    assert warm.shadow is not None
    return warm.shadow.value


def advanced(shadow: Shadow, value: Any) -> list[list[Any]]:
    """`advance`, and the law of it: the operations and the copy both arrive at the private form of the value."""
    before = encode(shadow.value)
    ops = shadow.advance(value)
    after = private(value)
    assert same(shadow.value, after)
    assert encode(shadow.value) == encode(after)
    stored = encode(ops)
    replayed = apply(decode(before, private=True), decode(stored, private=True), {}, "law")  # pyright: ignore[reportArgumentType]
    assert same(replayed, after)
    assert encode(replayed) == encode(after)
    public = apply(decode(before), decode(stored), {}, "law")  # pyright: ignore[reportArgumentType]
    assert alike(public, value)
    if not ops:
        assert before == encode(after)
    return ops


class Change:
    """A program's value, its store, and what the value was at each save. No Hypothesis: mutants use it too."""

    def __init__(self, value: Any, *, unit: bool = True, open_: Callable[[], Backend] | None = None) -> None:
        self.value = value
        self.open = open_
        self.store = Store(MemoryBackend() if open_ is None else open_())
        self.shadow: Shadow | None = None
        self.unit = unit
        self.saved: list[tuple[int, Any]] = []
        self.head = -1

    def save(self) -> None:
        value = self.value
        STEPS[NAME] += 1
        try:
            kept = private(value)
        except Unstorable:
            self.refused()
            return
        if self.unit:
            if self.shadow is None:
                self.shadow = Shadow.of(value)
            else:
                advanced(self.shadow, value)
        header = self.store.append("r", value)
        self.head = header.rev
        self.saved.append((header.rev, copy.deepcopy(value)))
        assert same(shadow_of(self.store, "r"), kept)
        assert encode(shadow_of(self.store, "r")) == encode(kept)
        self.check(len(self.saved) - 1)
        self.check(hash(header.rev * 7919) % len(self.saved))

    def refused(self) -> None:
        """What cannot be stored is refused by whoever looks at it, and nothing has happened."""
        if self.shadow is not None:
            with pytest.raises(Unstorable):
                self.shadow.advance(self.value)
            self.shadow = None
        with pytest.raises(Unstorable):
            self.store.append("r", self.value)
        if self.saved:
            self.check(len(self.saved) - 1)
            assert self.store.header("r").rev == self.head
        self.value = copy.deepcopy(self.saved[-1][1]) if self.saved else fresh()

    def check(self, at: int) -> None:
        rev, value = self.saved[at]
        assert alike(self.store.load("r", rev), value), f"revision {rev}"

    def check_all(self) -> None:
        for at in range(len(self.saved)):
            self.check(at)
        assert verify(self.store).clean

    def reopen(self) -> None:
        """Another process goes on: its copy of the head is made of what is stored."""
        if self.open is None:
            self.store = Store(self.store.backend)
        else:
            self.store.close()
            self.store = Store(self.open())


class Changes(RuleBasedStateMachine):
    kind: Kind | None = None
    """Where it is saved; None: in one memory backend, which is never opened again."""

    @initialize(a=st.integers(0, 1000))
    def begin(self, a: int) -> None:
        self.stack = ExitStack()
        kind = self.kind
        if kind is None:
            self.change = Change(fresh(a))
        else:
            here = self.stack.enter_context(place())
            self.change = Change(fresh(a), unit=False, open_=lambda: kind.open(here))
        self.change.save()

    @rule(each=st.lists(edits(), min_size=1, max_size=3))
    def edit(self, each: list[Edit]) -> None:
        for edit in each:
            perform(self.change.value, edit)
        self.change.save()

    @rule(edit=edits())
    def edit_once(self, edit: Edit) -> None:
        perform(self.change.value, edit)
        self.change.save()

    @rule(edit=edits())
    def edit_of_a_copy(self, edit: Edit) -> None:
        """Some programs make a new state for every step; nothing is the same object."""
        self.change.value = copy.deepcopy(self.change.value)
        perform(self.change.value, edit)
        self.change.save()

    @rule()
    def nothing(self) -> None:
        self.change.save()

    @rule(value=values(max_leaves=6))
    def another(self, value: Any) -> None:
        """A root of any kind, and back."""
        kept, self.change.value = self.change.value, value
        self.change.save()
        self.change.value = kept
        self.change.save()

    @rule(a=st.integers(0, 100), below=st.booleans())
    def cycle(self, a: int, below: bool) -> None:
        value = self.change.value
        if type(value) is not dict:
            return
        if below:
            messages = value.setdefault("messages", [])
            if type(messages) is not list:
                return
            messages.append({"role": "user", "content": messages})
        else:
            value[f"k{a % 3}"] = {"me": [value]}
        with pytest.raises(Unstorable) as caught:
            self.change.store.append("r", value)
        assert caught.value.path
        self.change.refused()
        self.change.save()

    @rule()
    def reopen(self) -> None:
        self.change.reopen()

    @precondition(lambda self: len(self.change.saved) > 1)
    @rule(a=st.integers(0, 1000))
    def go_back(self, a: int) -> None:
        """A rollback, and on from there with the value that the program still holds."""
        rev = self.change.saved[a % len(self.change.saved)][0]
        self.change.head = self.change.store.rollback("r", rev).rev
        self.change.save()

    @rule()
    def seal(self) -> None:
        self.change.head = self.change.store.seal("r").rev
        self.change.check(len(self.change.saved) - 1)

    def teardown(self) -> None:
        if hasattr(self, "change"):
            try:
                self.change.check_all()
            finally:
                self.change.store.close()
                self.stack.close()


TestChanges = Changes.TestCase
_QUICK = settings().max_examples <= 100
TestChanges.settings = settings(
    max_examples=20 if _QUICK else 2_000,
    stateful_step_count=25 if _QUICK else settings().stateful_step_count,
)


@pytest.mark.parametrize("name", [name for name, kind in PLACES.items() if kind.closes])
def test_changes_wherever_they_are_saved(name: str) -> None:
    """Detection is above the backends; what each makes of deltas, seals and what is read again is its own."""
    before = STEPS[NAME]
    machine = type("Changes", (Changes,), {"kind": PLACES[name]})
    tried = settings(TestChanges.settings, max_examples=3 if _QUICK else 300)
    run_state_machine_as_test(machine, settings=tried)
    tell(f"{NAME} {name}", STEPS[NAME] - before)


def drive(seed: int, steps: int, *, unit: bool = True) -> None:
    """The same laws without Hypothesis: for the planted mutants, and to meet every kind of edit."""
    random = Random(seed)
    change = Change(fresh(random.randrange(1000)), unit=unit)
    change.save()
    for _ in range(steps):
        for _ in range(random.choice((1, 1, 2))):
            perform(change.value, drawn(random))
        change.save()
        if random.random() < 0.05:
            change.reopen()
        if random.random() < 0.1:
            change.head = change.store.seal("r").rev
            assert alike(change.store.load("r"), change.saved[-1][1])
    change.check_all()


@pytest.mark.parametrize("seed", range(4))
def test_seeded_edits(seed: int) -> None:
    drive(seed, 60)


def test_every_kind_of_edit_changes_something() -> None:
    """A fault test that injects no fault proves nothing; the same is true of edits."""
    random = Random(5)
    changed = dict.fromkeys(EDITS, 0)
    for name in EDITS:
        for n in range(30):
            state = fresh(n)
            if name == "thaw":
                state["messages"] = [freeze(item) for item in state["messages"]]
            for _ in range(2):
                before = copy.deepcopy(state)
                perform(state, (name, *drawn(random)[1:]))
                changed[name] += not alike(before, state)
    assert not [name for name, times in changed.items() if times < 5 and name not in ("rebuild", "unshare", "share")]


# ---------------------------------------------------------------- borders


@pytest.mark.parametrize("size", [63, 64, 65, 255, 256, 257, 300])
@pytest.mark.parametrize("at", [0, 62, 63, 64, 254, 255, 256, 299, -1])
def test_an_edit_on_the_border_of_a_block(size: int, at: int) -> None:
    change = Change({"messages": [message(n) for n in range(size)]})
    messages = change.value["messages"]
    change.save()
    change.save()  # blocks are made
    at = min(at, size - 1)
    for edit in (
        lambda: messages[at].update(n=True),
        lambda: messages[at].update(n=1),
        lambda: messages[at].update(n=1.0),
        lambda: messages.insert(at, message(7)),
        lambda: messages.pop(at),
        lambda: messages.__setitem__(at, freeze(messages[at])),
        lambda: messages.__setitem__(at, dict(messages[at])),
        lambda: messages[at].update(deep=[[0]]),
        lambda: messages[at]["deep"][0].append(1),
        lambda: messages[at]["deep"][0].__setitem__(0, False),
        lambda: messages.append(message(8)),
        lambda: messages.append([1, [2], {3}]),
        lambda: messages[-1][2].add(4),
        lambda: messages[-1][1].append(5),
        lambda: messages.append(({6: [7]}, bytearray(b"8"))),
        lambda: messages[-1][0][6].append(9),
        lambda: messages[-1][1].extend(b"10"),
    ):
        edit()
        change.save()
        change.save()
    change.check_all()


class Twin(enum.StrEnum):
    A = "role"


# ---------------------------------------------------------------- places that are easily missed


def _keys_that_change(value: dict[str, Any]) -> None:
    for item in value["messages"]:
        for key in item:
            if type(key) is Celsius:
                key.degrees += 1


def swap_keys(item: dict[str, Any]) -> None:
    """The last two keys change places, their values do not."""
    *rest, (a, x), (b, y) = item.items()
    item.clear()
    item.update([*rest, (b, x), (a, y)])


@pytest.mark.parametrize(
    ("item", "edit"),
    [
        ({Celsius(1): 1}, _keys_that_change),
        ({Celsius(1): 1, 2: 3}, _keys_that_change),
        ({1: "x"}, lambda value: [(item.pop(1), item.update({True: "x"})) for item in value["messages"]]),
        ({"role": 1}, lambda value: [(item.pop("role"), item.update({Twin.A: 1})) for item in value["messages"]]),
        ({float("nan"): 1, "a": 2}, lambda value: [item.update(dict.fromkeys(item, 5)) for item in value["messages"]]),
        ((1, [2]), lambda value: [item[1].append(3) for item in value["messages"]]),
        (Point(1, [2]), lambda value: [item.y.append(3) for item in value["messages"]]),
        (bytearray(b"x"), lambda value: [item.extend(b"y") for item in value["messages"]]),
        ({1}, lambda value: [item.add(2) for item in value["messages"]]),
        ({"a": 1, "b": True}, lambda value: [swap_keys(item) for item in value["messages"]]),
        ({"a": -0.0, "b": 0.0}, lambda value: [swap_keys(item) for item in value["messages"]]),
        ({"a": [1], "b": [True]}, lambda value: [swap_keys(item) for item in value["messages"]]),
        ({"a": "x" * 40, "b": Twin.A, "c": "role"}, lambda value: [swap_keys(item) for item in value["messages"]]),
        ({"a": 1, "b": 2}, lambda value: [item.update(a=item.pop("a")) for item in value["messages"]]),
        ({"a": {"b": [0.0]}}, lambda value: [item["a"]["b"].__setitem__(0, -0.0) for item in value["messages"]]),
        ([1, 2], lambda value: value.update(messages=[tuple(item) for item in value["messages"]])),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [1, 3, 70])
def test_changes_that_a_quick_look_misses(item: Any, edit: Callable[[Any], object], size: int) -> None:
    change = Change({"messages": [copy.deepcopy(item) for _ in range(size)], "rest": "x" * 100})
    for _ in range(3):
        change.save()
    edit(change.value)
    for _ in range(2):
        change.save()
    change.check_all()


@pytest.mark.parametrize("at", ["before", "in", "after"])
def test_two_keys_that_are_one_value_are_refused(at: str) -> None:
    """Whether the dict is seen for the first time or changed."""
    store = Store(MemoryBackend())
    value: dict[str, Any] = {"m": {1: 1, Celsius(1): 2, "last": 3}}
    store.append("r", value)
    kept = copy.deepcopy(value)
    if at == "before":
        value["m"] = {Celsius(1): 5, **value["m"]}
    elif at == "after":
        value["m"][Celsius(1)] = 5
    else:
        value["m"] = {1: 1, Celsius(1): 2, Celsius(1.0): 3, Celsius(1): 4}
    with pytest.raises(Unstorable):
        private(value)
    with pytest.raises(Unstorable):
        store.append("r", value)
    assert alike(store.load("r"), kept)
    value["m"] = {Celsius(1): 1, Celsius(1.0): 2, Celsius(True): 3}
    store.append("r", value)
    assert alike(store.load("r"), value)


def test_a_value_may_be_spoilt_after_it_was_saved() -> None:
    random = Random(3)
    store = Store(MemoryBackend())
    for n in range(12):
        value = fresh(n)
        for _ in range(5):
            perform(value, drawn(random))
        kept = copy.deepcopy(value)
        rev = store.append("r", value).rev
        spoil(value)
        assert same(shadow_of(store, "r"), private(kept))
        assert alike(store.load("r", rev), kept)
        rev = store.append("r", value).rev
        assert alike(store.load("r", rev), value)
        assert alike(store.load("r", rev - 1), kept)


def test_what_was_loaded_may_be_spoilt() -> None:
    store = Store(MemoryBackend())
    store.append("r", fresh(5))
    spoil(store.load("r"))
    assert alike(store.load("r"), fresh(5))
    assert same(shadow_of(store, "r"), private(fresh(5)))


def test_identities_are_not_taken_for_others() -> None:
    """Objects die and others get their addresses: a watch or a rope must not take one for the other."""
    random = Random(11)
    change = Change({"lists": [[message(n) for n in range(70)] for _ in range(3)]})
    for n in range(25):
        lists = change.value["lists"]
        lists.pop(random.randrange(len(lists)))
        gc.collect()
        lists.insert(random.randrange(len(lists) + 1), [message(n + k) for k in range(64 + n % 9)])
        lists[0][random.randrange(60)]["n"] = n
        change.save()
    change.check_all()


# ---------------------------------------------------------------- cycles


def test_cycles_are_refused_with_their_path() -> None:
    store = Store(MemoryBackend())
    value: dict[str, Any] = {"messages": [message(n) for n in range(70)], "n": 0}
    rev = store.append("r", value).rev
    kept = copy.deepcopy(value)
    store.append("r", value)
    value["messages"][3]["meta"] = {"all": value["messages"]}
    for _ in range(2):
        with pytest.raises(Unstorable) as caught:
            store.append("r", value)
        assert caught.value.path.startswith("messages[3].meta")
        assert "cycle" in caught.value.why
        assert store.header("r").rev == rev + 1
        assert alike(store.load("r"), kept)
    del value["messages"][3]["meta"]
    value["n"] = 1
    store.append("r", value)
    assert alike(store.load("r"), value)
    assert verify(store).clean
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Unstorable):
        store.append("other", loop)
    assert [name for name, _ in store.runs()] == ["r"]


# ---------------------------------------------------------------- what little is written


def settled(value: Any) -> Shadow:
    shadow = Shadow.of(value)
    assert advanced(shadow, value) == []
    return shadow


@pytest.mark.parametrize("at", [0, 1, 255, 256, 500, 999])
@pytest.mark.parametrize("how", ["in place", "copied"])
def test_one_field_of_a_thousand_messages_is_a_small_change(at: int, how: str) -> None:
    value = {"messages": [message(n) for n in range(1000)]}
    shadow = settled(value)
    if how == "copied":
        value = copy.deepcopy(value)
    value["messages"][at]["n"] = 12
    assert len(encode(advanced(shadow, value))) < 300
    value["messages"][at]["content"] += " and more"
    assert len(encode(advanced(shadow, value))) < 300


def test_a_window_that_moves_on_writes_splices() -> None:
    value = {"messages": [message(n) for n in range(1000)]}
    shadow = settled(value)
    for n in range(1000, 1100, 2):
        del value["messages"][:2]
        value["messages"] += [message(n), message(n + 1)]
        ops = advanced(shadow, value)
        assert [op[0] for op in ops] == [LIST]
        assert [(at, gone, len(items)) for at, gone, items in ops[0][2]] == [(0, 2, 0), (1000, 0, 2)]
        assert len(encode(ops)) < 300


def test_a_window_does_not_slow_down_what_watches_it() -> None:
    """The watch stays a few blocks, however often the window moved."""
    value = {"messages": [message(n) for n in range(1000)]}
    shadow = settled(value)
    for n in range(1000, 1600, 2):
        del value["messages"][:2]
        value["messages"] += [message(n), message(n + 1)]
        shadow.advance(value)
    (watch,) = shadow._watches.values()
    assert len(watch.blocks) < 40


def test_a_counter_in_the_first_message_and_two_new_ones() -> None:
    value = {"messages": [message(n) for n in range(1000)]}
    shadow = settled(value)
    for n in range(20):
        value["messages"][0]["uses"] = n
        value["messages"] += [message(n), message(n + 1)]
        ops = advanced(shadow, value)
        assert [op[0] for op in ops] == [DICT, LIST]
        assert len(encode(ops)) < 300


@pytest.mark.parametrize("edit", ["insert", "delete", "swap", "text", "key", "order", "bytes"])
def test_small_changes_are_small(edit: str) -> None:
    value: dict[str, Any] = {
        "messages": [message(n) for n in range(500)],
        "notes": "line of text\n" * 5000,
        "raw": b"line of text\n" * 5000,
        "table": {f"key {n}": [n, {"n": n}] for n in range(2000)},
    }
    shadow = settled(value)
    if edit == "insert":
        value["messages"].insert(200, message(9))
    elif edit == "delete":
        del value["messages"][200]
    elif edit == "swap":
        value["messages"][3], value["messages"][4] = value["messages"][4], value["messages"][3]
    elif edit == "text":
        value["notes"] = value["notes"][:30_000] + "more" + value["notes"][30_005:]
    elif edit == "bytes":
        value["raw"] += b"more"
    elif edit == "key":
        value["table"]["key 1000"][1]["n"] = "changed"
    else:
        del value["table"]["key 7"]
        value["table"]["new"] = 1
    assert len(encode(advanced(shadow, value))) < 300


def test_a_key_that_moves_to_the_end_of_a_large_dict() -> None:
    """What a cache of the recently used does. It may cost bytes, but not time that grows with the square."""
    value = {"cache": {f"key {n}": n for n in range(20_000)}}
    shadow = settled(value)
    value["cache"]["key 3"] = value["cache"].pop("key 3")
    advanced(shadow, value)  # by the square: half a minute
