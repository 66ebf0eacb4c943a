"""How one piece is sealed and opened, and how names become what the inner store sees. `docs/encryption.md` says why.

    head    front | epoch 4 | salt 32 | commitment 32 | nonce 12 | AES-256-GCM(run, tokens, the plain head)
    body    front | nonce 12 | AES-256-GCM(the plain body)       under its head's key, bound to its head
    object  front | epoch 4 | salt 32 | commitment 32 | nonce 12 | AES-256-GCM(the plain object)
    attachment: as an object, with its task in front

`front` is a mark, the version and the suite. Every head, object and attachment has a key of its own, from a random
salt; the commitment is compared before anything is decrypted, so that no piece opens under two keys. What is
associated with a piece names its place, so that none can be moved.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from base64 import b32encode
from collections.abc import Iterable
from dataclasses import dataclass
from operator import ne
from typing import TYPE_CHECKING, Final, NamedTuple

from knotline.backends.contract import MAX_REV
from knotline.errors import PlaintextInEncryptedStore, Tampered, UnknownFormat, Unsupported

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = [
    "FRONT",
    "KEY",
    "MARK",
    "Cipher",
    "OpenHead",
    "check_front",
    "committed",
    "epoch_of",
    "hkdf",
    "parts",
    "require",
]

MARK: Final = b"\xecK"
"""No plain head, body or object of this library begins so."""
_VERSION: Final = b"\x01"
_SUITE: Final = b"\x01"  # HKDF-SHA256 and AES-256-GCM
FRONT: Final = MARK + _VERSION + _SUITE
KEY: Final = 32
_SALT: Final = 32
_NONCE: Final = 12
_TAG: Final = 16
_EPOCH_AT: Final = len(FRONT)
_SALT_AT: Final = _EPOCH_AT + 4
_COMMITMENT_AT: Final = _SALT_AT + _SALT
_NONCE_AT: Final = _COMMITMENT_AT + KEY
_SEALED_AT: Final = _NONCE_AT + _NONCE
_AHEAD: Final = 16
_PIECE: Final = b"knotline piece 1"
_PAD: Final = bytes(64 - 32)  # to a block of SHA-256
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
_sha256 = hashlib.sha256
_INSTALL: Final = "pip install knotline[encryption]"


def require() -> tuple[type[AESGCM], type[Exception]]:
    """What seals, and what it raises for bytes that do not authenticate."""
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Unsupported("encryption", why=f"the package `cryptography` is missing: {_INSTALL}") from error
    return AESGCM, InvalidTag


def parts(*each: bytes) -> bytes:
    """Length-prefixed, so that no two different lists give the same bytes."""
    return b"".join([piece for part in each for piece in (len(part).to_bytes(4, "big"), part)])


def hkdf(root: bytes, salt: bytes, info: bytes) -> bytes:
    """32 bytes of HKDF-SHA256 (RFC 5869)."""
    return hmac.digest(hmac.digest(salt, root, "sha256"), info + b"\x01", "sha256")


def committed(root: bytes, salt: bytes) -> tuple[bytes, bytes]:
    """64 bytes of HKDF-SHA256: a key, and a commitment to it. The salt has 32 bytes.

    HMAC written out: `hmac.digest` asks its library for the algorithm anew each time, and this is half of what
    sealing costs.
    """
    salt += _PAD
    inner = _sha256(salt.translate(_INNER) + root).digest()
    extracted = _sha256(salt.translate(_OUTER) + inner).digest() + _PAD
    inner, outer = extracted.translate(_INNER), extracted.translate(_OUTER)
    key = _sha256(outer + _sha256(inner + _PIECE + b"\x01").digest()).digest()
    return key, _sha256(outer + _sha256(inner + key + _PIECE + b"\x02").digest()).digest()


def check_front(piece: bytes, what: str) -> None:
    """Is it a piece of ours at all? One with a single byte of its front changed counts as ours, and as changed."""
    front = piece[: len(FRONT)]
    if front == FRONT:
        return
    if len(front) == len(FRONT) and front[: len(MARK)] == MARK:
        raise UnknownFormat(what, found=f"encryption {front[len(MARK) :].hex()}")
    if FRONT.startswith(front) or sum(map(ne, front, FRONT)) == 1:
        raise Tampered(what, why="it is cut short or its first bytes were changed")
    raise PlaintextInEncryptedStore(what)


class BodyKey(NamedTuple):
    """What seals and opens the body of an entry: it belongs to the head, whose tag stands for all that it holds."""

    epoch: int
    head: bytes
    sealer: AESGCM

    def __repr__(self) -> str:
        return "BodyKey(…)"


@dataclass(frozen=True, slots=True, repr=False)
class OpenHead:
    """A head that authenticated."""

    run: bytes
    tokens: tuple[int, ...]
    head: bytes
    key: BodyKey


class Cipher:
    """The keys of an open store. `roots` are those of all epochs, oldest first; new pieces go under the newest."""

    def __init__(self, store: bytes, roots: list[bytes]) -> None:
        self._aesgcm, self._refused = require()
        self.store = store
        self.roots = roots
        self.epoch = len(roots) - 1
        self._data = [hkdf(root, store, b"knotline data") for root in roots]
        # Names must be found again after every rotation: they stay with the first root.
        self._names, self._tokens, self._ids, self._tasks, self._owners = (
            hkdf(roots[0], store, b"knotline " + use) for use in (b"names", b"tokens", b"ids", b"tasks", b"owners")
        )
        self._fronts = [parts(_VERSION, _SUITE, store, epoch.to_bytes(4, "big")) for epoch in range(len(roots))]
        self._ready: list[tuple[bytes, AESGCM]] = []
        self._heads = [front + parts(b"head") for front in self._fronts]
        self._bodies = [front + parts(b"body") for front in self._fronts]

    # -- names ---------------------------------------------------------------------------------------------

    def run(self, key: bytes) -> bytes:
        """The inner key: as a plain store it would be a run's, and text, so that any inner store can show it."""
        return b"r" + b32encode(hmac.digest(self._names, key, "sha256"))[:52].lower()

    def task(self, run: bytes, task: bytes) -> bytes:
        return hmac.digest(self._tasks, parts(run, task), "sha256")

    def token(self, token: int) -> int:
        return int.from_bytes(hmac.digest(self._tokens, token.to_bytes(4, "big"), "sha256")[:4], "big")

    def hidden_ids(self, ids: Iterable[bytes]) -> list[bytes]:
        """A permutation of all ids: one block of AES each."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - an extra

        block = Cipher(algorithms.AES(self._ids), modes.ECB())  # noqa: S305 - a permutation, see the documentation
        return _blocks(block.encryptor().update(_joined(ids)))

    def plain_ids(self, ids: Iterable[bytes]) -> list[bytes]:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - an extra

        block = Cipher(algorithms.AES(self._ids), modes.ECB())  # noqa: S305 - the same, backwards
        return _blocks(block.decryptor().update(_joined(ids)))

    def owner(self, run: bytes, owner: str) -> str:
        """A pseudonym that is always the same for one owner of one run, and opens again: leases compare owners."""
        key = hmac.digest(self._owners, run, "sha256")
        plain = owner.encode("utf-8", "surrogatepass")
        # The nonce is a function of the plaintext: the same owner gives the same bytes, two never share a nonce.
        nonce = hmac.digest(key, b"nonce" + plain, "sha256")[:_NONCE]
        return (nonce + self._aesgcm(hmac.digest(key, b"key", "sha256")).encrypt(nonce, plain, run)).hex()

    def plain_owner(self, run: bytes, hidden: str) -> str:
        key = hmac.digest(self._owners, run, "sha256")
        what = f"lease of {_shown(run)}"
        try:
            raw = bytes.fromhex(hidden)
            plain = self._aesgcm(hmac.digest(key, b"key", "sha256")).decrypt(raw[:_NONCE], raw[_NONCE:], run)
        except (ValueError, self._refused) as error:
            raise Tampered(what, why="its owner does not authenticate") from error
        return plain.decode("utf-8", "surrogatepass")

    # -- entries -------------------------------------------------------------------------------------------

    def seal_entry(
        self, run: bytes, inner: bytes, rev: int, tokens: tuple[int, ...], head: bytes, body: bytes
    ) -> tuple[bytes, bytes, BodyKey]:
        """Head, body, and what a later recast of the body needs."""
        epoch = self.epoch
        dice = os.urandom(2 * _NONCE)
        nonce = dice[:_NONCE]
        fresh, sealer = self._fresh()
        plain = _head_front(run, tokens) + run + head
        place = _at(inner, rev)
        sealed = sealer.encrypt(nonce, plain, self._heads[epoch] + place)
        stored = b"%b%b%b" % (fresh, nonce, sealed)
        nonce = dice[_NONCE:]
        mine = BodyKey(epoch, sealed[-_TAG:], sealer)
        bound = self._bodies[epoch] + place + mine.head
        return stored, b"%b%b%b" % (FRONT, nonce, sealer.encrypt(nonce, body, bound)), mine

    def _fresh(self) -> tuple[bytes, AESGCM]:
        """The front of a piece up to its commitment, and what seals it. Made several at once: a processor that has
        just waited for a disk takes twice as long for the first as for the next. Nonces are drawn when they are
        used: a process that is forked with some of these in hand still repeats none.
        """
        try:
            return self._ready.pop()
        except IndexError:
            # The last is not put where another thread could take it.
            *more, last = [self._key() for _ in range(_AHEAD)]
            self._ready += more
            return last

    def _key(self) -> tuple[bytes, AESGCM]:
        salt = os.urandom(_SALT)
        key, commitment = committed(self._data[self.epoch], salt)
        return b"%b%b%b%b" % (FRONT, self.epoch.to_bytes(4, "big"), salt, commitment), self._aesgcm(key)

    def open_head(self, stored: bytes, inner: bytes, rev: int) -> OpenHead:
        what = f"head of {_shown(inner)} at {rev}"
        if not 0 <= rev <= MAX_REV:
            raise Tampered(what, why="there is no such revision")
        epoch, sealer, plain = self._open(stored, what, self._heads, _at(inner, rev))
        # What authenticates was made by us: its lengths are right.
        size, count = struct.unpack_from(">HH", plain)
        tokens = struct.unpack_from(f">{count}I", plain, 4)
        at = 4 + 4 * count
        run = plain[at : at + size]
        return OpenHead(run, tokens, plain[at + size :], BodyKey(epoch, stored[-_TAG:], sealer))

    def seal_body(self, key: BodyKey, inner: bytes, rev: int, body: bytes) -> bytes:
        """For a body that takes the place of another: a nonce is never used twice under a key."""
        nonce = os.urandom(_NONCE)
        bound = self._bodies[key.epoch] + _at(inner, rev) + key.head
        return b"%b%b%b" % (FRONT, nonce, key.sealer.encrypt(nonce, body, bound))

    def open_body(self, key: BodyKey, stored: bytes, inner: bytes, rev: int) -> bytes:
        what = f"body of {_shown(inner)} at {rev}"
        check_front(stored, what)
        at = len(FRONT) + _NONCE
        bound = self._bodies[key.epoch] + _at(inner, rev) + key.head
        return self._decrypted(key.sealer, stored[len(FRONT) : at], stored[at:], bound, what)

    # -- objects and attachments ---------------------------------------------------------------------------

    def seal_object(self, oid: bytes, data: bytes) -> bytes:
        return self._seal(data, parts(b"object", oid))

    def open_object(self, hidden: bytes, oid: bytes, stored: bytes) -> bytes:
        return self._open(stored, f"object {hidden.hex()}", self._fronts, parts(b"object", oid))[2]

    def seal_attachment(self, place: tuple[bytes, int, bytes, int, int], task: bytes, data: bytes) -> bytes:
        return self._seal(parts(task) + data, _beside(place))

    def open_attachment(self, place: tuple[bytes, int, bytes, int, int], stored: bytes) -> tuple[bytes, bytes]:
        """Its task and its data."""
        inner, rev, hidden, idx, _ = place
        what = f"attachment {hidden.hex()[:8]} {idx} of {_shown(inner)} at {rev}"
        try:
            bound = _beside(place)
        except OverflowError as error:
            raise Tampered(what, why="there is no such place") from error
        plain = self._open(stored, what, self._fronts, bound)[2]
        end = 4 + int.from_bytes(plain[:4], "big")
        return plain[4:end], plain[end:]

    # -- one piece with a salt of its own ------------------------------------------------------------------

    def _seal(self, plain: bytes, place: bytes) -> bytes:
        salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
        key, commitment = committed(self._data[self.epoch], salt)
        sealed = self._aesgcm(key).encrypt(nonce, plain, self._fronts[self.epoch] + place)
        return b"%b%b%b%b%b%b" % (FRONT, self.epoch.to_bytes(4, "big"), salt, commitment, nonce, sealed)

    def _open(self, stored: bytes, what: str, fronts: list[bytes], place: bytes) -> tuple[int, AESGCM, bytes]:
        check_front(stored, what)
        if len(stored) < _SEALED_AT + _TAG:
            raise Tampered(what, why="it is cut short")
        epoch = epoch_of(stored)
        if epoch > self.epoch:
            raise Tampered(what, why=f"its epoch {epoch} never was")
        key, commitment = committed(self._data[epoch], stored[_SALT_AT:_COMMITMENT_AT])
        if not hmac.compare_digest(commitment, stored[_COMMITMENT_AT:_NONCE_AT]):
            raise Tampered(what, why="it was not sealed with this store's key")
        sealer = self._aesgcm(key)
        bound = fronts[epoch] + place
        plain = self._decrypted(sealer, stored[_NONCE_AT:_SEALED_AT], stored[_SEALED_AT:], bound, what)
        return epoch, sealer, plain

    def _decrypted(self, sealer: AESGCM, nonce: bytes, sealed: bytes, bound: bytes, what: str) -> bytes:
        try:
            return sealer.decrypt(nonce, sealed, bound)
        except (ValueError, self._refused) as error:
            raise Tampered(what, why="it does not authenticate in this place") from error


def _head_front(run: bytes, tokens: tuple[int, ...]) -> bytes:
    front = len(run).to_bytes(2, "big") + len(tokens).to_bytes(2, "big")
    return front + struct.pack(f">{len(tokens)}I", *tokens) if tokens else front


def epoch_of(stored: bytes) -> int:
    """The epoch that a head, an object or an attachment claims; -1 if it is no such piece."""
    if len(stored) < _SALT_AT or stored[: len(FRONT)] != FRONT:
        return -1
    return int.from_bytes(stored[_EPOCH_AT:_SALT_AT], "big")


def _at(inner: bytes, rev: int) -> bytes:
    """A place in a log: the length of what varies, and what does not."""
    return len(inner).to_bytes(4, "big") + inner + rev.to_bytes(4, "big")


def _beside(place: tuple[bytes, int, bytes, int, int]) -> bytes:
    inner, rev, task, idx, epoch = place
    numbers = rev.to_bytes(4, "big") + idx.to_bytes(4, "big", signed=True) + epoch.to_bytes(8, "big")
    return parts(b"attachment", inner, task, numbers)


def _shown(inner: bytes) -> str:
    return inner[:12].decode("ascii", "backslashreplace")


def _joined(ids: Iterable[bytes]) -> bytes:
    joined = list(ids)
    if any(len(oid) != 16 for oid in joined):
        raise ValueError("an object id has 16 bytes")
    return b"".join(joined)


def _blocks(joined: bytes) -> list[bytes]:
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]
