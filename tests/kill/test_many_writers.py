"""Many processes on one store: no update is lost, nobody sees half of anything, stale owners write nothing."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.crash.store_scenarios import count, crc
from tests.kill.processes import SOAK, Program
from tests.kill.program import backend_at

from knotline.errors import LeaseHeld, Unavailable
from knotline.store import Held, Store, verify

pytestmark = pytest.mark.kill
places = pytest.mark.parametrize("name", ["store.db", "files"])


def together(path: Path, workers: int, each: int, *, expected: bool, mutant: str = "") -> int:
    """Load, add an item, append: by all at once, on one run. Returns how many races were lost and repeated."""
    if expected:
        readers = [Program("read", path=path, runs=["shared"], documents=[], check=True)]
        assert readers[0].next() == {"ready": True}
    else:
        readers = []
    programs = [
        Program("items", path=path, worker=n, each=each, run="shared", expected=expected, mutant=mutant)
        for n in range(workers)
    ]
    try:
        told: list[dict[str, Any]] = []
        for program in programs:
            told += program.rest(timeout=200)
            assert program.end() == 0, program.stderr()
        for reader in readers:
            reader.hush()
            (line,) = reader.rest()
            assert reader.end() == 0, reader.stderr()
            assert line["loads"] >= 1
            assert line["verified"] >= 1
            count("reader loads beside writers", line["loads"])
    finally:
        for program in [*programs, *readers]:
            program.__exit__()
    assert len(told) == workers
    with Store(backend_at(path)) as store:
        # Every acknowledged revision is the state that was acknowledged, and no two were acknowledged as one.
        facts = {rev: value for line in told for rev, value in line["facts"]}
        assert sorted(facts) == list(range(workers * each)), "an acknowledged revision was lost or doubled"
        sample = list(facts) if workers * each <= 200 else random.Random(0).sample(sorted(facts), 200)
        for rev in sample:
            assert crc(store.load("shared", rev)) == facts[rev]
        for line in told:
            found = store.find([f"w{line['worker']}"], run="shared", limit=10_000)
            assert sorted(it.header.rev for it in found.items) == sorted(rev for rev, _ in line["facts"])
        items = [tuple(item) for item in store.load("shared")["items"]]
        if expected:
            assert sorted(items) == [(w, n) for w in range(workers) for n in range(each)], "an update was lost"
            for worker in range(workers):
                assert [n for w, n in items if w == worker] == list(range(each))
        assert verify(store).clean
    return sum(line["conflicts"] for line in told)


@pytest.mark.parametrize("expected", [True, False], ids=["expected", "without"])
@pytest.mark.parametrize("workers", [2, 16])
@places
def test_writers_on_one_run(tmp_path: Path, workers: int, expected: bool, name: str) -> None:
    each = 100 if SOAK else 24 // workers + 4
    conflicts = together(tmp_path / name, workers, each, expected=expected)
    count("writers' saves on one run", workers * each)
    count("writers' conflicts", conflicts)
    if SOAK and expected:
        assert conflicts >= 1


@places
def test_writers_on_many_runs(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    each = 300 if SOAK else 30
    with (
        Program("own items", path=path, worker=1, each=each) as one,
        Program("own items", path=path, worker=2, each=each) as two,
        Program("own items", path=path, worker=3, each=each) as three,
    ):
        told = [line for program in (one, two, three) for line in program.rest()]
        assert [program.end() for program in (one, two, three)] == [0, 0, 0]
    with Store(backend_at(path)) as store:
        for line in told:
            assert [rev for rev, _ in line["facts"]] == list(range(each))
            for rev, expected in line["facts"]:
                assert crc(store.load(f"own {line['worker']}", rev)) == expected
        assert verify(store).clean
    count("writers' saves on own runs", 3 * each)


@pytest.mark.parametrize("check", [False, True], ids=["loads", "verifies"])
@places
def test_prune_and_sweep_beside_savers(tmp_path: Path, check: bool, name: str) -> None:
    """Savers, a loop of prunes and sweeps, and a reader: nobody gets an error, nothing in use is swept away."""
    path = tmp_path / name
    runs = ["one", "two"]
    seconds = 30.0 if SOAK else 1.5
    with Store(backend_at(path)) as store:
        data = {"n": -1}
        for run in runs:
            store.append(run, {"data": data, "check": crc(data)})
    programs = [Program("churn", path=path, run=run, seconds=seconds, seed=n) for n, run in enumerate(runs)]
    programs.append(Program("prune", path=path, runs=runs, seconds=seconds, keep=3))
    reader = Program("read", path=path, runs=runs, documents=runs, check=check)
    try:
        assert reader.next() == {"ready": True}
        told = [line for program in programs for line in program.rest(timeout=seconds + 60)]
        assert [program.end() for program in programs] == [0] * len(programs)
        reader.hush()
        (line,) = reader.rest()
        assert reader.end() == 0
        assert line["loads"] >= 1
        if check:
            assert line["verified"] >= 1
    finally:
        for program in [*programs, reader]:
            program.__exit__()
    pruned = told[-1]
    assert pruned["pruned"] >= 3
    assert pruned["swept"] >= 1
    with Store(backend_at(path)) as store:
        for saver in told[:-1]:
            rev, expected = saver["last"]
            assert crc(store.load(saver["run"], rev)) == expected
        assert verify(store).clean
    count("saves beside prunes", sum(line["saves"] for line in told[:-1]))
    count("prunes beside saves", pruned["pruned"])
    count("objects swept beside saves", pruned["swept"])


def overtake(path: Path, rounds: int, *, seed: int = 0, fenced: bool = True) -> tuple[int, int]:
    """Stop the owner, wait until its lease ends, take over, write, wake it. Returns rounds and stops in a commit.

    A process that is stopped inside a commit holds the file's own lock: nobody can write before it goes on. That
    is no round; it is let go on for a moment and stopped again.
    """
    dice = random.Random(seed)
    inside = done = 0
    store = Store(backend_at(path, timeout=0.3))
    try:
        for number in range(rounds):
            run = f"run {number % 3}"
            with Program(
                "own", path=path, run=run, owner=f"owner {number}", ttl=0.25, pause=0.003, fenced=fenced
            ) as owner:
                first = owner.next()
                assert first is not None
                epoch = first["epoch"]
                acknowledged = 0
                for _ in range(dice.randrange(1, 20)):
                    line = owner.next()
                    assert line is not None
                    assert line["epoch"] >= epoch or not fenced
                    acknowledged = line["rev"]
                held: Held | None = None
                while held is None:
                    time.sleep(dice.random() * 0.01)
                    owner.signal(signal.SIGSTOP)
                    try:
                        held = _take(store, run, f"thief {number}")
                    except Unavailable:
                        inside += 1
                        owner.signal(signal.SIGCONT)
                assert held.epoch > epoch
                own = store.append(run, {"thief": number}, held=held).rev
                assert own > acknowledged
                owner.signal(signal.SIGCONT)
                lines: list[dict[str, Any]] = []
                while (line := owner.next(20)) is not None:
                    lines.append(line)
                    assert line.get("rev", -1) < own, "a stale write was acknowledged"
                assert owner.end() == 0
                assert lines, "the stale owner said nothing"
                assert lines[-1].get("fenced"), "the stale owner was not fenced"
                assert (lines[-1]["epoch"], lines[-1]["current"]) == (epoch, held.epoch)
                # What it acknowledged was before the take-over, all of it.
                takeover = max(h.header.rev for h in store.find(run=run).items if h.header.op == "takeover")
                told = [line["rev"] for line in lines if "rev" in line]
                assert all(rev < takeover for rev in told), "a stale write was acknowledged"
            headers = [store.header(run, rev) for rev in range(store.header(run).rev + 1)]
            epochs = [header.epoch for header in headers]
            assert epochs == sorted(epochs), "a stale epoch stands after a newer one"
            assert crc(store.load(run)) == crc({"thief": number})
            store.release(held)
            done += 1
        assert verify(store).clean
    finally:
        store.close()
    return done, inside


def _take(store: Store, run: str, owner: str) -> Held:
    deadline = time.monotonic() + 20
    while True:
        try:
            return store.acquire(run, owner, ttl=60)
        except LeaseHeld:
            assert time.monotonic() < deadline, "the lease never ends"
            time.sleep(0.02)


@places
def test_a_stopped_owner_is_fenced(tmp_path: Path, name: str) -> None:
    rounds = 60 if SOAK else 3
    done, inside = overtake(tmp_path / name, rounds)
    count("owners stopped and overtaken", done)
    count("owners stopped inside a commit", inside)
    assert done == rounds
