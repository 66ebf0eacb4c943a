"""Everything of one encrypted store into another: how a store gets new keys for what it already holds.

The copying is `copying`'s. Special here is that the place must be empty, that bytes are moved without asking what
they mean, objects that no entry names included, and that a copy that was not finished does not open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from knotline.backends.contract import Attachment, Entry
from knotline.backends.copying import Sent, Source
from knotline.backends.copying_landing import Landing, Standing
from knotline.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from knotline.backends.encrypted import EncryptedBackend

__all__ = ["copy"]

_BATCH_BYTES: Final = 8 << 20
_IDS: Final = 100


class _Carry(Protocol):
    def __call__(self, *, done: bool, objects: tuple[tuple[bytes, bytes], ...]) -> None: ...


class _Bytes:
    """A backend knows no meaning: bodies go as they are, and lead nowhere."""

    def name(self, run: bytes) -> str:
        return run.decode("utf-8", "backslashreplace")

    def alias(self, run: bytes) -> None:
        """None: an encrypted store hands no names on."""

    def begins(self, run: bytes, rev: int, head: bytes) -> None:
        """What was dropped, and what is missing, is said in heads that are not read here."""

    def follows(self, run: bytes, rev: int, head: bytes, before: bytes) -> bool:  # noqa: ARG002 - nothing is there
        return False

    def entry(self, entry: Entry) -> Sent:
        return Sent(entry.body or b"", [])

    def links(self, oid: bytes, stored: bytes) -> list[bytes]:  # noqa: ARG002 - never asked: no body leads to one
        return []

    def attachment(self, run: bytes, found: Attachment) -> None:
        """Nothing to check: it was sealed."""


def copy(
    source: EncryptedBackend, into: EncryptedBackend, carry: _Carry, progress: Callable[[int], None] | None
) -> None:
    """`carry` stores objects that no entry names, and in the end that nothing is missing any more."""
    if into.runs(limit=1) or into.object_ids(limit=1):
        raise Unavailable(into.name, why="there is something in it already; a copy goes into an empty place")
    mark = source.mark()
    carry(done=False, objects=())
    for objects in _objects(source):
        carry(done=False, objects=objects)
    meaning = _Bytes()

    def told(_bytes: int, entries: int, _total: int | None) -> None:
        if progress is not None:
            progress(entries)

    landing = Landing(into, Standing(into, meaning), meaning, progress=told)
    try:
        Source(source, meaning).pour(landing)
        landing.finish()
    except Conflict as error:
        why = "somebody else writes to it; a copy goes into a place of its own"
        raise Unavailable(into.name, why=why) from error
    if source.mark() != mark:
        raise Unavailable(source.name, why="it was written to while it was copied; stop its writers and start over")
    carry(done=True, objects=())


def _objects(source: EncryptedBackend) -> Iterator[tuple[tuple[bytes, bytes], ...]]:
    ready: list[tuple[bytes, bytes]] = []
    size = 0
    after: bytes | None = None
    while ids := source.object_ids(after=after, limit=_IDS):
        after = ids[-1]
        for pair in source.objects(ids).items():
            ready.append(pair)
            size += len(pair[1])
            if size >= _BATCH_BYTES:
                yield tuple(ready)
                ready, size = [], 0
    if ready:
        yield tuple(ready)
