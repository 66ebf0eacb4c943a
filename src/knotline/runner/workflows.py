"""Registered workflows: what code a run executes, so that another process can go on with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from knotline.errors import NotFound
from knotline.runner.steps import named

__all__ = ["WORKFLOWS", "WorkflowRegistry"]


class WorkflowRegistry:
    """Steps by workflow id; a callable makes them anew for each run."""

    def __init__(self) -> None:
        self._known: dict[str, Callable[[], Iterable[Any]]] = {}
        self._lock = threading.Lock()

    def register(self, workflow_id: str, steps: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        if callable(steps):
            make = steps
        else:
            every = named(steps)
            make = lambda: every  # noqa: E731 - the two are one thing
        with self._lock:
            self._known[workflow_id] = make

    def get(self, workflow_id: str) -> list[Any]:
        make = self._known.get(workflow_id)
        if make is None:
            raise NotFound("workflow", workflow_id)
        return named(make())

    def __contains__(self, workflow_id: object) -> bool:
        return workflow_id in self._known

    def __iter__(self) -> Any:
        return iter(list(self._known))


WORKFLOWS: Final = WorkflowRegistry()
"""The process's own."""
