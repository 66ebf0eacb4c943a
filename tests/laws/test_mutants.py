"""Laws that nothing can break prove nothing: each bug planted here must be caught by a law above.

Every test first runs its scenario on the code as it is, where it must pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.codec.strategies import alike
from tests.laws.edits import drawn, fresh, message, perform
from tests.laws.places import PLACES
from tests.laws.test_change_machine import Change, drive, settled, swap_keys
from tests.laws.test_store_machine import StoreMachine

from knotline.backends import Conflicted, Done, MemoryBackend
from knotline.errors import Conflict, Error, Fenced
from knotline.records import NOWHERE
from knotline.store import change, check, delta, seal, warm, watch
from knotline.store.check import sweep, verify
from knotline.store.log import Store
from knotline.testing import FakeClock

BROKEN = (AssertionError, Error, IndexError, KeyError, StopIteration, pytest.fail.Exception)
Plant = Callable[[pytest.MonkeyPatch], None]


def caught(plant: Plant, scenario: Callable[[], None]) -> None:
    scenario()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(BROKEN):
            scenario()
    scenario()


# ---------------------------------------------------------------- scenarios


def seeded() -> None:
    for seed in range(3):
        drive(seed, 40)


def _forty() -> None:
    for seed in range(40):
        drive(seed, 30)


def in_place() -> None:
    """Edits inside long lists, between saves that see nothing else."""
    change = Change({"messages": [message(n) for n in range(300)]}, unit=False)
    change.save()
    change.save()
    for n, at in enumerate((0, 70, 255, 256, 299)):
        change.value["messages"][at]["n"] = f"edit {n}"
        change.save()
        change.value["messages"][at].setdefault("calls", [{}])[0]["n"] = 1
        change.save()
        change.value["messages"][at]["calls"][0]["n"] = True
        change.save()
    change.check_all()


def swapped() -> None:
    change = Change({"messages": [{"a": 1, "b": True} for _ in range(100)]}, unit=False)
    change.save()
    change.save()
    swap_keys(change.value["messages"][7])
    change.save()


def disguised() -> None:
    change = Change({"flags": [1, True, 0.0], "one": 1, "messages": [message(n) for n in range(70)]}, unit=False)
    change.save()
    for other in (True, 1.0, 1, -0.0, 0.0, False):
        change.value["one"] = other
        change.value["messages"][5]["n"] = other
        change.save()


def sealed() -> None:
    """Long lists with edits between seals, read again from what is stored."""
    random = Random(7)
    change = Change({"messages": [message(n) for n in range(200)], "n": 0})
    change.save()
    for n in range(30):
        messages = change.value["messages"]
        at = random.randrange(len(messages))
        if n % 3 == 0:
            messages[at]["n"] = f"edit {n}"
        elif n % 3 == 1:
            messages.insert(at, message(n))
        else:
            del messages[at]
        change.save()
        change.store.seal("r")
        change.saved[-1] = (change.store.header("r").rev, change.saved[-1][1])
        change.check(len(change.saved) - 1)
        if n % 5 == 0:
            change.reopen()
    change.check_all()


def windowed() -> None:
    change = Change({"messages": [message(n) for n in range(100)]})
    change.save()
    for n in range(5):
        del change.value["messages"][:2]
        change.value["messages"] += [message(n), message(n + 1)]
        change.save()


class _Alone(StoreMachine):
    """Against memory only: for mutants the model is enough."""

    kinds = (PLACES["memory"],)


def machine(examples: int = 60, steps: int = 30) -> Callable[[], None]:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=False,
        report_multiple_bugs=False,
    )
    return lambda: run_state_machine_as_test(_Alone, settings=chosen)


def line_of_moves() -> None:
    """Rollback, undo and redo as a user would do them by hand."""
    machine = _Alone()
    try:
        machine.begin(1, 5, 2, 2)
        for redo in (False, False, True, True, True):
            machine.undo_or_redo("a", 0, redo, 1)
            machine.heads_agree()
        machine.undo_or_redo("a", 1, False, 2)
        machine.rollback("a", 1, 0)
        machine.undo_or_redo("a", 0, True, 1)
        machine.undo_or_redo("a", 0, False, 1)
        machine.append_expected("a", 1, 0, ("counter", 0, 1, None))
        machine.undo_or_redo("a", 0, True, 1)
        machine.heads_agree()
    finally:
        machine.teardown()


def pinned() -> None:
    store = Store(MemoryBackend())
    states: dict[int, Any] = {}
    for n in range(10):
        value = {"n": n, "text": f"{n}" * 50}
        states[store.append("r", value).rev] = value
        if n == 6:
            store.seal("r")
    store.pin("r", 2, why="keep")
    store.prune("r", keep_from=store.header("r").rev)
    assert alike(store.load("r", 2), states[2])
    assert alike(store.load("r"), states[max(states)])
    store.pin("r", 2, keep=False)
    store.prune("r", keep_from=store.header("r").rev)
    with pytest.raises(Error):
        store.load("r", 2)
    assert verify(store).clean


def pruned_twice() -> None:
    """A prune that asks for less than one before it did takes nothing."""
    store = Store(MemoryBackend())
    for _ in range(3):
        for n in range(4):
            store.append("r", {"n": n})
        store.seal("r")
    top = store.header("r").rev
    assert store.prune("r", keep_from=top - 6).note["floor"] == top - 10
    for keep_from in (0, 2, top - 8):
        assert store.prune("r", keep_from=keep_from).note["floor"] == top - 10
        assert store.load("r", top - 10) == {"n": 3}


def sealed_by_another() -> None:
    """A handle that knew nothing of the run must look again before it says that there is nothing to seal."""
    backend = MemoryBackend()
    one, two = Store(backend), Store(backend)
    with pytest.raises(Conflict):
        two.append("r", {}, expected=5)
    one.append("r", {"n": 1})
    assert two.seal("r").rev == 1
    assert two.load("r") == {"n": 1}


def branched() -> None:
    """What is kept may stand on what is older than `keep_from`: a branch after a rollback does."""
    store = Store(MemoryBackend())
    for n in range(8):
        store.append("r", {"n": n})
    store.seal("r")
    keep_from = store.append("r", {"n": 9}).rev
    store.rollback("r", 2)
    branch = store.append("r", {"branch": True}).rev
    store.rollback("r", keep_from)
    store.prune("r", keep_from=keep_from)
    assert store.load("r", branch) == {"branch": True}


def pruned_away() -> None:
    """An undo must not lead to where there is nothing any more: the run could not be used again."""
    store = Store(MemoryBackend())
    for n in range(8):
        store.append("r", {"n": n})
    store.seal("r")
    last = store.append("r", {"n": 9}).rev
    there = store.rollback("r", 2).rev
    store.rollback("r", last)
    store.prune("r", keep_from=store.header("r").rev)
    for attempt in (
        lambda: store.undo("r"),
        lambda: store.rollback("r", there),
        lambda: store.fork("r", "f", rev=there),
    ):
        with pytest.raises(Error):
            attempt()
        assert store.load("r") == {"n": 9}
    store.append("r", {"n": 10})


def fenced() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    one, two = Store(backend), Store(backend)
    one.append("r", {"n": 0})
    old = one.acquire("r", "one", ttl=1.0)
    one.append("r", {"n": 1}, held=old)
    clock.advance(2.0)
    new = two.acquire("r", "two", ttl=1.0)
    for store in (one, two):
        with pytest.raises(Fenced):
            store.append("r", {"n": "stale"}, held=old)
        with pytest.raises(Fenced):
            store.annotate("r", {}, held=old)
    two.append("r", {"n": 2}, held=new)
    assert one.load("r") == {"n": 2}


def raced() -> None:
    """Two handles, one head: whoever is second must look again, and nothing that was acknowledged is lost."""
    backend = MemoryBackend()
    stores = [Store(backend), Store(backend)]
    kept: dict[int, Any] = {}
    for n in range(12):
        value = {"n": n, "list": list(range(n))}
        header = stores[n % 2].append("r", value)
        assert header.rev not in kept
        kept[header.rev] = value
    for rev, value in kept.items():
        assert alike(stores[0].load("r", rev), value)
    for store in stores:
        head = store.header("r").rev
        assert store.append("r", {"n": head}, expected=head).rev == head + 1
        with pytest.raises(Conflict) as refused:
            stores[0].append("r", {}, expected=head)
        assert refused.value.found == head + 1


def swept() -> None:
    """A leaf that was pruned and swept comes back: whoever knew it must write it again."""
    backend = MemoryBackend()
    one, two = Store(backend), Store(backend)
    messages = [message(n) for n in range(130)]
    one.append("r", {"messages": messages, "blob": "x" * 9000})
    one.append("r", {"messages": [], "n": 1})
    two.append("r", {"messages": [], "n": 2})
    two.seal("r")
    two.prune("r", keep_from=two.header("r").rev)
    assert sweep(two).objects > 0
    for store in (one, two):
        store.append("r", {"messages": messages, "blob": "x" * 9000, "n": 3})
        store.seal("r")
        assert alike(Store(backend).load("r"), {"messages": messages, "blob": "x" * 9000, "n": 3})
        assert verify(store).clean
        store.append("r", {})
        store.seal("r")
        store.prune("r", keep_from=store.header("r").rev)
        sweep(store)


def live() -> None:
    store = Store(MemoryBackend())
    value: dict[str, Any] = {"messages": [message(n) for n in range(100)], "blob": "x" * 9000}
    value["messages"][5]["content"] = "y" * 9000  # an object that a leaf links to
    store.append("r", value)
    store.fork("r", "f")
    store.append("f", {**value, "n": 1})
    store.delete("r")
    sweep(store)
    assert alike(store.load("f"), {**value, "n": 1})
    assert verify(store).clean


# ---------------------------------------------------------------- mutants


def blind_watch(patch: pytest.MonkeyPatch) -> None:
    """Looks at the items, not into them."""
    patch.setattr(watch._Bag, "unchanged", lambda self: True)


def shallow_watch(patch: pytest.MonkeyPatch) -> None:
    """Looks one level down, no deeper."""
    real = watch._Bag.unchanged

    def unchanged(self: Any) -> bool:
        below, self.below = self.below, None
        try:
            return real(self)
        finally:
            self.below = below

    patch.setattr(watch._Bag, "unchanged", unchanged)


def careless_twice(patch: pytest.MonkeyPatch) -> None:
    """Takes equal values of one dict for distinct as long as they are two objects."""
    patch.setattr(watch, "_holds_twice", lambda user: len(set(map(id, user.values()))) < len(user))


def equal_is_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(change, "fits", lambda kept, value: kept == value)


def forgotten_touch(patch: pytest.MonkeyPatch) -> None:
    """Items that changed inside stay where they were sealed."""
    real = seal.Rope.edit
    patch.setattr(seal.Rope, "edit", lambda self, splices, touched: real(self, splices, ()))


def wrong_order(patch: pytest.MonkeyPatch) -> None:
    """Splices from the front: those behind are off by what came and went."""
    real = delta._apply

    def apply(tree: Any, op: list[Any], ropes: Any) -> Any:
        if op[0] == change.LIST:
            op = [op[0], op[1], op[2][::-1]]
        return real(tree, op, ropes)

    patch.setattr(delta, "_apply", apply)


def rollback_keeps_redo(patch: pytest.MonkeyPatch) -> None:
    real = warm.Warm.draft_move

    def draft_move(self: Any, op: Any, **more: Any) -> Any:
        if op == "rollback" and self.head is not None:
            more["redo"] = self.head.redo
        return real(self, op, **more)

    patch.setattr(warm.Warm, "draft_move", draft_move)


def save_keeps_redo(patch: pytest.MonkeyPatch) -> None:
    real = warm.Warm._header

    def header(self: Any, rev: int, op: Any, *rest: Any, **more: Any) -> Any:
        if op == "save" and self.head is not None:
            more["redo"] = self.head.redo
        return real(self, rev, op, *rest, **more)

    patch.setattr(warm.Warm, "_header", header)


def no_pins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "_pins", lambda self, key: {})


def no_branches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "_behind", lambda self, key, lo, hi: iter(()))


def last_only(patch: pytest.MonkeyPatch) -> None:
    """Takes the entry `keep_from` for the first one that is kept, also when it is gone."""
    real = Store._behind
    patch.setattr(Store, "_behind", lambda self, key, lo, hi: (rev for rev in real(self, key, lo, hi) if rev == lo))


def undo_anywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "_stands", lambda self, key, pos: pos != NOWHERE)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "_epoch", lambda self, warm, held: warm.epoch)


def conflict_is_success(patch: pytest.MonkeyPatch) -> None:
    real = Store.settle

    def settle(self: Any, draft: Any, outcome: Any, *, expected: int | None = None) -> bool:
        return real(self, draft, Done() if isinstance(outcome, Conflicted) else outcome, expected=expected)

    patch.setattr(Store, "settle", settle)


def stale_expected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "outdated", lambda self, warm: False)


def ever_known(patch: pytest.MonkeyPatch) -> None:
    """What this process once wrote or read counts as stored for ever."""
    everything: set[bytes] = set()
    real = seal.Pieces._store

    def store(self: Any, payload: bytes, links: list[bytes], *, leaf: bool = False) -> bytes:
        self.known = everything
        name = real(self, payload, links, leaf=leaf)
        everything.update(self.objects)
        return name

    patch.setattr(seal.Pieces, "_store", store)


def shallow_sweep(patch: pytest.MonkeyPatch) -> None:
    """Keeps what entries link to, and not what that links to."""
    real = check.links_of
    patch.setattr(check, "links_of", lambda stored, what: real(stored, what) if what == "an entry" else [])


def uncut_leaf(patch: pytest.MonkeyPatch) -> None:
    """The private copy goes by reference: what the program does next is in it."""
    real = change.Shadow._copy
    patch.setattr(
        change.Shadow, "_copy", lambda self, value, path: value if type(value) is list else real(self, value, path)
    )


def anchor_of_the_parent(patch: pytest.MonkeyPatch) -> None:
    """A seal that does not start a new window: what a prune keeps is not what is needed."""
    real = warm.Warm.draft_state

    def draft_state(self: Any, value: object, **more: Any) -> Any:
        anchor = self._state.anchor
        draft = real(self, value, **more)
        if self._draft.anchor != anchor and anchor != NOWHERE:
            self._draft = replace(self._draft, anchor=draft.header.rev + 1)
        return draft

    patch.setattr(warm.Warm, "draft_state", draft_state)


def aliased() -> None:
    change = Change({"a": 1}, unit=False)
    change.save()
    change.value["list"] = [1, {"x": []}]
    change.save()
    change.value["list"][1]["x"].append(2)
    change.save()
    change.value["list"].append(3)
    change.save()
    change.check_all()


BY_HAND: list[tuple[Plant, Callable[[], None]]] = [
    (blind_watch, in_place),
    (shallow_watch, in_place),
    (careless_twice, swapped),
    (equal_is_same, disguised),
    (forgotten_touch, sealed),
    (wrong_order, windowed),
    (rollback_keeps_redo, line_of_moves),
    (save_keeps_redo, line_of_moves),
    (no_pins, pinned),
    (no_branches, branched),
    (undo_anywhere, pruned_away),
    (no_fence, fenced),
    (conflict_is_success, raced),
    (stale_expected, raced),
    (stale_expected, sealed_by_another),
    (last_only, pruned_twice),
    (ever_known, swept),
    (shallow_sweep, live),
    (uncut_leaf, aliased),
    (anchor_of_the_parent, seeded),
]


@pytest.mark.parametrize(("plant", "scenario"), BY_HAND, ids=lambda it: it.__name__)
def test_a_planted_bug_is_caught_by_a_scenario(plant: Plant, scenario: Callable[[], None]) -> None:
    caught(plant, scenario)


BY_EDITS: list[Plant] = [blind_watch, shallow_watch, equal_is_same, forgotten_touch, wrong_order, uncut_leaf]


@pytest.mark.parametrize("plant", BY_EDITS, ids=lambda it: it.__name__)
def test_a_planted_bug_is_caught_by_seeded_edits(plant: Plant) -> None:
    """Nobody aimed these."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(BROKEN):
            _forty()


BY_MACHINE: list[Plant] = [
    equal_is_same,
    rollback_keeps_redo,
    no_pins,
    undo_anywhere,
    no_branches,
    no_fence,
    conflict_is_success,
    stale_expected,
]


@pytest.mark.parametrize("plant", BY_MACHINE, ids=lambda it: it.__name__)
def test_a_planted_bug_is_caught_by_the_store_machine(plant: Plant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, Error)):
            machine(examples=600)()


def test_the_machine_passes_without_mutants() -> None:
    machine(examples=6)()


def test_scenarios_do_not_share_states() -> None:
    """The mutants' scenarios must not pass because a state was changed by the one before."""
    assert alike(fresh(3), fresh(3))
    kept = fresh(3)
    perform(copy.deepcopy(kept), drawn(Random(1)))
    assert alike(kept, fresh(3))
    assert settled(kept).value is not kept
