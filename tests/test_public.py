"""The public surface is a decision: a name enters or leaves `knotline` only together with this list."""

from __future__ import annotations

import builtins

import knotline

# Sorted as `sorted()` does it.
EXPECTED: list[str] = [
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


def test_the_contents_page_is_exactly_this() -> None:
    assert sorted(knotline.__all__) == EXPECTED


def test_the_list_is_sorted_and_has_no_doubles() -> None:
    assert sorted(set(EXPECTED)) == EXPECTED


def test_each_name_is_there() -> None:
    assert [name for name in EXPECTED if not hasattr(knotline, name)] == []


def test_a_star_import_gives_them_all() -> None:
    names: dict[str, object] = {}
    exec("from knotline import *", names)
    assert sorted(names.keys() - {"__builtins__"}) == EXPECTED


def test_no_name_shadows_a_builtin() -> None:
    assert set(EXPECTED) & set(dir(builtins)) == set()
