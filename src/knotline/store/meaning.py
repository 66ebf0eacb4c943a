"""What the bytes of a log mean, for whoever moves them: each piece is checked against its hash, and what it needs is
named. Nothing is decoded beyond that: a state of types that this process does not know is moved like any other.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from knotline.backends import Attachment, Backend, Entry
from knotline.backends.copying import Sent
from knotline.codec import (
    PREV,
    check_piece,
    close_piece,
    digest_front,
    digest_piece,
    make_dictionary,
    open_head,
    open_piece,
    seal_of,
)
from knotline.codec.bodies import Fork, Root, open_body
from knotline.errors import Damaged, UnknownFormat, Unstorable
from knotline.records import Header
from knotline.store.log import check_attachment
from knotline.store.names import document_key, document_name, is_run, label_token, run_key, run_name
from knotline.store.reading import Reader, Sight
from knotline.store.seal import fetch

__all__ = ["StoreMeaning", "checked_name", "floor_of"]

_PRUNES: Final = label_token("op=pin")
_PAGE: Final = 100
_SIGHTS: Final = 64
_SIGHT_BYTES: Final = 32 << 20
_LEAST: Final = 8
"""A dictionary with less in it is none to zstd."""


def checked_name(key: bytes) -> str:
    """The name of a run or a document; a key that is neither's is an `UnknownFormat`."""
    try:
        name = run_name(key)
        said = document_name(key)
        sound = key == (run_key(name) if is_run(key) else b"" if said is None else document_key(*said))
    except (UnicodeDecodeError, Unstorable):
        sound, name = False, ""
    if not sound:
        raise UnknownFormat("key of a run", found=key[:32].hex())
    return name


class StoreMeaning:
    """Over the backend that the bytes were read from: a body that was recast needs its seal to be understood."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._reader = Reader(backend)
        # By run: the entry looked at last, for the chain.
        self._before: dict[bytes, tuple[int, bytes]] = {}
        self._sights: OrderedDict[tuple[bytes, int], Sight] = OrderedDict()

    def name(self, run: bytes) -> str:
        return checked_name(run)

    def alias(self, run: bytes) -> tuple[str, str] | None:
        return document_name(run)

    # -- the log -------------------------------------------------------------------------------------------

    def begins(self, run: bytes, rev: int, head: bytes) -> None:
        """Only a prune (or a delete, or a newer document) says that what was below is not missing."""
        if floor_of(open_head(head, run_name(run), rev)) >= rev:
            return
        beyond: int | None = None
        while page := self._backend.find((_PRUNES,), run=run, beyond=beyond, limit=_PAGE):
            for entry in page:
                if floor_of(open_head(entry.head, run_name(run), entry.rev)) >= rev:
                    return
            beyond = page[-1].cursor
        raise Damaged(f"run {run_name(run)!r}", why=f"its entries before {rev} are missing")

    def follows(self, run: bytes, rev: int, head: bytes, before: bytes) -> bool:
        name = run_name(run)
        return open_head(head, name, rev).prev == open_head(before, name, rev - 1).hash[:PREV]

    def entry(self, entry: Entry) -> Sent:
        stored = entry.body or b""
        seal = seal_of(stored)
        opened = self._reader.open(entry, None if seal is None else self._sight(entry.run, seal))
        self._chained(entry.run, opened.header)
        if seal is not None:
            stored = close_piece(opened.links, opened.payload)
        body = opened.body
        return Sent(stored, opened.links, seal, (body.origin, body.rev) if isinstance(body, Fork) else None)

    def arrival(self, entry: Entry) -> Sent:
        """As `entry`, of one that nobody vouches for: little is held of what its body opens to."""

        def dictionary(seal: int) -> object:
            return self._sight(entry.run, seal).dictionaries.get((entry.run, seal))

        name, stored = run_name(entry.run), entry.body or b""
        header, links, beginning = check_piece(entry.head, entry.run, name, entry.rev, stored, seal=dictionary)
        self._chained(entry.run, header)
        body = open_body(beginning, f"body of {name!r} at {entry.rev}")
        return Sent(stored, links, seal_of(stored), (body.origin, body.rev) if isinstance(body, Fork) else None)

    def _chained(self, run: bytes, header: Header) -> None:
        last, prev = self._before.get(run, (-1, b""))
        if last + 1 == header.rev and last >= 0 and header.prev != prev:
            raise Damaged(f"entry {header.run!r} at {header.rev}", why="it does not follow the entry before it")
        if header.rev > last:
            self._before[run] = (header.rev, header.hash[:PREV])

    def _sight(self, run: bytes, seal: int) -> Sight:
        """What is needed to read what one seal recast: the same for all of its entries, and then never again."""
        sight = self._sights.get((run, seal))
        if sight is None:
            held = [sum(map(len, each.payloads.values())) for each in self._sights.values()]
            while held and (len(held) >= _SIGHTS or sum(held) > _SIGHT_BYTES):
                self._sights.popitem(last=False)
                del held[0]
            sight = self._sights[run, seal] = Sight()
        self._sights.move_to_end((run, seal))
        return sight

    def learn(self, run: bytes, rev: int, body: bytes, objects: dict[bytes, bytes]) -> None:
        """A seal that is not stored yet, and objects that come with it: what it recast can be checked now."""
        what = f"body of {run_name(run)!r} at {rev}"
        links, payload = open_piece(body, what)
        root = open_body(payload, what)
        if not isinstance(root, Root):
            raise Damaged(f"entry {run_name(run)!r} at {rev}", why="it is not a seal")
        sight = self._sight(run, rev)
        leaves = links[: root.fresh]

        def read(ids: list[bytes]) -> dict[bytes, bytes]:
            here = {oid: objects[oid] for oid in ids if oid in objects}
            return here | self._backend.objects([oid for oid in ids if oid not in here])

        fetch(leaves, read, sight.payloads)
        content = b"".join([sight.payloads[oid] for oid in leaves])
        if len(content) < _LEAST:
            raise Damaged(f"entry {run_name(run)!r} at {rev}", why="it recasts by next to nothing")
        sight.dictionaries[run, rev] = make_dictionary(content, f"entry {run_name(run)!r} at {rev}")

    def links(self, oid: bytes, stored: bytes) -> list[bytes]:
        what = f"object {oid.hex()}"
        links, found, _ = digest_piece(stored, what, _object_front)
        if found != oid:
            raise Damaged(what, why="its bytes do not match its id")
        return links

    def attachment(self, run: bytes, found: Attachment) -> None:
        check_attachment(run, found)


def _object_front(links: list[bytes], size: int) -> bytes:
    return digest_front(b"obj", b"".join(links), size=size)


def floor_of(header: Header) -> int:
    """Below which revision this entry dropped everything."""
    if header.op == "document":
        return header.rev
    said = header.note.get("floor", 0) if header.op in ("prune", "delete") else 0
    return said if type(said) is int else 0
