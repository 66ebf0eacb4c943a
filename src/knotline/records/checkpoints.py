"""What a checkpoint is: the whole of it, and the header by which it is listed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, cast

__all__ = ["STATUSES", "Checkpoint", "CheckpointHeader", "CheckpointMetadata", "checkpoint_id", "moment"]

STATUSES: Final = ("success", "failed", "pending")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OWN: Final = ("creator", "description", "tags")


def moment(at: int) -> datetime:
    """A time of the log, in microseconds, as a person's."""
    return _EPOCH + timedelta(microseconds=at)


def checkpoint_id(execution_id: str, step_index: int, attempt: int = 1) -> str:
    """As they are promised to look. An id is a name that is kept in its entry; nobody takes it apart."""
    return f"ckpt-{execution_id}-{step_index}" + ("" if attempt == 1 else f".{attempt}")


class CheckpointMetadata(Mapping[str, Any]):
    """Who made a checkpoint, why, its tags, and fields of one's own; a mapping of all that was said, too."""

    __slots__ = ("creator", "custom_fields", "description", "tags")

    creator: str | None
    description: str | None
    tags: tuple[str, ...]
    custom_fields: Mapping[str, Any]

    def __init__(
        self,
        creator: str | None = None,
        description: str | None = None,
        tags: Iterable[str] | None = (),
        custom_fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.creator = creator
        self.description = description
        # A single text is one tag, not its letters.
        self.tags = (tags,) if isinstance(tags, str) else tuple(sorted(tags) if isinstance(tags, set) else tags or ())
        self.custom_fields = dict(custom_fields or {})

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> CheckpointMetadata:
        """What a caller said; fields under the names above that do not fit them stay fields of their own."""
        if isinstance(said, CheckpointMetadata):
            return said
        rest = dict(said or {})
        creator, description, tags = rest.get("creator"), rest.get("description"), rest.get("tags")
        own: dict[str, Any] = {}
        if isinstance(creator, str):
            own["creator"] = rest.pop("creator")
        if isinstance(description, str):
            own["description"] = rest.pop("description")
        if isinstance(tags, list | tuple) and all(isinstance(tag, str) for tag in cast("list[object]", tags)):
            own["tags"] = rest.pop("tags")
        return cls(**own, custom_fields=rest)

    def to_dict(self) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if self.creator is not None:
            said["creator"] = self.creator
        if self.description is not None:
            said["description"] = self.description
        if self.tags:
            said["tags"] = list(self.tags)
        return {**said, **self.custom_fields}

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self.to_dict() == dict(cast("Mapping[str, Any]", other))

    __hash__ = None  # as for every mapping of things that can change

    def __repr__(self) -> str:
        return f"CheckpointMetadata({self.to_dict()!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """All of a checkpoint but what it holds: enough to list, to choose and to decide."""

    id: str
    execution_id: str
    step_name: str
    step_index: int
    attempt: int
    status: str
    timestamp: datetime
    rev: int
    parent: int
    size: int
    """Bytes that this save brought; not those it shares with others."""
    error: str | None = None
    metadata: CheckpointMetadata = field(default_factory=CheckpointMetadata)
    workflow_id: str | None = None
    pinned: bool = False
    origin: str | None = None
    """The checkpoint of another run that this one was forked from."""
    cursor: int = -1

    @property
    def thread_id(self) -> str:
        return self.execution_id

    @property
    def tags(self) -> tuple[str, ...]:
        return self.metadata.tags

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "execution_id": self.execution_id,
            "step_name": self.step_name,
            "step_index": self.step_index,
            "attempt": self.attempt,
            "timestamp": self.timestamp.isoformat(),
            "status": self.status,
            "error": self.error,
            "metadata": self.metadata.to_dict(),
            "workflow_id": self.workflow_id,
            "size": self.size,
            "pinned": self.pinned,
            "origin": self.origin,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A knot: everything that a run was at one moment."""

    id: str
    execution_id: str
    step_name: str
    step_index: int
    timestamp: datetime
    state: Any
    context: Any = field(default_factory=dict[str, Any])
    variables: Any = field(default_factory=dict[str, Any])
    status: str = "success"
    error: str | None = None
    metadata: CheckpointMetadata = field(default_factory=CheckpointMetadata)
    attempt: int = 1
    workflow_id: str | None = None
    messages: list[Any] | None = None
    """The conversation; None when the run has none."""

    def __post_init__(self) -> None:
        if type(self.metadata) is not CheckpointMetadata:
            object.__setattr__(self, "metadata", CheckpointMetadata.of(self.metadata))

    @property
    def thread_id(self) -> str:
        return self.execution_id

    def to_dict(self) -> dict[str, Any]:
        """The promised form: ISO 8601 with a zone, the rest as it is."""
        said: dict[str, Any] = {
            "id": self.id,
            "execution_id": self.execution_id,
            "step_name": self.step_name,
            "step_index": self.step_index,
            "timestamp": self.timestamp.isoformat(),
            "state": self.state,
            "context": self.context,
            "variables": self.variables,
            "status": self.status,
            "error": self.error,
            "metadata": self.metadata.to_dict(),
        }
        if self.attempt != 1:
            said["attempt"] = self.attempt
        if self.workflow_id is not None:
            said["workflow_id"] = self.workflow_id
        if self.messages is not None:
            said["messages"] = self.messages
        return said

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        said: Any = data["timestamp"]
        at = said if isinstance(said, datetime) else datetime.fromisoformat(said)
        return cls(
            id=data["id"],
            execution_id=data["execution_id"],
            step_name=data["step_name"],
            step_index=data["step_index"],
            # Older times have no zone; what they meant was the machine's own.
            timestamp=at if at.tzinfo is not None else at.astimezone(),
            state=data["state"],
            context=data.get("context", {}),
            variables=data.get("variables", {}),
            status=data.get("status", "success"),
            error=data.get("error"),
            metadata=CheckpointMetadata.of(data.get("metadata")),
            attempt=data.get("attempt", 1),
            workflow_id=data.get("workflow_id"),
            messages=data.get("messages"),
        )
