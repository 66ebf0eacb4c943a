"""What proves a backend: the suite, an oracle, a strict fake, faults and a clock. Ships with the library.

Everything is looked up on first use: the suite must be importable without the engine, and no module here
imports pytest at its top.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knotline.testing.clock import FakeClock
    from knotline.testing.faulty import FaultyBackend, Plan
    from knotline.testing.oracle import RawOracle
    from knotline.testing.strict import StrictBackend
    from knotline.testing.suite import BackendSuite
    from knotline.testing.vfs import FaultVFS

__all__ = ["BackendSuite", "FakeClock", "FaultVFS", "FaultyBackend", "Plan", "RawOracle", "StrictBackend"]

_HOMES = {
    "BackendSuite": "suite",
    "FakeClock": "clock",
    "FaultVFS": "vfs",
    "FaultyBackend": "faulty",
    "Plan": "faulty",
    "RawOracle": "oracle",
    "StrictBackend": "strict",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
