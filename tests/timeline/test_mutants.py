"""The machine and the laws are worth what they catch: each of these planted mistakes must be found."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.timeline.test_timeline_machine import TimelineMachine

from knotline.backends import MemoryBackend
from knotline.errors import Error
from knotline.store import Store, View
from knotline.timeline import Timeline, listing
from knotline.timeline.asides import Asides
from knotline.timeline.attempts import Attempts

Plant = Callable[[pytest.MonkeyPatch], None]
_view_at = Store._view_at
_find = MemoryBackend.find


def _last_page(self: Any, *args: Any, **more: Any) -> Any:
    return _find(self, *args, **more)[: 3 if more.get("beyond") is None else 1000]


MUTANTS: dict[str, Plant] = {
    "a rollback leaves everything in sight": lambda m: m.setattr(View, "minus", lambda self, other: self),
    "undo forgets what was cleaned": lambda m: m.setattr(Store, "_gone", lambda self, key, since: View(())),
    "a view is that of all entries": lambda m: m.setattr(
        Store, "_view_at", lambda self, key, header: View(((0, header.rev),))
    ),
    "attempts are not counted": lambda m: m.setattr(Attempts, "_last", lambda self, run, index: 0),
    "only the newest index is known": lambda m: m.setattr(Attempts, "_top", lambda self, run: -1),
    "remarks are not listed": lambda m: m.setattr(listing, "_remarked", lambda *a, **k: []),
    "a list ends too early": lambda m: m.setattr(MemoryBackend, "find", _last_page),
    "pins are not kept": lambda m: m.setattr(Store, "_pins", lambda self, key: []),
    "a restart does nothing": lambda m: m.setattr(
        Timeline, "restart", lambda self, run, why="retry": self._moved(run, self.store.hide(run, []))
    ),
    "what was read once is never read again": lambda m: m.setattr(
        Asides, "of", lambda self, run: self._known.setdefault(run, self._read(run, self._store.header(run).rev))
    ),
}


RARE = {"undo forgets what was cleaned", "remarks are not listed", "pins are not kept"}
"""Found by a few sequences only: these take seconds, and the tests of each verb find them too."""
SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"


@pytest.mark.parametrize("name", [name for name in MUTANTS if SOAK or name not in RARE])
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mutated(TimelineMachine):
        def teardown(self) -> None:
            for place in self.places:
                place.close()
            self.folder.cleanup()

    MUTANTS[name](monkeypatch)
    tries = settings(
        max_examples=400,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    # What the model says is otherwise, or a checkpoint is not found or cannot be read.
    with pytest.raises((AssertionError, Error)):
        run_state_machine_as_test(Mutated, settings=tries)
