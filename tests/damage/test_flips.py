"""Every byte of a store, flipped or cut away: what is answered is right or a typed error, and never wrong data.

Two levels: the bytes that a backend keeps (there `verify` must name exactly the states that can no longer be
loaded), and the bytes of a SQLite file, where the engine itself may stumble first.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
from tests.crash.store_scenarios import count, crc, state

from knotline.backends import MemoryBackend, SqliteBackend
from knotline.errors import Damaged, NotFound, Unavailable, UnknownFormat, UnknownType
from knotline.store import Store, verify
from knotline.store.names import document_key, is_run, run_key, run_name
from knotline.testing import FakeClock

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
HONEST = (Damaged, UnknownFormat, Unavailable, NotFound, UnknownType)


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """A hang is a failure of its own."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def small(store: Store) -> None:
    """Seals, recast deltas, objects, a fork, a rollback, a pruned run, a document: one of each, little of each."""
    value: dict[str, Any] = {"n": 0, "log": [], "file": "line of a file\n" * 320}
    for n in range(36):
        value = {
            **value,
            "n": n,
            "log": [*value["log"], *({"role": "user", "text": f"{n} {i} " * 9} for i in range(3))],
        }
        store.append("a", value, labels=["even"] if n % 2 == 0 else [])
    store.fork("a", "f", rev=20)
    store.append("f", {**value, "n": 100})
    store.rollback("a", 30)
    for n in range(4):
        store.append("b", {"n": n, "text": f"text {n} " * 20})
    store.prune("b", keep_from=2)
    store.put("config", "x", {"v": 1, "large": "large " * 900})
    store.attach("b", 3, "task", 0, {"result": "right" * 10})


def expected(store: Store, *, documents: bool = False) -> dict[tuple[str, int], int]:
    """Every state that there is, those of documents only if asked for."""
    facts: dict[tuple[str, int], int] = {}
    for key, head in store.backend.runs():
        for entry in store.backend.entries(key, 0, head) if documents or is_run(key) else []:
            header = store.reader.header(key, entry.rev)
            if header.has_state:
                facts[run_name(key), entry.rev] = crc(store.reader.load(key, header).tree)
    return facts


# -- what a backend keeps ---------------------------------------------------------------------------------------


def failing(store: Store, facts: dict[tuple[str, int], int]) -> set[tuple[str, int]]:
    """The states that cannot be loaded; every one that can is right."""
    failed: set[tuple[str, int]] = set()
    for (run, rev), right in facts.items():
        try:
            key = document_key(*run.split("/")) if "/" in run else run_key(run)
            value = store.reader.load(key, store.reader.header(key, rev)).tree
        except HONEST:
            failed.add((run, rev))
        else:
            assert crc(value) == right, f"{run} at {rev}: wrong data"
    return failed


def named(store: Store) -> tuple[int, set[tuple[str, int]]]:
    report = verify(store)
    return len(report.damage), {place for damage in report.damage for place in damage.affects}


class Kept:
    """Every stored byte string of a memory backend, to read and to replace."""

    def __init__(self, memory: MemoryBackend) -> None:
        self.memory = memory
        self.places: list[tuple[str, Any]] = []
        for run in memory._runs.values():
            for row in run.rows:
                self.places += [("head", row), ("body", row)]
        self.places += [("object", name) for name in memory._objects]

    def get(self, place: tuple[str, Any]) -> bytes:
        kind, at = place
        if kind == "object":
            return self.memory._objects[at]
        return at.head if kind == "head" else at.body

    def put(self, place: tuple[str, Any], data: bytes) -> None:
        kind, at = place
        if kind == "object":
            self.memory._objects[at] = data
        else:
            setattr(at, kind, data)


def damaged_in_memory(
    memory: MemoryBackend, facts: dict[tuple[str, int], int], cases: list[tuple[tuple[str, Any], bytes, str]]
) -> Counter[str]:
    """Each case replaces one byte string. Load and `verify` must agree on what it costs."""
    kept = Kept(memory)
    store = Store(memory)
    tally: Counter[str] = Counter()
    for place, data, what in cases:
        before = kept.get(place)
        kept.put(place, data)
        try:
            with limit(20):
                failed = failing(store, facts)
                found, affected = named(store)
        except Exception as error:
            raise AssertionError(f"{place[0]} {what}: {type(error).__name__}: {error}") from error
        finally:
            kept.put(place, before)
        assert found, f"{place[0]} {what}: verify did not see it"
        own = {place for place in affected if place in facts}
        assert own == failed, f"{place[0]} {what} of {place[1]}: verify names {own ^ failed} differently"
        tally[place[0]] += 1
        tally["states lost"] += len(failed)
    return tally


def flips(data: bytes, dice: random.Random, ats: list[int]) -> Iterator[tuple[bytes, str]]:
    for at in ats:
        bit = dice.randrange(8)
        yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], f"byte {at} bit {bit} of {len(data)}"


def test_flips_of_what_a_backend_keeps() -> None:
    memory = MemoryBackend(clock=FakeClock())
    small(Store(memory))
    facts = expected(Store(memory), documents=True)
    dice = random.Random(1)
    kept = Kept(memory)
    cases: list[tuple[tuple[str, Any], bytes, str]] = []
    for place in kept.places:
        data = kept.get(place)
        every = list(range(len(data)))
        # Every byte in the soak. Otherwise the first ones, which say what the rest is, and some of the rest.
        ats = every if SOAK else sorted({*every[:1], *dice.sample(every, min(len(every), 1))})
        cases += [(place, flipped, what) for flipped, what in flips(data, dice, ats)]
        if data:
            cut = dice.randrange(len(data))
            cases.append((place, data[:cut], f"cut to {cut} of {len(data)}"))
    tally = damaged_in_memory(memory, facts, cases)
    for kind in ("head", "body", "object"):
        count(f"flips of a stored {kind}", tally[kind])
        assert tally[kind] >= 10
    assert tally["states lost"] >= 100


def test_what_is_missing_is_named() -> None:
    """An entry or an object that is gone: the same agreement."""
    memory = MemoryBackend(clock=FakeClock())
    small(Store(memory))
    facts = expected(Store(memory), documents=True)
    store = Store(memory)
    missing = 0
    for name, data in list(memory._objects.items()):
        del memory._objects[name]
        failed = failing(store, facts)
        found, affected = named(store)
        memory._objects[name] = data
        assert bool(failed) == bool(found), f"object {name.hex()}"
        assert affected & facts.keys() == failed, f"object {name.hex()}"
        missing += 1
    for key, run in memory._runs.items():
        for at in range(len(run.rows) - 1):  # the head itself is the backend's word: nothing stands on it
            row = run.rows.pop(at)
            failed = failing(store, facts)
            found, affected = named(store)
            run.rows.insert(at, row)
            place = (key[1:].decode(), row.rev)
            if failed - {place}:
                assert found, f"{place} is gone, and verify is content"
            assert (affected & facts.keys()) - {place} == failed - {place}, f"{place} is gone"
            missing += 1
    count("missing entries and objects", missing)
    assert missing >= 30


def test_flips_in_a_large_store() -> None:
    memory = MemoryBackend(clock=FakeClock())
    store = Store(memory)
    value = state(0)
    for n in range(400):
        value = {**value, "n": n, "log": [*value["log"], *({"text": f"{n} {i} " * 20} for i in range(3))]}
        store.append("a", value)
    store.fork("a", "f")
    everything = {("a", rev) for rev in range(400)}
    dice = random.Random(2)
    facts = {}
    for run, rev in sorted(dice.sample(sorted(everything), 40)):
        facts[run, rev] = crc(store.load(run, rev))
    kept = Kept(memory)
    done = 0
    for place in dice.sample(kept.places, 400 if SOAK else 12):
        data = kept.get(place)
        ((flipped, what),) = flips(data, dice, [dice.randrange(len(data))])
        kept.put(place, flipped)
        failed = failing(Store(memory), facts)
        found, affected = named(Store(memory))
        kept.put(place, data)
        assert found, f"{place[0]} {what}"
        assert affected & facts.keys() == failed, f"{place[0]} {what}"
        done += 1
    count("flips in a large store", done)
    assert done >= 10


# -- a SQLite file ------------------------------------------------------------------------------------------------


def opened_and_read(path: Path, facts: dict[tuple[str, int], int], heads: dict[str, int]) -> Counter[str]:
    """Open, load everything, verify. Right or typed; returns how it went."""
    tally: Counter[str] = Counter()
    try:
        store = Store(SqliteBackend(path, timeout=1.0))
    except HONEST as error:
        tally[f"open {type(error).__name__}"] += 1
        return tally
    tops: dict[str, int] = {}
    try:
        for run in heads:
            with suppress(*HONEST):
                tops[run] = store.header(run).rev
        for (run, rev), right in facts.items():
            try:
                value = store.load(run, rev)
            except NotFound as error:
                # Newest entries that are gone leave no trace; a hole further down does.
                tally["tail lost" if rev > tops.get(run, -1) >= 0 else f"load {type(error).__name__}"] += 1
            except HONEST as error:
                tally[f"load {type(error).__name__}"] += 1
            else:
                assert crc(value) == right, f"{run} at {rev}: wrong data"
                tally["right"] += 1
        for run, head in heads.items():
            try:
                header = store.header(run)
                value = store.load(run)
            except HONEST as error:
                tally[f"head {type(error).__name__}"] += 1
                continue
            if header.rev == head:
                assert facts.get((run, header.pos), crc(value)) == crc(value), f"{run}: wrong data at the head"
            else:
                # The newest entries are gone without a trace that can be seen from below: an older state is shown.
                assert facts.get((run, header.pos), crc(value)) == crc(value), f"{run}: wrong data at an older head"
                tally["older head"] += 1
        try:
            assert store.get("config", "x") == {"v": 1, "large": "large " * 900}, "wrong document"
        except HONEST as error:
            tally[f"document {type(error).__name__}"] += 1
        try:
            for _, value in store.attachments("b"):
                assert value == {"result": "right" * 10}, "a wrong attachment"
                tally["attachment right"] += 1
        except HONEST as error:
            tally[f"attachments {type(error).__name__}"] += 1
        try:
            report = verify(store)
        except HONEST as error:
            tally[f"verify {type(error).__name__}"] += 1
        else:
            tally["verify clean" if report.clean else "verify names it"] += 1
    finally:
        store.close()
    trouble = [what for what in tally if what.startswith(("load ", "head ", "document "))]
    if tally["verify clean"] and trouble:
        # A gap: rows that the engine's own indexes no longer lead to are seen by nothing above the engine.
        assert not engine_is_content(path), f"nothing sees it: {dict(tally)}"
        tally["only the engine sees it"] += 1
    return tally


def engine_is_content(path: Path) -> bool:
    connection = apsw.Connection(str(path))
    try:
        return connection.pragma("integrity_check") == "ok"
    except apsw.Error:
        return False
    finally:
        connection.close()


def sqlite_model(folder: Path) -> tuple[Path, dict[tuple[str, int], int], dict[str, int]]:
    path = folder / "model.db"
    store = Store(SqliteBackend(path))
    small(store)
    facts = expected(store)
    heads = dict(store.runs())
    store.close()
    return path, facts, heads


def slices(size: int, *, quick: int, dice: random.Random) -> list[int]:
    return list(range(size)) if SOAK else sorted(dice.sample(range(size), quick))


def test_flips_of_a_sqlite_file(tmp_path: Path) -> None:
    path, facts, heads = sqlite_model(tmp_path)
    data = path.read_bytes()
    # A sample of the states is enough for a flip: those that stand on every kind of thing.
    some = {place: right for number, (place, right) in enumerate(facts.items()) if SOAK or number % 5 == 0}
    some |= {(run, rev): right for (run, rev), right in facts.items() if heads[run] - rev < 2 or rev == 30}
    dice = random.Random(3)
    total: Counter[str] = Counter()
    copy = tmp_path / "flipped.db"
    # The first page, whose every byte has a meaning, more densely than the rest.
    ats = slices(len(data), quick=120, dice=dice)
    if not SOAK:
        ats += dice.sample(range(200), 30)
    done = 0
    wrong: list[str] = []
    for at in ats:
        ((flipped, what),) = flips(data, dice, [at])
        copy.write_bytes(flipped)
        try:
            with limit(30):
                total += opened_and_read(copy, some, heads)
        except Exception as error:  # noqa: BLE001 - all of them are told at once
            wrong.append(f"{what}: {type(error).__name__}: {error}")
        done += 1
        for beside in tmp_path.glob("flipped.db*"):
            beside.unlink()
    for what, number in sorted(total.items()):
        count(f"file flips: {what.replace(' ', '-')}", number)
    count("file flips", done)
    assert done == len(ats)
    assert not wrong, f"{len(wrong)} of {done} flips:\n" + "\n".join(wrong[:40])
    assert total["right"] >= done
    assert total["verify names it"] + sum(it for what, it in total.items() if what.startswith("open ")) >= 5


def test_cuts_of_a_sqlite_file(tmp_path: Path) -> None:
    path, facts, heads = sqlite_model(tmp_path)
    data = path.read_bytes()
    dice = random.Random(4)
    copy = tmp_path / "cut.db"
    total: Counter[str] = Counter()
    # Cut to nothing it is a new, empty store: there is nothing left that could tell.
    cuts = sorted({1, 15, 16, 99, 100, *dice.sample(range(len(data)), 1500 if SOAK else 20)})
    cuts += list(range(4096, len(data), 4096))[:: 1 if SOAK else 4]
    for at in cuts:
        copy.write_bytes(data[:at])
        try:
            with limit(30):
                total += opened_and_read(copy, facts if SOAK else dict(list(facts.items())[::4]), heads)
        except Exception as error:
            raise AssertionError(f"cut to {at}: {type(error).__name__}: {error}") from error
        for beside in tmp_path.glob("cut.db*"):
            beside.unlink()
    count("file cuts", len(cuts))
    for what, number in sorted(total.items()):
        count(f"file cuts: {what.replace(' ', '-')}", number)
    assert len(cuts) >= 20
    assert sum(it for what, it in total.items() if what.startswith("open ")) >= 1


def test_flips_and_cuts_of_a_write_ahead_log(tmp_path: Path) -> None:
    """The engine ends the log at the first frame that does not check: newer saves are gone, never changed."""
    path = tmp_path / "model.db"
    store = Store(SqliteBackend(path))
    small(store)
    store.close()
    store = Store(SqliteBackend(path))
    for n in range(6):
        store.append("b", {"n": 10 + n, "text": f"later {n} " * 30})
    facts, heads = expected(store), dict(store.runs())
    base = tmp_path / "base"
    base.mkdir()
    for beside in ("model.db", "model.db-wal"):
        shutil.copy(tmp_path / beside, base / beside)
    store.close()
    wal = (base / "model.db-wal").read_bytes()
    assert wal
    # Of `b` what the log brought, and with it the states that its head may fall back to.
    dice = random.Random(5)
    total: Counter[str] = Counter()
    ats = slices(len(wal), quick=30, dice=dice)
    cases = [next(flips(wal, dice, [at])) for at in ats] if not SOAK else None
    cuts = dice.sample(range(len(wal)), 800 if SOAK else 15)
    work = tmp_path / "w.db"

    def look(data: bytes, what: str) -> None:
        nonlocal total
        shutil.copy(base / "model.db", work)
        (tmp_path / "w.db-wal").write_bytes(data)
        try:
            with limit(30):
                tally = opened_and_read(work, facts, heads)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        total += tally
        for beside in tmp_path.glob("w.db*"):
            beside.unlink()

    done = 0
    for flipped, what in cases if cases is not None else flips(wal, dice, ats[:: max(1, len(ats) // 4000)]):
        look(flipped, what)
        done += 1
    for at in cuts:
        look(wal[:at], f"cut to {at}")
        done += 1
    count("log flips and cuts", done)
    for what, number in sorted(total.items()):
        count(f"log flips and cuts: {what.replace(' ', '-')}", number)
    assert done >= 40
    assert total["older head"] >= 1
