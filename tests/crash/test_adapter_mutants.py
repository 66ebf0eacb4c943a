"""The proofs about a third party's storage prove nothing if they miss these: each planted bug must be caught.

Every scenario first passes on the code as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.checkpoint.strangers import DictStorage
from tests.crash import test_adapter_faults as proofs
from tests.crash.store_scenarios import prepare
from tests.crash.test_adapter_faults import NAMES, Kept, Leaseless, one_fault, outcomes

from knotline.backends import Done, Outcome, Save
from knotline.checkpoint import AdapterBackend, adapter, adapter_forms
from knotline.checkpoint.adapter_forms import entry_key, object_document
from knotline.errors import Error
from knotline.testing import FakeClock

BROKEN = (AssertionError, Error, KeyError, pytest.fail.Exception)
Plant = Callable[[pytest.MonkeyPatch], None]


def faults() -> None:
    """A few operations, a fault at every call of each."""
    kept: Kept = {}
    with Leaseless(AdapterBackend(DictStorage(kept))) as store:
        prepare(store, FakeClock())
    for name in ("append new", "prune", "put over"):
        assert name in NAMES
        views = outcomes(name, kept)
        struck = 0
        for at in range(1, 60):
            found = sum(one_fault(name, at, when, kept, views, cold=False) for when in proofs.KINDS)
            struck += found
            if not found:
                break
        assert struck >= 4


def entry_first(patch: pytest.MonkeyPatch) -> None:
    """The entry before its objects: who comes after a crash between them finds a state that cannot be read."""
    real = AdapterBackend._save

    async def save(self: Any, write: Save) -> Outcome:
        outcome = await real(self, replace(write, objects=()))
        if outcome == Done():
            for oid, data in write.objects:
                await self._storage.save("knotline-objects", oid.hex(), object_document(data))
        return outcome

    patch.setattr(AdapterBackend, "_save", save)


def drop_first(patch: pytest.MonkeyPatch) -> None:
    """What is dropped goes before the entry that drops it."""
    real = AdapterBackend._save

    async def save(self: Any, write: Save) -> Outcome:
        for rev in range(write.drop):
            await self._storage.delete("knotline-log", entry_key(write.run, rev))
        return await real(self, write)

    patch.setattr(AdapterBackend, "_save", save)


def early(patch: pytest.MonkeyPatch) -> None:
    """Acknowledged whether or not it was saved."""

    async def certainly(self: Any, category: str, key: str, document: dict[str, Any]) -> None:
        try:
            await self._storage.save(category, key, document)
        except OSError:
            return

    patch.setattr(AdapterBackend, "_certainly", certainly)


def raised_is_not_there(patch: pytest.MonkeyPatch) -> None:
    """A save that raised counts as not done, without looking; and what is there counts as somebody else's."""

    async def certainly(self: Any, category: str, key: str, document: dict[str, Any]) -> None:
        if await self._storage.load(category, key) is not None:
            raise RuntimeError("there is one already")
        await self._storage.save(category, key, document)

    patch.setattr(AdapterBackend, "_certainly", certainly)


def unchecked(patch: pytest.MonkeyPatch) -> None:
    """Documents are believed, whatever their digest says."""
    patch.setattr(adapter_forms, "_unsealed", lambda found: {k: v for k, v in found.items() if k != "check"})


def any_key(patch: pytest.MonkeyPatch) -> None:
    """A document is believed under whatever key it comes."""
    real = adapter.open_entry

    def open_entry(name: str, key: str, found: Any) -> tuple[int, Save]:
        said = adapter_forms._unsealed(found)
        run = adapter_forms._bytes(said["run"])
        number, save = real(name, entry_key(run, said["rev"]), found)
        return number, save

    patch.setattr(adapter, "open_entry", open_entry)


def no_look(patch: pytest.MonkeyPatch) -> None:
    """What `list` does not name is not there."""
    real = AdapterBackend._load

    async def load(self: Any, category: str, keys: list[str]) -> list[tuple[str, object]]:
        named = set(await self._keys(category))
        return [(key, found if key in named else None) for key, found in await real(self, category, keys)]

    async def certainly(self: Any, category: str, key: str, document: dict[str, Any]) -> None:
        await self._storage.save(category, key, document)

    patch.setattr(AdapterBackend, "_load", load)
    patch.setattr(AdapterBackend, "_certainly", certainly)


MUTANTS: list[tuple[Plant, Callable[[], None]]] = [
    (entry_first, faults),
    (drop_first, faults),
    (early, faults),
    (raised_is_not_there, faults),
    (unchecked, proofs.test_another_document_than_was_saved),
    (any_key, proofs.test_documents_that_changed_places),
    (no_look, proofs.test_a_list_that_stops_early),
]


@pytest.mark.parametrize(("plant", "scenario"), MUTANTS, ids=lambda it: it.__name__)
def test_a_planted_bug_is_caught(plant: Plant, scenario: Callable[[], None]) -> None:
    scenario()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(BROKEN):
            scenario()
