"""Coverage-guided fuzzing of the decoders: `python -m tests.fuzz.run [TARGET…] --runs N` (needs atheris).

Each target runs in a process of its own, within a memory and a time limit an input. What it finds is printed, and kept
in the folder given with `--found`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_SECONDS = 10
"""An input takes a millisecond; one that takes so long hangs."""
_MEGABYTES = 600
_LONGEST = 16_384
_COUNT = os.environ.get("KNOTLINE_COUNT")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _one(name: str, arguments: list[str]) -> None:
    # By name: it is in the dependency group `fuzz`, which not everybody has.
    atheris: Any = importlib.import_module("atheris")

    with atheris.instrument_imports(include=["knotline"]):
        from tests.fuzz import targets

    target = targets.TARGETS[name]

    def run(data: bytes) -> None:
        targets.attack(target, data)

    atheris.Setup([sys.argv[0], *arguments], run)
    atheris.Fuzz()


def _begin(name: str, folder: Path) -> None:
    """Written by another process: what is instrumented must be imported by the one that fuzzes."""
    from tests.fuzz.targets import TARGETS

    for number, data in enumerate(TARGETS[name].begin()):
        (folder / f"{number:04}").write_bytes(data)


def _fuzz(name: str, runs: int, seed: int, found: Path) -> tuple[int, bool]:
    """How many runs it made, and whether all went well."""
    with tempfile.TemporaryDirectory(prefix="knotline-fuzz-") as place:
        subprocess.run([sys.executable, "-m", "tests.fuzz.run", name, "--begin", place], check=True)
        command = [sys.executable, "-m", "tests.fuzz.run", name, "--inside", "--", place, f"-runs={runs}"]
        command += [f"-seed={seed}", f"-timeout={_SECONDS}", f"-rss_limit_mb={_MEGABYTES}", f"-max_len={_LONGEST}"]
        command += [f"-artifact_prefix={found}/{name.replace(' ', '-')}-", "-print_final_stats=1", "-verbosity=0"]
        ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = ended.stdout.decode("utf-8", "replace")
    made = re.search(r"number_of_executed_units:\s*(\d+)", said) or re.search(r"Done (\d+) runs", said)
    if ended.returncode or made is None:
        _say(said[-6000:])
        return 0, False
    return int(made[1]), True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="all, when none is named")
    parser.add_argument("--runs", type=int, default=100_000, help="over all targets, by their shares")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--found", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--begin", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)  # what follows is libFuzzer's own
    asked = parser.parse_args(given[:end])
    if asked.inside:
        _one(asked.targets[0], given[end + 1 :])
        return 0
    if asked.begin:
        _begin(asked.targets[0], asked.begin)
        return 0
    from tests.fuzz.targets import TARGETS

    names: list[str] = asked.targets or list(TARGETS)
    shares = sum(TARGETS[name].share for name in names)
    failed: list[str] = []
    total = 0
    for name in names:
        runs, well = _fuzz(name, int(asked.runs * TARGETS[name].share / shares) + 1, asked.seed, asked.found)
        _say(f"{name:14} {runs:>12,} runs {'' if well else '  FAILED'}")
        total += runs
        failed += [] if well else [name]
    _say(f"{'all':14} {total:>12,} runs")
    if _COUNT:
        with Path(_COUNT).open("a", encoding="utf-8") as file:
            file.write(f"fuzz: inputs decoded {total}\n")
    if failed:
        _say(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
