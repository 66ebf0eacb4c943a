"""The portable file: what is cut, flipped, forged or locked is a typed error, and nothing of it is stored."""

from __future__ import annotations

import io
import os
import random
import struct
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.crash.store_scenarios import count
from tests.store.houses import KEY, OTHER, contents, cottage, house, strict_target

from knotline.backends import Attach, MemoryBackend, Save, SqliteBackend
from knotline.backends.keys import Argon2Cost, EnvironmentKey, KeyFile, KeySource, Passphrase, RawKey, Secret
from knotline.codec import close_piece, digest
from knotline.errors import Damaged, Error, NotFound, Tampered, Unavailable, UnknownFormat, Unsupported, WrongKey
from knotline.store import (
    Store,
    copy_store,
    decode_file,
    export_run,
    export_store,
    import_file,
    portable,
    portable_seals,
)
from knotline.store.portable import Piece, Record, Tally, Writer, records
from knotline.store.seal import object_id

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
CHEAP = Argon2Cost(memory=32, passes=1, lanes=1)
HONEST = (Damaged, UnknownFormat)


def tiny() -> Store:
    store = Store(MemoryBackend())
    for n in range(3):
        store.append("r", {"n": n, "big": "b" * 5000 if n else ""}, labels=["l"])
    store.attach("r", 1, "task", 0, {"x": 1})
    store.put("config", "main", {"a": 1})
    return store


def exported(store: Store, folder: Path, key: Any = None) -> bytes:
    export_store(store, folder / "file.knot", key=key, overwrite=True)
    return (folder / "file.knot").read_bytes()


def filed(*written: Piece | Save | Attach, key: bytes | None = None) -> bytes:
    """A file whose frames are in order, whatever is in them."""
    stream = io.BytesIO()
    writer = Writer(stream, None if key is None else [RawKey(key)], "file")
    for record in written:
        writer.put(record)
    writer.finish()
    return stream.getvalue()


def is_refused(data: bytes) -> bool:
    """With one of the errors that a bad file may give."""
    try:
        decode_file(data)
    except HONEST:
        return True
    return False


def read(data: bytes) -> list[Record]:
    return list(records(io.BytesIO(data), (), "file"))


# -- every byte --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, KEY])
def test_every_byte_flipped_and_every_cut(tmp_path: Path, key: bytes | None) -> None:
    data = exported(tiny(), tmp_path, key)
    expected: tuple[type[Error], ...] = HONEST
    path = tmp_path / "bad.knot"
    target = Store(MemoryBackend())
    target.append("mine", 1)
    before = contents(target.backend)
    dice = random.Random(1)
    done = 0
    for at in range(len(data)):
        for bit in range(8) if SOAK else (dice.randrange(8),):
            bad = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with pytest.raises(expected):
                decode_file(bad, key=key or ())
            if at % 8 == 0:
                path.write_bytes(bad)
                with pytest.raises(expected):
                    import_file(target, path, key=key or ())
            done += 1
    for end in range(len(data)):
        with pytest.raises(expected):
            decode_file(data[:end], key=key or ())
        done += 1
    for more in (b"\0", data, data[-50:]):
        with pytest.raises(expected):
            decode_file(data + more, key=key or ())
    assert contents(target.backend) == before, "a bad file left something"
    count(f"portable flips and cuts, {'sealed' if key else 'plain'}", done)
    assert done >= 2 * len(data) >= 1000


def test_frames_in_another_order(tmp_path: Path) -> None:
    """Each frame is whole: only its place is wrong."""
    for key in (None, KEY):
        data = exported(house(), tmp_path, key)
        start = portable_seals.front_size(data[:10], "file")
        frames: list[bytes] = []
        at = start
        while at < len(data):
            end = at + 5 + int.from_bytes(data[at : at + 4], "big")
            frames.append(data[at:end])
            at = end
        many = Store(MemoryBackend())
        for n in range(6):
            many.append(f"r{n}", {"noise": random.Random(n).randbytes(300_000)})
        data = exported(many, tmp_path, key)
        frames = []
        at = start
        while at < len(data):
            end = at + 5 + int.from_bytes(data[at : at + 4], "big")
            frames.append(data[at:end])
            at = end
        assert len(frames) >= 10
        assert decode_file(data, key=key or ()).entries == 6
        for order in (frames[1:], frames[:-2] + frames[-1:], [frames[2], *frames[1:2], frames[0], *frames[3:]]):
            with pytest.raises(Tampered if key else Damaged):
                decode_file(data[:start] + b"".join(order), key=key or ())
        # The end of one file under the front of another.
        other = exported(many, tmp_path, key)
        if key:
            with pytest.raises(Tampered):
                decode_file(data[:start] + other[start:], key=key)


# -- forged ------------------------------------------------------------------------------------------------


def test_a_file_that_lies_in_order(tmp_path: Path) -> None:
    """Whoever writes a file can give it any checks; its entries still have to be what they say."""
    found = read(exported(tiny(), tmp_path))
    parts = [record for record in found if not isinstance(record, Tally)]
    assert decode_file(filed(*parts)).entries == 4
    saves = [record for record in parts if isinstance(record, Save)]
    pieces = [record for record in parts if isinstance(record, Piece)]
    assert pieces
    one = saves[0]

    def other(**changes: Any) -> Save:
        fields = {name: getattr(one, name) for name in Save.__slots__}
        return Save(**{**fields, **changes})

    forged: dict[str, Iterable[Piece | Save | Attach]] = {
        "an object of other bytes": [Piece(pieces[0].oid, close_piece([], b"other")), *parts],
        "an object that is missing": [record for record in parts if record is not pieces[0]],
        "objects of no entry": [*parts, pieces[0]],
        "another body": [other(body=close_piece([], b"\x00\x00\x00\x00\x90"))],
        "another place": [other(rev=1, drop=1)],
        "another run": [other(run=b"rq")],
        "no run": [other(run=b"x")],
        "no document": [other(run=b"d\xff\xff")],
        "no text": [other(run=b"r\xff")],
        "another head": [other(head=one.head[:-1] + b"?")],
        "a short head": [other(head=b"")],
        "a short body": [other(body=b"")],
        "a body that needs what follows": [other(body=b"\0\0\0\2" + bytes(20))],
        "a hole": [saves[0], saves[2]],
        "a log without its beginning": saves[1:],
        "a recast of other bytes": [saves[0], *pieces, other_recast(saves[1])],
        "an attachment of other bytes": [saves[0], Attach(one.run, 0, b"t", 0, 0, b"12345678????")],
    }
    for what, bad in forged.items():
        target = Store(MemoryBackend())
        path = tmp_path / "forged.knot"
        path.write_bytes(filed(*bad))
        assert is_refused(path.read_bytes()), what
        with pytest.raises(HONEST):
            import_file(target, path)
        order = contents(target.backend).order
        assert order == [(save.run, save.rev) for save in saves][: len(order)]


def other_recast(save: Save) -> Save:
    return Save(save.run, save.rev, save.head, save.body, save.tokens, (), save.drop, ((0, b"\0\0\0\0other"),))


def raw_file(*frames: tuple[int, bytes]) -> bytes:
    """Frames as they are given, in checks that are right."""
    front, seals = portable_seals.fresh(None, "file")
    data = front
    for kind, plain in frames:
        sealed = seals.close(kind, plain)
        data += len(sealed).to_bytes(4, "big") + bytes((kind,)) + sealed
    return data


END = (4, bytes(32))


def hostile() -> Iterator[tuple[str, bytes]]:
    from backports import zstd

    def record(kind: int, data: bytes) -> bytes:
        return bytes((kind,)) + len(data).to_bytes(4, "big") + data

    bomb = zstd.compress(bytes(1 << 30), level=1)
    yield "a bomb", raw_file((1, (1 << 30).to_bytes(4, "big") + bomb), END)
    yield "a bomb that says it is small", raw_file((1, (1 << 10).to_bytes(4, "big") + bomb), END)
    yield "within the limit of a frame, beyond its ratio", raw_file((1, struct.pack(">I", 1 << 20) + bomb[:400]), END)
    yield "no end", raw_file((0, b""))
    yield "a record cut", raw_file((0, b"\0\xff\xff\xff\xff"), END)
    yield "an unknown record", raw_file((0, record(9, b"")), END)
    yield "a long run", raw_file((0, record(1, struct.pack(">I", 600) + bytes(600))), END)
    save = struct.pack(">I", 1) + b"r" + struct.pack(">II", 0, 0)
    yield "many tokens", raw_file((0, record(1, save + b"\xff\xff\xff\xff")), END)
    yield "many recasts", raw_file((0, record(1, save + struct.pack(">IIII", 0, 0, 0, 0xFFFFFFFF))), END)
    yield "drop beyond", raw_file((0, record(1, b"\0\0\0\1r" + struct.pack(">IIIIII", 0, 9, 0, 0, 0, 0))), END)
    yield "attached nowhere", raw_file((0, record(2, b"\0\0\0\1r" + b"\xff" * 16 + bytes(4))), END)
    yield "a part that does not end", raw_file((2, b"\0" * 100), END)
    yield "a part with a batch inside", raw_file((2, b"\0" * 100), (0, b""), (3, b"x"), END)
    yield "an empty part", raw_file((2, b""), END)
    yield "an empty last part", raw_file((3, b""), END)
    yield "an end too early", raw_file(END, (0, b""))
    yield "two ends", raw_file(END, END)
    yield "another sum", raw_file((4, b"\0" * 31 + b"\1"))
    yield "a short sum", raw_file((4, b""))
    yield "a frame of a wrong kind", raw_file((7, b""), END)
    long = raw_file(END)
    start = portable_seals.front_size(long[:10], "file")
    yield "a huge length", long[:start] + b"\xff\xff\xff\xff\0" + long[start:]
    yield "not zstd", raw_file((1, struct.pack(">I", 100) + b"not zstd at all"), END)
    yield "a piece that is a bomb", filed(Piece(bytes(16), b"\0\0\0\1" + (1 << 30).to_bytes(4, "big") + bomb[:500]))


def test_hostile_numbers_cost_nothing() -> None:
    files = list(hostile())
    for what, data in files:
        tracemalloc.start()
        try:
            assert is_refused(data), what
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 8 * (1 << 20) + 4 * len(data), what
    count("hostile files", len(files))
    assert len(files) >= 20


def test_other_versions_and_other_files() -> None:
    data = raw_file(END)
    assert decode_file(data) == Tally()
    for at in (8, 9):
        with pytest.raises(UnknownFormat):
            decode_file(data[:at] + b"\x09" + data[at + 1 :])
    for other in (b"PK\x03\x04 a zip file", b"SQLite format 3\0", b"x"):
        with pytest.raises(UnknownFormat):
            decode_file(other)
    with pytest.raises(Damaged):
        decode_file(b"")


def test_noise() -> None:
    """What a fuzzer would find first: anything in frames whose checks are right."""
    dice = random.Random(7)
    base = [
        (0, b"".join(bytes((r,)) + len(d).to_bytes(4, "big") + d for r, d in [portable._close(rec)]))
        for rec in read_parts()
    ]
    done = 0
    for _ in range(20_000 if SOAK else 600):
        parts = list(base)
        for _ in range(dice.randrange(1, 4)):
            which = dice.randrange(len(parts))
            data = bytearray(parts[which][1])
            where = dice.randrange(len(data) + 1)
            match dice.randrange(3):
                case 0 if where < len(data):
                    data[where] = dice.randrange(256)
                case 1:
                    del data[where : where + dice.randrange(9)]
                case _:
                    data[where:where] = dice.randbytes(dice.randrange(9))
            parts[which] = (0, bytes(data))
        tally = struct.pack(">QQQQ", *(dice.randrange(5) for _ in range(4)))
        done += is_refused(raw_file(*parts, (4, tally)))
    assert done >= 500


_watching: list[list[str]] = []


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if _watching and event.split(".", maxsplit=1)[0] in ("import", "exec", "compile", "subprocess", "os", "socket"):
        _watching[-1].append(f"{event} {args}")


def test_decoding_runs_nothing(tmp_path: Path) -> None:
    """No import, no code, no process, no file: an audit hook sees it all, and cannot be taken away again."""
    good = [(exported(house(), tmp_path), ()), (exported(house(), tmp_path, KEY), KEY)]
    bad = [(data, ()) for _, data in hostile()]
    for data, key in good:
        decode_file(data, key=key)
    sys.addaudithook(_watch)
    seen: list[str] = []
    _watching.append(seen)
    try:
        for data, key in good:
            decode_file(data, key=key)
        refused = sum(is_refused(data) for data, _ in bad)
    finally:
        _watching.clear()
    assert refused == len(bad)
    assert seen == []
    _watching.append(seen)
    try:
        compile("1", "planted", "eval")
    finally:
        _watching.clear()
    assert len(seen) == 1, "the hook saw nothing at all"


def read_parts() -> list[Piece | Save | Attach]:
    with TemporaryDirectory() as folder:
        found = read(exported(tiny(), Path(folder)))
    return [record for record in found if not isinstance(record, Tally)]


# -- keys --------------------------------------------------------------------------------------------------


def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = cottage()
    before = contents(store.backend)
    (tmp_path / "key").write_bytes(KEY)
    monkeypatch.setenv("MY_KEY", KEY.hex())
    sources: list[tuple[Any, list[Any], list[Any]]] = [
        (KEY, [KEY, RawKey(KEY), KeyFile(tmp_path / "key"), [RawKey(OTHER), EnvironmentKey("MY_KEY")]], [OTHER]),
        (
            Passphrase("correct horse", cost=CHEAP),
            [Passphrase("correct horse"), [RawKey(OTHER), Passphrase("no", cost=CHEAP), Passphrase("correct horse")]],
            [Passphrase("battery staple"), KEY],
        ),
    ]
    for given, right, wrong in sources:
        export_store(store, tmp_path / "all.knot", key=given, overwrite=True)
        for key in right:
            target = Store(MemoryBackend())
            import_file(target, tmp_path / "all.knot", key=key)
            assert contents(target.backend) == before
        for key in wrong:
            target = Store(MemoryBackend())
            with pytest.raises(WrongKey) as caught:
                import_file(target, tmp_path / "all.knot", key=key)
            assert KEY.hex() not in str(caught.value)
            assert "horse" not in str(caught.value)
            assert contents(target.backend).order == []
    export_store(store, tmp_path / "all.knot", key=KEY, overwrite=True)
    with pytest.raises(WrongKey, match="no key was given"):
        import_file(Store(MemoryBackend()), tmp_path / "all.knot")
    monkeypatch.setenv("KNOTLINE_KEY", KEY.hex())
    import_file(Store(MemoryBackend()), tmp_path / "all.knot")
    nobody: list[KeySource] = [EnvironmentKey("NOBODY_HAS_THIS")]
    with pytest.raises(WrongKey):
        export_store(store, tmp_path / "none.knot", key=nobody)
    assert not (tmp_path / "none.knot").exists()


def test_a_source_is_asked_once(tmp_path: Path) -> None:
    class Person(RawKey):
        asked = 0

        def secret(self) -> Secret:
            self.asked += 1
            return super().secret()

    person = Person(KEY)
    export_store(tiny(), tmp_path / "all.knot", key=person)
    assert person.asked == 1
    import_file(Store(MemoryBackend()), tmp_path / "all.knot", key=[EnvironmentKey("NOBODY_HAS_THIS"), person])
    assert person.asked == 2


def test_a_cost_that_is_read_is_bounded(tmp_path: Path) -> None:
    data = exported(tiny(), tmp_path, Passphrase("p", cost=CHEAP))
    start = 10
    for memory, passes, lanes in ((1 << 31, 1, 1), (32, 1 << 20, 1), (32, 1, 1 << 20), (0, 0, 0)):
        front = data[: start + 1] + struct.pack(">III", memory, passes, lanes) + data[start + 13 : -0 or None]
        front = front[: portable_seals.front_size(data[:10], "f") - 16]
        bad = front + digest(b"front", front) + data[len(front) + 16 :]
        with pytest.raises(Tampered):
            decode_file(bad, key=Passphrase("p"))


def test_two_files_share_nothing(tmp_path: Path) -> None:
    """The same store twice under one key: other salts, other keys, no frame alike."""
    one, two = exported(tiny(), tmp_path, KEY), exported(tiny(), tmp_path, KEY)
    start = portable_seals.front_size(one[:10], "f")
    assert one[:start] != two[:start]
    assert one[start + 5 : start + 200] != two[start + 5 : start + 200]


# -- what is written ---------------------------------------------------------------------------------------


def test_large_records_and_the_edges_of_frames() -> None:
    """Sizes around every limit come back as they went in."""
    sizes = [
        0,
        1,
        (1 << 16) - 17,
        (1 << 16) - 16,
        1 << 16,
        (1 << 20) - 17,
        (1 << 20) - 16,
        1 << 20,
        (1 << 20) + 1,
        3 << 20,
    ]
    dice = random.Random(3)
    for key in (None, KEY):
        parts: list[Piece | Save | Attach] = []
        for size in sizes:
            stored = close_piece([], dice.randbytes(size))
            parts.append(Piece(object_id(b"", stored[4:]), stored))
        data = filed(*parts, key=key)
        found = list(records(io.BytesIO(data), [] if key is None else [RawKey(key)], "file"))
        assert found[:-1] == parts
        assert found[-1] == Tally(
            0, len(sizes), 0, sum(16 + len(part.stored) for part in parts if isinstance(part, Piece))
        )


def test_equal_small_records_are_not_a_bomb() -> None:
    """What compresses beyond what a reader accepts is not compressed."""
    parts = [Piece(bytes(16), bytes(5000)) for _ in range(500)]
    data = filed(*parts)
    assert read(data)[:-1] == parts


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A store of many megabytes goes through a few, whatever it goes into."""
    with Store(SqliteBackend(tmp_path / "of.db")) as store:
        dice = random.Random(4)
        for n in range(48):
            store.append(f"r{n % 3}", {"blob": dice.randbytes(1 << 20)}, sync=False)
    peaks: list[int] = []
    store = Store(SqliteBackend(tmp_path / "of.db"))
    copied, imported = Store(SqliteBackend(tmp_path / "to.db")), Store(SqliteBackend(tmp_path / "in.db"))
    with store, copied, imported:
        for move in (
            lambda: copy_store(store, copied),
            lambda: export_store(store, tmp_path / "all.knot"),
            lambda: import_file(imported, tmp_path / "all.knot"),
        ):
            tracemalloc.start()
            assert move().entries == 48
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert max(peaks) < 24 << 20, peaks


def test_no_file() -> None:
    with pytest.raises(NotFound):
        import_file(Store(strict_target()), "nowhere.knot")
    with pytest.raises(Unavailable):
        import_file(Store(strict_target()), os.curdir)


def test_a_file_holds_one_run_or_all(tmp_path: Path) -> None:
    store = house()
    export_run(store, "small", tmp_path / "r.knot")
    assert {record.run for record in read((tmp_path / "r.knot").read_bytes()) if isinstance(record, Save)} == {
        b"rsmall"
    }
    target = Store(strict_target())
    moved = import_file(target, tmp_path / "r.knot")
    assert (moved.runs, moved.present) == (1, 0)
    assert target.load("small") == store.load("small")
    import_file(target, tmp_path / "r.knot")
    # From many files, one after another, comes the same as from one.
    for name, _ in store.runs():
        export_run(store, name, tmp_path / "next.knot", overwrite=True)
        import_file(target, tmp_path / "next.knot")
    assert sorted(target.runs()) == sorted(store.runs())


def test_too_much_was_pruned_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from knotline.store import portable_file

    source, target = Store(MemoryBackend()), Store(MemoryBackend())
    for n in range(3):
        source.append("r", {"n": n, "big": str(n) * 9000})
    seal = source.seal("r").rev
    source.append("r", {"n": 9})
    export_store(source, tmp_path / "all.knot")
    (entry,) = source.backend.entries(b"rr", seal, seal)
    objects = tuple(source.backend.objects(source.reader.open(entry).links).items())
    target.backend.commit([Save(b"rr", seal, entry.head, entry.body or b"", entry.tokens, objects, seal)])
    monkeypatch.setattr(portable_file, "_CARRIED", 10)
    with pytest.raises(Unsupported, match="empty store"):
        import_file(target, tmp_path / "all.knot")
