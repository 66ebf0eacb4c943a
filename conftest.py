"""Executes the pages that teach: every ```python block runs, in order, sharing names as a reader would read it.

Only these pages are collected here. The tests have their own conftest.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

_places = ExitStack()


def _enter(namespace: dict[str, Any]) -> None:
    """Start in an empty folder that is also the home: an example may write where it likes."""
    namespace.clear()
    place = _places.enter_context(tempfile.TemporaryDirectory(prefix="readme-"))
    homes = {
        "HOME": place,
        "XDG_DATA_HOME": str(Path(place, "data")),
        "XDG_CONFIG_HOME": str(Path(place, "config")),
    }
    _places.enter_context(mock.patch.dict(os.environ, homes))
    _places.callback(os.chdir, Path.cwd())
    os.chdir(place)


def _leave(namespace: dict[str, Any]) -> None:
    namespace.clear()
    _places.close()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/checkpoints.md"],
    setup=_enter,
    teardown=_leave,
).pytest()
