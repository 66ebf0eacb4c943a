"""Seeing quickly that a long list did not change.

A plain list of plain dicts can be changed in place anywhere, and nobody tells us. A `Block` remembers, for a
stretch of such a list, which objects it held and which objects those held, in flat arrays. Comparing the
arrays by identity runs at the speed of C (below 0.1 us a message) and is exact: containers are the same
objects and hold the same immutable leaves, so nothing can have changed, not even `1` to `True`.
When identities differ (the caller rebuilt its messages) the slower, structural comparison decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from gc import get_referents
from itertools import chain
from operator import is_
from typing import Any, Final

from knotline.codec import FrozenDict, exact, fits, identical, is_leaf

__all__ = ["BLOCK", "Block", "Watch"]

BLOCK: Final = 256
_FEW: Final = 16


class _Bag:
    """The containers on one level below the items of a block, and all that they hold, flattened.

    `get_referents` gives what many containers hold in one call, a fifth of the price of iterating them. For dicts
    it gives the values in their order. The keys are then certain too if the dicts equal their private copies,
    except where one dict holds two equal values (`1` and `True`, say): it could have swapped their keys.
    """

    __slots__ = ("below", "dicts", "held", "items", "keys", "lens", "lists", "mine", "odd", "widths")

    def __init__(self, level: list[Any], privates: list[Any]) -> None:
        pairs = [pair for pair in zip(level, privates, strict=True) if not is_leaf(exact(pair[0]))]
        of_dict = [pair for pair in pairs if type(pair[0]) is dict]
        odd_dict: list[tuple[Any, Any]] = []
        if not _leaf_keys(chain.from_iterable([user for user, _ in of_dict])):
            odd_dict = [pair for pair in of_dict if not _leaf_keys(pair[0])]
            of_dict = [pair for pair in of_dict if _leaf_keys(pair[0])]
        of_list = [pair for pair in pairs if type(pair[0]) in (list, tuple)]
        self.dicts: list[dict[Any, Any]] = [user for user, _ in of_dict]
        self.mine: list[dict[Any, Any]] = [mine for _, mine in of_dict]
        self.lists: list[Any] = [user for user, _ in of_list]
        self.odd = odd_dict + [pair for pair in pairs if type(pair[0]) not in (dict, list, tuple)]
        self.held = get_referents(*self.dicts)
        self.items = get_referents(*self.lists)
        self.lens = list(map(len, self.lists))
        self.keys: list[Any] | None = None
        self.widths: list[int] = []
        if any(map(_holds_twice, self.dicts)) or not _equal(self.mine, self.dicts):
            self.keys = list(chain.from_iterable(self.dicts))
            self.widths = list(map(len, self.dicts))
        below = [item for user in self.dicts for item in user.values()] + [item for user in self.lists for item in user]
        if all(map(is_leaf, set(map(type, below)))):
            self.below = None
        else:
            theirs = [item for mine in self.mine for item in mine.values()]
            self.below = _Bag(below, theirs + [item for _, mine in of_list for item in mine])

    def extend(self, other: _Bag) -> None:
        if (self.keys is None) != (other.keys is None):
            for bag in (self, other):
                bag.keys = list(chain.from_iterable(bag.dicts))
                bag.widths = list(map(len, bag.dicts))
        if self.keys is not None and other.keys is not None:
            self.keys += other.keys
            self.widths += other.widths
        self.dicts += other.dicts
        self.mine += other.mine
        self.held += other.held
        self.lists += other.lists
        self.lens += other.lens
        self.items = get_referents(*self.lists)
        self.odd += other.odd
        if self.below is None:
            self.below = other.below
        elif other.below is not None:
            self.below.extend(other.below)

    def unchanged(self) -> bool:
        dicts, lists = self.dicts, self.lists
        if dicts:
            held = get_referents(*dicts)
            if len(held) != len(self.held) or not all(map(is_, held, self.held)):
                return False
            if self.keys is None:
                if not _equal(self.mine, dicts):
                    return False
            elif list(map(len, dicts)) != self.widths or not all(map(is_, chain.from_iterable(dicts), self.keys)):
                return False
        if lists and not (list(map(len, lists)) == self.lens and all(map(is_, get_referents(*lists), self.items))):
            return False
        for user, private in self.odd:
            if not fits(private, user):
                return False
        return self.below is None or self.below.unchanged()


def _holds_twice(user: dict[Any, Any]) -> bool:
    try:
        return len(set(user.values())) < len(user)
    except TypeError:
        pass
    if len(user) > _FEW:
        return True
    values = list(user.values())
    try:
        return any(value in values[:at] for at, value in enumerate(values))
    except Exception:  # noqa: BLE001 - a foreign __eq__ may raise anything; then nothing is known of them
        return True


def _leaf_keys(keys: Iterable[Any]) -> bool:
    """False if a key is, or holds, something that can change and stay the same object."""
    return all(map(is_leaf, set(map(type, keys))))


def _equal(mine: list[Any], users: list[Any]) -> bool:
    try:
        return mine == users
    except Exception:  # noqa: BLE001 - a foreign __eq__ may raise anything; then they are not known to be equal
        return False


class Block:
    """A stretch of a long list: the caller's own objects, as they were when last seen."""

    __slots__ = ("bag", "frozen", "refs")

    def __init__(self, users: list[Any], privates: list[Any]) -> None:
        self.refs = users
        kinds = set(map(type, users))
        self.frozen = kinds == {FrozenDict}
        self.bag = None if all(map(is_leaf, kinds)) else _Bag(users, privates)

    def join(self, more: Block) -> None:
        """The stretch that follows becomes part of this one."""
        self.refs += more.refs
        self.frozen = self.frozen and more.frozen
        if self.bag is None:
            self.bag = more.bag
        elif more.bag is not None:
            self.bag.extend(more.bag)

    def unchanged(self, users: list[Any]) -> bool:
        if self.frozen:
            return identical(self.refs, users)
        if len(users) != len(self.refs) or not all(map(is_, self.refs, users)):
            return False
        return self.bag is None or self.bag.unchanged()


class Watch:
    """The blocks of one long list, side by side with its private copy."""

    __slots__ = ("blocks", "owner", "seen")

    def __init__(self, owner: list[Any]) -> None:
        self.owner = owner
        self.blocks: list[Block] = []
        self.seen = 0

    def grow(self, users: list[Any], privates: list[Any]) -> None:
        """Items were appended."""
        at = 0
        while at < len(users):
            room = BLOCK - len(self.blocks[-1].refs) if self.blocks else 0
            to = at + (room if room > 0 else BLOCK)
            self._put(Block(users[at:to], privates[at:to]))
            at = to

    def rebuild(self, users: list[Any], keep: list[tuple[int, Block]]) -> None:
        """`keep`: blocks still true and where they now begin, ascending; everything else is looked at anew."""
        self.blocks = []
        at = 0
        for start, block in keep:
            self.grow(users[at:start], self.owner[at:start])
            self._put(block)
            at = start + len(block.refs)
        self.grow(users[at:], self.owner[at:])

    def _put(self, block: Block) -> None:
        if self.blocks and len(self.blocks[-1].refs) + len(block.refs) <= BLOCK:
            self.blocks[-1].join(block)
        else:
            self.blocks.append(block)
