"""The suite's part on what many share: leases, discards, threads, and a store that is closed and opened again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from knotline.backends.contract import MAX_REV, Attach, Done
from knotline.errors import Unavailable
from knotline.testing.clock import FakeClock
from knotline.testing.suite_place import SuitePlace, append, done, object_id, save, threw

__all__ = ["SharedLaws"]


class SharedLaws(SuitePlace):
    # -- leases --------------------------------------------------------------------------------------------

    def test_a_lease_is_held_until_it_ends(self, tmp_path: Path) -> None:
        clock = FakeClock()
        b = self.open(tmp_path, clock=clock)
        mine = b.acquire(b"r", "me", 10)
        assert (mine.owner, mine.epoch, mine.live) == ("me", 1, True)
        assert mine.until == clock() + 10
        assert b.lease(b"r") == mine
        other = b.acquire(b"r", "you", 10)
        assert (other.owner, other.epoch, other.until, other.live) == ("me", 1, mine.until, True)
        clock.advance(9)
        again = b.acquire(b"r", "me", 10)
        assert (again.owner, again.epoch, again.until) == ("me", 1, clock() + 10)
        clock.advance(10)
        ended = b.lease(b"r")
        assert ended is not None
        assert (ended.owner, ended.epoch, ended.live) == ("me", 1, False)
        yours = b.acquire(b"r", "you", 10)
        assert (yours.owner, yours.epoch, yours.live) == ("you", 2, True)
        assert b.lease(b"s") is None
        b.close()

    def test_an_ended_lease_of_ones_own_is_a_new_epoch(self, tmp_path: Path) -> None:
        clock = FakeClock()
        b = self.open(tmp_path, clock=clock)
        assert b.acquire(b"r", "me", 10).epoch == 1
        clock.advance(11)
        assert b.acquire(b"r", "me", 10).epoch == 2
        b.close()

    def test_renew(self, tmp_path: Path) -> None:
        clock = FakeClock()
        b = self.open(tmp_path, clock=clock)
        assert b.renew(b"r", "me", 1, 10) is None
        epoch = b.acquire(b"r", "me", 10).epoch
        clock.advance(9)
        longer = b.renew(b"r", "me", epoch, 10)
        assert longer is not None
        assert (longer.owner, longer.epoch, longer.until, longer.live) == ("me", epoch, clock() + 10, True)
        assert b.renew(b"r", "you", epoch, 10) is None
        assert b.renew(b"r", "me", epoch + 1, 10) is None
        assert b.renew(b"r", "me", epoch - 1, 10) is None
        clock.advance(10)
        assert b.renew(b"r", "me", epoch, 10) is None
        assert b.lease(b"r") is not None
        b.close()

    def test_release(self, tmp_path: Path) -> None:
        clock = FakeClock()
        b = self.open(tmp_path, clock=clock)
        assert not b.release(b"r", "me", 1)
        assert b.acquire(b"r", "me", 10).epoch == 1
        assert not b.release(b"r", "you", 1)
        assert not b.release(b"r", "me", 2)
        assert b.release(b"r", "me", 1)
        assert not b.release(b"r", "me", 1)
        last = b.lease(b"r")
        assert last is not None
        assert (last.owner, last.epoch, last.live) == ("me", 1, False)
        assert b.renew(b"r", "me", 1, 10) is None
        # The epoch survives a release, and a lease is no entry.
        assert b.acquire(b"r", "you", 10).epoch == 2
        assert b.runs() == []
        b.close()

    def test_leases_are_per_run_and_outlive_the_store_being_closed(self, tmp_path: Path) -> None:
        clock = FakeClock()
        b = self.open(tmp_path, clock=clock)
        assert b.acquire(b"r", "me", 10).epoch == 1
        assert b.acquire(b"s", "you", 10).owner == "you"
        append(b, save("r", 0))
        if self.persistent:
            b.close()
            b = self.open(tmp_path, clock=clock)
        assert b.acquire(b"r", "you", 10).owner == "me"
        assert b.release(b"r", "me", 1)
        assert b.acquire(b"r", "you", 10).epoch == 2
        b.close()

    def test_one_of_many_gets_the_lease(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(b.acquire, b"r", f"w{n}", 60) for n in range(16)]
            leases = [future.result() for future in asked]
        assert len({lease.owner for lease in leases}) == 1
        assert {lease.epoch for lease in leases} == {1}
        b.close()

    # -- discard -------------------------------------------------------------------------------------------

    def test_discard(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, save("r", 0, objects=[(object_id(n), b"x" * n) for n in range(5)]))
        mark = b.mark()
        assert b.mark() == mark
        assert b.discard([object_id(1), object_id(3), object_id(77)], mark=mark) == 2
        assert b.object_ids() == [object_id(n) for n in (0, 2, 4)]
        append(b, save("r", 1, objects=[(object_id(1), b"again")]))
        assert b.objects([object_id(1)]) == {object_id(1): b"again"}
        b.close()

    def test_discard_spares_what_a_save_claimed(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, save("r", 0, objects=[(object_id(1), b"x"), (object_id(2), b"y")]))
        mark = b.mark()
        # It claims an object that exists: nothing of it is new, and yet it must not lose it.
        append(b, save("s", 0, objects=[(object_id(1), b"x")]))
        assert b.discard([object_id(1), object_id(2)], mark=mark) == 1
        assert b.objects([object_id(1), object_id(2)]) == {object_id(1): b"x"}
        # A save that conflicted carried nothing.
        mark = b.mark()
        assert done(b.commit([save("s", 0, objects=[(object_id(1), b"x")], head=b"another")])) == [False]
        assert b.discard([object_id(1)], mark=mark) == 1
        assert b.object_ids() == []
        b.close()

    def test_a_mark_sees_every_save(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        empty = b.mark()
        append(b, save("r", 0, objects=[(object_id(1), b"x")]))
        assert b.discard([object_id(1)], mark=empty) == 0
        for rev in range(1, 4):
            mark = b.mark()
            append(b, save("r", rev, drop=rev, objects=[(object_id(1), b"x")]))
            assert b.mark() != mark
            assert b.discard([object_id(1)], mark=mark) == 0
        assert b.discard([object_id(1)], mark=b.mark()) == 1
        b.close()

    # -- threads -------------------------------------------------------------------------------------------

    def test_racing_threads_never_share_a_revision(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        won: list[tuple[int, bytes]] = []

        def work(worker: int) -> None:
            for _ in range(12):
                while True:
                    head = b.head(b"shared")
                    rev = 0 if head is None else head.rev + 1
                    batch = [save("shared", rev, tokens=[worker]), save(f"own{worker}", len(own[worker]))]
                    outcome, mine = done(b.commit(batch, sync=False))
                    assert mine
                    own[worker].append(batch[1].head)
                    if outcome:
                        won.append((rev, batch[0].head))
                        break

        own: dict[int, list[bytes]] = {n: [] for n in range(8)}
        _race(work, 8)
        assert sorted(won) == [(e.rev, e.head) for e in b.entries(b"shared", 0, MAX_REV)]
        assert [rev for rev, _ in sorted(won)] == list(range(96))
        for worker, heads in own.items():
            assert [e.head for e in b.entries(b"own%d" % worker, 0, MAX_REV)] == heads
            assert len(b.find([worker], run=b"shared")) == 12
        b.close()

    def test_no_reader_sees_half_a_save(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        stop = threading.Event()

        def write(_: int) -> None:
            for rev in range(120):
                objects = [(object_id(1000 * rev + n), b"%d" % rev) for n in range(3)]
                append(b, save("r", rev, body=b"%d" % rev, tokens=[5], objects=objects, drop=max(0, rev - 3)))
            stop.set()

        def read(_: int) -> None:
            while not stop.is_set():
                head = b.head(b"r")
                if head is None:
                    continue
                assert head.body == b"%d" % head.rev
                ids = [object_id(1000 * head.rev + n) for n in range(3)]
                assert len(b.objects(ids)) == 3
                revs = [e.rev for e in b.entries(b"r", 0, MAX_REV)]
                assert revs == list(range(revs[0], revs[-1] + 1))
                assert len(revs) <= 4
                found = [e.rev for e in b.find([5])]
                assert found == list(range(found[0], found[-1] - 1, -1))

        _race(lambda n: write(n) if n == 0 else read(n), 3)
        b.close()

    def test_discards_race_with_saves(self, tmp_path: Path) -> None:
        """Saves come back to ids that a sweep may just be taking away: then the sweep must spare them."""
        b = self.open(tmp_path)
        stop = threading.Event()
        swept: list[int] = []

        def needs(run: bytes, rev: int) -> list[bytes]:
            return [object_id(run[-1] * 10 + rev % 3), object_id(rev % 2)]

        def write(worker: int) -> None:
            run = b"w%d" % worker
            try:
                for rev in range(60):
                    append(b, save(run, rev, objects=[(oid, b"x" + oid) for oid in needs(run, rev)], drop=rev))
                    assert len(b.objects(needs(run, rev))) == 2, f"missing after save {rev}"
            finally:
                stop.set()

        def sweep(_: int) -> None:
            while not (swept and stop.is_set()):
                mark = b.mark()
                live = {oid for run, rev in b.runs() for oid in needs(run, rev)}
                swept.append(b.discard([oid for oid in b.object_ids() if oid not in live], mark=mark))

        _race(lambda n: sweep(n) if n == 2 else write(n), 3)
        b.close()

    # -- the store as a whole ------------------------------------------------------------------------------

    def test_what_was_done_is_there_after_reopening(self, tmp_path: Path) -> None:
        if not self.persistent:
            return
        b = self.open(tmp_path)
        dice = random.Random(3)
        for rev in range(70):
            batch = [
                save(f"r{n}", rev, body=dice.randbytes(50), tokens=[n, rev % 5], objects=[(dice.randbytes(16), b"o")])
                for n in range(3)
            ]
            attach = Attach(b"r0", rev, b"t", 0, 1, b"%d" % rev)
            assert done(b.commit([*batch, attach], sync=rev % 3 == 0)) == [True] * 4
        seen = (b.entries(b"r1", 0, MAX_REV), b.find([1, 3]), b.runs(), b.object_ids(), b.attachments(b"r0"), b.mark())
        b.close()
        b = self.open(tmp_path)
        assert seen == (
            b.entries(b"r1", 0, MAX_REV),
            b.find([1, 3]),
            b.runs(),
            b.object_ids(),
            b.attachments(b"r0"),
            b.mark(),
        )
        append(b, save("r1", 70))
        b.close()

    def test_two_open_at_once_are_one_store(self, tmp_path: Path) -> None:
        if not self.persistent:
            return
        one, two = self.open(tmp_path), self.open(tmp_path)
        append(one, save("r", 0, tokens=[1]))
        append(two, save("r", 1, tokens=[1]))
        assert done(one.commit([save("r", 1)])) == [False]
        assert [e.rev for e in one.find([1])] == [1, 0]
        assert one.acquire(b"r", "me", 60).owner == two.acquire(b"r", "you", 60).owner == "me"
        append(one, save("r", 2, objects=[(object_id(1), b"x")]))
        mark = one.mark()
        append(two, save("r", 3, objects=[(object_id(1), b"x")]))
        assert one.discard([object_id(1)], mark=mark) == 0
        one.close()
        append(two, save("r", 4))
        two.close()

    def test_size_and_compact(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        body = random.Random(1).randbytes(50_000)
        append(b, *(save("r", rev, body=body) for rev in range(20)))
        full = b.size()
        assert full >= 20 * len(body)
        append(b, save("r", 20, drop=20))
        b.compact()
        assert b.size() < full / 2
        assert [e.rev for e in b.find()] == [20]
        b.close()

    def test_closing(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, save("r", 0))
        b.close()
        b.close()
        calls: list[Callable[[], object]] = [
            lambda: b.commit([save("r", 1)]),
            lambda: b.commit([]),
            lambda: b.head(b"r"),
            lambda: b.entries(b"r", 0, 1),
            b.find,
            b.runs,
            lambda: b.objects([object_id(1)]),
            b.object_ids,
            lambda: b.attachments(b"r"),
            lambda: b.acquire(b"r", "me", 1),
            lambda: b.renew(b"r", "me", 1, 1),
            lambda: b.release(b"r", "me", 1),
            lambda: b.lease(b"r"),
            b.mark,
            lambda: b.discard([], mark=0),
            b.size,
            b.compact,
        ]
        for number, call in enumerate(calls):
            assert threw(Unavailable, call), number
        assert b.name
        assert b.lanes >= 1

    def test_outcomes_compare(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        assert b.commit([save("r", 0)]) == [Done()]
        b.close()


def _race(work: Callable[[int], None], workers: int) -> None:
    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(work, number) for number in range(workers)]:
            future.result()
