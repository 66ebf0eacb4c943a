"""The table `persistence`: documents as anybody with an SQLite shell would look for them.

    SELECT id, category, key, data, created_at, updated_at FROM persistence WHERE category='config' AND key='main'

It is written with the entry, in the same transaction, and is never read back. A store gets the table with the first
save that has an alias, so that older stores stay as they are until then.
"""

from __future__ import annotations

from datetime import UTC, datetime

from knotline.backends.contract import Save
from knotline.backends.sqlite_file import Cursor

__all__ = ["disagreeing", "exists", "hide", "show"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS persistence(n INTEGER PRIMARY KEY, id TEXT NOT NULL, category TEXT NOT NULL,
    key TEXT NOT NULL, data TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    run INT NOT NULL, rev INT NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS persistence_key ON persistence(category, key, run);
CREATE INDEX IF NOT EXISTS persistence_rev ON persistence(run, rev);
"""
_ROW = """
INSERT INTO persistence(id, category, key, data, run, rev, created_at, updated_at) VALUES(?, ?, ?, ?, ?, ?, ?7, ?7)
    ON CONFLICT(category, key, run) DO UPDATE SET rev=excluded.rev, data=excluded.data, updated_at=excluded.updated_at
"""


def exists(at: Cursor) -> bool:
    return bool(at.execute("SELECT 1 FROM sqlite_schema WHERE type='table' AND name='persistence'").fetchall())


def show(at: Cursor, run: int, save: Save, alias: tuple[str, str], *, ready: bool) -> bool:
    """The row of a save that is being inserted. What is no whole state has none; `ready`: the table is there.

    Says whether the table is there now.
    """
    own = dict(save.objects)
    text = _text(at, save.body, own)
    if text is None:
        return ready
    if not ready:
        at.execute(_SCHEMA).fetchall()
    category, key = map(_plain, alias)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    at.execute(_ROW, (f"{category}:{key}", category, key, text, run, save.rev, now))
    return True


def hide(at: Cursor, run: int, below: int) -> None:
    at.execute("DELETE FROM persistence WHERE run=? AND rev<?", (run, below))


def disagreeing(at: Cursor) -> list[str]:
    """Rows that do not show what is stored. Somebody else wrote to them: nothing here reads them."""
    if not exists(at):
        return []
    found: list[str] = []
    rows = at.execute(
        "SELECT p.id, p.data, l.body FROM persistence p LEFT JOIN log l ON l.run=p.run AND l.rev=p.rev"
    ).fetchall()
    for name, text, body in rows:
        if body is None or _text(at, body, {}) != text:
            found.append(f"the row {name!r} of the table persistence does not show what is stored")
    return found


def _text(at: Cursor, body: bytes, own: dict[bytes, bytes]) -> str | None:
    from knotline.backends.files_entry import state_text  # noqa: PLC0415 - a store that nobody reads so does without

    def stored(oid: bytes) -> bytes | None:
        if oid in own:
            return own[oid]
        rows = at.execute("SELECT data FROM obj WHERE id=?", (oid,)).fetchall()
        return rows[0][0] if rows else None

    text = state_text(body, stored, indent=0)
    return None if text is None else text.decode()


def _plain(name: str) -> str:
    """Lone surrogates are in no SQLite text."""
    return name.encode("utf-8", "backslashreplace").decode()
