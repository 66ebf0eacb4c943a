"""Killed at every system call of a save, and every writing system call failed: below SQLite, below Python.

strace counts calls by name, so the places are found by tracing a scene once: those between its two markers.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.crash.store_scenarios import count, crc
from tests.kill.processes import SOAK, Program
from tests.kill.program import backend_at

from knotline.errors import NotFound
from knotline.store import Store, verify

pytestmark = [pytest.mark.kill, pytest.mark.soak]

places = pytest.mark.parametrize("place", ["store.db", "files"])
SCENES = ["save", "seal", "checkpoint", "prune", "fork", "document", "delete"]
# What is not the store's: the marker itself, memory, threads' business, the interpreter's own.
IGNORED = {"getppid", "brk", "mmap", "munmap", "mremap", "madvise", "mprotect", "futex", "getrandom", "restart_syscall"}
WRITING = ("pwrite64", "write", "fdatasync", "fsync", "ftruncate", "unlink", "openat", "pread64", "fallocate")
WRITING += ("linkat", "renameat", "unlinkat", "mkdirat")
ERRORS = {
    "pwrite64": ("EIO", "ENOSPC"),
    "write": ("EIO", "ENOSPC"),
    "fdatasync": ("EIO", "ENOSPC"),
    "fsync": ("EIO", "ENOSPC"),
    "ftruncate": ("EIO", "ENOSPC"),
    "unlink": ("EIO",),
    "openat": ("EIO", "ENOSPC"),
    "pread64": ("EIO",),
    "fallocate": ("EIO", "ENOSPC"),
    "linkat": ("EIO", "ENOSPC"),
    "renameat": ("EIO", "ENOSPC"),
    "unlinkat": ("EIO",),
    "mkdirat": ("EIO", "ENOSPC"),
}
_LINE = re.compile(r"^(\d+) +(\w+)\(")


def strace() -> str:
    found = shutil.which("strace")
    assert found, "strace is not installed: apt-get install strace"
    return found


def model(folder: Path, scene: str, name: str) -> tuple[Path, dict[tuple[str, int], int]]:
    """A store on which the scene's preparation was done, closed, and what was acknowledged by then."""
    path = folder / f"{scene}-{name}"
    with Store(backend_at(path)) as store:
        from tests.kill.program import BEFORE

        BEFORE[scene](store)
        facts: dict[tuple[str, int], int] = {}
        for run, head in store.runs():
            for rev in range(head + 1):
                if store.header(run, rev).has_state:
                    facts[run, rev] = crc(store.load(run, rev))
    return path, facts


def traced(path: Path, scene: str, folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Calls by name before the scene, and in it. The tracer's log has one line a call, in order."""
    log = folder / "trace"
    with Program("marked", path=path, scene=scene, before=(strace(), "-f", "-o", str(log))) as program:
        lines = program.rest()
        assert program.end() == 0, program.stderr()
    assert lines[-1].get("done") is not None
    before: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    markers = 0
    for line in log.read_text(errors="replace").splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        if found[2] == "getppid":
            markers += 1
        elif markers == 0:
            before[found[2]] += 1
        elif markers == 1:
            inside[found[2]] += 1
    assert markers == 2, "the markers were not seen"
    return before, inside


def injected(
    path: Path, scene: str, folder: Path, name: str, what: str, at: int
) -> tuple[int, list[dict[str, Any]], bool]:
    """Run the scene with one fault. Return code, lines, and whether the fault struck inside the scene."""
    log = folder / "trace"
    before = (strace(), "-f", "-o", str(log), "-e", f"trace={name},getppid", "-e", f"inject={name}:{what}:when={at}")
    program = Program("marked", path=path, scene=scene, before=before)
    lines: list[dict[str, Any]] = []
    while (line := program.lines.get(timeout=60)) is not None:
        lines.append(line)
    code = program.end()
    text = log.read_text(errors="replace")
    if "signal" in what:
        struck = "+++ killed by SIGKILL +++" in text and text.count("getppid(") == 1
    else:
        at_mark = text.find("getppid(")
        struck = at_mark >= 0 and at_mark < text.find("(INJECTED)") < (text.find("getppid(", at_mark + 1) % (1 << 62))
    return code, lines, struck


def look(path: Path, facts: dict[tuple[str, int], int], lines: list[dict[str, Any]], scene: str) -> None:
    """Nothing acknowledged is lost, nothing is damaged, writing goes on."""
    with Store(backend_at(path)) as store:
        report = verify(store)
        assert report.clean, report.damage
        for (run, rev), expected in facts.items():
            try:
                assert crc(store.load(run, rev)) == expected, f"{run} at {rev} is another state"
            except NotFound:
                assert scene in ("prune", "delete"), f"{run} at {rev} was lost"
        for line in lines:
            for told in line.get("done") or []:
                if len(told) == 3:
                    assert crc(store.load(told[0], told[1])) == told[2]
                elif told[0] == "config/x":
                    assert store.get("config", "x")["v"] == 2
                elif told[0] != "swept":
                    assert store.header(told[0]).rev >= told[1]
        if scene == "document":
            assert store.get("config", "x")["v"] in (1, 2)
        value = {"later": [1, 2, 3], "blob": "x" * 5000}
        store.append("r", value)
        assert crc(store.load("r")) == crc(value)
        assert verify(store).clean


def copy(path: Path, folder: Path) -> Path:
    folder.mkdir()
    return Path(shutil.copy(path, folder / "store.db"))


@places
@pytest.mark.parametrize("scene", SCENES)
def test_a_kill_at_every_system_call(tmp_path: Path, scene: str, place: str) -> None:
    # The store is made by the scene's own preparation, in the same process; so every life begins with nothing.
    tmp_path.joinpath("t").mkdir()
    before, inside = traced(tmp_path / "t" / place, scene, tmp_path)
    _, facts = model(tmp_path, scene, place)
    boundaries = [
        (name, before[name] + n) for name, calls in inside.items() if name not in IGNORED for n in range(1, calls + 1)
    ]
    if not SOAK and len(boundaries) > 20:
        boundaries = boundaries[:: len(boundaries) // 20]
    killed = 0
    for number, (name, at) in enumerate(boundaries):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        code, lines, struck = injected(folder / place, scene, tmp_path, name, "signal=SIGKILL", at)
        if not struck:
            # Threads and caches may move a call by a few places; then it was not in the scene, and does not count.
            continue
        assert code in (-signal.SIGKILL, 128 + signal.SIGKILL), (name, at, code)
        assert lines == [{"ready": True}], lines
        killed += 1
        look(folder / place, facts, lines, scene)
        shutil.rmtree(folder)
    count("strace kills", killed)
    count("strace system calls named", len({name for name, _ in boundaries}))
    assert killed > (30 if SOAK and scene in ("checkpoint", "prune", "fork") else 10), f"{killed} of {len(boundaries)}"
    assert killed >= len(boundaries) * 0.9, f"{killed} of {len(boundaries)}"


@places
@pytest.mark.parametrize("scene", SCENES)
def test_an_error_at_every_writing_system_call(tmp_path: Path, scene: str, place: str) -> None:
    tmp_path.joinpath("t").mkdir()
    before, inside = traced(tmp_path / "t" / place, scene, tmp_path)
    _, facts = model(tmp_path, scene, place)
    cases = [
        (name, error, before[name] + n)
        for name in WRITING
        for error in ERRORS[name]
        for n in range(1, inside[name] + 1)
    ]
    if not SOAK:
        cases = cases[:: len(cases) // 6 + 1]
    struck_at = refused = 0
    for number, (name, error, at) in enumerate(cases):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        code, lines, struck = injected(folder / place, scene, tmp_path, name, f"error={error}", at)
        if not struck:
            continue
        struck_at += 1
        errors = [line["error"] for line in lines if "error" in line]
        if errors:
            refused += 1
            assert code == 1
            assert errors[0].startswith(("Unavailable:", "Damaged:")), errors
            assert not any("done" in line for line in lines)
        else:
            assert code == 0
            assert "done" in lines[-1]
        look(folder / place, facts, lines, scene)
        shutil.rmtree(folder)
    count("strace errors", struck_at)
    count("strace errors refused", refused)
    assert struck_at >= min(len(cases), 3), f"{struck_at} of {len(cases)}"
    assert struck_at >= len(cases) * 0.8
