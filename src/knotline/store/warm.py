"""The decoded head of a run, kept so that the next save costs what changed.

A `Warm` drafts saves and learns how they ended. Drafting makes the private copy equal to what is being saved,
so a draft that failed leaves a copy of nothing that is stored: such a `Warm` is spent and is read anew, and its
copy serves as the value to try again with (the caller may have changed its own since).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from knotline.backends import Save
from knotline.codec import (
    PREV,
    close_head,
    close_piece,
    dictionary_compressor,
    encode,
    recast_piece,
)
from knotline.codec.bodies import Body, Delta, Root, close_body
from knotline.records import NOWHERE, Header, Op
from knotline.store.change import DICT, LIST, ROOT, TEXT, Clean, Shadow
from knotline.store.reading import Loaded
from knotline.store.seal import INLINE, Pieces

__all__ = ["Draft", "Warm"]

SEAL_EVERY: Final = 32
"""Deltas after which a state is sealed, if its seal does not cost much more than they did."""
SEAL_COST: Final = 4
SEAL_AT_LAST: Final = 2048
SHOWN_WHOLE: Final = 4096
"""Somebody will look at an entry with an alias: while the state is so small, it shows all of it."""
_WINDOW_BYTES: Final = 1 << 20
_RECAST_LEAST: Final = 256
_DICTIONARY_LEAST: Final = 8
"""zstd refuses a dictionary with less in it, and it would not help."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A save that is ready for the backend, and the header that it will have."""

    save: Save
    header: Header
    warm: Warm


@dataclass(slots=True)
class _Next:
    """What the warm head becomes when the draft is written."""

    anchor: int
    window: list[tuple[int, bytes, bytes]]
    window_bytes: int
    count: int
    root_size: int
    known: set[bytes]


class Warm:
    """Not for two threads at once: whoever drafts holds `lock` until the draft is settled."""

    def __init__(
        self,
        run: str,
        key: bytes,
        writer: bytes,
        head: Header | None,
        loaded: Loaded | None,
        *,
        clean: Clean | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self._clean = clean
        self.run = run
        self.key = key
        self.writer = writer
        self.head = head
        self.spent = False
        self.shadow: Shadow | None = None
        self._state = _Next(NOWHERE, [], 0, 0, 0, set())
        self._draft: _Next | None = None
        if loaded is not None:
            self.shadow = Shadow(loaded.tree, loaded.ropes, clean=clean)
            window = [(opened.header.rev, opened.payload, opened.stored) for opened in loaded.window]
            self._state = _Next(
                loaded.anchor,
                window,
                sum(len(payload) for _, payload, _ in window),
                len(window),
                loaded.root_size,
                loaded.known,
            )

    @property
    def rev(self) -> int:
        return NOWHERE if self.head is None else self.head.rev

    @property
    def epoch(self) -> int:
        return 0 if self.head is None else self.head.epoch

    # -- drafts -------------------------------------------------------------------------------------------

    def draft_state(
        self,
        value: object,
        *,
        op: Op,
        at: int,
        epoch: int,
        note: Mapping[str, object],
        tokens: tuple[int, ...],
        seal: Header | None = None,
        drop: int = 0,
        alias: tuple[str, str] | None = None,
        sized: bool = False,
    ) -> Draft:
        """A save of `value`; with `seal`, of the current state, whole, in a move that is no step of the undo stack."""
        self.spent = True  # until settled: whatever goes wrong from here on, the copy is not the head's
        before = self._state
        rev = self.rev + 1
        base = NOWHERE if self.head is None else self.head.pos
        ops: list[list[Any]] | None = None
        undo, redo = self.rev, NOWHERE
        if seal is not None:
            undo, redo = seal.undo, seal.redo
        elif self.head is not None and self.head.pos == NOWHERE:
            undo = NOWHERE
        if self.shadow is None:
            self.shadow = Shadow.of(value, clean=self._clean)
        elif seal is None:
            ops = self.shadow.advance(value)
            if ops and ops[-1][0] == ROOT:
                ops = None
        pieces = Pieces(before.known)
        recast: tuple[tuple[int, bytes], ...] = ()
        small = alias is not None and before.root_size + before.window_bytes <= SHOWN_WHOLE
        if ops is None or small or self._due(before, self.shadow):
            tree, ropes = pieces.root(self.shadow.value, self.shadow.ropes)
            links = list(dict.fromkeys([*pieces.fresh_ids, *pieces.links]))
            body: Body = Root(len(pieces.fresh_ids), encode(tree))
            payload = close_body(body)
            recast = self._recast(before, pieces, rev)
            self.shadow.ropes = ropes
            after = _Next(rev, [], 0, 0, len(payload), before.known)
        else:
            links, packed = _lifted(ops, pieces)
            body = Delta(base, before.anchor, packed)
            payload = close_body(body)
            after = _Next(
                before.anchor,
                before.window,
                before.window_bytes + len(payload),
                before.count + 1,
                before.root_size,
                before.known,
            )
        stored = close_piece(links, payload)
        if sized:
            note = {**note, "size": len(stored) + sum(map(len, pieces.objects.values()))}
        header = self._header(rev, op, at, epoch, note, pos=rev, parent=base, undo=undo, redo=redo)
        draft = self._close(
            header, stored, links, payload, tokens, tuple(pieces.objects.items()), recast=recast, drop=drop, alias=alias
        )
        if isinstance(body, Delta):
            after.window = [*before.window, (rev, payload, stored)] if after.window_bytes < _WINDOW_BYTES else []
        self._draft = after
        before.known.update(pieces.objects)  # only read again if the draft succeeds: a spent Warm is thrown away
        return draft

    def draft_move(
        self,
        op: Op,
        *,
        at: int,
        epoch: int,
        note: Mapping[str, object],
        pos: int,
        undo: int,
        redo: int,
        body: Body,
        tokens: tuple[int, ...] = (),
        drop: int = 0,
    ) -> Draft:
        self.spent = True
        payload = close_body(body)
        header = self._header(self.rev + 1, op, at, epoch, note, pos=pos, parent=NOWHERE, undo=undo, redo=redo)
        self._draft = self._state
        return self._close(header, close_piece((), payload), [], payload, tokens, (), drop=drop)

    def settle(self, draft: Draft, *, written: bool) -> None:
        """A move to another position spends the copy too: it is of the state that was current before."""
        moved = self.head is not None and not draft.header.has_state and draft.header.pos != self.head.pos
        if written and self._draft is not None:
            self.head = draft.header
            self._state = self._draft
            self.spent = moved
        self._draft = None

    # -- parts --------------------------------------------------------------------------------------------

    def _due(self, state: _Next, shadow: Shadow) -> bool:
        if state.count + 1 < SEAL_EVERY:
            return False
        cost = state.root_size + sum(rope.loose_bytes() for rope in shadow.ropes.values())
        return SEAL_COST * state.window_bytes >= cost or state.count + 1 >= SEAL_AT_LAST

    def _recast(self, state: _Next, pieces: Pieces, rev: int) -> tuple[tuple[int, bytes], ...]:
        """The seal just stored the same items: the deltas that brought them shrink to references to it."""
        content = b"".join(pieces.fresh)
        if not _DICTIONARY_LEAST <= len(content) <= _WINDOW_BYTES:
            return ()
        dictionary = dictionary_compressor(content)
        recast: list[tuple[int, bytes]] = []
        for old, payload, stored in state.window:
            if len(payload) >= _RECAST_LEAST:
                smaller = recast_piece(stored, payload, seal=rev, dictionary=dictionary)
                if smaller is not None:
                    recast.append((old, smaller))
        return tuple(recast)

    def _header(
        self,
        rev: int,
        op: Op,
        at: int,
        epoch: int,
        note: Mapping[str, object],
        *,
        pos: int,
        parent: int,
        undo: int,
        redo: int,
    ) -> Header:
        prev = b"" if self.head is None else self.head.hash[:PREV]
        return Header(
            run=self.run,
            rev=rev,
            op=op,
            at=at,
            epoch=epoch,
            pos=pos,
            parent=parent,
            undo=undo,
            redo=redo,
            prev=prev,
            writer=self.writer,
            note=note,
        )

    def _close(
        self,
        header: Header,
        stored: bytes,
        links: list[bytes],
        payload: bytes,
        tokens: tuple[int, ...],
        objects: tuple[tuple[bytes, bytes], ...],
        *,
        recast: tuple[tuple[int, bytes], ...] = (),
        drop: int = 0,
        alias: tuple[str, str] | None = None,
    ) -> Draft:
        head, entry_hash = close_head(header, self.key, b"".join(links), payload)
        save = Save(self.key, header.rev, head, stored, tokens, objects, drop, recast, alias)
        return Draft(save, header.with_hash(entry_hash), self)


def _lifted(ops: list[list[Any]], pieces: Pieces) -> tuple[list[bytes], bytes]:
    """Operations as bytes; large values in them become objects."""
    packed = encode(ops)
    if len(packed) < INLINE:
        return [], packed
    links: list[bytes] = []

    def lift(value: Any) -> Any:
        return pieces.lift(value, INLINE, links)

    out: list[list[Any]] = []
    for op in ops:
        match op:
            case [kind, path, removed, pairs, order] if kind == DICT:
                out.append([DICT, path, removed, [lift(item) for item in pairs], order])
            case [kind, path, splices] if kind == LIST:
                out.append([LIST, path, [[at, gone, [lift(item) for item in items]] for at, gone, items in splices]])
            case [kind, path, at, gone, text] if kind == TEXT:
                out.append([TEXT, path, at, gone, lift(text)])
            case _:
                out.append(op)
    return list(dict.fromkeys(links)), encode(out)
