"""Portable files of every format that was ever released can be imported forever."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.golden.content import HERE
from tests.store.houses import KEY, contents

from knotline import SqliteBackend, Store, import_file, verify

FILES = sorted(HERE.glob("*.knot"))
"""Made of the golden store of the same format, the encrypted one with the key of `tests/store/houses.py`."""


def test_there_is_one_of_every_format() -> None:
    assert [path.name for path in FILES] == ["format-1-encrypted.knot", "format-1.knot"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_holds_what_was_exported(path: Path, tmp_path: Path) -> None:
    shutil.copy(HERE / f"{path.stem.removesuffix('-encrypted')}.db", tmp_path / "of.db")
    with Store(SqliteBackend(tmp_path / "of.db")) as source, Store(SqliteBackend(tmp_path / "to.db")) as target:
        import_file(target, path, key=KEY)
        assert contents(target.backend) == contents(source.backend)
        assert verify(target).clean
        assert target.load("all") == source.load("all")
