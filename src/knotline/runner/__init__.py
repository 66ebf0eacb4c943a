"""Work that is run step by step and recorded: what happens next is a pure table, and drivers do it."""

from __future__ import annotations

from knotline.runner.execute import execute_with_checkpoints, run_step
from knotline.runner.recovery import ExecutionRecovery
from knotline.runner.steps import Context, ExecutionResult, Step, Way
from knotline.runner.workflows import WORKFLOWS, WorkflowRegistry

__all__ = [
    "WORKFLOWS",
    "Context",
    "ExecutionRecovery",
    "ExecutionResult",
    "Step",
    "Way",
    "WorkflowRegistry",
    "execute_with_checkpoints",
    "run_step",
]
