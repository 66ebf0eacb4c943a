"""Stores of every format that was ever released open forever."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
from tests.golden.content import HERE, build, states

from knotline import SqliteBackend, Store, verify

STORES = sorted(HERE.glob("*.db"))


def test_there_is_one_of_every_format() -> None:
    assert [path.name for path in STORES] == ["format-1.db"]


@pytest.mark.parametrize("made", [*STORES, None], ids=lambda path: path.name if path else "made now")
def test_it_opens_and_is_what_was_written(made: Path | None, tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    if made is None:
        build(place)
    else:
        shutil.copy(made, place)
    with Store(SqliteBackend(place)) as store:
        assert verify(store).clean
        for rev, state in enumerate(copy.deepcopy(state) for state in states()):
            assert store.load("all", rev) == state
            assert list(store.load("all", rev)) == list(state)
        last, middle = store.load("all", 150), store.load("all", 100)
        assert store.load("all") == last
        assert store.load("fork", 0) == middle
        assert store.load("fork") == {"left": "all"}
        assert [header.rev for header in store.lineage("all")] == list(range(150, -1, -1))
        assert store.header("all").note == {"why": "golden"}
        assert [found.header.rev for found in store.find(["step=77"]).items] == [77]
        assert store.get("config", "settings") == {"theme": "dark"}
        ((_, result),) = store.attachments("held")
        assert result == {"result": (1, 2)}
        assert sorted(dict(store.runs())) == ["all", "fork", "held", "short"]
        assert store.load("short", 39) == {"n": 39}
        last["messages"].append("one more")
        store.append("all", last)
        assert store.load("all") == last
