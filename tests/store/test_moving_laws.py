"""Whatever was done to a store, and however often it was moved in between: what arrives is equal, and verifies."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.crash.store_scenarios import count
from tests.store.houses import KEY, Contents, clean, contents

from knotline.backends import Backend, EncryptedBackend, MemoryBackend
from knotline.errors import Conflict, NotFound, NothingToUndo, Unavailable
from knotline.store import Store, copy_store, export_store, import_file, sweep
from knotline.testing import FaultyBackend, Plan, RawOracle, StrictBackend

RUNS = ["a", "b", "c", "\udc80é"]
runs = st.sampled_from(RUNS)
revs = st.integers(0, 90)
steps = st.one_of(
    st.tuples(st.just("append"), runs, st.integers(0, 3)),
    st.tuples(st.just("burst"), runs, st.integers(30, 70)),
    st.tuples(st.just("fork"), runs, runs, revs),
    st.tuples(st.just("rollback"), runs, revs),
    st.tuples(st.sampled_from(["undo", "redo", "seal", "delete"]), runs),
    st.tuples(st.just("pin"), runs, revs, st.booleans()),
    st.tuples(st.just("prune"), runs, revs),
    st.tuples(st.just("attach"), runs, revs, st.integers(-1, 1)),
    st.tuples(st.just("put"), st.sampled_from(["x", "y"]), st.integers(0, 9)),
    st.tuples(st.just("remove"), st.sampled_from(["x", "y"])),
    st.tuples(st.just("sweep")),
    st.tuples(st.just("move"), st.sampled_from(["copy", "file", "sealed file"]), st.integers(0, 60)),
)


class Model:
    """A source that is worked on, and a target that follows it."""

    def __init__(self, folder: Path, source: Backend, target: Backend) -> None:
        ticks = itertools.count(1)
        self.source = Store(source, clock=ticks.__next__)
        self.target = Store(target)
        self.folder = folder
        self.states: dict[str, list[Any]] = {}
        self.moves = self.faults = 0

    def step(self, step: tuple[Any, ...]) -> None:
        verb, *rest = step
        with suppress(NotFound, Conflict, NothingToUndo):
            getattr(self, verb)(*rest)

    def append(self, run: str, more: int) -> None:
        log = self.states.setdefault(run, [])
        log += [{"text": random.Random(len(log) + i).randbytes(150).hex()} for i in range(more)]
        state = {"log": log, "n": more, "large": "x" * 5000 + str(more)}
        self.source.append(run, state, labels=[f"more={more}"], note={"n": len(log)})

    def burst(self, run: str, many: int) -> None:
        for n in range(many):
            self.append(run, 2 + n % 2)

    def fork(self, run: str, new: str, rev: int) -> None:
        self.source.fork(run, new, rev=rev)

    def rollback(self, run: str, rev: int) -> None:
        self.source.rollback(run, rev)

    def undo(self, run: str) -> None:
        self.source.undo(run)

    def redo(self, run: str) -> None:
        self.source.redo(run)

    def seal(self, run: str) -> None:
        self.source.seal(run)

    def delete(self, run: str) -> None:
        self.source.delete(run)

    def pin(self, run: str, rev: int, keep: bool) -> None:
        self.source.pin(run, rev, keep=keep, why=f"{rev}")

    def prune(self, run: str, rev: int) -> None:
        self.source.prune(run, keep_from=rev)

    def attach(self, run: str, rev: int, idx: int) -> None:
        self.source.attach(run, rev, "task", idx, {"rev": rev})

    def put(self, name: str, value: int) -> None:
        self.source.put("config", name, {"v": value, "large": "y" * 3000 * value})

    def remove(self, name: str) -> None:
        self.source.remove("config", name)

    def sweep(self) -> None:
        sweep(self.source)

    def move(self, way: str, fail: int) -> None:
        """Broken off at some call, or not; always begun again."""
        before = contents(self.source.backend)
        faulty = FaultyBackend(self.target.backend, Plan(at=fail, kind="partial" if fail % 2 else "after"))
        with suppress(Unavailable):
            self._moved(way, Store(faulty))
        self.faults += faulty.injected
        self._moved(way, self.target)
        self.moves += 1
        found = contents(self.target.backend)
        self.same(before, found)
        assert contents(self.source.backend) == before, "the source was changed"

    def same(self, before: Contents, found: Contents) -> None:
        attached = {run: beside for run, beside in before.attached.items() if beside}
        assert {run: beside for run, beside in found.attached.items() if beside} == attached
        assert found == before
        clean(self.target.backend)

    def _moved(self, way: str, target: Store) -> None:
        if way == "copy":
            copy_store(self.source, target, follow=True)
            return
        key = KEY if way == "sealed file" else None
        export_store(self.source, self.folder / "all.knot", key=key, overwrite=True)
        import_file(target, self.folder / "all.knot", key=key, follow=True)


PAIRS = {
    "plain": lambda: (MemoryBackend(), StrictBackend(RawOracle())),
    "sealed source": lambda: (EncryptedBackend(MemoryBackend(), KEY), StrictBackend(RawOracle())),
    "sealed target": lambda: (MemoryBackend(), EncryptedBackend(MemoryBackend(), KEY)),
}
moved: dict[str, int] = {"moves": 0, "faults": 0}


@settings(max_examples=settings().max_examples // 2 if settings().max_examples < 100 else settings().max_examples)
@given(pair=st.sampled_from(sorted(PAIRS)), steps=st.lists(steps, min_size=3, max_size=25))
def test_what_arrives_is_what_was_there(pair: str, steps: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as folder:
        model = Model(Path(folder), *PAIRS[pair]())
        for step in steps:
            model.step(step)
        model.move("copy", 3)
        for way in ("copy", "file"):
            # And once into an empty place: no history of moves in it.
            model.target = Store(StrictBackend(RawOracle()))
            model.move(way, 7)
        moved["moves"] += model.moves
        moved["faults"] += model.faults


def test_something_was_moved() -> None:
    """Runs after the law: it moved, and it was broken off."""
    if not moved["moves"]:
        test_what_arrives_is_what_was_there()
    count("law moves", moved["moves"])
    count("law faults", moved["faults"])
    assert moved["moves"] >= 30
    assert moved["faults"] >= 20
