"""Power cuts at every point of what is done to a store of files, and the proof that the proof can fail.

First the enumerator itself, against a log whose states were counted by hand and a toy store with the classic
mistakes planted in it. Then the files backend: every state that a disk may be in is made real, opened, and held
against what the program had been promised at that time.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from tests.crash.powerloss import PlainDisk, Recording, Tape, found, materialise
from tests.crash.store_scenarios import count

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"


class ToyDisk(Recording, PlainDisk):
    def __init__(self, tape: Tape) -> None:
        self.tape = tape


def states_of(tape: Tape, *, each: int = 10_000, seed: int = 1) -> set[tuple[tuple[str, bytes | None], ...]]:
    return {tuple(sorted(cut.tree.items())) for cut in tape.cuts(Random(seed), each=each)}


# -- the enumerator -------------------------------------------------------------------------------------------------


def test_names_come_and_go_in_any_combination(tmp_path: Path) -> None:
    tape = Tape(tmp_path)
    disk = ToyDisk(tape)
    for name in "ab":
        disk.close(disk.create(str(tmp_path / name)))
    disk.unlink(str(tmp_path / "a"))
    names = {frozenset(path for path, _ in state) for state in states_of(tape)}
    assert names == {frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")}


def test_a_synced_name_stays_and_a_synced_file_keeps_its_bytes(tmp_path: Path) -> None:
    tape = Tape(tmp_path)
    disk = ToyDisk(tape)
    fd = disk.create(str(tmp_path / "a"))
    disk.write(fd, b"x" * 100)
    disk.fsync(fd)
    disk.fsync_dir(str(tmp_path))
    disk.write(fd, b"y" * 10)
    disk.close(fd)
    last = [dict(state) for state in states_of(tape)]
    after = [cut.tree["a"] for cut in tape.cuts(Random(1), each=1000, since=tape.step)]
    assert {} in last
    assert all(data is not None and data[:100] == b"x" * 100 for data in after)
    # Nothing, everything, zeros, and beginnings of what was not synced.
    assert {b"", b"y" * 10, bytes(10), b"y"} <= {data[100:] for data in after if data is not None}


def test_what_is_in_a_folder_that_is_not_there_is_not_there(tmp_path: Path) -> None:
    tape = Tape(tmp_path)
    disk = ToyDisk(tape)
    disk.mkdir(str(tmp_path / "d"))
    disk.close(disk.create(str(tmp_path / "d" / "a")))
    disk.fsync_dir(str(tmp_path / "d"))
    end = [set(cut.tree) for cut in tape.cuts(Random(1), each=1000, since=tape.step)]
    assert sorted(map(sorted, end)) == [[], ["d", "d/a"]]


def test_a_renamed_file_is_never_lost(tmp_path: Path) -> None:
    tape = Tape(tmp_path)
    disk = ToyDisk(tape)
    for name, data in (("old", b"1"), ("new", b"2")):
        fd = disk.create(str(tmp_path / name))
        disk.write(fd, data)
        disk.fsync(fd)
        disk.close(fd)
    disk.fsync_dir(str(tmp_path))
    since = tape.step
    disk.rename(str(tmp_path / "new"), str(tmp_path / "old"))
    end = [cut.tree for cut in tape.cuts(Random(1), each=1000, since=since)]
    assert sorted((sorted(tree), tree["old"]) for tree in end) == [
        (["new", "old"], b"1"),
        (["new", "old"], b"2"),
        (["old"], b"2"),
    ]


def test_states_are_made_real_as_they_are(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    tape = Tape(source)
    Toy(ToyDisk(tape), source, tape).run()
    assert tape.now() == found(source), "not everything was recorded"
    made = 0
    for cut in tape.cuts(Random(1), each=20):
        materialise(cut.tree, target)
        assert found(target) == cut.tree
        made += 1
    assert made > 50


# -- a toy store, and what it may get wrong -------------------------------------------------------------------------


class Toy:
    """Two values under names, each an entry that names an object; then what was appended to a journal."""

    def __init__(self, disk: ToyDisk, folder: Path, tape: Tape) -> None:
        self.disk = disk
        self.folder = str(folder)
        self.tape = tape
        self.temporary = 0

    def file(self, name: str, data: bytes) -> None:
        self.temporary += 1
        path = f"{self.folder}/tmp-{self.temporary}"
        fd = self.disk.create(path)
        self.disk.write(fd, data)
        self.sync(fd)
        self.disk.close(fd)
        self.disk.link(path, f"{self.folder}/{name}")
        self.disk.unlink(path)

    def sync(self, fd: int) -> None:
        self.disk.fsync(fd)

    def sync_folder(self) -> None:
        self.disk.fsync_dir(self.folder)

    def save(self, number: int) -> None:
        self.file(f"object-{number}", b"o" * 700)
        self.sync_folder()
        self.file(f"entry-{number}", b"e" * 600)
        self.sync_folder()

    def acknowledged(self, number: int) -> None:
        self.tape.mark(number)

    def journal(self, number: int) -> None:
        fd = self.disk.open_append(f"{self.folder}/journal")
        self.disk.append(fd, b"%d" % number * 40)
        self.sync(fd)
        self.disk.close(fd)
        self.sync_folder()

    def run(self) -> None:
        for number in range(2):
            self.save(number)
            self.journal(number)
            self.acknowledged(number)


class NoFileSync(Toy):
    def sync(self, fd: int) -> None:
        pass


class NoFolderSync(Toy):
    def sync_folder(self) -> None:
        pass


class EntryFirst(Toy):
    def save(self, number: int) -> None:
        self.file(f"entry-{number}", b"e" * 600)
        self.file(f"object-{number}", b"o" * 700)
        self.sync_folder()


class InPlace(Toy):
    def file(self, name: str, data: bytes) -> None:
        fd = self.disk.create(f"{self.folder}/{name}")
        self.disk.write(fd, data)
        self.sync(fd)
        self.disk.close(fd)


class Early(Toy):
    def run(self) -> None:
        for number in range(2):
            self.acknowledged(number)
            self.save(number)
            self.journal(number)


def toy_holds(kind: type[Toy], folder: Path) -> int:
    """What a toy store promises, in every state: raises where it does not hold."""
    folder.mkdir()
    tape = Tape(folder)
    kind(ToyDisk(tape), folder, tape).run()
    checked = 0
    for cut in tape.cuts(Random(7), each=200):
        promised = [what for step, what in tape.marks if step <= cut.step]
        for number in range(2):
            entry = cut.tree.get(f"entry-{number}")
            assert number not in promised or entry is not None, f"{number} was acknowledged and is gone"
            if entry is not None:
                assert entry == b"e" * 600, f"entry {number} is half there"
                assert cut.tree.get(f"object-{number}") == b"o" * 700, f"entry {number} without its object"
        journal = cut.tree.get("journal") or b""
        assert len(journal) >= 40 * len(promised), "an acknowledged line of the journal is gone"
        checked += 1
    return checked


def test_a_sound_toy_store_holds(tmp_path: Path) -> None:
    checked = toy_holds(Toy, tmp_path / "toy")
    count("power cuts of a toy store", checked)
    assert checked > 50


@pytest.mark.parametrize("kind", [NoFileSync, NoFolderSync, EntryFirst, InPlace, Early], ids=lambda it: it.__name__)
def test_a_mistake_of_a_toy_store_is_seen(kind: type[Toy], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"gone|half there|without its object"):
        toy_holds(kind, tmp_path / "toy")
