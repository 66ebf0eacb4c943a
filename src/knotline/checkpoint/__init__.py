"""The promised classes, asynchronous and thin over the timeline: storages, persistence, checkpoints, tracking."""

from __future__ import annotations

from knotline.checkpoint.adapter import AdapterBackend
from knotline.checkpoint.base import BaseStorage
from knotline.checkpoint.manager import CheckpointManager
from knotline.checkpoint.persistence import ConversationPersistence, PersistenceManager
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
from knotline.checkpoint.tracker import ExecutionTracker

__all__ = [
    "AdapterBackend",
    "BaseStorage",
    "CheckpointManager",
    "ConversationPersistence",
    "EncryptedStorage",
    "ExecutionTracker",
    "JSONBackend",
    "JSONStorage",
    "MemoryStorage",
    "PersistenceManager",
    "SQLiteBackend",
    "SQLiteStorage",
    "StorageBackend",
    "create_storage_from_config",
]
