"""The memory backend, the oracle that others are compared with and the wrappers keep the contract."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from knotline.backends import MemoryBackend
from knotline.backends.contract import Attach, Backend
from knotline.errors import Unavailable
from knotline.testing import BackendSuite, FakeClock, FaultyBackend, Plan, RawOracle, StrictBackend
from knotline.testing.suite_place import append, done, object_id, save


class TestMemory(BackendSuite):
    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        return MemoryBackend(clock=clock or time.time)


class TestOracle(BackendSuite):
    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        return RawOracle(clock=clock or time.time)

    # The oracle is one list without a lock: threads are not its business.
    test_racing_threads_never_share_a_revision = None  # pyright: ignore[reportAssignmentType]
    test_no_reader_sees_half_a_save = None  # pyright: ignore[reportAssignmentType]
    test_discards_race_with_saves = None  # pyright: ignore[reportAssignmentType]
    test_one_of_many_gets_the_lease = None  # pyright: ignore[reportAssignmentType]


class TestFaultyWithoutFaults(BackendSuite):
    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        return FaultyBackend(MemoryBackend(clock=clock or time.time), Plan(at=0))


BATCH = [save("a", 0), save("b", 0), Attach(b"c", 0, b"t", 0, 1, b"d")]
CALLS: list[Callable[[Backend], object]] = [
    lambda b: b.head(b"r"),
    lambda b: b.entries(b"r", 0, 9),
    lambda b: b.find(),
    lambda b: b.runs(),
    lambda b: b.objects([object_id(1)]),
    lambda b: b.object_ids(),
    lambda b: b.attachments(b"r"),
    lambda b: b.acquire(b"r", "me", 9),
    lambda b: b.renew(b"r", "me", 1, 9),
    lambda b: b.release(b"r", "me", 1),
    lambda b: b.lease(b"r"),
    lambda b: b.mark(),
    lambda b: b.discard([], mark=b.mark()),
    lambda b: b.size(),
    lambda b: b.compact(),
]


def test_a_fault_before_after_and_in_the_middle_of_a_commit() -> None:
    before = FaultyBackend(MemoryBackend(), Plan(at=2, kind="before", only="commit"))
    append(before, save("r", 0))
    before.find()
    assert done(before.commit(BATCH)) == [None, None, None]
    assert len(before.runs()) == 1
    assert done(before.commit(BATCH)) == [True, True, True]
    assert before.injected == 1

    after = FaultyBackend(MemoryBackend(), Plan(at=1, kind="after"))
    assert done(after.commit(BATCH)) == [None, None, None]
    assert len(after.runs()) == 2
    assert done(after.commit(BATCH)) == [True, True, True]
    assert after.injected == 1

    partial = FaultyBackend(MemoryBackend(), Plan(at=1, kind="partial", keep=1, forever=True))
    assert done(partial.commit(BATCH)) == [True, None, None]
    assert done(partial.commit(BATCH[1:])) == [True, None]
    assert partial.injected == 2


def test_every_call_can_fail() -> None:
    for call in CALLS:
        faulty = FaultyBackend(MemoryBackend(), Plan(at=1))
        with pytest.raises(Unavailable):
            call(faulty)
        assert faulty.injected == 1
        call(faulty)
        faulty.close()


def test_the_strict_fake_hands_everything_on() -> None:
    clock = FakeClock()
    strict, plain = StrictBackend(MemoryBackend(clock=clock)), MemoryBackend(clock=clock)
    one = save("r", 0, objects=[(object_id(1), b"x")])
    append(strict, one)
    append(plain, one)
    for call in CALLS:
        assert call(strict) == call(plain)
    strict.close()
    strict.close()
