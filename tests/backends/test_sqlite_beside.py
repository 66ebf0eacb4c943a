"""Another copy of the engine in this process (the standard library's) deletes the log under us; nothing may be lost."""

from __future__ import annotations

import gc
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from knotline import SqliteBackend, Store
from knotline.backends import sqlite_hold

HEAD = """import sys
from knotline import SqliteBackend, Store
store = Store(SqliteBackend(sys.argv[1]))
print(store.header("r").rev, store.load("r"))
"""


def look(path: Path) -> int:
    """With the standard library's engine, in this process."""
    other = sqlite3.connect(path)
    try:
        return other.execute("SELECT count(*) FROM log").fetchone()[0]
    finally:
        other.close()


def elsewhere(path: Path) -> str:
    """What another process sees: what would be left if this one were killed now."""
    done = subprocess.run([sys.executable, "-c", HEAD, str(path)], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_what_is_saved_after_somebody_looked_is_there(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    with Store(SqliteBackend(path)) as store:
        for n in range(12):
            store.append("r", {"n": n})
            assert look(path) == n + 1
            assert store.load("r") == {"n": n}
        assert elsewhere(path) == "11 {'n': 11}"
        look(path)
        held = store.acquire("r", "me", ttl=60)
        assert store.release(held)
        look(path)
        store.append("r", {"n": 12}, sync=False)
    assert elsewhere(path) == "13 {'n': 12}"


def test_it_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake: without our lock, what was acknowledged is in a file that has no name."""
    monkeypatch.setattr(sqlite_hold, "_SET", None)
    path = tmp_path / "k.db"
    store = Store(SqliteBackend(path))
    store.append("r", {"n": 0})
    look(path)
    store.append("r", {"n": 1})
    assert elsewhere(path) == "0 {'n': 0}"


def test_somebody_looks_all_the_time(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    ended = threading.Event()
    looks: list[int] = []
    with Store(SqliteBackend(path)) as store:
        store.append("r", {"n": 0})

        def watch() -> None:
            while not ended.is_set():
                looks.append(look(path))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for n in range(1, 300):
                store.append("r", {"n": n})
        finally:
            ended.set()
            watcher.join()
        assert elsewhere(path) == "299 {'n': 299}"
    assert len(looks) > 5
    assert looks == sorted(looks)


def test_what_was_never_closed_is_let_go(tmp_path: Path) -> None:
    """Whenever the garbage is collected: also while another store takes its hold."""
    for n in range(40):
        SqliteBackend(tmp_path / f"{n}.db")
    gc.collect()
    with Store(SqliteBackend(tmp_path / "last.db")) as store:
        store.append("r", {})
        assert len(sqlite_hold._held) == 1
