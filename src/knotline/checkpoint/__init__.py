"""The seeds' classes, asynchronous and thin over the store. So far: the storages."""

from __future__ import annotations

from knotline.checkpoint.adapter import AdapterBackend
from knotline.checkpoint.base import BaseStorage
from knotline.checkpoint.storage import (
    EncryptedStorage,
    JSONBackend,
    JSONStorage,
    MemoryStorage,
    SQLiteBackend,
    SQLiteStorage,
    StorageBackend,
    create_storage_from_config,
)

__all__ = [
    "AdapterBackend",
    "BaseStorage",
    "EncryptedStorage",
    "JSONBackend",
    "JSONStorage",
    "MemoryStorage",
    "SQLiteBackend",
    "SQLiteStorage",
    "StorageBackend",
    "create_storage_from_config",
]
