"""The files backend keeps the contract; its files are readable, its names are safe, no link is followed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from knotline.backends.contract import Backend
from knotline.backends.files import FilesBackend
from knotline.testing import BackendSuite


class TestFiles(BackendSuite):
    persistent = True

    def open(self, place: Path, *, clock: Callable[[], float] | None = None) -> Backend:
        return FilesBackend(place / "store", clock=clock)
