"""P6 v1, item by item: its test list (saved, resumed, recovered, asked for), and scenarios 1 to 3 as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.checkpoint.places import desk, on_every_storage, run

from knotline.runner import Context, ExecutionResult, Step, execute_with_checkpoints, run_step


class Flow:
    """The five steps of the plan; the third is the external API."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.done: list[str] = []

    def steps(self, **limits: Any) -> list[Step]:
        return [
            self.step("fetch", lambda ctx: {"data": [1, 2, 3]}),
            self.step("validate", lambda ctx: {"valid": len(ctx.state["data"]) == 3}),
            self.step("call_api", self.call, **limits),
            self.step("process", lambda ctx: {"sum": sum(ctx.state["data"])}),
            self.step("return", lambda ctx: {"result": ctx.state["sum"] + ctx.state["answer"]}),
        ]

    def step(self, name: str, work: Any, **limits: Any) -> Step:
        def counted(ctx: Context) -> Any:
            self.done.append(name)
            return work(ctx)

        return Step(name, counted, **limits)

    def call(self, ctx: Context) -> dict[str, Any]:
        if self.failures > 0:
            self.failures -= 1
            raise TimeoutError("the API did not answer")
        return {"answer": 36}


# -- 测试用例 1 to 4 --------------------------------------------------------------------------------------------


@on_every_storage
def test_1_a_checkpoint_for_each_step_is_saved(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            steps = Flow().steps()
            execution_id = await execute_with_checkpoints(steps, manager=it.manager)
            checkpoints = await it.manager.list_checkpoints(execution_id)
            assert len(checkpoints) == len(steps)
            assert [cp.step_index for cp in checkpoints] == [0, 1, 2, 3, 4]
            assert [cp.id for cp in checkpoints] == [f"ckpt-{execution_id}-{n}" for n in range(5)]

    run(main())


@on_every_storage
def test_2_resume_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            flow = Flow()
            steps = flow.steps()
            await execute_with_checkpoints(steps, manager=it.manager, execution_id="exec-001")
            flow.done.clear()
            result = await it.recovery.resume_from_checkpoint(
                checkpoint_id="ckpt-exec-001-2", remaining_steps=steps[3:]
            )
            assert result.success
            assert result.output == {"result": 42}
            assert flow.done == ["process", "return"]

    run(main())


@on_every_storage
def test_3_errors_are_recovered(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            steps = Flow(failures=2).steps(retries=3, backoff=0)
            execution_id = await execute_with_checkpoints(steps, manager=it.manager)
            history = await it.tracker.get_execution_history(execution_id)
            assert history.recovery_attempts > 0
            assert history.status == "success"

    run(main())


@on_every_storage
def test_4_the_history_is_asked_for(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            steps = Flow().steps()
            execution_id = await execute_with_checkpoints(steps, manager=it.manager)
            history = await it.tracker.get_execution_history(execution_id)
            assert len(history.steps) == len(steps)
            assert history.total_duration > 0
            assert history.total_duration == sum(step.duration for step in history.steps)
            assert history.last_checkpoint is not None
            assert history.last_checkpoint.id == f"ckpt-{execution_id}-4"

    run(main())


# -- 应用场景 1 to 3 --------------------------------------------------------------------------------------------


@on_every_storage
def test_scenario_1_a_long_run_goes_on_after_a_time_out(kind: str, tmp_path: Path) -> None:
    """Steps 1 and 2 are not run again: step 3 is retried on the checkpoint of step 2."""

    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            flow = Flow(failures=1)
            execution_id = await execute_with_checkpoints(flow.steps(), manager=it.manager)
            assert (await it.tracker.get_execution_history(execution_id)).status == "failed"
            last = await it.manager.get_last_successful_checkpoint(execution_id, before_step=2)
            assert last is not None
            assert last.step_name == "validate"
            result = await it.recovery.retry_from_step(execution_id, 2)
            assert result.success
            assert result.output == {"result": 42}
            assert flow.done == ["fetch", "validate", "call_api", "call_api", "process", "return"]
            history = await it.tracker.get_execution_history(execution_id)
            assert (history.status, history.recovery_attempts) == ("success", 1)

    run(main())


@on_every_storage
def test_scenario_2_a_step_in_the_middle_is_debugged_on_a_checkpoints_data(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            flow = Flow(failures=99)
            execution_id = await execute_with_checkpoints(flow.steps(), manager=it.manager)
            first, second, third = (await it.tracker.get_execution_history(execution_id)).steps
            # What the person looks at: each step's input, output and how long it took.
            assert (first.step_name, first.result) == ("fetch", {"data": [1, 2, 3]})
            assert (second.input, second.result) == ({"checkpoint": f"ckpt-{execution_id}-0"}, {"valid": True})
            assert first.duration > 0
            assert (third.status, third.error) == ("failed", "the API did not answer")
            assert "Traceback" in (third.traceback or "")
            result = await run_step(it.manager, f"ckpt-{execution_id}-1", Step("debug", lambda ctx: ctx.state["valid"]))
            assert result.output is True

    run(main())


@on_every_storage
def test_scenario_3_recovery_retries_with_backoff_and_then_marks_and_tells(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        told: list[ExecutionResult] = []
        async with desk(kind, tmp_path, on_failure=told.append, chance=lambda: 1.0) as it:
            flow = Flow(failures=99)
            execution_id = await execute_with_checkpoints(flow.steps(), manager=it.manager)
            flow.done.clear()
            result = await it.recovery.retry_from_step(execution_id=execution_id, step_index=2, max_retries=3)
            assert not result.success
            assert it.slept == [0.5, 1.0]
            assert set(flow.done) == {"call_api"}
            assert (await it.tracker.get_execution_history(execution_id)).status == "failed"
            assert told == [result]
            # 手动干预选项: the manual ways on
            assert [way.text for way in result.ways] == [
                "retry from step 2",
                f"edit the state of ckpt-{execution_id}-1 and go on",
                "skip step 2",
            ]
            skip = result.ways[-1]
            again = await getattr(it.recovery, skip.name)(**skip.arguments)
            assert not again.success  # "return" needs what the API would have answered
            assert "answer" in (again.error or "")

    run(main())


# -- 常见问题 -----------------------------------------------------------------------------------------------------


def test_faq_checkpoints_outlive_the_session(tmp_path: Path) -> None:
    async def first() -> None:
        async with desk("sqlite", tmp_path) as it:
            await execute_with_checkpoints(Flow(failures=1).steps(), manager=it.manager, execution_id="exec-1")

    async def second() -> None:
        async with desk("sqlite", tmp_path) as it:
            flow = Flow()
            result = await it.recovery.retry_from_step("exec-1", 2, remaining_steps=flow.steps()[2:])
            assert result.output == {"result": 42}

    run(first())
    run(second())
