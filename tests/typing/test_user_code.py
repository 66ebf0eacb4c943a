"""The public surface as a type checker sees it, and that a checker would see it if it changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
USER = Path(__file__).parent / "user_code.py"


def checked(place: Path) -> list[dict[str, Any]]:
    """What pyright says of this folder, in strict mode, as it would to a user whose project depends on this one."""
    settings = {
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": "error",
        # The user's own code is untidy on purpose.
        "reportUnusedExpression": "none",
    }
    project = place / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    asked = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(project)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=place, timeout=240)
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] == 2, done.stdout
    return said["generalDiagnostics"]


def test_user_code_is_typed_as_it_says(tmp_path: Path) -> None:
    """And a copy of it that says something else is caught: an `Any` that leaked would let every assertion pass."""
    text = USER.read_text(encoding="utf-8")
    lies = {
        "assert_type(header.rev, int)": "assert_type(header.rev, str)",
        "assert_type(storage, SQLiteStorage)": "assert_type(storage, BaseStorage)",
        'assert_type(await storage.load("checkpoint", "k"), dict[str, Any] | None)': "assert_type(await storage.load"
        '("checkpoint", "k"), dict[str, Any])',
        "assert_type(held, Held)": "assert_type(held, Held | None)",
        "assert_type(error.tried, tuple[str, ...])": "assert_type(error.tried, list[str])",
    }
    wrong = text
    for said, lie in lies.items():
        assert said in text
        wrong = wrong.replace(said, lie)
    (tmp_path / "right.py").write_text(text, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    said_of = checked(tmp_path)
    found = {name: [it for it in said_of if Path(it["file"]).name == name] for name in ("right.py", "wrong.py")}
    assert found["right.py"] == []
    assert [it["rule"] for it in found["wrong.py"]] == ["reportAssertTypeFailure"] * len(lies), found
