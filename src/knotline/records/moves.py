"""Frozen nouns that every room shares. No I/O and no clocks: time and ids come in as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

__all__ = ["NOWHERE", "OPS", "Header", "Op"]

NOWHERE = -1
"""The position of a run that has no state yet, and the target of an undo that has nowhere to go."""

Op = Literal[
    "save", "fork", "rollback", "undo", "redo", "annotate", "pin", "seal", "prune", "takeover", "delete", "document"
]
OPS: tuple[Op, ...] = get_args(Op)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """One move of a run, without the state it may carry.

    `pos` is the revision whose state is current after this move. `undo` and `redo` name the entries whose
    situation an undo or redo returns to: together they are the undo stack, kept as links, so that reading the
    head is enough to know it. `parent` is the state that a save was made on.
    """

    run: str
    rev: int
    op: Op
    at: int
    """Microseconds since 1970-01-01 UTC."""
    epoch: int = 0
    pos: int = NOWHERE
    parent: int = NOWHERE
    undo: int = NOWHERE
    redo: int = NOWHERE
    prev: bytes = b""
    """The first bytes of the hash of entry `rev - 1`: what makes the log a chain."""
    writer: bytes = b""
    """Random, of the writing handle: two writers never produce equal entries."""
    hash: bytes = b""
    note: Mapping[str, object] = field(default_factory=dict[str, object])
    """Fields of the layers above (id, step, status, tags, …); the store does not read them."""

    @property
    def has_state(self) -> bool:
        return self.pos == self.rev

    def with_hash(self, entry_hash: bytes) -> Header:
        return Header(
            run=self.run,
            rev=self.rev,
            op=self.op,
            at=self.at,
            epoch=self.epoch,
            pos=self.pos,
            parent=self.parent,
            undo=self.undo,
            redo=self.redo,
            prev=self.prev,
            writer=self.writer,
            hash=entry_hash,
            note=self.note,
        )  # `replace` does the same in three times the time, and every save needs it
