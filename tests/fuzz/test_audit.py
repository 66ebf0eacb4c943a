"""While hostile bytes are decoded, nothing is imported, compiled, executed, opened or started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.damage.test_flips import SOAK

ROOT = Path(__file__).resolve().parents[2]

HARMLESS = {
    "builtins.id",
    "open of a project",
    "open of a time zone",
    "gc.get_referents",  # how a writer sees what changed
}


def watched(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.fuzz.audit", *arguments]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, timeout=3000)
    return json.loads(ended.stdout)


def test_nothing_is_run_or_opened() -> None:
    told = watched("50000" if SOAK else "500")
    assert told["made"] > 4000
    assert set(told["seen"]) <= HARMLESS, told["seen"]


def test_the_hook_sees_what_it_is_there_for() -> None:
    seen = watched("200", "planted")["seen"]
    for event in ("exec", "compile", "import", "os.listdir", "pickle.find_class", "open"):
        assert seen[event], event
        assert event not in HARMLESS
