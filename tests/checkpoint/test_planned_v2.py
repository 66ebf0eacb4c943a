"""P6 v2, item by item: unit tests 1 and 4 to 6 (2 and 3 are those of the storages) and integration tests 1 to 4."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.places import KEY, STORAGES, desk, on_every_storage, run
from tests.checkpoint.strangers import DictStorage

from knotline.checkpoint import (
    CheckpointManager,
    EncryptedStorage,
    PersistenceManager,
    create_storage_from_config,
)
from knotline.records import Checkpoint
from knotline.runner import Step, execute_with_checkpoints

# -- 单元测试 1: PersistenceManager ------------------------------------------------------------------------------

CATEGORIES = ("conversation", "history", "config", "agent_state", "session")


@on_every_storage
@pytest.mark.parametrize("category", CATEGORIES)
def test_unit_1_save_load_delete_list_of_a_category(kind: str, category: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            save, load, delete = (getattr(it.persistence, f"{verb}_{category}") for verb in ("save", "load", "delete"))
            names = getattr(it.persistence, f"list_{category}s")
            assert await load("nobody") is None
            assert await delete("nobody") is False
            assert await names() == []
            await save("a", {"n": 1, "list": [1, {"é": None}]})
            await save("b", {})
            assert await load("a") == {"n": 1, "list": [1, {"é": None}]}
            assert sorted(await names()) == ["a", "b"]
            await save("a", {"n": 2})
            assert await load("a") == {"n": 2}
            assert await delete("a") is True
            assert await load("a") is None
            assert await names() == ["b"]

    run(main())


@on_every_storage
def test_unit_1_save_load_delete_list_of_checkpoints(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            assert await it.persistence.load_checkpoint("nobody") is None
            assert await it.persistence.delete_checkpoint("nobody") is False
            assert await it.persistence.list_checkpoints("exec-1") == []
            one = Checkpoint(
                id="ckpt-exec-1-0", execution_id="exec-1", step_name="s", step_index=0,
                timestamp=datetime(2025, 1, 13, tzinfo=UTC), state={"n": 1}, metadata={"custom": [1]},  # pyright: ignore[reportArgumentType] - a plain mapping is taken too
            )  # fmt: skip
            await it.persistence.save_checkpoint(one)
            await it.persistence.save_checkpoint({**one.to_dict(), "id": "ckpt-exec-1-1", "step_index": 1})
            await it.persistence.save_checkpoint({**one.to_dict(), "id": "ckpt-exec-10-0", "execution_id": "exec-10"})
            assert await it.persistence.load_checkpoint(one.id) == one
            assert await it.persistence.list_checkpoints("exec-1") == ["ckpt-exec-1-0", "ckpt-exec-1-1"]
            assert await it.persistence.delete_checkpoint(one.id) is True
            assert await it.persistence.load_checkpoint(one.id) is None
            # A number that was given before is not given again.
            made = await it.manager.create_checkpoint("exec-1", "s", 1, {})
            assert made.id == "ckpt-exec-1-1.2"

    run(main())


# -- 单元测试 4: CheckpointManager --------------------------------------------------------------------------------


@on_every_storage
def test_unit_4_the_manager(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            for index in (2, 0, 1):
                made = await it.manager.create_checkpoint(
                    "exec-1", f"s{index}", index, {"n": index}, {"c": 1}, {"v": 2}
                )
                assert made.id == f"ckpt-exec-1-{index}"
            await it.manager.create_checkpoint("exec-12", "other", 0, {})
            await it.manager.create_checkpoint("exec-1", "s3", 3, {}, status="failed", error="boom")
            loaded = await it.manager.load_checkpoint("ckpt-exec-1-1")
            assert loaded is not None
            assert (loaded.state, loaded.context, loaded.variables, loaded.step_name) == (
                {"n": 1},
                {"c": 1},
                {"v": 2},
                "s1",
            )
            assert loaded.timestamp.tzinfo is not None
            every = await it.manager.list_checkpoints("exec-1")
            assert [cp.step_index for cp in every] == [0, 1, 2, 3]
            assert (every[3].status, every[3].error) == ("failed", "boom")
            last = await it.manager.get_last_successful_checkpoint("exec-1")
            assert last is not None
            assert last.step_index == 2
            before = await it.manager.get_last_successful_checkpoint("exec-1", before_step=2)
            assert before is not None
            assert before.step_index == 1
            assert await it.manager.get_last_successful_checkpoint("exec-1", before_step=0) is None
            assert await it.manager.get_last_successful_checkpoint("nobody") is None

    run(main())


@on_every_storage
def test_unit_4_parallel_saves_to_one_execution_all_arrive(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            state = {"n": -1}
            tasks: list[Any] = []
            for n in range(40):
                state["n"] = n
                tasks.append(asyncio.create_task(it.manager.create_checkpoint("r", "s", n % 4, dict(state))))
            made = await asyncio.gather(*tasks)
            assert len({cp.id for cp in made}) == 40
            found = await it.manager.list_checkpoints("r")
            assert {cp.id: cp.state for cp in found} == {cp.id: cp.state for cp in made}
            assert sorted(cp.state["n"] for cp in found) == list(range(40))

    run(main())


# -- 单元测试 5: ExecutionRecovery: tests/runner/test_recovery.py has every case; here as the list names them --------


@on_every_storage
def test_unit_5_recovery_succeeds_fails_retries_and_rolls_back(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            left = [2]

            def flaky(ctx: Any) -> dict[str, Any]:
                if left[0] > 0:
                    left[0] -= 1
                    raise ConnectionError("reset")
                return {"flaky": True}

            steps = [Step("a", lambda c: {"a": 1}), Step("b", flaky), Step("c", lambda c: {"c": 1})]
            execution_id = await execute_with_checkpoints(steps, manager=it.manager)
            failed = await it.recovery.resume_from_checkpoint("ckpt-nobody-0", steps)
            assert (failed.success, failed.error) == (False, "Checkpoint ckpt-nobody-0 not found")
            retried = await it.recovery.retry_from_step(execution_id, 1, max_retries=2)
            assert retried.success
            assert len(it.slept) == 1
            resumed = await it.recovery.resume_from_checkpoint(f"ckpt-{execution_id}-1", steps[2:])
            assert resumed.success
            rolled = await it.recovery.rollback_to_checkpoint(f"ckpt-{execution_id}-0")
            assert rolled.success
            assert [cp.step_index for cp in await it.manager.list_checkpoints(execution_id)] == [0]
            assert await it.manager.load_checkpoint(f"ckpt-{execution_id}-1") is None
            history = await it.tracker.get_execution_history(execution_id)
            assert [(s.step_name, s.status) for s in history.steps] == [("a", "success")]

    run(main())


# -- 单元测试 6: ExecutionTracker ----------------------------------------------------------------------------------


def _reset() -> None:
    raise ConnectionError("reset by peer")


class Named:
    def __init__(self, name: str, index: int) -> None:
        self.name, self.index = name, index


@on_every_storage
def test_unit_6_the_tracker(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            await it.tracker.track_step("exec-1", Named("fetch", 0), {"rows": [1]}, 1.25)
            try:
                _reset()
            except ConnectionError as error:
                await it.tracker.track_error("exec-1", Named("call", 1), error)
            await it.tracker.track_error("exec-1", Named("call", 1), "said in words", attempt=2)
            history = await it.tracker.get_execution_history("exec-1")
            first, second, third = history.steps
            assert (first.step_name, first.step_index, first.status, first.result, first.duration) == (
                "fetch", 0, "success", {"rows": [1]}, 1.25,
            )  # fmt: skip
            assert (second.status, second.error, second.error_type) == ("failed", "reset by peer", "ConnectionError")
            assert "test_planned_v2.py" in (second.traceback or "")
            assert (third.error, third.error_type, third.traceback, third.attempt) == ("said in words", None, None, 2)
            assert history.total_duration == 1.25
            assert history.recovery_attempts == 2
            unknown = await it.tracker.get_execution_history("nobody")
            assert (unknown.status, unknown.steps, unknown.last_checkpoint) == ("unknown", [], None)

    run(main())


# -- 集成测试 ------------------------------------------------------------------------------------------------------


@on_every_storage
def test_integration_1_end_to_end(kind: str, tmp_path: Path) -> None:
    """Several steps with a checkpoint after each, a failure in the middle, recovery from the newest, all of it in the
    history."""

    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            left = [1]

            def call(ctx: Any) -> dict[str, Any]:
                if left[0]:
                    left[0] = 0
                    raise TimeoutError("slow")
                return {"called": True}

            steps = [
                Step("a", lambda c: {"a": 1}),
                Step("call", call, retries=2, backoff=0),
                Step("z", lambda c: {"z": 1}),
            ]
            execution_id = await execute_with_checkpoints(steps, manager=it.manager)
            history = await it.tracker.get_execution_history(execution_id)
            assert [(s.step_name, s.attempt, s.status) for s in history.steps] == [
                ("a", 1, "success"), ("call", 1, "failed"), ("call", 2, "success"), ("z", 1, "success"),
            ]  # fmt: skip
            assert [cp.step_name for cp in history.checkpoints] == ["a", "call", "z"]
            assert history.recovery_attempts == 1
            assert (history.status, history.error) == ("success", None)
            assert history.end_time is not None
            log = await it.tracker.execution_log(execution_id)
            assert any("step 1 call failed after" in line and "TimeoutError: slow" in line for line in log)
            assert any(f"checkpoint ckpt-{execution_id}-2 success" in line for line in log)
            assert log[-1].endswith("run success")

    run(main())


def test_integration_2_the_storage_is_chosen_by_a_file(tmp_path: Path) -> None:
    config = tmp_path / "config.json"

    async def once(said: dict[str, Any]) -> None:
        config.write_text(f"// which storage\n{json.dumps({'persistence': said})}", encoding="utf-8")
        async with PersistenceManager(create_storage_from_config(config)).storage as storage:
            manager = CheckpointManager(PersistenceManager(storage))
            execution_id = await execute_with_checkpoints([Step("a", lambda c: {"a": 1})], manager=manager)
            (found,) = await manager.list_checkpoints(execution_id)
            assert found.state == {"a": 1}

    for said in (
        {"storage_type": "sqlite", "base_dir": str(tmp_path / "one")},
        {"storage_type": "sqlite", "path": str(tmp_path / "two.db")},
        {"storage_type": "memory"},
    ):
        run(once(said))


@on_every_storage
def test_integration_3_cleaning_takes_only_what_the_policy_names(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            for n in range(60):
                await it.manager.create_checkpoint("many", "s", n, {"n": n})
            for n in range(3):
                await it.manager.create_checkpoint("few", "s", n, {"n": n})
            dry = await it.manager.clean(keep_last=5, dry_run=True)
            assert (len(dry), len(await it.manager.list_checkpoints("many"))) == (55, 60)
            assert {reason for fate in dry.remove for reason in fate.reasons} == {"keep_last"}
            young = await it.persistence.clean(older_than="30d")
            assert len(young) == 0
            real = await it.manager.clean(keep_last=5)
            assert [fate.row.id for fate in real.remove] == [fate.row.id for fate in dry.remove]
            assert [cp.state["n"] for cp in await it.manager.list_checkpoints("many")] == [55, 56, 57, 58, 59]
            assert len(await it.manager.list_checkpoints("few")) == 3
            assert await it.manager.load_checkpoint("ckpt-many-3") is None

    run(main())


@pytest.mark.parametrize("inner", ["memory", "sqlite", "json", "stranger"])
def test_integration_4_what_is_secret_is_encrypted_at_rest_and_plain_when_loaded(inner: str, tmp_path: Path) -> None:
    async def main() -> None:
        below = STORAGES[inner](tmp_path)
        async with EncryptedStorage(below, key=KEY) as storage:
            manager = CheckpointManager(PersistenceManager(storage))
            await manager.create_checkpoint("exec-classified", "step-classified", 0, {"note": "state-classified"})
            found = await manager.load_checkpoint("ckpt-exec-classified-0")
            assert found is not None
            assert found.state == {"note": "state-classified"}
        if isinstance(below, DictStorage):
            assert below.kept
            assert "classified" not in json.dumps([*below.kept, *below.kept.values()], default=str)

    run(main())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert bool(files) == (inner in ("sqlite", "json"))
    assert all(b"classified" not in path.read_bytes() for path in files)
