"""The origin's own test file and its examples, as they are written, on every storage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.places import desk, on_every_storage, run

from knotline.checkpoint.manager import age, weight
from knotline.errors import Damaged
from knotline.records import Checkpoint
from knotline.runner import ExecutionRecovery


@on_every_storage
def test_create_and_load_checkpoint(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            cp = await it.manager.create_checkpoint(
                execution_id="exec-123",
                step_name="test_step",
                step_index=1,
                state={"agent_state": "thinking"},
                context={"messages": []},
                variables={"var1": "value1"},
            )
            loaded_cp = await it.manager.load_checkpoint(cp.id)
            assert loaded_cp is not None
            assert loaded_cp.execution_id == "exec-123"
            assert loaded_cp.step_index == 1
            assert loaded_cp.state == {"agent_state": "thinking"}
            assert loaded_cp == Checkpoint.from_dict(loaded_cp.to_dict())

    run(main())


@on_every_storage
def test_list_checkpoints(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            await it.manager.create_checkpoint("exec-1", "step1", 1, {}, {}, {})
            await it.manager.create_checkpoint("exec-1", "step2", 2, {}, {}, {})
            checkpoints = await it.manager.list_checkpoints("exec-1")
            assert len(checkpoints) == 2
            assert checkpoints[0].step_index == 1
            assert checkpoints[1].step_index == 2

    run(main())


@on_every_storage
def test_get_last_successful_checkpoint(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            await it.manager.create_checkpoint("exec-1", "step1", 1, {}, {}, {}, status="success")
            await it.manager.create_checkpoint("exec-1", "step2", 2, {}, {}, {}, status="success")
            await it.manager.create_checkpoint("exec-1", "step3", 3, {}, {}, {}, status="failed")
            last_success = await it.manager.get_last_successful_checkpoint("exec-1")
            assert last_success is not None
            assert last_success.step_index == 2

    run(main())


@on_every_storage
def test_example_6_5_retry_with_an_agent(kind: str, tmp_path: Path) -> None:
    class Agent:
        state: Any = None

        def restore_state_from_checkpoint(self, checkpoint: Checkpoint) -> None:
            self.state = checkpoint.state

    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            for index in range(3):
                await it.manager.create_checkpoint("exec-123", f"s{index}", index, {"n": index})
            agent = Agent()
            recovery = ExecutionRecovery(it.manager, it.persistence)
            result = await recovery.retry_from_step(
                execution_id="exec-123", step_index=2, agent_instance=agent, max_retries=3
            )
            assert result.success
            assert result.output == "Agent state restored from checkpoint."
            assert agent.state == {"n": 1}
            missing = await recovery.retry_from_step("exec-999", 3, agent)
            assert missing.error == "No successful checkpoint found before step 3"
            assert await it.persistence.list_checkpoints("exec-999") == []

    run(main())


@on_every_storage
def test_the_formatted_history_is_what_a_person_chooses_by(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            assert await it.manager.get_formatted_checkpoint_history() == []
            await it.manager.create_checkpoint("exec-123", "data_fetch", 0, {})
            await it.manager.create_checkpoint("exec-124", "api_call", 3, {"x": "y" * 5000}, status="failed")
            await it.manager.create_checkpoint(
                "exec-123", "data_processing", 2, {}, metadata={"tags": ["nightly"], "description": "before the move"}
            )
            items = await it.manager.get_formatted_checkpoint_history()
            assert [execution_id for execution_id, _ in items] == ["exec-123", "exec-124"]
            first, second = (text for _, text in items)
            assert first.startswith("Restore exec-123\n  Step: 2 data_processing · success · 0s ago · ")
            assert first.endswith(" · #nightly\n  before the move")
            assert "3 api_call · failed · " in second

    run(main())


def test_errors_are_errors_and_never_no_checkpoints(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            await it.manager.create_checkpoint("exec-1", "s", 0, {})
            timeline = await it.persistence.timeline()

            def damaged(*args: Any, **more: Any) -> Any:
                raise Damaged("an entry", why="one bit")

            timeline.executions = damaged
            with pytest.raises(Damaged):
                await it.manager.get_formatted_checkpoint_history()

    run(main())


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(-5, "0s"), (0, "0s"), (59.9, "59s"), (60, "1m"), (3600, "1h"), (86_399, "23h"), (86_400, "1d"), (604_800, "1w"),
     (40_000_000, "1y")],
)  # fmt: skip
def test_ages(seconds: float, wanted: str) -> None:
    now = datetime(2025, 1, 1, tzinfo=UTC)
    assert age(now - timedelta(seconds=seconds), now) == wanted


@pytest.mark.parametrize(
    ("size", "wanted"), [(0, "0 B"), (999, "999 B"), (1200, "1.2 KB"), (18_000_000, "18 MB"), (2_500_000_000, "2.5 GB")]
)
def test_weights(size: int, wanted: str) -> None:
    assert weight(size) == wanted


def test_a_checkpoint_of_old_without_a_zone_is_read_as_the_machines_own_time() -> None:
    said = {
        "id": "ckpt-exec-1-0", "execution_id": "exec-1", "step_name": "s", "step_index": 0,
        "timestamp": "2025-01-13T10:00:00", "state": {}, "context": {}, "variables": {},
    }  # fmt: skip
    found = Checkpoint.from_dict(said)
    assert found.timestamp.tzinfo is not None
    assert found.timestamp.replace(tzinfo=None) == datetime(2025, 1, 13, 10)  # noqa: DTZ001 - as older ones are written
    assert (found.status, found.error, dict(found.metadata)) == ("success", None, {})
