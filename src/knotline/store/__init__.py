"""Logs and objects over a backend: append, load, fork, roll back, prune, verify, sweep, copy, export, import.

The store knows moves and states; what a step or a message is, is said in rooms above.
"""

from knotline.store.check import Damage, Report, Swept, sweep, verify
from knotline.store.log import Found, Held, Page, Store
from knotline.store.moving import Moved, copy_store
from knotline.store.portable_file import decode_file, export_run, export_store, import_file

__all__ = [
    "Damage",
    "Found",
    "Held",
    "Moved",
    "Page",
    "Report",
    "Store",
    "Swept",
    "copy_store",
    "decode_file",
    "export_run",
    "export_store",
    "import_file",
    "sweep",
    "verify",
]
