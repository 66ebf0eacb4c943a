"""What a run did: its steps over all attempts. Totals are derived, so that they cannot disagree with the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from knotline.records.checkpoints import Checkpoint, CheckpointHeader

__all__ = ["ExecutionHistory", "RunSummary", "StepRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One attempt at one step. `timestamp` is when it ended."""

    step_name: str
    step_index: int
    timestamp: datetime
    attempt: int = 1
    status: str = "success"
    input: Any = None
    result: Any = None
    error: str | None = None
    error_type: str | None = None
    traceback: str | None = None
    duration: float = 0.0
    execution_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "execution_id": self.execution_id,
            "step_name": self.step_name,
            "step_index": self.step_index,
            "attempt": self.attempt,
            "status": self.status,
            "input": self.input,
            "result": self.result,
            "error": self.error,
            "error_type": self.error_type,
            "traceback": self.traceback,
            "duration": self.duration,
            "timestamp": self.timestamp.isoformat(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        at: Any = data["timestamp"]
        said: dict[str, Any] = {**data, "timestamp": at if isinstance(at, datetime) else datetime.fromisoformat(at)}
        return cls(**said)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list of runs."""

    execution_id: str
    status: str
    workflow_id: str | None
    newest: CheckpointHeader | None
    timestamp: datetime
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionHistory:
    """The fold of a run's log. `resumed` counts the ways back that did not answer a failed attempt."""

    execution_id: str
    steps: list[StepRecord] = field(default_factory=list[StepRecord])
    checkpoints: list[CheckpointHeader] = field(default_factory=list[CheckpointHeader])
    status: str = "running"
    error: str | None = None
    workflow_id: str | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    resumed: int = 0
    last_checkpoint: Checkpoint | None = None

    @property
    def total_duration(self) -> float:
        return sum(step.duration for step in self.steps)

    @property
    def recovery_attempts(self) -> int:
        """Each failed attempt is one, and so is each resume or retry after a death that left none."""
        return self.resumed + sum(step.status == "failed" for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        return {
            "execution_id": self.execution_id,
            "status": self.status,
            "error": self.error,
            "workflow_id": self.workflow_id,
            "start_time": None if self.start_time is None else self.start_time.isoformat(),
            "end_time": None if self.end_time is None else self.end_time.isoformat(),
            "total_duration": self.total_duration,
            "recovery_attempts": self.recovery_attempts,
            "steps": [step.to_dict() for step in self.steps],
            "checkpoints": [each.to_dict() for each in self.checkpoints],
            "last_checkpoint": None if self.last_checkpoint is None else self.last_checkpoint.id,
        }
