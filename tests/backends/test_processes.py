"""Real processes on one store: no error surfaces, nothing is lost, nothing is doubled."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from knotline.backends import SqliteBackend
from knotline.backends.contract import MAX_REV, Backend, Conflicted, Done
from knotline.backends.files import FilesBackend
from knotline.testing.suite_place import save

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
EACH = 200 if SOAK else 15
# A fork would carry the parent's locks over; a new process is what a user starts.
fresh = multiprocessing.get_context("spawn")


def _backend(path: str | Path) -> Backend:
    return SqliteBackend(path) if str(path).endswith(".db") else FilesBackend(path)


def _append(path: str, worker: int, start: Any, answers: Any) -> None:
    """Appends to one run that all share, deciding again after each conflict, and to one of its own."""
    try:
        start.wait(60)
        b = _backend(path)
        mine: list[tuple[int, bytes]] = []
        conflicts = 0
        while len(mine) < EACH:
            head = b.head(b"shared")
            rev = 0 if head is None else head.rev + 1
            one = save("shared", rev, tokens=[worker], body=b"%d" % worker)
            outcomes = b.commit([one, save(f"own {worker}", len(mine) + conflicts)])
            if outcomes == [Done(), Done()]:
                mine.append((rev, one.head))
            elif outcomes == [Conflicted(), Done()]:
                conflicts += 1
            else:
                raise AssertionError(outcomes)  # noqa: TRY301 - it is the answer
        b.close()
        answers.put((worker, mine, conflicts, None))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        answers.put((worker, [], 0, repr(error)))


@pytest.mark.kill
@pytest.mark.parametrize("name", ["store.db", "files"])
@pytest.mark.parametrize("workers", [2, 16])
def test_writers_on_a_fresh_path(tmp_path: Path, workers: int, name: str) -> None:
    """They open it, create it and write to it all at once."""
    path = tmp_path / "new" / name
    start, answers = fresh.Barrier(workers), fresh.Queue()
    processes = [fresh.Process(target=_append, args=(str(path), worker, start, answers)) for worker in range(workers)]
    for process in processes:
        process.start()
    heard = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    assert [error for *_, error in heard if error] == []
    won = sorted(pair for _, mine, _, _ in heard for pair in mine)
    b = _backend(path)
    assert won == [(e.rev, e.head) for e in b.entries(b"shared", 0, MAX_REV)]
    assert [rev for rev, _ in won] == list(range(workers * EACH))
    for worker, mine, conflicts, _ in heard:
        own = b.entries(b"own %d" % worker, 0, MAX_REV)
        assert [e.rev for e in own] == list(range(len(mine) + conflicts))
        assert len(b.find([worker], run=b"shared", limit=10_000)) == EACH
    b.close()


def _open(path: str, start: Any, answers: Any) -> None:
    try:
        for number in range(5):
            start.wait(60)
            b = _backend(path.replace("store", f"store-{number}"))
            b.commit([save(f"{os.getpid()}", 0)])
            b.close()
        answers.put(None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        answers.put(repr(error))


@pytest.mark.kill
@pytest.mark.parametrize("name", ["store.db", "store"])
def test_opening_and_closing_at_once(tmp_path: Path, name: str) -> None:
    """Creation, recovery and the last close take locks for which the engine does not wait by itself."""
    workers = 12
    start, answers = fresh.Barrier(workers), fresh.Queue()
    processes = [fresh.Process(target=_open, args=(str(tmp_path / name), start, answers)) for _ in range(workers)]
    for process in processes:
        process.start()
    heard = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    assert [error for error in heard if error] == []
    for number in range(5):
        b = _backend(tmp_path / name.replace("store", f"store-{number}"))
        assert len(b.runs()) == workers
        b.close()
