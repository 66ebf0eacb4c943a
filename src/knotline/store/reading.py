"""From stored bytes to a state: the newest seal and the few deltas after it, every byte checked on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from knotline.backends import MAX_REV, Backend, Entry
from knotline.codec import check_body, decode, make_dictionary, open_head, open_piece
from knotline.codec.bodies import Body, Delta, Fork, Root, open_body
from knotline.errors import Damaged, NotFound
from knotline.records import NOWHERE, Header
from knotline.store.delta import apply
from knotline.store.names import run_name
from knotline.store.seal import Revive, Rope, fetch

__all__ = ["Loaded", "Opened", "Reader", "Sight"]

_HOPS: Final = 10_000
"""Forks of forks without a save between them; past this it is a loop in damaged data."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An entry whose head and body have been checked."""

    header: Header
    body: Body
    links: list[bytes]
    payload: bytes
    stored: bytes


@dataclass(slots=True)
class Loaded:
    tree: Any
    ropes: dict[int, Rope]
    known: set[bytes]
    anchor: int
    root_size: int
    window: list[Opened]
    """Deltas of this run since the anchor, oldest first."""


@dataclass(slots=True)
class Sight:
    """What one load has read so far."""

    payloads: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    dictionaries: dict[tuple[bytes, int], Any] = field(default_factory=dict[tuple[bytes, int], Any])


class Reader:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    # -- heads --------------------------------------------------------------------------------------------

    def head(self, key: bytes) -> Header | None:
        entry = self._backend.head(key)
        return None if entry is None else open_head(entry.head, run_name(key), entry.rev)

    def header(self, key: bytes, rev: int) -> Header:
        found = self._backend.entries(key, rev, rev, bodies=False) if 0 <= rev <= MAX_REV else []
        if not found:
            raise NotFound("revision", f"{run_name(key)}@{rev}")
        return open_head(found[0].head, run_name(key), rev)

    # -- states -------------------------------------------------------------------------------------------

    def load(self, key: bytes, header: Header, *, private: bool = False) -> Loaded:
        """The state that is current after this entry."""
        if header.pos == NOWHERE:
            raise NotFound("state", f"{header.run}@{header.rev}")
        seen = Sight()
        chain = self._chain(key, header.pos, seen)
        fetch((name for opened in chain for name in opened.links), self._backend.objects, seen.payloads)
        revive = Revive(seen.payloads, private=private)
        tree: Any = None
        root = chain[0]
        if isinstance(root.body, Root):
            tree = decode(root.body.tree, resolve=revive, private=private)
        for opened in chain[1:]:
            if isinstance(opened.body, Delta):
                ops: Any = decode(opened.body.ops, resolve=revive, private=private)
                what = f"entry {opened.header.run!r} at {opened.header.rev}"
                tree = apply(tree, ops, revive.ropes if private else {}, what)
        own = [opened for opened in chain if opened.header.run == header.run]
        return Loaded(
            tree=tree,
            ropes=revive.ropes,
            known=set(seen.payloads),
            anchor=own[0].header.rev,
            root_size=len(root.payload),
            window=[opened for opened in own if isinstance(opened.body, Delta)],
        )

    def _chain(self, key: bytes, rev: int, seen: Sight) -> list[Opened]:
        """A root and the deltas (and forks) after it, in the order in which they apply."""
        chain: list[Opened] = []
        for _ in range(_HOPS):
            last = self.open(self._entry(key, rev), seen)
            part = [last]
            if isinstance(last.body, Delta):
                between = {
                    entry.rev: entry
                    for entry in self._backend.entries(key, last.body.anchor, rev - 1)
                    if entry.rev < rev
                }
                while isinstance((body := part[-1].body), Delta):
                    below = between.get(body.base)
                    if below is None and not self._backend.entries(key, 0, body.anchor, bodies=False):
                        raise NotFound(
                            "state", f"{run_name(key)}@{rev}"
                        )  # its entry outlived a prune of what it is made of
                    if below is None or body.base >= part[-1].header.rev:
                        raise Damaged(f"entry {run_name(key)!r} at {body.base}", why="it is missing")
                    part.append(self.open(below, seen))
            chain += part
            end = part[-1]
            if isinstance(end.body, Root):
                return chain[::-1]
            if not isinstance(end.body, Fork):
                raise Damaged(f"entry {run_name(key)!r} at {end.header.rev}", why="it holds no state")
            key, rev = end.body.origin, end.body.rev
            origin = self._entry(key, rev)
            if open_head(origin.head, run_name(key), rev).hash != end.body.hash:
                raise Damaged(f"entry {run_name(key)!r} at {rev}", why="it is not the one that was forked")
        raise Damaged(f"run {run_name(key)!r}", why="its origins form a loop")

    def _entry(self, key: bytes, rev: int) -> Entry:
        found = self._backend.entries(key, rev, rev)
        if not found:
            raise NotFound("revision", f"{run_name(key)}@{rev}")
        return found[0]

    def open(self, entry: Entry, seen: Sight | None = None) -> Opened:
        seen = seen or Sight()
        name = run_name(entry.run)
        header = open_head(entry.head, name, entry.rev)
        what = f"body of {name!r} at {entry.rev}"
        stored = entry.body or b""
        links, payload = open_piece(stored, what, seal=lambda rev: self._dictionary(entry.run, rev, seen))
        check_body(header, entry.head, entry.run, b"".join(links), payload)
        return Opened(header, open_body(payload, what), links, payload, stored)

    def _dictionary(self, key: bytes, rev: int, seen: Sight) -> Any:
        found = seen.dictionaries.get((key, rev))
        if found is None:
            entry = self._entry(key, rev)
            links, payload = open_piece(entry.body or b"", f"body of {run_name(key)!r} at {rev}")
            body = open_body(payload, "seal")
            if not isinstance(body, Root):
                raise Damaged(f"entry {run_name(key)!r} at {rev}", why="it is not a seal")
            fresh = links[: body.fresh]
            fetch(fresh, self._backend.objects, seen.payloads)
            content = b"".join([seen.payloads[name] for name in fresh])
            found = make_dictionary(content, f"entry {run_name(key)!r} at {rev}")
            seen.dictionaries[key, rev] = found
        return found
