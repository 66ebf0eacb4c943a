"""Every file operation of a commit fails once, in every way that a disk can fail; what was answered stays true."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from knotline.backends import SqliteBackend
from knotline.backends.contract import Attach, Conflicted, Done, Failed, Outcome, Save
from knotline.errors import Unavailable
from knotline.testing.suite_place import append, object_id, save
from knotline.testing.vfs import FaultVFS, Kind

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
KINDS: list[Kind] = ["eio", "full", "short", "sync"]
_names = (f"faults-{number}" for number in itertools.count())


@pytest.fixture
def vfs() -> Iterator[FaultVFS]:
    vfs = FaultVFS(next(_names))
    yield vfs
    vfs.disarm()
    vfs.unregister()


def filled(place: Path, saves: int) -> Path:
    """A store whose next commit is the `saves + 1`-th, closed: every case starts from a copy of it."""
    b = SqliteBackend(place / "model.db")
    for rev in range(saves):
        append(b, save("r", rev, body=b"old" * 300, tokens=[1, rev % 3]))
    b.close()
    return place / "model.db"


def whole(b: SqliteBackend, one: Save) -> bool:
    """True if all of a save is there, False if nothing of it is; anything else is half a save."""
    found = [e for e in b.entries(one.run, one.rev, one.rev) if (e.head, e.body) == (one.head, one.body)]
    parts = {
        bool(found),
        [e.head for e in b.find(one.tokens, run=one.run, limit=1)] == [one.head],
        len(b.objects([oid for oid, _ in one.objects])) == len(one.objects),
        bool(b.objects([oid for oid, _ in one.objects])),
        not b.entries(one.run, 0, one.drop - 1),
    }
    assert len(parts) == 1, f"half of a save is there: {parts}"
    return parts.pop()


def big(run: str, rev: int, number: int) -> Save:
    """Every part that a save can have, over several pages."""
    body = os.urandom(6000)
    return save(run, rev, body=body, tokens=[7, 8], objects=[(object_id(number), body)], drop=min(rev, 1), recast=[])


@pytest.mark.parametrize("forever", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("kind", KINDS)
# Before 64 entries nothing is indexed, with the 64th everything is; long logs are copied home on the way.
@pytest.mark.parametrize("saves", [3, 63, 150] if SOAK else [3, 63])
def test_one_save(tmp_path: Path, vfs: FaultVFS, kind: Kind, saves: int, forever: bool) -> None:
    model = filled(tmp_path, saves)
    injected = failed = 0
    for at in itertools.count(1):
        path = tmp_path / f"{at}" / "store.db"
        path.parent.mkdir()
        shutil.copy(model, path)
        b = SqliteBackend(path, vfs=vfs.name)
        one = big("r", saves, 1)
        vfs.arm(kind, at=at, forever=forever)
        (outcome,) = b.commit([one])
        struck = vfs.injected
        vfs.disarm()
        injected += struck
        failed += isinstance(outcome, Failed)
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, Unavailable)
            assert outcome.error.__cause__ is not None
        # The live backend says what is true, and goes on. Only while the medium stays broken it may have to say
        # `Failed` of what is there: it cannot be synced any more, so `Done` would promise too much.
        there = whole(b, one)
        assert there == isinstance(outcome, Done) or (there and forever and struck > 1)
        # As after a crash of this process: another one opens what is on disk.
        shutil.copytree(path.parent, tmp_path / f"{at}-crashed")
        again = SqliteBackend(tmp_path / f"{at}-crashed" / "store.db")
        if isinstance(outcome, Done):
            assert whole(again, one)
        else:
            whole(again, one)
        assert len(again.entries(b"r", 1, saves - 1)) == saves - 1
        assert again.commit([one]) == [Done()]
        assert whole(again, one)
        again.close()
        # The same save again converges, and the store goes on after it.
        assert b.commit([one]) == [Done()]
        append(b, big("r", saves + 1, 2))
        b.close()
        shutil.rmtree(path.parent)
        shutil.rmtree(tmp_path / f"{at}-crashed")
        if not struck:
            break
    assert injected >= 1
    assert failed >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch(tmp_path: Path, vfs: FaultVFS, kind: Kind) -> None:
    """One fault, many writes: each outcome is true by itself, and conflicts stay conflicts."""
    model = filled(tmp_path, 62)
    injected = 0
    for at in itertools.count(1):
        path = tmp_path / f"{at}.db"
        shutil.copy(model, path)
        b = SqliteBackend(path, vfs=vfs.name)
        batch = [
            save("r", 61),
            big("new", 0, 1),
            big("r", 62, 2),
            Attach(b"r", 62, b"task", 0, 1, b"a" * 5000),
            big("other", 0, 3),
        ]
        vfs.arm(kind, at=at)
        outcomes = b.commit(batch)
        struck = vfs.injected
        vfs.disarm()
        injected += struck
        assert len(outcomes) == len(batch)
        assert isinstance(outcomes[0], Conflicted | Failed)
        for one, outcome in zip(batch[1:], outcomes[1:], strict=True):
            if isinstance(one, Save):
                assert whole(b, one) == isinstance(outcome, Done)
            else:
                assert bool(b.attachments(b"r")) == isinstance(outcome, Done)
        # One fault, after which everything is tried alone: nearly all of it must have gone well.
        assert sum(isinstance(outcome, Failed) for outcome in outcomes) <= 1
        assert b.commit(batch) == [Conflicted(), Done(), Done(), Done(), Done()]
        b.close()
        if not struck:
            break
    assert injected >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_unsynced_saves_survive_a_fault(tmp_path: Path, vfs: FaultVFS, kind: Kind) -> None:
    """What was acknowledged without a sync is still there after a fault, and closing makes it durable or says so."""
    injected = 0
    for at in itertools.count(1):
        path = tmp_path / f"{at}.db"
        b = SqliteBackend(path, vfs=vfs.name)
        acknowledged: list[Save] = []
        vfs.arm(kind, at=at)
        for rev in range(40):
            one = save("r", rev, body=os.urandom(3000))
            while (outcome := b.commit([one], sync=False)) != [Done()]:
                assert isinstance(outcome[0], Failed)
            acknowledged.append(one)
        try:
            b.close()
        except Unavailable:
            assert vfs.injected
        struck = vfs.injected
        vfs.disarm()
        injected += struck
        again = SqliteBackend(path)
        assert [e.head for e in again.entries(b"r", 0, 99)] == [one.head for one in acknowledged]
        again.close()
        if not struck or (at > 60 and not SOAK):
            break
    assert injected >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_other_calls(tmp_path: Path, vfs: FaultVFS, kind: Kind) -> None:
    """Leases, discards and compacting raise what the contract knows, and work afterwards."""
    calls: dict[str, Callable[[SqliteBackend], object]] = {
        "acquire": lambda b: b.acquire(b"r", "me", 60),
        "release": lambda b: b.release(b"r", "me", 1),
        "discard": lambda b: b.discard([object_id(1)], mark=b.mark()),
        "compact": lambda b: b.compact(),
        "head": lambda b: b.head(b"r"),
    }
    model = filled(tmp_path, 70)
    injected = raised = 0
    for name, call in calls.items():
        for at in range(1, 400):
            path = tmp_path / f"{name}-{at}.db"
            shutil.copy(model, path)
            b = SqliteBackend(path, vfs=vfs.name)
            vfs.arm(kind, at=at)
            try:
                call(b)
            except Unavailable:
                raised += 1
            struck = vfs.injected
            vfs.disarm()
            injected += struck
            call(b)
            assert len(b.entries(b"r", 0, 99)) == 70
            append(b, save("r", 70))
            b.close()
            path.unlink()
            if not struck:
                break
            if not SOAK and at > 25 and name == "compact":
                break
    assert injected >= 1
    assert raised >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_opening(tmp_path: Path, vfs: FaultVFS, kind: Kind) -> None:
    """A store that could not be created is created by the next who comes."""
    injected = 0
    for at in itertools.count(1):
        path = tmp_path / f"{at}.db"
        vfs.arm(kind, at=at)
        with contextlib.suppress(Unavailable):
            SqliteBackend(path, vfs=vfs.name, timeout=0.2).close()
        struck = vfs.injected
        vfs.disarm()
        injected += struck
        b = SqliteBackend(path)
        append(b, save("r", 0))
        b.close()
        if not struck:
            break
    assert injected >= 1


def lost(vfs: FaultVFS, folder: Path) -> SqliteBackend:
    """The store as it is after a power loss now."""
    folder.mkdir()
    vfs.after_power_loss(folder)
    return SqliteBackend(folder / "store.db")


def test_power_loss_takes_nothing_that_was_acknowledged(tmp_path: Path, vfs: FaultVFS) -> None:
    """At every commit of a mixed sequence: what is synced, and all that came before it, is there."""
    b = SqliteBackend(tmp_path / "store.db", vfs=vfs.name)
    steps = 150 if SOAK else 60
    durable = -1
    for step in range(steps):
        one = big("r", step, step) if step % 4 else save("r", step, body=os.urandom(9000))
        sync = step % 5 == 0
        assert b.commit([one], sync=sync) == [Done()]
        durable = step if sync else durable
        again = lost(vfs, tmp_path / f"{step}")
        head = again.head(b"r")
        assert head is not None
        assert head.rev >= durable
        if head.rev == step and step % 4:
            assert whole(again, one)
        assert again.commit([save("r", head.rev + 1)]) == [Done()]
        again.close()
        shutil.rmtree(tmp_path / f"{step}")
    assert durable < steps - 1
    b.close()
    again = lost(vfs, tmp_path / "closed")
    assert len(again.entries(b"r", 1, steps)) == steps - 1
    again.close()


def test_an_acknowledgement_of_what_is_there_is_durable_too(tmp_path: Path, vfs: FaultVFS) -> None:
    """Written without a sync, then sent again with one: it exists already, and yet it must be synced now."""
    b = SqliteBackend(tmp_path / "store.db", vfs=vfs.name)
    append(b, save("r", 0))
    one, attach = save("r", 1), Attach(b"r", 0, b"t", 0, 1, b"d")
    assert b.commit([one, attach], sync=False) == [Done(), Done()]
    again = lost(vfs, tmp_path / "before")
    assert len(again.entries(b"r", 0, 9)) == 1
    again.close()
    syncs = vfs.counts["xSync"]
    assert b.commit([attach, one], sync=True) == [Done(), Done()]
    assert vfs.counts["xSync"] > syncs
    again = lost(vfs, tmp_path / "after")
    assert len(again.entries(b"r", 0, 9)) == 2
    assert len(again.attachments(b"r")) == 1
    again.close()
    b.close()


def test_a_discard_that_gave_way_hides_no_missing_sync(tmp_path: Path, vfs: FaultVFS) -> None:
    """A transaction that wrote nothing synced nothing; closing must know that."""
    b = SqliteBackend(tmp_path / "store.db", vfs=vfs.name)
    append(b, save("r", 0))
    mark = b.mark()
    keep = SqliteBackend(tmp_path / "store.db", vfs=vfs.name)
    keep.head(b"r")
    assert b.commit([save("r", 1)], sync=False) == [Done()]
    assert not b.discard([object_id(1)], mark=mark)
    # Another one has it open, so that closing does not copy the log home by itself.
    b.close()
    again = lost(vfs, tmp_path / "after")
    assert len(again.entries(b"r", 0, 9)) == 2
    again.close()
    keep.close()


def test_a_handle_with_a_failed_sync_is_not_used_again(tmp_path: Path, vfs: FaultVFS) -> None:
    b = SqliteBackend(tmp_path / "store.db", vfs=vfs.name)
    append(b, save("r", 0))
    opened = vfs.counts["xOpen"]
    vfs.arm("sync", at=1)
    (outcome,) = b.commit([save("r", 1)])
    assert isinstance(outcome, Failed)
    assert vfs.injected == 1
    assert b.commit([save("r", 1)]) == [Done()]
    assert vfs.counts["xOpen"] > opened
    b.close()


def test_a_full_disk_fails_the_large_and_keeps_the_small(tmp_path: Path) -> None:
    """A real limit, not a shim: outcomes of one batch are independent."""
    b = SqliteBackend(tmp_path / "store.db")
    append(b, save("r", 0))
    raw = b._writer._connection
    assert raw is not None
    raw.pragma("max_page_count", raw.pragma("page_count") + 8)
    batch = [save("a", 0), save("huge", 0, body=os.urandom(200_000)), save("b", 0)]
    outcomes: list[Outcome] = b.commit(batch)
    assert outcomes[0] == outcomes[2] == Done()
    assert isinstance(outcomes[1], Failed)
    assert [run for run, _ in b.runs()] == [b"a", b"b", b"r"]
    raw.pragma("max_page_count", 2**30)
    assert b.commit(batch) == [Done(), Done(), Done()]
    b.close()
