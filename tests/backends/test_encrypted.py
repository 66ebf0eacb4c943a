"""The encrypted backend keeps the contract over any other, and the store above it notices nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from knotline.backends import EncryptedBackend, MemoryBackend, SqliteBackend
from knotline.backends.contract import MAX_REV, Attach, Backend, Conflicted, Done, Failed, Outcome, Save
from knotline.backends.encrypted_ring import RING
from knotline.backends.files import FilesBackend
from knotline.backends.keys import Argon2Cost, Passphrase
from knotline.codec import open_head
from knotline.errors import ContractBroken, Damaged, Error, Tampered, Unavailable, UnknownFormat
from knotline.store import Store, sweep, verify
from knotline.testing import BackendSuite, FaultyBackend, Plan, RawOracle, StrictBackend
from knotline.testing.suite_place import append, done, object_id, save

KEY = bytes(range(32))
CHEAP = Argon2Cost(memory=32, passes=1, lanes=1)


def over(inner: Callable[[Path, Callable[[], float]], Backend], *, persistent: bool = False) -> type[BackendSuite]:
    """The suite over an encrypted backend around this one."""

    class Over(BackendSuite):
        def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
            return EncryptedBackend(inner(place, clock or time.time), KEY)

    Over.persistent = persistent
    return Over


TestOverMemory = over(lambda _, clock: MemoryBackend(clock=clock))
TestOverSqlite = over(lambda place, clock: SqliteBackend(place / "store.db", clock=clock), persistent=True)
TestOverFiles = over(lambda place, clock: FilesBackend(place / "store", clock=clock), persistent=True)


class TestOverAnOracleUnderStrictEyes(BackendSuite):
    """The plainest inner store, so that nothing is leaned on but the contract."""

    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        return EncryptedBackend(RawOracle(clock=clock or time.time), KEY)

    test_racing_threads_never_share_a_revision = None  # pyright: ignore[reportAssignmentType]
    test_no_reader_sees_half_a_save = None  # pyright: ignore[reportAssignmentType]
    test_discards_race_with_saves = None  # pyright: ignore[reportAssignmentType]
    test_one_of_many_gets_the_lease = None  # pyright: ignore[reportAssignmentType]


INNERS: list[Callable[[Path], Backend]] = [lambda _: MemoryBackend(), lambda place: SqliteBackend(place / "store.db")]
inners = pytest.mark.parametrize("inner", INNERS, ids=["memory", "sqlite"])


@inners
def test_a_store_above_it(tmp_path: Path, inner: Callable[[Path], Backend]) -> None:
    at = inner(tmp_path)
    with Store(StrictBackend(EncryptedBackend(at, KEY))) as store:
        state: dict[str, object] = {"messages": [], "notes": "n" * 6000}
        dice = random.Random(1)
        for turn in range(80):
            messages = state["messages"]
            assert isinstance(messages, list)
            messages.append({"role": "user", "content": dice.randbytes(120).hex()})
            store.append("run", state, labels=[f"turn={turn % 5}"], note={"step": turn})
        assert store.load("run") == state
        assert [f.header.rev for f in store.find(["turn=3"], run="run").items][:2] == [78, 73]
        assert store.load("run", 40)["messages"] == state["messages"][:41]  # pyright: ignore[reportIndexIssue]
        store.fork("run", "other", rev=50)
        store.append("other", {"now": "else"})
        store.rollback("run", 10)
        assert len(store.load("run")["messages"]) == 11
        store.undo("run")
        assert store.load("run") == state
        store.put("config", "main", {"a": 1})
        store.put("config", "main", {"a": 2})
        assert store.get("config", "main") == {"a": 2}
        assert store.names("config") == ["main"]
        assert store.attach("run", 5, "task", 0, {"x": 1})
        assert store.attach("run", 5, "task", 0, {"x": 1})
        assert not store.attach("run", 5, "task", 0, {"x": 2})
        assert [value for _, value in store.attachments("run")] == [{"x": 1}]
        held = store.acquire("run", "me", ttl=60)
        assert store.renew(held, ttl=60).owner == "me"
        assert store.release(held)
        assert sorted(name for name, _ in store.runs()) == ["other", "run"]
        assert verify(store).clean
        head = store.header("run").rev
        store.prune("run", keep_from=head)
        store.delete("other")
        sweep(store)
        assert verify(store).clean
        assert store.load("run") == state


@inners
def test_without_the_wrapper_it_is_no_store(tmp_path: Path, inner: Callable[[Path], Backend]) -> None:
    at = inner(tmp_path)
    Store(EncryptedBackend(at, KEY))
    plain = Store(at)
    with pytest.raises(UnknownFormat):
        list(plain.runs())
    Store(EncryptedBackend(at, KEY)).append("run", {"a": 1})
    for look in (lambda: list(plain.runs()), lambda: plain.find().items):
        with pytest.raises((UnknownFormat, Damaged)):
            look()
    assert not verify(plain).clean
    for entry in at.find():
        with pytest.raises((UnknownFormat, Damaged)):
            open_head(entry.head, "any", entry.rev)


def test_nothing_is_asked_beyond_the_contract() -> None:
    """Writes to the inner store are the contract's, with names hidden and no alias."""
    seen: list[Save | Attach] = []

    class Watching(MemoryBackend):
        def commit(self, writes, *, sync=True):
            seen.extend(writes)
            return super().commit(writes, sync=sync)

    b = EncryptedBackend(Watching(), KEY)
    b.commit([Save(b"secret run", 0, b"head", b"body", (7,), ((object_id(5), b"data"),), alias=("folder", "name"))])
    b.commit([Attach(b"secret run", 0, b"task", 3, 4, b"data")])
    one, attached = seen[1:]
    assert isinstance(one, Save)
    assert one.alias is None
    assert one.run != b"secret run"
    assert one.run.decode("ascii").isalnum()
    assert one.tokens != (7,)
    assert one.objects[0][0] != object_id(5)
    assert isinstance(attached, Attach)
    assert (attached.rev, attached.idx, attached.epoch) == (0, 3, 4)
    assert attached.run == one.run
    assert len(attached.task) == 32


def test_equal_writes_are_sealed_differently_each_time() -> None:
    seals: list[Save] = []

    class Watching(MemoryBackend):
        def commit(self, writes, *, sync=True):
            seals.extend(w for w in writes if isinstance(w, Save) and w.run != RING)
            return super().commit(writes, sync=sync)

    b = EncryptedBackend(Watching(), KEY)
    one = save("r", 0, objects=[(object_id(1), b"x")])
    assert b.commit([one, one]) == [Done(), Done()]
    first, second = seals[:2]
    assert first.head != second.head
    assert first.body != second.body
    assert first.objects[0][0] == second.objects[0][0]
    assert first.objects[0][1] != second.objects[0][1]


# -- acknowledgements that were lost ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["before", "after", "partial"])
def test_a_lost_acknowledgement_converges(kind: str) -> None:
    injected = 0
    for at in range(1, 20):
        inner = MemoryBackend()
        EncryptedBackend(inner, KEY)
        faulty = FaultyBackend(inner, Plan(at=at, kind=kind))  # pyright: ignore[reportArgumentType]
        batch = [
            save("r", 0, objects=[(object_id(1), b"x")], tokens=[4]),
            save("s", 0),
            Attach(b"r", 0, b"task", 0, 1, b"data"),
        ]
        try:
            b = EncryptedBackend(faulty, KEY)
            outcomes: list[Outcome] = []
            for _ in range(4):
                outcomes = b.commit(batch)
                assert all(isinstance(each, Done | Failed) for each in outcomes), (at, outcomes)
                if faulty.injected:
                    outcomes = b.commit(batch)
            assert outcomes == [Done()] * 3
            assert [e.head for e in b.find([4])] == [batch[0].head]
        except Unavailable:
            assert faulty.injected == 1
        injected += faulty.injected
        if not faulty.injected:
            break
    assert injected >= 3


def test_a_write_that_is_already_there_is_made_durable() -> None:
    """The inner store is asked for its own bytes, with the sync that the caller wants."""
    calls: list[tuple[int, bool]] = []

    class Watching(MemoryBackend):
        def commit(self, writes, *, sync=True):
            outcomes = super().commit(writes, sync=sync)
            calls.append((sum(isinstance(o, Done) for o in outcomes), sync))
            return outcomes

    b = EncryptedBackend(Watching(), KEY)
    batch = [save("r", 0), Attach(b"r", 0, b"t", 0, 1, b"d")]
    assert b.commit(batch, sync=False) == [Done(), Done()]
    calls.clear()
    assert b.commit([save("r", 0), *batch], sync=True) == [Conflicted(), Done(), Done()]
    assert calls == [(0, True), (2, True)]


def test_a_conflict_beside_damage_is_a_conflict() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    append(b, save("r", 0))
    (entry,) = [e for e in inner.find() if e.run != RING]
    inner._rows[entry.cursor].head = entry.head[:-1]
    assert b.commit([save("r", 0), save("s", 0)]) == [Conflicted(), Done()]


def test_what_is_no_write_is_refused_before_anything_is_stored() -> None:
    b = EncryptedBackend(MemoryBackend(), KEY)
    good = save("r", 0)
    for bad in (
        Save(b"x", 0, b"h", "body"),  # pyright: ignore[reportArgumentType]
        Save(b"x", 0, b"h", b"b", (2**32,)),
        Save(b"x", 0, b"h", b"b", (), ((b"short", b""),)),
        Save(b"x", -1, b"h", b"b"),
        Attach(b"x", 0, b"t", 2**40, 0, b""),
        "nothing",
    ):
        with pytest.raises(ContractBroken):
            b.commit([good, bad])  # pyright: ignore[reportArgumentType]
    assert b.runs() == []


# -- lists in the order of real names --------------------------------------------------------------------------


def test_pages_in_the_real_order_beside_changes() -> None:
    b = EncryptedBackend(MemoryBackend(), KEY)
    names = [b"run %03d" % n for n in range(30)]
    for name in reversed(names):
        append(b, save(name, 0, objects=[(bytes(13) + name[-3:], b"x")]))
    assert [key for key, _ in b.runs(limit=7)] == names[:7]
    append(b, save(b"run 007a", 0), save(b"run 003", 1))
    assert [key for key, _ in b.runs(after=names[6], limit=3)] == [b"run 007", b"run 007a", b"run 008"]
    assert b.runs(after=b"run 002", limit=1) == [(b"run 003", 1)]
    ids = b.object_ids()
    assert ids == sorted(bytes(13) + name[-3:] for name in names)
    assert b.object_ids(limit=10) == ids[:10]
    assert b.discard(ids[10:12], mark=b.mark()) == 2
    assert b.object_ids(after=ids[9], limit=3) == ids[12:15]


def test_find_skips_the_slots_and_fills_its_pages() -> None:
    b = EncryptedBackend(MemoryBackend(), KEY)
    append(b, *(save("r", rev) for rev in range(4)))
    b.add_slot("more", Passphrase("p", cost=CHEAP))
    append(b, *(save("r", rev) for rev in range(4, 8)))
    for limit in range(1, 9):
        seen: list[int] = []
        beyond: int | None = None
        while page := b.find(beyond=beyond, limit=limit):
            assert len(page) == limit or beyond is not None or limit > 8
            seen += [e.rev for e in page]
            beyond = page[-1].cursor
            if len(page) < limit:
                break
        assert seen == [7, 6, 5, 4, 3, 2, 1, 0]
    assert b.find(limit=0) == []
    assert [key for key, _ in b.runs()] == [b"r"]


def test_moved_tokens_are_noticed() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    append(b, save("r", 0, tokens=[1]), save("s", 0, tokens=[2]))
    carriers = inner._carriers
    rows = inner._rows
    one, two = sorted(carriers, key=lambda token: carriers[token])
    rows[carriers[two][0]].tokens = (one, two)
    carriers[one] = sorted(carriers[one] + carriers[two])
    assert b.entries(b"s", 0, 0)[0].tokens == (2,)
    for ask in (lambda: b.find([1]), lambda: b.find([2]), b.find):
        with pytest.raises(Tampered):
            ask()
    assert "its tokens are not those" in "".join(b.check())


# -- recasts ---------------------------------------------------------------------------------------------------


def test_a_recast_is_sealed_anew() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    append(b, save("r", 0, body=b"long" * 9))
    hidden = inner.runs()[0][0] if inner.runs()[0][0] != RING else inner.runs()[1][0]
    bodies = [inner.entries(hidden, 0, 0)[0].body]
    for rev in range(1, 6):
        append(b, save("r", rev, recast=[(0, b"short")]))
        bodies.append(inner.entries(hidden, 0, 0)[0].body)
    assert [e.body for e in b.entries(b"r", 0, 0)] == [b"short"]
    # After the mark: a nonce. The same key seals all of them, so none may come twice, not even for equal bytes.
    nonces = [body[4:16] for body in bodies if body is not None]
    assert len(set(nonces)) == len(nonces) == 6
    head = inner.entries(hidden, 0, 0)[0].head
    assert head[72 + 32 : 72 + 32 + 12] not in nonces


def test_a_body_taken_back_to_before_its_recast_means_the_same() -> None:
    """Both were written for this entry and mean the same: that is all that a recast may do."""
    inner = MemoryBackend()
    store = Store(EncryptedBackend(inner, KEY))
    dice = random.Random(2)
    state: dict[str, list[str]] = {"m": []}
    before: dict[int, bytes] = {}
    recast = 0
    for _ in range(70):
        state["m"].append(dice.randbytes(200).hex())
        store.append("run", state)
        for row in inner._rows.values():
            recast += before.setdefault(row.cursor, row.body) != row.body
    assert recast > 0
    for row in inner._rows.values():
        row.body = before[row.cursor]
    fresh = Store(EncryptedBackend(inner, KEY))
    assert fresh.load("run") == state
    assert fresh.load("run", 20) == {"m": state["m"][:21]}
    assert verify(fresh).clean


def test_recasts_are_skipped_where_the_old_head_cannot_be_read() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    append(b, save("r", 0))
    faulty = FaultyBackend(inner, Plan(at=1, only="entries"))
    assert done(EncryptedBackend(faulty, KEY).commit([save("r", 1, recast=[(0, b"x")])])) == [True]
    assert faulty.injected == 1
    assert [e.body for e in b.entries(b"r", 0, MAX_REV)] == [b"body", b"body"]


# -- leases ----------------------------------------------------------------------------------------------------


def test_owners_are_hidden_and_differ_by_run() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    assert b.acquire(b"r", "host-7:pid-9", 60).owner == "host-7:pid-9"
    assert b.acquire(b"s", "host-7:pid-9", 60).owner == "host-7:pid-9"
    assert b.acquire(b"r", "other", 60).owner == "host-7:pid-9"
    hidden = [held[0] for held in inner._leases.values()]
    assert len(set(hidden)) == 2
    assert not any("host" in owner for owner in hidden)
    for run, (owner, epoch, until) in list(inner._leases.items()):
        inner._leases[run] = (owner[:-2] + "00", epoch, until)
    with pytest.raises(Error):
        b.lease(b"r")
