"""The files backend after power cuts at every point, in every state that a disk may then be in.

Each scenario is recorded once; each state is made real, opened, held against what had been promised, and gone on with.
The same with mistakes planted in the backend: each must be found.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.powerloss import Recording, Tape
from tests.crash.powerloss_store import Scenario, Tally, cut_everywhere
from tests.crash.store_scenarios import count

from knotline.backends import Attach, Save
from knotline.backends.files import FilesBackend
from knotline.backends.files_disk import Disk
from knotline.backends.files_medium import Medium
from knotline.backends.files_writer import Writer
from knotline.errors import Error
from knotline.store import Store
from knotline.store.names import run_key
from knotline.testing.suite_place import save

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
EACH, MOST = (400, 3_000) if SOAK else (12, 60)
SEEDS = range(4) if SOAK else range(1)
STATES: list[int] = []


class RecordingDisk(Recording, Disk):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape


class UnsyncedDisk(Disk):
    """For looking at what a cut left: nothing that is done there has to outlive the test."""

    def fsync(self, fd: int) -> None:
        """No."""

    def fsync_dir(self, path: object) -> None:
        """No."""

    def open_sync(self, path: object) -> None:
        """No."""


def reopen(path: Path) -> FilesBackend:
    return FilesBackend(path, disk=UnsyncedDisk())


def state(n: int) -> dict[str, Any]:
    return {"n": n, "log": [{"role": "user", "text": f"message {i}"} for i in range(n)], "same": "s" * 50}


def nothing(store: Store) -> None:
    """An empty folder."""


def some(store: Store) -> None:
    store.append("a", state(1))
    store.append("a", state(2), labels=["x"])
    store.put("config", "k", {"v": 1})


def appends(store: Store) -> None:
    for n in range(3, 6):
        store.append("a", state(n), labels=["x", f"n={n}"])
    store.append("b", state(1))


def documents(store: Store) -> None:
    store.put("config", "k", {"v": 2})
    store.put("config", "new", {"v": 3, "big": "w" * 6000})
    store.remove("config", "k")
    store.put("config", "k", {"v": 4}, sync=False)
    store.put("config", "k", {"v": 5})


def prunes(store: Store) -> None:
    for n in range(3, 6):
        store.append("a", state(n))
    store.attach("a", 1, "task", 0, {"result": 1})
    sealed = store.seal("a")
    assert sealed is not None
    store.append("a", state(6))
    store.prune("a", keep_from=sealed.rev)
    assert len(store.backend.entries(run_key("a"), 0, 99)) == 3
    store.append("a", state(7))


def attaches(store: Store) -> None:
    store.attach("a", 1, "task", 0, {"result": 1})
    store.attach("c", 0, "task", 1, {"result": 2})
    store.append("a", state(3))
    store.prune("a", keep_from=2)
    store.attach("a", 3, "task", 0, "later")


def objects(store: Store) -> None:
    store.append("a", {"big": "b" * 5000, "other": "o" * 5000})
    store.append("b", {"big": "b" * 5000})
    store.append("c", {"many": [{"i": i} for i in range(150)]}, sync=False)
    store.append("d", {"many": [{"i": i} for i in range(150)]})


def seals(store: Store) -> None:
    """Past the seal, which recasts the entries before it."""
    for n in range(40):
        store.append("s", {"log": [{"text": f"message {i} of the log " * 20} for i in range(n)]}, sync=n > 28)


def groups(store: Store) -> None:
    """Several runs and several entries of one run in one commit, some not waited for."""
    key = run_key("plain")
    first = [
        Save(run_key(f"g{n}"), 0, b"head %d" % n, b"body", (n,), ((bytes(15) + bytes([n]), b"o"),)) for n in range(3)
    ]
    entries = [save(key, n, body=b"%d" % n, drop=max(0, n - 1)) for n in range(3)]
    store.backend.commit([*first, *entries, Attach(key, 2, b"t", 0, 1, b"d")])
    store.backend.commit([save(key, n) for n in range(3, 6)], sync=False)
    store.backend.commit([save(key, 6, drop=5)])
    store.backend.commit([save(key, 20, drop=20)])


def leases(store: Store) -> None:
    held = store.acquire("a", "me", ttl=60)
    store.append("a", state(9), held=held)
    store.release(held)


def everything(store: Store) -> None:
    for act in (appends, documents, objects, attaches, seals):
        act(store)


SCENARIOS: dict[str, Scenario] = {
    "appends to nothing": (nothing, appends),
    "appends": (some, appends),
    "documents": (some, documents),
    "prunes": (some, prunes),
    "attaches": (some, attaches),
    "objects": (some, objects),
    "seals": (nothing, seals),
    "leases": (some, leases),
    "one after the other": (some, everything),
}
RAW: dict[str, Scenario] = {"groups": (nothing, groups)}


def open_recording(path: Path, tape: Tape) -> FilesBackend:
    return FilesBackend(path, disk=RecordingDisk(tape))


def cut(scenario: Scenario, room: Path, *, seed: int = 1, each: int = EACH, most: int = MOST, **options: Any) -> Tally:
    raw = scenario in RAW.values()
    return cut_everywhere(scenario, open_recording, reopen, room, each=each, most=most, seed=seed, raw=raw, **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [*SCENARIOS, *RAW])
def test_power_cuts(name: str, seed: int, tmp_path: Path) -> None:
    tally = cut({**SCENARIOS, **RAW}[name], tmp_path, seed=seed)
    count(f"power cuts of files, {name}", tally.states)
    STATES.append(tally.states)
    assert tally.states >= (300 if SOAK else 20), tally
    assert tally.newest, tally


def test_there_were_enough_of_them() -> None:
    """Runs after the scenarios; alone, it has nothing to count."""
    wanted = 50_000 if SOAK else 300
    assert not STATES or len(STATES) < len(SEEDS) * len([*SCENARIOS, *RAW]) or sum(STATES) >= wanted, sum(STATES)


# -- planted mistakes ------------------------------------------------------------------------------------------


def _no_file_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecordingDisk, "fsync", lambda self, fd: None)


def _no_folder_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecordingDisk, "fsync_dir", lambda self, path: None)


def _entry_before_objects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writer, "_sync_objects", lambda self, plans: None)


def _in_place(patch: pytest.MonkeyPatch) -> None:
    def create(self: Medium, folder: str, path: str, data: bytes) -> bool:
        fd = self.disk.create(path)
        self.disk.write(fd, data)
        self.disk.fsync(fd)
        self.disk.close(fd)
        return True

    def prepare(self: Medium, folder: str, data: bytes) -> str:
        path = f"{folder}/.tmp-{os.urandom(8).hex()}"
        fd = self.disk.create(path)
        self.disk.close(fd)
        later[path] = data
        return path

    later: dict[str, bytes] = {}
    link = Disk.link

    def filled(self: Any, a: str, b: str) -> None:
        Recording.link(self, a, b)
        if a in later:
            fd = self.open_append(b)
            self.append(fd, later.pop(a))
            self.fsync(fd)
            self.close(fd)

    assert link is not None
    patch.setattr(Medium, "prepare", prepare)
    patch.setattr(Medium, "create", create)
    patch.setattr(RecordingDisk, "link", filled)


def _drops_first(patch: pytest.MonkeyPatch) -> None:
    finish = Writer._finish

    def early(self: Writer, plans: Any, *rest: Any, **options: Any) -> None:
        for plan in plans:
            self._sweep_below(plan.run, plan.page)
        finish(self, plans, *rest, **options)

    patch.setattr(Writer, "_finish", early)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "no fsync": (_no_file_sync, "appends"),
    "no directory fsync": (_no_folder_sync, "appends"),
    "entry before its objects": (_entry_before_objects, "objects"),
    "in place": (_in_place, "appends"),
    "drops before the commit is durable": (_drops_first, "prunes"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, scenario = MUTANTS[name]
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, Error)):
            cut(SCENARIOS[scenario], tmp_path, each=40, most=2000)
    count("planted mistakes found by power cuts of files", 1)


def test_an_early_acknowledgement_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="was acknowledged"):
        cut(SCENARIOS["appends"], tmp_path, each=40, most=2000, early=True)
