"""Every sentence of the backend contract as a test, for any implementation.

    class TestMyBackend(BackendSuite):
        persistent = True

        def open(self, place, *, clock=None):
            return MyBackend(place / "store", clock=clock or time.time)

The tests are plain asserts and need only pytest's `tmp_path` (any empty folder). The parts are in `suite_log`,
`suite_find` and `suite_shared`.
"""

from __future__ import annotations

from knotline.testing.suite_find import FindLaws
from knotline.testing.suite_log import LogLaws
from knotline.testing.suite_shared import SharedLaws

__all__ = ["BackendSuite"]


class BackendSuite(LogLaws, FindLaws, SharedLaws):
    """Subclass it, override `open`, and say whether two that are opened at one place are one store."""
