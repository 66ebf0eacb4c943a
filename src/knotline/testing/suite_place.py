"""What every part of the backend suite stands on: how to open a place, and writes that are easy to read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from knotline.backends.contract import Backend, Conflicted, Done, Outcome, Save

__all__ = ["SuitePlace", "append", "done", "object_id", "save", "threw"]

_serial = itertools.count()


class SuitePlace:
    """Override `open`. With `persistent`, two backends opened at one place are one store."""

    persistent = False

    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        """A backend whose leases go by `clock` if one is given."""
        raise NotImplementedError


def save(
    run: bytes | str,
    rev: int,
    *,
    body: bytes = b"body",
    head: bytes | None = None,
    tokens: Sequence[int] = (),
    objects: Sequence[tuple[bytes, bytes]] = (),
    drop: int = 0,
    recast: Sequence[tuple[int, bytes]] = (),
) -> Save:
    """A save that no other save equals, as the contract promises of heads."""
    key = run.encode() if isinstance(run, str) else run
    unique = b"head %d %d " % (next(_serial), rev) + os.urandom(8)
    return Save(key, rev, unique if head is None else head, body, tuple(tokens), tuple(objects), drop, tuple(recast))


def append(backend: Backend, *saves: Save) -> None:
    """Commits of one save each, all of which must go well."""
    for one in saves:
        assert done(backend.commit([one])) == [True], one


def done(outcomes: Sequence[Outcome]) -> list[bool | None]:
    """True for `Done`, False for `Conflicted`, None for `Failed`."""
    return [True if isinstance(o, Done) else False if isinstance(o, Conflicted) else None for o in outcomes]


def object_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def threw(error: type[BaseException], call: Callable[[], object]) -> bool:
    try:
        call()
    except error:
        return True
    return False
