"""What is saved under a name can be read with nothing but the standard library's sqlite3."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from knotline.backends import SqliteBackend
from knotline.backends.contract import Done, Save
from knotline.store import Store, verify

GOLDEN = Path(__file__).parent.parent / "golden"


# Another library in the same process would end the locks of ours when it closes the file.
_ASK = """
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
found = connection.execute(sys.argv[2], json.loads(sys.argv[3])).fetchall()
connection.commit()
print(json.dumps(found))
"""


def ask(path: Path, sql: str, *values: str) -> list[Any]:
    """As somebody would who has nothing but Python."""
    command = [sys.executable, "-I", "-c", _ASK, str(path), sql, json.dumps(values)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


def rows(path: Path, *where: str) -> list[Any]:
    asked = "SELECT id, category, key, data, created_at, updated_at FROM persistence"
    return ask(path, asked + (" WHERE category=? AND key=?" if where else " ORDER BY n"), *where)


def tables(path: Path) -> set[str]:
    return {name for (name,) in ask(path, "SELECT name FROM sqlite_schema WHERE type='table'")}


def test_a_document_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store(SqliteBackend(path)) as store:
        store.put(
            "checkpoint", "ckpt-e-0", {"id": "ckpt-e-0", "step": 3, "ok": True, "none": None, "name": "über 世界"}
        )
        ((name, category, key, data, created, updated),) = rows(path, "checkpoint", "ckpt-e-0")
        assert (name, category, key) == ("checkpoint:ckpt-e-0", "checkpoint", "ckpt-e-0")
        assert json.loads(data) == {"id": "ckpt-e-0", "step": 3, "ok": True, "none": None, "name": "über 世界"}
        assert "über 世界" in data
        assert datetime.fromisoformat(created).tzinfo is not None
        assert created <= updated
        store.put("checkpoint", "ckpt-e-0", {"id": "ckpt-e-0", "step": 4})
        ((_, _, _, data, again, updated),) = rows(path, "checkpoint", "ckpt-e-0")
        assert json.loads(data)["step"] == 4
        assert again == created <= updated
        assert store.remove("checkpoint", "ckpt-e-0")
        assert rows(path) == []


def test_large_values_are_in_their_places(tmp_path: Path) -> None:
    """They are stored apart; whoever reads the row does not see that."""
    path = tmp_path / "store.db"
    value = {
        "blob": "b" * 9000,
        "many": [{"i": i, "text": "t" * 40} for i in range(9000)],
        "map": {f"key {i}": i for i in range(700)},
    }
    with Store(SqliteBackend(path)) as store:
        store.put("c", "k", value)
        assert len(store.backend.object_ids()) > 100
        store.put("c", "other", value)
        assert [json.loads(row[3]) for row in rows(path)] == [value, value]
        assert verify(store).clean


def test_what_json_lacks_is_tagged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    at = datetime(2026, 11, 19, 12, 30, tzinfo=UTC)
    value = {"at": at, "price": Decimal("1.10"), "pair": (1, 2), "raw": b"\x00", "$tuple": "mine", "nan": float("nan")}
    with Store(SqliteBackend(path)) as store:
        store.put("c", "k", value)
    assert json.loads(rows(path)[0][3]) == {
        "at": {"$datetime": "2026-11-19T12:30:00Z"},
        "price": {"$decimal": "1.10"},
        "pair": {"$tuple": [1, 2]},
        "raw": {"$bytes": "AA=="},
        "$$tuple": "mine",
        "nan": {"$float": "nan"},
    }


def test_names_of_all_kinds(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    names = ["a:b", "'; DROP TABLE persistence; --", "nul\x00nul", "x" * 300, "\ud800", "A", "a", "é", "e\u0301"]
    with Store(SqliteBackend(path)) as store:
        for name in names:
            store.put("c", name, {"name": len(name)})
        assert store.names("c") == sorted(names)
        found = {row[2]: json.loads(row[3]) for row in rows(path)}
        assert found == {name.encode("utf-8", "backslashreplace").decode(): {"name": len(name)} for name in names}


def test_a_save_without_an_alias_makes_no_table(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store(SqliteBackend(path)) as store:
        store.append("r", {"n": 1})
        store.delete("r")
        assert "persistence" not in tables(path)
        store.put("c", "k", {})
        assert "persistence" in tables(path)


def test_bytes_without_a_meaning_have_no_row(tmp_path: Path) -> None:
    b = SqliteBackend(tmp_path / "store.db")
    assert b.commit([Save(b"r", 0, b"head", b"no body of the codec", alias=("c", "k"))]) == [Done()]
    assert "persistence" not in tables(tmp_path / "store.db")
    b.close()


def test_an_older_store_gets_it_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(GOLDEN / "format-1.db", path)
    with Store(SqliteBackend(path)) as store:
        assert "persistence" not in tables(path)
        before = store.names("config")
        store.put("config", "added later", {"v": 1})
        assert store.names("config") == sorted([*before, "added later"])
        assert [row[0] for row in rows(path)] == ["config:added later"]
        assert verify(store).clean


def test_a_row_that_was_changed_is_told_and_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store(SqliteBackend(path)) as store:
        store.put("c", "k", {"v": 1})
        assert store.backend.check() == []
        ask(path, "UPDATE persistence SET data='{\"v\": 2}'")
        assert store.get("c", "k") == {"v": 1}
        (said,) = store.backend.check()
        assert "c:k" in said


def test_two_processes_share_the_table(tmp_path: Path) -> None:
    """The one that did not make it removes its rows all the same."""
    path = tmp_path / "store.db"
    one, two = Store(SqliteBackend(path)), Store(SqliteBackend(path))
    one.append("r", {"n": 0})
    one.delete("r")
    two.put("c", "k", {"v": 1})
    assert one.remove("c", "k")
    assert rows(path) == []
    one.close()
    two.close()
