"""What happens next, as tables: no clocks, no I/O, no randomness of its own. The drivers only do what stands here.

A run of steps is always in one `Now`, which follows from what is recorded; `NEXT` says what is done about it. The
diagram in the documentation is drawn from this table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["NEXT", "Attempted", "Backoff", "Mismatch", "Next", "Now", "after", "begins", "changed"]


class Now(Enum):
    """Where a run of steps stands."""

    READY = "a step is next"
    DONE = "no step is left"
    SUCCEEDED = "the step succeeded"
    FAILED = "the attempt failed and another is allowed"
    EXHAUSTED = "the attempt failed and it was the last"
    REFUSED = "the attempt failed in a way that is not tried again"


class Next(Enum):
    """What the driver does."""

    RUN = "run the step"
    SAVE = "save a checkpoint and go to the next step"
    WAIT = "write the failure down, wait, and run the step again"
    FINISH = "mark the run successful"
    FAIL = "write the failure down and mark the run failed"


NEXT: Final[dict[Now, Next]] = {
    Now.READY: Next.RUN,
    Now.SUCCEEDED: Next.SAVE,
    Now.FAILED: Next.WAIT,
    Now.EXHAUSTED: Next.FAIL,
    Now.REFUSED: Next.FAIL,
    Now.DONE: Next.FINISH,
}


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt that ended. `retries` is how many more than the first are allowed."""

    attempt: int
    retries: int
    ok: bool
    again: bool = True
    """Is this failure of a kind that is tried again?"""


def begins(index: int, steps: int) -> Now:
    return Now.READY if index < steps else Now.DONE


def after(it: Attempted) -> Now:
    if it.ok:
        return Now.SUCCEEDED
    if not it.again:
        return Now.REFUSED
    return Now.FAILED if it.attempt <= it.retries else Now.EXHAUSTED


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, capped, with full jitter of the upper half: many that failed together do not come back together."""

    base: float
    most: float

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after this attempt; `chance` from 0 to 1."""
        try:
            full = min(self.base * 2.0 ** (attempt - 1), self.most)
        except OverflowError:
            full = self.most
        return full * (0.5 + 0.5 * chance)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The step at this index was another one when the run began; None where there is none."""

    index: int
    recorded: str | None
    asked: str | None


def changed(recorded: Sequence[str], asked: Sequence[str], start: int) -> tuple[Mismatch, ...]:
    """Where the steps that are to run from `start` on are not those that were planned."""
    planned = recorded[start:]
    count = max(len(planned), len(asked))
    pairs = (
        (at, planned[at] if at < len(planned) else None, asked[at] if at < len(asked) else None) for at in range(count)
    )
    return tuple(Mismatch(start + at, was, now) for at, was, now in pairs if was != now)
