"""One tree of errors. Each says what it is about in fields, and what to do next in `hint`.

This room exists so that every other room can raise the same nouns and every face can decide, by type
alone, what to show and how to exit. Nothing here prints.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ConfigError",
    "Conflict",
    "ContractBroken",
    "Damaged",
    "Error",
    "Fenced",
    "FlowChanged",
    "LeaseHeld",
    "NotFound",
    "NothingToUndo",
    "PlaintextInEncryptedStore",
    "Tampered",
    "TooLarge",
    "Unavailable",
    "UnknownFormat",
    "UnknownType",
    "Unstorable",
    "Unsupported",
    "WrongKey",
]


class Error(Exception):
    """Root of everything knotline raises on purpose."""

    hint: ClassVar[str] = ""

    def __str__(self) -> str:
        said = super().__str__()
        return f"{said} ({self.hint})" if self.hint else said


class NotFound(Error):
    """A run, revision, checkpoint or document that is not in the store."""

    def __init__(self, kind: str, name: object) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"no {kind} {name!r}")


class Conflict(Error):
    """Somebody else created this revision first: nothing of ours was written."""

    hint = "read the run again and decide on what is there now"

    def __init__(self, run: str, *, expected: int, found: int) -> None:
        self.run = run
        self.expected = expected
        self.found = found
        super().__init__(f"run {run!r}: expected revision {expected} at the head, found {found}")


class LeaseHeld(Error):
    """Another owner holds the run until `until` (seconds of the store's clock), unless it renews."""

    hint = "wait until the lease ends, or ask its owner to release it"

    def __init__(self, run: str, *, owner: str, until: float) -> None:
        self.run = run
        self.owner = owner
        self.until = until
        super().__init__(f"run {run!r} is held by {owner!r}")


class Fenced(Error):
    """The run was taken over: this writer's epoch is stale, and it may never write again under it."""

    hint = "stop this worker; its successor owns the run"

    def __init__(self, run: str, *, epoch: int, current: int) -> None:
        self.run = run
        self.epoch = epoch
        self.current = current
        super().__init__(f"run {run!r}: epoch {epoch} is stale, the run is at epoch {current}")


class FlowChanged(Error):
    """The code of a run is not that which it was begun with: `changes` are `(index, recorded, asked for)`."""

    hint = "go on with the code that the run was begun with, or say that the change is meant (on_change='continue')"

    def __init__(self, run: str, changes: tuple[tuple[int, str | None, str | None], ...]) -> None:
        self.run = run
        self.changes = changes
        said = "; ".join(f"step {at} was {_step(was)}, is {_step(now)} now" for at, was, now in changes[:5])
        more = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        super().__init__(f"run {run!r}: the workflow changed since it began: {said}{more}")


def _step(name: str | None) -> str:
    return "none" if name is None else repr(name)


class NothingToUndo(Error):
    """There is no earlier (or, for redo, later) move to go to."""

    def __init__(self, run: str, verb: str) -> None:
        self.run = run
        self.verb = verb
        super().__init__(f"run {run!r} has nothing to {verb}")


class Damaged(Error):
    """Stored bytes are not what was written. They are never returned as good."""

    hint = "`verify` names every checkpoint that this affects; roll back to one that it does not"

    def __init__(self, what: str, *, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(f"{what} is damaged: {why}")


class Tampered(Damaged):
    """Encrypted bytes that do not authenticate: forged, changed, moved from elsewhere, or simply damaged."""

    hint = "the key is right; compare the store with a copy that you trust, and find out who can write to it"


class PlaintextInEncryptedStore(Damaged):
    """What was never encrypted, where everything is. It is never taken for the store's own."""

    hint = "somebody wrote to this store without its key; encrypt plain runs by copying them into an encrypted store"

    def __init__(self, what: str) -> None:
        super().__init__(what, why="it was never encrypted")


class WrongKey(Error):
    """No key that was given opens the store. `tried` names the sources that were asked, never what they hold."""

    hint = "give the key or the passphrase of one of the store's slots"

    def __init__(self, what: str, *, why: str, tried: tuple[str, ...] = ()) -> None:
        self.what = what
        self.why = why
        self.tried = tried
        asked = f"; tried {', '.join(tried)}" if tried else ""
        super().__init__(f"{what}: {why}{asked}")


class UnknownFormat(Error):
    """Bytes of a kind or version that this release does not read."""

    hint = "a newer knotline may have written it; upgrade, or open a store of this format"

    def __init__(self, what: str, *, found: object) -> None:
        self.what = what
        self.found = found
        super().__init__(f"{what}: unknown format {found!r}")


class UnknownType(Error):
    """A stored value of a user's type that this process does not know."""

    hint = "import the module that defines it, or register it with knotline.serializable, before loading"

    def __init__(self, name: str, *, why: str = "not registered in this process") -> None:
        self.name = name
        self.why = why
        super().__init__(f"stored type {name}: {why}")


class Unstorable(Error):
    """A value that cannot be stored, with the path to it. Nothing was written."""

    hint = "remove it from the state, convert it, or register its class with knotline.serializable"

    def __init__(self, path: str, *, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__(f"{path}: {why}")


class TooLarge(Unstorable):
    """A value past one of the limits on depth or size."""

    hint = "store less in one checkpoint, or keep the large part in the workspace"


class Unavailable(Error):
    """The medium did not do what was asked (disk full, I/O error, locked too long)."""

    hint = "nothing that was acknowledged is lost; free space or fix the medium and try again"

    def __init__(self, what: str, *, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(f"{what}: {why}")


class Unsupported(Error):
    """This backend, platform or build cannot do that."""

    def __init__(self, what: str, *, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(f"{what}: {why}")


class ConfigError(Error):
    """A setting that cannot be used: what said it (a file, a variable, an argument), and what it may be instead.

    `found` and `wanted` are descriptions for people. `suggestion` is a name that was probably meant, or "".
    """

    def __init__(self, file: str, key: str, *, found: str, wanted: str, suggestion: str = "") -> None:
        self.file = file
        self.key = key
        self.found = found
        self.wanted = wanted
        self.suggestion = suggestion
        meant = f"; did you mean {suggestion!r}?" if suggestion else ""
        where = f"{file}: {key}" if key else file
        super().__init__(f"{where}: found {found}, wanted {wanted}{meant}")


class ContractBroken(Error):
    """A caller or an implementation broke the backend contract: a bug, not a circumstance."""

    hint = "report this with the traceback"
