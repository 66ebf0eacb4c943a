"""Any backend, encrypted: a backend around a backend, which moves sealed bytes under hidden names.

What is sealed how is in `encrypted_cipher`, who may open it in `encrypted_ring` and `keys`, what is protected and
what is not in `docs/encryption.md`. Here is how the contract is kept: by nothing but the contract of the inner one.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from knotline.backends.contract import (
    MAX_REV,
    Attach,
    Attachment,
    Backend,
    Conflicted,
    Done,
    Entry,
    Failed,
    Lease,
    Outcome,
    Save,
    Write,
)
from knotline.backends.encrypted_check import check
from knotline.backends.encrypted_cipher import BodyKey, OpenHead
from knotline.backends.encrypted_copy import copy
from knotline.backends.encrypted_keyed import Keyed
from knotline.backends.encrypted_list import Listing
from knotline.backends.encrypted_ring import RING
from knotline.backends.keys import KeySource
from knotline.errors import ContractBroken, Error, Tampered, Unavailable

__all__ = ["EncryptedBackend"]

_REMEMBERED: Final = 100_000
_OWN: Final = 4096
_MISFIT: Final = (TypeError, ValueError, OverflowError, AttributeError, struct.error)


class EncryptedBackend(Keyed):
    """`inner` holds nothing that can be read without one of the store's keys.

    `key_source` is 32 bytes of key, a source out of `knotline.backends.keys` or several of them; without one the
    environment is asked. An empty inner store is made an encrypted one, which the first source that has a secret
    opens; in one that exists every source is tried. `unfinished` is for `rekey`.
    """

    def __init__(
        self,
        inner: Backend,
        key_source: KeySource | Sequence[KeySource] | bytes | None = None,
        *,
        unfinished: bool = False,
    ) -> None:
        super().__init__(inner, key_source, unfinished=unfinished)
        self._hidden: dict[bytes, bytes] = {}
        self._tokens: dict[int, int] = {}
        # Of entries that this handle wrote, until their bodies are recast: saves reading and opening their heads.
        self._own: dict[tuple[bytes, int], BodyKey] = {}
        self._listing = Listing(inner, lambda: self._cipher, self._head)

    @property
    def lanes(self) -> int:
        return self.inner.lanes

    # -- names and heads -----------------------------------------------------------------------------------

    def _run(self, key: bytes) -> bytes:
        hidden = self._hidden.get(key)
        if hidden is None:
            if len(self._hidden) >= _REMEMBERED:
                self._hidden.clear()
            hidden = self._hidden[key] = self._cipher.run(key)
        return hidden

    def _token(self, token: int) -> int:
        hidden = self._tokens.get(token)
        if hidden is None:
            if len(self._tokens) >= _REMEMBERED:
                self._tokens.clear()
            hidden = self._tokens[token] = self._cipher.token(token)
        return hidden

    def _head(self, entry: Entry) -> OpenHead:
        return self._for(entry.head).open_head(entry.head, entry.run, entry.rev)

    def _entry(self, run: bytes, entry: Entry) -> Entry:
        opened = self._head(entry)
        body = entry.body
        if body is not None:
            body = self._cipher.open_body(opened.key, body, entry.run, entry.rev)
        return Entry(run, entry.rev, opened.head, body, entry.cursor, opened.tokens)

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        keys: list[BodyKey | None] = []
        try:
            sealed = [self._save(w, keys) if isinstance(w, Save) else self._attach(w, keys) for w in writes]
        except _MISFIT as error:
            raise ContractBroken(f"{self.name}: not a write of the contract: {type(error).__name__}") from error
        outcomes = self.inner.commit(sealed, sync=sync)
        conflicted = False
        for outcome, write, key in zip(outcomes, sealed, keys, strict=True):
            if isinstance(outcome, Conflicted):
                conflicted = True
            elif key is not None and isinstance(outcome, Done):
                # Only now: until it is written, the entry in this place may be another's.
                if len(self._own) >= _OWN:
                    self._own.clear()
                self._own[write.run, write.rev] = key
        if not conflicted:
            return outcomes
        return self._settled(writes, sealed, outcomes, sync=sync)

    def _save(self, save: Save, keys: list[BodyKey | None]) -> Save:
        inner = self._run(save.run)
        cipher = self._cipher
        carried = tokens = ()
        if save.tokens:
            carried = tuple(sorted(set(save.tokens)))
            tokens = tuple([self._token(token) for token in carried])
        head, body, key = cipher.seal_entry(save.run, inner, save.rev, carried, save.head, save.body)
        keys.append(key)
        objects: tuple[tuple[bytes, bytes], ...] = ()
        if save.objects:
            hidden = cipher.hidden_ids([oid for oid, _ in save.objects])
            pairs = zip(hidden, save.objects, strict=True)
            objects = tuple([(there, cipher.seal_object(oid, data)) for there, (oid, data) in pairs])
        recast = self._recast(inner, save) if save.recast else ()
        # No alias: it is a name.
        return Save(inner, save.rev, head, body, tokens, objects, save.drop, recast)

    def _recast(self, inner: bytes, save: Save) -> tuple[tuple[int, bytes], ...]:
        """Under the key of the entry's own head. What cannot be read is left as it is: a recast is a kindness."""
        bodies = dict(save.recast)
        keys = {rev: key for rev in bodies if (key := self._own.pop((inner, rev), None)) is not None}
        missing = bodies.keys() - keys.keys()
        if missing:
            with contextlib.suppress(Error):
                for entry in self.inner.entries(inner, min(missing), max(missing), bodies=False):
                    if entry.rev in missing:
                        keys[entry.rev] = self._head(entry).key
        return tuple([(rev, self._cipher.seal_body(key, inner, rev, bodies[rev])) for rev, key in keys.items()])

    def _attach(self, attach: Attach, keys: list[BodyKey | None]) -> Attach:
        keys.append(None)
        inner = self._run(attach.run)
        task = self._cipher.task(inner, attach.task)
        place = (inner, attach.rev, task, attach.idx, attach.epoch)
        return replace(attach, run=inner, task=task, data=self._cipher.seal_attachment(place, attach.task, attach.data))

    def _settled(
        self, writes: Sequence[Write], sealed: list[Write], outcomes: list[Outcome], *, sync: bool
    ) -> list[Outcome]:
        """Two ciphertexts of one write differ: what is there is the caller's own if it opens to the same.

        Then just what is there is written once more: the inner store sees its own bytes, and makes them durable.
        """
        again: list[tuple[int, Write]] = []
        for at, outcome in enumerate(outcomes):
            if not isinstance(outcome, Conflicted):
                continue
            try:
                there = self._there(writes[at], sealed[at])
            except Unavailable as error:
                outcomes[at] = Failed(error)
            except Error:
                continue  # whoever reads it will hear what is wrong with it
            else:
                if there is not None:
                    again.append((at, there))
        if again:
            confirmed = self.inner.commit([write for _, write in again], sync=sync)
            for (at, _), outcome in zip(again, confirmed, strict=True):
                outcomes[at] = outcome
        return outcomes

    def _there(self, write: Write, sealed: Write) -> Write | None:
        """What the inner store holds in this place, if it is this very write."""
        if isinstance(write, Save):
            for entry in self.inner.entries(sealed.run, write.rev, write.rev):
                if self._head(entry).head == write.head:
                    return Save(entry.run, entry.rev, entry.head, entry.body or b"")
            return None
        task = self._cipher.task(sealed.run, write.task)
        for found in self.inner.attachments(sealed.run, lo=write.rev, hi=write.rev):
            if (found.task, found.idx, found.epoch) == (task, write.idx, write.epoch):
                if self._attachment(sealed.run, found).data == write.data:
                    return Attach(sealed.run, found.rev, found.task, found.idx, found.epoch, found.data)
                return None
        return None

    # -- reading -------------------------------------------------------------------------------------------

    def head(self, run: bytes) -> Entry | None:
        entry = self.inner.head(self._run(run))
        return None if entry is None else self._entry(run, entry)

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        return [self._entry(run, entry) for entry in self.inner.entries(self._run(run), lo, hi, bodies=bodies)]

    def find(
        self,
        tokens: Sequence[int] = (),
        *,
        run: bytes | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 100,
    ) -> list[Entry]:
        inner = None if run is None else self._run(run)
        hidden = [self._token(token) for token in tokens]
        wanted, wanted_there = frozenset(tokens), frozenset(hidden)
        found: list[Entry] = []
        while len(found) < limit:
            ask = limit - len(found)
            page = self.inner.find(hidden, run=inner, beyond=beyond, newest=newest, limit=ask)
            for entry in page:
                if entry.run == RING:
                    continue
                opened = self._head(entry)
                carried = self._carried(entry, opened)
                if not wanted_there.issubset(carried):
                    raise Tampered(
                        f"head of {entry.run[:12]!r} at {entry.rev}", why="it is listed under another's token"
                    )
                # Two tokens may have one hidden form.
                if wanted.issubset(opened.tokens):
                    found.append(Entry(opened.run, entry.rev, opened.head, None, entry.cursor, opened.tokens))
            if len(page) < ask:
                break
            beyond = page[-1].cursor
        return found

    def runs(self, *, after: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, int]]:
        return self._listing.runs(after=after, limit=limit)

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        hidden = self._cipher.hidden_ids(ids)
        there = self.inner.objects(hidden)
        return {
            oid: self._for(there[name]).open_object(name, oid, there[name])
            for oid, name in dict(zip(ids, hidden, strict=True)).items()
            if name in there
        }

    def object_ids(self, *, after: bytes | None = None, limit: int = 10000) -> list[bytes]:
        return self._listing.object_ids(after=after, limit=limit)

    def attachments(self, run: bytes, *, lo: int = 0, hi: int = MAX_REV) -> list[Attachment]:
        inner = self._run(run)
        found = [self._attachment(inner, each) for each in self.inner.attachments(inner, lo=lo, hi=hi)]
        found.sort(key=lambda each: (each.rev, each.task, each.idx))
        return found

    def _attachment(self, inner: bytes, found: Attachment) -> Attachment:
        place = (inner, found.rev, found.task, found.idx, found.epoch)
        task, data = self._for(found.data).open_attachment(place, found.data)
        return replace(found, task=task, data=data)

    # -- leases --------------------------------------------------------------------------------------------

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:
        inner = self._run(run)
        return self._lease(inner, self.inner.acquire(inner, self._cipher.owner(inner, owner), ttl))

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:
        inner = self._run(run)
        lease = self.inner.renew(inner, self._cipher.owner(inner, owner), epoch, ttl)
        return None if lease is None else self._lease(inner, lease)

    def release(self, run: bytes, owner: str, epoch: int) -> bool:
        inner = self._run(run)
        return self.inner.release(inner, self._cipher.owner(inner, owner), epoch)

    def lease(self, run: bytes) -> Lease | None:
        inner = self._run(run)
        lease = self.inner.lease(inner)
        return None if lease is None else self._lease(inner, lease)

    def _lease(self, inner: bytes, lease: Lease) -> Lease:
        return replace(lease, owner=self._cipher.plain_owner(inner, lease.owner))

    # -- space ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        return self.inner.mark()

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int:
        self._listing.forget()
        return self.inner.discard(self._cipher.hidden_ids(ids), mark=mark)

    def check(self) -> list[str]:
        return check(self)

    def check_entry(self, entry: Entry) -> tuple[int, ...]:
        """The tokens under which this entry of the inner store should be found; raises what is wrong with its head."""
        return self._carried(entry, self._head(entry))

    def check_lease(self, hidden: bytes) -> None:
        lease = self.inner.lease(hidden)
        if lease is not None:
            self._lease(hidden, lease)

    def _carried(self, entry: Entry, opened: OpenHead) -> tuple[int, ...]:
        """The sealed tokens decide. The visible ones are theirs, or somebody moved them to hide or to show an entry."""
        hidden = tuple(sorted({self._token(token) for token in opened.tokens}))
        if hidden != entry.tokens:
            raise Tampered(
                f"head of {entry.run[:12]!r} at {entry.rev}", why="its tokens are not those it was saved with"
            )
        return hidden

    def size(self) -> int:
        return self.inner.size()

    def compact(self) -> None:
        self.inner.compact()

    def close(self) -> None:
        self.inner.close()

    def rekey(
        self,
        into: Backend,
        key_source: KeySource | Sequence[KeySource] | bytes | None = None,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> EncryptedBackend:
        """Everything once more, under new keys and new hidden names, in the empty backend `into`.

        Nobody may write meanwhile. `progress` is told how many entries are there. Without a `key_source` the
        sources of this store open the new one. A copy that was not finished does not open.
        """
        fresh = EncryptedBackend(into, self._sources if key_source is None else key_source, unfinished=True)
        copy(self, fresh, fresh._carry, progress)
        return fresh

    def _carry(self, *, done: bool, objects: tuple[tuple[bytes, bytes], ...]) -> None:
        """Objects without an entry ride on the log of the key slots."""
        hidden = self._cipher.hidden_ids([oid for oid, _ in objects])
        sealed = [(name, self._cipher.seal_object(*pair)) for name, pair in zip(hidden, objects, strict=True)]
        self._change(lambda now: replace(now, complete=done), objects=tuple(sealed))
