"""A way back for long-running work: every state of a run is kept, survives `kill -9`, and can be returned to.

This page lists what there is; each name is loaded from its room when it is first used, so that importing the
package costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knotline import errors as errors
    from knotline.backends import MemoryBackend as MemoryBackend
    from knotline.backends import SqliteBackend as SqliteBackend
    from knotline.checkpoint import AdapterBackend as AdapterBackend
    from knotline.checkpoint import BaseStorage as BaseStorage
    from knotline.checkpoint import CheckpointManager as CheckpointManager
    from knotline.checkpoint import ConversationPersistence as ConversationPersistence
    from knotline.checkpoint import EncryptedStorage as EncryptedStorage
    from knotline.checkpoint import ExecutionTracker as ExecutionTracker
    from knotline.checkpoint import JSONBackend as JSONBackend
    from knotline.checkpoint import JSONStorage as JSONStorage
    from knotline.checkpoint import MemoryStorage as MemoryStorage
    from knotline.checkpoint import PersistenceManager as PersistenceManager
    from knotline.checkpoint import SQLiteBackend as SQLiteBackend
    from knotline.checkpoint import SQLiteStorage as SQLiteStorage
    from knotline.checkpoint import StorageBackend as StorageBackend
    from knotline.checkpoint import create_storage_from_config as create_storage_from_config
    from knotline.client import Knotline as Knotline
    from knotline.client import open as open  # noqa: A004 - `knotline.open`, as `gzip.open`
    from knotline.codec import FrozenDict as FrozenDict
    from knotline.codec import FrozenList as FrozenList
    from knotline.codec import freeze as freeze
    from knotline.codec import serializable as serializable
    from knotline.config import Settings as Settings
    from knotline.config import load_settings as load_settings
    from knotline.config import open_backend as open_backend
    from knotline.policy import CleanReport as CleanReport
    from knotline.policy import Redaction as Redaction
    from knotline.policy import Retention as Retention
    from knotline.records import Checkpoint as Checkpoint
    from knotline.records import CheckpointHeader as CheckpointHeader
    from knotline.records import CheckpointMetadata as CheckpointMetadata
    from knotline.records import ExecutionHistory as ExecutionHistory
    from knotline.records import Header as Header
    from knotline.records import StepRecord as StepRecord
    from knotline.runner import Context as Context
    from knotline.runner import ExecutionRecovery as ExecutionRecovery
    from knotline.runner import ExecutionResult as ExecutionResult
    from knotline.runner import Step as Step
    from knotline.runner import WorkflowRegistry as WorkflowRegistry
    from knotline.runner import execute_with_checkpoints as execute_with_checkpoints
    from knotline.runner import run_step as run_step
    from knotline.store import Held as Held
    from knotline.store import Store as Store
    from knotline.store import copy_store as copy_store
    from knotline.store import export_run as export_run
    from knotline.store import export_store as export_store
    from knotline.store import import_file as import_file
    from knotline.store import sweep as sweep
    from knotline.store import verify as verify
    from knotline.store.gate import Gate as Gate
    from knotline.timeline import Diff as Diff
    from knotline.timeline import Timeline as Timeline

__version__ = "0.1.0.dev0"

__all__ = [
    "AdapterBackend",
    "BaseStorage",
    "Checkpoint",
    "CheckpointHeader",
    "CheckpointManager",
    "CheckpointMetadata",
    "CleanReport",
    "Context",
    "ConversationPersistence",
    "Diff",
    "EncryptedStorage",
    "ExecutionHistory",
    "ExecutionRecovery",
    "ExecutionResult",
    "ExecutionTracker",
    "FrozenDict",
    "FrozenList",
    "Gate",
    "Header",
    "Held",
    "JSONBackend",
    "JSONStorage",
    "Knotline",
    "MemoryBackend",
    "MemoryStorage",
    "PersistenceManager",
    "Redaction",
    "Retention",
    "SQLiteBackend",
    "SQLiteStorage",
    "Settings",
    "SqliteBackend",
    "Step",
    "StepRecord",
    "StorageBackend",
    "Store",
    "Timeline",
    "WorkflowRegistry",
    "copy_store",
    "create_storage_from_config",
    "errors",
    "execute_with_checkpoints",
    "export_run",
    "export_store",
    "freeze",
    "import_file",
    "load_settings",
    "open_backend",
    "run_step",
    "serializable",
    "sweep",
    "verify",
]

_ROOMS = {
    # Not in `__all__`: a star import must not shadow a builtin.
    "open": "client",
    "Knotline": "client",
    "AdapterBackend": "checkpoint",
    "BaseStorage": "checkpoint",
    "Checkpoint": "records",
    "CheckpointHeader": "records",
    "CheckpointManager": "checkpoint",
    "CheckpointMetadata": "records",
    "CleanReport": "policy",
    "Context": "runner",
    "ConversationPersistence": "checkpoint",
    "Diff": "timeline",
    "EncryptedStorage": "checkpoint",
    "ExecutionHistory": "records",
    "ExecutionRecovery": "runner",
    "ExecutionResult": "runner",
    "ExecutionTracker": "checkpoint",
    "FrozenDict": "codec",
    "FrozenList": "codec",
    "Gate": "store.gate",
    "Header": "records",
    "Held": "store",
    "JSONBackend": "checkpoint",
    "JSONStorage": "checkpoint",
    "MemoryBackend": "backends",
    "MemoryStorage": "checkpoint",
    "PersistenceManager": "checkpoint",
    "Redaction": "policy",
    "Retention": "policy",
    "SQLiteBackend": "checkpoint",
    "SQLiteStorage": "checkpoint",
    "Settings": "config",
    "SqliteBackend": "backends",
    "Step": "runner",
    "StepRecord": "records",
    "StorageBackend": "checkpoint",
    "Store": "store",
    "Timeline": "timeline",
    "WorkflowRegistry": "runner",
    "copy_store": "store",
    "create_storage_from_config": "checkpoint",
    "execute_with_checkpoints": "runner",
    "export_run": "store",
    "export_store": "store",
    "freeze": "codec",
    "import_file": "store",
    "load_settings": "config",
    "open_backend": "config",
    "run_step": "runner",
    "serializable": "codec",
    "sweep": "store",
    "verify": "store",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("knotline.errors")
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module 'knotline' has no attribute {name!r}")
    found: object = getattr(import_module(f"knotline.{room}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
