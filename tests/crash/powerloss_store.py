"""What a store on files was promised when the power went, and whether what is left keeps it.

`Watched` stands between a store and its backend and notes on the tape what was begun and what was acknowledged, in
terms of the contract: for each run the sequence of its versions, byte for byte. A state of the disk is right if every
run in it is one of the versions between the last that was acknowledged and the last that was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.powerloss import Cut, Tape, found, materialise

from knotline.backends import MAX_REV, Backend, Done, Outcome, Save, Write
from knotline.records import NOWHERE
from knotline.store import Store, verify
from knotline.store.names import document_name, is_run, run_name
from knotline.testing import FakeClock

__all__ = ["Scenario", "Tally", "Watched", "cut_everywhere"]

Entries = dict[int, tuple[bytes, frozenset[bytes], tuple[int, ...]]]
Beside = dict[tuple[int, bytes, int], tuple[int, bytes]]
Scenario = tuple[Callable[[Store], object], Callable[[Store], object]]
"""What is there before, and what is cut."""


@dataclass
class Version:
    entries: Entries = field(default_factory=dict[int, tuple[bytes, frozenset[bytes], tuple[int, ...]]])
    beside: Beside = field(default_factory=dict[tuple[int, bytes, int], tuple[int, bytes]])

    def after(self, write: Write) -> Version:
        entries, beside = dict(self.entries), dict(self.beside)
        if isinstance(write, Save):
            entries[write.rev] = (write.head, frozenset([write.body]), tuple(sorted(set(write.tokens))))
            for rev, body in write.recast:
                if rev in entries:
                    head, bodies, tokens = entries[rev]
                    entries[rev] = (head, bodies | {body}, tokens)
            entries = {rev: it for rev, it in entries.items() if rev >= write.drop}
            beside = {at: it for at, it in beside.items() if at[0] >= write.drop}
        else:
            beside.setdefault((write.rev, write.task, write.idx), (write.epoch, write.data))
        return Version(entries, beside)

    def shown(self, entries: Entries, beside: Beside) -> bool:
        if beside != self.beside or entries.keys() != self.entries.keys():
            return False
        for rev, (head, bodies, tokens) in self.entries.items():
            other = entries[rev]
            if (other[0], other[2]) != (head, tokens) or not other[1] <= bodies:
                return False
        return True


@dataclass(frozen=True)
class Promise:
    run: bytes
    version: int
    sure: bool


class Watched:
    """A backend before which nothing is hidden. `early` is a planted mistake: it acknowledges first."""

    def __init__(self, inner: Any, tape: Tape, *, early: bool = False) -> None:
        self.inner = inner
        self.tape = tape
        self.early = early
        self.versions: dict[bytes, list[Version]] = {}
        self.objects: dict[bytes, bytes] = {}
        self.carried: dict[tuple[bytes, int], list[bytes]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        reached: dict[bytes, int] = {}
        for write in writes:
            line = self.versions.setdefault(write.run, [Version()])
            line.append(line[-1].after(write))
            reached[write.run] = len(line) - 1
            if isinstance(write, Save):
                self.objects.update(write.objects)
                self.carried[write.run, write.rev] = [oid for oid, _ in write.objects]
        for run, version in reached.items():
            self.tape.mark(Promise(run, version, sure=False))
        if self.early:
            self._acknowledge(reached)
        outcomes: list[Outcome] = self.inner.commit(writes, sync=sync)
        assert all(isinstance(outcome, Done) for outcome in outcomes), f"a scenario has one writer: {outcomes}"
        if sync and not self.early:
            self._acknowledge(reached)
        return outcomes

    def _acknowledge(self, reached: dict[bytes, int]) -> None:
        for run, version in reached.items():
            self.tape.mark(Promise(run, version, sure=True))

    def close(self) -> None:
        self.inner.close()
        for run, line in self.versions.items():
            self.tape.mark(Promise(run, len(line) - 1, sure=True))


@dataclass
class Tally:
    states: int = 0
    newest: int = 0
    older: int = 0
    """States in which something that was begun and not acknowledged is not there."""
    calls: int = 0


def _look(backend: Backend, run: bytes) -> tuple[Entries, Beside]:
    entries = {
        entry.rev: (entry.head, frozenset([entry.body or b""]), entry.tokens)
        for entry in backend.entries(run, 0, MAX_REV)
    }
    beside = {(it.rev, it.task, it.idx): (it.epoch, it.data) for it in backend.attachments(run)}
    return entries, beside


def holds(watched: Watched, cut: Cut, backend: Backend) -> bool:
    """Everything that was promised at this cut; returns whether all that was begun is there."""
    low = dict.fromkeys(watched.versions, 0)
    high = dict.fromkeys(watched.versions, 0)
    for step, what in watched.tape.marks:
        if step <= cut.step:
            high[what.run] = max(high[what.run], what.version)
            if what.sure:
                low[what.run] = max(low[what.run], what.version)
    newest = True
    visible: set[tuple[bytes, int]] = set()
    for run, line in watched.versions.items():
        entries, beside = _look(backend, run)
        name = run_name(run)
        fits = [n for n in range(low[run], high[run] + 1) if line[n].shown(entries, beside)]
        if not fits:
            older = [n for n in range(low[run]) if line[n].shown(entries, beside)]
            assert not older, f"{name}: version {low[run]} was acknowledged, and {older[-1]} is there"
            raise AssertionError(f"{name}: half visible: {sorted(entries)} and {sorted(beside)}")
        newest = newest and fits[-1] == high[run]
        visible |= {(run, rev) for rev in entries}
    ids = {oid for place in visible for oid in watched.carried[place]}
    there = backend.objects(sorted(ids))
    for oid in ids:
        assert oid in there, f"object {oid.hex()} of an entry that is visible is not there"
        assert there[oid] == watched.objects[oid], f"object {oid.hex()} is other bytes"
    assert {(entry.run, entry.rev) for entry in backend.find(limit=100_000)} == visible, "a list lacks entries"
    heads = {run: max(rev for key, rev in visible if key == run) for run, _ in visible}
    assert dict(backend.runs()) == heads, "the list of runs is another"
    return newest


def goes_on(store: Store) -> None:
    """Nothing is damaged, every head loads, and there is a way forward."""
    report = verify(store)
    assert report.clean, report.damage
    for key, rev in list(store.backend.runs()):
        header = store.reader.header(key, rev)
        if header.pos != NOWHERE:
            store.reader.load(key, header)
        if is_run(key):
            made = store.append(run_name(key), {"after": "the cut", "list": list(range(70))})
            assert made.rev == rev + 1
        elif (said := document_name(key)) is not None:
            store.put(*said, {"after": "the cut"})
    store.append("quite new", {"after": "the cut", "text": "t" * 9000})


def moves_on(backend: Backend) -> None:
    """Every run takes the next entry, and gives it back."""
    for key, rev in backend.runs():
        head = b"after the cut %d" % rev
        assert backend.commit([Save(key, rev + 1, head, b"more")]) == [Done()]
        there = backend.head(key)
        assert there is not None
        assert (there.rev, there.head, there.body) == (rev + 1, head, b"more")


def cut_everywhere(
    scenario: Scenario,
    open_: Callable[[Path, Tape], Any],
    reopen: Callable[[Path], Backend],
    room: Path,
    *,
    each: int,
    most: int,
    seed: int = 1,
    early: bool = False,
    raw: bool = False,
) -> Tally:
    """Do it once with the tape running, then look at what every cut leaves. At most `most` states, by the dice.

    With `raw`, what is stored are bytes that only the contract knows: there is nothing for a store to load.
    """
    before, act = scenario
    real = room / "real"
    real.mkdir(parents=True)
    tape = Tape(real)
    ticks = iter(range(1_000_000, 1 << 40))
    watched = Watched(open_(real / "store", tape), tape, early=early)
    store = Store(watched, clock=lambda: next(ticks))  # pyright: ignore[reportArgumentType]
    before(store)
    since = tape.step
    act(store)
    store.close()
    recorded = tape.now()
    assert recorded == found(real), f"not everything was recorded: {sorted(recorded.keys() ^ found(real).keys())}"
    cuts = list(tape.cuts(Random(seed), each=each, since=since))
    if len(cuts) > most:
        cuts = Random(seed).sample(cuts, most)
    tally = Tally(calls=sum(tape.calls.values()))
    place = room / "cut"
    for cut in cuts:
        materialise(cut.tree, place)
        backend = reopen(place / "store")
        try:
            newest = holds(watched, cut, backend)
            if raw:
                moves_on(backend)
            else:
                goes_on(Store(backend))
        finally:
            backend.close()
        tally.states += 1
        tally.newest += newest
        tally.older += not newest
    if cuts and not raw:
        # Whatever was mended while it was opened stays mended; asked of the last state only, since it costs as much.
        again = reopen(place / "store")
        try:
            assert verify(Store(again)).clean
            assert Store(again).load("quite new")["after"] == "the cut"
        finally:
            again.close()
    return tally


def clock() -> FakeClock:
    return FakeClock()
