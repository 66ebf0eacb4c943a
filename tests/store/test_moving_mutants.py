"""Each planted mistake is caught: the checks of moving can fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.store.houses import KEY, clean, contents, cottage, cut_log, strict_target

from knotline.backends import Attachment, Entry, MemoryBackend, Outcome, Save, Write
from knotline.backends.copying import Sent, Source
from knotline.backends.copying_landing import Landing, Standing
from knotline.codec import digest, links_of, open_piece, seal_of
from knotline.errors import Conflict, Damaged, Error, Unavailable, UnknownFormat
from knotline.store import Store, copy_store, decode_file, export_run, export_store, import_file, portable_file
from knotline.store.meaning import StoreMeaning
from knotline.store.names import run_key
from knotline.store.portable import Piece, Tally, Writer, records
from knotline.store.portable_seals import front_size
from knotline.testing import FaultyBackend, Plan

HONEST = (Damaged, UnknownFormat)


class Watched(MemoryBackend):
    """Remembers what a person would see of it, and that nothing was left unsynced."""

    def __init__(self) -> None:
        super().__init__()
        self.aliases: set[tuple[str, str] | None] = set()
        self.unsynced = 0

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]:
        self.unsynced += not sync
        self.aliases |= {write.alias for write in writes if isinstance(write, Save)}
        return super().commit(writes, sync=sync)


def refused(work: Callable[[], object], *kinds: type[Error]) -> None:
    try:
        work()
    except kinds:
        return
    raise AssertionError("it was taken")


def flipped(data: bytes, at: int = -1) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + (data[at:][1:])


def everything(folder: Path) -> None:
    """All that is promised of moving, in the short."""
    source = cottage()
    whole = contents(source.backend)
    file = folder / "all.knot"
    export_store(source, file, overwrite=True)
    for move in (lambda to: copy_store(source, to), lambda to: import_file(to, file)):
        target = Store(strict_target())
        move(target)
        assert contents(target.backend) == whole
        clean(target.backend)
        assert move(target).entries == 0
        assert contents(target.backend) == whole
        watched = Watched()
        move(Store(watched))
        assert watched.unsynced == 0
        assert ("config", "main") in watched.aliases
        other = Store(MemoryBackend())
        other.append("long", {"other": 1})
        refused(lambda move=move, other=other: move(other), Conflict)
        other = Store(MemoryBackend())
        for n in range(99):
            other.append("pruned", n)
        other.prune("pruned", keep_from=98)
        refused(lambda move=move, other=other: move(other), Conflict)
        again = Store(MemoryBackend())
        for at in range(3, 60, 9):
            faulty = FaultyBackend(again.backend, Plan(at=at, kind="after"))
            try:
                move(Store(faulty))
            except Unavailable:
                continue
            assert not faulty.injected, "a fault was not heard"
        move(again)
        assert contents(again.backend) == whole
    target = Store(MemoryBackend())
    copy_store(source, target, runs=["fork"])
    assert target.load("fork") == source.load("fork")
    export_run(source, "fork", folder / "r.knot", overwrite=True)
    target = Store(MemoryBackend())
    import_file(target, folder / "r.knot")
    assert target.load("fork") == source.load("fork")
    damage(folder)
    bad_files(folder, file.read_bytes())


def damage(folder: Path) -> None:
    for kind in ("hole", "front", "body", "object", "gone", "attachment", "chain"):
        source = cottage()
        backend = source.backend
        assert isinstance(backend, MemoryBackend)
        run = backend._runs[run_key("long")]
        match kind:
            case "hole":
                cut_log(backend, "long", 9)
            case "front":
                cut_log(backend, "long", 0)
            case "body":
                run.rows[34].body = flipped(run.rows[34].body)
            case "attachment":
                epoch, data = run.attached[3, b"task", 0]
                run.attached[3, b"task", 0] = (epoch, flipped(data))
            case "chain":
                other = Store(MemoryBackend(), clock=itertools.count(7).__next__, entropy=bytes)
                for _ in range(2):
                    source.append("twin", {"n": 1})
                    other.append("twin", {"n": 2})
                row = backend._runs[run_key("twin")].rows[0]
                there = other.backend.entries(run_key("twin"), 0, 0)[0]
                row.head, row.body = there.head, there.body or b""
            case _:
                oid = links_of(run.rows[0].body, "body")[0]
                if kind == "gone":
                    del backend._objects[oid]
                else:
                    backend._objects[oid] = flipped(backend._objects[oid])
        refused(lambda source=source: copy_store(source, Store(MemoryBackend())), *HONEST)
        refused(lambda source=source: export_store(source, folder / "no.knot", overwrite=True), *HONEST)


def bad_files(folder: Path, data: bytes) -> None:
    start = front_size(data[:10], "file")
    for at in (3, 9, 12, start + 4, start + 9, len(data) // 2, len(data) - 30, len(data) - 1):
        refused(lambda at=at: decode_file(flipped(data, at)), *HONEST)
    refused(lambda: decode_file(data[: len(data) - 53]), *HONEST)
    export_store(cottage(), folder / "sealed.knot", key=KEY, overwrite=True)
    sealed = (folder / "sealed.knot").read_bytes()
    for at in (11, 30, 60, 95, 120, len(sealed) - 1):
        refused(lambda at=at: decode_file(flipped(sealed, at), key=KEY), *HONEST)
    with (folder / "all.knot").open("rb") as stream:
        parts = [record for record in records(stream, (), "file") if not isinstance(record, Tally)]

    def filed(written: Sequence[Any], *, more: int = 0) -> bytes:
        with (folder / "bad.knot").open("wb") as stream:
            writer = Writer(stream, None, "file")
            for record in written:
                writer.put(record)
            writer.tally.entries += more
            writer.finish()
        return (folder / "bad.knot").read_bytes()

    decode_file(filed(parts))
    first = next(at for at, record in enumerate(parts) if isinstance(record, Piece))
    recast = next(at for at, record in enumerate(parts) if isinstance(record, Save) and record.recast)
    longs = [record for record in parts if isinstance(record, Save) and record.run == run_key("long")]
    save = parts[recast]
    assert isinstance(save, Save)
    other = replace(save, recast=tuple((rev, flipped(body)) for rev, body in save.recast))
    for bad in (
        filed(parts, more=1),
        filed(parts[:first] + parts[first + 1 :]),
        filed([*parts, parts[first]]),
        filed([*parts[:recast], other, *parts[recast + 1 :]]),
        filed([part for part in parts if part is not longs[1]]),
        filed([part for part in parts if part is not longs[0]]),
        filed([part for part in parts if not isinstance(part, Save) or part.run != run_key("long")]),
    ):
        refused(lambda bad=bad: decode_file(bad), *HONEST)


def test_unmutated(tmp_path: Path) -> None:
    everything(tmp_path)


# -- mistakes ------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], object]


def trusting_entry(self: StoreMeaning, entry: Entry) -> Sent:
    stored = entry.body or b""
    if seal_of(stored) is not None:
        return entry_as_it_is(self, entry)
    return Sent(stored, open_piece(stored, "body")[0], None)


entry_as_it_is = StoreMeaning.entry
put_as_it_is = Landing.put


def losing(field: str, value: Any) -> Plant:
    def put(self: Landing, write: Write) -> None:
        put_as_it_is(self, replace(write, **{field: value}) if isinstance(write, Save) else write)

    return lambda patch: patch.setattr(Landing, "put", put)


def put_without_drop(self: Landing, write: Write) -> None:
    if isinstance(write, Save):
        self._begun.add(write.run)
    put_as_it_is(self, write)


def commit_in_a_hurry(self: Landing, batch: list[Write]) -> None:
    if batch:
        self._into.commit(batch, sync=False)


def commit_without_looking(self: Landing, batch: list[Write]) -> None:
    if batch:
        self._into.commit(batch)


def no_attachments(self: Source, run: bytes) -> list[Any]:
    return []


def no_attachment_check(self: StoreMeaning, run: bytes, found: Attachment) -> None:
    return None


def links_unchecked(self: StoreMeaning, oid: bytes, stored: bytes) -> list[bytes]:
    return links_of(stored, "object")


def first_level_only(self: Source, links: Any) -> tuple[Any, ...]:
    return tuple(self.backend.objects(list(links)[:1]).items())


def missing_tolerated(self: Source, links: Any) -> tuple[Any, ...]:
    return tuple(self.backend.objects(list(dict.fromkeys(links))).items())


def sent_without_origin(self: StoreMeaning, entry: Entry) -> Sent:
    return replace(self_arrival(self, entry), origin=None)


self_arrival = StoreMeaning.arrival

MUTANTS: dict[str, Plant] = {
    "entries are not checked": lambda p: p.setattr(StoreMeaning, "entry", trusting_entry),
    "objects are not checked": lambda p: p.setattr(StoreMeaning, "links", links_unchecked),
    "objects are not sent": lambda p: p.setattr(Source, "_objects", lambda self, links: ()),
    "only the first object is sent": lambda p: p.setattr(Source, "_objects", first_level_only),
    "missing objects are passed over": lambda p: p.setattr(Source, "_objects", missing_tolerated),
    "tokens are lost": losing("tokens", ()),
    "recasts are lost": losing("recast", ()),
    "names for people are lost": losing("alias", None),
    "objects are lost": losing("objects", ()),
    "attachments are lost": lambda p: p.setattr(Source, "_attached", no_attachments),
    "attachments are not checked": lambda p: p.setattr(StoreMeaning, "attachment", no_attachment_check),
    "a pruned run begins without a drop": lambda p: p.setattr(Landing, "put", put_without_drop),
    "nothing is synced": lambda p: p.setattr(Landing, "_commit", commit_in_a_hurry),
    "outcomes are not looked at": lambda p: p.setattr(Landing, "_commit", commit_without_looking),
    "the last batch is forgotten": lambda p: p.setattr(Landing, "finish", lambda self: None),
    "other heads are passed over": lambda p: p.setattr(Standing, "see", lambda self, run, rev, head: None),
    "nothing in common is in common": lambda p: p.setattr(Standing, "joined", lambda self, run: None),
    "holes are passed over": lambda p: p.setattr(Source, "_in_order", lambda self, entry: None),
    "lost beginnings are passed over": lambda p: p.setattr(StoreMeaning, "begins", lambda *_: None),
    "the chain is not looked at": lambda p: p.setattr(StoreMeaning, "_chained", lambda *_: None),
    "what waits for a seal is forgotten": lambda p: p.setattr(Source, "_look_back", lambda *_: None),
    "what a fork stands on stays behind": lambda p: p.setattr("knotline.store.moving._origins", lambda *_: ()),
    "frames are not checked": lambda p: p.setattr(
        "knotline.store.portable_seals._Plain.open", lambda self, kind, sealed, what: sealed[:-16]
    ),
    "fronts are not checked": lambda p: p.setattr(
        "knotline.store.portable_seals.digest",
        lambda kind, *parts: bytes(16) if kind == b"front" else digest(kind, *parts),
    ),
    "the end is not compared": lambda p: p.setattr("knotline.store.portable._TALLY", _NoTally()),
    "a file's holes are passed over": lambda p: p.setattr(portable_file._Ledger, "see", lambda *_: None),
    "a file's lost beginnings are passed over": lambda p: p.setattr(portable_file._Ledger, "close", lambda *_: None),
    "a file's missing objects are passed over": lambda p: p.setattr(portable_file._Reception, "_find", lambda *_: None),
    "a file's entries are not checked": lambda p: p.setattr(
        StoreMeaning, "arrival", lambda self, entry: Sent(entry.body or b"", [])
    ),
    "a file's forks need nothing": lambda p: p.setattr(StoreMeaning, "arrival", sent_without_origin),
    "a file's recasts are taken as they are": lambda p: p.setattr(
        portable_file._Reception, "_recast", lambda self, save, objects: save.recast
    ),
}


class _NoTally:
    def pack(self, *_: int) -> bytes:
        return bytes(32)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_mistake_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    MUTANTS[mutant](monkeypatch)
    with pytest.raises((AssertionError, Error)):
        everything(tmp_path)
