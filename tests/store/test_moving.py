"""A store that moved is the same store: heads, labels, objects, attachments, documents and pins, wherever it goes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.store.houses import (
    KEY,
    OTHER,
    PLACES,
    clean,
    contents,
    cut_log,
    house,
    recast_bodies,
    strict_target,
)

from knotline.backends import Backend, EncryptedBackend, MemoryBackend, SqliteBackend
from knotline.backends.contract import Entry, Save
from knotline.errors import Conflict, Damaged, NotFound, Tampered
from knotline.store import Store, copy_store, export_run, export_store, import_file, sweep
from knotline.store.names import run_key
from knotline.testing import RawOracle, StrictBackend

PLAIN = "four methods"
"""It leaves bodies as they are: recasts are a kindness."""
places = pytest.mark.parametrize("to", PLACES)


@pytest.mark.parametrize("of", PLACES)
@places
def test_any_store_into_any_other(tmp_path: Path, of: str, to: str) -> None:
    with house(PLACES[of](tmp_path, "of")) as source, Store(PLACES[to](tmp_path, "to")) as target:
        before = contents(source.backend)
        assert recast_bodies(before) >= 30 or of == PLAIN
        moved = copy_store(source, target)
        after = contents(target.backend)
        assert after == before or (to == PLAIN and after.means(before) and after.order == before.order)
        assert contents(source.backend) == before
        assert (moved.entries, moved.objects, moved.present) == (len(before.order), len(before.objects), 0)
        assert moved.caught_up
        clean(target.backend)
        assert target.load("long") == source.load("long")
        assert target.pins("pruned") == source.pins("pruned") != {}
        assert target.names("config") == ["../x", "main"]
        assert [f.header.rev for f in target.find(["turn=3"]).items] == [
            f.header.rev for f in source.find(["turn=3"]).items
        ]
        again = copy_store(source, target)
        assert (again.entries, again.present) == (0, len(before.order))
        assert contents(target.backend) == after


@pytest.mark.parametrize("key", [None, KEY])
@places
def test_any_store_through_a_file(tmp_path: Path, to: str, key: bytes | None) -> None:
    with house(PLACES["sqlite"](tmp_path, "of")) as source, Store(PLACES[to](tmp_path, "to")) as target:
        before = contents(source.backend)
        export_store(source, tmp_path / "all.knot", key=key)
        moved = import_file(target, tmp_path / "all.knot", key=key)
        assert moved.entries == len(before.order)
        after = contents(target.backend)
        assert after == before or (to == PLAIN and after.means(before) and after.order == before.order)
        assert contents(source.backend) == before
        clean(target.backend)
        assert import_file(target, tmp_path / "all.knot", key=key).entries == 0
        assert contents(target.backend) == after


def test_a_moved_store_goes_on(tmp_path: Path) -> None:
    source, target = house(), Store(strict_target())
    copy_store(source, target)
    for name in ("long", "pruned", "fork of fork"):
        state = target.load(name)
        for n in range(40):
            state = {**state, "later": n}
            target.append(name, state)
        assert target.load(name)["later"] == 39
    target.undo("long")
    target.put("config", "main", {"v": "later"})
    target.prune("long", keep_from=target.header("long").rev)
    target.delete("small")
    sweep(target)
    clean(target.backend)
    assert target.load("fork")["n"] == -1


def test_a_run_comes_with_what_it_was_forked_from(tmp_path: Path) -> None:
    source, target, filed = house(), Store(strict_target()), Store(strict_target())
    copy_store(source, target, runs=["fork of fork", "orphan"])
    export_run(source, "fork of fork", tmp_path / "r.knot")
    import_file(filed, tmp_path / "r.knot")
    assert [name for name, _ in filed.runs()] == ["fork", "fork of fork", "long"]
    assert [name for name, _ in target.runs()] == ["fork", "fork of fork", "long", "orphan"]
    assert target.backend.head(run_key("origin")) is not None, "deleted, but stood on"
    assert target.load("orphan") == source.load("orphan")
    for store in (target, filed):
        assert store.load("fork of fork") == source.load("fork of fork")
        clean(store.backend)
    with pytest.raises(NotFound):
        copy_store(source, target, runs=["no such run"])
    with pytest.raises(NotFound):
        export_run(source, "no such run", tmp_path / "none.knot")
    assert [each.name for each in tmp_path.iterdir()] == ["r.knot"]


def test_what_is_new_follows(tmp_path: Path) -> None:
    """A second copy brings what was written since, into the middle of a window that a later seal recasts."""
    source = house(turns=50)
    target, filed = Store(strict_target()), Store(strict_target())
    copy_store(source, target)
    export_store(source, tmp_path / "1.knot")
    import_file(filed, tmp_path / "1.knot")
    state = source.load("long")
    for n in range(40):
        state = {**state, "log": [*state["log"], {"text": f"later {n} " + "word " * 40 + str(n) * 50}]}
        source.append("long", state, labels=["later"])
    source.put("config", "main", {"v": "newer"})
    source.put("config", "main", {"v": "newest"})
    source.fork("long", "late fork", rev=60)
    after = contents(source.backend)
    moved = copy_store(source, target)
    assert 43 <= moved.entries < 60
    export_store(source, tmp_path / "2.knot")
    import_file(filed, tmp_path / "2.knot")
    for store in (target, filed):
        assert contents(store.backend) == after
        assert store.get("config", "main") == {"v": "newest"}
        clean(store.backend)
    assert recast_bodies(after) > recast_bodies(contents(house(turns=50).backend))


@pytest.mark.parametrize("way", ["copy", "file"])
def test_a_run_that_went_its_own_way_is_a_conflict(tmp_path: Path, way: str) -> None:
    source = house()
    source.append("odd", 1)
    export_store(source, tmp_path / "all.knot")

    def move(target: Store, *, follow: bool = False) -> None:
        if way == "copy":
            copy_store(source, target, follow=follow)
        else:
            import_file(target, tmp_path / "all.knot", follow=follow)

    for spoil in ("other history", "gone on", "short and other", "deleted"):
        target = Store(MemoryBackend())
        target.append("bystander", {"mine": 1})
        if spoil == "other history":
            for n in range(100):
                target.append("small", {"other": n})
        elif spoil == "short and other":
            target.append("small", {"other": 1})
        elif spoil == "gone on":
            copy_store(source, target)
            target.append("small", {"other": 1})
            source.append("small", {"mine": 1})
            export_store(source, tmp_path / "all.knot", overwrite=True)
        else:
            copy_store(source, target)
            target.delete("odd")
        before = contents(target.backend)
        with pytest.raises(Conflict) as caught:
            move(target)
        assert caught.value.run == ("odd" if spoil == "deleted" else "small")
        assert contents(target.backend) == before, "a conflict wrote something"


def test_a_target_that_went_on_alone_is_left_alone(tmp_path: Path) -> None:
    source, target = house(), Store(strict_target())
    copy_store(source, target)
    target.append("small", {"more": 1})
    target.put("config", "main", {"v": "mine"})
    before = contents(target.backend)
    assert copy_store(source, target).entries == 0
    assert contents(target.backend) == before


def test_nothing_in_common_is_followed_only_when_told(tmp_path: Path) -> None:
    """Both were pruned past each other: nobody can tell whether they are one."""
    source, target = house(), Store(strict_target())
    source.append("cut", {"n": 0})
    copy_store(source, target)
    stale = Store(MemoryBackend())
    copy_store(source, stale)
    for n in range(70):
        source.append("cut", {"n": 100 + n, "log": ["x" * 100] * n})
    source.prune("cut", keep_from=source.header("cut").rev)
    before = contents(target.backend)
    export_store(source, tmp_path / "all.knot")
    with pytest.raises(Conflict):
        copy_store(source, target)
    with pytest.raises(Conflict):
        import_file(target, tmp_path / "all.knot")
    assert contents(target.backend) == before
    copy_store(source, target, follow=True)
    assert contents(target.backend).means(contents(source.backend))
    clean(target.backend)
    # The one that is behind brings nothing.
    late = contents(source.backend)
    assert copy_store(stale, source, runs=["cut"], follow=True).entries == 0
    assert contents(source.backend) == late


def test_a_chain_that_says_so_is_in_common() -> None:
    """The source dropped all that the target has, and its first entry names the target's last as its parent."""
    source, target = Store(MemoryBackend()), Store(strict_target())
    source.append("r", {"n": 0})
    copy_store(source, target)
    source.delete("r")
    assert copy_store(source, target).entries == 1
    assert contents(target.backend) == contents(source.backend)


def test_a_target_that_begins_later_gets_what_follows(tmp_path: Path) -> None:
    """It was copied from a source that had been pruned, and not to the end; the file was made before that prune.

    What the file says once, in an entry that the target no longer wants, later entries still lead to.
    """
    source, target = Store(MemoryBackend()), Store(strict_target())
    parts = [f"part {n} " * 900 for n in range(3)]
    source.append("r", {"n": 0, "keep": parts[0]})
    for n in range(40):
        source.append("r", {"n": n, "now": parts[1 + n % 2]})
    seal = source.seal("r").rev
    for n in range(40):
        source.append("r", {"n": n, "back": parts[0]})
    export_store(source, tmp_path / "all.knot")
    key = run_key("r")
    (entry,) = source.backend.entries(key, seal, seal)
    objects = tuple(source.backend.objects(source.reader.open(entry).links).items())
    target.backend.commit([Save(key, seal, entry.head, entry.body or b"", entry.tokens, objects, seal)])
    import_file(target, tmp_path / "all.knot")
    for rev in (seal, seal + 1, seal + 40):
        assert target.load("r", rev) == source.load("r", rev)
    found = contents(target.backend)
    assert found.order == contents(source.backend).order[seal:]


# -- damage ------------------------------------------------------------------------------------------------


def _damaged(kind: str) -> Store:
    store = house()
    backend = store.backend
    assert isinstance(backend, MemoryBackend)
    key = run_key("long")
    if kind == "hole":
        cut_log(backend, "long", 20)
        return store
    if kind == "front":
        cut_log(backend, "long", 0)
        return store
    row = next(row for row in backend._runs[key].rows if row.rev == 40)
    if kind == "body":
        row.body = row.body[:-1] + bytes([row.body[-1] ^ 1])
    elif kind == "head":
        row.head = row.head[:30] + bytes([row.head[30] ^ 1]) + row.head[31:]
    elif kind == "version":
        row.head = b"\x07" + row.head[1:]
    elif kind == "chain":
        # Two stores' entries of one place: each is whole, together they are no log.
        other = house()
        other.append("long", {"n": 1})
        store.append("long", {"n": 2})
        rows = backend._runs[key].rows
        there = other.backend.head(key)
        assert there is not None
        store.append("long", {"n": 3})
        rows[-2].head, rows[-2].body = there.head, there.body or b""
        assert rows[-2].rev == there.rev
    elif kind == "attachment":
        run = backend._runs[key]
        epoch, data = run.attached[3, b"task", 0]
        run.attached[3, b"task", 0] = (epoch, data[:-1] + b"?")
    else:
        oid = store.reader.open(store.backend.entries(key, 0, 0)[0]).links[0]
        if kind == "missing object":
            del backend._objects[oid]
        else:
            backend._objects[oid] = backend._objects[oid][:-1] + b"?"
    return store


KINDS = ["hole", "front", "body", "head", "version", "chain", "object", "missing object", "attachment"]


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_not_handed_on(tmp_path: Path, kind: str) -> None:
    from knotline.errors import UnknownFormat

    source, target = _damaged(kind), Store(strict_target())
    for _ in range(2):
        with pytest.raises((Damaged, UnknownFormat)):
            copy_store(source, target)
    with pytest.raises((Damaged, UnknownFormat)):
        export_store(source, tmp_path / "all.knot")
    assert list(tmp_path.iterdir()) == [], "half a file was left"
    clean(target.backend)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_a_damaged_store(tmp_path: Path, kind: str) -> None:
    whole = contents(house().backend)
    source = _damaged(kind)
    target, filed = Store(strict_target()), Store(strict_target())
    moved = copy_store(source, target, skip_damaged=True)
    exported = export_store(source, tmp_path / "all.knot", skip_damaged=True)
    assert moved.damage == exported.damage
    assert "'long'" in moved.damage[0].what
    import_file(filed, tmp_path / "all.knot")
    for store in (target, filed):
        found = contents(store.backend)
        clean(store.backend)
        lost = {key for key in whole.heads if found.heads.get(key) != whole.heads[key]}
        broken = {run_key(name) for name in ("long", "fork", "fork of fork")}
        assert {key for key, _ in lost} <= broken
        assert bool(lost) == (kind not in ("attachment", "chain"))
        ends = [rev for run, rev in lost if run == run_key("long")]
        attached = [each.rev for each, _ in store.attachments("long")]
        after = 71 if kind == "chain" else min(ends, default=100)
        assert attached == [rev for rev in (3, 69, 75) if rev < after and (rev, kind) != (3, "attachment")]
        assert store.load("small") == source.load("small")
    assert contents(target.backend) == contents(filed.backend)
    told = " ".join(each.what for each in moved.damage)
    assert ("fork of fork" in told) == (kind in ("hole", "front", "object", "missing object"))


def test_what_was_copied_before_it_was_damaged() -> None:
    """What the target has is not read again; only the smaller form that a later seal gave it is not to be had."""
    source, target = house(), Store(strict_target())
    copy_store(source, target)
    state = source.load("long")
    for n in range(30):
        state = {**state, "log": [*state["log"], {"text": f"{n} " * 150}]}
        source.append("long", state)
    assert isinstance(source.backend, MemoryBackend)
    row = source.backend._runs[run_key("long")].rows[68]
    row.body = row.body[:-1] + bytes([row.body[-1] ^ 1])
    copy_store(source, target)
    assert target.load("long") == source.load("long")
    assert target.header("long").rev == 100
    clean(target.backend)


def test_tampered_entries_of_an_encrypted_store() -> None:
    inner = MemoryBackend()
    source, target = house(EncryptedBackend(inner, KEY)), Store(strict_target())
    row = max(inner._runs.values(), key=lambda run: len(run.rows)).rows[30]
    row.body = row.body[:-1] + bytes([row.body[-1] ^ 1])
    with pytest.raises(Tampered):
        copy_store(source, target)
    moved = copy_store(source, target, skip_damaged=True)
    assert moved.damage
    clean(target.backend)


def test_no_secret_leaves_an_encrypted_store(tmp_path: Path) -> None:
    source = house(EncryptedBackend(MemoryBackend(), KEY))
    inner = MemoryBackend()
    copy_store(source, Store(EncryptedBackend(inner, OTHER)))
    export_store(source, tmp_path / "all.knot", key=OTHER)
    at_rest = [(tmp_path / "all.knot").read_bytes(), *inner._objects.values()]
    at_rest += [part for run in inner._runs.values() for row in run.rows for part in (row.run, row.head, row.body)]
    for secret in (b"long", b"pruned", b"config", b"a good one", b"lorem"):
        assert all(secret not in each for each in at_rest)


# -- beside writers ----------------------------------------------------------------------------------------


def test_progress(tmp_path: Path) -> None:
    source = house()
    many = len(contents(source.backend).order)
    told: list[tuple[int, int, int | None]] = []

    def tell(size: int, entries: int, total: int | None) -> None:
        told.append((size, entries, total))

    for move in (
        lambda: copy_store(source, Store(strict_target()), progress=tell),
        lambda: export_store(source, tmp_path / "all.knot", progress=tell),
        lambda: import_file(Store(strict_target()), tmp_path / "all.knot", progress=tell),
    ):
        told.clear()
        moved = move()
        assert told[-1] == (moved.bytes, many, many)
        assert told == sorted(told)


def test_beside_writers(tmp_path: Path) -> None:
    """What was committed before the call is there; what is there verifies, whatever was pruned and swept meanwhile."""
    source = house(SqliteBackend(tmp_path / "of.db"), turns=40)
    ended = threading.Event()
    failed: list[BaseException] = []
    saves = 0

    def write(name: str) -> None:
        nonlocal saves
        with Store(SqliteBackend(tmp_path / "of.db")) as store:
            n = 0
            try:
                while not ended.is_set():
                    n += 1
                    store.append(
                        name, {"n": n, "log": [f"{name} {i} " * 20 for i in range(n % 90)], "b": str(n) * 2000}
                    )
                    store.put("config", "main", {"n": n, "large": str(n) * 1500})
                    if n % 25 == 0:
                        store.prune(name, keep_from=store.header(name).rev - 5)
                        sweep(store)
                    saves += 1
            except BaseException as error:  # noqa: BLE001 - told in the main thread
                failed.append(error)

    writers = [threading.Thread(target=write, args=(name,)) for name in ("busy", "busier")]
    for writer in writers:
        writer.start()
    try:
        for number in range(6):
            before = dict(source.backend.runs())
            target = Store(MemoryBackend())
            copy_store(source, target)
            export_store(source, tmp_path / f"{number}.knot")
            filed = Store(MemoryBackend())
            import_file(filed, tmp_path / f"{number}.knot")
            for store in (target, filed):
                clean(store.backend)
                after = dict(store.backend.runs())
                assert all(after[run] >= rev for run, rev in before.items())
                assert store.load("long") == source.load("long")
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    assert not failed, failed
    assert saves >= 20
    target = Store(MemoryBackend())
    assert copy_store(source, target).caught_up
    assert contents(target.backend) == contents(source.backend)
    source.close()


class Restless(MemoryBackend):
    """Somebody else saves, prunes and sweeps at every so many calls of its reader, `most` times."""

    every = 0
    most = 0
    calls = 0
    acts = 0
    inside = False

    def act(self) -> None:
        self.calls += 1
        if self.every and not self.inside and self.calls % self.every == 0 and self.acts < self.most:
            self.inside = True
            self.acts += 1
            store = Store(self)
            for name in ("long", "busy"):
                store.append(name, {"n": self.acts, "log": ["x" * 200] * (self.acts % 70), "b": str(self.acts) * 2000})
                if self.acts % 3 == 0:
                    store.prune(name, keep_from=store.header(name).rev - 1)
            store.put("config", "main", {"n": self.acts, "large": str(self.acts) * 1500})
            if self.acts % 5 == 0:
                sweep(store)
            self.inside = False

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        self.act()
        return super().entries(run, lo, hi, bodies=bodies)

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        self.act()
        return super().objects(ids)


@pytest.mark.parametrize("every", [1, 2, 3, 5, 7, 13, 30])
def test_beside_a_writer_in_every_call(tmp_path: Path, every: int) -> None:
    source = Restless()
    house(source, turns=40)
    before = dict(source.runs())
    target, filed = Store(strict_target()), Store(strict_target())
    source.every, source.most = every, 150
    copy_store(Store(source), target)
    source.most = source.acts + 150
    export_store(Store(source), tmp_path / "all.knot")
    source.every = 0
    import_file(filed, tmp_path / "all.knot")
    assert source.acts >= 2
    for store in (target, filed):
        clean(store.backend)
        after = dict(store.backend.runs())
        assert all(after[run] >= rev for run, rev in before.items())
        assert store.load("long", after[run_key("long")]) is not None
        assert store.load("small") == Store(source).load("small")
    assert copy_store(Store(source), target, follow=True).caught_up
    assert contents(target.backend).means(contents(source))


def test_a_copy_takes_no_backend_beyond_its_contract(tmp_path: Path) -> None:
    for backend in (strict_target(), StrictBackend(EncryptedBackend(MemoryBackend(), KEY))):
        source: Backend = house(backend).backend
        target = StrictBackend(EncryptedBackend(RawOracle(), OTHER))
        copy_store(Store(source), Store(target))
        assert contents(target) == contents(source)
