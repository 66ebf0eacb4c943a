"""One place for each kind of medium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.timeline.places import KINDS, Place

from knotline.timeline import Timeline


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def timeline(place: Place) -> Timeline:
    return place.open()
