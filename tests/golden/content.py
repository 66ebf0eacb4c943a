"""What the golden stores hold. `python -m tests.golden.content NAME` makes one of the present format; old ones stay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

from knotline import SqliteBackend, Store, freeze, serializable

HERE = Path(__file__).parent


@serializable(name="golden.Colour")
class Colour(Enum):
    RED = "red"


@serializable(name="golden.Point")
class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def to_dict(self) -> dict[str, int]:
        return {"x": self.x, "y": self.y}

    @classmethod
    def from_dict(cls, data: dict[str, int]) -> Point:
        return cls(**data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def states() -> Iterator[Any]:
    """The states of run "all", one by one: every type, every operation, leaves, nodes, tables and large values."""
    state: dict[str, Any] = {
        "types": {
            "none": None,
            "bool": [True, False],
            "int": [0, -1, 2**63, -(2**70)],
            "float": [1.5, -0.0, float("inf")],
            "text": ["", "naïve 模型", "\ud800"],
            "bytes": [b"\x00\xff", bytearray(b"b")],
            "times": [datetime(2026, 11, 18, 12, 30, tzinfo=UTC), date(2026, 11, 18), timedelta(seconds=-1)],
            "others": [Decimal("1.50"), UUID(int=7), PurePosixPath("a/b"), (1, (2, [3])), {1, 2}, frozenset({"x"})],
            "keys": {1: "int", (1, 2): "tuple", None: "none"},
            "users": [Colour.RED, Point(1, 2)],
        },
        "messages": [],
        "still": {f"setting {n}": "value " * 12 for n in range(40)},
    }
    yield state
    for n in range(150):
        state["messages"] += [
            {"role": "user", "content": f"question {n} " + "words and more words " * 10},
            freeze({"role": "assistant", "content": f"answer {n} " + "of some length " * 12, "n": n}),
        ]
        if n % 40 == 7:
            state["messages"][0]["seen"] = n
        if n % 50 == 9:
            del state["messages"][2:4]
        if n == 60:
            state["table"] = dict[str, Any]((f"key {k}", {"value": k}) for k in range(400))
        if n == 61:
            state["table"]["key 7"]["value"] = "changed"
            del state["table"]["key 8"]
        if n == 70:
            state["large"] = "large text " * 1000
        if n == 71:
            state["large"] += "and longer"
        if n == 80:
            state["still"] = dict(reversed(state["still"].items()))
        yield state


def build(place: Path) -> None:
    ticks = count(1_700_000_000_000_000)
    with Store(SqliteBackend(place), clock=lambda: next(ticks), entropy=lambda n: b"\x05" * n) as store:
        for n, state in enumerate(states()):
            store.append("all", state, note={"step": n}, labels=[f"step={n}"])
        store.fork("all", "fork", rev=100)
        store.append("fork", {"left": "all"})
        store.rollback("all", 50)
        store.undo("all")
        store.annotate("all", {"why": "golden"})
        store.put("config", "settings", {"theme": "dark"})
        held = store.acquire("held", "somebody", ttl=0.001)
        store.append("held", [1], held=held)
        store.attach("held", 0, "task", 0, {"result": (1, 2)})
        store.append("short", {"n": 0})
        for n in range(1, 40):
            store.append("short", {"n": n})
        store.prune("short", keep_from=39)
        store.append("gone", {})
        store.delete("gone")


if __name__ == "__main__":
    build(HERE / sys.argv[1])
