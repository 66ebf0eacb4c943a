"""Names of files for names of anything: safe on every file system, and never the same for two.

A plain name stands for itself. Plain are lower case ASCII letters, digits and `-`, `_`, `.` in the middle: no file
system folds, normalises, trims or reserves those. Every other name becomes its plain part and a hash of all of it,
with a `~` between, which no plain name has. The exact name is in the file.
"""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Final

from blake3 import blake3

__all__ = ["Names", "entry_rev", "safe"]

_PLAIN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}", re.ASCII)
_OTHER: Final = re.compile(r"[^a-z0-9_-]+", re.ASCII)
# What Windows takes for a device, with any ending; and the folders of the store.
_DEVICES: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.ASCII)
_OURS: Final = frozenset(("log", "objects"))
_SHOWN: Final = 40
_HASH: Final = 15
_ENTRY: Final = re.compile(r"(\d{8,10})\.json", re.ASCII)
_RUN: Final = b"r"


def safe(name: str) -> str:
    return _safe(name, name.encode("utf-8", "surrogatepass"))


def _safe(name: str, exact: bytes) -> str:
    plain = _PLAIN.fullmatch(name) is not None and name[-1] not in ".-" and not _DEVICES.fullmatch(name)
    if plain and name not in _OURS:
        return name
    shown = _OTHER.sub("-", name.lower()).strip("-_")[:_SHOWN].strip("-_")
    mark = base64.b32encode(blake3(exact).digest(_HASH)).decode().lower()
    return f"{shown or 'x'}~{mark}"


def entry_rev(name: str) -> int | None:
    found = _ENTRY.fullmatch(name)
    return None if found is None else int(found[1])


class Names:
    """Paths below the store's folder, as text: they are made for every call."""

    def __init__(self, folder: Path) -> None:
        self.root = os.fspath(folder)
        self.log = f"{self.root}/log"
        self.objects = f"{self.root}/objects"
        self.inner = f"{self.root}/.store"
        self.format = f"{self.inner}/format.json"
        self.journal = f"{self.inner}/journal"
        self.users = f"{self.inner}/users.lock"
        self.leases_lock = f"{self.inner}/leases.lock"
        self.leases = f"{self.inner}/leases"

    @staticmethod
    def run_name(run: bytes) -> str:
        """The name itself for a run with a plain name; see `docs/format.md` for the keys."""
        if run[:1] == _RUN:
            text = run[1:].decode("ascii", "replace")
            made = _safe(text, run)
            if made == text:
                return made
        return _safe(f"{run[1:].decode('ascii', 'replace')}/", run)

    def run(self, run: bytes) -> str:
        return f"{self.log}/{self.run_name(run)}"

    @staticmethod
    def entry(folder: str, rev: int) -> str:
        return f"{folder}/{rev:08}.json"

    @staticmethod
    def attached(folder: str) -> str:
        return f"{folder}/attached"

    def attachment(self, folder: str, rev: int, task: bytes, idx: int) -> str:
        name = _safe(f"{task.decode('ascii', 'replace')}/", b"%d %d %b" % (rev, idx, task))
        return f"{self.attached(folder)}/{rev:08}-{name}.json"

    def shard(self, oid: bytes) -> str:
        return f"{self.objects}/{oid[:1].hex()}"

    def object(self, oid: bytes) -> str:
        return f"{self.objects}/{oid[:1].hex()}/{oid.hex()}"

    def lease(self, run: bytes) -> str:
        return f"{self.leases}/{self.run_name(run)}.json"

    def alias(self, folder: str, name: str) -> str:
        return f"{self.root}/{safe(folder)}/{safe(name)}.json"
