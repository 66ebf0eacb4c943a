"""Planted mistakes, each of which a scenario must catch; and the same scenarios pass without them.

A proof that nothing can fail proves nothing. The mutants are the classic ones: acknowledging early, objects after
the entry, a conflict that is taken for a success, a sync that is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.crash.store_scenarios import (
    InMemory,
    acknowledged_survives,
    closing_drains,
    count,
    faults_at_every_call,
    group,
    no_update_is_lost,
)
from tests.kill.program import Early, Late, Wrapped
from tests.kill.test_many_writers import overtake
from tests.kill.test_sigkill import kill_and_look

from knotline.backends import Backend, Conflicted, Done, Failed, Outcome, Save, SqliteBackend, Write
from knotline.errors import NotFound
from knotline.store import Store
from knotline.store.gate import Gate
from knotline.testing import FaultVFS, Plan

_names = (f"mutants-{number}" for number in itertools.count())


class Deaf(Wrapped):
    """A conflict is taken for a success."""

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        outcomes: list[Outcome] = self.inner.commit(writes, sync=sync)
        return [Done() if isinstance(outcome, Conflicted) else outcome for outcome in outcomes]


class Hopeful(Wrapped):
    """A failure is taken for a success."""

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        outcomes: list[Outcome] = self.inner.commit(writes, sync=sync)
        return [Done() if isinstance(outcome, Failed) else outcome for outcome in outcomes]


class Lazy(Wrapped):
    """Never asks for a sync: `synchronous=OFF` by another name."""

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        return self.inner.commit(writes, sync=False)


class Together(Wrapped):
    """One failure fails the whole batch, though some of it is written."""

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        outcomes: list[Outcome] = self.inner.commit(writes, sync=sync)
        bad = next((outcome for outcome in outcomes if isinstance(outcome, Failed)), None)
        return outcomes if bad is None else [bad for _ in outcomes]


class Buffered(Wrapped):
    """Writes when a few have come together, and acknowledges each at once."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.waiting: list[Write] = []

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        self.waiting += writes
        if len(self.waiting) >= 4:
            self.inner.commit(self.waiting, sync=sync)
            self.waiting = []
        return [Done() for _ in writes]


class ForgetsDrop(Wrapped):
    """Drops in a commit of its own, before the entry that says so."""

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for write in writes:
            if isinstance(write, Save) and write.drop:
                faulty: Any = self.inner
                rows = faulty.inner.inner._runs[write.run].rows
                rows[:] = [row for row in rows if row.rev >= write.drop]
            outcomes += self.inner.commit([write], sync=sync)
        return outcomes


class EarlyGate(Gate):
    """Delivers `Done` before the commit."""

    def _write(self) -> None:
        inner = self.store.backend

        class Answers(Wrapped):
            def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
                inner.commit(writes, sync=sync)
                return [Done() for _ in writes]

        answers: Any = Answers(inner)
        self.store.backend = answers
        try:
            super()._write()
        finally:
            self.store.backend = inner


class LossyGate(Gate):
    """Does not wait for what is under way when it is closed."""

    def close(self) -> None:
        self._closed = True


def caught(scenario: Callable[[], object]) -> bool:
    """Did it fail? A scenario that merely runs is a scenario that the mutant got past."""
    try:
        scenario()
    except Exception:  # noqa: BLE001 - a mutant may break anything
        return True
    return False


def in_memory(wrap: Callable[[Backend], Any]) -> Callable[[], InMemory]:
    return lambda: InMemory(wrap)


def faulted(name: str, kind: Any = "before") -> Callable[[Callable[[Backend], Any]], object]:
    return lambda wrap: faults_at_every_call(name, kind, warm=False, make=in_memory(wrap))


def surviving(wrap: Callable[[Backend], Any]) -> object:
    place = InMemory(wrap)
    return acknowledged_survives(place.open, place.survivor)


def racing(wrap: Callable[[Backend], Any]) -> object:
    place = InMemory(wrap)
    return no_update_is_lost(place.open)


def grouped(wrap: Callable[[Backend], Any], gate_of: Callable[[Store], Gate] = Gate) -> object:
    def make() -> tuple[Backend, Callable[[], Backend], Callable[[Plan], None], Callable[[], int]]:
        place = InMemory()
        return wrap(place.open()), place.survivor, place.arm, lambda: place.faults.injected

    return group(make, gate_of=gate_of)


def same(backend: Backend) -> Backend:
    return backend


SCENARIOS: dict[str, Callable[[Callable[[Backend], Any]], object]] = {
    "faults: seal": faulted("append and seal"),
    "faults: put": faulted("put"),
    "faults: prune": faulted("prune"),
    "survives": surviving,
    "races": racing,
    "group": grouped,
}

MUTANTS: dict[str, tuple[Callable[[Backend], Any], list[str]]] = {
    "early acknowledgement": (Early, ["survives"]),
    "buffered acknowledgement": (Buffered, ["survives"]),
    "object after entry": (Late, ["faults: seal", "faults: put"]),
    "ignored conflict": (Deaf, ["races", "group"]),
    "ignored failure": (Hopeful, ["faults: seal", "faults: put", "group"]),
    "one outcome for all": (Together, ["group"]),
    "drop before entry": (ForgetsDrop, ["faults: prune"]),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_a_mutant_it_passes(scenario: str) -> None:
    SCENARIOS[scenario](same)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(mutant: str) -> None:
    wrap, scenarios = MUTANTS[mutant]
    for scenario in scenarios:
        assert caught(lambda scenario=scenario: SCENARIOS[scenario](wrap)), f"{scenario} did not catch it"
    count("mutants caught", 1)


def test_mutants_of_the_gate() -> None:
    assert caught(lambda: grouped(same, EarlyGate))

    def closing(gate_of: Callable[[Store], Gate]) -> None:
        place = InMemory(strict=False)

        class Slow(Wrapped):
            def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
                import time

                time.sleep(0.05)
                return self.inner.commit(writes, sync=sync)

        closing_drains(lambda: Slow(place.open()), place.survivor, gate_of=gate_of)  # pyright: ignore[reportArgumentType]

    closing(Gate)
    assert caught(lambda: closing(LossyGate))
    count("mutants caught", 2)


def test_a_missing_sync_is_caught(tmp_path: Path) -> None:
    """By a power loss; a kill cannot see it."""
    for wrap in (same, Lazy):
        vfs = FaultVFS(next(_names))
        opened: list[Any] = []
        number = itertools.count()
        name = wrap.__name__

        def open_() -> Any:
            opened.append(wrap(SqliteBackend(tmp_path / f"{name}.db", vfs=vfs.name)))  # noqa: B023
            return opened[-1]  # noqa: B023

        def found() -> Backend:
            folder = tmp_path / f"{name}-lost-{next(number)}"  # noqa: B023
            folder.mkdir()
            vfs.after_power_loss(folder)  # noqa: B023
            opened.append(SqliteBackend(folder / f"{name}.db"))  # noqa: B023
            return opened[-1]  # noqa: B023

        try:
            if wrap is same:
                acknowledged_survives(open_, found, saves=12)
            else:
                assert caught(lambda: acknowledged_survives(open_, found, saves=12))
                count("mutants caught", 1)
        finally:
            for backend in opened:
                backend.close()
            vfs.unregister()


@pytest.mark.kill
@pytest.mark.parametrize("mutant", ["early"])
def test_real_kills_catch_an_early_acknowledgement(tmp_path: Path, mutant: str) -> None:
    kill_and_look(tmp_path / "good.db", "sync", {"runs": 1}, kills=2, seed=5)
    with pytest.raises((AssertionError, NotFound)):
        kill_and_look(tmp_path / "bad.db", "sync", {"runs": 1, "mutant": mutant}, kills=10, seed=5)
    count("mutants caught", 1)


@pytest.mark.kill
def test_a_missing_fence_is_caught(tmp_path: Path) -> None:
    """An owner that writes without its epoch is not stopped by a take-over."""
    with pytest.raises(AssertionError):
        overtake(tmp_path / "store.db", 2, fenced=False)
    count("mutants caught", 1)


def test_a_scenario_without_faults_fails() -> None:
    """The scenarios count: a plan that never strikes is an error of the test, not a success."""

    class Blind(InMemory):
        def arm(self, plan: Plan) -> None:
            """Nothing is armed."""

    injected, _ = faults_at_every_call("append", "before", warm=False, make=Blind)
    assert injected == 0
    place = InMemory()
    with pytest.raises(AssertionError):
        group(lambda: (place.open(), place.survivor, lambda plan: None, lambda: 0))
