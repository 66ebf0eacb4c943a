"""What stands around each frame of a portable file: a check that binds it to all before it, or encryption that does.

    plain       data | BLAKE3-128 of the seal before it, the frame's kind and its data
    encrypted   AES-256-GCM of data, tag 16; nonce: the frame's number; associated: the file's front, the frame's kind

An encrypted file has a random salt, and with it a key of its own, so a number is never used twice under a key. The
front holds a commitment to that key, which is compared first: no file opens under two keys.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from knotline.backends.encrypted_cipher import hkdf, require
from knotline.backends.keys import Argon2Cost, KeySource, Lacking, Secret
from knotline.codec import digest
from knotline.errors import Damaged, Tampered, UnknownFormat, WrongKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["MAGIC", "SEAL", "AskedOnce", "Seals", "fresh", "front_size", "reopened"]

# As PNG's: what is not clean to eight bits, or changes line ends, breaks it where it is seen first.
MAGIC: Final = b"\x89KNOT\r\n\x1a"
_VERSION: Final = 1
_PLAIN: Final = 0
_ENCRYPTED: Final = 1
_KINDS: Final = ("key", "passphrase")
SEAL: Final = 16
_CHECK: Final = 16
_KEYED: Final = struct.Struct(">BIII32s32s")  # kind of the secret, what a guess costs, salt, commitment
_START: Final = len(MAGIC) + 2
_FRONTS: Final = {_PLAIN: _START + _CHECK, _ENCRYPTED: _START + _KEYED.size + _CHECK}


class Seals(Protocol):
    """Frames are closed, and opened, strictly one after the other."""

    @property
    def encrypted(self) -> bool: ...

    def close(self, kind: int, data: bytes) -> bytes: ...

    def open(self, kind: int, sealed: bytes, what: str) -> bytes: ...


class _Plain:
    encrypted = False

    def __init__(self, front: bytes) -> None:
        self._before = front[-_CHECK:]

    def _next(self, kind: int, data: bytes) -> bytes:
        self._before = digest(b"frame", self._before + bytes((kind,)), data)
        return self._before

    def close(self, kind: int, data: bytes) -> bytes:
        return data + self._next(kind, data)

    def open(self, kind: int, sealed: bytes, what: str) -> bytes:
        data = sealed[:-SEAL]
        if self._next(kind, data) != sealed[-SEAL:]:
            raise Damaged(what, why="its check does not match")
        return data


class _Encrypted:
    encrypted = True

    def __init__(self, front: bytes, sealer: AESGCM, refused: type[Exception]) -> None:
        self._front = front
        self._sealer = sealer
        self._refused = refused
        self._number = 0

    def _place(self, kind: int) -> tuple[bytes, bytes]:
        self._number += 1
        return self._number.to_bytes(12, "big"), self._front + bytes((kind,))

    def close(self, kind: int, data: bytes) -> bytes:
        nonce, bound = self._place(kind)
        return self._sealer.encrypt(nonce, data, bound)

    def open(self, kind: int, sealed: bytes, what: str) -> bytes:
        nonce, bound = self._place(kind)
        try:
            return self._sealer.decrypt(nonce, sealed, bound)
        except (ValueError, self._refused) as error:
            raise Tampered(what, why="it does not authenticate in this place") from error


class AskedOnce:
    """A source that is asked once however often a file is read: a command may ask a person."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self._found: Secret | Lacking | None = None

    def secret(self) -> Secret:
        if self._found is None:
            try:
                self._found = self._source.secret()
            except Lacking as error:
                self._found = error
        if isinstance(self._found, Lacking):
            raise self._found
        return self._found

    def describe(self) -> str:
        return self._source.describe()


def _closed_front(suite: int, rest: bytes) -> bytes:
    front = MAGIC + bytes((_VERSION, suite)) + rest
    return front + digest(b"front", front)


def _keys(secret: Secret, cost: Argon2Cost, salt: bytes) -> tuple[bytes, bytes]:
    """The file's key and the commitment to it."""
    root = secret.value
    if secret.kind == "passphrase":
        from cryptography.hazmat.primitives.kdf.argon2 import Argon2id  # noqa: PLC0415 - an extra

        machine = Argon2id(salt=salt, length=32, iterations=cost.passes, lanes=cost.lanes, memory_cost=cost.memory)
        root = machine.derive(secret.value)
    return hkdf(root, salt, b"knotline file key"), hkdf(root, salt, b"knotline file commitment")


def _secrets(sources: Sequence[KeySource], what: str) -> list[Secret]:
    found: list[Secret] = []
    tried: list[str] = []
    for source in sources:
        try:
            found.append(source.secret())
        except Lacking as error:
            tried.append(f"{source.describe()} ({error})")
    if not found:
        raise WrongKey(what, why="no key was given", tried=tuple(tried))
    return found


def fresh(sources: Sequence[KeySource] | None, what: str) -> tuple[bytes, Seals]:
    """The front of a new file, and its seals; encrypted under the first source that has a secret."""
    if sources is None:
        front = _closed_front(_PLAIN, b"")
        return front, _Plain(front)
    sealer, refused = require()
    secret = _secrets(sources, what)[0]
    salt = os.urandom(32)
    key, commitment = _keys(secret, secret.cost, salt)
    cost = (secret.cost.memory, secret.cost.passes, secret.cost.lanes)
    front = _closed_front(_ENCRYPTED, _KEYED.pack(_KINDS.index(secret.kind), *cost, salt, commitment))
    return front, _Encrypted(front, sealer(key), refused)


def front_size(start: bytes, what: str) -> int:
    """How long the front is, from its first bytes."""
    if len(start) < _START and MAGIC.startswith(start[: len(MAGIC)]):
        raise Damaged(what, why="it is cut short")
    if start[: len(MAGIC)] != MAGIC:
        raise UnknownFormat(what, found=start[: len(MAGIC)].hex())
    version, suite = start[len(MAGIC) : _START]
    if version != _VERSION or suite not in _FRONTS:
        raise UnknownFormat(what, found=f"version {version}, suite {suite}")
    return _FRONTS[suite]


def reopened(front: bytes, sources: Sequence[KeySource], what: str) -> Seals:
    """The seals of a file that exists. Every source is tried."""
    if len(front) < front_size(front[:_START], what):
        raise Damaged(what, why="it is cut short")
    if digest(b"front", front[:-_CHECK]) != front[-_CHECK:]:
        raise Damaged(what, why="the check of its front does not match")
    if front[_START - 1] == _PLAIN:
        return _Plain(front)
    sealer, refused = require()
    number, memory, passes, lanes, salt, commitment = _KEYED.unpack(front[_START:-_CHECK])
    cost = Argon2Cost(memory, passes, lanes)
    if number >= len(_KINDS) or not cost.sane:
        # Before anything is computed: a cost that was read must not take a machine down.
        raise Tampered(what, why="it asks for a key in a way that is never written")
    for secret in _secrets(sources, what):
        if secret.kind == _KINDS[number]:
            key, there = _keys(secret, cost, salt)
            if hmac.compare_digest(there, commitment):
                return _Encrypted(front, sealer(key), refused)
    tried = tuple(source.describe() for source in sources)
    raise WrongKey(what, why="no key that was given opens it", tried=tried)
