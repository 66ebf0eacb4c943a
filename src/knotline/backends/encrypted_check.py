"""What of an encrypted store does not authenticate, without asking which run it is of.

Apart because it reads the inner store for its own sake: a run that cannot be named is in no list, and an entry that
an index hides is in no answer. Here both are found, by their hidden names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from knotline.backends import encrypted_ring as ring
from knotline.backends.contract import Backend, Entry
from knotline.errors import Damaged, UnknownFormat, WrongKey

if TYPE_CHECKING:
    from knotline.backends.encrypted import EncryptedBackend

__all__ = ["check"]

_PAGE: Final = 500


def check(store: EncryptedBackend) -> list[str]:
    """In words; reads the heads of all entries, and follows every token once."""
    found = store.inner.check()

    def hear(work: Callable[[], object]) -> None:
        try:
            work()
        except (Damaged, UnknownFormat, WrongKey) as error:
            found.append(str(error))

    hear(store.check_slots)
    carriers: dict[int, set[int]] = {}
    runs: set[bytes] = set()
    for entry in _all(store.inner, ()):
        if entry.run != ring.RING:
            runs.add(entry.run)

            def look(entry: Entry = entry) -> None:
                for token in store.check_entry(entry):
                    carriers.setdefault(token, set()).add(entry.cursor)

            hear(look)
    for token, cursors in carriers.items():
        listed = {entry.cursor for entry in _all(store.inner, (token,))}
        if not cursors <= listed:
            found.append(f"{len(cursors - listed)} entries are not found by a token that they carry")
    for run in sorted(runs):
        hear(lambda run=run: store.check_lease(run))
    return found


def _all(inner: Backend, tokens: tuple[int, ...]) -> Iterator[Entry]:
    beyond: int | None = None
    while page := inner.find(tokens, beyond=beyond, newest=False, limit=_PAGE):
        yield from page
        beyond = page[-1].cursor
