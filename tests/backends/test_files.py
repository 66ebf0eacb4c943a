"""The files backend keeps the contract; its files are readable, its names are safe, no link is followed."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knotline.backends import files_journal
from knotline.backends.contract import Backend
from knotline.backends.files import FilesBackend
from knotline.backends.files_disk import Disk
from knotline.backends.files_names import safe
from knotline.errors import Error, UnknownFormat, Unstorable
from knotline.store import Store, verify
from knotline.testing import BackendSuite
from knotline.testing.suite_place import append, done, object_id, save


class TestFiles(BackendSuite):
    persistent = True

    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        return FilesBackend(place / "store", clock=clock)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


# -- what people see -------------------------------------------------------------------------------------------


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    before = mode(tmp_path)
    old = os.umask(0)
    try:
        with Store(FilesBackend(tmp_path / "a" / "b")) as store:
            store.put("c", "k", {"big": "x" * 9000})
            store.append("r", {"n": 1})
            store.attach("r", 0, "t", 0, 1)
            store.acquire("r", "me", ttl=1)
    finally:
        os.umask(old)
    for path in (tmp_path / "a").rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert mode(tmp_path / "a") == 0o700
    assert mode(tmp_path) == before


def test_entries_can_be_read(tmp_path: Path) -> None:
    with Store(FilesBackend(tmp_path)) as store:
        store.append("r", {"topic": "fjörds", "messages": [{"role": "user", "text": "hi"}], "pair": (1, 2)})
        store.append("r", {"topic": "fjörds", "messages": [{"role": "user", "text": "hi"}, "世界"], "pair": (1, 2)})
        first = (tmp_path / "log" / "r" / "00000000.json").read_text(encoding="utf-8")
        assert '"topic": "fjörds"' in first
        said = json.loads(first)
        assert said["pair"] == {"$tuple": [1, 2]}
        assert (said["$knotline"]["run"], said["$knotline"]["rev"], said["$knotline"]["op"]) == ("rr", 0, "save")
        change = json.loads((tmp_path / "log" / "r" / "00000001.json").read_text(encoding="utf-8"))
        assert change["base"] == 0
        assert change["changes"] == [{"in": ["messages"], "splice": [[1, 0, ["世界"]]]}]


def test_a_document_shows_all_of_itself(tmp_path: Path) -> None:
    shown = tmp_path / "config" / "main.json"
    many = {"list": [{"i": i} for i in range(200)], "blob": "b" * 9000, "map": {f"k{i}": i for i in range(600)}}
    with Store(FilesBackend(tmp_path)) as store:
        store.put("config", "main", {"v": 1})
        assert json.loads(shown.read_text())["v"] == 1
        assert shown.stat().st_nlink == 2
        store.put("config", "main", many)
        assert json.loads(shown.read_text()) == many
        store.put("config", "main", {"v": 3})
        assert json.loads(shown.read_text())["v"] == 3
        assert verify(store).clean
        store.put("config", "main", many)
        assert store.remove("config", "main")
        assert not shown.exists()


def test_what_is_shown_is_never_read(tmp_path: Path) -> None:
    shown = tmp_path / "config" / "main.json"
    with Store(FilesBackend(tmp_path)) as store:
        store.put("config", "main", {"v": 1})
        shown.unlink()
        shown.write_text('{"v": 2}')
        assert store.get("config", "main") == {"v": 1}
        assert any("config/main.json" in said for said in store.backend.check())
        store.backend.compact()
        assert json.loads(shown.read_text())["v"] == 1
        assert store.backend.check() == []


def test_an_edited_entry_is_damage(tmp_path: Path) -> None:
    with Store(FilesBackend(tmp_path)) as store:
        store.put("config", "main", {"v": 1})
    shown = tmp_path / "config" / "main.json"
    text = shown.read_bytes()
    for at in range(0, len(text), 3):
        with shown.open("r+b") as file:
            file.seek(at)
            file.write(bytes([text[at] ^ 1]))
        with Store(FilesBackend(tmp_path)) as store:
            with pytest.raises(Error):
                store.get("config", "main")
            assert not verify(store).clean
        shown.write_bytes(text)
    with Store(FilesBackend(tmp_path)) as store:
        assert store.get("config", "main") == {"v": 1}


# -- names -----------------------------------------------------------------------------------------------------

HOSTILE = [
    "../x", "..", ".", "/", "/etc/passwd", "a/b", "a\\b", "con", "CON", "nul.json", "com1.txt", "aux.", "lpt9",
    "nul\x00nul", "\n", " ", " a", "a ", "a.", "a..", ".a", "-a", "~a", "a~b", "x" * 100, "x" * 101, "x" * 300,
    "A", "a", "Ab", "aB", "AB", "ab", "é", "e\u0301", "É", "ﬁ", "fi", "ß", "SS", "ss", "İ", "i\u0307", "ı", "\u2126",
    "Ω", "世界", "\ud800", "\udfff", "%2e", "log", "objects", "Log", ".store", "a*b", 'a"b', "a:b", "a|b", "?", "<>",
    "\u202egnp.exe", "💥", "con ", "con.tar.gz", "a\u200b", "\ufeffa",
]  # fmt: skip


def test_hostile_names_stay_apart_and_come_back(tmp_path: Path) -> None:
    with Store(FilesBackend(tmp_path / "store")) as store:
        for number, name in enumerate(HOSTILE):
            store.put("c", name, {"name": name, "n": number})
            store.put(name, "k", {"category": name})
            store.append(name, {"run": name})
        for number, name in enumerate(HOSTILE):
            assert store.get("c", name) == {"name": name, "n": number}
            assert store.get(name, "k") == {"category": name}
            assert store.load(name) == {"run": name}
            assert store.names(name) == (["k"] if name != "c" else sorted([*HOSTILE, "k"]))
        assert store.names("c") == sorted(HOSTILE)
        assert sorted(name for name, _ in store.runs()) == sorted(HOSTILE)
        assert verify(store).clean
        assert store.backend.check() == []
        for name in HOSTILE:
            assert store.remove("c", name)
    assert not list((tmp_path / "store" / "c").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"store"}
    for path in (tmp_path / "store").rglob("*"):
        assert len(path.name) < 140
        assert re.fullmatch(r"(\.store|[a-z0-9~._-]*[a-z0-9])", path.name), path.name


def test_no_two_names_meet_anywhere() -> None:
    """As a file system sees them that folds case and composes: not even two of these are one."""
    folded = [unicodedata.normalize("NFKC", safe(name)).casefold().rstrip(". ") for name in HOSTILE]
    assert len(set(folded)) == len(HOSTILE)
    for name in ("ckpt-exec-1-0", "checkpoint", "agent_state", "a.b", "0", "x" * 100):
        assert safe(name) == name
    for name in HOSTILE:
        assert not re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", safe(name), re.IGNORECASE)


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_two_names_stay_apart(one: str, two: str) -> None:
    assert (safe(one) == safe(two)) == (one == two)
    for name in (one, two):
        assert re.fullmatch(r"[a-z0-9](?:[a-z0-9~._-]{0,98}[a-z0-9_])?", safe(name))


def test_keys_past_the_limit_are_refused(tmp_path: Path) -> None:
    with Store(FilesBackend(tmp_path)) as store:
        for name in ("", "x" * 512, "é" * 300):
            with pytest.raises(Unstorable):
                store.put("c", name, {})
        store.put("c", "x" * 500, {"fits": True})
        assert store.get("c", "x" * 500) == {"fits": True}


# -- links -----------------------------------------------------------------------------------------------------


def _filled(folder: Path) -> None:
    with Store(FilesBackend(folder)) as store:
        store.append("r", {"n": 1, "big": "b" * 9000})
        store.attach("r", 0, "t", 0, 1)
        store.put("c", "k", {"v": 1})
        store.acquire("r", "me", ttl=100)


def _everything(folder: Path) -> None:
    """Every kind of reading and writing; an error of ours ends it."""
    with Store(FilesBackend(folder)) as store:
        store.append("r", {"n": 2, "big": "c" * 9000, "other": "b" * 9000})
        store.load("r")
        store.attachments("r")
        store.attach("r", 0, "t", 1, 1)
        store.put("c", "k", {"v": 2, "big": "b" * 9000})
        store.names("c")
        store.acquire("r", "me", ttl=100)
        store.backend.check()
        store.backend.compact()


def test_no_planted_link_is_followed(tmp_path: Path) -> None:
    """In the place of each file and folder in turn, a link to a place outside. That stays as it is."""
    _filled(tmp_path / "model")
    planted = refused = 0
    places = sorted(path.relative_to(tmp_path / "model") for path in (tmp_path / "model").rglob("*"))
    for number, place in enumerate(places):
        folder, outside = tmp_path / f"{number}", tmp_path / f"outside-{number}"
        shutil.copytree(tmp_path / "model", folder)
        target = folder / place
        was_folder = target.is_dir()
        if was_folder:
            shutil.copytree(target, outside)
            shutil.rmtree(target)
        else:
            shutil.copy(target, outside)
            target.unlink()
        target.symlink_to(outside)
        before = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
        planted += 1
        try:
            _everything(folder)
        except Error:
            refused += 1
        after = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
        assert after == before, place
        if target.is_symlink():
            assert refused, place
    assert planted >= 12
    # What is only shown is replaced by the right file; everything else is refused.
    assert refused >= planted - 2


def test_a_planted_pipe_stops_nobody(tmp_path: Path) -> None:
    _filled(tmp_path / "store")
    entry = tmp_path / "store" / "log" / "r" / "00000000.json"
    entry.unlink()
    os.mkfifo(entry)
    with Store(FilesBackend(tmp_path / "store")) as store, pytest.raises(Error):
        store.load("r")


def test_another_format_is_refused(tmp_path: Path) -> None:
    _filled(tmp_path)
    for text in ('{"knotline": "files", "format": 2}', "{", "[]", ""):
        (tmp_path / ".store" / "format.json").write_text(text)
        with pytest.raises(UnknownFormat):
            FilesBackend(tmp_path)


# -- many at once, and what they leave -------------------------------------------------------------------------


def test_what_others_left_is_cleaned_by_whoever_is_alone(tmp_path: Path) -> None:
    one, two = FilesBackend(tmp_path), FilesBackend(tmp_path)
    append(one, *(save("r", rev, tokens=[rev]) for rev in range(20)), save("r", 20, drop=15))
    folder = tmp_path / "log" / f"{next(p.name for p in (tmp_path / 'log').iterdir())}"
    for place in (folder, tmp_path / ".store", tmp_path / "log"):
        (place / ".tmp-left").write_text("half")
    shutil.copy(folder / "00000016.json", folder / "00000003.json")
    before = one.find(limit=100)
    one.compact()
    assert (folder / ".tmp-left").exists(), "somebody else might have been writing it"
    two.close()
    lines = (tmp_path / ".store" / "journal").stat().st_size
    one.compact()
    assert not [name for name in files(tmp_path) if ".tmp-" in name]
    assert not (folder / "00000003.json").exists()
    assert (tmp_path / ".store" / "journal").stat().st_size < lines / 2
    assert one.find(limit=100) == before
    append(one, save("r", 21))
    after = one.find(limit=100)
    one.close()
    three = FilesBackend(tmp_path)
    assert three.find(limit=100) == after
    assert after[0].cursor > before[0].cursor
    assert three.check() == []
    three.close()


def test_the_journal_may_be_lost(tmp_path: Path) -> None:
    """It is derived: what is found without it is the same, in the same order within a run."""
    b = FilesBackend(tmp_path)
    for rev in range(9):
        append(b, save("r", rev, tokens=[1, rev]), save("s", rev, tokens=[2]))
    before = [(e.run, e.rev, e.head, e.tokens) for e in b.find(limit=100)]
    b.close()
    journal = tmp_path / ".store" / "journal"
    whole = journal.read_bytes()
    for left in (None, b"", whole[: len(whole) // 2], whole[:200] + bytes(300) + whole[500:], b"[]\n1\n" + whole[::-1]):
        journal.unlink() if left is None else journal.write_bytes(left)
        b = FilesBackend(tmp_path)
        found = [(e.run, e.rev, e.head, e.tokens) for e in b.find(limit=100)]
        assert sorted(found) == sorted(before)
        for run in (b"r", b"s"):
            assert [e.rev for e in b.find(run=run)] == list(range(8, -1, -1))
            cursors = [e.cursor for e in b.entries(run, 0, 99)]
            assert cursors == sorted(set(cursors))
        assert [(e.run, e.rev) for e in b.find([5])] == [(b"r", 5)]
        assert dict(b.runs()) == {b"r": 8, b"s": 8}
        b.close()


def test_a_line_of_a_writer_who_lost_is_not_believed(tmp_path: Path) -> None:
    """A power cut may take the winner's line and leave the loser's: same run, same revision, another entry."""
    b = FilesBackend(tmp_path)
    append(b, save("r", 0, tokens=[1]), save("r", 1, tokens=[1]))
    before = b.find([1])
    b.close()
    journal = tmp_path / ".store" / "journal"
    lines = [json.loads(line.partition(b"\t")[0]) for line in journal.read_bytes().split(b"\n") if line]
    lines[1][3] = "0" * 12
    journal.write_bytes(b"".join(map(files_journal._closed, lines)))
    for ask in (lambda b: b.find([1]), lambda b: b.entries(b"r", 0, 9)[::-1]):
        b = FilesBackend(tmp_path)
        assert [(e.rev, e.head) for e in ask(b)] == [(e.rev, e.head) for e in before]
        assert all(e.cursor for e in ask(b))
        assert [(e.rev, e.head) for e in b.find([1])] == [(e.rev, e.head) for e in before]
        b.close()


def test_a_stale_writer_conflicts_where_names_are_free_again(tmp_path: Path) -> None:
    """Two processes: one goes far ahead and drops everything below; the other still knows the old head."""
    one, two = FilesBackend(tmp_path), FilesBackend(tmp_path)
    append(one, save("r", 0), save("r", 1))
    assert two.head(b"r") is not None
    stale = two._log.run(b"r")
    append(one, *(save("r", rev, drop=rev) for rev in range(2, 9)))
    # As if it had looked just before: nothing of what the other did is known here.
    known = (stale.head, stale.page, stale.mark)
    refresh, two._log.refresh = two._log.refresh, lambda run: run
    assert (stale.head, stale.page, stale.mark) == known
    assert done(two.commit([save("r", 2, objects=[(object_id(1), b"x")])])) == [False]
    two._log.refresh = refresh
    for b in (one, two):
        assert [e.rev for e in b.entries(b"r", 0, 99)] == [8]
    append(two, save("r", 9))
    one.close()
    two.close()


def test_a_page_of_heads_reads_no_more_than_that(tmp_path: Path) -> None:
    class Counting(Disk):
        reads = 0

        def read(self, path: str | os.PathLike[str], offset: int = 0) -> bytes:
            self.reads += 1
            return super().read(path, offset)

    b = FilesBackend(tmp_path)
    for rev in range(150):
        b.commit([save(f"r{n}", rev, tokens=[n]) for n in range(4)], sync=False)
    b.close()
    disk = Counting()
    b = FilesBackend(tmp_path, disk=disk)
    b.find(limit=1)
    before = disk.reads
    assert len(b.find(limit=50)) == 50
    assert len(b.find([2], limit=50)) == 50
    assert disk.reads - before <= 2 * 50 + 10
    b.close()
