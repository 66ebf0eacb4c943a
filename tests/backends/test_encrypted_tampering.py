"""Whatever is done to the bytes of an encrypted store, nothing false is ever read, and nothing secret is said."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from knotline.backends import EncryptedBackend, MemoryBackend
from knotline.backends.contract import MAX_REV, Attach, Attachment, Entry, Save
from knotline.backends.encrypted_ring import RING
from knotline.errors import Error, PlaintextInEncryptedStore, Tampered, UnknownFormat
from knotline.store import Store
from knotline.testing import RawOracle
from knotline.testing.oracle import _Kept
from knotline.testing.suite_place import append, done, object_id, save

KEY = bytes(range(32))
REFUSED = (Tampered, PlaintextInEncryptedStore, UnknownFormat)


@dataclass
class Place:
    """An encrypted store whose bytes lie open: the oracle is one flat list."""

    inner: RawOracle
    saves: dict[tuple[bytes, int], Save]

    def open(self) -> EncryptedBackend:
        return EncryptedBackend(self.inner, KEY)

    def rows(self) -> list[_Kept]:
        return [kept for kept in self.inner.log if kept.save.run != RING]

    def everything(self) -> tuple[Any, ...]:
        b = self.open()
        runs = b.runs()
        return (
            runs,
            [[(e.run, e.rev, e.head, e.body) for e in b.entries(run, 0, MAX_REV)] for run in (b"r", b"s")],
            [(e.run, e.rev, e.head) for e in b.find()],
            [b.attachments(run) for run in (b"r", b"s")],
            b.objects(b.object_ids()),
        )


def filled() -> Place:
    place = Place(RawOracle(), {})
    b = place.open()
    for run, rev in itertools.product((b"r", b"s"), range(3)):
        objects = [(object_id(10 * rev + run[0]), b"object %d " % rev + run)]
        one = save(run, rev, body=b"body %d of " % rev + run, tokens=[rev], objects=objects)
        append(b, one)
        place.saves[run, rev] = one
        assert done(b.commit([Attach(run, rev, b"task %d" % rev, rev, 1, b"attached %d" % rev)])) == [True]
    return place


def refused(place: Place) -> None:
    """Some read says so, and none gives what was not written."""
    with pytest.raises(REFUSED):
        place.everything()
    b = place.open()
    for run in (b"r", b"s"):
        try:
            for entry in b.entries(run, 0, MAX_REV):
                true = place.saves[run, entry.rev]
                assert (entry.head, entry.body) == (true.head, true.body)
        except REFUSED:
            pass
        try:
            for each in b.attachments(run):
                assert each == Attachment(each.rev, b"task %d" % each.rev, each.rev, 1, b"attached %d" % each.rev)
        except REFUSED:
            pass
    real = {oid: data for one in place.saves.values() for oid, data in one.objects}
    for oid in real:
        with contextlib.suppress(*REFUSED):
            assert b.objects([oid]).items() <= real.items()


# -- moved -----------------------------------------------------------------------------------------------------


def test_untouched_it_reads() -> None:
    place = filled()
    runs, entries, found, attached, objects = place.everything()
    assert runs == [(b"r", 2), (b"s", 2)]
    assert [len(each) for each in (*entries, found, *attached, objects)] == [3, 3, 6, 3, 3, 6]


def test_any_two_objects_swapped() -> None:
    for one, two in itertools.combinations(sorted(filled().inner.blobs), 2):
        assert one != two
    names = len(filled().inner.blobs)
    for one, two in itertools.combinations(range(names), 2):
        place = filled()
        blobs = place.inner.blobs
        a, b = list(blobs)[one], list(blobs)[two]
        blobs[a], blobs[b] = blobs[b], blobs[a]
        refused(place)


@pytest.mark.parametrize("what", ["head", "body", "both", "task", "data"])
def test_any_two_entries_or_attachments_swapped(what: str) -> None:
    for one, two in itertools.combinations(range(6), 2):
        place = filled()
        if what in ("task", "data"):
            attached = place.inner.attached
            a, b = attached[one], attached[two]
            attached[one] = replace(a, **{what: getattr(b, what)})
            attached[two] = replace(b, **{what: getattr(a, what)})
        else:
            x, y = place.rows()[one], place.rows()[two]
            if what in ("head", "both"):
                heads = x.save.head, y.save.head
                x.save, y.save = replace(x.save, head=heads[1]), replace(y.save, head=heads[0])
            if what in ("body", "both"):
                x.body, y.body = y.body, x.body
        refused(place)


def test_an_entry_moved_to_another_run_or_revision() -> None:
    for at in range(6):
        other = (at + 3) % 6
        for change in ("run", "rev", "new run", "new rev"):
            place = filled()
            kept, target = place.rows()[at], place.rows()[other]
            run = {"run": target.save.run, "new run": b"r" + b"z" * 52}.get(change, kept.save.run)
            rev = {"rev": (kept.save.rev + 1) % 3, "new rev": 7}.get(change, kept.save.rev)
            place.inner.log = [k for k in place.inner.log if (k.save.run, k.save.rev) != (run, rev) or k is kept]
            kept.save = replace(kept.save, run=run, rev=rev)
            refused(place)


def test_an_attachment_moved() -> None:
    changes: list[dict[str, Any]] = [
        {"run": b"r" + b"z" * 52},
        {"rev": 9},
        {"idx": 9},
        {"epoch": 9},
        {"task": b"x" * 32},
    ]
    for change in changes:
        place = filled()
        moved = replace(place.inner.attached[0], **change)
        if "run" in change:
            moved = replace(moved, run=place.inner.attached[5].run, rev=7)
        place.inner.attached[0] = moved
        refused(place)


def test_a_piece_of_one_kind_in_the_place_of_another() -> None:
    for source, target in itertools.permutations(["head", "body", "object", "attachment"], 2):
        place = filled()
        row = place.rows()[0]
        oid = next(iter(place.inner.blobs))
        attached = place.inner.attached[0]
        bytes_of = {
            "head": row.save.head,
            "body": row.body,
            "object": place.inner.blobs[oid],
            "attachment": attached.data,
        }
        if target == "head":
            row.save = replace(row.save, head=bytes_of[source])
        elif target == "body":
            row.body = bytes_of[source]
        elif target == "object":
            place.inner.blobs[oid] = bytes_of[source]
        else:
            place.inner.attached[0] = replace(attached, data=bytes_of[source])
        refused(place)


def test_a_piece_of_another_store() -> None:
    """The same key opens both; what is sealed in one is nothing in the other."""
    place, other = filled(), filled()
    row = place.rows()[0]
    row.save, row.body = replace(row.save, head=other.rows()[0].save.head), other.rows()[0].body
    refused(place)
    place = filled()
    place.inner.blobs[next(iter(place.inner.blobs))] = next(iter(other.inner.blobs.values()))
    refused(place)


# -- changed ---------------------------------------------------------------------------------------------------


def _pieces(place: Place) -> Iterator[tuple[bytes, Callable[[bytes], None]]]:
    """One piece of each kind, and how to put other bytes in its place."""
    row = place.rows()[4]

    def head(other: bytes) -> None:
        row.save = replace(row.save, head=other)

    def body(other: bytes) -> None:
        row.body = other

    oid = list(place.inner.blobs)[2]

    def blob(other: bytes) -> None:
        place.inner.blobs[oid] = other

    def attached(other: bytes) -> None:
        place.inner.attached[2] = replace(place.inner.attached[2], data=other)

    yield row.save.head, head
    yield row.body, body
    yield place.inner.blobs[oid], blob
    yield place.inner.attached[2].data, attached


def test_every_byte_flipped_and_every_length_cut() -> None:
    place = filled()
    for piece, put in _pieces(place):
        for at in range(len(piece)):
            put(piece[:at] + bytes([piece[at] ^ (1 << at % 8)]) + piece[at + 1 :])
            with pytest.raises(REFUSED):
                place.everything()
            put(piece[:at])
            with pytest.raises(Tampered):
                place.everything()
        put(piece + b"\0")
        refused(place)
        put(piece)
    place.everything()


def test_plaintext_is_never_taken() -> None:
    place = filled()
    for number, (piece, put) in enumerate(_pieces(place)):
        for forged in (b"\x01" + bytes(40), b"plain", b"\x00\x00\x00\x00text"):
            put(forged)
            with pytest.raises(PlaintextInEncryptedStore):
                place.everything()
        put(piece)
        place.everything()
        assert number < 4


def test_a_forged_plain_run_is_noticed() -> None:
    """Written by a store that was opened without the wrapper."""
    inner = MemoryBackend()
    store = Store(EncryptedBackend(inner, KEY))
    store.append("real", {"a": 1})
    Store(inner).append("forged", {"a": 2})
    for look in (lambda: list(store.runs()), lambda: store.find().items):
        with pytest.raises(PlaintextInEncryptedStore):
            look()
    assert store.load("real") == {"a": 1}


def test_a_newer_version_is_said_to_be_one() -> None:
    place = filled()
    for piece, put in _pieces(place):
        put(piece[:2] + b"\x02" + piece[3:])
        with pytest.raises(UnknownFormat):
            place.everything()
        put(piece)


def test_the_commitment_is_compared() -> None:
    """A wrong one is refused although everything else is right: it takes part in nothing but the comparison."""
    place = filled()
    for piece, put in itertools.islice(_pieces(place), 1):
        for at in range(40, 72):
            put(piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :])
            with pytest.raises(Tampered, match="not sealed with this store's key"):
                place.everything()


def test_a_head_that_does_not_open_still_has_its_runs_name_elsewhere() -> None:
    place = filled()
    row = place.rows()[2]
    row.save = replace(row.save, head=row.save.head[:-1])
    assert place.open().runs() == [(b"r", 2), (b"s", 2)]
    with pytest.raises(Tampered):
        place.open().head(b"r")


def test_impossible_numbers() -> None:
    place = filled()
    for change in ({"rev": 2**40}, {"idx": 2**40}, {"epoch": -1}):
        before = place.inner.attached[0]
        place.inner.attached[0] = replace(before, **change)
        b = place.open()
        with pytest.raises(Tampered):
            b.attachments(b"r", hi=2**50)
        place.inner.attached[0] = before


def test_errors_are_ours() -> None:
    place = filled()
    place.rows()[0].body = b""
    with pytest.raises(Error):
        place.everything()
    assert isinstance(place.open().find()[0], Entry)
