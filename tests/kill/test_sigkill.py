"""Real processes, killed at random moments: what they had acknowledged is there, and nothing is damaged."""

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

from knotline.store import Store, verify

KILLS = 80 if SOAK else 4
PLACES = ["store.db", "files"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one run": ("sync", {"runs": 1}),
    "moves": ("sync", {"runs": 2, "moves": True}),
    "asyncio, one run": ("async", {"runs": 1}),
    "asyncio, many runs": ("async", {"runs": 12}),
}


class Ledger:
    """What was acknowledged, and what may be gone since because it was pruned."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, int], int] = {}
        self.floors: dict[str, int] = {}
        self.documents: dict[str, int] = {}
        self.putting: dict[str, int] = {}

    def take(self, line: dict[str, Any]) -> None:
        if "prune" in line:
            self.floors[line["prune"]] = max(self.floors.get(line["prune"], 0), line["floor"])
        elif "putting" in line:
            self.putting[line["putting"]] = line["crc"]
        elif "document" in line:
            self.documents[line["document"]] = line["crc"]
        elif "rev" in line:
            self.facts[line["run"], line["rev"]] = line["crc"]

    def tops(self) -> dict[str, int]:
        tops: dict[str, int] = {}
        for run, rev in self.facts:
            tops[run] = max(tops.get(run, -1), rev)
        return tops

    def check(self, store: Store, *, only: set[tuple[str, int]] | None = None) -> int:
        tops = self.tops()
        for run, rev in tops.items():
            found = store.header(run).rev
            assert found >= rev, f"{run}: {rev} was acknowledged, the head is {found}"
        for (run, rev), expected in self.facts.items():
            if (only is None or (run, rev) in only) and rev >= self.floors.get(run, 0):
                assert crc(store.load(run, rev)) == expected, f"{run} at {rev} is another state"
        for name, expected in self.documents.items():
            # One put that was begun and not acknowledged may have come after.
            assert crc(store.get("config", name)) in (expected, self.putting[name]), f"document {name}"
        report = verify(store)
        assert report.clean, report.damage
        return len(tops)


def kill_and_look(path: Path, verb: str, options: dict[str, Any], *, kills: int, seed: int = 0) -> tuple[int, int]:
    """Returns kills and acknowledgements. Every life of the writer goes on where the one before was killed."""
    dice = random.Random(seed)
    ledger = Ledger()
    killed = 0
    for life in range(kills):
        with Program(verb, path=path, seed=seed * 1000 + life, **options) as writer:
            assert writer.next() == {"ready": True}
            fresh: set[tuple[str, int]] = set()
            known = len(ledger.facts)
            for _ in range(dice.randrange(1, 60)):
                line = writer.next()
                assert line is not None
                ledger.take(line)
                fresh |= {(line["run"], line["rev"])} if "rev" in line else set()
            time.sleep(dice.random() * 0.003)
            assert writer.kill() == -signal.SIGKILL
            killed += 1
            # What it told before it died counts, though we had not read it yet.
            for line in writer.rest():
                ledger.take(line)
                fresh |= {(line["run"], line["rev"])} if "rev" in line else set()
            assert len(ledger.facts) >= known
        with Store(backend_at(path)) as store:
            last = life == kills - 1
            runs = ledger.check(store, only=None if last and kills < 20 else fresh)
            assert runs >= 1
            for run, rev in list(ledger.tops().items())[:3]:
                # Each life may have died between a save and telling of it.
                assert store.header(run).rev <= rev + 1 + life or "moves" in options
    with Store(backend_at(path)) as store:
        for run in list(ledger.tops())[:4]:
            value = store.load(run)
            value["later"] = True
            store.append(run, value)
            assert crc(store.load(run)) == crc(value)
        assert verify(store).clean
    return killed, len(ledger.facts)


@pytest.mark.kill
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_sigkill(tmp_path: Path, variant: str, name: str) -> None:
    verb, options = VARIANTS[variant]
    killed, acknowledged = kill_and_look(tmp_path / name, verb, options, kills=KILLS)
    count("sigkill kills", killed)
    count("sigkill acknowledgements", acknowledged)
    assert killed == KILLS
    assert acknowledged >= KILLS
