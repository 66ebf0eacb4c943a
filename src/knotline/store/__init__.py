"""Logs and objects over a backend: append, load, fork, roll back, prune, verify, sweep, copy, export, import.

The store knows moves and states; what a step or a message is, is said in rooms above.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from knotline.store.check import Damage, Report, Swept, sweep, verify
from knotline.store.log import Decide, Found, Held, Page, Said, Store
from knotline.store.view import View

if TYPE_CHECKING:
    from knotline.store.moving import Moved, copy_store
    from knotline.store.portable_file import decode_file, export_run, export_store, import_file

__all__ = [
    "Damage",
    "Decide",
    "Found",
    "Held",
    "Moved",
    "Page",
    "Report",
    "Said",
    "Store",
    "Swept",
    "View",
    "copy_store",
    "decode_file",
    "export_run",
    "export_store",
    "import_file",
    "sweep",
    "verify",
]

# Looked up on first use: saves need none of it.
_LATER = {
    "Moved": "moving",
    "copy_store": "moving",
    "decode_file": "portable_file",
    "export_run": "portable_file",
    "export_store": "portable_file",
    "import_file": "portable_file",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"knotline.store.{_LATER[name]}"), name)
    globals()[name] = found
    return found
