"""Fifty secrets in everything that a program gives to an encrypted store, and a session full of errors: none of them
is in the store's bytes, in a log, or in what an error says.

Two kinds. *Contents* (values, keys, notes, labels, attachments, keys and passphrases) are nowhere at all. *Names* (of
runs, documents and lease owners, and the keys on the way to a value that cannot be stored) are in no byte and in no log
either; an error that answers the caller says them, since it would be of no use otherwise.
"""

from __future__ import annotations

import base64
import json
import logging
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from knotline import Store, serializable
from knotline.backends import Backend, EncryptedBackend, MemoryBackend, SqliteBackend, encrypted_cipher, keys
from knotline.backends.contract import MAX_REV, Attach, Save
from knotline.backends.keys import Argon2Cost, EnvironmentKey, KeyCommand, KeyFile, Passphrase, RawKey
from knotline.errors import Error
from knotline.store import verify
from knotline.testing import FaultyBackend, Plan

MANY = 50
CHEAP = Argon2Cost(memory=32, passes=1, lanes=1)


class Token:
    """Somebody's own class, which cannot be stored: its `repr` tells what it holds."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def __repr__(self) -> str:
        return f"Token({self.secret!r})"


@serializable(name="canaries.Card")
class Card:
    """A class that the store knows, and that fails without saying what it holds."""

    def __init__(self, number: str, *, fails: bool = False) -> None:
        self.number, self.fails = number, fails

    def to_dict(self) -> dict[str, object]:
        if self.fails:
            raise RuntimeError("no")
        return {"number": self.number}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Card:
        if cls.broken:
            raise RuntimeError("no longer")
        return cls(data["number"])

    broken = False


class Zone(tzinfo):
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


@dataclass
class Evidence:
    contents: list[str] = field(default_factory=list[str])
    names: list[str] = field(default_factory=list[str])
    stored: bytes = b""
    said: str = ""
    logged: str = ""
    errors: int = 0

    @contextmanager
    def error(self, *kinds: type[BaseException]) -> Iterator[None]:
        """Whatever is raised, with all that anybody might print of it."""
        expected = kinds or (Error,)
        try:
            yield
        except expected as error:
            self.errors += 1
            each: BaseException | None = error
            while each is not None:
                self.said += (
                    str(each) + repr(each) + repr(each.args) + repr(vars(each)) + repr(getattr(each, "__notes__", ""))
                )
                each = each.__cause__ or each.__context__
            self.said += "".join(traceback.format_exception(error))
        else:
            raise AssertionError("no error")


def forms(secret: str) -> set[bytes]:
    """A secret as it might be met: as text, escaped, in hexadecimal, in base64 at each of three offsets."""
    raw = secret.encode()
    found = {raw, raw.hex().encode(), raw.hex().upper().encode(), json.dumps(secret)[1:-1].encode()}
    found |= {repr(secret)[1:-1].encode(), repr(raw)[2:-1].encode(), raw[::-1], secret.encode("utf-16-le")}
    for ahead in range(3):
        coded = base64.b64encode(bytes(ahead) + raw)
        inner = coded[(ahead * 8 + 5) // 6 : -4]
        found |= {inner, inner.replace(b"+", b"-").replace(b"/", b"_")}
    return found


def met(secrets: list[str], where: bytes) -> list[str]:
    return [secret for secret in secrets if any(form in where for form in forms(secret))]


def session(make: Callable[[Backend], Backend], inner: Backend, place: Path) -> Evidence:
    """A program's work with a store, and everything that can go wrong with it."""
    dice = random.Random(str(place))
    found = Evidence()

    def content() -> str:
        found.contents.append(f"geheim-ß-{dice.randbytes(9).hex()}")
        return found.contents[-1]

    def name() -> str:
        found.names.append(f"name-ü-{dice.randbytes(9).hex()}")
        return found.names[-1]

    with _listening(found):
        _work(make, inner, place, found, content, name)
    assert len(found.contents) + len(found.names) >= MANY
    return found


@contextmanager
def _listening(found: Evidence) -> Iterator[None]:
    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.logged += self.format(record) + repr(vars(record))

    root = logging.getLogger()
    handler, level = Keeps(logging.DEBUG), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    logging.captureWarnings(capture=True)
    try:
        logging.getLogger("canaries").debug("it listens")
        yield
    finally:
        logging.captureWarnings(capture=False)
        root.setLevel(level)
        root.removeHandler(handler)
    assert "it listens" in found.logged


def _work(
    make: Callable[[Backend], Backend],
    inner: Backend,
    place: Path,
    found: Evidence,
    content: Callable[[], str],
    name: Callable[[], str],
) -> None:
    backend = make(inner)
    store = Store(backend)
    runs = [name() for _ in range(4)]
    for run in runs:
        note = {"why": content(), "error": f"ValueError: {content()}"}
        store.append(run, {"value": content(), content(): 1}, note=note, labels=[content()])
        store.append(run, {"set": {content()}, "raw": content().encode(), "card": Card(content())})
        store.attach(run, 0, content(), 0, {"result": content()})
    store.fork(runs[0], name())
    category, key = name(), name()
    store.put(category, key, {"document": content()})
    store.acquire(runs[1], name(), ttl=60)
    store.append(runs[2], {"large": content() * 300})

    _unstorable(store, runs[0], found, content, name)
    _refusals(store, runs, found, content)
    found.said += repr(store.backend) + store.backend.name + repr(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Card, "broken", True)
        with found.error():
            store.load(runs[0], 1)

    if isinstance(backend, EncryptedBackend):
        _keys(backend, inner, place, found, content)
        _damage(backend, inner, runs, found)
    found.stored = stored(inner, place)
    assert found.errors > 15


def _unstorable(store: Store, run: str, found: Evidence, content: Callable[[], str], name: Callable[[], str]) -> None:
    thing = Token(content())
    deep: list[Any] = [content()]
    for _ in range(200):
        deep = [deep]
    loop: dict[str, Any] = {"beside": content()}
    loop["back"] = loop
    for value in (
        {"beside": content(), "items": [content(), {"socket": thing}]},
        {name(): thing},
        {"set": {content(), thing}},
        {thing: 1},
        {("tuple", thing): content()},
        {"card": Card(content(), fails=True)},
        {"when": datetime(2026, 1, 1, tzinfo=Zone(content()))},
        {"deep": deep},
        loop,
        thing,
        {"text": type("Sub", (str,), {})(content())},
    ):
        with found.error():
            store.append(run, value)
    with found.error():
        store.append(run, {}, note={"why": content(), "what": thing})
    with found.error():
        store.attach(run, 0, "task", 9, thing)


def _refusals(store: Store, runs: list[str], found: Evidence, content: Callable[[], str]) -> None:
    with found.error():
        store.append(runs[0], {"a": content()}, expected=99)
    with found.error():
        store.load("there is none")
    with found.error():
        store.load(runs[0], 77)
    with found.error():
        store.undo(runs[3])
        store.undo(runs[3])
        store.undo(runs[3])
    with found.error():
        store.acquire(runs[1], "another", ttl=60)
    with found.error(Error, TypeError, AttributeError):
        store.append(runs[0], {"a": content()}, labels=[content(), 5])  # pyright: ignore[reportArgumentType]
    backend = store.backend
    if not isinstance(backend, EncryptedBackend):
        return
    for write in (
        Save(b"rx", 0, b"head", content()),  # pyright: ignore[reportArgumentType]
        Save(b"rx", 0, content(), b"body"),  # pyright: ignore[reportArgumentType]
        Save(b"rx", 0, b"head", b"body", objects=((content().encode(), b""),)),
        Save(content(), 0, b"head", b"body"),  # pyright: ignore[reportArgumentType]
        Attach(b"rx", 0, content(), 0, 0, b""),  # pyright: ignore[reportArgumentType]
    ):
        with found.error(Error, TypeError):
            backend.commit([write])


def _keys(backend: EncryptedBackend, inner: Backend, place: Path, found: Evidence, content: Callable[[], str]) -> None:
    """Sources with secrets that are no keys, the wrong ones, or none; and slots with good ones."""
    program = "import sys; sys.stdout.write(sys.argv[1]); sys.stderr.write('!'); sys.exit(int(sys.argv[2]))"
    (place / "key").write_text(content())
    variables = {"K": content(), "P": content()}
    wrong: list[Any] = [
        b"\x01" * 32,
        content().encode(),
        RawKey(content().encode()[:32]),
        Passphrase(content(), cost=CHEAP),
        EnvironmentKey("K", environ=variables),
        EnvironmentKey("P", holds="passphrase", environ=variables),
        EnvironmentKey("none", environ=variables),
        KeyFile(place / "key"),
        KeyFile(place / "key", holds="passphrase"),
        KeyFile(place / "no such file"),
        KeyFile(place),
        KeyCommand((sys.executable, "-c", program, content(), "1")),
        KeyCommand((sys.executable, "-c", program, content(), "0")),
        KeyCommand((sys.executable, "-c", "import time; time.sleep(9)", content()), timeout=0.05),
        KeyCommand(("no-such-program", content())),
        [Passphrase(content(), cost=CHEAP), KeyCommand(("no-such-program",))],
    ]
    for source in wrong:
        found.said += repr(source) if not isinstance(source, bytes) else ""
        with found.error():
            EncryptedBackend(inner, source)
    (place / "key").unlink()
    good = Passphrase(content(), cost=CHEAP)
    backend.add_slot("good", good)
    for change in (
        lambda: backend.add_slot("good", Passphrase(content(), cost=CHEAP)),
        lambda: backend.add_slot("", good),
        lambda: backend.replace_slot("none", Passphrase(content(), cost=CHEAP)),
        lambda: backend.rotate(good),
        lambda: backend.rotate(Passphrase(content(), cost=CHEAP)),
        lambda: backend.rekey(inner),
    ):
        with found.error():
            change()
    backend.rotate(good, KEY)
    with found.error(TypeError):
        EncryptedBackend(inner, found.contents[0])  # pyright: ignore[reportArgumentType]
    found.said += repr(good.secret()) + repr(backend._sources) + repr(backend._ring) + repr(backend._cipher)
    found.said += repr(backend.list_slots())


def _damage(backend: EncryptedBackend, inner: Backend, runs: list[str], found: Evidence) -> None:
    """A medium that fails, and one that returns other bytes."""
    for at in range(1, 8):
        faulty = FaultyBackend(inner, Plan(at=at))
        with found.error():
            broken = Store(EncryptedBackend(faulty, KEY))
            for _ in range(5):
                broken.append(runs[0], {"secret": found.contents[0]})
            raise Error("no fault")
    hidden = backend._run(b"r" + runs[0].encode())
    real, objects = inner.entries, inner.objects

    def damaged(run: bytes, lo: int, hi: int, **more: Any) -> Any:
        return [type(e)(e.run, e.rev, e.head[:-1], e.body, e.cursor, e.tokens) for e in real(run, lo, hi, **more)]

    def moved(run: bytes, lo: int, hi: int, **more: Any) -> Any:
        return [type(e)(e.run, e.rev + 1, e.head, e.body, e.cursor, e.tokens) for e in real(run, lo, hi, **more)]

    def other(run: bytes, lo: int, hi: int, **more: Any) -> Any:
        return [
            type(e)(e.run, e.rev, e.head, b"?" + (e.body or b""), e.cursor, e.tokens) for e in real(run, lo, hi, **more)
        ]

    for change in (damaged, moved, other):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inner, "entries", change)
            assert change(hidden, 0, 9)
            with found.error():
                Store(EncryptedBackend(inner, KEY)).load(runs[0], 0)
            found.said += repr(verify(Store(EncryptedBackend(inner, KEY))).damage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inner, "objects", lambda ids: {oid: data[:-1] for oid, data in objects(ids).items()})
        with found.error():
            Store(EncryptedBackend(inner, KEY)).load(runs[2])


KEY = bytes(random.Random(50).randbytes(32))


def stored(inner: Backend, place: Path) -> bytes:
    """Every byte at rest: of the files as they lie there, write-ahead log included, and what the backend answers."""
    said = b"".join(file.read_bytes() for file in sorted(place.iterdir()) if file.is_file())
    for run, head in inner.runs(limit=MAX_REV):
        said += run + str(inner.lease(run)).encode()
        for entry in inner.entries(run, 0, head):
            said += entry.head + (entry.body or b"")
        for each in inner.attachments(run):
            said += each.task + each.data
    for oid, data in inner.objects(inner.object_ids()).items():
        said += oid + data
    return said


def clean(found: Evidence) -> None:
    everywhere = found.stored + found.said.encode("utf-8", "backslashreplace") + found.logged.encode()
    assert met(found.contents, everywhere) == []
    assert met(found.names, found.stored + found.logged.encode()) == []
    assert KEY not in everywhere
    assert KEY.hex().encode() not in everywhere
    assert repr(KEY).encode() not in everywhere


INNERS: dict[str, Callable[[Path], Backend]] = {
    "memory": lambda _: MemoryBackend(),
    "sqlite": lambda place: SqliteBackend(place / "store.db"),
}


def encrypted(inner: Backend) -> Backend:
    return EncryptedBackend(inner, KEY)


@pytest.mark.parametrize("name", INNERS)
def test_fifty_secrets_are_nowhere(tmp_path: Path, name: str) -> None:
    inner = INNERS[name](tmp_path)
    found = session(encrypted, inner, tmp_path)
    if name == "sqlite":
        assert (tmp_path / "store.db-wal").stat().st_size > 10_000
    clean(found)
    inner.close()
    found.stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    clean(found)
    # What an error says back is what it was asked: at most the names.
    assert met(found.names, found.said.encode("utf-8", "backslashreplace"))


def test_a_plain_store_shows_them(tmp_path: Path) -> None:
    """Or else the search would find nothing anywhere."""
    found = session(lambda inner: inner, SqliteBackend(tmp_path / "store.db"), tmp_path)
    shown = met(found.contents, found.stored)
    assert len(shown) > 15
    assert len(met(found.names, found.stored)) > 5
    with pytest.raises(AssertionError):
        clean(found)


def test_every_form_is_seen() -> None:
    secret = 'ge"heim-ß-0123456789'
    raw = secret.encode()
    for where in (
        raw,
        raw.hex().encode(),
        json.dumps({"a": secret}).encode(),
        repr([secret]).encode(),
        repr(raw).encode(),
    ):
        assert met([secret], b"before" + where + b"after") == [secret]
    for ahead in range(8):
        coded = base64.b64encode(b"x" * ahead + raw + b"yyyy")
        assert met([secret], coded) == [secret]
        assert met([secret], base64.urlsafe_b64encode(b"x" * ahead + raw + b"yyyy")) == [secret]
    assert met([secret], b"something else") == []


# -- leaks that are planted ------------------------------------------------------------------------------------


def _names_in_the_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encrypted_cipher.Cipher, "run", lambda self, key: key)


def _values_in_errors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys.modules["knotline.codec.private"], "_short", repr)


def _secrets_in_reprs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keys.Passphrase, "__repr__", lambda self: f"Passphrase({self._passphrase!r})")


def _arguments_of_commands(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keys.KeyCommand, "describe", lambda self: f"command {self._command}")


def _a_log(patch: pytest.MonkeyPatch) -> None:
    real = encrypted_cipher.Cipher.run

    def run(self: encrypted_cipher.Cipher, key: bytes) -> bytes:
        logging.getLogger("knotline").debug("run %r", key.decode())
        return real(self, key)

    patch.setattr(encrypted_cipher.Cipher, "run", run)


@pytest.mark.parametrize(
    "plant", [_names_in_the_open, _values_in_errors, _secrets_in_reprs, _arguments_of_commands, _a_log]
)
def test_a_leak_is_seen(tmp_path: Path, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        found = session(encrypted, MemoryBackend(), tmp_path)
    with pytest.raises(AssertionError):
        clean(found)
