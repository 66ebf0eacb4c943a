"""Who can open an encrypted store: sources, slots, rotation, and a copy under new keys."""

from __future__ import annotations

import base64
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from knotline.backends import EncryptedBackend, MemoryBackend, SqliteBackend
from knotline.backends.contract import Attach, Backend, Save
from knotline.backends.encrypted_cipher import committed
from knotline.backends.encrypted_ring import MAX_SLOTS, RING, SlotInfo
from knotline.backends.keys import (
    Argon2Cost,
    EnvironmentKey,
    KeyCommand,
    KeyFile,
    KeySource,
    Lacking,
    Passphrase,
    RawKey,
    as_sources,
)
from knotline.errors import (
    Damaged,
    NotFound,
    PlaintextInEncryptedStore,
    Tampered,
    Unavailable,
    UnknownFormat,
    Unsupported,
    WrongKey,
)
from knotline.store import Store, sweep, verify
from knotline.testing import FaultyBackend, Plan, StrictBackend
from knotline.testing.suite_place import append, object_id, save

KEY = bytes(range(32))
OTHER = bytes(range(32, 64))
CHEAP = Argon2Cost(memory=32, passes=1, lanes=1)


def words(text: str) -> Passphrase:
    return Passphrase(text, cost=CHEAP)


def opens(inner: Backend, source: KeySource | bytes) -> bool:
    try:
        EncryptedBackend(inner, source)
    except WrongKey:
        return False
    return True


def slots_entry(inner: MemoryBackend) -> Any:
    return next(row for row in inner._rows.values() if row.run == RING)


def test_the_derivation_is_hkdf() -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    for _ in range(20):
        root, salt = os.urandom(32), os.urandom(32)
        expected = HKDF(hashes.SHA256(), 64, salt, b"knotline piece 1").derive(root)
        assert b"".join(committed(root, salt)) == expected


# -- sources ---------------------------------------------------------------------------------------------------


def test_every_source_opens_what_any_other_made(tmp_path: Path) -> None:
    raw, text = tmp_path / "raw", tmp_path / "text"
    raw.write_bytes(KEY)
    text.write_text(KEY.hex() + "\n")
    script = f"print({base64.urlsafe_b64encode(KEY).decode()!r})"
    sources: list[KeySource | bytes] = [
        KEY,
        RawKey(KEY),
        KeyFile(raw),
        KeyFile(text),
        EnvironmentKey("A_KEY", environ={"A_KEY": base64.b64encode(KEY).decode().rstrip("=")}),
        KeyCommand((sys.executable, "-c", script)),
    ]
    for maker in sources:
        inner = MemoryBackend()
        append(EncryptedBackend(inner, maker), save("r", 0))
        for source in sources:
            assert EncryptedBackend(inner, source).runs() == [(b"r", 0)]
        assert not opens(inner, OTHER)
        assert not opens(inner, words("p"))


def test_passphrases(tmp_path: Path) -> None:
    file = tmp_path / "phrase"
    file.write_text("correct horse\n")
    inner = MemoryBackend()
    append(EncryptedBackend(inner, words("correct horse")), save("r", 0))
    for source in (
        Passphrase("correct horse"),  # the slot's own cost counts
        KeyFile(file, holds="passphrase"),
        EnvironmentKey("P", holds="passphrase", environ={"P": "correct horse"}),
        KeyCommand((sys.executable, "-c", "print('correct horse')"), holds="passphrase"),
    ):
        assert EncryptedBackend(inner, source).runs() == [(b"r", 0)]
    for wrong in ("correct hors", "Correct horse", "correct horse "):
        assert not opens(inner, words(wrong))
    composed = MemoryBackend()
    EncryptedBackend(composed, words("caf\u00e9"))
    assert opens(composed, words("cafe\u0301"))


def test_the_environment_is_asked_when_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KNOTLINE_KEY", raising=False)
    monkeypatch.delenv("KNOTLINE_PASSPHRASE", raising=False)
    inner = MemoryBackend()
    with pytest.raises(WrongKey, match="no key was given") as caught:
        EncryptedBackend(inner)
    assert caught.value.tried == (
        "environment variable KNOTLINE_KEY (it is not set)",
        "environment variable KNOTLINE_PASSPHRASE (it is not set)",
    )
    assert inner.runs() == []
    monkeypatch.setenv("KNOTLINE_KEY", KEY.hex())
    append(EncryptedBackend(inner), save("r", 0))
    assert opens(inner, KEY)
    monkeypatch.setenv("KNOTLINE_KEY", OTHER.hex())
    with pytest.raises(WrongKey, match="no key slot opens"):
        EncryptedBackend(inner)


def test_sources_that_have_nothing_say_why(tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    short.write_bytes(b"s3cret!")
    long.write_bytes(b"s3cret" * 20_000)
    python = sys.executable
    for source, why in (
        (RawKey(b"s3cret"), "a key has 32 bytes, this one has 6"),
        (KeyFile(tmp_path / "none"), "No such file"),
        (KeyFile(short), "not a key"),
        (KeyFile(long), "more than"),
        (KeyFile(tmp_path), "directory"),
        (EnvironmentKey("K", environ={"K": "s3cret s3cret"}), "not a key"),
        (EnvironmentKey("K", environ={"K": ""}), "not set"),
        (KeyCommand((python, "-c", "print('s3cret'); raise SystemExit(3)")), "status 3"),
        (KeyCommand((python, "-c", "import time; time.sleep(60)", "s3cret"), timeout=0.3), "within 0.3 s"),
        (KeyCommand((str(tmp_path / "none"), "s3cret")), "No such file"),
        (words(""), "empty"),
        (Passphrase("s3cret", cost=Argon2Cost(memory=2**31)), "out of bounds"),
    ):
        with pytest.raises(WrongKey) as caught:
            EncryptedBackend(MemoryBackend(), source)
        told = "".join(traceback.format_exception(caught.value)) + repr(source) + repr(caught.value.tried)
        assert why in told, source
        assert "s3cret" not in told
    assert issubclass(Lacking, Exception)


def test_what_is_no_source() -> None:
    with pytest.raises(TypeError):
        as_sources("a passphrase?")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        KeyCommand("rm -rf")
    assert "s3cret" not in repr([Passphrase("s3cret"), RawKey(b"s3cret"), Passphrase("s3cret").secret()])


def test_of_several_sources_the_first_makes_and_any_opens() -> None:
    empty = EnvironmentKey("K", environ={})
    inner = MemoryBackend()
    EncryptedBackend(inner, [empty, RawKey(KEY), RawKey(OTHER)])
    assert opens(inner, KEY)
    assert not opens(inner, OTHER)
    EncryptedBackend(inner, [RawKey(OTHER), empty, RawKey(KEY)])


def test_without_the_extra_the_command_is_named() -> None:
    program = """
import sys
sys.modules["cryptography"] = None
from knotline.backends import EncryptedBackend, MemoryBackend
from knotline.backends import keys
try:
    EncryptedBackend(MemoryBackend(), bytes(32))
except Exception as error:
    print(type(error).__name__, error)
"""
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.startswith("Unsupported ")
    assert said.strip().endswith("pip install knotline[encryption]")


# -- slots -----------------------------------------------------------------------------------------------------


def test_slots_wrap_one_root() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    append(b, save("r", 0))
    sealed = [(row.head, row.body) for row in inner._rows.values() if row.run != RING]
    b.add_slot("laptop", words("one"))
    b.add_slot("backup", OTHER)
    assert b.list_slots() == [SlotInfo("first", "key"), SlotInfo("laptop", "passphrase"), SlotInfo("backup", "key")]
    assert all(opens(inner, source) for source in (KEY, words("one"), OTHER))
    b.replace_slot("laptop", words("two"))
    assert opens(inner, words("two"))
    assert not opens(inner, words("one"))
    b.remove_slot("first")
    assert not opens(inner, KEY)
    b.remove_slot("backup")
    with pytest.raises(Unsupported, match="last"):
        b.remove_slot("laptop")
    assert EncryptedBackend(inner, words("two")).runs() == [(b"r", 0)]
    # Nothing but the slots was written.
    assert [(row.head, row.body) for row in inner._rows.values() if row.run != RING] == sealed
    assert len([row for row in inner._rows.values() if row.run == RING]) == 1


def test_slots_that_cannot_be() -> None:
    b = EncryptedBackend(MemoryBackend(), KEY)
    with pytest.raises(Unsupported):
        b.add_slot("first", OTHER)
    for name in ("", "x" * 101):
        with pytest.raises(Unsupported):
            b.add_slot(name, OTHER)
    with pytest.raises(NotFound):
        b.remove_slot("nobody")
    with pytest.raises(NotFound):
        b.replace_slot("nobody", OTHER)
    with pytest.raises(WrongKey):
        b.add_slot("short", b"short")
    for number in range(1, MAX_SLOTS):
        b.add_slot(str(number), OTHER)
    with pytest.raises(Unsupported):
        b.add_slot("more", OTHER)


def test_handles_change_slots_beside_each_other() -> None:
    inner = MemoryBackend()
    handles = [EncryptedBackend(inner, KEY) for _ in range(4)]

    def work(number: int) -> None:
        for turn in range(5):
            handles[number].add_slot(f"{number} {turn}", OTHER)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(handles[0].list_slots()) == 21


def test_making_a_store_survives_every_fault() -> None:
    injected = 0
    for kind in ("before", "after"):
        for at in range(1, 10):
            inner = MemoryBackend()
            faulty = FaultyBackend(inner, Plan(at=at, kind=kind))
            with contextlib.suppress(Unavailable):
                EncryptedBackend(faulty, KEY)
            injected += faulty.injected
            append(EncryptedBackend(inner, KEY), save("r", 0))
            assert EncryptedBackend(inner, KEY).runs() == [(b"r", 0)]
    assert injected >= 6


def _start(path: str, number: int, start: Any, answers: Any) -> None:
    try:
        start.wait(60)
        b = EncryptedBackend(SqliteBackend(path), KEY)
        b.commit([save(f"run {number}", 0)])
        b.close()
        answers.put(None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        answers.put(repr(error))


@pytest.mark.kill
def test_processes_that_start_at_once_agree_on_one_root(tmp_path: Path) -> None:
    fresh = multiprocessing.get_context("spawn")
    start, answers = fresh.Barrier(4), fresh.Queue()
    path = str(tmp_path / "store.db")
    processes = [fresh.Process(target=_start, args=(path, number, start, answers)) for number in range(4)]
    for process in processes:
        process.start()
    heard = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    assert heard == [None] * 4
    b = EncryptedBackend(SqliteBackend(path), KEY)
    assert [run for run, _ in b.runs()] == [b"run %d" % number for number in range(4)]
    b.close()


# -- slots that were tampered with -----------------------------------------------------------------------------


def test_flipped_and_cut_slots_never_open_wrongly() -> None:
    inner = MemoryBackend()
    append(EncryptedBackend(inner, KEY), save("r", 0))
    row = slots_entry(inner)
    raw: bytes = row.head
    for at in range(0, len(raw), 3):
        for other in (raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :], raw[:at]):
            row.head = other
            with pytest.raises((WrongKey, Damaged, UnknownFormat)):
                EncryptedBackend(inner, KEY)
    row.head = raw
    assert opens(inner, KEY)


def test_replaced_slots() -> None:
    inner, other = MemoryBackend(), MemoryBackend()
    append(EncryptedBackend(inner, KEY), save("r", 0))
    append(EncryptedBackend(other, KEY), save("r", 0))
    stranger = MemoryBackend()
    EncryptedBackend(stranger, OTHER)
    row = slots_entry(inner)
    raw = row.head
    # Slots that a stranger made: ours opens none.
    row.head = slots_entry(stranger).head
    assert not opens(inner, KEY)
    # The stranger's key opens those, and nothing in the store.
    with pytest.raises(Tampered):
        EncryptedBackend(inner, OTHER).runs()
    # Slots of another store under our own key.
    row.head = slots_entry(other).head
    with pytest.raises(Tampered):
        EncryptedBackend(inner, KEY).runs()
    # A true slot in a changed list.
    said = json.loads(raw[36:])
    said["complete"] = False
    row.head = raw[:36] + json.dumps(said).encode()
    with pytest.raises(Tampered, match="changed without it"):
        EncryptedBackend(inner, KEY)
    # Their revision is part of it.
    row.head = raw
    row.rev = 5
    with pytest.raises(Tampered):
        EncryptedBackend(inner, KEY)


def test_lost_slots_are_not_made_anew() -> None:
    inner = MemoryBackend()
    append(EncryptedBackend(inner, KEY), save("r", 0))
    fresh = MemoryBackend()
    for row in list(inner._rows.values()):
        if row.run != RING:
            append(fresh, Save(row.run, row.rev, row.head, row.body))
    with pytest.raises(Tampered, match="they are gone"):
        EncryptedBackend(fresh, KEY)
    assert len(fresh.find()) == 1


def test_a_cost_from_the_disk_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives.kdf import argon2

    inner = MemoryBackend()
    EncryptedBackend(inner, words("p"))
    row = slots_entry(inner)
    raw = row.head
    calls: list[object] = []
    real = argon2.Argon2id
    monkeypatch.setattr(argon2, "Argon2id", lambda **more: calls.append(more) or real(**more))
    for cost in (
        [2**21, 1, 1],
        [64, 17, 1],
        [1024, 1, 17],
        [0, 1, 1],
        [8, 1, 2],
        [64, -1, 1],
        [10**400, 1, 1],
        ["x", 1, 1],
        [],
    ):
        said = json.loads(raw[36:])
        said["slots"][0]["argon2id"] = cost
        row.head = raw[:36] + json.dumps(said).encode()
        with pytest.raises(Tampered):
            EncryptedBackend(inner, words("p"))
    assert calls == []
    row.head = raw
    assert opens(inner, words("p"))
    assert len(calls) == 1


def test_slots_that_are_nonsense() -> None:
    inner = MemoryBackend()
    EncryptedBackend(inner, KEY)
    row = slots_entry(inner)
    raw = row.head
    for text in (b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"slots":[]}', b" " * (2 << 20)):
        row.head = raw[:36] + text
        with pytest.raises(Tampered):
            EncryptedBackend(inner, KEY)
    row.head = raw[:2] + b"\x02" + raw[3:]
    with pytest.raises(UnknownFormat):
        EncryptedBackend(inner, KEY)
    row.head = b"plain"
    with pytest.raises(PlaintextInEncryptedStore):
        EncryptedBackend(inner, KEY)


def test_a_plain_store_is_not_made_an_encrypted_one() -> None:
    inner = MemoryBackend()
    Store(inner).append("run", {"a": 1})
    with pytest.raises(PlaintextInEncryptedStore):
        EncryptedBackend(inner, KEY)
    assert Store(inner).load("run") == {"a": 1}


# -- rotation --------------------------------------------------------------------------------------------------


def test_rotation_is_for_what_is_written_from_then_on() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    other = EncryptedBackend(inner, KEY)
    append(b, save("r", 0, objects=[(object_id(1), b"old")], tokens=[1]))
    b.rotate()
    b.rotate()
    assert b.epoch == 2
    append(b, save("r", 1, objects=[(object_id(2), b"new")], tokens=[1], recast=[(0, b"smaller")]))
    b.commit([Attach(b"r", 1, b"t", 0, 1, b"d")])
    # A handle that was open all along follows when it meets what is new, and goes on writing.
    assert other.epoch == 0
    for each in (b, other, EncryptedBackend(inner, KEY)):
        assert [e.body for e in each.entries(b"r", 0, 9)] == [b"smaller", b"body"]
        assert [e.rev for e in each.find([1])] == [1, 0]
        assert each.objects(each.object_ids()) == {object_id(1): b"old", object_id(2): b"new"}
        assert [a.data for a in each.attachments(b"r")] == [b"d"]
        assert each.epoch == 2
    append(other, save("r", 2))
    assert b.runs() == [(b"r", 2)]


def test_rotation_takes_along_only_slots_whose_secret_is_there() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    b.add_slot("laptop", words("one"))
    fresh = EncryptedBackend(inner, KEY)
    with pytest.raises(Unsupported, match="'laptop'"):
        fresh.rotate()
    fresh.rotate(KEY, words("one"))
    assert opens(inner, words("one"))
    with pytest.raises(WrongKey):
        fresh.rotate(OTHER)
    fresh.rotate(KEY, forget=True)
    assert fresh.list_slots() == [SlotInfo("first", "key")]
    assert not opens(inner, words("one"))


def test_a_slot_taken_back_from_before_a_rotation_reads_nothing_new() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    b.add_slot("thief", OTHER)
    row = slots_entry(inner)
    old = (row.head, row.rev)
    append(b, save("r", 0))
    b.rotate(KEY, forget=True)
    append(b, save("r", 1))
    row = slots_entry(inner)
    row.head, row.rev = old
    stolen = EncryptedBackend(inner, OTHER)
    with pytest.raises(Tampered):
        stolen.head(b"r")


def test_an_epoch_that_never_was_costs_no_derivation(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, words("p"))
    append(b, save("r", 0))
    (row,) = [row for row in inner._rows.values() if row.run != RING]
    row.head = row.head[:4] + b"\x00\x00\x00\x09" + row.head[8:]
    monkeypatch.setattr("knotline.backends.encrypted_ring._stretched", None)
    with pytest.raises(Tampered, match="epoch 9 never was"):
        b.head(b"r")


# -- a copy under new keys -------------------------------------------------------------------------------------


def _busy(b: Backend) -> dict[str, object]:
    store = Store(b)
    state: dict[str, object] = {"n": 0, "m": [], "long": "z" * 5000}
    for turn in range(90):
        state = {**state, "n": turn, "m": [*state["m"], {"t": f"{turn} " * 30}]}  # pyright: ignore[reportGeneralTypeIssues]
        store.append("run", state, labels=[f"mod={turn % 4}"])
        store.append(f"side {turn % 3}", {"n": turn})
        store.put("config", "main", {"turn": turn})
    store.prune("run", keep_from=80)
    store.fork("run", "forked")
    store.delete("side 1")
    store.attach("run", 85, "task", 0, {"x": 1})
    sweep(store)
    return state


@pytest.mark.parametrize("target", [MemoryBackend, lambda: StrictBackend(MemoryBackend())], ids=["memory", "strict"])
def test_rekey(target: Callable[[], Backend]) -> None:
    inner, into = MemoryBackend(), target()
    b = EncryptedBackend(inner, KEY)
    state = _busy(b)
    told: list[int] = []
    fresh = b.rekey(into, OTHER, progress=told.append)
    assert told
    assert told == sorted(told)
    assert told[-1] == len(b.find(limit=10_000))
    assert not opens(into, KEY)
    again = EncryptedBackend(into, OTHER)
    for each in (fresh, again):
        assert each.runs() == b.runs()
        assert each.object_ids() == b.object_ids()
        assert [(e.run, e.rev, e.head) for e in each.find(limit=9999)] == [
            (e.run, e.rev, e.head) for e in b.find(limit=9999)
        ]
    store = Store(again)
    assert store.load("run") == store.load("forked") == state
    assert store.get("config", "main") == {"turn": 89}
    assert [value for _, value in store.attachments("run")] == [{"x": 1}]
    before = [f.header.rev for f in Store(b).find(["mod=3"], run="run").items]
    assert [f.header.rev for f in store.find(["mod=3"], run="run").items] == before
    assert verify(store).clean
    store.append("run", {"next": 1})
    assert store.load("run") == {"next": 1}
    # No name, token or id of one is in the other.
    hidden = {run for run, _ in inner.runs()} & {run for run, _ in into.runs()}
    assert hidden == {RING}
    assert set(inner.object_ids()) & set(into.object_ids()) == set()


def test_a_copy_goes_into_an_empty_place_and_is_whole_or_does_not_open() -> None:
    b = EncryptedBackend(MemoryBackend(), KEY)
    _busy(b)
    full = MemoryBackend()
    append(EncryptedBackend(full, OTHER), save("r", 0))
    with pytest.raises(Unavailable, match="empty place"):
        b.rekey(full, OTHER)
    assert EncryptedBackend(full, OTHER).runs() == [(b"r", 0)]
    broken = MemoryBackend()

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        b.rekey(broken, OTHER, progress=stop)
    with pytest.raises(Unavailable, match="not finished"):
        EncryptedBackend(broken, OTHER)

    def write(count: int) -> None:
        if count > 20 and b.head(b"late") is None:
            append(b, save("late", 0))

    with pytest.raises(Unavailable, match="written to"):
        b.rekey(MemoryBackend(), OTHER, progress=write)


def test_every_fault_while_copying_leaves_no_false_copy() -> None:
    inner = MemoryBackend()
    b = EncryptedBackend(inner, KEY)
    append(b, save("r", 0, objects=[(object_id(1), b"x")]), save("r", 1, drop=1), save("s", 0))
    b.commit([Attach(b"r", 1, b"t", 0, 1, b"d")])
    injected = whole = 0
    for kind in ("before", "after"):
        for at in range(1, 200):
            into = MemoryBackend()
            faulty = FaultyBackend(into, Plan(at=at, kind=kind))
            try:
                b.rekey(faulty, OTHER)
            except Unavailable:
                try:
                    left = EncryptedBackend(into, OTHER)
                except Unavailable:
                    left = None
                assert left is None or left.runs() in ([], b.runs())
            else:
                whole += 1
                assert EncryptedBackend(into, OTHER).runs() == b.runs()
            injected += faulty.injected
            if not faulty.injected:
                break
    assert injected > 20
    assert whole >= 2


def test_secrets_are_in_no_repr() -> None:
    b = EncryptedBackend(MemoryBackend(), KEY)
    said = repr([b, b._ring, b._cipher, b._sources, b.list_slots()])
    for secret in (KEY, *b._ring.roots):
        assert repr(secret)[2:-1] not in said
        assert secret.hex() not in said
