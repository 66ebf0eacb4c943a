"""The manual ways on from a run that failed, by name: each is a method of `ExecutionRecovery` with its arguments."""

from __future__ import annotations

from dataclasses import replace

from knotline.errors import FlowChanged
from knotline.runner.steps import ExecutionResult, Way

__all__ = ["with_ways"]


def with_ways(result: ExecutionResult) -> ExecutionResult:
    run, index, newest = result.execution_id, result.step_index, result.checkpoint_id
    ways: list[Way] = []
    if isinstance(result.cause, FlowChanged) and newest is not None:
        text = "go on with the changed steps"
        ways.append(Way("resume_from_checkpoint", {"checkpoint_id": newest, "on_change": "continue"}, text))
    if run is not None and index is not None:
        ways.append(Way("retry_from_step", {"execution_id": run, "step_index": index}, f"retry from step {index}"))
        if newest is not None:
            text = f"edit the state of {newest} and go on"
            ways.append(Way("edit_and_continue", {"checkpoint_id": newest}, text))
        ways.append(Way("skip_step", {"execution_id": run, "step_index": index}, f"skip step {index}"))
    return replace(result, ways=tuple(ways))
