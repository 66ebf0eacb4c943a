"""The driver of a line of steps: what it writes down, when it waits, and what it leaves when it is stopped."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.places import desk, on_every_storage, run

from knotline import events
from knotline.errors import ConfigError, NotFound
from knotline.events import Event
from knotline.runner import Context, ExecutionResult, Step, execute_with_checkpoints, run_step


def fails(times: int, error: type[Exception] = TimeoutError, result: Any = None) -> Any:
    left = [times]

    def work(ctx: Context) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise error("not yet")
        return result

    return work


def names(history: Any) -> list[tuple[str, int, str]]:
    return [(it.step_name, it.attempt, it.status) for it in history.steps]


@on_every_storage
def test_every_kind_of_step(kind: str, tmp_path: Path) -> None:
    class Plain:
        name = "plain"
        index = None

        def execute(self) -> dict[str, Any]:
            return {"plain": self.index}

    class Slotted:
        __slots__ = ()
        name = "slotted"

        async def execute(self) -> dict[str, Any]:
            return {"slotted": True}

    async def coroutine(ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"coroutine": ctx.step_index}

    def gives_awaitable(ctx: Context) -> Any:
        return coroutine(ctx)

    async def two(ctx: Context, more: int) -> dict[str, Any]:
        return {"two": more}

    def in_place(ctx: Context) -> str:
        ctx.state["list"] = [1]
        ctx.variables["v"] = 2
        ctx.context["c"] = 3
        return "a result that is no dict"

    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            plain = Plain()
            steps = [
                plain, Slotted(), Step("coroutine", coroutine), Step("awaitable", gives_awaitable),
                Step("partial", partial(two, more=7)), Step("in place", in_place),
            ]  # fmt: skip
            ex = await execute_with_checkpoints(steps, manager=it.manager, state={"begin": 1})
            history = await it.tracker.get_execution_history(ex)
            assert history.status == "success", history.error
            assert history.last_checkpoint is not None
            last = history.last_checkpoint
            assert last.state == {
                "begin": 1, "plain": 0, "slotted": True, "coroutine": 3, "two": 7, "list": [1],
            }  # fmt: skip
            assert (last.variables, last.context) == ({"v": 2}, {"c": 3})
            assert history.steps[-1].result == "a result that is no dict"
            assert plain.index == 0
            assert steps[2].duration >= 0

    run(main())


def test_what_is_no_step_is_refused_by_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            for wrong in (object(), "step", Step("x", None)):  # pyright: ignore[reportArgumentType] - on purpose
                with pytest.raises(ConfigError, match=r"at 1"):
                    await execute_with_checkpoints([Step("a", lambda c: None), wrong], manager=it.manager)
            assert (await it.manager.get_formatted_checkpoint_history()) == []

    run(main())


@on_every_storage
def test_retries_with_backoff_and_every_attempt_written_down(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            slept: list[float] = []

            async def sleep(seconds: float) -> None:
                slept.append(seconds)

            from knotline.runner.linear import Driver

            driver = Driver(manager=it.manager, sleep=sleep, chance=lambda: 1.0)
            steps = [Step("a", fails(0)), Step("b", fails(3), retries=3, backoff=1.0, max_backoff=3.0)]
            result = await driver.run(steps, execution_id="ex", context=Context(execution_id="ex"))
            assert result
            assert slept == [1.0, 2.0, 3.0]
            history = await it.tracker.get_execution_history("ex")
            assert names(history) == [
                ("a", 1, "success"), ("b", 1, "failed"), ("b", 2, "failed"), ("b", 3, "failed"), ("b", 4, "success"),
            ]  # fmt: skip
            assert history.recovery_attempts == 3
            assert history.status == "success"
            assert history.steps[1].error_type == "TimeoutError"
            assert "not yet" in (history.steps[1].traceback or "")

    run(main())


def test_retry_on_and_should_retry_decide(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            one = Step("a", fails(1, ValueError), retries=5, retry_on=(TimeoutError,), backoff=0)
            ex = await execute_with_checkpoints([one], manager=it.manager)
            assert len((await it.tracker.get_execution_history(ex)).steps) == 1
            asked: list[str] = []

            def should(error: BaseException) -> bool:
                asked.append(str(error))
                return len(asked) < 3

            two = Step("a", fails(9), retries=9, backoff=0)
            ex = await execute_with_checkpoints([two], manager=it.manager, should_retry=should)
            assert len((await it.tracker.get_execution_history(ex)).steps) == 3

            class Bare:
                name = "bare"
                retries = 1
                backoff = 0
                retry_on = TimeoutError  # a class alone

                def __init__(self) -> None:
                    self.work = fails(1)

                def execute(self) -> Any:
                    return self.work(Context())

            ex = await execute_with_checkpoints([Bare()], manager=it.manager)
            assert (await it.tracker.get_execution_history(ex)).status == "success"

    run(main())


@on_every_storage
def test_a_run_that_fails_gives_its_id_and_the_reason(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            told: list[ExecutionResult] = []
            steps = [Step("a", fails(0)), Step("b", fails(9, OSError)), Step("c", fails(0))]
            ex = await execute_with_checkpoints(steps, manager=it.manager, on_failure=told.append)
            history = await it.tracker.get_execution_history(ex)
            assert (history.status, history.error) == ("failed", "OSError: not yet")
            assert names(history) == [("a", 1, "success"), ("b", 1, "failed")]
            assert [cp.id for cp in await it.manager.list_checkpoints(ex)] == [f"ckpt-{ex}-0"]
            (result,) = told
            assert not result
            assert (result.step_index, result.checkpoint_id) == (1, f"ckpt-{ex}-0")
            assert isinstance(result.cause, OSError)
            assert [way.name for way in result.ways] == ["retry_from_step", "edit_and_continue", "skip_step"]

    run(main())


def test_who_is_told_of_a_failure_may_fail(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            heard: list[Event] = []
            it.persistence.bus.subscribe(events.SUBSCRIBER_FAILED, heard.append)

            async def bad(result: ExecutionResult) -> None:
                raise RuntimeError("pager is down")

            ex = await execute_with_checkpoints([Step("a", fails(9))], manager=it.manager, on_failure=bad)
            assert (await it.tracker.get_execution_history(ex)).status == "failed"
            assert await asyncio.to_thread(it.persistence.bus.drain)
            assert str(heard[0]["error"]) == "pager is down"

    run(main())


@pytest.mark.parametrize("how", ["async", "sync"])
def test_a_step_that_takes_too_long_has_failed(how: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            ended = asyncio.Event()

            async def hang(ctx: Context) -> None:
                try:
                    await asyncio.sleep(60)
                finally:
                    ended.set()

            import threading

            go = threading.Event()

            def hang_too(ctx: Context) -> None:
                go.wait(60)

            step = Step("a", hang if how == "async" else hang_too, timeout=0.05)
            ex = await execute_with_checkpoints([step], manager=it.manager)
            go.set()
            history = await it.tracker.get_execution_history(ex)
            assert (history.status, history.steps[0].error_type) == ("failed", "TimeoutError")
            assert how == "sync" or ended.is_set()

    run(main())


def test_stop_iteration_is_a_failure_and_no_hang(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            ex = await execute_with_checkpoints([Step("a", lambda c: next(iter(())))], manager=it.manager)
            history = await it.tracker.get_execution_history(ex)
            assert history.status == "failed"
            assert "StopIteration" in (history.steps[0].traceback or "")

    run(main())


@on_every_storage
def test_a_result_that_cannot_be_stored_fails_the_run_and_is_not_tried_again(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            calls: list[int] = []

            def work(ctx: Context) -> Any:
                calls.append(1)
                return {"lock": asyncio.Lock()}

            ex = await execute_with_checkpoints(
                [Step("a", fails(0)), Step("b", work, retries=5, backoff=0)], manager=it.manager
            )
            history = await it.tracker.get_execution_history(ex)
            assert calls == [1]
            assert history.status == "failed"
            assert "lock" in (history.error or "")
            assert names(history) == [("a", 1, "success"), ("b", 1, "failed")]

    run(main())


@on_every_storage
def test_a_run_that_was_cancelled_in_a_step_can_be_resumed(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            reached, calls = asyncio.Event(), list[str]()

            async def slow(ctx: Context) -> dict[str, Any]:
                calls.append("slow")
                reached.set()
                if len(calls) == 1:
                    await asyncio.sleep(60)
                return {"slow": True}

            steps = [Step("a", lambda c: {"a": 1}), Step("b", slow), Step("c", lambda c: {"c": 1})]
            task = asyncio.create_task(execute_with_checkpoints(steps, manager=it.manager, execution_id="ex"))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            before = await it.tracker.get_execution_history("ex")
            assert (before.status, len(before.steps)) == ("running", 1)
            assert await it.recovery.resume_from_checkpoint("ckpt-ex-0")
            history = await it.tracker.get_execution_history("ex")
            assert history.status == "success"
            assert history.recovery_attempts == 1
            assert history.last_checkpoint is not None
            assert history.last_checkpoint.state == {"a": 1, "slow": True, "c": 1}

    run(main())


@on_every_storage
def test_no_steps_at_all(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            ex = await execute_with_checkpoints([], manager=it.manager)
            history = await it.tracker.get_execution_history(ex)
            assert (history.status, history.steps, history.checkpoints) == ("success", [], [])

    run(main())


@on_every_storage
def test_run_step_is_one_step_alone_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            steps = [Step("a", lambda c: {"rows": [1, 2]}), Step("b", fails(9))]
            ex = await execute_with_checkpoints(steps, manager=it.manager)
            before = await it.tracker.execution_log(ex)

            def debug(ctx: Context) -> int:
                ctx.state["rows"].append(3)
                return len(ctx.state["rows"]) + ctx.step_index

            for _ in range(2):
                result = await run_step(it.manager, f"ckpt-{ex}-0", Step("debug", debug))
                assert result
                assert (result.output, result.step_index) == (4, 1)
            failed = await run_step(it.manager, f"ckpt-{ex}-0", Step("debug", fails(1, ValueError)))
            assert not failed
            assert failed.error == "ValueError: not yet"
            with pytest.raises(NotFound):
                await run_step(it.manager, "ckpt-none-0", Step("debug", debug))
            assert await it.tracker.execution_log(ex) == before

    run(main())


@on_every_storage
def test_the_conversation_goes_on_with_the_run(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            talk = [{"role": "user", "content": "hi"}]
            await it.manager.create_checkpoint("ex", "ask", 0, {}, messages=talk)

            def answer(ctx: Context) -> None:
                assert ctx.messages is not None
                ctx.messages.append({"role": "assistant", "content": "hello"})

            result = await it.recovery.resume_from_checkpoint("ckpt-ex-0", [Step("answer", answer)])
            assert result, result.error
            made = await it.manager.load_checkpoint("ckpt-ex-1")
            assert made is not None
            assert made.messages == [*talk, {"role": "assistant", "content": "hello"}]

    run(main())
