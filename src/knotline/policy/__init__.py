"""Pure decisions: what must not be written, what may be thrown away and why. No clocks and no I/O: `now` comes in."""

from __future__ import annotations

from knotline.policy.amounts import seconds, size
from knotline.policy.redaction import Redaction
from knotline.policy.retention import CleanReport, Fate, Reason, Retention, Row, plan

__all__ = ["CleanReport", "Fate", "Reason", "Redaction", "Retention", "Row", "plan", "seconds", "size"]
