"""Amounts as people write them: `30d`, `1h30m`, `2GB`. One place, so that every face reads them alike."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from knotline.errors import ConfigError

__all__ = ["seconds", "size"]

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_536_000.0}
_BYTES: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_AGE: Final = re.compile(rf"(?:{_NUMBER}\s*(ms|[smhdwy])\s*)+", re.ASCII)
_PART: Final = re.compile(rf"{_NUMBER}\s*(ms|[smhdwy])", re.ASCII)
_SIZE: Final = re.compile(rf"{_NUMBER}\s*([a-z]*)", re.ASCII)


def seconds(said: str | float | timedelta, name: str) -> float:
    """`90`, `"30d"`, `"1h30m"` or a timedelta. `name` is the setting, for the error."""
    if isinstance(said, timedelta):
        found = said.total_seconds()
    elif isinstance(said, str):
        text = said.strip().lower()
        if not _AGE.fullmatch(text):
            raise _refused(said, name, "a duration such as '30d', '12h' or '1h30m'")
        found = sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(text))
    else:
        found = float(said)
    if not (math.isfinite(found) and found >= 0):
        raise _refused(said, name, "0 or more")
    return found


def size(said: str | int, name: str) -> int:
    """`1_000_000`, `"2GB"` (thousands) or `"2GiB"` (powers of two), in bytes."""
    if isinstance(said, str):
        found = _SIZE.fullmatch(said.strip().lower())
        if found is None or found[2] not in _BYTES:
            raise _refused(said, name, "a size such as '500MB' or '2GB'")
        return int(float(found[1]) * _BYTES[found[2]])
    if said < 0:
        raise _refused(said, name, "0 or more")
    return said


def _refused(said: object, name: str, wanted: str) -> ConfigError:
    return ConfigError("argument", name, found=repr(said), wanted=wanted)
