"""`ExecutionRecovery`: go on, try again, go back. What cannot be recovered is a result with its reason and the ways on.

Before anything runs, the checkpoint is read whole (every byte is checked) and the steps that are to follow are held
against those that the run was begun with.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, cast

from knotline import events
from knotline.checkpoint import CheckpointManager, PersistenceManager
from knotline.checkpoint.manager import last_successful
from knotline.codec import private
from knotline.errors import Error, FlowChanged, NotFound
from knotline.records import Checkpoint, moment
from knotline.runner.decide import changed
from knotline.runner.execute import remember, remembered
from knotline.runner.linear import Driver, Notify, ShouldRetry
from knotline.runner.steps import Context, ExecutionResult, named
from knotline.runner.ways import with_ways
from knotline.runner.workflows import WORKFLOWS, WorkflowRegistry
from knotline.timeline import Moved, Timeline

__all__ = ["ExecutionRecovery"]

OnChange = Literal["refuse", "continue"]
_RETRIES: Final = 3
_ENDED: Final = ("success", "cancelled")
"""A run that has ended well does not fail because somebody asked for what is not there."""


class ExecutionRecovery:
    """`on_failure` is called with the result when a run could not be recovered; it may be a coroutine function."""

    def __init__(
        self,
        checkpoint_manager: CheckpointManager,
        persistence_manager: PersistenceManager | None = None,
        *,
        workflows: WorkflowRegistry = WORKFLOWS,
        should_retry: ShouldRetry | None = None,
        on_failure: Notify | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.checkpoint_manager = checkpoint_manager
        self.persistence = persistence_manager or checkpoint_manager.persistence
        self._workflows = workflows
        self._should_retry = should_retry
        self._on_failure = on_failure
        self._sleep = sleep
        self._chance = chance
        self._timer = timer

    # -- go on -----------------------------------------------------------------------------------------------

    async def resume_from_checkpoint(
        self,
        checkpoint_id: str,
        remaining_steps: Iterable[Any] | object | None = None,
        agent_instance: object | None = None,
        *,
        on_change: OnChange = "refuse",
        max_retries: int | None = None,
        backoff: float | None = None,
        max_backoff: float | None = None,
    ) -> ExecutionResult:
        """Go on after this checkpoint: with the steps that remain, with an agent that takes its state, or with the
        registered workflow. Checkpoints after it leave the view, as by a rollback.
        """
        steps, agent = _told_apart(remaining_steps, agent_instance)
        return await self._recover(
            "resume",
            lambda timeline: timeline.load(checkpoint_id),
            missing=f"Checkpoint {checkpoint_id} not found",
            steps=steps,
            agent=agent,
            on_change=on_change,
            retries=max_retries,
            backoff=backoff,
            max_backoff=max_backoff,
        )

    # -- try again -------------------------------------------------------------------------------------------

    async def retry_from_step(
        self,
        execution_id: str,
        step_index: int,
        *old: object,
        remaining_steps: Iterable[Any] | None = None,
        agent_instance: object | None = None,
        max_retries: int = _RETRIES,
        backoff: float | None = None,
        max_backoff: float | None = None,
        on_change: OnChange = "refuse",
    ) -> ExecutionResult:
        """Once more from this step, on the last successful checkpoint before it: `max_retries` attempts at most.

        The step itself is the first of `remaining_steps`.
        """
        if len(old) > 1:
            raise TypeError("retry_from_step takes the execution and the step's index; the rest by name")
        for said in old:
            if type(said) is int:
                max_retries = said
            elif isinstance(said, list | tuple):
                remaining_steps = cast("Iterable[Any]", said)
            else:
                agent_instance = said

        return await self._recover(
            "retry",
            lambda timeline: _before(timeline, execution_id, step_index),
            missing=f"No successful checkpoint found before step {step_index}",
            run=execution_id,
            at=step_index,
            steps=None if remaining_steps is None else list(remaining_steps),
            agent=agent_instance,
            on_change=on_change,
            retries=max_retries,
            backoff=backoff,
            max_backoff=max_backoff,
        )

    async def _recover(
        self,
        why: Literal["resume", "retry"],
        find: Callable[[Timeline], Checkpoint],
        *,
        missing: str,
        steps: list[Any] | None,
        agent: object | None,
        on_change: OnChange,
        retries: int | None,
        backoff: float | None,
        max_backoff: float | None,
        run: str | None = None,
        at: int | None = None,
    ) -> ExecutionResult:
        driver = Driver(
            manager=self.checkpoint_manager,
            retries=retries,
            first_retries=None if why == "resume" or retries is None else max(retries - 1, 0),
            backoff=backoff,
            max_backoff=max_backoff,
            should_retry=self._should_retry,
            on_failure=self._on_failure,
            sleep=self._sleep,
            chance=self._chance,
            timer=self._timer,
        )
        checkpoint: Checkpoint | None = None
        try:
            checkpoint = await self.persistence.cross(find)
            run = checkpoint.execution_id
            if agent is not None:
                return await self._into(agent, checkpoint)
            start = checkpoint.step_index + 1 if steps is None or at is None else at
            todo, plan, workflow = await self._todo(checkpoint, steps, on_change, start=start, at=at)
            attempts = await self._stand(checkpoint, why, plan, workflow)
            result = await replace(driver, workflow_id=workflow).run(
                todo,
                execution_id=run,
                context=Context.from_checkpoint(checkpoint),
                start=start,
                attempts=attempts,
                stands_on=checkpoint.id or None,
            )
        except NotFound as error:
            text = missing if error.kind in ("checkpoint", "execution") else f"Recovery failed: {error}"
            if error.kind in ("workflow", "steps"):
                text += "; give its remaining_steps, or register them as a workflow"
            return await self._lost(driver, run, checkpoint, text, error)
        except Exception as error:  # noqa: BLE001 - a failed recovery is a result, whatever it was
            return await self._lost(driver, run, checkpoint, f"Recovery failed: {error}", error)
        return result

    async def _into(self, agent: object, checkpoint: Checkpoint) -> ExecutionResult:
        heard = cast("Any", agent).restore_state_from_checkpoint(checkpoint)
        if inspect.isawaitable(heard):
            await heard
        timeline = await self.persistence.timeline()
        timeline.bus.emit(events.CHECKPOINT_RESTORED, checkpoint.execution_id, checkpoint_id=checkpoint.id)
        return ExecutionResult(
            success=True,
            output="Agent state restored from checkpoint.",
            execution_id=checkpoint.execution_id,
            checkpoint_id=checkpoint.id or None,
            step_index=checkpoint.step_index,
        )

    async def _todo(
        self, checkpoint: Checkpoint, steps: list[Any] | None, on_change: OnChange, *, start: int, at: int | None
    ) -> tuple[list[Any], list[str] | None, str | None]:
        """The steps that remain, held against the plan that the run was begun with; the plan and the workflow now."""
        run = checkpoint.execution_id
        plan, workflow = await self.persistence.cross(
            lambda timeline: (timeline.said(run, "plan"), timeline.said(run, "workflow"))
        )
        workflow = workflow or checkpoint.workflow_id
        if steps is None:
            known = remembered(self.checkpoint_manager, run)
            if workflow is not None and workflow in self._workflows:
                known = self._workflows.get(workflow)
            if known is None:
                raise NotFound("steps", run) if workflow is None else NotFound("workflow", workflow)
            if at is not None and at >= len(known):
                raise NotFound("step", at)
            steps = known[start:]
        steps = named(steps)
        if plan is None:
            return steps, None, workflow
        names = [str(step.name) for step in steps]
        if on_change == "refuse":
            differ = changed(plan, names, start)
            if differ:
                raise FlowChanged(run, tuple((it.index, it.recorded, it.asked) for it in differ))
        before = remembered(self.checkpoint_manager, run)
        if before is not None:
            remember(self.checkpoint_manager, run, [*before[:start], *steps])
        # Who went on with other steps is not asked about them again.
        return steps, [*plan[:start], *names], workflow

    async def _stand(
        self, checkpoint: Checkpoint, why: Literal["resume", "retry"], plan: list[str] | None, workflow: str | None
    ) -> Counter[int]:
        """Make the checkpoint the run's newest, and say that it goes on. Gives how often each step was tried."""
        run = checkpoint.execution_id
        newest = await self.persistence.cross(lambda timeline: timeline.newest(run))
        if newest is not None and newest.id != checkpoint.id:
            if checkpoint.id:
                await self.persistence.rollback(checkpoint.id, why=why)
            else:
                await self.persistence.restart(run, why=why)
        await self.persistence.say(run, "running", why=why, plan=plan, workflow_id=workflow)
        history = await self.persistence.cross(lambda timeline: timeline.history(run, state=False))
        return Counter(it.step_index for it in history.steps)

    # -- go back ---------------------------------------------------------------------------------------------

    async def rollback_to_checkpoint(self, checkpoint_id: str) -> ExecutionResult:
        """Later checkpoints and their history leave the view; `undo` brings them back."""
        try:
            moved = await self.persistence.rollback(checkpoint_id)
        except NotFound:
            return ExecutionResult(success=False, error=f"Checkpoint {checkpoint_id} not found")
        except Error as error:
            return ExecutionResult(success=False, error=f"Recovery failed: {error}", cause=error)
        newest = moved.checkpoint
        return ExecutionResult(
            success=True,
            output=f"Rolled back to {checkpoint_id}.",
            execution_id=moved.execution_id,
            checkpoint_id=checkpoint_id if newest is None else newest.id,
            step_index=None if newest is None else newest.step_index,
        )

    async def undo(self, execution_id: str) -> ExecutionResult:
        """Take the last move back: a rollback, a retry, a deletion, a save."""
        return await self._step(execution_id, self.persistence.undo)

    async def redo(self, execution_id: str) -> ExecutionResult:
        return await self._step(execution_id, self.persistence.redo)

    async def _step(self, execution_id: str, verb: Callable[[str], Awaitable[Moved]]) -> ExecutionResult:
        try:
            moved = await verb(execution_id)
        except Error as error:
            return ExecutionResult(success=False, error=str(error), execution_id=execution_id, cause=error)
        newest = moved.checkpoint
        return ExecutionResult(
            success=True, execution_id=execution_id, checkpoint_id=None if newest is None else newest.id
        )

    # -- by hand ---------------------------------------------------------------------------------------------

    async def edit_and_continue(
        self,
        checkpoint_id: str,
        changes: Mapping[str, Any] | Callable[[Context], Any],
        *,
        remaining_steps: Iterable[Any] | None = None,
        on_change: OnChange = "refuse",
    ) -> ExecutionResult:
        """Change the state of a checkpoint (a mapping is merged, a function gets the context) and go on from there.

        The edit is a checkpoint of its own; the original stays as it was.
        """
        try:
            checkpoint = await self.checkpoint_manager.load_checkpoint(checkpoint_id)
            if checkpoint is None:
                return ExecutionResult(success=False, error=f"Checkpoint {checkpoint_id} not found")
            context = Context.from_checkpoint(checkpoint)
            if callable(changes):
                heard = changes(context)
                context.merge(await heard if inspect.isawaitable(heard) else heard)
            else:
                context.merge(changes)
            made = await self._by_hand(
                checkpoint, checkpoint.step_name, checkpoint.step_index, context, "edited by hand"
            )
        except Exception as error:  # noqa: BLE001 - a failed recovery is a result, whatever it was
            return ExecutionResult(success=False, error=f"Recovery failed: {error}", cause=error)
        return await self.resume_from_checkpoint(made.id, remaining_steps, on_change=on_change)

    async def skip_step(
        self,
        execution_id: str,
        step_index: int,
        *,
        remaining_steps: Iterable[Any] | None = None,
        on_change: OnChange = "refuse",
    ) -> ExecutionResult:
        """Go on as if this step had been done: the state before it stays. `remaining_steps` are those after it."""

        def find(timeline: Timeline) -> tuple[Checkpoint, Any]:
            return _before(timeline, execution_id, step_index), timeline.said(execution_id, "plan")

        try:
            before, plan = await self.persistence.cross(find)
            name = plan[step_index] if plan and step_index < len(plan) else f"step {step_index}"
            context = Context.from_checkpoint(before)
            made = await self._by_hand(before, name, step_index, context, "skipped by hand")
        except NotFound as error:
            text = f"No successful checkpoint found before step {step_index}"
            return ExecutionResult(success=False, error=text, execution_id=execution_id, cause=error)
        except Error as error:
            text = f"Recovery failed: {error}"
            return ExecutionResult(success=False, error=text, execution_id=execution_id, cause=error)
        return await self.resume_from_checkpoint(made.id, remaining_steps, on_change=on_change)

    async def _by_hand(
        self, before: Checkpoint, step_name: str, step_index: int, context: Context, description: str
    ) -> Checkpoint:
        """In the place of what followed `before`. What cannot be saved is refused before anything moves."""
        for part, value in (("state", context.state), ("context", context.context), ("variables", context.variables)):
            private(value, part)
        if before.id:
            await self.persistence.rollback(before.id, why="retry")
        else:
            await self.persistence.restart(before.execution_id, why="retry")
        return await self.checkpoint_manager.create_checkpoint(
            before.execution_id,
            step_name,
            step_index,
            context.state,
            context.context,
            context.variables,
            metadata={"description": description},
            messages=context.messages,
            workflow_id=before.workflow_id,
        )

    # -- when it cannot be -----------------------------------------------------------------------------------

    async def _lost(
        self, driver: Driver, run: str | None, checkpoint: Checkpoint | None, text: str, error: Exception
    ) -> ExecutionResult:
        """Marked failed (if there is such a run), told to whoever wanted to know, with the ways on."""
        result = ExecutionResult(
            success=False,
            error=text,
            execution_id=run,
            checkpoint_id=None if checkpoint is None else checkpoint.id or None,
            step_index=None if checkpoint is None else checkpoint.step_index + 1,
            cause=error,
        )
        if run is not None and not isinstance(error, FlowChanged):
            # Nothing may be known of it, or nothing can be written: the result says why all the same.
            with contextlib.suppress(Error):
                stands = await self.persistence.cross(lambda timeline: timeline.status(run))
                if stands.status not in _ENDED:
                    await self.persistence.say(run, "failed", error=text)
        result = with_ways(result)
        await driver.notify(result)
        return result


def _before(timeline: Timeline, execution_id: str, step_index: int) -> Checkpoint:
    """What a step would run on: the last successful checkpoint before it, or what the run began with."""
    found = last_successful(timeline, execution_id, step_index)
    if found is not None:
        return timeline.read(found)
    if step_index > 0:
        raise NotFound("checkpoint", f"{execution_id} before step {step_index}")
    timeline.status(execution_id)
    began = timeline.initial(execution_id)
    return Checkpoint(
        id="",
        execution_id=execution_id,
        step_name="",
        step_index=-1,
        timestamp=moment(timeline.store.clock()),
        state=began.get("state", {}),
        context=began.get("context", {}),
        variables=began.get("variables", {}),
    )


def _told_apart(said: object, agent: object | None) -> tuple[list[Any] | None, object | None]:
    """The second positional has been both: steps that remain, and an agent."""
    if said is None or agent is not None:
        return (None if said is None else list(cast("Iterable[Any]", said))), agent
    if hasattr(said, "restore_state_from_checkpoint"):
        return None, said
    return list(cast("Iterable[Any]", said)), None
