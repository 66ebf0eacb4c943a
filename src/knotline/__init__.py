"""A way back for long-running work: every state of a run is kept, survives `kill -9`, and can be returned to.

This page lists what there is; each name is loaded from its room when it is first used, so that importing the
package costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knotline import errors as errors
    from knotline.backends import MemoryBackend as MemoryBackend
    from knotline.backends import SqliteBackend as SqliteBackend
    from knotline.codec import FrozenDict as FrozenDict
    from knotline.codec import FrozenList as FrozenList
    from knotline.codec import freeze as freeze
    from knotline.codec import serializable as serializable
    from knotline.records import Header as Header
    from knotline.store import Held as Held
    from knotline.store import Store as Store
    from knotline.store import sweep as sweep
    from knotline.store import verify as verify
    from knotline.store.gate import Gate as Gate

__version__ = "0.1.0.dev0"

__all__ = [
    "FrozenDict",
    "FrozenList",
    "Gate",
    "Header",
    "Held",
    "MemoryBackend",
    "SqliteBackend",
    "Store",
    "errors",
    "freeze",
    "serializable",
    "sweep",
    "verify",
]

_ROOMS = {
    "FrozenDict": "codec",
    "FrozenList": "codec",
    "Gate": "store.gate",
    "Header": "records",
    "Held": "store",
    "MemoryBackend": "backends",
    "SqliteBackend": "backends",
    "Store": "store",
    "freeze": "codec",
    "serializable": "codec",
    "sweep": "store",
    "verify": "store",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("knotline.errors")
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module 'knotline' has no attribute {name!r}")
    found: object = getattr(import_module(f"knotline.{room}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
