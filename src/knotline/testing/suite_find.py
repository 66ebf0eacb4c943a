"""The suite's part on finding entries: tokens, order, pages and cursors."""

from __future__ import annotations

import random
from pathlib import Path

from knotline.backends.contract import MAX_TOKEN, Backend, Entry
from knotline.testing.suite_place import SuitePlace, append, done, save

__all__ = ["FindLaws"]


def _pages(b: Backend, tokens: list[int], *, run: bytes | None, newest: bool, limit: int) -> list[Entry]:
    found: list[Entry] = []
    while True:
        beyond = found[-1].cursor if found else None
        page = b.find(tokens, run=run, beyond=beyond, newest=newest, limit=limit)
        assert len(page) <= limit
        found += page
        if len(page) < limit:
            return found


class FindLaws(SuitePlace):
    def test_find_by_all_tokens(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, save("r", 0, tokens=[1, 2]), save("s", 0, tokens=[2, 3, 3]), save("r", 1, tokens=[0, MAX_TOKEN]))
        append(b, save("t", 0))
        assert [(e.run, e.rev, e.body) for e in b.find([2])] == [(b"s", 0, None), (b"r", 0, None)]
        assert [e.run for e in b.find([2, 1])] == [b"r"]
        assert [e.run for e in b.find([3, 3, 2])] == [b"s"]
        assert b.find([1, 3]) == []
        assert b.find([4]) == []
        assert [e.tokens for e in b.find()] == [(), (0, MAX_TOKEN), (2, 3), (1, 2)]
        assert [e.tokens for e in b.find([2])] == [(2, 3), (1, 2)]
        assert [e.tokens for e in b.find([MAX_TOKEN], run=b"r")] == [(0, MAX_TOKEN)]
        assert [e.tokens for e in b.entries(b"r", 0, 1)] == [(1, 2), (0, MAX_TOKEN)]
        assert [e.tokens for e in (b.head(b"s"), b.head(b"t")) if e is not None] == [(2, 3), ()]
        assert [e.rev for e in b.find([MAX_TOKEN])] == [1]
        assert [e.rev for e in b.find([0])] == [1]
        assert [e.run for e in b.find()] == [b"t", b"r", b"s", b"r"]
        assert [e.run for e in b.find(newest=False)] == [b"r", b"s", b"r", b"t"]
        assert [e.head for e in b.find([2], run=b"r")] == [e.head for e in b.entries(b"r", 0, 0)]
        assert b.find([2], run=b"t") == []
        assert b.find(run=b"nobody") == []
        assert len(b.find(limit=2)) == 2
        b.close()

    def test_find_agrees_with_a_scan(self, tmp_path: Path) -> None:
        """Many entries, so that whatever a backend does lazily has happened; then every way of asking."""
        b = self.open(tmp_path)
        dice = random.Random(7)
        revs: dict[bytes, int] = {}
        carried: dict[tuple[bytes, int], set[int]] = {}
        dropped: dict[bytes, int] = {}
        for _ in range(90):
            batch = [dice.choice([b"a", b"b", b"c", b"d%d" % dice.randrange(30)]) for _ in range(dice.choice([1, 6]))]
            for run in batch:
                rev = revs.get(run, -1) + 1
                tokens = {t for t in range(8) if dice.random() < 1 / (t + 1)}
                if dice.random() < 0.02:
                    tokens.add(99)
                drop = max(0, rev - 20) if dice.random() < 0.1 else 0
                assert done(b.commit([save(run, rev, tokens=sorted(tokens), drop=drop)], sync=False)) == [True]
                revs[run] = rev
                carried[run, rev] = tokens
                dropped[run] = max(drop, dropped.get(run, 0))
        everything = b.find(newest=False, limit=10_000)
        assert len(everything) == sum(1 for run, rev in carried if rev >= dropped[run])
        assert [e.cursor for e in everything] == sorted({e.cursor for e in everything})
        for tokens in ([], [0], [1], [7], [99], [0, 1], [3, 2, 1], [7, 0, 99], [5, 12345]):
            for run in (None, b"a", b"d3", b"nobody"):
                wanted = [e for e in everything if set(tokens) <= carried[e.run, e.rev] and run in (None, e.run)]
                for limit in (7, 1000):
                    assert _pages(b, tokens, run=run, newest=False, limit=limit) == wanted, (tokens, run)
                    assert _pages(b, tokens, run=run, newest=True, limit=limit) == wanted[::-1], (tokens, run)
        b.close()

    def test_beyond_is_any_cursor(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, *(save(f"r{n % 3}", n // 3, tokens=[n % 2]) for n in range(30)))
        everything = b.find(newest=False)
        for entry in everything:
            older = [e for e in everything if e.cursor < entry.cursor]
            newer = [e for e in everything if e.cursor > entry.cursor]
            assert b.find(beyond=entry.cursor) == older[::-1]
            assert b.find(beyond=entry.cursor, newest=False) == newer
            assert b.find(run=b"r1", beyond=entry.cursor) == [e for e in older[::-1] if e.run == b"r1"]
            assert b.find(run=b"r1", beyond=entry.cursor, newest=False) == [e for e in newer if e.run == b"r1"]
        b.close()

    def test_cursors_outlive_what_they_point_at(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        append(b, *(save(run, rev, tokens=[1]) for rev in range(4) for run in ("r", "s")))
        middle = b.find(run=b"r", newest=False)[1]
        append(b, save("r", 4, tokens=[1], drop=4))
        assert [e.rev for e in b.find(run=b"r", beyond=middle.cursor)] == []
        assert [e.rev for e in b.find(run=b"r", beyond=middle.cursor, newest=False)] == [4]
        assert [(e.run, e.rev) for e in b.find([1], beyond=middle.cursor)] == [(b"s", 0)]
        assert [(e.run, e.rev) for e in b.find([1], beyond=middle.cursor, newest=False)] == [
            (b"s", 1),
            (b"s", 2),
            (b"s", 3),
            (b"r", 4),
        ]
        b.close()

    def test_a_cursor_is_never_given_twice(self, tmp_path: Path) -> None:
        b = self.open(tmp_path)
        cursors: list[int] = []
        for rev in range(12):
            append(b, save("r", rev, drop=rev))
            head = b.head(b"r")
            assert head is not None
            cursors.append(head.cursor)
            if self.persistent and rev % 4 == 0:
                b.compact()
                b.close()
                b = self.open(tmp_path)
        assert cursors == sorted(set(cursors))
        b.close()
