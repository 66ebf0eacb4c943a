"""What changed between the private copy of a run's head and the value that is being saved.

`Shadow.advance(value)` finds the operations that turn the copy into the value, and makes the copy equal to
it: in-place changes, type swaps and key order included. Nothing needs the caller's help, and nothing of the
caller's is kept except references used to notice quickly that nothing happened (`watch.py`).

Operations are plain lists, as `delta.py` applies them:
`[DICT, path, removed keys, set pairs, order or None]`, `[LIST, path, [[at, removed, items], …]]`,
`[TEXT, path, at, removed, text]`, `[ROOT, value]`. Positions are those before the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from knotline.codec import Boxed, OddDict, exact, fits, private, same, show_path
from knotline.codec.forms import ENUM
from knotline.errors import Unstorable
from knotline.store.seal import Rope
from knotline.store.watch import Block, Watch

__all__ = ["DICT", "LIST", "ROOT", "TEXT", "Clean", "Shadow"]

DICT: Final = 0
LIST: Final = 1
TEXT: Final = 2
ROOT: Final = 3

LONG: Final = 64
"""Lists from this length are watched by blocks, and sealed by leaves."""
_LONG_TEXT: Final = 512
_FORGET: Final = 64
"""Saves after which a watch that was not used belongs to a list that is gone."""

_DICTS: Final = (dict, OddDict)
_TEXTS: Final = (str, bytes)

Edit = tuple[int, int, int, int]
"""Old position and count, new position and count."""
Clean = Callable[[Any, tuple[Any, ...]], Any]
"""What a private value is stored as, given where it stands: secrets stay in the caller's own objects."""


class Shadow:
    """The private copy of a head, its watches and ropes."""

    def __init__(self, value: object, ropes: dict[int, Rope] | None = None, *, clean: Clean | None = None) -> None:
        self.value = value
        self._clean = clean
        self.ropes: dict[int, Rope] = ropes or {}
        self._watches: dict[int, Watch] = {}
        self._saves = 0
        self._ops: list[list[Any]] = []

    @classmethod
    def of(cls, value: object, *, clean: Clean | None = None) -> Shadow:
        """A copy of a value that nothing is known about yet."""
        shadow = cls(None, clean=clean)
        shadow.advance(value)
        return shadow

    def advance(self, value: object) -> list[list[Any]]:
        self._ops = []
        self._saves += 1
        mine = self.value
        if not self._descend(mine, value, ()):
            fresh = self._copy(value, ())
            if self._clean is not None and same(mine, fresh):
                return self._ops
            self.value = fresh
            self._ops = [[ROOT, fresh]]
            self._watches.clear()
            self.ropes.clear()
        elif self._saves % _FORGET == 0:
            self._watches = {key: it for key, it in self._watches.items() if it.seen > self._saves - _FORGET}
        return self._ops

    def _descend(self, mine: Any, value: Any, path: tuple[Any, ...]) -> bool:
        """Make `mine` equal to `value` in place; False if that is impossible and it must be replaced."""
        kind = exact(mine)
        if kind in _DICTS and exact(value) in _DICTS:
            return self._dict(mine, value, path)
        if kind is list and exact(value) is list:
            self._list(mine, value, path)
            return True
        return fits(mine, value)

    # -- dicts --------------------------------------------------------------------------------------------

    def _dict(self, mine: dict[Any, Any], value: dict[Any, Any], path: tuple[Any, ...]) -> bool:
        if type(mine) is OddDict and not all(map(_findable, mine)):
            return fits(mine, value)
        if self._same_keys(mine, value):
            pairs: list[Any] = []
            for (key, ours), theirs in zip(list(mine.items()), value.values(), strict=True):
                self._member(mine, key, ours, theirs, path, pairs)
            if pairs:
                self._ops.append([DICT, list(path), [], pairs, None])
            return True
        if type(mine) is dict:
            if not all(map(_is_text, value)):
                return False
            theirs_by_key = value
        else:
            try:
                theirs_by_key = {private(key, depth=len(path) + 1): item for key, item in value.items()}
            except Unstorable:
                return False  # copying the whole dict says it, with the right path
            if len(theirs_by_key) != len(value) or all(map(_is_text, theirs_by_key)):
                return False
            if not all(map(_findable, theirs_by_key)):
                return False
        return self._other_keys(mine, theirs_by_key, path)

    def _other_keys(self, mine: dict[Any, Any], value: dict[Any, Any], path: tuple[Any, ...]) -> bool:
        if self._clean is not None and any(self._clean(key, ()) is not key for key in value if key not in mine):
            return False  # a key that is not stored as it is: cleaned with the whole
        removed = [key for key in mine if key not in value]
        kept = [key for key in mine if key in value]
        natural = [*kept, *(key for key in value if key not in mine)]
        order = None if all(map(same, natural, value)) else list(value)
        own = {key: key for key in kept}
        if order is not None and not all(same(own[key], key) for key in order if key in own):
            return False  # such as True where 1 was: equal to a dict, another key to us
        for key in removed:
            self._drop(mine.pop(key))
        pairs: list[Any] = []
        for key, theirs in value.items():
            if key in mine:
                self._member(mine, key, mine[key], theirs, path, pairs)
            else:
                mine[key] = fresh = self._copy(theirs, (*path, key))
                pairs += (key, fresh)
        if order is not None:
            ordered = {key: mine[key] for key in order}
            mine.clear()
            mine.update(ordered)
        self._ops.append([DICT, list(path), removed, pairs, order])
        return True

    def _member(
        self, mine: dict[Any, Any], key: Any, ours: Any, theirs: Any, path: tuple[Any, ...], pairs: list[Any]
    ) -> None:
        kind = exact(ours)
        if kind is dict or kind is list or kind is OddDict:
            if self._descend(ours, theirs, (*path, key)):
                return
        elif ours is theirs:
            return
        elif kind in _TEXTS and type(theirs) is kind and len(ours) >= _LONG_TEXT:
            if ours == theirs or self._text(mine, key, ours, theirs, (*path, key)):
                return
        elif fits(ours, theirs):
            return
        fresh = self._copy(theirs, (*path, key))
        if self._clean is not None and same(ours, fresh):
            return  # what differs is only what is not stored
        self._drop(ours)
        mine[key] = fresh
        pairs += (key, fresh)

    @staticmethod
    def _same_keys(mine: dict[Any, Any], value: dict[Any, Any]) -> bool:
        return len(mine) == len(value) and all(
            ours is theirs or fits(ours, theirs) for ours, theirs in zip(mine, value, strict=True)
        )

    def _text(self, mine: dict[Any, Any], key: Any, ours: Any, theirs: Any, path: tuple[Any, ...]) -> bool:
        if self._clean is not None:
            theirs = self._clean(theirs, path)
            if ours == theirs:
                return True
        at = _common(ours, theirs)
        rest = min(len(ours), len(theirs)) - at
        tail = _common(ours[len(ours) - rest :][::-1], theirs[len(theirs) - rest :][::-1]) if rest else 0
        fresh = private(theirs[at : len(theirs) - tail])
        if type(fresh) not in _TEXTS:
            return False  # text with lone surrogates has a form of its own
        mine[key] = theirs
        self._ops.append([TEXT, list(path), at, len(ours) - at - tail, fresh])
        return True

    def _copy(self, value: object, path: tuple[Any, ...]) -> Any:
        try:
            fresh = private(value, "", depth=len(path))
        except Unstorable as error:
            raise type(error)((show_path(path) + error.path).lstrip(".") or "value", why=error.why) from error
        return fresh if self._clean is None else self._clean(fresh, path)

    # -- lists --------------------------------------------------------------------------------------------

    def _list(self, mine: list[Any], value: list[Any], path: tuple[Any, ...]) -> None:
        watch = self._watch(mine)
        had = len(mine)
        blocks = watch.blocks if watch is not None else []
        edits, nested, kept = _Aligner(mine, value, blocks).align()
        touched: list[int] = []
        for at, new in nested:
            before = len(self._ops)
            if not self._descend(mine[at], value[new], (*path, at)):
                edits.append((at, 1, new, 1))
            elif len(self._ops) > before:
                touched.append(at)
        edits.sort()
        splices: list[Any] = []
        for at, gone, new, come in edits:
            fresh = [self._copy(value[i], (*path, i)) for i in range(new, new + come)]
            if self._clean is None or gone != come or not all(map(same, mine[at : at + gone], fresh)):
                splices.append([at, gone, fresh])
        for at, gone, fresh in reversed(splices):
            mine[at : at + gone] = fresh
        if splices:
            self._ops.append([LIST, list(path), splices])
        rope = self.ropes.get(id(mine))
        if rope is not None and rope.owner is mine and (splices or touched):
            rope.edit([(at, gone, len(fresh)) for at, gone, fresh in splices], touched)
        if watch is None:
            if len(mine) >= LONG:
                self._watches[id(mine)] = watch = Watch(mine)
                watch.grow(list(value), mine)
        elif not nested and len(splices) <= 1 and (not splices or splices[0][0] == had) and len(kept) == len(blocks):
            if splices:
                watch.grow(value[had:], splices[0][2])
        else:
            watch.rebuild(list(value), kept)
        if watch is not None:
            watch.seen = self._saves

    def _watch(self, mine: list[Any]) -> Watch | None:
        watch = self._watches.get(id(mine))
        return watch if watch is not None and watch.owner is mine else None

    def _drop(self, gone: Any) -> None:
        if exact(gone) is list:
            self._watches.pop(id(gone), None)
            self.ropes.pop(id(gone), None)


class _Aligner:
    """Which items of the old list stand where in the new one. Greedy, exact where it says "equal"."""

    def __init__(self, mine: list[Any], value: list[Any], blocks: list[Block]) -> None:
        self.mine = mine
        self.value = value
        self.starts: dict[int, Block] = {}
        at = 0
        for block in blocks:
            self.starts[at] = block
            at += len(block.refs)
        self.kept: list[tuple[int, Block]] = []
        self.budget = 4 * (len(mine) + len(value)) + 1000
        """Searches cost; past this the rest is replaced as a whole, which is always right."""

    def align(self) -> tuple[list[Edit], list[tuple[int, int]], list[tuple[int, Block]]]:
        mine, value = self.mine, self.value
        had, has = len(mine), len(value)
        edits: list[Edit] = []
        nested: list[tuple[int, int]] = []
        a = b = 0
        while True:
            a, b = self._run(a, b)
            if a == had or b == has:
                break
            if self._pairs(a, b) and (had - a == has - b == 1 or self._next_fits(a, b)):
                nested.append((a, b))
                a, b = a + 1, b + 1
                continue
            gone = self._seek(mine, a + 1, value[b], mine_side=True)
            come = self._seek(value, b + 1, mine[a], mine_side=False)
            if gone is not None and (come is None or gone - a <= come - b):
                edits.append((a, gone - a, b, 0))
                a = gone
            elif come is not None:
                edits.append((a, 0, b, come - b))
                b = come
            elif self.budget <= 0:
                break
            else:
                if self._pairs(a, b):
                    nested.append((a, b))
                else:
                    edits.append((a, 1, b, 1))
                a, b = a + 1, b + 1
        if a < had or b < has:
            edits.append((a, had - a, b, has - b))
        return _joined(edits), nested, self.kept

    def _run(self, a: int, b: int) -> tuple[int, int]:
        """Past all items that are equal from here."""
        mine, value = self.mine, self.value
        had, has = len(mine), len(value)
        while a < had and b < has:
            block = self.starts.get(a)
            if block is not None:
                size = len(block.refs)
                if block.unchanged(value[b : b + size]):
                    self.kept.append((b, block))
                    a, b = a + size, b + size
                    continue
            if not fits(mine[a], value[b]):
                break
            a, b = a + 1, b + 1
        return a, b

    def _pairs(self, a: int, b: int) -> bool:
        """Containers of one kind: better changed inside than replaced."""
        kind = exact(self.mine[a])
        if kind is not exact(self.value[b]):
            return False
        if kind is dict:
            return len(self.mine[a].keys() & self.value[b].keys()) * 2 > len(self.mine[a])
        return kind is list

    def _next_fits(self, a: int, b: int) -> bool:
        return a + 1 < len(self.mine) and b + 1 < len(self.value) and fits(self.mine[a + 1], self.value[b + 1])

    def _seek(self, among: list[Any], start: int, what: object, *, mine_side: bool) -> int | None:
        """Where `what` stands in `among` from `start`: found by `==`, at the speed of C, then checked strictly."""
        stop = min(len(among), start + max(self.budget, 0))
        while start < stop:
            try:
                at = among.index(what, start, stop)
            except ValueError:
                self.budget -= stop - start
                return None
            except Exception:  # noqa: BLE001 - a foreign __eq__ may raise anything; then there is no match
                return None
            self.budget -= at - start + 1
            if fits(among[at], what) if mine_side else fits(what, among[at]):
                return at
            start = at + 1
        return None


def _joined(edits: list[Edit]) -> list[Edit]:
    """Neighbouring edits as one."""
    joined: list[Edit] = []
    for edit in edits:
        if joined:
            at, gone, new, come = joined[-1]
            if at + gone == edit[0] and new + come == edit[2]:
                joined[-1] = (at, gone + edit[1], new, come + edit[3])
                continue
        joined.append(edit)
    return joined


def _is_text(key: object) -> bool:
    """May a plain private dict have this key?"""
    return type(key) is str and (key.isascii() or private(key) is key)


def _findable(key: Any) -> bool:
    """Does a dict find this private key by another copy of it, as operations read from bytes must?

    NaN equals nothing, and for a user's class only the very same object may be equal.
    """
    kind = exact(key)
    if kind is tuple:
        return all(map(_findable, key))
    if kind is Boxed:
        return key.code == ENUM
    return key == key  # false for NaN


def _common(a: Any, b: Any) -> int:
    """Length of the common prefix of two texts, by halves: each test is one memcmp."""
    if a[: len(b)] == b[: len(a)]:
        return min(len(a), len(b))
    lo, hi = 0, min(len(a), len(b))
    while lo < hi:
        middle = (lo + hi + 1) // 2
        if a[lo:middle] == b[lo:middle]:
            lo = middle
        else:
            hi = middle - 1
    return lo
