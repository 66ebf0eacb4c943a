"""A whole state as immutable pieces, and back.

A *seal* writes the state as a small root that links to objects: large values, and the leaves of long lists.
Leaves that did not change since the last seal are linked again, not written again. A `Rope` remembers, for
each long list of a head, which stretches are sealed in which leaf and which are loose.

Node payloads (`codec.Node`): `REF` the id of an object that is the value; `SPAN` ids and item counts of the
leaves of a list; `TABLE` the ids of leaves that hold the key-value pairs of a large dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from knotline.codec import (
    ID,
    MAX_BYTES,
    MAX_DEPTH,
    Node,
    OddDict,
    close_piece,
    decode,
    digest,
    encode,
    exact,
    open_piece,
)
from knotline.errors import Damaged, UnknownFormat

__all__ = ["INLINE", "REF", "SPAN", "TABLE", "Pieces", "Revive", "Rope", "object_id"]

REF: Final = 100
SPAN: Final = 101
TABLE: Final = 102

INLINE: Final = 4096
"""Values from this size become objects of their own, in deltas and leaves."""
PART: Final = 1024
"""In a root: what does not change is worth an object from this size, since every seal would repeat it."""
LEAF_ITEMS: Final = 64
LEAF_BYTES: Final = 64 * 1024
LEAST_ITEMS: Final = 32
"""A sealed leaf smaller than this is written again together with loose neighbours, so that leaves do not shrink."""
LONG_LIST: Final = 64
LARGE_DICT: Final = 256
REPEATS: Final = 16
"""A state may open to so many times what it is stored in, and `MAX_BYTES` more."""
GROUP: Final = 64
"""Leaves per index node, once there are more than one and a half times as many."""
_LEVELS: Final = 16
"""More than any list has: 64 to this power are more items than there are addresses."""


def object_id(links: bytes, payload: bytes) -> bytes:
    return digest(b"obj", links, payload)


class Rope:
    """Where the items of a long list are sealed: `[leaf id or None, count]` by stretch."""

    __slots__ = ("count", "mean", "owner", "parts")

    def __init__(self, owner: list[Any], parts: list[tuple[bytes | None, int]], mean: int = 0) -> None:
        self.owner = owner
        self.parts = parts
        self.count = sum(count for _, count in parts)
        self.mean = mean
        """Bytes of an item, roughly."""

    def _append(self, count: int) -> None:
        self.count += count
        if self.parts and self.parts[-1][0] is None:
            count += self.parts.pop()[1]
        self.parts.append((None, count))

    def loose_bytes(self) -> int:
        """What sealing again would write."""
        if not self.mean:
            sample = self.owner[:: max(1, len(self.owner) // 8)]
            self.mean = sum(len(encode(item)) for item in sample) // max(1, len(sample))
        return self.mean * sum(count for leaf, count in self.parts if leaf is None)

    def edit(self, splices: Iterable[tuple[int, int, int]], touched: Iterable[int]) -> None:
        """Splices `(at, gone, come)` and items changed inside, all in the positions before them."""
        changes = sorted([*splices, *((at, 1, 1) for at in touched)])
        if len(changes) == 1 and changes[0][0] == self.count and changes[0][1] == 0:
            self._append(changes[0][2])  # by far the most frequent edit
            return
        self.count += sum(come - gone for _, gone, come in changes)
        parts: list[tuple[bytes | None, int]] = []
        queue = iter(self.parts)
        leaf, left, whole = None, 0, 0
        position = 0

        def put(name: bytes | None, count: int) -> None:
            if count == 0:
                return
            if name is None and parts and parts[-1][0] is None:
                parts[-1] = (None, parts[-1][1] + count)
            else:
                parts.append((name, count))

        def skip(count: int, *, keep: bool) -> None:
            nonlocal leaf, left, whole
            while count:
                if left == 0:
                    leaf, whole = next(queue)
                    left = whole
                step = min(count, left)
                if keep:
                    put(leaf if step == whole else None, step)
                left -= step
                count -= step

        for at, gone, come in changes:
            # A leaf that is cut becomes loose: what is left of it will be written with its neighbours.
            skip(at - position, keep=True)
            skip(gone, keep=False)
            put(None, come)
            position = at + gone
        if left:
            put(leaf if left == whole else None, left)
        for leaf, count in queue:
            put(leaf, count)
        self.parts = parts


@dataclass(slots=True)
class Pieces:
    """Collects the objects of one save. `known` are ids that the store is sure to hold for this head."""

    known: set[bytes]
    links: list[bytes] = field(default_factory=list[bytes])
    objects: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    fresh: list[bytes] = field(default_factory=list[bytes])
    """Plain payloads of new leaves, the dictionary for the entries that this seal covers."""
    fresh_ids: list[bytes] = field(default_factory=list[bytes])

    def lift(self, value: Any, least: int, links: list[bytes], *, top: bool = False) -> Any:
        """The value with everything of `least` bytes or more as a REF; links are noted."""
        kind = exact(value)
        if kind is str or kind is bytes:
            if len(value) < least:
                return value
            return self._object(encode(value), [], links)
        if kind is dict:
            own: list[bytes] = []
            value = {key: self.lift(item, least, own) for key, item in value.items()}
        elif kind is list:
            own = []
            value = [self.lift(item, least, own) for item in value]
        elif kind is OddDict:
            own = []
            value = OddDict({key: self.lift(item, least, own) for key, item in value.items()})
        elif kind in _SMALL:
            return value
        else:
            own = []
        if not top:
            payload = encode(value)
            if len(payload) >= least:
                return self._object(payload, own, links)
        links += own
        return value

    def root(self, value: Any, ropes: dict[int, Rope]) -> tuple[Any, dict[int, Rope]]:
        """The tree to put in a sealed entry, with its links noted in `links`, and the ropes from here on."""
        new: dict[int, Rope] = {}
        return self._root(value, ropes, new, self.links, top=True), new

    def _root(
        self, value: Any, ropes: dict[int, Rope], new: dict[int, Rope], links: list[bytes], *, top: bool = False
    ) -> Any:
        kind = exact(value)
        own: list[bytes] = []
        if kind is list and len(value) >= LONG_LIST and self._small_items(value):
            return self._span(value, ropes, new, links)
        if kind is dict:
            if len(value) >= LARGE_DICT:
                return self._table(value, links)
            value = {key: self._root(item, ropes, new, own) for key, item in value.items()}
        elif kind is list:
            value = [self._root(item, ropes, new, own) for item in value]
        else:
            return self.lift(value, PART, links, top=top)
        if not top:
            payload = encode(value)
            if len(payload) - len(own) * (ID + 2) >= PART:  # links change with every seal: no use to set them apart
                return self._object(payload, own, links)
        links += own
        return value

    @staticmethod
    def _small_items(value: list[Any]) -> bool:
        # A sample decides: lists of large things are better sealed thing by thing.
        sample = value[:: max(1, len(value) // 16)]
        return sum(len(encode(item)) for item in sample) < INLINE * len(sample)

    def _span(self, value: list[Any], ropes: dict[int, Rope], new: dict[int, Rope], links: list[bytes]) -> Node:
        rope = ropes.get(id(value))
        parts: list[tuple[bytes | None, int]] = [(None, len(value))]
        if rope is not None and rope.owner is value:
            parts = rope.parts
        sealed: list[tuple[bytes | None, int]] = []
        at = 0
        for leaf, count in _absorbed(parts):
            if leaf is not None:
                sealed.append((leaf, count))
            else:
                sealed += self._leaves(value[at : at + count])
            at += count
        new[id(value)] = Rope(value, sealed)
        return self._index([(leaf, count) for leaf, count in sealed if leaf is not None], links)

    def _index(self, leaves: list[tuple[bytes, int]], links: list[bytes]) -> Node:
        level = 0
        while len(leaves) > GROUP * 3 // 2:
            whole = len(leaves) - len(leaves) % GROUP
            grouped: list[tuple[bytes, int]] = []
            for lo in range(0, whole, GROUP):
                group = leaves[lo : lo + GROUP]
                ids = [leaf for leaf, _ in group]
                payload = encode([level, b"".join(ids), [count for _, count in group]])
                grouped.append((self._store(payload, ids), sum(count for _, count in group)))
            rest = leaves[whole:]
            if rest:
                ids = [leaf for leaf, _ in rest]
                payload = encode([level, b"".join(ids), [count for _, count in rest]])
                grouped.append((self._store(payload, ids), sum(count for _, count in rest)))
            leaves = grouped
            level += 1
        links += [leaf for leaf, _ in leaves]
        return Node(SPAN, encode([level, b"".join([leaf for leaf, _ in leaves]), [count for _, count in leaves]]))

    def _leaves(self, items: list[Any]) -> list[tuple[bytes, int]]:
        leaves: list[tuple[bytes, int]] = []
        batch: list[Any] = []
        own: list[bytes] = []
        size = 0
        for number, item in enumerate(items, 1):
            batch.append(self.lift(item, INLINE, own))
            size += len(encode(batch[-1]))
            if len(batch) >= LEAF_ITEMS or size >= LEAF_BYTES or number == len(items):
                leaves.append((self._store(encode(batch), own, leaf=True), len(batch)))
                batch, own, size = [], [], 0
        return leaves

    def _table(self, value: dict[Any, Any], links: list[bytes]) -> Node:
        # Cut by content: a key decides whether a leaf ends after it, so one edit moves at most one border.
        ids: list[bytes] = []
        batch: list[Any] = []
        own: list[bytes] = []
        size = 0
        for number, (key, item) in enumerate(value.items(), 1):
            batch += (key, self.lift(item, INLINE, own))
            size += len(encode(batch[-1]))
            border = crc32(encode(key)) % 32 == 0 and size > 1024
            if border or size >= LEAF_BYTES or number == len(value):
                ids.append(self._store(encode(batch), own, leaf=True))
                batch, own, size = [], [], 0
        links += ids
        return Node(TABLE, b"".join(ids))

    def _object(self, payload: bytes, own: list[bytes], links: list[bytes]) -> Node:
        name = self._store(payload, own)
        links.append(name)
        return Node(REF, name)

    def _store(self, payload: bytes, links: list[bytes], *, leaf: bool = False) -> bytes:
        links = list(dict.fromkeys(links))
        name = object_id(b"".join(links), payload)
        if name not in self.known and name not in self.objects:
            self.objects[name] = close_piece(links, payload)
            if leaf:
                self.fresh.append(payload)
                self.fresh_ids.append(name)
        return name


_SMALL: Final = frozenset({type(None), bool, int, float})


def _absorbed(parts: list[tuple[bytes | None, int]]) -> list[tuple[bytes | None, int]]:
    """Small sealed leaves beside a loose stretch become part of it."""
    out: list[tuple[bytes | None, int]] = []
    for leaf, count in parts:
        loose = leaf is None
        if out and (out[-1][0] is None or loose):
            last, before = out[-1]
            if loose and last is not None and before < LEAST_ITEMS:
                out[-1] = (None, before)
                last = None
            if last is None and (loose or count < LEAST_ITEMS):
                out[-1] = (None, out[-1][1] + count)
                continue
        out.append((leaf, count))
    return out


class Revive:
    """Resolves nodes while decoding, from objects fetched before. Every use gives a fresh value; text is shared.

    A tree may link one leaf any number of times, so a few bytes could ask for all the memory there is: what may be
    opened again is bounded by what is really there.
    """

    def __init__(self, payloads: dict[bytes, bytes], *, private: bool) -> None:
        self.payloads = payloads
        self.private = private
        self._left = MAX_BYTES + REPEATS * sum(map(len, payloads.values()))
        self._texts: dict[bytes, str | bytes] = {}
        self.ropes: dict[int, Rope] = {}
        self._depth = 0

    def __call__(self, code: int, payload: bytes) -> object:
        if code == REF:
            return self.value(payload)
        if code == SPAN:
            parts: list[tuple[bytes | None, int]] = []
            items: list[Any] = []
            self._span(payload, items, parts, None)
            if self.private:
                self.ropes[id(items)] = Rope(items, parts)
            return items
        if code == TABLE:
            table: dict[Any, Any] = {}
            for at in range(0, len(payload), ID):
                name = payload[at : at + ID]
                flat = self._list(name)
                try:
                    table.update(zip(flat[::2], flat[1::2], strict=True))
                except (TypeError, ValueError) as error:
                    raise Damaged(f"object {name.hex()}", why="it does not hold keys and their values") from error
            return table
        raise UnknownFormat("stored tree", found=f"node {code}")

    def value(self, name: bytes) -> Any:
        payload = self.payloads.get(name)
        if payload is None:
            raise Damaged(f"object {name.hex()}", why="it is missing")
        if self._depth > MAX_DEPTH:
            raise Damaged(f"object {name.hex()}", why="objects nest too deeply")
        shared = self._texts.get(name)
        if shared is not None:
            return shared
        self._left -= len(payload)
        if self._left < 0:
            raise Damaged(f"object {name.hex()}", why="its state repeats it beyond all measure")
        self._depth += 1
        try:
            value = decode(payload, resolve=self, private=self.private)
        finally:
            self._depth -= 1
        if type(value) is str or type(value) is bytes:
            self._texts[name] = value
        return value

    def _list(self, name: bytes) -> list[Any]:
        value = self.value(name)
        if exact(value) is not list:
            raise Damaged(f"object {name.hex()}", why="it is not a leaf")
        return value

    def _span(self, payload: bytes, items: list[Any], parts: list[tuple[bytes | None, int]], above: int | None) -> None:
        index: Any = decode(payload)
        if exact(index) is not list or list(map(exact, index)) != [int, bytes, list]:
            raise UnknownFormat("stored list", found="another index")
        level: int = index[0]
        ids: bytes = index[1]
        counts: list[int] = index[2]
        if not 0 <= level <= _LEVELS or (above is not None and level != above - 1):
            raise Damaged("stored list", why=f"an index of level {level} where there should be another")
        for number, count in enumerate(counts):
            name = ids[number * ID : number * ID + ID]
            before = len(items)
            if level:
                self._span(self.payloads.get(name, b""), items, parts, level)
            else:
                items += self._list(name)
                parts.append((name, count))
            if len(items) - before != count:
                raise Damaged(f"object {name.hex()}", why="it does not hold the items it should")


def fetch(names: Iterable[bytes], read: Callable[[list[bytes]], dict[bytes, bytes]], into: dict[bytes, bytes]) -> None:
    """Read and check these objects and all that they link to."""
    wanted = [name for name in dict.fromkeys(names) if name not in into]
    while wanted:
        found = read(wanted)
        deeper: dict[bytes, None] = {}
        for name in wanted:
            stored = found.get(name)
            if stored is None:
                raise Damaged(f"object {name.hex()}", why="it is missing")
            links, payload = open_piece(stored, f"object {name.hex()}")
            if object_id(b"".join(links), payload) != name:
                raise Damaged(f"object {name.hex()}", why="its bytes do not match its id")
            into[name] = payload
            deeper.update(dict.fromkeys(links))
        wanted = [name for name in deeper if name not in into]
