"""Planted weaknesses of the encryption, each of which a test of it must catch; and they all pass without them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.backends import test_encrypted as contract
from tests.backends import test_encrypted_tampering as tampering
from tests.crash.store_scenarios import count
from tests.damage import test_encrypted_store as damage
from tests.damage.test_encrypted_store import Open

from knotline.backends import EncryptedBackend, encrypted_cipher, encrypted_ring
from knotline.backends.contract import Entry
from knotline.backends.encrypted_cipher import BodyKey, Cipher, OpenHead, parts
from knotline.backends.encrypted_ring import Ring
from knotline.backends.keys import Argon2Cost
from knotline.errors import Tampered

Plant = Callable[[pytest.MonkeyPatch], None]
WEAK = bytes(12)


def no_place_of_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encrypted_cipher, "_at", lambda inner, rev: b"")


def no_revision(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encrypted_cipher, "_at", lambda inner, rev: inner)


def no_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encrypted_cipher, "_at", lambda inner, rev: rev.to_bytes(4, "big"))


def no_place_of_attachments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encrypted_cipher, "_beside", lambda place: b"")


def no_place_of_objects(patch: pytest.MonkeyPatch) -> None:
    def seal(self: Cipher, oid: bytes, data: bytes) -> bytes:
        return self._seal(data, parts(b"object"))

    def opened(self: Cipher, hidden: bytes, oid: bytes, stored: bytes) -> bytes:
        return self._open(stored, "object", self._fronts, parts(b"object"))[2]

    patch.setattr(Cipher, "seal_object", seal)
    patch.setattr(Cipher, "open_object", opened)


def no_commitment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encrypted_cipher.hmac, "compare_digest", lambda one, other: True)


def plain_objects(patch: pytest.MonkeyPatch) -> None:
    real = Cipher.open_object

    def lenient(self: Cipher, hidden: bytes, oid: bytes, stored: bytes) -> bytes:
        return real(self, hidden, oid, stored) if stored[:2] == encrypted_cipher.MARK else stored

    patch.setattr(Cipher, "open_object", lenient)


def plain_heads(patch: pytest.MonkeyPatch) -> None:
    real = Cipher.open_head

    def lenient(self: Cipher, stored: bytes, inner: bytes, rev: int) -> OpenHead:
        if stored[:2] == encrypted_cipher.MARK:
            return real(self, stored, inner, rev)
        return OpenHead(b"ra", (), stored, BodyKey(0, b"", self._fresh()[1]))

    patch.setattr(Cipher, "open_head", lenient)


def plain_bodies(patch: pytest.MonkeyPatch) -> None:
    real = Cipher.open_body

    def lenient(self: Cipher, key: BodyKey, stored: bytes, inner: bytes, rev: int) -> bytes:
        return real(self, key, stored, inner, rev) if stored[:2] == encrypted_cipher.MARK else stored

    patch.setattr(Cipher, "open_body", lenient)


def tokens_believed(patch: pytest.MonkeyPatch) -> None:
    def carried(self: EncryptedBackend, entry: Entry, opened: OpenHead) -> tuple[int, ...]:
        return entry.tokens

    patch.setattr(EncryptedBackend, "_carried", carried)


def one_nonce_for_recasts(patch: pytest.MonkeyPatch) -> None:
    def seal(self: Cipher, key: BodyKey, inner: bytes, rev: int, body: bytes) -> bytes:
        bound = self._bodies[key.epoch] + encrypted_cipher._at(inner, rev) + key.head
        return encrypted_cipher.FRONT + WEAK + key.sealer.encrypt(WEAK, body, bound)

    patch.setattr(Cipher, "seal_body", seal)


def no_randomness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encrypted_cipher.os, "urandom", bytes)


def owners_of_any_run(patch: pytest.MonkeyPatch) -> None:
    owner, plain = Cipher.owner, Cipher.plain_owner
    patch.setattr(Cipher, "owner", lambda self, run, name: owner(self, b"", name))
    patch.setattr(Cipher, "plain_owner", lambda self, run, hidden: plain(self, b"", hidden))


def owners_believed(patch: pytest.MonkeyPatch) -> None:
    real = Cipher.plain_owner

    def lenient(self: Cipher, run: bytes, hidden: str) -> str:
        try:
            return real(self, run, hidden)
        except Tampered:
            return hidden

    patch.setattr(Cipher, "plain_owner", lenient)


def slots_not_authenticated(patch: pytest.MonkeyPatch) -> None:
    def checked(self: Ring, root: bytes) -> Ring:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(encrypted_ring, "_mac", lambda *_: self.raw[4:36])
            return honest(self, root)

    honest = Ring.checked
    patch.setattr(Ring, "checked", checked)


def any_cost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Argon2Cost, "sane", True)


def costs() -> None:
    with pytest.MonkeyPatch.context() as patch:
        damage.test_a_cost_from_the_disk_is_refused_before_it_is_paid([2**30, 3, 4], patch)


def on(act: Callable[[Open], object]) -> Callable[[], object]:
    """With a store that is made under the weakness."""
    return lambda: act(Open())


MUTANTS: dict[str, tuple[Plant, Callable[[], object]]] = {
    "entries not bound to their place": (no_place_of_entries, damage.test_any_two_entries_swapped_whole),
    "entries not bound to their revision": (no_revision, damage.test_any_two_entries_swapped_whole),
    "entries not bound to their run": (no_run, tampering.test_an_entry_moved_to_another_run_or_revision),
    "recasts without randomness": (no_randomness, contract.test_a_recast_is_sealed_anew),
    "attachments not bound to their place": (no_place_of_attachments, damage.test_attachments_in_another_place),
    "objects not bound to their ids": (no_place_of_objects, on(damage.swaps)),
    "the commitment is not compared": (no_commitment, tampering.test_the_commitment_is_compared),
    "plain objects are taken": (plain_objects, on(damage.forgeries)),
    "plain heads are taken": (plain_heads, on(damage.forgeries)),
    "plain bodies are taken": (plain_bodies, on(damage.forgeries)),
    "tokens are believed": (tokens_believed, on(damage.tokens)),
    "one nonce for all recasts": (one_nonce_for_recasts, contract.test_a_recast_is_sealed_anew),
    "no randomness": (no_randomness, contract.test_equal_writes_are_sealed_differently_each_time),
    "owners are not bound to their run": (owners_of_any_run, on(damage.leases)),
    "owners are believed": (owners_believed, on(damage.leases)),
    "slots are not authenticated": (slots_not_authenticated, on(damage.slots)),
    "any cost is paid": (any_cost, costs),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(mutant: str) -> None:
    plant, scenario = MUTANTS[mutant]
    scenario()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            scenario()
    count("encrypted: mutants caught", 1)
