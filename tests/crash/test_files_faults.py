"""Every call on the file system fails once, in every way; afterwards the store of files is as before or as after.

Nothing that was acknowledged is lost, `verify` is clean, doing it again converges, and writing goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.crash.faulty_disk import FaultyDisk, Kind
from tests.crash.store_scenarios import OPERATIONS, View, check_after, clean, count, goes_on, look, prepare

from knotline.backends import Done, Failed
from knotline.backends.files import FilesBackend
from knotline.backends.files_medium import Medium
from knotline.backends.files_writer import Writer
from knotline.errors import Error, Unavailable
from knotline.store import Store
from knotline.testing import FakeClock
from knotline.testing.suite_place import append, object_id, save

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
KINDS: list[Kind] = ["eio", "full", "short", "sync", "after"]
Model = tuple[Path, float]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A prepared store, closed, and the time at which it was left."""
    folder = tmp_path_factory.mktemp("model") / "store"
    clock = FakeClock()
    store = Store(FilesBackend(folder, clock=clock))
    prepare(store, clock)
    store.close()
    return folder, clock()


def _copy(model: Model, folder: Path, disk: FaultyDisk | None = None) -> FilesBackend:
    shutil.copytree(model[0], folder)
    return FilesBackend(folder, clock=FakeClock(model[1]), disk=disk)


def _views(model: Model, folder: Path, name: str) -> tuple[View, View]:
    backend = _copy(model, folder)
    old = look(backend)
    OPERATIONS[name].act(Store(backend))
    new = look(backend, also=old.states)
    backend.close()
    return old, new


MOST = "append and seal"
CASES = [(name, kind) for name in OPERATIONS for kind in KINDS if SOAK or kind == "eio" or name in (MOST, "put over")]


def fault_everywhere(model: Model, room: Path, name: str, kind: Kind, *, step: int) -> tuple[int, int]:
    """Faults, and how many of them were noticed by the caller."""
    operation = OPERATIONS[name]
    old, new = _views(model, room / "views", name)
    injected = raised = 0
    for at in itertools.count(1, step):
        disk = FaultyDisk()
        live = _copy(model, room / f"{at}", disk)
        store = Store(live)
        disk.arm(kind, at=at)
        acknowledged = True
        try:
            operation.act(store)
        except Error:
            acknowledged = False
        struck = disk.injected
        disk.disarm()
        injected += struck
        raised += not acknowledged
        said = f"{name} {kind} {at} {disk.struck}"
        assert acknowledged or struck, f"{said}: it failed without a fault"
        # What a crash now would leave, opened by another process.
        shutil.copytree(room / f"{at}", room / "crashed")
        other = FilesBackend(room / "crashed", clock=FakeClock(model[1]))
        check_after(said, other, old, new, acknowledged=acknowledged)
        if SOAK or at % 4 == 1:
            goes_on(other, at)
            clean(other)
        other.close()
        if not acknowledged:
            now = check_after(f"{said}, live", live, old, new, acknowledged=False)
            if operation.again is None:
                operation.act(store)
            else:
                operation.again(store, now)
        check_after(f"{said}, again", live, old, new, acknowledged=True)
        operation.after(store)
        goes_on(live, at)
        live.close()
        shutil.rmtree(room / f"{at}")
        shutil.rmtree(room / "crashed")
        if not struck:
            break
    return injected, raised


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_fault_at_every_call(tmp_path: Path, model: Model, name: str, kind: Kind) -> None:
    step = 1 if SOAK or (name, kind) == ("put over", "sync") else 7 if name in (MOST, "put over") else 13
    injected, _ = fault_everywhere(model, tmp_path, name, kind, step=step)
    count(f"files faults {kind}", injected)
    assert injected >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_one_save(tmp_path: Path, kind: Kind) -> None:
    """Every call of one commit; and the answer is true at once, not only after a crash."""
    injected = failed = 0
    for at in itertools.count(1):
        disk = FaultyDisk()
        b = FilesBackend(tmp_path / f"{at}", disk=disk)
        append(b, *(save("r", rev, body=b"old" * 300, tokens=[1]) for rev in range(3)))
        one = save("r", 3, body=b"new", tokens=[7], objects=[(object_id(1), b"o" * 9000)], drop=1)
        disk.arm(kind, at=at)
        (outcome,) = b.commit([one])
        struck = disk.injected
        injected += struck
        failed += isinstance(outcome, Failed)
        assert not disk.lost or not isinstance(outcome, Done), f"a failed sync was acknowledged: {disk.lost}"
        if kind == "sync":
            # Of the same disk, which takes what it lost for clean.
            assert b.commit([one]) == [Done()]
            assert not disk.lost
        disk.disarm()
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, Unavailable)
            assert outcome.error.__cause__ is not None
        there = [e.rev for e in b.entries(b"r", 0, 9)] == [1, 2, 3]
        assert there or not isinstance(outcome, Done), f"{kind} {at} {disk.struck}"
        assert b.commit([one]) == [Done()], f"{kind} {at} {disk.struck}"
        assert [(e.rev, e.head) for e in b.find([7])] == [(3, one.head)]
        append(b, save("r", 4))
        b.close()
        again = FilesBackend(tmp_path / f"{at}")
        assert [e.rev for e in again.entries(b"r", 0, 9)] == [1, 2, 3, 4]
        assert again.objects([object_id(1)]) == {object_id(1): b"o" * 9000}
        again.close()
        if not struck:
            break
    count(f"files faults {kind}", injected)
    assert injected >= 1
    assert failed >= 1


# -- planted mistakes ------------------------------------------------------------------------------------------


def _deaf_to_syncs(patch: pytest.MonkeyPatch) -> None:
    """A failed sync of a folder is no reason to answer anything else."""

    def sync(self: Medium, folders: Iterable[str]) -> set[str]:
        for folder in folders:
            with contextlib.suppress(OSError):
                self.disk.fsync_dir(folder)
        return set()

    patch.setattr(Medium, "sync", sync)


def _syncs_again(patch: pytest.MonkeyPatch) -> None:
    """Asks the same folder once more, which is then told that all is well."""

    def sync(self: Medium, folders: Iterable[str]) -> set[str]:
        for folder in folders:
            try:
                self.disk.fsync_dir(folder)
            except OSError:
                self.disk.fsync_dir(folder)
        return set()

    patch.setattr(Medium, "sync", sync)


def _in_place(patch: pytest.MonkeyPatch) -> None:
    def prepare(self: Medium, folder: str, data: bytes) -> str:
        path = f"{folder}/.tmp-{os.urandom(8).hex()}"
        fd = self.disk.create(path)
        try:
            self.disk.write(fd, data)
        except OSError:
            return path
        finally:
            self.disk.close(fd)
        return path

    patch.setattr(Medium, "prepare", prepare)


def _hopeful(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writer, "_failed", lambda self, error: Done())


@pytest.mark.parametrize(("plant", "kind"), [(_in_place, "short"), (_hopeful, "eio")])
def test_a_planted_mistake_is_found(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch, plant: object, kind: Kind
) -> None:
    with monkeypatch.context() as patch:
        assert callable(plant)
        plant(patch)
        with pytest.raises((AssertionError, Error)):
            fault_everywhere(model, tmp_path, "put over", kind, step=1)


@pytest.mark.parametrize("plant", [_deaf_to_syncs, _syncs_again])
def test_a_sync_that_failed_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: object) -> None:
    with monkeypatch.context() as patch:
        assert callable(plant)
        plant(patch)
        with pytest.raises(AssertionError):
            test_one_save(tmp_path / "planted", "sync")
