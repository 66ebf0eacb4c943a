"""The library's heart, synchronous: checkpoints of runs, every way back to them, what they differ in, what may go."""

from __future__ import annotations

from knotline.timeline.diff import Change, Diff, MessageChange
from knotline.timeline.executions import RunPage
from knotline.timeline.heart import Durability, Moved, Timeline
from knotline.timeline.listing import Page
from knotline.timeline.saving import Saving, Tied

__all__ = [
    "Change",
    "Diff",
    "Durability",
    "MessageChange",
    "Moved",
    "Page",
    "RunPage",
    "Saving",
    "Tied",
    "Timeline",
]
