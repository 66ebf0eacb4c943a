"""The driver of a line of steps: does what `decide` says, and writes everything down before it goes on."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knotline import events
from knotline.checkpoint import CheckpointManager
from knotline.checkpoint.tracker import failed, succeeded
from knotline.errors import Unstorable
from knotline.runner.decide import NEXT, Attempted, Backoff, Next, after, begins
from knotline.runner.steps import Context, ExecutionResult, Limits, attempted, limits_of, tell
from knotline.runner.ways import with_ways

__all__ = ["Driver", "Notify", "ShouldRetry"]

ShouldRetry = Callable[[BaseException], bool]
Notify = Callable[[ExecutionResult], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Time, chance and sleep come in, so that a test decides them."""

    manager: CheckpointManager
    workflow_id: str | None = None
    retries: int | None = None
    """Instead of what each step says."""
    first_retries: int | None = None
    """Of the first step alone: one that is run because it failed before has had its first attempt."""
    backoff: float | None = None
    max_backoff: float | None = None
    should_retry: ShouldRetry | None = None
    on_failure: Notify | None = None
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: Callable[[], float] = field(default=random.random)
    timer: Callable[[], float] = field(default=time.perf_counter)

    async def run(
        self,
        steps: Sequence[Any],
        *,
        execution_id: str,
        context: Context,
        start: int = 0,
        attempts: Mapping[int, int] | None = None,
        stands_on: str | None = None,
    ) -> ExecutionResult:
        """From the step at index `start`, which `steps` begins with. `attempts`: how often each was tried before."""
        before = attempts or {}
        timeline = await self.manager.persistence.timeline()
        output: Any = None
        newest = stands_on
        index, last = start, start + len(steps)
        attempt = first = before.get(start, 0) + 1
        while True:
            todo = NEXT[begins(index, last)]
            if todo is Next.FINISH:
                break
            step = steps[index - start]
            tell(step, index=index)
            context.step_index, context.attempt = index, attempt
            limits = self._limits(step, first=index == start)
            said = None if newest is None else {"checkpoint": newest}
            began = self.timer()
            try:
                result = await attempted(step, context, timeout=limits.timeout)
            except Exception as error:  # noqa: BLE001 - whatever a step raises is its outcome, and is written down
                took = self.timer() - began
                tell(step, duration=took)
                outcome = Attempted(attempt - first + 1, limits.retries, ok=False, again=self._again(error, limits))
                todo = NEXT[after(outcome)]
                record = failed(step, error, took, at=timeline.store.clock(), given=said, attempt=attempt)
                await self.manager.persistence.record(execution_id, record)
                if todo is Next.FAIL:
                    return await self.give_up(execution_id, error, step_index=index, newest=newest)
                await self.sleep(Backoff(limits.backoff, limits.max_backoff).delay(attempt - first + 1, self.chance()))
                attempt += 1
                continue
            took = self.timer() - began
            tell(step, duration=took)
            context.merge(result)
            output = result
            record = succeeded(step, result, took, at=timeline.store.clock(), given=said, attempt=attempt)
            try:
                made = await self.manager.create_checkpoint(
                    execution_id,
                    str(step.name),
                    index,
                    context.state,
                    context.context,
                    context.variables,
                    messages=context.messages,
                    workflow_id=self.workflow_id,
                    record=record,
                    run_status="success" if index + 1 == last else None,
                )
            except Unstorable as error:
                # Whatever the step did is not kept, so it has failed; doing it again would only do it twice.
                record = failed(step, error, took, at=timeline.store.clock(), given=said, attempt=attempt)
                await self.manager.persistence.record(execution_id, record)
                return await self.give_up(execution_id, error, step_index=index, newest=newest)
            newest = made.id
            index += 1
            attempt = first = before.get(index, 0) + 1
        if start == last:
            await self.manager.persistence.say(execution_id, "success")
        return ExecutionResult(
            success=True, output=output, execution_id=execution_id, checkpoint_id=newest, step_index=last - 1
        )

    def _limits(self, step: Any, *, first: bool) -> Limits:
        said = limits_of(step)
        retries = said.retries if self.retries is None else self.retries
        return Limits(
            retries=self.first_retries if first and self.first_retries is not None else retries,
            backoff=said.backoff if self.backoff is None else self.backoff,
            max_backoff=said.max_backoff if self.max_backoff is None else self.max_backoff,
            retry_on=said.retry_on,
            timeout=said.timeout,
        )

    def _again(self, error: BaseException, limits: Limits) -> bool:
        if not isinstance(error, limits.retry_on):
            return False
        return self.should_retry is None or self.should_retry(error)

    async def give_up(
        self, execution_id: str, error: BaseException, *, step_index: int, newest: str | None
    ) -> ExecutionResult:
        """The run is marked failed, and whoever wanted to know is told, with the ways on."""
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        await self.manager.persistence.say(execution_id, "failed", error=text)
        result = with_ways(
            ExecutionResult(
                success=False,
                error=text,
                execution_id=execution_id,
                checkpoint_id=newest,
                step_index=step_index,
                cause=error,
            )
        )
        await self.notify(result)
        return result

    async def notify(self, result: ExecutionResult) -> None:
        if self.on_failure is None:
            return
        try:
            heard = self.on_failure(result)
            if inspect.isawaitable(heard):
                await heard
        except Exception as error:  # noqa: BLE001 - a stranger's code; the run's outcome does not depend on it
            timeline = await self.manager.persistence.timeline()
            timeline.bus.emit(events.SUBSCRIBER_FAILED, result.execution_id or "", subscriber="on_failure", error=error)
