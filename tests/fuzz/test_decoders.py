"""Hostile bytes for every decoder: seeded changes of real ones, some thousands for each, in every run.

`tests/fuzz/run.py` goes on from here, guided by coverage, for as long as one likes. What either finds is kept here.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.damage.test_flips import SOAK, limit
from tests.fuzz.mutations import mutations
from tests.fuzz.targets import TARGETS, Target, attack

from knotline.backends.contract import Entry
from knotline.backends.encrypted_ring import RING, parse
from knotline.codec import decode, encode, open_piece, private
from knotline.codec.bodies import Fork, close_body
from knotline.config import jsonc
from knotline.errors import ConfigError, Damaged, Tampered, UnknownType
from knotline.store.delta import apply
from knotline.store.names import run_name
from knotline.store.seal import REF, SPAN, TABLE, Revive, object_id

RUNS = 400_000 if SOAK else 2500
MOST = 48 << 20
"""Bytes that one input may make a decoder hold: the mutations are of 16 KB at most, and zstd's window is 4 MB."""


def wild(target: Target, runs: int, *, seed: int) -> tuple[int, int]:
    """How many ran, and how many were refused as a whole; fails on anything that is no typed error."""
    begin = list(target.begin())
    made = refused = 0
    for data in mutations(begin, runs, seed=seed):
        made += 1
        refused += attack(target, data)
    return made, refused


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes(name: str) -> None:
    target = TARGETS[name]
    runs = int(RUNS * min(target.share, 1)) + 50
    with limit(60 + runs / 200):
        made, _ = wild(target, runs, seed=11)
    assert made > runs


@pytest.mark.parametrize("name", TARGETS)
def test_memory_and_time_are_bounded(name: str) -> None:
    target = TARGETS[name]
    begin = list(target.begin())
    for data in begin:  # what is made once is nobody's fault
        attack(target, data)
    tracemalloc.start()
    try:
        worst = slowest = 0.0
        for data in mutations(begin, 30 if target.share < 0.1 else 300, seed=12):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            start = time.process_time()
            attack(target, data)
            slowest = max(slowest, time.process_time() - start)
            worst = max(worst, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert worst < MOST
    assert slowest < 2


# -- the suite's own teeth -------------------------------------------------------------------------------------


def test_a_decoder_that_lets_something_through_is_caught() -> None:
    """A bug behind one condition of two bytes, and one that any change reaches."""

    def rare(data: bytes) -> None:
        if data[:1] == b"\xff" and len(data) > 30:
            raise KeyError("planted")
        raise Damaged("x", why="y")

    for bug in (rare, lambda data: data[10**6]):
        target = Target(bug, TARGETS["values"].begin)
        with pytest.raises((KeyError, IndexError)):
            wild(target, 3000, seed=1)


def test_a_refusal_is_counted() -> None:
    made, refused = wild(TARGETS["encrypted"], 500, seed=3)
    assert made > refused > 450


def test_every_target_is_reached() -> None:
    """What it begins with is read as what it is: a target whose corpus is refused would prove nothing."""
    for name, target in TARGETS.items():
        begin = list(target.begin())
        assert len(begin) > sum(attack(target, data) for data in begin) or name == "heads", name


# -- what was found --------------------------------------------------------------------------------------------


def object_of(payload: bytes, objects: dict[bytes, bytes]) -> bytes:
    name = object_id(b"", payload)
    objects[name] = payload
    return name


def node(code: int, payload: bytes) -> bytes:
    return b"\xc8" + len(payload).to_bytes(2, "big") + bytes((code,)) + payload


def of(value: object) -> bytes:
    return encode(private(value))


def test_a_dictionary_of_a_seal_that_stored_nothing() -> None:
    from knotline.codec import make_dictionary

    with pytest.raises(Damaged):
        open_piece(b"\0\0\0\x02\0\0\0\x01\0\0\0\x01zstd", "p", seal=lambda _: make_dictionary(b"", "a seal"))


def test_a_name_that_is_no_text() -> None:
    for key in (b"r\xff", b"d\0\x01\xffx", b"d\0\x01x\xff"):
        with pytest.raises(Damaged):
            run_name(key)
    assert close_body(Fork(b"r\xff", 0, bytes(16)))


@pytest.mark.parametrize("leaf", [[1, 2, 3], [{}, 1], "text", [[1], 2]])
def test_a_table_of_something_else(leaf: object) -> None:
    objects: dict[bytes, bytes] = {}
    tree = node(TABLE, object_of(of(leaf), objects))
    with pytest.raises(Damaged):
        decode(tree, resolve=Revive(objects, private=False))


def test_objects_in_objects_without_end() -> None:
    objects: dict[bytes, bytes] = {}
    name = object_of(of(1), objects)
    for _ in range(5000):
        name = object_of(node(REF, name), objects)
    with pytest.raises(Damaged):
        decode(node(REF, name), resolve=Revive(objects, private=False))


def test_indexes_in_indexes_without_end() -> None:
    objects: dict[bytes, bytes] = {}
    name = object_of(of([1]), objects)
    for level in range(5000):
        name = object_of(of([level, name, [1]]), objects)
    for level in (5000, 5, -1, 2**40):
        with pytest.raises(Damaged):
            decode(node(SPAN, of([level, name, [1]])), resolve=Revive(objects, private=False))


def test_a_position_that_is_no_number() -> None:
    """It went round in circles in the rope, which is what a writer holds."""
    objects: dict[bytes, bytes] = {}
    leaf = object_of(of([{"n": n} for n in range(40)]), objects)
    for key in (float("nan"), 2.5, None, "0", -41, 40, 2**70):
        revive = Revive(objects, private=True)
        tree = decode(node(SPAN, of([0, leaf, [40]])), resolve=revive, private=True)
        ops: Any = decode(of([[0, [key], [], ["a", 1], None]]), private=True)
        with limit(5), pytest.raises(Damaged):
            apply(tree, ops, revive.ropes, "an entry")


def test_a_number_of_too_many_digits_in_settings() -> None:
    with pytest.raises(ConfigError):
        jsonc.parse('{"a": ' + "1" * 5000 + "}", "config.json")


def test_a_time_zone_that_would_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.resources

    def loud(*_: object) -> None:
        raise AssertionError("it was asked for")

    monkeypatch.setattr(importlib.resources, "open_binary", loud)
    payload = b"\x0c\0\0\0\0\0\0\0Z"
    for key in (b"os", b"Antigravity/Here", b"tzdata", b"Europe"):
        data = b"\xc7" + bytes((len(payload) + len(key), 9)) + payload + key
        with pytest.raises(UnknownType):
            decode(data)


def test_a_salt_of_a_slot_that_is_too_short(slots: Callable[[dict[str, Any]], Entry]) -> None:
    for change in ({"salt": "00"}, {"salt": ""}, {"wrapped": "00" * 123}, {"wrapped": "00" * 125}):
        with pytest.raises(Tampered):
            parse(slots(change))


@pytest.fixture
def slots() -> Callable[[dict[str, Any]], Entry]:
    import json

    from tests.fuzz.corpus import encrypted

    head = encrypted()[4]

    def changed(change: dict[str, Any]) -> Entry:
        said = json.loads(head[36:])
        said["slots"][0].update(change)
        return Entry(RING, 0, head[:36] + json.dumps(said).encode(), None, 0)

    parse(changed({}))
    return changed


def test_pins_that_say_nothing(tmp_path: Path) -> None:
    from knotline import MemoryBackend, Store

    for note in (
        {},
        {"rev": 0, "keep": True},
        {"rev": "x", "keep": True, "why": ""},
        {"rev": 0, "keep": True, "why": 1},
    ):
        with Store(MemoryBackend()) as store:
            store.append("run", {"a": 1})
            store._pin(b"rrun", 0, note)
            with pytest.raises(Damaged):
                store.pins("run")
