"""One sequence of verbs, three answers: a store in memory, a store in another place, and a model of plain dicts.

Each store is used through two handles, so that the warm head of one is stale whenever the other has written. Every
place of `tests.laws.places` has a machine of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.codec.strategies import alike, values
from tests.laws.count import STEPS, tell
from tests.laws.edits import Edit, edits, fresh, perform
from tests.laws.model import NOWHERE, PIN, Absent, Key, Knot, Line, Model
from tests.laws.places import PLACES, Kind, place

from knotline.backends import Backend
from knotline.backends.contract import MAX_REV
from knotline.codec import private
from knotline.errors import Conflict, Error, Fenced, LeaseHeld, Unstorable, Unsupported
from knotline.records import Header
from knotline.store.check import sweep, verify
from knotline.store.log import Held, Store
from knotline.store.names import run_key
from knotline.testing import FakeClock

NAME = "store-machine"
RUNS = ["a", "ab", "a/b", "é\ud800"]
LABELS = ["status=done", "step=1", "op=pin", "document=config", "é"]
DOCUMENTS = [("config", "a"), ("config", "b/c"), ("session", "a"), ("c", "onfig")]

runs = st.sampled_from(RUNS)
labels = st.lists(st.sampled_from(LABELS), max_size=2)
numbers = st.integers(0, 2**16)
sides = st.integers(0, 1)
notes = st.sampled_from([{}, {}, {"step": 1, "tags": ["x"]}, {"é\ud800": None, "n": 2**70}])
owners = st.sampled_from(["me", "you"])


@pytest.fixture(scope="module", autouse=True)
def _count() -> Iterator[None]:
    before = STEPS[NAME]  # the mutants use the machines too: theirs are not counted
    yield
    tell(NAME, STEPS[NAME] - before)


class Side:
    """One place and its two handles."""

    def __init__(self, machine: StoreMachine, kind: Kind) -> None:
        self.kind = kind
        self.ticks = count(1_000_000)
        self.place = machine.stack.enter_context(place(machine.clock))
        shared = None if kind.many else kind.open(self.place)
        self.stores = [self.handle(shared or kind.open(self.place)) for _ in range(2)]

    def handle(self, backend: Backend) -> Store:
        return Store(backend, clock=lambda: next(self.ticks), warm_runs=3)

    def reopen(self, which: int) -> None:
        """Another process goes on; where there can be only one, both handles are its."""
        if self.kind.closes:
            self.stores[which].close()
        fresh = self.kind.open(self.place)
        for at in (which,) if self.kind.many else (0, 1):
            self.stores[at] = self.handle(fresh)

    def close(self) -> None:
        for store in self.stores:
            store.close()


class StoreMachine(RuleBasedStateMachine):
    kinds: tuple[Kind, ...] = (PLACES["memory"], PLACES["sqlite"])

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.clock = FakeClock()
        self.model = Model()
        self.all = [Side(self, kind) for kind in self.kinds]
        self.values: dict[str, Any] = {}
        """What the program holds for each run, edited in place."""
        self.leased = all(kind.leases for kind in self.kinds)
        self.held: list[Held] = []
        self.touched: set[str] = set()
        self.at = 0

    # -- asking ---------------------------------------------------------------------------------------------

    def ask(self, verb: Callable[[Store], Any]) -> list[Any]:
        """Of each side; an error of ours is an answer."""
        answers: list[Any] = []
        for side in self.all:
            try:
                answers.append(verb(side.stores[self.at]))
            except Error as error:
                answers.append(error)
        return answers

    def expect(self, verb: Callable[[Store], Any], error: str | None = None) -> list[Any]:
        answers = self.ask(verb)
        for answer in answers:
            if error is None:
                if isinstance(answer, Error):
                    raise answer
            else:
                assert type(answer).__name__ == error, (error, answer)
        return answers

    def headers(self, key: Key, headers: list[Header]) -> None:
        """Both sides' headers are the model's newest entry."""
        line = self.model.lines[key]
        for header in headers:
            self.header(line, line.rev, header)

    def header(self, line: Line, rev: int, header: Header) -> None:
        knot = line.knots[rev]
        assert (header.rev, header.op, header.pos, header.undo, header.redo, header.epoch) == (
            rev, knot.op, knot.pos, knot.undo, knot.redo, knot.epoch,
        )  # fmt: skip
        if knot.pos == rev and knot.op != "fork":
            assert header.parent == knot.parent
        if knot.note is not None:
            assert alike({key: value for key, value in header.note.items() if key != "view"}, knot.note)

    def missing(self, ask: Callable[[], object]) -> str | None:
        try:
            ask()
        except Absent as absent:
            return absent.args[0]
        return None

    def some(self, run: str) -> str:
        """Another run if there is none of this name yet: most verbs need one."""
        there = [key[1] for key in self.model.lines if key[0] == "r"]
        return run if run in there or not there else there[RUNS.index(run) % len(there)]

    def rev(self, run: str, a: int) -> int:
        """Mostly one that exists, mostly a late one."""
        line = self.model.line(run)
        top = 0 if line is None else line.rev
        low = 0 if line is None or a % 4 == 0 else max(line.floor, top - 12)
        return low + a % (top + 2 - low)

    # -- states ---------------------------------------------------------------------------------------------

    @initialize(a=numbers, many=st.sampled_from([0, 1, 5, 12, 40]), back=st.integers(0, 12), branch=st.integers(0, 8))
    def begin(self, a: int, many: int, back: int, branch: int) -> None:
        """Often a line with a branch, long enough for moves between them to mean something."""
        value = self.values["a"] = fresh(a)
        for n in range(many):
            value["count"] = n
            self.append("a", value, sync=False)
        if many > back:
            self.rollback("a", back, 0)
            for n in range(branch):
                value["count"] = -n
                self.append("a", value, sync=False)

    def append(self, run: str, value: Any, **more: Any) -> None:
        key: Key = ("r", run)
        line = self.model.line(run)
        epoch = 0 if line is None else line.head.epoch
        held: Held | None = more.get("held")
        expected: int | None = more.get("expected")
        head = NOWHERE if line is None else line.rev
        self.touched.add(run)
        verb = lambda store: store.append(run, value, **more)  # noqa: E731
        if expected is not None and expected != head:
            for error in self.expect(verb, "Conflict"):
                assert isinstance(error, Conflict)
                assert (error.expected, error.found) == (expected, head)
            return
        if held is not None and held.epoch < epoch:
            for error in self.expect(verb, "Fenced"):
                assert isinstance(error, Fenced)
                assert error.current == epoch
            return
        try:
            private(value)
        except Unstorable:
            self.expect(verb, "Unstorable")
            if run in self.values:
                self.values[run] = fresh()
            return
        found = self.expect(verb)
        labels = more.get("labels", ())
        epoch = epoch if held is None else held.epoch
        self.model.save(key, "save", value, labels=labels, note=more.get("note"), epoch=epoch)
        self.headers(key, found)

    @rule(run=runs, each=st.lists(edits(), max_size=3), a=numbers, at=sides, labels=labels, note=notes)
    def edit_and_append(self, run: str, each: list[Edit], a: int, at: int, labels: list[str], note: Any) -> None:
        self.at = at
        value = self.values.setdefault(run, fresh(a))
        for edit in each:
            perform(value, edit)
        self.append(run, value, labels=labels, note=note, sync=a % 5 == 0)

    @rule(run=runs, each=st.lists(edits(), min_size=2, max_size=6), at=sides, a=numbers)
    def append_often(self, run: str, each: list[Edit], at: int, a: int) -> None:
        """Long enough for seals."""
        value = self.values.setdefault(run, fresh(a))
        for n, edit in enumerate(each * 6):
            self.at = at if a % 3 else n % 2
            perform(value, edit)
            self.append(run, value, sync=False)
            value = self.values[run]

    @rule(run=runs, value=values(max_leaves=5), at=sides)
    def append_another(self, run: str, value: Any, at: int) -> None:
        self.at = at
        self.append(run, value, sync=False)

    @rule(run=runs, at=sides, off=st.sampled_from([0, 0, 0, 1, -1, 5]), edit=edits())
    def append_expected(self, run: str, at: int, off: int, edit: Edit) -> None:
        self.at = at
        line = self.model.line(run)
        value = self.values.setdefault(run, fresh())
        perform(value, edit)
        self.append(run, value, expected=(NOWHERE if line is None else line.rev) + off)

    @rule(run=runs, at=sides)
    def take_up(self, run: str, at: int) -> None:
        """The program goes on with what it loads."""
        self.at = at
        run = self.some(run)
        line = self.model.line(run)
        if line is not None and line.head.pos != NOWHERE:
            self.values[run] = self.expect(lambda store: store.load(run))[0]

    @rule(run=runs, a=numbers, at=sides)
    def load(self, run: str, a: int, at: int) -> None:
        self.at = at
        run = self.some(run)
        self.check(run, self.rev(run, a))

    def check(self, run: str, rev: int | None) -> None:
        """One revision of both sides against the model."""
        knots: list[Knot] = []

        def ask() -> None:
            line = self.model.lives(run)
            knots.append(self.model.state(line, self.model.knot(line, line.rev if rev is None else rev)))

        error = self.missing(ask)
        line = self.model.line(run)
        if knots and line is not None and knots[0].pos in line.unsure:
            first, *rest = self.ask(lambda store: store.load(run, rev))
            for other in rest:
                assert isinstance(first, Error) == isinstance(other, Error)
            assert not isinstance(first, Error) or type(first).__name__ == "NotFound"
            if isinstance(first, Error):
                return
        for loaded in self.expect(lambda store: store.load(run, rev), error):
            if error is None:
                assert alike(loaded, knots[0].value), (run, rev)

    # -- moves ----------------------------------------------------------------------------------------------

    def move(self, run: str, verb: Callable[[Store], Any], decide: Callable[[Line], Knot]) -> None:
        """`decide` gives the entry, or raises `Absent`. What stands on a state that nobody promised may fail."""
        made: list[Knot] = []
        held = None

        def ask() -> None:
            made.append(decide(self.model.lives(run)))

        error = self.missing(ask)
        line = self.model.line(run)
        self.touched.add(run)
        if made and line is not None and made[0].pos in line.unsure:
            answers = self.ask(verb)
            refused = [isinstance(answer, Error) for answer in answers]
            assert len(set(refused)) == 1, answers
            if refused[0]:
                names = {type(answer).__name__ for answer in answers}
                assert names <= {"NotFound", "NothingToUndo"}, answers
                return
            line.unsure.discard(made[0].pos)
            held = answers
        found = held if held is not None else self.expect(verb, error)
        if error is None:
            self.model.put(("r", run), made[0])
            self.headers(("r", run), found)

    @rule(run=runs, a=numbers, at=sides)
    def rollback(self, run: str, a: int, at: int) -> None:
        self.at = at
        run = self.some(run)
        self.roll_to(run, self.rev(run, a))

    def roll_to(self, run: str, rev: int) -> None:
        def decide(line: Line) -> Knot:
            pos = self.model.state(line, self.model.knot(line, rev)).pos
            return Knot("rollback", pos, NOWHERE, line.rev, NOWHERE, line.head.epoch, frozenset(), {"to": rev})

        self.move(run, lambda store: store.rollback(run, rev), decide)

    @rule(run=runs, at=sides, redo=st.booleans(), times=st.sampled_from([1, 1, 2, 5]))
    def undo_or_redo(self, run: str, at: int, redo: bool, times: int) -> None:
        self.at = at
        run = self.some(run)
        name = "redo" if redo else "undo"

        def decide(line: Line) -> Knot:
            to = line.head.redo if redo else line.head.undo
            if not line.floor <= to:
                raise Absent("NothingToUndo")
            there = line.knots[to]
            pos = self.model.state(line, there, "NothingToUndo").pos
            next_redo = there.redo if redo else line.rev
            return Knot(name, pos, NOWHERE, there.undo, next_redo, line.head.epoch, frozenset(), {"to": to})

        for _ in range(times):
            self.move(run, lambda store: getattr(store, name)(run), decide)

    @rule(run=runs, a=numbers, at=sides, times=st.sampled_from([1, 2]))
    def undo_over_a_prune(self, run: str, a: int, at: int, times: int) -> None:
        """Back, forth, and what lies between is pruned: the way that an undo goes may end where nothing is any more."""
        run = self.some(run)
        line = self.model.line(run)
        if line is None or line.head.pos == NOWHERE:
            return
        self.seal(run, at)
        top = line.rev
        self.roll_to(run, self.rev(run, a))
        self.roll_to(run, top)
        self.prune_to(run, line.rev)
        self.undo_or_redo(run, at, False, times)

    @rule(run=runs, note=notes, labels=labels, at=sides)
    def annotate(self, run: str, note: Any, labels: list[str], at: int) -> None:
        self.at = at
        run = self.some(run)
        error = self.missing(lambda: self.model.lives(run))
        found = self.expect(lambda store: store.annotate(run, note, labels=labels), error)
        if error is None:
            self.model.aside(("r", run), "annotate", labels=labels, note=note)
            self.headers(("r", run), found)

    @rule(run=runs, at=sides)
    def seal(self, run: str, at: int) -> None:
        self.at = at
        run = self.some(run)
        line = self.model.line(run)
        self.touched.add(run)
        if line is None or line.head.pos == NOWHERE:
            self.expect(lambda store: store.seal(run), "NotFound")
            return
        found = self.expect(lambda store: store.seal(run))
        head = line.head
        value = line.knots[head.pos].value
        knot = Knot("seal", line.rev + 1, head.pos, head.undo, head.redo, head.epoch, frozenset(), {}, value)
        self.model.put(("r", run), knot)
        self.headers(("r", run), found)

    @rule(run=runs, new=runs, a=numbers, at=sides)
    def fork(self, run: str, new: str, a: int, at: int) -> None:
        self.at = at
        run = self.some(run)
        rev = None if a % 3 == 0 else self.rev(run, a)
        states: list[Knot] = []

        def ask() -> None:
            line = self.model.lives(run)
            states.append(self.model.state(line, self.model.knot(line, line.rev if rev is None else rev)))
            there = self.model.line(new)
            if there is not None and there.head.op != "delete":
                raise Absent("Conflict")

        error = self.missing(ask)
        verb = lambda store: store.fork(run, new, rev=rev, note={"why": "try"})  # noqa: E731
        line = self.model.line(run)
        if states and line is not None and states[0].pos in line.unsure:
            answers = self.ask(verb)
            if any(isinstance(answer, Error) for answer in answers):
                assert {type(answer).__name__ for answer in answers} <= {"NotFound", "Conflict"}
                return
            assert error is None
            line.unsure.discard(states[0].pos)
        else:
            answers = self.expect(verb, error)
        if error is not None or line is None:
            return
        state = states[0]
        self.touched.add(new)
        line.pin(state.pos, f"origin of {new}", new)
        note = {"rev": state.pos, "keep": True, "why": f"origin of {new}", "fork": new}
        self.model.aside(("r", run), "pin", labels=[PIN], note=note)
        said = {"origin": run, "origin_rev": state.pos, "why": "try"}
        before = self.model.line(new)  # a name that was deleted may be used again
        rev, epoch = (0, 0) if before is None else (before.rev + 1, before.head.epoch)
        knot = Knot("fork", rev, NOWHERE, NOWHERE, NOWHERE, epoch, frozenset(), said, state.value)
        self.model.put(("r", new), knot)
        self.headers(("r", new), answers)

    @rule(run=runs, a=numbers, keep=st.sampled_from([True, True, False]), why=st.sampled_from(["", "é"]), at=sides)
    def pin(self, run: str, a: int, keep: bool, why: str, at: int) -> None:
        self.at = at
        run = self.some(run)
        rev = self.rev(run, a)
        states: list[Knot] = []

        def ask() -> None:
            line = self.model.lives(run)
            states.append(self.model.state(line, self.model.knot(line, rev)))

        error = self.missing(ask)
        verb = lambda store: store.pin(run, rev, keep=keep, why=why)  # noqa: E731
        line = self.model.line(run)
        if states and line is not None and states[0].pos in line.unsure:
            found = self.ask(verb)
            if any(isinstance(answer, Error) for answer in found):
                assert {type(answer).__name__ for answer in found} == {"NotFound"}
                return
            line.unsure.discard(states[0].pos)
        else:
            found = self.expect(verb, error)
        if error is None and line is not None:
            line.pin(rev, why, keep=keep)
            self.model.aside(("r", run), "pin", labels=[PIN], note={"rev": rev, "keep": keep, "why": why})
            self.headers(("r", run), found)

    @rule(run=runs, a=numbers, at=sides)
    def prune(self, run: str, a: int, at: int) -> None:
        self.at = at
        run = self.some(run)
        self.prune_to(run, self.rev(run, a))

    def prune_to(self, run: str, keep_from: int) -> None:
        error = self.missing(lambda: self.model.lives(run))
        found = self.expect(lambda store: store.prune(run, keep_from=keep_from), error)
        if error is not None:
            return
        line = self.model.lives(run)
        knots = [line.knots[rev] for rev in range(max(keep_from, line.floor), line.rev + 1)]
        knots += [line.head, *line.pinned()]
        self.model.aside(("r", run), "prune", labels=[PIN])
        self.headers(("r", run), found)
        self.drop(run, {knot.pos for knot in knots})

    @rule(run=runs, at=sides, sure=st.sampled_from([False, False, True]))
    def delete(self, run: str, at: int, sure: bool) -> None:
        if not sure:
            return
        self.at = at
        error = self.missing(lambda: self.model.lives(run))
        found = self.expect(lambda store: store.delete(run), error)
        if error is not None:
            return
        line = self.model.lives(run)
        kept = {knot.pos for knot in line.pinned()}
        knot = Knot("delete", NOWHERE, NOWHERE, NOWHERE, NOWHERE, line.head.epoch, frozenset([PIN]), None)
        self.model.put(("r", run), knot)
        self.headers(("r", run), found)
        self.drop(run, kept)

    def drop(self, run: str, promised: set[int]) -> None:
        """How far down it went, both sides the same."""
        floors: set[int] = set()
        for side in self.all:
            entries = side.stores[self.at].backend.entries(run_key(run), 0, MAX_REV, bodies=False)
            assert [entry.rev for entry in entries] == list(range(entries[0].rev, entries[-1].rev + 1))
            floors.add(entries[0].rev)
        assert len(floors) == 1, floors
        self.model.drop(("r", run), max(floors.pop(), self.model.lines["r", run].floor), promised)
        self.check_run(run)

    # -- leases ---------------------------------------------------------------------------------------------

    @rule(run=runs, owner=owners, ttl=st.sampled_from([1.0, 10.0]), at=sides)
    def acquire(self, run: str, owner: str, ttl: float, at: int) -> None:
        self.at = at
        now = self.clock()
        holder, epoch, until = self.model.leases.get(run, ("", 0, now))
        verb = lambda store: store.acquire(run, owner, ttl=ttl)  # noqa: E731
        if not self.leased:
            for side in self.all:
                if not side.kind.leases:
                    with pytest.raises(Unsupported):
                        verb(side.stores[at])
            return
        if now < until and holder != owner:
            for error in self.expect(verb, "LeaseHeld"):
                assert isinstance(error, LeaseHeld)
                assert error.owner == holder
            return
        epoch, until = (epoch, max(until, now + ttl)) if now < until else (epoch + 1, now + ttl)
        found = self.expect(verb)
        self.model.leases[run] = (owner, epoch, until)
        line = self.model.line(run)
        if line is None:
            if epoch > 1:
                knot = Knot("takeover", NOWHERE, NOWHERE, NOWHERE, NOWHERE, epoch, frozenset(), {"owner": owner})
                self.model.put(("r", run), knot)
        elif epoch != line.head.epoch:
            self.model.aside(("r", run), "takeover", note={"owner": owner}, epoch=epoch)
        for held in found:
            assert held == Held(run, owner, epoch, epoch, until)
        self.held.append(found[0])
        self.touched.add(run)

    @precondition(lambda self: self.held)
    @rule(a=numbers, edit=edits(), at=sides, verb=st.sampled_from(["append", "annotate", "renew", "release"]))
    def use_held(self, a: int, edit: Edit, at: int, verb: str) -> None:
        self.at = at
        held = self.held[-1 - a % len(self.held)]
        run = held.run
        now = self.clock()
        lease = self.model.leases[run]
        live = lease[:2] == (held.owner, held.ticket) and now < lease[2]
        line = self.model.line(run)
        if verb == "append":
            value = self.values.setdefault(run, fresh())
            perform(value, edit)
            self.append(run, value, held=held)
        elif verb == "annotate" and line is not None and line.head.op != "delete":
            stale = held.epoch < line.head.epoch
            found = self.expect(lambda store: store.annotate(run, {}, held=held), "Fenced" if stale else None)
            if not stale:
                self.model.aside(("r", run), "annotate", note={}, epoch=held.epoch)
                self.headers(("r", run), found)
        elif verb == "renew":
            found = self.expect(lambda store: store.renew(held, ttl=5.0), None if live else "Fenced")
            if live:
                until = max(lease[2], now + 5.0)
                self.model.leases[run] = (*lease[:2], until)
                assert all(each.until == until for each in found)
        elif verb == "release":
            assert self.expect(lambda store: store.release(held)) == [live] * len(self.all)
            if live:
                self.model.leases[run] = (*lease[:2], now)

    @precondition(lambda self: self.leased)
    @rule(run=runs, edit=edits(), at=sides, verb=st.sampled_from(["append", "annotate"]))
    def overtaken(self, run: str, edit: Edit, at: int, verb: str) -> None:
        """An owner sleeps past its time, another takes over, and the first one wakes up and writes."""
        self.acquire(run, "me", 1.0, at)
        self.wait(20.0)
        self.acquire(run, "you", 1.0, 1 - at)
        if len(self.held) > 1:
            self.use_held(1, edit, at, verb)

    @rule(seconds=st.sampled_from([0.5, 2.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # -- attachments and documents --------------------------------------------------------------------------

    @rule(
        run=runs, a=numbers, task=st.sampled_from(["t", "é\ud800"]), idx=st.integers(-1, 1), value=values(max_leaves=3)
    )
    def attach(self, run: str, a: int, task: str, idx: int, value: Any) -> None:
        rev = self.rev(run, a)
        held = self.held[-1] if self.held and a % 2 else None
        epoch = 0 if held is None else held.epoch
        line = self.model.line(run)
        if held is not None and line is not None and epoch < line.head.epoch:
            self.expect(lambda store: store.attach(run, rev, task, idx, value, held=held), "Fenced")
            return
        there = self.model.attached.setdefault((run, rev, task, idx), (epoch, copy.deepcopy(value)))
        fits = there[0] == epoch and alike(there[1], value)
        found = self.expect(lambda store: store.attach(run, rev, task, idx, value, held=held))
        assert found == [fits] * len(self.all)
        self.check_attachments(run)

    def check_attachments(self, run: str) -> None:
        wanted = [
            (at[1], at[2].encode("utf-8", "surrogatepass"), at[3], *self.model.attached[at])
            for at in sorted(self.model.attached, key=lambda at: (at[1], at[2].encode("utf-8", "surrogatepass"), at[3]))
            if at[0] == run
        ]
        for answer in self.expect(lambda store: store.attachments(run)):
            assert len(answer) == len(wanted)
            for (found, value), (rev, task, idx, epoch, kept) in zip(answer, wanted, strict=True):
                assert (found.rev, found.task, found.idx, found.epoch) == (rev, task, idx, epoch)
                assert alike(value, kept)

    @rule(document=st.sampled_from(DOCUMENTS), value=values(max_leaves=4), at=sides)
    def put(self, document: tuple[str, str], value: Any, at: int) -> None:
        self.at = at
        category, name = document
        found = self.expect(lambda store: store.put(category, name, value, sync=False))
        key: Key = ("d", category, name)
        rev = self.model.save(key, "document", value, labels=[f"document={category}"])
        self.model.lines[key].floor = rev
        self.headers(key, found)

    @rule(document=st.sampled_from(DOCUMENTS), at=sides, remove=st.booleans())
    def get_or_remove(self, document: tuple[str, str], at: int, remove: bool) -> None:
        self.at = at
        category, name = document
        line = self.model.lines.get(("d", category, name))
        there = line is not None and line.head.op != "delete"
        if not remove:
            for value in self.expect(lambda store: store.get(category, name), None if there else "NotFound"):
                if there and line is not None:
                    assert alike(value, line.head.value)
            return
        assert self.expect(lambda store: store.remove(category, name)) == [there] * len(self.all)
        if there and line is not None:
            knot = Knot("delete", NOWHERE, NOWHERE, NOWHERE, NOWHERE, 0, frozenset(), {})
            line.floor = self.model.put(("d", category, name), knot)

    # -- looking around -------------------------------------------------------------------------------------

    @rule(labels=labels, run=st.none() | runs, newest=st.booleans(), limit=st.sampled_from([1, 2, 7, 50]), at=sides)
    def find(self, labels: list[str], run: str | None, newest: bool, limit: int, at: int) -> None:
        self.at = at
        wanted = self.model.found(labels, run)
        if newest:
            wanted.reverse()
        wanted = wanted[: 12 * limit]

        def everything(store: Store) -> list[tuple[str, int]]:
            found: list[tuple[str, int]] = []
            beyond: int | None = None
            for _ in range(12):
                page = store.find(labels, run=run, newest=newest, limit=limit, beyond=beyond)
                assert len(page.items) <= limit
                cursors = [item.cursor for item in page.items]
                assert cursors == sorted(cursors, reverse=newest)
                found += [(item.header.run, item.header.rev) for item in page.items]
                beyond = page.next
                if beyond is None:
                    break
            return found

        for found in self.expect(everything):
            assert found == wanted

    @rule(run=runs, a=numbers, at=sides)
    def lineage(self, run: str, a: int, at: int) -> None:
        self.at = at
        run = self.some(run)
        rev = self.rev(run, a)
        wanted: list[int] = []
        error = self.missing(lambda: wanted.extend(self.model.lineage(self.model.lives(run), rev)))
        for found in self.expect(lambda store: [header.rev for header in store.lineage(run, rev)], error):
            if error is None:
                assert found == wanted

    @rule(at=sides)
    def reopen(self, at: int) -> None:
        for side in self.all:
            side.reopen(at)

    @rule()
    def verify(self) -> None:
        for report in self.expect(verify):
            assert report.clean, report.damage

    @rule(at=sides)
    def sweep(self, at: int) -> None:
        self.at = at
        self.expect(sweep)
        for answer in self.expect(sweep):
            assert answer.objects == 0
        self.check_all()

    def check_run(self, run: str, *, every: bool = False) -> None:
        """All headers; of many states some, unless `every` is asked for."""
        line = self.model.line(run)
        if line is None or line.head.op == "delete":
            self.expect(lambda store: store.load(run), "NotFound")
            return
        stride = 1 if every else (line.rev - line.floor) // 20 + 1
        for rev in range(line.floor, line.rev + 1):
            for header in self.expect(lambda store, rev=rev: store.header(run, rev)):
                self.header(line, rev, header)
            if (line.knots[rev].pos == rev and rev % stride == line.rev % stride) or rev == line.rev:
                self.check(run, rev)
                wanted = line.sight(rev)
                for view in self.expect(lambda store, rev=rev: store.view(run, rev)):
                    seen = {each for lo, hi in view for each in range(lo, hi + 1)}
                    assert {each for each in seen if each >= line.floor} == wanted
        if line.floor:
            self.expect(lambda store: store.load(run, line.floor - 1), "NotFound")
        wanted = {rev: why for rev, why, _ in line.pins}
        assert self.expect(lambda store: store.pins(run)) == [wanted] * len(self.all)

    def check_all(self, *, every: bool = False) -> None:
        for run in RUNS:
            self.check_run(run, every=every)
            self.check_attachments(run)
        for category in ("config", "session", "c", "none"):
            assert self.expect(lambda store, c=category: store.names(c)) == [self.model.names(category)] * len(self.all)

    @invariant()
    def heads_agree(self) -> None:
        STEPS[NAME] += 1  # once after every rule
        for run in sorted(self.touched):
            line = self.model.line(run)
            if line is None or line.head.op == "delete":
                continue
            for header in self.expect(lambda store, run=run: store.header(run)):
                self.header(line, line.rev, header)
            if line.head.pos != NOWHERE:
                self.check(run, None)
        if self.touched:
            assert self.expect(lambda store: list(store.runs())) == [self.model.runs()] * len(self.all)
        self.touched.clear()

    def teardown(self) -> None:
        try:
            self.check_all(every=True)
            self.verify()
        finally:
            for side in self.all:
                side.close()
            self.stack.close()


QUICK = settings().max_examples <= 100
# What a place costs a step: a quick run takes seconds of each, and a soak goes as far in all of them.
TRIED = settings(
    max_examples=5 if QUICK else 150,
    stateful_step_count=25 if QUICK else settings().stateful_step_count,
)


def machine_of(*kinds: str) -> type[StoreMachine]:
    return type("StoreMachine", (StoreMachine,), {"kinds": tuple(PLACES[kind] for kind in kinds)})


@pytest.mark.parametrize("kind", [kind for kind in PLACES if kind != "memory"])
def test_a_store_here_and_in_memory_and_the_model_agree(kind: str) -> None:
    before = STEPS[NAME]
    run_state_machine_as_test(machine_of("memory", kind), settings=TRIED)
    tell(f"{NAME} {kind}", STEPS[NAME] - before)


def test_all_of_them_at_once() -> None:
    """Two places that are wrong in the same way agree with each other, and so do memory and a wrong model of it."""
    before = STEPS[NAME]
    everywhere = [name for name, kind in PLACES.items() if kind.leases]
    run_state_machine_as_test(machine_of(*everywhere), settings=settings(TRIED, max_examples=4 if QUICK else 40))
    tell(f"{NAME} everywhere", STEPS[NAME] - before)
