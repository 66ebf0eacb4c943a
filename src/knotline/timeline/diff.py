"""What is different between two checkpoints: values by path, the conversation by message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Final, Literal, cast

from knotline.codec import encode, exact, private, same, show_path
from knotline.records import Checkpoint

__all__ = ["Change", "Diff", "MessageChange", "diff"]

_LONGEST: Final = 2000
"""Lists longer than this are compared by their common ends: the exact way takes the square of it."""


@dataclass(frozen=True, slots=True)
class Change:
    """`path` as it is written in messages (`items[3].name`); `before` or `after` is None where there is nothing."""

    path: str
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True)
class MessageChange:
    """Messages `at…` of the first conversation that were replaced by others, in their order."""

    at: int
    removed: list[Any]
    added: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """From checkpoint `a` to checkpoint `b`. Falsy when nothing differs."""

    a: str
    b: str
    state: list[Change] = field(default_factory=list[Change])
    context: list[Change] = field(default_factory=list[Change])
    variables: list[Change] = field(default_factory=list[Change])
    conversation: list[MessageChange] = field(default_factory=list[MessageChange])

    def __bool__(self) -> bool:
        return bool(self.state or self.context or self.variables or self.conversation)


def diff(a: Checkpoint, b: Checkpoint) -> Diff:
    return Diff(
        a=a.id,
        b=b.id,
        state=list(_values((), a.state, b.state)),
        context=list(_values((), a.context, b.context)),
        variables=list(_values((), a.variables, b.variables)),
        conversation=_messages(a.messages or [], b.messages or []),
    )


def _values(path: tuple[object, ...], a: Any, b: Any) -> Iterator[Change]:
    if isinstance(a, dict) and isinstance(b, dict):
        yield from _dicts(path, cast("dict[Any, Any]", a), cast("dict[Any, Any]", b))
    elif exact(cast("object", a)) is exact(cast("object", b)) and isinstance(a, list):
        yield from _lists(path, cast("list[Any]", a), cast("list[Any]", b))
    elif not _alike(a, b):
        yield Change(_shown(path), "changed", a, b)


def _dicts(path: tuple[object, ...], a: Mapping[Any, Any], b: Mapping[Any, Any]) -> Iterator[Change]:
    for key, before in a.items():
        if key in b:
            yield from _values((*path, key), before, b[key])
        else:
            yield Change(_shown((*path, key)), "removed", before=before)
    for key, after in b.items():
        if key not in a:
            yield Change(_shown((*path, key)), "added", after=after)


def _lists(path: tuple[object, ...], a: list[Any], b: list[Any]) -> Iterator[Change]:
    for at, gone, to, come in _edits(a, b):
        for step in range(min(gone, come)):
            yield from _values((*path, to + step), a[at + step], b[to + step])
        for step in range(come, gone):
            yield Change(_shown((*path, at + step)), "removed", before=a[at + step])
        for step in range(gone, come):
            yield Change(_shown((*path, to + step)), "added", after=b[to + step])


def _messages(a: list[Any], b: list[Any]) -> list[MessageChange]:
    return [MessageChange(at, a[at : at + gone], b[to : to + come]) for at, gone, to, come in _edits(a, b)]


def _edits(a: list[Any], b: list[Any]) -> list[tuple[int, int, int, int]]:
    """`(at, gone, to, come)`: what of `a` is replaced by what of `b`."""
    ours, theirs = [_key(item) for item in a], [_key(item) for item in b]
    front = 0
    while front < min(len(ours), len(theirs)) and ours[front] == theirs[front]:
        front += 1
    back = 0
    while back < min(len(ours), len(theirs)) - front and ours[-1 - back] == theirs[-1 - back]:
        back += 1
    ours, theirs = ours[front : len(ours) - back], theirs[front : len(theirs) - back]
    if not ours and not theirs:
        return []
    if max(len(ours), len(theirs)) > _LONGEST:
        return [(front, len(ours), front, len(theirs))]
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    return [
        (front + i1, i2 - i1, front + j1, j2 - j1) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"
    ]


def _key(value: Any) -> bytes:
    """Equal bytes exactly where values are equal to us: `1` is not `True`."""
    return encode(private(value, "value"))


def _alike(a: Any, b: Any) -> bool:
    return same(private(a, "value"), private(b, "value"))


def _shown(path: tuple[object, ...]) -> str:
    return show_path(path).lstrip(".")
