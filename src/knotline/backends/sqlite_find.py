"""How entries are found by their tokens: which of the conditions drives, and how the unindexed tail joins in.

Apart from the backend because it is the one read that plans.
"""

# ruff: noqa: S608 - the statements are put together from fragments of this file; every value is bound

from __future__ import annotations

import struct
from collections.abc import Sequence

from knotline.backends.contract import Entry
from knotline.backends.sqlite_file import Cursor
from knotline.errors import Damaged

__all__ = ["find", "pack", "unpack"]

# How far the conditions are counted to find the rarest one: first so far, and further only if that tells nothing.
_COUNTED = (512, 4096)
_OUTSIDE = 2**62


def pack(tokens: Sequence[int]) -> bytes | None:
    if not tokens:
        return None
    once = sorted(set(tokens))
    return struct.pack(f"<{len(once)}I", *once)


def unpack(packed: object) -> tuple[int, ...]:
    if packed is None:
        return ()
    if not isinstance(packed, bytes) or len(packed) % 4:
        raise Damaged("the tokens of an entry", why="they are no list of numbers")
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def find(
    at: Cursor, tokens: Sequence[int], *, run: bytes | None, beyond: int | None, newest: bool, limit: int
) -> list[Entry]:
    """The contract's `find`, inside a transaction of the caller's (several reads must see one state)."""
    number: int | None = None
    if run is not None:
        numbers = at.execute("SELECT n FROM run WHERE key=?", (run,)).fetchall()
        if not numbers:
            return []
        number = numbers[0][0]
    # Every case below is "cursors strictly between lo and hi, in one direction".
    lo, hi = 0, _OUTSIDE
    if beyond is not None:
        lo, hi = (lo, min(beyond, hi)) if newest else (max(beyond, lo), hi)
    if limit <= 0 or hi <= lo + 1:
        return []
    wanted = sorted(set(tokens))
    search = _Search(at, wanted, number=number, lo=lo, hi=hi, newest=newest)
    if not wanted:
        return search.all(limit) if number is None else search.within_run(lo, hi, limit)
    indexed: int = at.execute("SELECT value FROM meta WHERE name='indexed'").fetchall()[0][0]
    if newest:
        found = search.tail(indexed, limit)
        return found + search.indexed(indexed, limit - len(found)) if len(found) < limit else found
    found = search.indexed(indexed, limit)
    return found + search.tail(indexed, limit - len(found)) if len(found) < limit else found


class _Search:
    def __init__(
        self, at: Cursor, wanted: Sequence[int], *, number: int | None, lo: int, hi: int, newest: bool
    ) -> None:
        self._at = at
        self._wanted = wanted
        self._run = number
        self._lo = lo
        self._hi = hi
        self._way = "DESC" if newest else "ASC"

    def _entries(self, sql: str, values: Sequence[int]) -> list[Entry]:
        rows = self._at.execute(sql, values).fetchall()
        return [Entry(run, rev, head, None, cursor, unpack(packed)) for cursor, run, rev, head, packed in rows]

    def all(self, limit: int) -> list[Entry]:
        return self._entries(
            "SELECT l.seq, r.key, l.rev, l.head, l.tokens FROM log l CROSS JOIN run r ON r.n=l.run"
            f" WHERE l.seq>? AND l.seq<? ORDER BY l.seq {self._way} LIMIT ?",
            (self._lo, self._hi, limit),
        )

    def within_run(self, lo: int, hi: int, limit: int) -> list[Entry]:
        """By the run's own index: within a run the cursors ascend with the revs."""
        low, high = self._rev(lo, beyond=1), self._rev(hi, beyond=-1)
        if low is None or high is None:
            return []
        carried = " AND EXISTS(SELECT 1 FROM idx WHERE token=? AND seq=l.seq)" * len(self._wanted)
        return self._entries(
            "SELECT l.seq, r.key, l.rev, l.head, l.tokens FROM run r CROSS JOIN log l INDEXED BY log_rev ON l.run=r.n"
            f" WHERE r.n=? AND l.rev BETWEEN ? AND ?{carried} ORDER BY l.rev {self._way} LIMIT ?",
            (self._run or 0, low, high, *self._wanted, limit),
        )

    def _rev(self, cursor: int, *, beyond: int) -> int | None:
        """The first rev of the run strictly beyond a cursor, upwards (1) or downwards (-1)."""
        if cursor in (0, _OUTSIDE):
            return -_OUTSIDE if beyond > 0 else _OUTSIDE
        exact = self._at.execute("SELECT rev FROM log WHERE seq=? AND run=?", (cursor, self._run)).fetchall()
        if exact:
            return exact[0][0] + beyond
        # A cursor from elsewhere, or of an entry that was dropped: walk the run's index, which holds both.
        sign, way = (">", "ASC") if beyond > 0 else ("<", "DESC")
        sql = f"SELECT rev FROM log INDEXED BY log_rev WHERE run=? AND +seq{sign}? ORDER BY rev {way} LIMIT 1"
        rows = self._at.execute(sql, (self._run, cursor)).fetchall()
        return rows[0][0] if rows else None

    def tail(self, indexed: int, limit: int) -> list[Entry]:
        """Entries too young for the index: few, so their own token lists are read."""
        low = max(self._lo, indexed)
        if self._hi <= low + 1:
            return []
        rows = self._at.execute(
            "SELECT l.seq, r.key, l.rev, l.head, l.run, l.tokens FROM log l CROSS JOIN run r ON r.n=l.run"
            f" WHERE l.seq>? AND l.seq<? AND l.tokens IS NOT NULL ORDER BY l.seq {self._way}",
            (low, self._hi),
        ).fetchall()
        wanted = frozenset(self._wanted)
        return [
            Entry(key, rev, head, None, cursor, unpack(packed))
            for cursor, key, rev, head, run, packed in rows
            if self._run in (None, run) and wanted.issubset(unpack(packed))
        ][:limit]

    def indexed(self, indexed: int, limit: int) -> list[Entry]:
        """Entries of the index: the rarest condition drives, the others are looked up for each."""
        hi = min(self._hi, indexed + 1)
        if hi <= self._lo + 1:
            return []
        tokens, by_run = self._plan()
        if by_run:
            return self.within_run(self._lo, hi, limit)
        carried = " AND EXISTS(SELECT 1 FROM idx b WHERE b.token=? AND b.seq=a.seq)" * (len(tokens) - 1)
        within = "" if self._run is None else " AND l.run=?"
        return self._entries(
            "SELECT a.seq, r.key, l.rev, l.head, l.tokens FROM idx a CROSS JOIN log l ON l.seq=a.seq"
            f" CROSS JOIN run r ON r.n=l.run WHERE a.token=? AND a.seq>? AND a.seq<?{carried}{within}"
            f" ORDER BY a.seq {self._way} LIMIT ?",
            (tokens[0], self._lo, hi, *tokens[1:], *(() if self._run is None else (self._run,)), limit),
        )

    def _plan(self) -> tuple[list[int], bool]:
        """The tokens, rarest first, and whether the run is rarer still."""
        tokens = list(self._wanted)
        if len(tokens) == 1 and self._run is None:
            return tokens, False
        least = size = 0
        for most in _COUNTED:
            reach = {token: self._count("SELECT 1 FROM idx WHERE token=?", token, most) for token in tokens}
            tokens.sort(key=reach.__getitem__)
            least = reach[tokens[0]]
            size = least + 1 if self._run is None else self._count("SELECT 1 FROM log WHERE run=?", self._run, most)
            if min(least, size) < most:
                break
        return tokens, size <= least

    def _count(self, sql: str, what: int, most: int) -> int:
        return self._at.execute(f"SELECT count(*) FROM ({sql} LIMIT ?)", (what, most)).fetchall()[0][0]
