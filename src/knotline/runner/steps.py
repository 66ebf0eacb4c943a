"""What an author writes and gets: steps, the context that they share, and how a run ended."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, cast

from knotline.errors import ConfigError
from knotline.records import Checkpoint

__all__ = ["Context", "ExecutionResult", "Limits", "Step", "Way", "attempted", "limits_of", "named", "tell"]


@dataclass(slots=True)
class Context:
    """What the steps of a run share. A step changes it in place, or returns a dict that is merged into `state`."""

    state: dict[str, Any] = field(default_factory=dict[str, Any])
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    execution_id: str = ""
    step_index: int = 0
    attempt: int = 1
    messages: list[Any] | None = None
    """The conversation, if the run has one."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        return cls(
            state=_mapping(checkpoint.state),
            context=_mapping(checkpoint.context),
            variables=_mapping(checkpoint.variables),
            execution_id=checkpoint.execution_id,
            step_index=checkpoint.step_index,
            messages=None if checkpoint.messages is None else list(checkpoint.messages),
        )

    def merge(self, result: object) -> None:
        if isinstance(result, Mapping):
            self.state.update(cast("Mapping[str, Any]", result))


def _mapping(value: object) -> dict[str, Any]:
    """A state that is no dict (some callers save whatever a step returned) stands under `result`."""
    if value is None:
        return {}
    return {**cast("Mapping[str, Any]", value)} if isinstance(value, Mapping) else {"result": value}


@dataclass
class Step:
    """One unit of work that is recorded. `run` gets a `Context`; it may be a coroutine function or a plain one.

    `retries` more attempts follow a failure that is one of `retry_on`, after `backoff` seconds, doubled each time up
    to `max_backoff`. An attempt that takes longer than `timeout` seconds has failed. A plain function runs in a thread,
    which a time-out cannot stop: its result is then not used.
    """

    name: str
    run: Callable[[Context], Any]
    retries: int = field(default=0, kw_only=True)
    backoff: float = field(default=0.5, kw_only=True)
    max_backoff: float = field(default=60, kw_only=True)
    retry_on: tuple[type[BaseException], ...] = field(default=(Exception,), kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    index: int | None = field(default=None, init=False)
    """Set when it is run."""
    duration: float = field(default=0.0, init=False)
    """Seconds that the last attempt took."""


@dataclass(frozen=True, slots=True)
class Limits:
    retries: int
    backoff: float
    max_backoff: float
    retry_on: tuple[type[BaseException], ...]
    timeout: float | None


def limits_of(step: Any) -> Limits:
    """Of any object with a `name`; what it does not say is as for a `Step`."""
    retry_on = cast("Any", getattr(step, "retry_on", (Exception,)))
    return Limits(
        retries=getattr(step, "retries", 0),
        backoff=getattr(step, "backoff", 0.5),
        max_backoff=getattr(step, "max_backoff", 60),
        retry_on=cast("tuple[type[BaseException], ...]", retry_on if isinstance(retry_on, tuple) else (retry_on,)),
        timeout=getattr(step, "timeout", None),
    )


def named(steps: Iterable[Any]) -> list[Any]:
    """The steps, if each can be run; ConfigError naming the first that cannot."""
    every = list(steps)
    for at, step in enumerate(every):
        work = step.run if isinstance(step, Step) else getattr(step, "execute", None)
        if not callable(work) or not isinstance(getattr(step, "name", None), str):
            found = f"{type(step).__name__} at {at}"
            raise ConfigError(
                "argument", "steps", found=found, wanted="a Step, or an object with `name` and `execute()`"
            )
    return every


async def attempted(step: Any, context: Context, *, timeout: float | None) -> Any:  # noqa: ASYNC109 - a step's own limit
    """Run it once."""
    work: Callable[[], Any] = (lambda: step.run(context)) if isinstance(step, Step) else step.execute
    target: Any = step.run if isinstance(step, Step) else step.execute
    call = _begun(work, target)
    return await call if timeout is None else await asyncio.wait_for(call, timeout)


async def _begun(work: Callable[[], Any], target: Any) -> Any:
    if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None)):  # noqa: B004 - an object whose call is a coroutine function
        return await work()
    # A plain function may block: it gets a thread. It may give an awaitable all the same.
    result = await asyncio.to_thread(contextvars.copy_context().run, _guarded, work)
    return await result if inspect.isawaitable(result) else result


def _guarded(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except StopIteration as error:
        # A future refuses it, and whoever awaits would wait for ever. As in a coroutine, it becomes this:
        raise RuntimeError("the step raised StopIteration") from error


def tell(step: Any, **facts: Any) -> None:
    """`index` and `duration` are set for a step; one that takes no attributes does without."""
    for name, value in facts.items():
        with suppress(AttributeError, TypeError):
            setattr(step, name, value)


@dataclass(frozen=True, slots=True)
class Way:
    """A way on that a person may choose: a method of `ExecutionRecovery` and what to call it with."""

    name: str
    arguments: Mapping[str, Any]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """How it ended; truthy when successful. A failed one says why, and the `ways` on."""

    success: bool
    output: Any = None
    error: str | None = None
    execution_id: str | None = None
    checkpoint_id: str | None = None
    """The newest checkpoint."""
    step_index: int | None = None
    """The step that failed, or the last that ran."""
    cause: BaseException | None = field(default=None, repr=False)
    ways: tuple[Way, ...] = ()

    def __bool__(self) -> bool:
        return self.success
