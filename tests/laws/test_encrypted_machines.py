"""The same laws over encrypted stores: whatever rests below, the machines notice nothing of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from tests.laws.count import STEPS, tell
from tests.laws.edits import fresh
from tests.laws.test_change_machine import Change, Changes
from tests.laws.test_store_machine import Side, StoreMachine

from knotline.backends import Backend, EncryptedBackend, MemoryBackend, SqliteBackend
from knotline.store.log import Store
from knotline.testing import FakeClock, StrictBackend

KEY = bytes(range(32))
NAME = "encrypted-machines"

INNERS: dict[str, Callable[[Path, FakeClock], Backend]] = {
    "memory": lambda _, clock: MemoryBackend(clock=clock),
    "sqlite": lambda folder, clock: SqliteBackend(folder / "encrypted.db", clock=clock),
}
"""A new backend is one more line."""


@pytest.fixture(scope="module", autouse=True)
def _count() -> Iterator[None]:
    before = sum(STEPS.values())
    yield
    tell(NAME, sum(STEPS.values()) - before)


def side(inner: Callable[[Path, FakeClock], Backend]) -> type[Side]:
    """Two handles on one medium, each with an encrypted backend of its own: names are remembered apart."""

    class Encrypted(Side):
        def __init__(self, machine: StoreMachine) -> None:
            super().__init__(machine)
            self.medium = inner(Path(machine.folder.name), machine.clock)
            self.stores = [self.handle(self.backend()) for _ in range(2)]

        def backend(self) -> StrictBackend:
            return StrictBackend(EncryptedBackend(self.medium, KEY))

        def reopen(self, which: int) -> None:
            self.stores[which] = self.handle(self.backend())

    return Encrypted


class EncryptedStoreMachine(StoreMachine):
    sides_of = tuple(map(side, INNERS.values()))


class EncryptedChanges(Changes):
    @initialize(a=st.integers(0, 1000), name=st.sampled_from(sorted(INNERS)))
    def begin_encrypted(self, a: int, name: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="laws-")
        self.change = Change(fresh(a))
        inner = INNERS[name](Path(self.folder.name), FakeClock())
        self.change.store = Store(EncryptedBackend(inner, KEY))
        self.change.save()

    begin = None  # pyright: ignore[reportAssignmentType]

    def teardown(self) -> None:
        super().teardown()
        self.change.store.close()
        self.folder.cleanup()


_QUICK = settings().max_examples <= 100
TestEncryptedStore = EncryptedStoreMachine.TestCase
TestEncryptedStore.settings = settings(
    max_examples=10 if _QUICK else 1_500,
    stateful_step_count=30 if _QUICK else settings().stateful_step_count,
)
TestEncryptedChanges = EncryptedChanges.TestCase
TestEncryptedChanges.settings = settings(
    max_examples=12 if _QUICK else 1_000,
    stateful_step_count=25 if _QUICK else settings().stateful_step_count,
)
