"""The key slots of an encrypted store: one log with retention 1 under a reserved run key of the inner store.

Every slot wraps the same 32 random bytes, the root, under one key or passphrase. Roots of earlier epochs are
wrapped under the root that followed them, so whoever opens a slot reads everything. The whole is authenticated
under the newest root:

    head   mark 2 | version 1 | "K" | HMAC-SHA256 32 | JSON
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from knotline.backends.contract import Backend, Conflicted, Entry, Failed, Save
from knotline.backends.encrypted_cipher import KEY, MARK, hkdf, parts, require
from knotline.backends.keys import Argon2Cost, KeySource, Kind, Lacking, Secret
from knotline.errors import (
    NotFound,
    PlaintextInEncryptedStore,
    Tampered,
    Unavailable,
    UnknownFormat,
    Unsupported,
    WrongKey,
)

__all__ = ["RING", "Ring", "SlotInfo", "change", "create", "opened", "read", "secrets"]

RING: Final = b"rknotline-encryption"
"""As a plain store it would be a run's: whoever opens the inner store as one is told that it is none."""

_VERSION: Final = b"\x01"
_FRONT: Final = MARK + _VERSION + b"K"
_MAC_AT: Final = len(_FRONT)
_JSON_AT: Final = _MAC_AT + 32
_MOST: Final = 1 << 20
_SALT: Final = 32
_NONCE: Final = 12
_WRAPPED: Final = _SALT + KEY + _NONCE + KEY + 16
"""Salt, commitment, nonce, and a root with its tag."""
MAX_SLOTS: Final = 32
_MAX_NAME: Final = 100
_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """What anybody who can read the inner store can see of a slot."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True, repr=False)
class _Slot:
    name: str
    kind: Kind
    cost: Argon2Cost
    salt: bytes
    wrapped: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Ring:
    """`earlier[n]` is the root of epoch n, wrapped under that of epoch n + 1. `roots` are known once it is open."""

    rev: int
    store: bytes
    epoch: int
    slots: tuple[_Slot, ...]
    earlier: tuple[bytes, ...]
    complete: bool
    raw: bytes
    roots: tuple[bytes, ...] = ()

    def names(self) -> list[SlotInfo]:
        return [SlotInfo(slot.name, slot.kind) for slot in self.slots]

    def slot(self, name: str) -> _Slot:
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise NotFound("key slot", name)

    # -- changes, each of which gives another ring ---------------------------------------------------------

    def with_slot(self, name: str, secret: Secret) -> Ring:
        if any(slot.name == name for slot in self.slots):
            raise Unsupported(f"key slot {name!r}", why="there is one of this name; replace it, or give another name")
        if not name or len(name) > _MAX_NAME:
            raise Unsupported("key slot", why=f"a name has 1 to {_MAX_NAME} characters")
        if len(self.slots) >= MAX_SLOTS:
            raise Unsupported("key slot", why=f"there are {MAX_SLOTS} already")
        return replace(self, slots=(*self.slots, self._wrap(name, secret)))

    def with_other_secret(self, name: str, secret: Secret) -> Ring:
        self.slot(name)
        slots = (self._wrap(name, secret) if slot.name == name else slot for slot in self.slots)
        return replace(self, slots=tuple(slots))

    def without_slot(self, name: str) -> Ring:
        self.slot(name)
        if len(self.slots) == 1:
            raise Unsupported(f"key slot {name!r}", why="it is the last: without it nobody could read the store")
        return replace(self, slots=tuple(slot for slot in self.slots if slot.name != name))

    def rotated(self, known: Sequence[Secret], *, forget: bool) -> Ring:
        """A new root. A slot can follow only with its secret at hand."""
        kept = [(slot, secret) for slot in self.slots if (secret := self._opens(slot, known)) is not None]
        lost = [slot.name for slot in self.slots if all(slot is not one for one, _ in kept)]
        if not kept:
            raise WrongKey("rotation", why="none of the secrets given opens a slot")
        if lost and not forget:
            why = f"no secret was given for {', '.join(map(repr, lost))}; give them, or forget them with `forget=True`"
            raise Unsupported("rotation", why=why)
        root, old = os.urandom(KEY), self.roots[-1]
        epoch = self.epoch + 1
        earlier = (*self.earlier, _seal(root, b"earlier", old, self._bound(b"earlier", epoch)))
        after = replace(self, epoch=epoch, slots=(), earlier=earlier, roots=(*self.roots, root))
        return replace(after, slots=tuple(after._wrap(slot.name, secret) for slot, secret in kept))

    def _wrap(self, name: str, secret: Secret) -> _Slot:
        salt = os.urandom(_SALT)
        slot = _Slot(name, secret.kind, secret.cost, salt, b"")
        wrapped = _seal(_stretched(secret, slot), b"slot", self.roots[-1], self._slot_bound(slot))
        return replace(slot, wrapped=wrapped)

    # -- opening -------------------------------------------------------------------------------------------

    def unlocked(self, known: Sequence[Secret]) -> Ring | None:
        """With all its roots; None when none of these secrets opens a slot."""
        for secret in known:
            for slot in self.slots:
                root = self._unwrap(slot, secret)
                if root is not None:
                    return self.checked(root)
        return None

    def checked(self, root: bytes) -> Ring:
        """With all its roots, of which this is the newest."""
        if not hmac.compare_digest(_mac(root, self.rev, self.raw[_JSON_AT:]), self.raw[_MAC_AT:_JSON_AT]):
            raise Tampered("the key slots", why="a slot opens, but they were changed without it")
        roots = [root]
        for epoch in range(self.epoch, 0, -1):
            older = _open(roots[0], b"earlier", self.earlier[epoch - 1], self._bound(b"earlier", epoch))
            if older is None:
                raise Tampered("the key slots", why=f"the root of epoch {epoch - 1} does not authenticate")
            roots.insert(0, older)
        return replace(self, roots=tuple(roots))

    def _opens(self, slot: _Slot, known: Sequence[Secret]) -> Secret | None:
        return next((secret for secret in known if self._unwrap(slot, secret) is not None), None)

    def _unwrap(self, slot: _Slot, secret: Secret) -> bytes | None:
        if slot.kind != secret.kind:
            return None
        return _open(_stretched(secret, slot), b"slot", slot.wrapped, self._slot_bound(slot))

    def _slot_bound(self, slot: _Slot) -> bytes:
        cost = [slot.cost.memory, slot.cost.passes, slot.cost.lanes]
        named = parts(slot.name.encode("utf-8", "surrogatepass"), slot.kind.encode(), json.dumps(cost).encode())
        return self._bound(b"slot", self.epoch) + named

    def _bound(self, kind: bytes, epoch: int) -> bytes:
        return parts(_VERSION, kind, self.store, epoch.to_bytes(4, "big"))

    # -- bytes ---------------------------------------------------------------------------------------------

    def closed(self, rev: int) -> bytes:
        said = {
            "store": self.store.hex(),
            "epoch": self.epoch,
            "complete": self.complete,
            "earlier": [wrapped.hex() for wrapped in self.earlier],
            "slots": [
                {
                    "name": slot.name,
                    "kind": slot.kind,
                    "argon2id": [slot.cost.memory, slot.cost.passes, slot.cost.lanes],
                    "salt": slot.salt.hex(),
                    "wrapped": slot.wrapped.hex(),
                }
                for slot in self.slots
            ],
        }
        text = json.dumps(said, separators=(",", ":")).encode("ascii")
        return _FRONT + _mac(self.roots[-1], rev, text) + text


def _mac(root: bytes, rev: int, text: bytes) -> bytes:
    return hmac.digest(hkdf(root, b"", b"knotline slots"), rev.to_bytes(4, "big") + text, "sha256")


def _stretched(secret: Secret, slot: _Slot) -> bytes:
    if secret.kind == "key":
        return hkdf(secret.value, slot.salt, b"knotline slot")
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id  # noqa: PLC0415 - an extra

    cost = slot.cost
    machine = Argon2id(salt=slot.salt, length=KEY, iterations=cost.passes, lanes=cost.lanes, memory_cost=cost.memory)
    return machine.derive(secret.value)


def _seal(key: bytes, use: bytes, plain: bytes, bound: bytes) -> bytes:
    """Salt, commitment, nonce, ciphertext: as every piece, under a key of its own."""
    aesgcm, _ = require()
    salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
    once, commitment = hkdf(key, salt, b"knotline wrap " + use), hkdf(key, salt, b"knotline commit " + use)
    return salt + commitment + nonce + aesgcm(once).encrypt(nonce, plain, bound)


def _open(key: bytes, use: bytes, wrapped: bytes, bound: bytes) -> bytes | None:
    aesgcm, refused = require()
    salt, commitment, nonce = wrapped[:_SALT], wrapped[_SALT : _SALT + KEY], wrapped[_SALT + KEY : _SALT + KEY + _NONCE]
    if not hmac.compare_digest(hkdf(key, salt, b"knotline commit " + use), commitment):
        return None
    try:
        return aesgcm(hkdf(key, salt, b"knotline wrap " + use)).decrypt(nonce, wrapped[76:], bound)
    except (ValueError, refused):
        return None


def parse(entry: Entry) -> Ring:
    """Everything in it is a claim until a slot opens; nothing is computed from it that could cost much."""
    raw, what = entry.head, "the key slots"
    if raw[: len(_FRONT)] != _FRONT:
        if raw[:2] == MARK and raw[3:4] == b"K":
            raise UnknownFormat(what, found=f"encryption {raw[2:3].hex()}")
        if raw[:1] == MARK[:1] or raw[1:2] == MARK[1:] or not raw:
            raise Tampered(what, why="they are cut short or their first bytes were changed")
        raise PlaintextInEncryptedStore(what)
    try:
        said: Any = json.loads(raw[_JSON_AT:] if len(raw) <= _MOST else b"")
        slots = tuple(_slot(each) for each in cast("list[dict[str, Any]]", said["slots"]))
        ring = Ring(
            rev=entry.rev,
            store=bytes.fromhex(said["store"]),
            epoch=int(said["epoch"]),
            slots=slots,
            earlier=tuple(map(bytes.fromhex, said["earlier"])),
            complete=bool(said["complete"]),
            raw=raw,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise Tampered(what, why="they do not read as key slots") from error
    if not 1 <= len(slots) <= MAX_SLOTS or len(ring.earlier) != ring.epoch:
        raise Tampered(what, why="they do not read as key slots")
    return ring


def _slot(said: dict[str, Any]) -> _Slot:
    memory, passes, lanes = map(int, said["argon2id"])
    cost = Argon2Cost(memory, passes, lanes)
    kind = said["kind"]
    if not cost.sane:
        raise ValueError("cost")
    if kind not in ("key", "passphrase"):
        raise ValueError("kind")
    slot = _Slot(str(said["name"]), kind, cost, bytes.fromhex(said["salt"]), bytes.fromhex(said["wrapped"]))
    if len(slot.salt) != _SALT or len(slot.wrapped) != _WRAPPED:
        raise ValueError("length")
    return slot


# -- in the inner store ----------------------------------------------------------------------------------------


def secrets(sources: Sequence[KeySource], store: str) -> list[Secret]:
    """What the sources give; when that is nothing, an error that says what was asked."""
    found: list[Secret] = []
    tried: list[str] = []
    for source in sources:
        try:
            found.append(source.secret())
        except Lacking as error:
            tried.append(f"{source.describe()} ({error})")
    if not found:
        raise WrongKey(store, why="no key was given", tried=tuple(tried))
    return found


def read(inner: Backend) -> Ring | None:
    entry = inner.head(RING)
    return None if entry is None else parse(entry)


def opened(ring: Ring, sources: Sequence[KeySource], store: str) -> Ring:
    unlocked = ring.unlocked(secrets(sources, store))
    if unlocked is None:
        tried = tuple(source.describe() for source in sources)
        raise WrongKey(store, why=f"no key slot opens, of {len(ring.slots)}", tried=tried)
    return unlocked


def create(inner: Backend, sources: Sequence[KeySource], store: str, *, complete: bool = True) -> Ring:
    """The ring that is there; or a new one in an empty store. Of several that create at once, one wins."""
    ring = read(inner)
    if ring is not None:
        return opened(ring, sources, store)
    secret = secrets(sources, store)[0]
    first = inner.find(limit=1)
    if first:
        # Looked at again: somebody may have created it, and written, since.
        ring = read(inner)
        if ring is not None:
            return opened(ring, sources, store)
        if first[0].head[: len(MARK)] == MARK:
            raise Tampered("the key slots", why="they are gone, and what they open is still there")
        raise PlaintextInEncryptedStore(f"{inner.name}: a plain store")
    fresh = Ring(0, os.urandom(16), 0, (), (), complete, b"", (os.urandom(KEY),)).with_slot("first", secret)
    if _save(inner, fresh, 0):
        return replace(fresh, raw=fresh.closed(0))
    ring = read(inner)
    if ring is None:
        raise Unavailable(store, why="its key slots were written and are not there")
    return opened(ring, sources, store)


def change(
    inner: Backend,
    ring: Ring,
    decide: Callable[[Ring], Ring],
    *,
    reopen: Callable[[Ring], Ring],
    objects: tuple[tuple[bytes, bytes], ...] = (),
) -> Ring:
    """Write another ring over this one; over what somebody else made of it meanwhile, after reading that."""
    for _ in range(_TRIES):
        there = read(inner)
        if there is None:
            raise Tampered("the key slots", why="they are gone")
        if there.raw != ring.raw:
            ring = reopen(there)
        after = decide(ring)
        if _save(inner, after, ring.rev + 1, objects):
            return replace(after, rev=ring.rev + 1, raw=after.closed(ring.rev + 1))
    raise Unavailable(inner.name, why=f"lost {_TRIES} races for its key slots")


def _save(inner: Backend, ring: Ring, rev: int, objects: tuple[tuple[bytes, bytes], ...] = ()) -> bool:
    outcome = inner.commit([Save(RING, rev, ring.closed(rev), b"", objects=objects, drop=rev)])[0]
    if isinstance(outcome, Failed):
        raise outcome.error
    return not isinstance(outcome, Conflicted)
