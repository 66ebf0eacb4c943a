"""What the managers add to the timeline: first saves, closing, background, cleaning, logs, the blocking front."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.places import STORAGES, desk, on_every_storage, run
from tests.checkpoint.strangers import DictStorage

from knotline import events
from knotline.checkpoint import (
    CheckpointManager,
    ConversationPersistence,
    ExecutionTracker,
    MemoryStorage,
    PersistenceManager,
    SQLiteStorage,
)
from knotline.errors import ConfigError, Unavailable, Unstorable, Unsupported
from knotline.events import Event
from knotline.policy import Retention
from knotline.records import StepRecord
from knotline.runner import Step, execute_with_checkpoints
from knotline.testing import FaultyBackend, Plan

WAIT = 20.0


@on_every_storage
def test_what_is_saved_is_the_value_at_the_time_of_the_call(kind: str, tmp_path: Path) -> None:
    """Also while the storage is still being opened for the very first save."""

    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            state = {"items": [1]}

            async def meddle() -> None:
                for _ in range(50):
                    state["items"].append(9)
                    await asyncio.sleep(0)

            saving = asyncio.create_task(
                it.manager.create_checkpoint("r", "s", 0, state, {"c": state}, messages=[state])
            )
            await asyncio.sleep(0)
            meddling = asyncio.create_task(meddle())
            made = await saving
            await meddling
            found = await it.manager.load_checkpoint(made.id)
            assert found is not None
            assert (found.state, found.context, found.messages) == (
                {"items": [1]}, {"c": {"items": [1]}}, [{"items": [1]}],
            )  # fmt: skip

    run(main())


@on_every_storage
def test_what_cannot_be_stored_is_refused_with_its_path_at_whichever_save(kind: str, tmp_path: Path) -> None:
    bad: dict[str, Any] = {"items": [1, {"lock": threading.Lock()}]}

    async def main() -> None:
        for durability in ("disk", "background"):
            async with desk(kind, tmp_path / durability) as it:
                storage: Any = it.storage
                storage.durability = durability
                for n in range(3):
                    with pytest.raises(Unstorable) as caught:
                        await it.manager.create_checkpoint("r", "s", n, bad)
                    assert caught.value.path == "state.items[1].lock"
                    made = await asyncio.gather(
                        it.manager.create_checkpoint("r", "s", n, {"n": n}),
                        it.manager.create_checkpoint("r", "s", n, {"n": n}, bad),
                        it.manager.create_checkpoint("r", "s", n, {"n": n}),
                        return_exceptions=True,
                    )
                    assert isinstance(made[1], Unstorable)
                    assert made[1].path == "context.items[1].lock"
                found = await it.manager.list_checkpoints("r")
                assert [cp.id for cp in found] == [f"ckpt-r-{n}{more}" for n in range(3) for more in ("", ".2")]

    run(main())


def test_the_log_file_is_written_for_saves_in_the_background_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk("sqlite", tmp_path) as it:
            storage: Any = it.storage
            storage.durability = "background"
            await execute_with_checkpoints([Step("a", lambda c: 1)], manager=it.manager, execution_id="ex")

    run(main())
    (file,) = tmp_path.rglob("execution.log")
    text = file.read_text(encoding="utf-8")
    assert "step 0 a success" in text
    assert "checkpoint ckpt-ex-0 success" in text
    assert text.endswith("run success\n")


def test_a_workspace_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk("memory", tmp_path) as it:
            with pytest.raises(Unsupported, match="workspace"):
                await it.manager.create_checkpoint("r", "s", 0, {}, workspace="somewhere")

    run(main())


def test_no_storage_is_a_typed_error() -> None:
    with pytest.raises(ConfigError, match="storage"):
        PersistenceManager()
    assert isinstance(PersistenceManager(backend=MemoryStorage()).backend, MemoryStorage)


@on_every_storage
def test_closing_twice_in_either_order(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            await it.manager.create_checkpoint("r", "s", 0, {})
            await it.persistence.aclose()
            await it.persistence.aclose()
        async with desk(kind, tmp_path) as it:
            await it.persistence.timeline()
            await it.storage.aclose()
            await it.persistence.aclose()
        async with desk(kind, tmp_path) as it:
            await it.persistence.aclose()  # never opened

    run(main())


# -- durability in the background ----------------------------------------------------------------------------------


@on_every_storage
def test_background_is_drained_by_flush_and_by_closing(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        storage: Any = STORAGES[kind](tmp_path)
        storage.durability = "background"
        persistence = PersistenceManager(storage)
        manager = CheckpointManager(persistence)
        state = {"n": 0}
        for n in range(30):
            state["n"] = n
            made = await manager.create_checkpoint("r", "s", n % 5, state)
            assert made.id == f"ckpt-r-{n % 5}" + (f".{n // 5 + 1}" if n >= 5 else "")
        await persistence.flush()
        assert [cp.state["n"] for cp in await manager.list_checkpoints("r")] == sorted(
            range(30), key=lambda n: (n % 5, n)
        )
        await manager.create_checkpoint("r", "s", 9, {"last": True})
        await persistence.aclose()
        with pytest.raises(Unavailable):
            await manager.create_checkpoint("r", "s", 10, {})
        if kind == "sqlite":
            async with desk(kind, tmp_path) as it:
                assert len(await it.manager.list_checkpoints("r")) == 31

    run(main())


@on_every_storage
def test_a_run_in_the_background_is_recorded_in_order_and_can_be_retried_at_once(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            storage: Any = it.storage
            storage.durability = "background"
            left = [1]

            def flaky(ctx: Any) -> dict[str, Any]:
                if left[0]:
                    left[0] = 0
                    raise TimeoutError("slow")
                return {"flaky": True}

            steps = [Step("a", lambda c: {"a": 1}), Step("b", flaky), Step("c", lambda c: {"c": 1})]
            await execute_with_checkpoints(steps, manager=it.manager, execution_id="ex")
            result = await it.recovery.retry_from_step("ex", 1)
            assert result, result.error
            history = await it.tracker.get_execution_history("ex")
            assert [(s.step_name, s.status) for s in history.steps] == [
                ("a", "success"), ("b", "failed"), ("b", "success"), ("c", "success"),
            ]  # fmt: skip
            assert history.status == "success"
            found = await it.manager.load_checkpoint("ckpt-ex-2")
            assert found is not None
            assert found.state == {"a": 1, "flaky": True, "c": 1}

    run(main())


def test_a_failure_in_the_background_raises_at_the_next_flush_or_at_closing(tmp_path: Path) -> None:
    async def main() -> None:
        for how in ("flush", "aclose"):
            storage: Any = SQLiteStorage(how, tmp_path)
            storage.durability = "background"
            faulty = FaultyBackend(storage.store.backend, Plan(at=2, only="commit"))
            storage.store.backend = faulty
            persistence = PersistenceManager(storage)
            heard: list[Event] = []
            persistence.bus.subscribe(events.SAVE_FAILED, heard.append)
            manager = CheckpointManager(persistence)
            for n in range(4):
                await manager.create_checkpoint("r", "s", n, {"n": n})
            with pytest.raises(Unavailable, match="injected"):
                await getattr(persistence, how)()
            assert faulty.injected == 1
            assert await asyncio.to_thread(persistence.bus.drain)
            assert len(heard) == 1
            await persistence.aclose()
            async with SQLiteStorage(how, tmp_path) as again:
                found = await CheckpointManager(PersistenceManager(again)).list_checkpoints("r")
                assert [cp.step_index for cp in found] == [0, 2, 3]

    run(main())


# -- cleaning ------------------------------------------------------------------------------------------------------


@on_every_storage
def test_cleaning_at_the_start_and_from_time_to_time(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            for n in range(6):
                await it.manager.create_checkpoint("r", "s", n, {"n": n})
            turns, asked = asyncio.Queue[float](), asyncio.Queue[None]()

            async def sleep(seconds: float) -> None:
                await turns.put(seconds)
                await asked.get()

            await it.persistence.clean_always(Retention(keep_last=2), every="5m", sleep=sleep)
            assert await turns.get() == 300.0
            assert len(await it.manager.list_checkpoints("r")) == 2
            for n in range(6, 9):
                await it.manager.create_checkpoint("r", "s", n, {"n": n})
            await asked.put(None)
            await turns.get()
            assert [cp.state["n"] for cp in await it.manager.list_checkpoints("r")] == [7, 8]
            await it.persistence.clean_always(Retention(keep_last=1), every=None)
            await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "knotline-cleaner"))
            assert len(await it.manager.list_checkpoints("r")) == 1
            with pytest.raises(ConfigError, match="every"):
                await it.persistence.clean_always(Retention(), every=0)

    run(main())


def test_a_cleaner_that_fails_is_an_event_and_tries_again_and_ends_with_the_storage(tmp_path: Path) -> None:
    async def main() -> None:
        storage = MemoryStorage()
        persistence = PersistenceManager(storage)
        manager = CheckpointManager(persistence)
        for n in range(4):
            await manager.create_checkpoint("r", "s", n, {})
        faulty = storage.store.backend = FaultyBackend(storage.store.backend, Plan(at=1, only="size"))
        heard: list[Event] = []
        persistence.bus.subscribe(events.CLEANING_FAILED, heard.append)
        turns = asyncio.Queue[float]()

        async def sleep(seconds: float) -> None:
            await turns.put(seconds)
            if turns.qsize() > 1:
                await asyncio.sleep(WAIT)

        await persistence.clean_always(Retention(keep_last=1), sleep=sleep)
        async with asyncio.timeout(WAIT):
            while len(await manager.list_checkpoints("r")) > 1:  # noqa: ASYNC110 - the store cannot tell us
                await asyncio.sleep(0.005)
        assert faulty.injected == 1
        assert await asyncio.to_thread(persistence.bus.drain)
        assert [type(it["error"]) for it in heard] == [Unavailable]
        await persistence.aclose()
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "knotline-cleaner"]

    run(main())


# -- logs ----------------------------------------------------------------------------------------------------------


def test_the_log_is_a_file_too_without_secrets_and_not_beside_an_encrypted_store(tmp_path: Path) -> None:
    secret = "sk-CANARYcanaryCANARY0123456789"

    def fail(ctx: Any) -> None:
        raise ValueError(f"refused {secret}\nand a second line")

    async def main(kind: str) -> list[str]:
        async with desk(kind, tmp_path / kind) as it:
            await execute_with_checkpoints(
                [Step("a", lambda c: {"k": secret}), Step("b", fail)], manager=it.manager, execution_id="../run"
            )
            await it.recovery.rollback_to_checkpoint("ckpt-../run-0")
            await it.recovery.undo("../run")
            return await it.tracker.execution_log("../run")

    said = asyncio.run(main("sqlite"))
    (file,) = (tmp_path / "sqlite").rglob("execution.log")
    text = file.read_text(encoding="utf-8")
    assert "sk-" not in text + "\n".join(said)
    assert file.stat().st_mode & 0o077 == 0
    for lines in (said, text.splitlines()):
        assert [line.split(" ", 1)[1].split(" after")[0] for line in lines][:3] == [
            "run running",
            "step 0 a success in " + lines[1].rsplit(" ", 1)[1],
            "checkpoint ckpt-../run-0 success",
        ]
        assert any("step 1 b failed" in line and line.endswith("ValueError: refused [redacted]") for line in lines)
        assert any(line.endswith("run failed: ValueError: refused [redacted]") for line in lines)
        assert any("rollback ckpt-../run-0" in line for line in lines)
    asyncio.run(main("encrypted"))
    assert list((tmp_path / "encrypted").rglob("execution.log")) == []


@on_every_storage
def test_the_log_can_be_tailed_while_the_run_goes_on(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            go = asyncio.Event()

            async def wait(ctx: Any) -> None:
                await go.wait()

            async def follow() -> list[str]:
                seen: list[str] = []

                async def sleep(seconds: float) -> None:
                    if any("checkpoint ckpt-ex-0" in line for line in seen):
                        go.set()
                    await asyncio.sleep(0.001)

                async for line in it.tracker.tail("ex", sleep=sleep):
                    seen.append(line)  # noqa: PERF401 - looked at while it grows
                return seen

            following = asyncio.create_task(follow())
            steps = [Step("a", lambda c: None), Step("wait", wait), Step("z", lambda c: None)]
            await execute_with_checkpoints(steps, manager=it.manager, execution_id="ex")
            seen = await asyncio.wait_for(following, WAIT)
            assert seen == await it.tracker.execution_log("ex")
            assert seen[-1].endswith("run success")

    run(main())


@on_every_storage
def test_a_record_and_its_checkpoint_are_one_entry(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(kind, tmp_path) as it:
            timeline = await it.persistence.timeline()
            await execute_with_checkpoints([Step("a", lambda c: 1)], manager=it.manager, execution_id="ex")
            assert timeline.store.header("ex").rev == 1  # begun; the step, its checkpoint and the end in one
            large = StepRecord(
                step_name="b",
                step_index=1,
                timestamp=(await it.manager.list_checkpoints("ex"))[0].timestamp,
                result="x" * 9000,
            )
            await it.manager.create_checkpoint("ex", "b", 1, {}, record=large)
            history = await ExecutionTracker(it.persistence).get_execution_history("ex")
            assert [step.result for step in history.steps] == [1, "x" * 9000]

    run(main())


# -- the blocking front --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORAGES)
def test_conversations_for_callers_that_cannot_await(kind: str, tmp_path: Path) -> None:
    front = ConversationPersistence(STORAGES[kind](tmp_path))
    talk = [{"role": "user", "content": "hi"}]
    assert front.load_conversation("c1") is None
    assert front.save_conversation("c1", talk, title="first")
    assert front.load_conversation("c1") == {"messages": talk, "title": "first"}
    seen: list[Any] = []

    def work(n: int) -> None:
        front.save_conversation(f"t{n}", talk)
        seen.append(front.load_conversation(f"t{n}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [{"messages": talk}] * 8
    assert sorted(front.list_conversations()) == sorted(["c1", *(f"t{n}" for n in range(8))])
    assert front.delete_conversation("c1") is True
    assert front.delete_conversation("c1") is False
    closers = [threading.Thread(target=front.close) for _ in range(4)]
    for thread in closers:
        thread.start()
    for thread in closers:
        thread.join()
    front.close()
    with pytest.raises(Unavailable, match="closed"):
        front.load_conversation("t1")


def test_closing_the_blocking_front_lets_others_finish() -> None:
    storage = DictStorage()
    entered, go = threading.Event(), threading.Event()

    class Slow(DictStorage):
        async def load(self, category: str, key: str) -> dict[str, Any] | None:
            entered.set()
            await asyncio.to_thread(go.wait, WAIT)
            return await super().load(category, key)

    front = ConversationPersistence(Slow(storage.kept))
    seen: list[Any] = []
    other = threading.Thread(target=lambda: seen.append(front.load_conversation("c")))
    other.start()
    assert entered.wait(WAIT)
    closing = threading.Thread(target=front.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go.set()
    closing.join(WAIT)
    other.join(WAIT)
    assert seen == [None]


def test_the_configuration_names_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KNOTLINE_STORAGE_TYPE", "sqlite")
    monkeypatch.setenv("KNOTLINE_PATH", str(tmp_path / "named.db"))
    front = ConversationPersistence()
    front.save_conversation("c", [])
    front.close()
    assert (tmp_path / "named.db").exists()
