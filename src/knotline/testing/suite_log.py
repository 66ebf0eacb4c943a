"""The suite's part on entries, objects and attachments: what a commit does, and what it must not do."""

from __future__ import annotations

from pathlib import Path

from knotline.backends.contract import MAX_REV, Attach, Attachment
from knotline.testing.suite_place import SuitePlace, append, done, object_id, save

__all__ = ["LogLaws"]


class LogLaws(SuitePlace):
    def test_an_empty_store_is_empty(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        assert b.lanes >= 1
        assert b.name
        assert b.head(b"r") is None
        assert b.entries(b"r", 0, MAX_REV) == []
        assert b.find() == []
        assert b.runs() == []
        assert b.objects([object_id(1)]) == {}
        assert b.object_ids() == []
        assert b.attachments(b"r") == []
        assert b.lease(b"r") is None
        assert b.commit([]) == []
        b.close()

    def test_a_save_is_read_back(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        one, two = save("r", 0, body=b"\x00one"), save("r", 1, body=b"", head=b"")
        append(b, one, two)
        first, second = b.entries(b"r", 0, 1)
        assert (first.run, first.rev, first.head, first.body) == (b"r", 0, one.head, one.body)
        assert (second.run, second.rev, second.head, second.body) == (b"r", 1, b"", b"")
        assert first.cursor < second.cursor
        assert b.head(b"r") == second
        assert [(e.rev, e.body) for e in b.entries(b"r", 0, MAX_REV, bodies=False)] == [(0, None), (1, None)]
        assert b.runs() == [(b"r", 1)]
        b.close()

    def test_large_and_odd_bytes(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        body = bytes(range(256)) * 8192
        append(b, save("r", 0, body=body, head=bytes(range(256)) * 40, objects=[(object_id(1), body[::-1])]))
        head = b.head(b"r")
        assert head is not None
        assert head.body == body
        assert head.head == bytes(range(256)) * 40
        assert b.objects([object_id(1)]) == {object_id(1): body[::-1]}
        b.close()

    def test_entries_by_range(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, *(save("r", rev) for rev in range(6)), save("other", 0))
        assert [e.rev for e in b.entries(b"r", 2, 4)] == [2, 3, 4]
        assert [e.rev for e in b.entries(b"r", 4, MAX_REV)] == [4, 5]
        assert b.entries(b"r", 4, 3) == []
        assert b.entries(b"r", 6, 9) == []
        assert [e.run for e in b.entries(b"other", 0, 9)] == [b"other"]
        b.close()

    def test_returned_lists_are_the_callers(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, save("r", 0, tokens=[1], objects=[(object_id(1), b"x")]))
        b.commit([Attach(b"r", 0, b"t", 0, 1, b"d")])
        b.entries(b"r", 0, 9).clear()
        b.find().clear()
        b.runs().clear()
        b.object_ids().clear()
        b.objects([object_id(1)]).clear()
        b.attachments(b"r").clear()
        assert len(b.entries(b"r", 0, 9)) == len(b.find([1])) == len(b.runs()) == 1
        assert len(b.object_ids()) == len(b.objects([object_id(1)])) == len(b.attachments(b"r")) == 1
        b.close()

    def test_an_entry_is_created_once(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        mine = save("r", 0, tokens=[1])
        append(b, mine)
        other = save("r", 0, tokens=[2], objects=[(object_id(1), b"x")], body=mine.body)
        assert done(b.commit([other])) == [False]
        # Heads tell writers apart: a body that was recast meanwhile is still the writer's own entry.
        assert done(b.commit([save("r", 0, head=mine.head, body=b"else")])) == [True]
        head = b.head(b"r")
        assert head is not None
        assert (head.head, head.body) == (mine.head, mine.body)
        assert b.object_ids() == []
        assert b.find([2]) == []
        assert len(b.find()) == 1
        b.close()

    def test_a_conflicting_save_writes_nothing(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, save("r", 0, body=b"0"), save("r", 1), save("r", 2))
        stale = save("r", 2, tokens=[9], objects=[(object_id(1), b"x")], drop=2, recast=[(0, b"")])
        assert done(b.commit([stale])) == [False]
        assert [(e.rev, e.body) for e in b.entries(b"r", 0, 9)] == [(0, b"0"), (1, b"body"), (2, b"body")]
        assert b.object_ids() == []
        assert b.find([9]) == []
        b.close()

    def test_ones_own_earlier_write_is_done(self, tmp_path: Path) -> None:
        for sync in (True, False):
            b = self.open(tmp_path / str(sync))
            mine = save("r", 0, tokens=[1], objects=[(object_id(1), b"x")])
            assert done(b.commit([mine], sync=False)) == [True]
            before, mark = b.find(), b.mark()
            assert done(b.commit([mine, mine], sync=sync)) == [True, True]
            assert b.find() == before
            assert b.mark() == mark
            append(b, save("r", 1))
            assert done(b.commit([mine])) == [True]
            b.close()

    def test_outcomes_are_in_order_and_independent(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, save("a", 0), save("c", 0))
        batch = [
            save("a", 0),
            save("b", 0, objects=[(object_id(1), b"1")]),
            save("c", 0, objects=[(object_id(2), b"2")]),
            Attach(b"z", 0, b"t", 0, 1, b"d"),
            Attach(b"z", 0, b"t", 0, 2, b"e"),
            save("d", 0),
            save("a", 1),
        ]
        assert done(b.commit(batch)) == [False, True, False, True, False, True, True]
        assert b.runs() == [(b"a", 1), (b"b", 0), (b"c", 0), (b"d", 0)]
        assert b.object_ids() == [object_id(1)]
        b.close()

    def test_the_first_of_a_batch_wins(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        first, second = save("r", 0, objects=[(object_id(1), b"1")]), save("r", 0, objects=[(object_id(2), b"2")])
        assert done(b.commit([first, second, first])) == [True, False, True]
        head = b.head(b"r")
        assert head is not None
        assert head.head == first.head
        assert b.object_ids() == [object_id(1)]
        b.close()

    def test_writes_of_a_batch_to_one_run_are_in_order(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        batch = [save("r", rev, body=b"%d" % rev, drop=max(0, rev - 2), tokens=[rev]) for rev in range(100)]
        assert done(b.commit(batch)) == [True] * 100
        assert [(e.rev, e.body) for e in b.entries(b"r", 0, MAX_REV)] == [(97, b"97"), (98, b"98"), (99, b"99")]
        assert [e.rev for e in b.find()] == [99, 98, 97]
        assert b.find([96]) == []
        assert [e.rev for e in b.find([97])] == [97]
        b.close()

    def test_objects_are_created_once_and_shared(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        ids = [object_id(n) for n in (3, 1, 2**127, 2)]
        append(b, save("r", 0, objects=[(ids[0], b"three"), (ids[1], b""), (ids[0], b"three")]))
        append(b, save("q", 0, objects=[(ids[2], b"big"), (ids[1], b""), (ids[3], b"two")]))
        assert b.objects([*ids, object_id(9), ids[0]]) == dict(zip(ids, [b"three", b"", b"big", b"two"], strict=True))
        append(b, save("q", 1, objects=[(ids[0], b"kept as it is")]))
        assert b.objects([ids[0]]) == {ids[0]: b"three"}
        assert b.objects([]) == {}
        assert b.object_ids() == sorted(ids)
        assert b.object_ids(limit=2) == sorted(ids)[:2]
        assert b.object_ids(after=sorted(ids)[1]) == sorted(ids)[2:]
        assert b.object_ids(after=max(ids)) == []
        b.close()

    def test_drop(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, *(save(run, rev, tokens=[rev, 50]) for rev in range(5) for run in ("r", "s")))
        attached = [Attach(b"r", rev, b"t", 0, 1, b"d") for rev in range(7)]
        assert done(b.commit([*attached, Attach(b"s", 0, b"t", 0, 1, b"d")])) == [True] * 8
        append(b, save("r", 5, drop=4))
        assert [e.rev for e in b.entries(b"r", 0, MAX_REV)] == [4, 5]
        assert [a.rev for a in b.attachments(b"r")] == [4, 5, 6]
        assert len(b.entries(b"s", 0, MAX_REV)) == 5
        assert len(b.attachments(b"s")) == 1
        assert [(e.run, e.rev) for e in b.find([3])] == [(b"s", 3)]
        assert [e.rev for e in b.find([50], run=b"r")] == [4]
        append(b, save("r", 6, drop=6))
        assert [e.rev for e in b.entries(b"r", 0, MAX_REV)] == [6]
        assert b.runs() == [(b"r", 6), (b"s", 4)]
        b.close()

    def test_a_stale_writer_conflicts_below_a_drop_too(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, *(save("r", rev) for rev in range(6)), save("r", 6, drop=6))
        assert done(b.commit([save("r", 3, objects=[(object_id(1), b"x")])])) == [False]
        assert done(b.commit([save("r", 0)])) == [False]
        assert [e.rev for e in b.entries(b"r", 0, MAX_REV)] == [6]
        assert b.object_ids() == []
        append(b, save("r", 7))
        b.close()

    def test_recast(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, *(save("r", rev, body=b"long" * 100, tokens=[7]) for rev in range(4)), save("s", 0, body=b"s"))
        before = b.entries(b"r", 0, MAX_REV)
        append(b, save("r", 4, recast=[(1, b"short"), (2, b""), (77, b"nobody")]))
        after = b.entries(b"r", 0, 3)
        # A backend may ignore it, for each entry.
        assert after[1].body in (b"long" * 100, b"short")
        assert after[2].body in (b"long" * 100, b"")
        assert [after[0], after[3]] == [before[0], before[3]]
        assert [(e.rev, e.head, e.cursor) for e in after] == [(e.rev, e.head, e.cursor) for e in before]
        assert [e.rev for e in b.find([7])] == [3, 2, 1, 0]
        assert b.entries(b"r", 77, 77) == []
        assert [e.body for e in b.entries(b"s", 0, 9)] == [b"s"]
        append(b, save("r", 5, drop=2, recast=[(0, b"gone"), (3, b"short")]))
        assert [e.rev for e in b.entries(b"r", 0, MAX_REV)] == [2, 3, 4, 5]
        b.close()

    def test_attachments(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        one = Attach(b"r", 1, b"b", 0, 5, b"data")
        batch = [
            one,
            Attach(b"r", 1, b"a", 2, 5, b""),
            Attach(b"r", 1, b"a", -1, 5, b"neg"),
            Attach(b"r", 0, b"z\x00\xff", 2**31 - 1, 2**53, b"z"),
            Attach(b"s", 1, b"b", 0, 5, b"data"),
        ]
        assert done(b.commit(batch)) == [True] * 5
        assert b.attachments(b"r") == [
            Attachment(0, b"z\x00\xff", 2**31 - 1, 2**53, b"z"),
            Attachment(1, b"a", -1, 5, b"neg"),
            Attachment(1, b"a", 2, 5, b""),
            Attachment(1, b"b", 0, 5, b"data"),
        ]
        again = [one, Attach(b"r", 1, b"b", 0, 6, b"data"), Attach(b"r", 1, b"b", 0, 5, b"else")]
        assert done(b.commit(again)) == [True, False, False]
        assert [a.rev for a in b.attachments(b"r", lo=1)] == [1, 1, 1]
        assert [a.rev for a in b.attachments(b"r", lo=0, hi=0)] == [0]
        assert b.attachments(b"r", lo=2) == []
        # An attachment makes neither an entry nor a run, and the entry may come later.
        assert b.runs() == []
        assert b.head(b"r") is None
        append(b, save("r", 0))
        assert len(b.attachments(b"r")) == 4
        b.close()

    def test_run_keys_are_any_bytes(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        keys = [b"a", b"a\x00", b"a\x00b", b"aa", b"\x00", b"\xff\xfe", b"/../", b"%_'\"", b"A", b"\xff" * 512]
        keys += [b"k" * 511, b"k" * 512, "ключ".encode(), b"exec-1", b"exec-10", b".", b"a/b", b"con"]
        for number, key in enumerate(keys):
            append(b, save(key, 0, body=b"%d" % number, tokens=[number]), save(key, 1, body=b"%d" % number))
            b.commit([Attach(key, 0, key[:8], 0, number, key)])
            assert b.acquire(key, f"owner {number}", 10).epoch == 1
        assert b.runs() == [(key, 1) for key in sorted(keys)]
        for number, key in enumerate(keys):
            assert [(e.run, e.body) for e in b.entries(key, 0, 9)] == [(key, b"%d" % number)] * 2
            assert [e.run for e in b.find([number])] == [key]
            assert len(b.find(run=key)) == 2
            assert [a.data for a in b.attachments(key)] == [key]
            lease = b.lease(key)
            assert lease is not None
            assert lease.owner == f"owner {number}"
        paged: list[tuple[bytes, int]] = []
        while page := b.runs(after=paged[-1][0] if paged else None, limit=4):
            paged += page
        assert paged == b.runs()
        b.close()

    def test_high_revs(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        # Not contiguous, which no caller may do; but a backend must not be damaged by it.
        append(b, save("r", 0))
        jump = done(b.commit([save("r", MAX_REV)]))
        assert jump in ([True], [False])
        revs = [0, MAX_REV] if jump == [True] else [0]
        assert [e.rev for e in b.entries(b"r", 0, MAX_REV)] == revs
        assert b.runs() == [(b"r", revs[-1])]
        append(b, save("s", 0), save("s", 1))
        b.close()
