"""A list of steps, run with a checkpoint after each; and one step alone, on a checkpoint's data."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

from knotline.checkpoint import CheckpointManager, PersistenceManager, create_storage_from_config
from knotline.errors import NotFound
from knotline.records import Checkpoint
from knotline.runner.linear import Driver, Notify, ShouldRetry
from knotline.runner.steps import Context, ExecutionResult, attempted, limits_of, named, tell

__all__ = ["execute_with_checkpoints", "remember", "remembered", "run_step", "step_on"]

_MOST: Final = 1000
# What was run by whom, so that the same process can retry without being told the steps again.
_run: weakref.WeakKeyDictionary[CheckpointManager, dict[str, list[Any]]] = weakref.WeakKeyDictionary()


def remember(manager: CheckpointManager, execution_id: str, steps: list[Any]) -> None:
    known = _run.setdefault(manager, {})
    known[execution_id] = steps
    while len(known) > _MOST:
        del known[next(iter(known))]


def remembered(manager: CheckpointManager, execution_id: str) -> list[Any] | None:
    return _run.get(manager, {}).get(execution_id)


async def execute_with_checkpoints(
    steps: Iterable[Any],
    *,
    manager: CheckpointManager | None = None,
    execution_id: str | None = None,
    workflow_id: str | None = None,
    state: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    should_retry: ShouldRetry | None = None,
    on_failure: Notify | None = None,
) -> str:
    """Run the steps, with a checkpoint after each that succeeds; gives the execution's id, also when it failed.

    Without a manager, the storage that the configuration names is opened for it, and closed again. How it went is in
    `ExecutionTracker.get_execution_history`; `ExecutionRecovery` goes on from where it stopped.
    """
    every = named(steps)
    run = execution_id or f"exec-{uuid4().hex[:12]}"
    own = None
    if manager is None:
        own = PersistenceManager(create_storage_from_config())
        manager = CheckpointManager(own)
    try:
        remember(manager, run, every)
        driver = Driver(manager=manager, workflow_id=workflow_id, should_retry=should_retry, on_failure=on_failure)
        shared = Context(dict(state or {}), dict(context or {}), dict(variables or {}), execution_id=run)
        begun = {"state": shared.state, "context": shared.context, "variables": shared.variables}
        await manager.persistence.say(
            run,
            "running",
            workflow_id=workflow_id,
            plan=[str(step.name) for step in every],
            initial={name: value for name, value in begun.items() if value},
        )
        await driver.run(every, execution_id=run, context=shared)
    finally:
        if own is not None:
            await own.aclose()
    return run


async def run_step(manager: CheckpointManager, checkpoint_id: str, step: Any) -> ExecutionResult:
    """One step alone, on that checkpoint's data. Nothing is recorded, so it may be done again and again."""
    checkpoint = await manager.load_checkpoint(checkpoint_id)
    if checkpoint is None:
        raise NotFound("checkpoint", checkpoint_id)
    return await step_on(checkpoint, step)


async def step_on(checkpoint: Checkpoint, step: Any) -> ExecutionResult:
    """As `run_step`, on a checkpoint that was loaded."""
    (step,) = named([step])
    context = Context.from_checkpoint(checkpoint)
    context.step_index = checkpoint.step_index + 1
    tell(step, index=context.step_index)
    try:
        output = await attempted(step, context, timeout=limits_of(step).timeout)
    except Exception as error:  # noqa: BLE001 - whatever the step raises is what its author wants to see
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return ExecutionResult(
            success=False, error=text, execution_id=checkpoint.execution_id, checkpoint_id=checkpoint.id, cause=error
        )
    context.merge(output)
    return ExecutionResult(
        success=True,
        output=output,
        execution_id=checkpoint.execution_id,
        checkpoint_id=checkpoint.id,
        step_index=context.step_index,
    )
