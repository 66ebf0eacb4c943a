"""Logs and objects over a backend: append, load, fork, roll back, prune, verify, sweep.

The store knows moves and states; what a step or a message is, is said in rooms above.
"""

from knotline.store.check import Damage, Report, Swept, sweep, verify
from knotline.store.log import Found, Held, Page, Store

__all__ = ["Damage", "Found", "Held", "Page", "Report", "Store", "Swept", "sweep", "verify"]
