"""Where bytes rest. This page lists the contract's words and the backends that ship.

`SqliteBackend` is looked up on first use, so that importing this room does not import its engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from knotline.backends.contract import (
    MAX_REV,
    MAX_RUN_KEY,
    MAX_TOKEN,
    Attach,
    Attachment,
    Backend,
    Conflicted,
    Done,
    Entry,
    Failed,
    Lease,
    Outcome,
    Save,
    Write,
)
from knotline.backends.memory import MemoryBackend

if TYPE_CHECKING:
    from knotline.backends.encrypted import EncryptedBackend
    from knotline.backends.sqlite import SqliteBackend

__all__ = [
    "MAX_REV",
    "MAX_RUN_KEY",
    "MAX_TOKEN",
    "Attach",
    "Attachment",
    "Backend",
    "Conflicted",
    "Done",
    "EncryptedBackend",
    "Entry",
    "Failed",
    "Lease",
    "MemoryBackend",
    "Outcome",
    "Save",
    "SqliteBackend",
    "Write",
]


def __getattr__(name: str) -> object:
    if name == "EncryptedBackend":
        from knotline.backends.encrypted import EncryptedBackend  # noqa: PLC0415 - few stores are encrypted

        return EncryptedBackend
    if name == "SqliteBackend":
        from knotline.backends.sqlite import SqliteBackend  # noqa: PLC0415 - imports the engine

        return SqliteBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
