"""A move that is interrupted anywhere leaves a prefix that verifies, and begun again ends with an equal store."""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.crash.store_scenarios import count
from tests.store.houses import KEY, Contents, clean, contents, cottage, house

from knotline.backends import Backend, EncryptedBackend, MemoryBackend, SqliteBackend
from knotline.errors import Unavailable
from knotline.store import Store, copy_store, export_store, import_file, verify
from knotline.testing import FaultyBackend, Plan

Kind = Literal["before", "after", "partial"]
SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
build = house if SOAK else cottage
kinds = pytest.mark.parametrize("kind", ["before", "after", "partial"])


def is_prefix(part: Contents, whole: Contents) -> bool:
    """Entry for entry what the source has, in its order, up to some place."""
    keys = part.order
    return keys == whole.order[: len(keys)] and all(part.heads[key] == whole.heads[key] for key in keys)


def half_clean(backend: Backend) -> None:
    """The entry that says what a prune dropped may not have come yet."""
    for damage in verify(Store(backend)).damage:
        assert damage.what == "run 'pruned'", damage
        assert damage.why.endswith("are missing"), damage


def _every(kind: Kind, way: str, target: Callable[[], tuple[Backend, Backend]], move: Callable[[Store], Any]) -> int:
    """`target` gives what is written to and what it leaves; a fault at each of its calls, until there is none."""
    whole = contents(build().backend)
    injected = 0
    for at in itertools.count(1, 1):
        live, inner = target()
        faulty = FaultyBackend(live, Plan(at=at, kind=kind))
        try:
            move(Store(faulty))
        except Unavailable:
            assert faulty.injected == 1, "it failed without a fault"
        else:
            assert faulty.injected == 0 or kind != "before", f"a fault at {at} was not heard"
        found = contents(live)
        assert is_prefix(found, whole), at
        if SOAK or at % 5 == 1:
            half_clean(live)
        move(Store(live))
        assert contents(live) == whole, f"{way} {kind} {at}"
        injected += faulty.injected
        if not faulty.injected:
            break
        inner.close()
    count(f"moving faults {way} {kind}", injected)
    return injected


def _memory() -> tuple[Backend, Backend]:
    backend = MemoryBackend()
    return backend, backend


def _sealed() -> tuple[Backend, Backend]:
    backend = MemoryBackend()
    return EncryptedBackend(backend, KEY), backend


@kinds
def test_a_fault_at_every_call_of_the_target(kind: Kind) -> None:
    source = build()
    assert _every(kind, "copy", _memory, lambda target: copy_store(source, target)) >= 40


def test_a_fault_at_every_call_of_an_encrypted_target() -> None:
    source = build()
    assert _every("after", "sealed copy", _sealed, lambda target: copy_store(source, target)) >= 15


@kinds
def test_a_fault_at_every_call_of_an_import(tmp_path: Path, kind: Kind) -> None:
    export_store(build(), tmp_path / "all.knot")
    assert _every(kind, "import", _memory, lambda target: import_file(target, tmp_path / "all.knot")) >= 40


@pytest.mark.parametrize("way", ["copy", "export"])
def test_a_fault_at_every_call_of_the_source(tmp_path: Path, way: str) -> None:
    source = build()
    whole = contents(source.backend)
    injected = 0
    for at in itertools.count(1):
        faulty = FaultyBackend(source.backend, Plan(at=at))
        target = Store(MemoryBackend())
        file = tmp_path / f"{at}.knot"
        try:
            if way == "copy":
                copy_store(Store(faulty), target)
            else:
                export_store(Store(faulty), file)
        except Unavailable:
            assert faulty.injected == 1
            assert list(tmp_path.iterdir()) == [], "half a file was left"
            assert is_prefix(contents(target.backend), whole)
        else:
            assert faulty.injected == 0
            break
        injected += 1
        copy_store(source, target)
        assert contents(target.backend) == whole
    count(f"moving faults of the source, {way}", injected)
    assert injected >= 20
    assert contents(source.backend) == whole


def test_a_target_that_stays_broken() -> None:
    source = build()
    whole = contents(source.backend)
    target = MemoryBackend()
    done = injected = 0
    for at in itertools.count(5, 7):
        faulty = FaultyBackend(target, Plan(at=at, forever=True))
        try:
            copy_store(source, Store(faulty))
        except Unavailable:
            injected += faulty.injected
        else:
            break
        found = contents(target)
        assert is_prefix(found, whole)
        assert len(found.order) >= done, "it did not go on where it was"
        done = len(found.order)
    assert injected >= 3
    assert contents(target) == whole


# -- the file ----------------------------------------------------------------------------------------------

CALLS = ["open", "fsync", "link", "replace"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_fault_at_every_call_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, overwrite: bool
) -> None:
    source = cottage()
    path = tmp_path / "all.knot"
    if overwrite:
        path.write_bytes(b"what was there before")
    real = getattr(os, call)
    struck = 0
    for at in itertools.count(1):
        calls = 0

        def failing(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:  # noqa: B023 - read while this round lasts
                raise OSError(5, "injected")
            return real(*args, **named)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                export_store(source, path, overwrite=overwrite)
            except Unavailable:
                struck += 1
            else:
                break
        assert [each for each in tmp_path.iterdir() if each != path] == [], "something was left beside it"
        if path.exists():
            if path.read_bytes() == b"what was there before":
                continue
            # The name was given, and only the folder's sync was refused: the file is whole.
            import_file(Store(MemoryBackend()), path)
            path.unlink()
            if overwrite:
                path.write_bytes(b"what was there before")
        else:
            assert not overwrite, "the old file is gone, and no new one is there"
    count(f"file faults {call}", struck)
    expected = {"open": 2, "fsync": 2, "link": not overwrite, "replace": overwrite}[call]
    assert struck == expected
    import_file(Store(MemoryBackend()), path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_medium_that_is_full(tmp_path: Path, overwrite: bool) -> None:
    """At every so many bytes the system takes no more."""
    many = Store(MemoryBackend())
    for n in range(3):
        many.append("r", {"n": n, "blob": random.Random(n).randbytes(700_000)})
    path = tmp_path / "all.knot"
    export_store(many, path)
    size = path.stat().st_size
    struck = 0
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (*range(0, size, 150_000 if not SOAK else 9_973), size - 1):
        if not overwrite:
            path.unlink(missing_ok=True)
        before = path.read_bytes() if overwrite else b""
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard[1]))
        try:
            with pytest.raises(Unavailable):
                export_store(many, path, overwrite=overwrite)
            struck += 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, hard)
        assert [each.name for each in tmp_path.iterdir()] == (["all.knot"] if overwrite else [])
        assert not overwrite or path.read_bytes() == before
    count("file faults full", struck)
    assert struck >= 10


def test_an_export_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    for call in ("fsync", "link", "replace"):
        real = getattr(os, call)
        monkeypatch.setattr(os, call, lambda *a, _real=real, _call=call, **k: (order.append(_call), _real(*a, **k))[1])
    path = tmp_path / "all.knot"
    export_store(cottage(), path)
    export_store(cottage(), path, overwrite=True)
    assert order == ["fsync", "link", "fsync", "fsync", "replace", "fsync"]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Unavailable, match="there already"):
        export_store(cottage(), path)
    (tmp_path / "away").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Unavailable, match="there already"):
        export_store(cottage(), tmp_path / "away")
    with pytest.raises(Unavailable):
        export_store(cottage(), tmp_path / "no folder" / "all.knot")


# -- processes ---------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from knotline.backends import SqliteBackend
from knotline.store import Store, copy_store, import_file

said = 0
def told(size, entries, total):
    print(entries, flush=True)

place = Path(sys.argv[2])
target = Store(SqliteBackend(place / "to.db"))
if sys.argv[1] == "copy":
    copy_store(Store(SqliteBackend(place / "of.db")), target, progress=told)
else:
    import_file(target, place / "all.knot", progress=told)
print("done", flush=True)
"""


@pytest.mark.kill
@pytest.mark.parametrize("way", ["copy", "import"])
def test_killed_and_begun_again(tmp_path: Path, way: str) -> None:
    source = house(SqliteBackend(tmp_path / "of.db"), turns=40)
    export_store(source, tmp_path / "all.knot")
    whole = contents(source.backend)
    source.close()
    kills = 0
    done = 0
    for number in itertools.count():
        wait = 2 + number % 4 if SOAK else 3 + 11 * number
        # Not by what it says alone: also in the middle of whatever it does next.
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, way, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(wait)]
            time.sleep(0.0003 * (wait % 5))
            process.send_signal(signal.SIGKILL)
            process.wait()
        kills += process.returncode == -signal.SIGKILL
        with Store(SqliteBackend(tmp_path / "to.db")) as target:
            half_clean(target.backend)
            found = contents(target.backend)
            assert is_prefix(found, whole)
            assert len(found.order) >= done
            done = len(found.order)
        if "done\n" in said or done == len(whole.order):
            break
    count(f"moves killed, {way}", kills)
    assert kills >= 2
    with Store(SqliteBackend(tmp_path / "to.db")) as target, Store(SqliteBackend(tmp_path / "of.db")) as source:
        copy_store(source, target)
        assert contents(target.backend) == whole
        clean(target.backend)
