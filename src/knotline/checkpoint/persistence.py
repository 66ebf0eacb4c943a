"""One place for all that an application keeps: documents by category, and checkpoints on the same storage.

A checkpoint is not a document here but an entry of its run's log, so that it costs what changed and can be rolled
back, forked and compared; by these methods it is saved and loaded like any document.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar, Unpack, cast

from knotline.checkpoint.base import BaseStorage, Names
from knotline.checkpoint.cleaner import Cleaner
from knotline.checkpoint.execution_log import (
    LogFiles,
    checkpoint_line,
    line_of,
    log_file,
    move_line,
    status_line,
)
from knotline.checkpoint.storage import create_storage_from_config
from knotline.codec import private, public
from knotline.errors import ConfigError, NotFound, Unavailable
from knotline.events import CLEANING_FAILED, Bus
from knotline.policy import CleanReport, Redaction, Retention, seconds
from knotline.records import Checkpoint, CheckpointHeader, StepRecord, moment
from knotline.timeline import Moved, Saving, Tied, Timeline
from knotline.timeline.notes import record_of

__all__ = ["ConversationPersistence", "PersistenceManager"]

_T = TypeVar("_T")
_PAGE: Final = 1000


class PersistenceManager:
    """Save, load, delete and list, category by category, on any storage. `backend=` is the older spelling.

    What runs and conversations hold is redacted; configurations, sessions and agents' states are kept as they are
    given, since an application saves these by name to have them back.
    """

    def __init__(
        self,
        storage: BaseStorage | None = None,
        *,
        backend: BaseStorage | None = None,
        redaction: Redaction | None = None,
        bus: Bus | None = None,
    ) -> None:
        chosen = storage if storage is not None else backend
        if chosen is None:
            raise ConfigError("argument", "storage", found="nothing", wanted="a storage, such as SQLiteStorage()")
        self.storage: BaseStorage = chosen
        self._redaction = redaction or Redaction()
        self._bus = bus or Bus()
        self._timeline: Timeline | None = None
        self._cleaner: Cleaner | None = None
        self._logs = LogFiles()
        weakref.finalize(self, self._logs.close)
        self._lock = threading.Lock()

    @property
    def bus(self) -> Bus:
        """Where to hear of what happens here."""
        return self._bus

    @property
    def backend(self) -> BaseStorage:
        return self.storage

    # -- the way to checkpoints --------------------------------------------------------------------------------

    async def timeline(self) -> Timeline:
        """The timeline on this storage, opened when it is first asked for."""
        if self._timeline is None:
            store = await self.storage.opened()
            with self._lock:
                if self._timeline is None:
                    self._timeline = Timeline(
                        store,
                        bus=self._bus,
                        redaction=self._redaction,
                        durability=getattr(self.storage, "durability", "disk"),
                        shown=self.storage.shown,
                    )
        return self._timeline

    async def cross(self, verb: Callable[[Timeline], _T]) -> _T:
        """Ask the timeline something, on a thread."""
        timeline = await self.timeline()
        return await self.storage.gate.call(verb, timeline)

    async def saving(self, execution_id: str, **tied: Unpack[Tied]) -> Saving:
        """As `Timeline.saving`, of the values at the time of the call."""
        if self._timeline is None:
            # Opening takes a moment, and whoever shares the state goes on meanwhile.
            values = cast("dict[str, Any]", tied)
            for name in ("state", "context", "variables", "messages"):
                if name in values:
                    values[name] = public(private(values[name], name))
        timeline = await self.timeline()
        return timeline.saving(execution_id, **tied)

    async def tie(self, saving: Saving) -> Checkpoint:
        """Save a checkpoint; those of concurrent runs share one sync."""
        timeline = await self.timeline()
        gate = self.storage.gate
        if timeline.durability == "background":
            value = timeline.copied(saving)
            # It may wait or has to read: not on the loop.
            aside = timeline.crowded or not timeline.known(saving)
            made = (
                await gate.call(timeline.save_behind, saving, value) if aside else timeline.save_behind(saving, value)
            )
        else:
            header = await gate.append(
                saving.execution_id, saving.value, note=saving.decide, sync=timeline.durability == "disk"
            )
            made = await gate.call(timeline.saved, saving, header) if saving.large else timeline.saved(saving, header)
        if self.storage.logs is not None:
            lines = [checkpoint_line(made.timestamp, made.id, made.status)]
            if saving.record is not None:
                lines.insert(0, line_of(record_of(made.execution_id, saving.record, made.timestamp)))
            if saving.run_status is not None:
                lines.append(status_line(made.timestamp, saving.run_status))
            self.log(made.execution_id, "\n".join(lines))
        return made

    def log(self, execution_id: str, line: str) -> None:
        """One line more in the file that a person may tail. A convenience: the run's own log is in the store."""
        file = log_file(self.storage, execution_id)
        if file is not None and self._timeline is not None:
            with contextlib.suppress(OSError):
                self._logs.append(file, self._timeline.redaction.text(line))

    async def say(self, execution_id: str, status: str, **more: Any) -> None:
        """How the run stands, as `Timeline.say`."""
        timeline = await self.timeline()
        await self.storage.gate.call(timeline.say, execution_id, status, **more)
        at = moment(timeline.store.clock())
        self.log(execution_id, status_line(at, status, why=more.get("why"), error=more.get("error")))

    async def rollback(self, checkpoint_id: str, *, why: str = "rollback") -> Moved:
        """As `Timeline.rollback`."""
        return await self._moved(lambda timeline: timeline.rollback(checkpoint_id, why=why), f"{why} {checkpoint_id}")

    async def restart(self, execution_id: str, *, why: str) -> Moved:
        """As `Timeline.restart`."""
        return await self._moved(lambda timeline: timeline.restart(execution_id, why=why), f"{why} from the beginning")

    async def undo(self, execution_id: str) -> Moved:
        return await self._moved(lambda timeline: timeline.undo(execution_id), "undo")

    async def redo(self, execution_id: str) -> Moved:
        return await self._moved(lambda timeline: timeline.redo(execution_id), "redo")

    async def _moved(self, verb: Callable[[Timeline], Moved], what: str) -> Moved:
        moved = await self.cross(verb)
        timeline = await self.timeline()
        self.log(moved.execution_id, move_line(moment(timeline.store.clock()), what))
        return moved

    async def record(self, execution_id: str, record: StepRecord) -> None:
        """One attempt at a step, as `Timeline.record`."""
        timeline = await self.timeline()
        await self.storage.gate.call(timeline.record, execution_id, record)
        self.log(execution_id, line_of(record))

    async def clean(
        self,
        *,
        execution_id: str | None = None,
        older_than: str | float | timedelta | None = None,
        keep_last: int | None = None,
        max_size: str | int | None = None,
        status: str | None = None,
        min_retention: int = 1,
        dry_run: bool = False,
    ) -> CleanReport:
        """What goes, what stays, and why; unless it is a dry run, it then goes. `"30d"` and `"2GB"` are understood."""
        retention = Retention.of(
            older_than=older_than,
            keep_last=keep_last,
            max_size=max_size,
            status=status,
            min_retention=min_retention,
        )
        return await self._clean(retention, execution_id=execution_id, dry_run=dry_run)

    async def _clean(
        self, retention: Retention, *, execution_id: str | None = None, dry_run: bool = False
    ) -> CleanReport:
        return await self.cross(lambda timeline: timeline.clean(retention, execution_id=execution_id, dry_run=dry_run))

    async def clean_always(
        self,
        retention: Retention,
        *,
        every: str | float | timedelta | None = "1h",
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Clean now and then `every` so often (None: only now), beside the work, until this is closed.

        A turn that fails is the event `CLEANING_FAILED`. Another call takes the place of the one before.
        """
        timeline = await self.timeline()
        pause = None if every is None else seconds(every, "every")
        if pause == 0:
            raise ConfigError("argument", "every", found=repr(every), wanted="more than 0, or None")
        if self._cleaner is not None:
            await self._cleaner.aclose()

        def failed(error: Exception) -> None:
            timeline.bus.emit(CLEANING_FAILED, "", error=error)

        self._cleaner = Cleaner(lambda: self._clean(retention), every=pause, failed=failed, sleep=sleep)

    async def flush(self) -> None:
        """Wait for what is saved in the background; raises the first failure among it."""
        await self.cross(Timeline.flush)

    async def aclose(self) -> None:
        """Drain what is saved in the background, and close the storage."""
        try:
            if self._cleaner is not None:
                await self._cleaner.aclose()
            if self._timeline is not None:
                # Not through the gate: the storage may have been closed before us.
                await asyncio.to_thread(self._timeline.drain)
        finally:
            self._logs.close()
            await self.storage.aclose()

    # -- checkpoints -------------------------------------------------------------------------------------------

    async def save_checkpoint(self, checkpoint: Checkpoint | Mapping[str, Any]) -> str:
        """Under the id that it has, whatever that looks like. A second one of an id stands before the first."""
        it = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint.from_dict(checkpoint)
        saving = await self.saving(
            it.execution_id,
            step_name=it.step_name,
            step_index=it.step_index,
            state=it.state,
            context=it.context,
            variables=it.variables,
            status=it.status,
            error=it.error,
            metadata=it.metadata,
            messages=it.messages,
            workflow_id=it.workflow_id,
            id=it.id,
            attempt=it.attempt,
            timestamp=it.timestamp,
        )
        await self.tie(saving)
        return self.storage.place_of("checkpoint", it.id)

    async def load_checkpoint(self, checkpoint_id: str) -> Checkpoint | None:
        try:
            return await self.cross(lambda timeline: timeline.load(checkpoint_id))
        except NotFound as error:
            if error.kind != "checkpoint":
                raise  # what it is made of is missing, which is not the same as nothing
            return None

    async def list_checkpoints(self, execution_id: str) -> Names:
        """Ids in the order of their steps; of no other execution, however alike its name is."""
        return [it.id for it in await self.headers(execution_id)]

    async def headers(self, execution_id: str) -> list[CheckpointHeader]:
        """All checkpoints in sight, by step; of several under one id the newest."""
        return await self.cross(lambda timeline: in_order(timeline, execution_id))

    async def delete_checkpoint(self, checkpoint_id: str) -> bool:
        return await self.cross(lambda timeline: timeline.delete(checkpoint_id))

    # -- conversations -----------------------------------------------------------------------------------------

    async def save_conversation(self, conv_id: str, conversation: Mapping[str, Any]) -> str:
        return await self.storage.save("conversation", conv_id, self._redaction.note(conversation, conv_id))

    async def load_conversation(self, conv_id: str) -> dict[str, Any] | None:
        return await self.storage.load("conversation", conv_id)

    async def list_conversations(self) -> Names:
        return await self.storage.list("conversation")

    async def delete_conversation(self, conv_id: str) -> bool:
        return await self.storage.delete("conversation", conv_id)

    # -- histories, as an application keeps them; a run's own is `ExecutionTracker.get_execution_history` ----------

    async def save_history(self, execution_id: str, history: Mapping[str, Any]) -> str:
        return await self.storage.save("history", execution_id, self._redaction.note(history, execution_id))

    async def load_history(self, execution_id: str) -> dict[str, Any] | None:
        return await self.storage.load("history", execution_id)

    async def list_histories(self) -> Names:
        return await self.storage.list("history")

    async def delete_history(self, execution_id: str) -> bool:
        return await self.storage.delete("history", execution_id)

    list_historys = list_histories
    """As `list_` + category + `s` spells it."""

    # -- configuration -----------------------------------------------------------------------------------------

    async def save_config(self, config_name: str, config: Mapping[str, Any]) -> str:
        return await self.storage.save("config", config_name, dict(config))

    async def load_config(self, config_name: str) -> dict[str, Any] | None:
        return await self.storage.load("config", config_name)

    async def list_configs(self) -> Names:
        return await self.storage.list("config")

    async def delete_config(self, config_name: str) -> bool:
        return await self.storage.delete("config", config_name)

    # -- agents ------------------------------------------------------------------------------------------------

    async def save_agent_state(self, agent_id: str, state: Mapping[str, Any]) -> str:
        return await self.storage.save("agent_state", agent_id, dict(state))

    async def load_agent_state(self, agent_id: str) -> dict[str, Any] | None:
        return await self.storage.load("agent_state", agent_id)

    async def list_agent_states(self) -> Names:
        return await self.storage.list("agent_state")

    async def delete_agent_state(self, agent_id: str) -> bool:
        return await self.storage.delete("agent_state", agent_id)

    # -- sessions ----------------------------------------------------------------------------------------------

    async def save_session(self, session_id: str, session: Mapping[str, Any]) -> str:
        return await self.storage.save("session", session_id, dict(session))

    async def load_session(self, session_id: str) -> dict[str, Any] | None:
        return await self.storage.load("session", session_id)

    async def list_sessions(self) -> Names:
        return await self.storage.list("session")

    async def delete_session(self, session_id: str) -> bool:
        return await self.storage.delete("session", session_id)


def in_order(timeline: Timeline, execution_id: str) -> list[CheckpointHeader]:
    """Every checkpoint of a run in sight, by step and attempt; the newest of those that share an id."""
    newest: dict[str, CheckpointHeader] = {}
    after: int | None = None
    while True:
        page = timeline.list(execution_id, limit=_PAGE, after=after)
        for it in page.items:
            newest.setdefault(it.id, it)
        if page.next is None:
            return sorted(newest.values(), key=lambda it: (it.step_index, it.rev))
        after = page.next


class ConversationPersistence:
    """The old front for callers that cannot await: plain methods that return when it is done.

    Without a storage it is the one that the configuration names. Not for use on a running event loop's own thread.
    """

    def __init__(self, storage: BaseStorage | PersistenceManager | None = None) -> None:
        made = create_storage_from_config() if storage is None else storage
        self.manager = made if isinstance(made, PersistenceManager) else PersistenceManager(made)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="knotline-conversations", daemon=True)
        self._thread.start()

        self._lock = threading.Lock()
        self._closed = False

    def _wait(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        with self._lock:
            if self._closed:
                raise Unavailable(type(self).__name__, why="it is closed")
            waiting = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return waiting.result()

    def save_conversation(self, conv_id: str, messages: list[Any], **more: Any) -> str:
        return self._wait(lambda: self.manager.save_conversation(conv_id, {**more, "messages": messages}))

    def load_conversation(self, conv_id: str) -> dict[str, Any] | None:
        return self._wait(lambda: self.manager.load_conversation(conv_id))

    def list_conversations(self) -> Names:
        return self._wait(self.manager.list_conversations)

    def delete_conversation(self, conv_id: str) -> bool:
        return self._wait(lambda: self.manager.delete_conversation(conv_id))

    def close(self) -> None:
        """What is under way in other threads ends first. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await self.manager.aclose()
