"""Decodes hostile bytes for every target under an audit hook and tells what the interpreter was asked to do meanwhile.

A program of its own, because a hook cannot be taken away again: `python -m tests.fuzz.audit RUNS`. What the program
itself needs is read before the hook is there, and each target is used once: modules that are named in this library's
own text are loaded then.
"""

from __future__ import annotations

import json
import os
import sys
import zoneinfo
from collections import Counter
from typing import Any

from tests.fuzz.mutations import mutations
from tests.fuzz.targets import TARGETS, Target, attack

_ZONES = tuple(os.path.join(place, "") for place in zoneinfo.TZPATH)


def _place(path: object) -> str:
    """Two places are read that the bytes do not choose: a time zone that this machine has, from its own file (whose
    name the tz database knows), and the settings of the project that a settings file stands in."""
    if isinstance(path, str) and path.startswith(_ZONES) and ".." not in path:
        return "open of a time zone"
    return "open of a project" if str(path).endswith("/pyproject.toml") else "open"


def planted(data: bytes) -> None:
    """What the hook must see: the classic holes, each of which a decoder has had somewhere."""
    import pickle

    match sum(data) % 5:
        case 0:
            exec(compile("1 + 1", "planted", "exec"))
        case 1:
            __import__(f"planted_module_that_is_not_there_{len(data)}")
        case 2:
            os.stat("/")
            os.listdir("/")
        case 3:
            pickle.loads(b"cos\ngetcwd\n.")
        case _:
            open(os.devnull).close()


def main() -> None:
    runs = int(sys.argv[1])
    wanted = dict(TARGETS)
    if sys.argv[2:] == ["planted"]:
        wanted = {"planted": Target(planted, lambda: [b"\x00\x01", b"\x01\x02"], (ImportError,))}
    work = {
        name: list(mutations(list(target.begin()), int(runs * min(target.share, 1)) + 20, seed=21))
        for name, target in wanted.items()
    }
    for name, inputs in work.items():
        for data in inputs if name != "planted" else ():
            attack(wanted[name], data)
    seen: Counter[str] = Counter()
    watching = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching:
            seen[_place(arguments[0]) if event == "open" else event] += 1

    sys.addaudithook(hook)
    made = 0
    for name, inputs in work.items():
        for data in inputs:
            watching = True
            attack(wanted[name], data)
            watching = False
            made += 1
    sys.stdout.write(json.dumps({"made": made, "seen": seen}))


if __name__ == "__main__":
    main()
