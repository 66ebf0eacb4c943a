"""How hard Hypothesis tries, and a home that is nobody's.

KNOTLINE_PROFILE=quick (the default) is for every change; KNOTLINE_PROFILE=soak is for hours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    deadline=None,  # the disk decides how long an example takes
    print_blob=True,
    max_examples=50,
    # CI says the same thing twice about the same change; new examples are found at desks and by the soak.
    derandomize=bool(os.environ.get("CI")),
)
settings.register_profile(
    "soak",
    deadline=None,
    print_blob=True,
    max_examples=5_000,
    stateful_step_count=200,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],  # slow is what it is for
)
settings.load_profile(os.environ.get("KNOTLINE_PROFILE", "quick"))


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test, and no process that a test starts, finds the developer's files or settings."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in [name for name in os.environ if name.startswith(("XDG_", "KNOTLINE_"))]:
            if name != "KNOTLINE_PROFILE":
                patch.delenv(name)
        yield home
