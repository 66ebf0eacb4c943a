"""Everything that can be done to a small encrypted store, done: what is answered is right, or a typed error, and
`verify` says that something is wrong.

The inner store is one flat list, so that every byte and every field of it lies open.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.crash.store_scenarios import count
from tests.damage.test_flips import SOAK

from knotline.backends import EncryptedBackend
from knotline.backends.contract import Attach, Lease, Save
from knotline.backends.encrypted_ring import RING
from knotline.backends.keys import Argon2Cost, Passphrase
from knotline.errors import Damaged, NotFound, PlaintextInEncryptedStore, Tampered, UnknownFormat, WrongKey
from knotline.store import Store, verify
from knotline.store.names import document_key
from knotline.testing import RawOracle
from knotline.testing.oracle import _Kept

KEY = bytes(range(32))
REFUSED = (Tampered, PlaintextInEncryptedStore, UnknownFormat, WrongKey, Damaged, NotFound)
EVERY = 1 if SOAK else 20
"""Of the flips and cuts after which `verify` reads the whole store: reading what was flipped is never left out."""

Question = Callable[[Store], object]
Put = Callable[[bytes], None]


class Open:
    """A store, its bytes, and what is true of it."""

    def __init__(self) -> None:
        self.inner = RawOracle(clock=lambda: 1000.0)
        self.backend = EncryptedBackend(self.inner, KEY)
        store = Store(self.backend)
        large = [f"{n} incompressible {n * n * 7919:x} text " * 3 for n in range(80)]
        for n in range(3):
            store.append("a", {"n": n, "large": "".join(large)}, labels=["even" if n % 2 == 0 else "odd"])
        store.seal("a")
        store.append("b", {"other": "run", "large": "".join(reversed(large))}, labels=["odd"])
        store.append("b", {"other": "state"})
        store.fork("a", "f", rev=1)
        store.put("config", "x", {"v": 1})
        for n in range(2):
            store.attach("a", n, f"task {n}", n, {"result": n})
        store.attach("b", 0, "task 0", 0, {"result": "of b"})
        for run in ("a", "b"):
            store.acquire(run, f"owner of {run}", ttl=60)
        self.questions: dict[str, Question] = {
            **{f"state {rev} of a": partial(_load, "a", rev) for rev in range(4)},
            **{f"state {rev} of b": partial(_load, "b", rev) for rev in range(2)},
            "state of f": partial(_load, "f", None),
            "every entry": _entries,
            "every object": lambda store: store.backend.objects(store.backend.object_ids()),
            "document": lambda store: store.get("config", "x"),
            "documents": lambda store: store.names("config"),
            "runs": lambda store: sorted(name for name, _ in store.runs()),
            **{f"found {label}": partial(_found, label) for label in ("even", "odd")},
            "all": lambda store: [(f.header.run, f.header.rev) for f in store.find().items],
            **{f"attached to {run}": partial(_attached, run) for run in ("a", "b")},
            **{f"lease of {run}": partial(_lease, run) for run in ("a", "b")},
        }
        self.truth = {name: ask(store) for name, ask in self.questions.items()}

    @property
    def rows(self) -> list[_Kept]:
        return self.inner.log

    def pieces(self) -> list[tuple[str, bytes, Put]]:
        """Every stored byte string with what it is, and how to put another in its place."""
        found: list[tuple[str, bytes, Put]] = []
        for row in self.rows:
            kind = "slots" if row.save.run == RING else "head"
            found.append((kind, row.save.head, partial(_put_head, row)))
            if kind == "head":
                found.append(("body", row.body, partial(setattr, row, "body")))
        for oid, blob in self.inner.blobs.items():
            found.append(("object", blob, partial(self.inner.blobs.__setitem__, oid)))
        for at, attached in enumerate(self.inner.attached):
            found.append(("attachment", attached.data, partial(self._put_attached, at)))
        return found

    def _put_attached(self, at: int, data: bytes) -> None:
        self.inner.attached[at] = replace(self.inner.attached[at], data=data)

    def ask(self, *, hidden: bool = False) -> int:
        """Right, or a typed error: how many were refused. With a fresh handle, which knows nothing."""
        try:
            store = Store(EncryptedBackend(self.inner, KEY))
        except REFUSED:
            return len(self.questions)
        refused = 0
        for name in self.questions:
            try:
                answer = self.questions[name](store)
            except REFUSED:
                refused += 1
            else:
                true: Any = self.truth[name]
                # Who can write can hide an entry from a filter, as by deleting it: `verify` is what finds that.
                less = hidden and name.startswith(("found ", "documents"))
                right = set(answer) <= set(true) if less else answer == true  # pyright: ignore[reportArgumentType]
                assert right, f"{name}: wrong data"
        return refused

    def noticed(self, *, hidden: bool = False) -> None:
        """A read refuses, and `verify` names it, with a handle that was open before."""
        assert self.ask(hidden=hidden) > 0, "no read noticed"
        self.named()

    def named(self) -> None:
        assert not verify(Store(self.backend)).clean, "verify found nothing"


def _load(run: str, rev: int | None, store: Store) -> object:
    return store.load(run, rev)


def _entries(store: Store) -> object:
    runs = [b"ra", b"rb", b"rf", document_key("config", "x")]
    return [(e.run, e.rev, e.head, e.body) for run in runs for e in store.backend.entries(run, 0, 99)]


def _found(label: str, store: Store) -> object:
    return [(f.header.run, f.header.rev) for f in store.find([label]).items]


def _attached(run: str, store: Store) -> object:
    return [(found.rev, found.task, found.idx, value) for found, value in store.attachments(run)]


def _lease(run: str, store: Store) -> object:
    lease = store.backend.lease(b"r" + run.encode())
    return None if lease is None else lease.owner


def _put_head(row: _Kept, head: bytes) -> None:
    row.save = replace(row.save, head=head)


def test_untouched_it_is_clean() -> None:
    place = Open()
    assert place.ask() == 0
    assert verify(Store(place.backend)).clean
    kinds = {kind for kind, _, _ in place.pieces()}
    assert kinds == {"head", "body", "object", "attachment", "slots"}
    assert len(place.inner.blobs) > 1
    assert len(place.pieces()) > 25


# -- changed ---------------------------------------------------------------------------------------------------


def slots(place: Open) -> int:
    return flips(place, only="slots")


def flips(place: Open, *, only: str = "") -> int:
    """Every byte of every piece, one bit of it each."""
    made = 0
    for kind, piece, put in place.pieces():
        if only not in ("", kind):
            continue
        for at in range(len(piece)):
            made += 1
            put(piece[:at] + bytes([piece[at] ^ (1 << (at + made) % 8)]) + piece[at + 1 :])
            assert place.ask() > 0, f"{kind}: byte {at}"
            if made % EVERY == 0:
                place.named()
        put(piece)
    return made


def test_every_byte_of_every_piece() -> None:
    place = Open()
    made = flips(place)
    assert made > 3000
    assert place.ask() == 0
    count("encrypted: bytes flipped", made)


def test_every_length_of_every_piece() -> None:
    place = Open()
    made = 0
    for kind, piece, put in place.pieces():
        for size in range(0, len(piece), 1 if SOAK or kind == "attachment" else 3):
            made += 1
            put(piece[:size])
            assert place.ask() > 0, f"{kind}: cut at {size}"
            if made % EVERY == 0:
                place.named()
        put(piece + b"\0")
        place.noticed()
        put(piece)
    assert place.ask() == 0
    count("encrypted: pieces cut", made)


# -- swapped ---------------------------------------------------------------------------------------------------


def swaps(place: Open) -> int:
    """Any two pieces of any kind."""
    made = 0
    for (_, one, put_one), (_, two, put_two) in itertools.combinations(place.pieces(), 2):
        put_one(two)
        put_two(one)
        place.noticed()
        put_one(one)
        put_two(two)
        made += 1
    return made


def test_any_two_pieces_swapped() -> None:
    place = Open()
    made = swaps(place)
    assert made > 300
    assert place.ask() == 0
    count("encrypted: pieces swapped", made)


def test_any_two_entries_swapped_whole() -> None:
    """Head, body and tokens together, between runs and within one: only the place is wrong."""
    place = Open()
    rows = [row for row in place.rows if row.save.run != RING]
    for one, two in itertools.combinations(rows, 2):
        for fields in (("rev",), ("run", "rev")):
            before = one.save, two.save
            one.save = replace(one.save, **{f: getattr(before[1], f) for f in fields})
            two.save = replace(two.save, **{f: getattr(before[0], f) for f in fields})
            if (one.save, two.save) != before:
                place.noticed()
            one.save, two.save = before
    assert place.ask() == 0


def tokens(place: Open) -> int:
    made = 0
    rows = [row for row in place.rows if row.save.run != RING]
    for one, two in itertools.combinations(rows, 2):
        if one.tokens == two.tokens:
            continue
        a, b = one.save, two.save
        one.save, two.save = replace(a, tokens=b.tokens), replace(b, tokens=a.tokens)
        place.noticed(hidden=True)
        one.save, two.save = a, b
        made += 1
    for row in rows:
        save = row.save
        for other in ((), (*save.tokens, 5), (*save.tokens[1:], 7)):
            if other != save.tokens:
                row.save = replace(save, tokens=other)
                place.noticed(hidden=True)
                made += 1
        row.save = save
    return made


def test_any_two_entries_tokens_swapped_and_all_changed() -> None:
    place = Open()
    assert tokens(place) > 20
    assert place.ask() == 0


def test_an_index_that_hides_an_entry_is_named() -> None:
    """What the inner store says of its entries is right, and what it finds by their tokens is not."""
    place = Open()
    find = place.inner.find

    def blind(tokens: Any = (), **more: Any) -> Any:
        return [entry for entry in find(tokens, **more) if not tokens or entry.rev != 2]

    place.inner.find = blind
    assert any("not found by a token" in damage.why for damage in verify(Store(place.backend)).damage)


def leases(place: Open) -> int:
    held = place.inner.leases
    (a, lease_a), (b, lease_b) = held.items()
    held[a], held[b] = lease_b, lease_a
    place.noticed()
    held[a], held[b] = lease_a, lease_b
    made = 1
    for at in range(len(lease_a.owner)):
        other = "0" if lease_a.owner[at] != "0" else "1"
        held[a] = replace(lease_a, owner=lease_a.owner[:at] + other + lease_a.owner[at + 1 :])
        place.noticed()
        made += 1
    for owner in ("", "somebody", "00", lease_a.owner[:-2], "\ud800"):
        held[a] = Lease(owner, 1, lease_a.until, live=True)
        place.noticed()
        made += 1
    held[a] = lease_a
    return made


def test_lease_rows_swapped_and_changed() -> None:
    place = Open()
    assert leases(place) > 50
    assert place.ask() == 0


def test_attachments_in_another_place() -> None:
    place = Open()
    attached = place.inner.attached
    for one, two in itertools.combinations(range(len(attached)), 2):
        for field in ("run", "rev", "task", "idx", "epoch"):
            before = list(attached)
            attached[one] = replace(before[one], **{field: getattr(before[two], field)})
            attached[two] = replace(before[two], **{field: getattr(before[one], field)})
            if attached != before:
                place.noticed()
            attached[:] = before
    assert place.ask() == 0


# -- forged ----------------------------------------------------------------------------------------------------


def forgeries(place: Open) -> int:
    """A whole plain store of the same runs, put in beside and instead."""
    plain = RawOracle(clock=lambda: 1000.0)
    store = Store(plain)
    for n in range(3):
        store.append("a", {"n": n, "large": "forged " * 900}, labels=["even"])
    store.seal("a")
    store.attach("a", 0, "task 0", 0, {"result": "forged"})
    made = 0
    rows = [row for row in place.rows if row.save.run != RING]
    for forged in plain.log:
        for row in rows:
            before = row.save, row.body
            row.save = replace(row.save, head=forged.save.head)
            place.noticed()
            row.body = forged.body
            place.noticed()
            row.save = before[0]
            place.noticed()
            row.body = before[1]
            made += 3
    for data in plain.blobs.values():
        for oid, before in list(place.inner.blobs.items()):
            place.inner.blobs[oid] = data
            place.noticed()
            place.inner.blobs[oid] = before
            made += 1
        place.inner.blobs[bytes(16)] = data
        place.named()
        del place.inner.blobs[bytes(16)]
    for attached in plain.attached:
        place.inner.attached.append(replace(attached, run=place.inner.attached[0].run, rev=3))
        place.noticed()
        place.inner.attached.pop()
        made += 1
    return made


def test_forged_plaintext_in_every_place() -> None:
    place = Open()
    made = forgeries(place)
    assert made > 100
    assert place.ask() == 0
    count("encrypted: forgeries", made)


def test_forged_plain_runs_beside_the_real_ones() -> None:
    for forge in (lambda s: s.append("forged", {"n": 1}), lambda s: s.put("config", "y", {"v": 2})):
        place = Open()
        forge(Store(place.inner))
        place.noticed()
        with pytest.raises(PlaintextInEncryptedStore):
            Store(place.backend).find()
    place = Open()
    saved = Save(b"rzz", 0, b"", b"")
    place.inner.commit([saved])
    place.noticed()


def test_entries_of_another_store_with_the_same_key() -> None:
    place, other = Open(), Open()
    rows = [row for row in place.rows if row.save.run != RING]
    theirs = [row for row in other.rows if row.save.run != RING]
    for row, foreign in itertools.product(rows, theirs):
        before = row.save, row.body
        row.save, row.body = replace(row.save, head=foreign.save.head), foreign.body
        place.noticed()
        row.save, row.body = before
    assert isinstance(other.inner.attached[0], Attach)
    ring = place.rows[0].save
    # The key slots of an empty store that the same key opens: it is not taken for the one that the entries are of.
    place.rows[0].save = replace(ring, head=other.rows[0].save.head)
    place.named()
    swapped = Store(EncryptedBackend(place.inner, KEY))
    for ask in (swapped.find, lambda: list(swapped.runs())):
        with pytest.raises(Tampered):
            ask()


# -- keys ------------------------------------------------------------------------------------------------------


def test_no_key_and_wrong_keys_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Open()
    for name in ("KNOTLINE_KEY", "KNOTLINE_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    for wrong in (None, b"\x09" * 32, b"short", Passphrase("guess"), [b"\x09" * 32]):
        with pytest.raises((WrongKey, AttributeError)) as caught:
            EncryptedBackend(place.inner, wrong)  # pyright: ignore[reportArgumentType]
        assert isinstance(caught.value, WrongKey) or isinstance(wrong, list)


def test_removed_slots_and_rotated_roots() -> None:
    place = Open()
    cheap = Argon2Cost(memory=32, passes=1, lanes=1)
    place.backend.add_slot("second", Passphrase("second", cost=cheap))
    place.backend.remove_slot("first")
    with pytest.raises(WrongKey):
        EncryptedBackend(place.inner, KEY)
    second = Store(EncryptedBackend(place.inner, Passphrase("second")))
    assert all(ask(second) == place.truth[name] for name, ask in place.questions.items())
    second.backend.rotate(Passphrase("second"))  # pyright: ignore[reportAttributeAccessIssue]
    second.append("a", {"after": "rotation"})
    assert verify(second).clean
    for row in [row for row in place.rows if row.save.run != RING][-1:]:
        epoch = row.save.head[4:8]
        assert epoch == b"\0\0\0\x01"
        # An entry of the new root that says that it is of the old one.
        row.save = replace(row.save, head=row.save.head[:4] + bytes(4) + row.save.head[8:])
        with pytest.raises(Tampered):
            second.load("a")


def test_after_rekey_nothing_of_the_old_store_is_taken() -> None:
    place, into = Open(), RawOracle(clock=lambda: 1000.0)
    fresh = place.backend.rekey(into, b"\x08" * 32)
    store = Store(fresh)
    without = {name: ask for name, ask in place.questions.items() if not name.startswith("lease")}
    assert all(ask(store) == place.truth[name] for name, ask in without.items())
    assert verify(store).clean
    mine = [row for row in into.log if row.save.run != RING]
    for row, old in itertools.product(mine, [row for row in place.rows if row.save.run != RING]):
        before = row.save, row.body
        row.save, row.body = replace(row.save, head=old.save.head), old.body
        with pytest.raises(REFUSED):
            _reads(fresh)
        row.save, row.body = before
    with pytest.raises(WrongKey):
        EncryptedBackend(into, KEY)


def _reads(backend: EncryptedBackend) -> object:
    return [backend.entries(run, 0, 99) for run, _ in backend.runs()]


@pytest.mark.parametrize("cost", [[2**30, 3, 4], [64, 2**31, 1], [2**21, 1, 4], [64, 1, 255], [7, 1, 1], [-1, 1, 1]])
def test_a_cost_from_the_disk_is_refused_before_it_is_paid(cost: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    inner = RawOracle()
    EncryptedBackend(inner, Passphrase("p", cost=Argon2Cost(memory=32, passes=1, lanes=1)))
    row = inner.log[0]
    said = json.loads(row.save.head[36:])
    said["slots"][0]["argon2id"] = cost
    row.save = replace(row.save, head=row.save.head[:36] + json.dumps(said).encode())
    from cryptography.hazmat.primitives.kdf import argon2

    def never(**_: object) -> None:
        raise AssertionError("it was computed")

    monkeypatch.setattr(argon2, "Argon2id", never)
    with pytest.raises(Tampered):
        EncryptedBackend(inner, Passphrase("p"))
