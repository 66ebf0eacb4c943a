"""What a place for bytes must do. Bytes in, bytes out: a backend knows no meaning.

An implementation passes `knotline.testing.suite`. The words *must* and *may* below are the contract.

**Runs and entries.** A run is named by a key: 1 to 512 arbitrary bytes. Its log is a set of entries
`(run, rev)`, `rev` in 0 … 2**31-1. The highest `rev` of a run is its head. An entry is created once: a save at or
below the head (also at a revision that was dropped) *must* be answered `Conflicted`, and nothing of it written.
Callers create only `head + 1` (0 for a new run), or further on an entry that drops all below it (a copy of a log that
was pruned begins so), and never two entries of one run in one batch; a backend *may* rely on it and *may not* be
damaged by its violation.

**Commit.** `commit([write, …])` answers one outcome per write, in order. Outcomes are independent: a
`Conflict` or a `Failed` of one *must not* change what happens to another. A `Save` is all or nothing: entry,
objects, tokens, drops and recasts become visible together. No reader ever sees an entry without every object
that its save carried. When `commit` returns with `sync=True`, every `Done` survives power loss; with
`sync=False` it survives the death of the process. `Failed` carries a `knotline.errors.Unavailable`; the
backend *must* first find out whether the write is there and durable (and answer `Done` if it is): `Failed` means
"not there now, as far as can be known", and trying the same write again converges. Writes of one batch to one run
are applied in order. `commit` *must not* raise for what the medium did; after `close` it raises `Unavailable`, and
for writes outside this contract `ContractBroken`, before anything is stored.

**Lost acknowledgements.** If `(run, rev)` exists with exactly the same head bytes, the outcome is `Done`, and with
`sync=True` it is made durable first: it is the caller's own earlier write. (Heads carry the writer's random id and
a hash of all, so no two writers produce the same; the body may have been recast since.)

**Objects.** `(id, bytes)`, id of 16 bytes, created once. An id that exists is kept as it is, and counts as
claimed by this save: a concurrent `discard` must not take it away.

**Drop.** A save with `drop=n` removes the run's entries and attachments below `n` in the same commit. `n`
never exceeds the save's own `rev`, so a run never loses its head and a stale writer always conflicts.

**Recast.** `recast=((rev, body), …)` replaces the stored bodies of older entries of the run by other bytes
that mean the same (they are smaller). A backend *may* ignore it; a rev that does not exist is ignored.

**Alias.** `(folder, name)` under which a person would look for this entry. A backend whose files people read
*may* show it there, for as long as the entry is kept; to all others it means nothing.

**Tokens.** Small integers, 0 … 2**32-1, under which `find` finds the entry. They are derived: `find` *may*
answer a superset only by a collision of tokens; callers check the heads.

**Reading** never blocks writing and never sees a commit by half. Returned bytes are what was stored; a
backend that detects damage raises `knotline.errors.Damaged`, and its readers hash everything anyway.

**Leases** are advice for liveness; the log is what decides. `acquire` gives the lease when it is free, expired
or already this owner's; the epoch grows by one whenever the lease passes from free or expired to an owner,
never falls, and survives release. Acquiring and renewing never shorten a lease. Time is the store's clock.

**Discard** deletes objects. `mark()` is read before the live set is computed; `discard(ids, mark=…)` *must* spare
those that a save committed after that mark carried, and answers how many it deleted.

**Threads.** Every method *must* be safe to call from any thread. `lanes` is how many `commit` calls may
usefully run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from knotline.errors import Unavailable

__all__ = [
    "MAX_REV",
    "MAX_RUN_KEY",
    "MAX_TOKEN",
    "Attach",
    "Attachment",
    "Backend",
    "Conflicted",
    "Done",
    "Entry",
    "Failed",
    "Lease",
    "Outcome",
    "Save",
    "Write",
]

MAX_RUN_KEY = 512
MAX_REV = 2**31 - 1
MAX_TOKEN = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Save:
    """One log entry and all that becomes visible with it."""

    run: bytes
    rev: int
    head: bytes
    body: bytes
    tokens: tuple[int, ...] = ()
    objects: tuple[tuple[bytes, bytes], ...] = ()
    drop: int = 0
    recast: tuple[tuple[int, bytes], ...] = ()
    alias: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Attach:
    """Bytes kept beside entry `(run, rev)` without moving the head; `(run, rev, task, idx)` is created once.

    If it exists with exactly the same epoch and data the outcome is `Done`, otherwise `Conflicted`.
    The entry need not exist yet.
    """

    run: bytes
    rev: int
    task: bytes
    idx: int
    epoch: int
    data: bytes


Write = Save | Attach


@dataclass(frozen=True, slots=True)
class Done:
    """Written, and as durable as was asked."""


@dataclass(frozen=True, slots=True)
class Conflicted:
    """The run is there already, or further. Nothing of this write was stored."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The medium refused. Nothing of this write is there, as far as can be known."""

    error: Unavailable


Outcome = Done | Conflicted | Failed


@dataclass(frozen=True, slots=True)
class Entry:
    """A log entry as it rests. `body` is None when only heads were asked for.

    `cursor` orders entries over the whole store, oldest commit first; it is opaque to callers apart from that.
    `tokens` are those of its save, each once, ascending.
    """

    run: bytes
    rev: int
    head: bytes
    body: bytes | None
    cursor: int
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Attachment:
    rev: int
    task: bytes
    idx: int
    epoch: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Lease:
    """`until` is in seconds of the store's clock; it was live when it was read if `live`."""

    owner: str
    epoch: int
    until: float
    live: bool


class Backend(Protocol):
    """See the module's text. Every list that is returned is the caller's own."""

    @property
    def lanes(self) -> int: ...

    @property
    def name(self) -> str:
        """For messages: what and where, such as `sqlite:runs.db`."""
        ...

    def commit(self, writes: Sequence[Write], *, sync: bool = True) -> list[Outcome]: ...

    def head(self, run: bytes) -> Entry | None:
        """The run's highest entry with its body; None when the run has no entries."""
        ...

    def entries(self, run: bytes, lo: int, hi: int, *, bodies: bool = True) -> list[Entry]:
        """Entries with `lo <= rev <= hi` that exist, by ascending rev."""
        ...

    def find(
        self,
        tokens: Sequence[int] = (),
        *,
        run: bytes | None = None,
        beyond: int | None = None,
        newest: bool = True,
        limit: int = 100,
    ) -> list[Entry]:
        """Heads (no bodies) of entries that carry *all* these tokens (none: every entry).

        Newest commit first, or oldest first with `newest=False`. `beyond` is the cursor of the last entry
        already seen: only entries strictly further in that direction are given.
        """
        ...

    def runs(self, *, after: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, int]]:
        """`(run key, head rev)` of runs that have entries, by ascending key, strictly after `after`."""
        ...

    def objects(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Those that exist; missing ids are simply not in the answer."""
        ...

    def object_ids(self, *, after: bytes | None = None, limit: int = 10000) -> list[bytes]:
        """Ids by ascending order, strictly after `after`."""
        ...

    def attachments(self, run: bytes, *, lo: int = 0, hi: int = MAX_REV) -> list[Attachment]:
        """By ascending (rev, task, idx)."""
        ...

    def acquire(self, run: bytes, owner: str, ttl: float) -> Lease:
        """The caller's live lease, or the other owner's (then `lease.owner != owner`)."""
        ...

    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> Lease | None:
        """Longer, if it is still this owner's at this epoch and has not expired; else None."""
        ...

    def release(self, run: bytes, owner: str, epoch: int) -> bool: ...

    def lease(self, run: bytes) -> Lease | None:
        """The last lease given for this run, live or not."""
        ...

    def mark(self) -> int: ...

    def discard(self, ids: Sequence[bytes], *, mark: int) -> int: ...

    def check(self) -> list[str]:
        """What the medium itself finds wrong (an index that lost rows, say), in words; reads all of it."""
        ...

    def size(self) -> int:
        """Bytes at rest, everything included (a write-ahead log too)."""
        ...

    def compact(self) -> None:
        """Give freed space back to the medium, as far as the medium can."""
        ...

    def close(self) -> None:
        """Idempotent. Everything acknowledged is durable afterwards, also what was `sync=False`."""
        ...
