"""SQLite keeps the contract, opens nothing that is not its own, and does lazily only what nobody can see."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from knotline.backends import SqliteBackend
from knotline.backends.contract import Backend, Conflicted, Done, Failed
from knotline.backends.sqlite_file import APPLICATION_ID, FORMAT
from knotline.errors import ContractBroken, Damaged, Unavailable, UnknownFormat, Unsupported
from knotline.testing import BackendSuite, StrictBackend
from knotline.testing.suite_place import append, done, object_id, save


class TestSqlite(BackendSuite):
    persistent = True

    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        return SqliteBackend(place / "store.db", clock=clock)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- the file ----------------------------------------------------------------------------------------------


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    before = mode(tmp_path)
    old = os.umask(0)
    try:
        b = SqliteBackend(tmp_path / "a" / "b" / "store.db")
        append(b, save("r", 0))
    finally:
        os.umask(old)
    assert mode(tmp_path / "a" / "b" / "store.db") == 0o600
    assert mode(tmp_path / "a" / "b" / "store.db-wal") == 0o600
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    assert mode(tmp_path) == before
    b.close()
    assert os.listdir(tmp_path / "a" / "b") == ["store.db"]


def test_the_file_is_marked_and_sound(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    b = SqliteBackend(path)
    append(b, *(save("r", rev, tokens=[rev]) for rev in range(100)))
    b.close()
    raw = apsw.Connection(str(path))
    assert raw.pragma("application_id") == APPLICATION_ID
    assert raw.pragma("user_version") == FORMAT
    assert raw.pragma("page_size") == 4096
    assert raw.pragma("journal_mode") == "wal"
    assert raw.pragma("integrity_check") == "ok"
    raw.close()


def test_the_settings_that_keep_data_safe(tmp_path: Path) -> None:
    b = SqliteBackend(tmp_path / "store.db")
    raw = b._writer._connection
    assert raw is not None
    settings = {"foreign_keys": 1, "trusted_schema": 0, "cell_size_check": 1, "mmap_size": 0, "synchronous": 2}
    assert {name: raw.pragma(name) for name in settings} == settings
    assert raw.pragma("wal_autocheckpoint") == 64
    append(b, save("r", 0))
    b.commit([save("r", 1)], sync=False)
    assert raw.pragma("synchronous") == 1
    b.commit([save("r", 2)])
    assert raw.pragma("synchronous") == 2
    b.close()


def foreign(path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE log(x)")
    raw.execute("INSERT INTO log VALUES('precious')")
    raw.commit()
    raw.close()


def newer(path: Path) -> None:
    SqliteBackend(path).close()
    raw = apsw.Connection(str(path))
    raw.pragma("user_version", FORMAT + 1)
    raw.close()


def text(path: Path) -> None:
    path.write_text("these are my notes\n" * 500)


def short_text(path: Path) -> None:
    path.write_text("x")


def other_application(path: Path) -> None:
    raw = apsw.Connection(str(path))
    raw.pragma("application_id", 0x0F055112)
    raw.close()


@pytest.mark.parametrize("make", [foreign, newer, text, short_text, other_application])
def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "store.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises((UnknownFormat, Damaged)) as raised:
        SqliteBackend(path)
    assert "store.db" in str(raised.value)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["store.db"]


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch(0o600)
    b = SqliteBackend(tmp_path / "store.db")
    append(b, save("r", 0))
    b.close()


def test_opening_waits_where_the_engine_does_not(tmp_path: Path) -> None:
    """The switch to write-ahead logging fails at once, however long the engine's own timeout is."""
    path = tmp_path / "store.db"
    path.touch(0o600)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, other.execute, ["ROLLBACK"])
    release.start()
    b = SqliteBackend(path)
    append(b, save("r", 0))
    release.join()
    b.close()
    other.close()


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        SqliteBackend(tmp_path, timeout=0.1)
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable):
        SqliteBackend(tmp_path / "file" / "store.db", timeout=0.1)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    place = tmp_path / "closed"
    place.mkdir(0o500)
    # Root may write everywhere: then a file stands where the folder should be.
    if os.geteuid() == 0:
        place.rmdir()
        place.write_text("")
    for path in (place / "store.db", place / "deeper" / "store.db"):
        with pytest.raises(Unavailable):
            SqliteBackend(path, timeout=0.1)


def test_a_file_system_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        SqliteBackend(tmp_path / "store.db", vfs="no such file system", timeout=0.1)


def test_an_old_engine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(Unsupported, match=r"3\.51\.2"):
        SqliteBackend(tmp_path / "store.db")
    assert os.listdir(tmp_path) == []


def test_importing_the_room_does_not_import_the_engine() -> None:
    code = "import sys, knotline.backends, knotline.testing; sys.exit('apsw' in sys.modules or 'pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_fork_is_noticed(tmp_path: Path) -> None:
    b = SqliteBackend(tmp_path / "store.db")
    append(b, save("r", 0))
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        code = 1
        try:
            raised = 0
            for call in (lambda: b.commit([save("r", 1)]), b.find, lambda: SqliteBackend(tmp_path / "store.db")):
                try:
                    call()
                except Unsupported:
                    raised += 1
            b.close()
            code = 0 if raised == 3 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    append(b, save("r", 1))
    b.close()


# -- damage and refusals -----------------------------------------------------------------------------------


def test_damage_is_reported_and_nothing_of_the_engine_escapes(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    b = SqliteBackend(path)
    append(b, *(save("r", rev, body=b"x" * 3000, tokens=[1]) for rev in range(80)))
    b.close()
    whole = bytearray(path.read_bytes())
    for page in range(1, len(whole) // 4096):
        whole[page * 4096 : page * 4096 + 100] = b"\xff" * 100
    path.write_bytes(whole)
    b = SqliteBackend(path)
    reads: list[Callable[[], object]] = [
        lambda: b.head(b"r"),
        lambda: b.entries(b"r", 0, 9),
        b.find,
        lambda: b.find([1]),
        b.runs,
        b.object_ids,
        lambda: b.attachments(b"r"),
        lambda: b.lease(b"r"),
        b.mark,
        lambda: b.acquire(b"r", "me", 1),
        lambda: b.discard([object_id(1)], mark=0),
        b.compact,
    ]
    for read in reads:
        with pytest.raises(Damaged):
            read()
    (outcome,) = b.commit([save("r", 80)])
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error.__cause__, apsw.CorruptError)
    b.close()


def test_a_lock_that_is_not_given_up_is_a_failed_outcome(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    b = SqliteBackend(path, timeout=0.05)
    mine = save("r", 0)
    append(b, mine)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    outcomes = b.commit([save(f"s{n}", 0) for n in range(50)] + [mine])
    assert all(isinstance(outcome, Failed) for outcome in outcomes[:50])
    with pytest.raises(Unavailable):
        b.acquire(b"r", "me", 1)
    with pytest.raises(Unavailable):
        b.discard([], mark=b.mark())
    assert len(b.find()) == 1
    other.execute("ROLLBACK")
    other.close()
    assert done(b.commit([save("s0", 0), mine])) == [True, True]
    b.close()


def test_a_write_that_breaks_the_contract_raises_and_spoils_nothing(tmp_path: Path) -> None:
    b = SqliteBackend(tmp_path / "store.db")
    for wrong in (save("r", 0, tokens=[2**32]), save("r", 0, tokens=[-1]), save("r", 2**70)):
        with pytest.raises(ContractBroken):
            b.commit([save("s", 0), wrong])
    assert b.runs() == []
    append(b, save("r", 0), save("s", 0))
    b.close()


# -- what is done lazily -----------------------------------------------------------------------------------


def test_the_index_and_the_tail_give_one_answer(tmp_path: Path) -> None:
    """At every length around the point where the tail moves into the index, over reopenings and drops."""
    path = tmp_path / "store.db"
    b = SqliteBackend(path)
    carried: dict[int, list[int]] = {}
    for rev in range(200):
        tokens = [1, 2 + rev % 3, 100 + rev % 7]
        carried[rev] = tokens
        drop = rev - 90 if rev % 50 == 49 else 0
        carried = {r: t for r, t in carried.items() if r >= drop}
        assert done(b.commit([save("r", rev, tokens=tokens, drop=max(drop, 0))], sync=False)) == [True]
        if rev % 13 == 0 or rev % 64 in (62, 63, 0, 1):
            for wanted in ([1], [3], [1, 4], [2, 103]):
                expected = [r for r, t in carried.items() if set(wanted) <= set(t)]
                assert [e.rev for e in b.find(wanted, newest=False, limit=500)] == expected
                assert [e.rev for e in b.find(wanted, limit=500)] == expected[::-1]
                assert [e.rev for e in b.find(wanted, run=b"r", limit=3)] == expected[::-1][:3]
        if rev == 100:
            b.close()
            b = SqliteBackend(path)
    b.close()
    raw = apsw.Connection(str(path))
    indexed = raw.execute("SELECT value FROM meta WHERE name='indexed'").get
    assert indexed == 192
    assert raw.execute("SELECT count(*) FROM idx LEFT JOIN log USING(seq) WHERE log.seq IS NULL").get == 0
    below = sum(len(t) for r, t in carried.items() if r + 1 <= indexed)
    assert raw.execute("SELECT count(*) FROM idx").get == below
    raw.close()


def test_two_writers_keep_one_index(tmp_path: Path) -> None:
    one, two = SqliteBackend(tmp_path / "store.db"), SqliteBackend(tmp_path / "store.db")
    for rev in range(300):
        append(one if rev % 3 else two, save(f"r{rev % 2}", rev // 2, tokens=[rev % 4]))
    for token in range(4):
        assert [e.rev for e in one.find([token], limit=500)] == [e.rev for e in two.find([token], limit=500)]
        assert len(one.find([token], limit=500)) == 75
    one.close()
    two.close()


def test_a_run_that_was_rolled_back_is_not_remembered(tmp_path: Path) -> None:
    b = SqliteBackend(tmp_path / "store.db")
    with pytest.raises(ContractBroken):
        b.commit([save("first", 0), save("bad", 0, tokens=[-1])])
    other = SqliteBackend(tmp_path / "store.db")
    append(other, save("else", 0), save("more", 0))
    append(b, save("first", 0), save("bad", 0))
    assert b.runs() == other.runs() == [(b"bad", 0), (b"else", 0), (b"first", 0), (b"more", 0)]
    b.close()
    other.close()


def test_the_write_ahead_log_stays_small_in_a_small_store(tmp_path: Path) -> None:
    b = SqliteBackend(tmp_path / "store.db")
    for rev in range(300):
        b.commit([save("r", rev, body=os.urandom(1000))])
    assert (tmp_path / "store.db-wal").stat().st_size <= 80 * 4120
    b.close()


def test_through_the_strict_fake(tmp_path: Path) -> None:
    strict = StrictBackend(SqliteBackend(tmp_path / "store.db"))
    assert strict.commit([save("r", 0), save("r", 1, drop=1, objects=[(object_id(1), b"x")])]) == [Done(), Done()]
    assert strict.commit([save("r", 1)]) == [Conflicted()]
    for wrong in (
        save("r", 3),
        save("s", 1),
        save("r", 2, drop=3),
        save("r", 2, objects=[(b"short", b"x")]),
        save("r", 2, objects=[(object_id(1), b"y")]),
        save("r", 2, tokens=[2**32]),
        save("r", 2, recast=[(2, b"x")]),
        save(b"", 0),
        save(b"k" * 513, 0),
    ):
        with pytest.raises(ContractBroken):
            strict.commit([wrong])
    with pytest.raises(ContractBroken):
        strict.commit([])
    with pytest.raises(ContractBroken):
        strict.discard([], mark=12345)
    assert strict.discard([], mark=strict.mark()) == 0
    strict.close()
    with pytest.raises(ContractBroken):
        strict.find()
