"""Going on, trying again, going back; and what cannot be recovered is a result with its reason and the ways on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.checkpoint.places import Desk, desk, on_every_storage, run

from knotline import events
from knotline.errors import Damaged, FlowChanged, Unavailable
from knotline.events import Event
from knotline.records import Checkpoint
from knotline.runner import (
    Context,
    ExecutionRecovery,
    ExecutionResult,
    Step,
    WorkflowRegistry,
    execute_with_checkpoints,
)
from knotline.testing import FaultyBackend, Plan


class Work:
    """Five steps; step 2 fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls: list[str] = []

    def step(self, name: str) -> Step:
        def work(ctx: Context) -> dict[str, Any]:
            self.calls.append(name)
            if name == "call" and self.failures > 0:
                self.failures -= 1
                raise TimeoutError("upstream timed out")
            return {name: len(self.calls)}

        return Step(name, work)

    def steps(self) -> list[Step]:
        return [self.step(name) for name in ("fetch", "check", "call", "process", "return")]


async def ids(it: Desk, ex: str) -> list[str]:
    return [cp.id.removeprefix(f"ckpt-{ex}-") for cp in await it.manager.list_checkpoints(ex)]


@on_every_storage
def test_retry_waits_longer_each_time_up_to_the_cap_and_the_maximum(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        told: list[ExecutionResult] = []
        async with desk(kind, tmp_path, on_failure=told.append, chance=lambda: 1.0) as it:
            work = Work(failures=99)
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager)
            assert await ids(it, ex) == ["0", "1"]
            work.calls.clear()
            result = await it.recovery.retry_from_step(ex, 2, max_retries=5, backoff=1, max_backoff=5)
            assert not result
            assert it.slept == [1, 2, 4, 5]
            assert work.calls == ["call"] * 5
            assert told == [result]
            assert result.error == "TimeoutError: upstream timed out"
            assert [way.name for way in result.ways] == ["retry_from_step", "edit_and_continue", "skip_step"]
            history = await it.tracker.get_execution_history(ex)
            assert (history.status, history.recovery_attempts) == ("failed", 6)
            assert [(s.step_name, s.attempt) for s in history.steps if s.status == "failed"] == [
                ("call", n) for n in range(1, 7)
            ]
            work.failures = 1
            way = result.ways[0]
            assert await getattr(it.recovery, way.name)(**way.arguments)
            history = await it.tracker.get_execution_history(ex)
            assert (history.status, history.error) == ("success", None)
            assert await ids(it, ex) == ["0", "1", "2", "3", "4"]

    run(main())


@on_every_storage
def test_retry_of_what_succeeded_already(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            work = Work()
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager)
            assert await it.recovery.retry_from_step(ex, 3)
            assert await ids(it, ex) == ["0", "1", "2", "3.2", "4.2"]
            history = await it.tracker.get_execution_history(ex)
            assert [(s.step_index, s.attempt) for s in history.steps] == [
                (0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (3, 2), (4, 2),
            ]  # fmt: skip
            assert history.recovery_attempts == 1
            log = "\n".join(await it.tracker.execution_log(ex))
            assert "step 4 return (attempt 2) success" in log

    run(main())


@on_every_storage
def test_retry_from_the_first_step_begins_with_what_the_run_began_with(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            work = Work()
            ex = await execute_with_checkpoints(
                work.steps(), manager=it.manager, state={"seed": 7}, context={"c": 1}, variables={"v": 2}
            )
            result = await it.recovery.retry_from_step(ex, 0)
            assert result, result.error
            assert await ids(it, ex) == ["0.2", "1.2", "2.2", "3.2", "4.2"]
            first = await it.manager.load_checkpoint(f"ckpt-{ex}-0")
            assert first is not None
            assert (first.state, first.context, first.variables) == ({"seed": 7, "fetch": 6}, {"c": 1}, {"v": 2})
            for _ in range(8):  # each save, the way back, and then the line as it was
                assert await it.recovery.undo(ex)
                if await ids(it, ex) == ["0", "1", "2", "3", "4"]:
                    break
            assert await ids(it, ex) == ["0", "1", "2", "3", "4"]

    run(main())


def test_retry_with_steps_of_ones_own_begins_at_the_index_that_was_asked_for(tmp_path: Path) -> None:
    """Of a run without a plan, where the step before has no checkpoint."""

    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            await it.manager.create_checkpoint("ex", "fetch", 0, {"x": 1})
            result = await it.recovery.retry_from_step("ex", 3, remaining_steps=[Step("late", lambda c: {"late": 1})])
            assert result
            assert (result.step_index, await ids(it, "ex")) == (3, ["0", "3"])

    run(main())


def test_old_spellings_of_retry(tmp_path: Path) -> None:
    class Agent:
        seen: Checkpoint | None = None

        def restore_state_from_checkpoint(self, checkpoint: Checkpoint) -> None:
            self.seen = checkpoint

    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            work = Work(failures=99)
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager)
            agent = Agent()
            assert await it.recovery.retry_from_step(ex, 2, agent, max_retries=3)
            assert agent.seen is not None
            assert agent.seen.step_index == 1
            agent = Agent()
            assert await it.recovery.retry_from_step(ex, 2, agent_instance=agent)
            assert agent.seen is not None
            assert not await it.recovery.retry_from_step(ex, 2, 0)
            assert it.slept == []
            work.failures = 0
            assert await it.recovery.retry_from_step(ex, 2, work.steps()[2:])

    run(main())


@on_every_storage
def test_resume_with_an_agent(kind: str, tmp_path: Path) -> None:
    class Agent:
        async def restore_state_from_checkpoint(self, checkpoint: Checkpoint) -> None:
            await asyncio.sleep(0)
            self.state = checkpoint.state

    class Broken:
        def restore_state_from_checkpoint(self, checkpoint: Checkpoint) -> None:
            raise ValueError("incompatible")

    async def main() -> None:
        told: list[ExecutionResult] = []
        async with desk(kind, tmp_path, on_failure=told.append) as it:
            heard: list[Event] = []
            it.persistence.bus.subscribe(events.CHECKPOINT_RESTORED, heard.append)
            await it.manager.create_checkpoint("ex", "s", 0, {"phase": 1})
            agent = Agent()
            assert await it.recovery.resume_from_checkpoint("ckpt-ex-0", agent)
            assert agent.state == {"phase": 1}
            assert await it.recovery.resume_from_checkpoint("ckpt-ex-0", agent_instance=agent)
            result = await it.recovery.resume_from_checkpoint("ckpt-ex-0", agent_instance=Broken())
            assert not result
            assert result.error == "Recovery failed: incompatible"
            assert isinstance(result.cause, ValueError)
            assert told == [result]
            assert (await it.tracker.get_execution_history("ex")).status == "failed"
            assert await asyncio.to_thread(it.persistence.bus.drain)
            assert [it["checkpoint_id"] for it in heard] == ["ckpt-ex-0"] * 2

    run(main())


@on_every_storage
def test_resume_with_a_registered_workflow(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        registry = WorkflowRegistry()
        async with desk(kind, tmp_path, workflows=registry) as it:
            work = Work(failures=1)
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager, workflow_id="etl")
            other = ExecutionRecovery(it.manager.__class__(it.persistence), workflows=registry)
            missing = await other.resume_from_checkpoint(f"ckpt-{ex}-1")
            assert not missing
            assert "etl" in (missing.error or "")
            registry.register("etl", work.steps)
            assert await other.resume_from_checkpoint(f"ckpt-{ex}-1")
            history = await it.tracker.get_execution_history(ex)
            assert (history.status, history.workflow_id) == ("success", "etl")
            assert {cp.workflow_id for cp in history.checkpoints} == {"etl"}

    run(main())


@on_every_storage
def test_a_workflow_that_changed_is_refused_and_may_be_gone_on_with(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            work = Work(failures=1)
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager)
            new = [work.step("call"), work.step("polish")]
            result = await it.recovery.resume_from_checkpoint(f"ckpt-{ex}-1", new)
            assert not result
            assert isinstance(result.cause, FlowChanged)
            assert result.cause.changes == ((3, "process", "polish"), (4, "return", None))
            assert "step 3 was 'process', is 'polish' now" in (result.error or "")
            assert result.ways[0].name == "resume_from_checkpoint"
            assert (await it.tracker.get_execution_history(ex)).status == "failed"  # as before: nothing was touched
            result = await it.recovery.resume_from_checkpoint(f"ckpt-{ex}-1", new, on_change="continue")
            assert result, result.error
            # Who said so once is not asked about the same steps again.
            assert await it.recovery.resume_from_checkpoint(f"ckpt-{ex}-2", new[1:])
            assert await it.recovery.retry_from_step(ex, 2)

    run(main())


@on_every_storage
def test_what_is_not_there(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        told: list[ExecutionResult] = []
        async with desk(kind, tmp_path, on_failure=told.append) as it:
            for result, error in (
                (await it.recovery.resume_from_checkpoint("nope", []), "Checkpoint nope not found"),
                (await it.recovery.rollback_to_checkpoint("nope"), "Checkpoint nope not found"),
                (await it.recovery.edit_and_continue("nope", {}), "Checkpoint nope not found"),
                (await it.recovery.retry_from_step("nope", 3), "No successful checkpoint found before step 3"),
                (await it.recovery.retry_from_step("nope", 0), "No successful checkpoint found before step 0"),
                (await it.recovery.skip_step("nope", 2), "No successful checkpoint found before step 2"),
                (await it.recovery.skip_step("nope", 0), "No successful checkpoint found before step 0"),
            ):
                assert not result
                assert result.error == error
            assert not await it.recovery.undo("nope")
            assert not await it.recovery.redo("nope")
            assert await it.manager.get_formatted_checkpoint_history() == []
            assert len(told) == 3
            # A run that ended well does not fail because somebody asked for a step that it has not got.
            work = Work()
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager)
            result = await it.recovery.retry_from_step(ex, 17)
            assert not result
            history = await it.tracker.get_execution_history(ex)
            assert (history.status, len(history.steps)) == ("success", 5)

    run(main())


def test_a_damaged_checkpoint_is_not_resumed_and_the_run_is_marked_failed(tmp_path: Path) -> None:
    async def main() -> None:
        told: list[ExecutionResult] = []
        async with desk("memory", tmp_path, on_failure=told.append) as it:
            work = Work(failures=1)
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager)
            timeline = await it.persistence.timeline()
            real = timeline.read

            def damaged(header: Any) -> Any:
                raise Damaged(header.id, why="one bit")

            timeline.read = damaged
            work.calls.clear()
            result = await it.recovery.resume_from_checkpoint(f"ckpt-{ex}-1", work.steps()[2:])
            timeline.read = real
            assert not result
            assert isinstance(result.cause, Damaged)
            assert work.calls == []
            assert told == [result]
            assert (await it.tracker.get_execution_history(ex)).status == "failed"

    run(main())


def test_a_store_that_cannot_be_written_is_a_result_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            work = Work(failures=1)
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager)
            store = it.storage.store
            store.backend = faulty = FaultyBackend(store.backend, Plan(at=1, only="commit", forever=True))
            for result in (
                await it.recovery.resume_from_checkpoint(f"ckpt-{ex}-1", work.steps()[2:]),
                await it.recovery.retry_from_step(ex, 2),
                await it.recovery.rollback_to_checkpoint(f"ckpt-{ex}-0"),
                await it.recovery.edit_and_continue(f"ckpt-{ex}-0", {}),
                await it.recovery.skip_step(ex, 2),
            ):
                assert not result
                assert isinstance(result.cause, Unavailable)
            assert faulty.injected >= 5
            store.backend = faulty.inner
            assert await it.recovery.retry_from_step(ex, 2)

    run(main())


@on_every_storage
def test_edit_and_continue(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            work = Work(failures=1)
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager, state={"rows": [1]})

            async def edit(ctx: Context) -> None:
                ctx.state["rows"].append(2)
                ctx.variables["by"] = "hand"

            refused = await it.recovery.edit_and_continue(f"ckpt-{ex}-1", {"lock": asyncio.Lock()})
            assert "lock" in (refused.error or "")
            assert await ids(it, ex) == ["0", "1"]  # nothing moved
            assert await it.recovery.edit_and_continue(f"ckpt-{ex}-1", edit)
            assert await ids(it, ex) == ["0", "1", "1.2", "2", "3", "4"]
            edited = await it.manager.load_checkpoint(f"ckpt-{ex}-1.2")
            original = await it.manager.load_checkpoint(f"ckpt-{ex}-1")
            last = await it.manager.load_checkpoint(f"ckpt-{ex}-4")
            assert edited is not None
            assert original is not None
            assert last is not None
            assert (edited.state["rows"], edited.variables) == ([1, 2], {"by": "hand"})
            assert edited.metadata.description == "edited by hand"
            assert (original.state["rows"], last.state["rows"]) == ([1], [1, 2])

    run(main())


@on_every_storage
def test_skip_a_step(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            work = Work(failures=99)
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager, state={"seed": 1})
            assert await it.recovery.skip_step(ex, 2)
            assert await ids(it, ex) == ["0", "1", "2", "3", "4"]
            skipped = await it.manager.load_checkpoint(f"ckpt-{ex}-2")
            assert skipped is not None
            assert (skipped.step_name, skipped.metadata.description) == ("call", "skipped by hand")
            assert "call" not in skipped.state
            # The first step too: what the run began with stays, and nothing of the old line does.
            result = await it.recovery.skip_step(ex, 0)
            assert not result  # step 2 fails again
            assert await ids(it, ex) == ["0.2", "1.2"]
            first = await it.manager.load_checkpoint(f"ckpt-{ex}-0")
            assert first is not None
            assert first.state == {"seed": 1}

    run(main())


@on_every_storage
def test_rollback_undo_and_redo(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            work = Work()
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager)
            before = await it.tracker.get_execution_history(ex)
            result = await it.recovery.rollback_to_checkpoint(f"ckpt-{ex}-1")
            assert result
            assert (result.checkpoint_id, result.step_index) == (f"ckpt-{ex}-1", 1)
            assert await ids(it, ex) == ["0", "1"]
            assert await it.manager.load_checkpoint(f"ckpt-{ex}-3") is None
            after = await it.tracker.get_execution_history(ex)
            assert [s.step_index for s in after.steps] == [0, 1]
            assert after.status == "running"
            assert await it.recovery.undo(ex)
            assert await it.tracker.get_execution_history(ex) == before
            assert await it.recovery.redo(ex)
            assert await ids(it, ex) == ["0", "1"]
            assert await it.recovery.resume_from_checkpoint(f"ckpt-{ex}-1")
            assert await ids(it, ex) == ["0", "1", "2.2", "3.2", "4.2"]

    run(main())


@on_every_storage
def test_resume_from_an_earlier_checkpoint_takes_the_later_ones_out_of_sight(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            work = Work()
            ex = await execute_with_checkpoints(work.steps(), manager=it.manager)
            assert await it.recovery.resume_from_checkpoint(f"ckpt-{ex}-2", work.steps()[3:])
            assert await ids(it, ex) == ["0", "1", "2", "3.2", "4.2"]
            assert len((await it.tracker.get_execution_history(ex)).steps) == 7

    run(main())
