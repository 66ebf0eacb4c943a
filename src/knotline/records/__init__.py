"""Frozen nouns that every room shares. No I/O and no clocks: time and ids come in as arguments."""

from __future__ import annotations

from knotline.records.checkpoints import (
    STATUSES,
    Checkpoint,
    CheckpointHeader,
    CheckpointMetadata,
    checkpoint_id,
    moment,
)
from knotline.records.history import ExecutionHistory, RunSummary, StepRecord
from knotline.records.moves import NOWHERE, OPS, Header, Op

__all__ = [
    "NOWHERE",
    "OPS",
    "STATUSES",
    "Checkpoint",
    "CheckpointHeader",
    "CheckpointMetadata",
    "ExecutionHistory",
    "Header",
    "Op",
    "RunSummary",
    "StepRecord",
    "checkpoint_id",
    "moment",
]
