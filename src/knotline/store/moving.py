"""Moving house: runs from one store into another. Into a file and out of it again is `portable_file`'s.

Everything keeps its ids, revisions, hashes, order, labels, attachments and pins: what arrives is the same log. A run
that was forked from another is worth nothing without it, so its origins come along, whole.

A copy creates and never overwrites: what was interrupted is begun again, and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from knotline.backends.copying import Progress, Source
from knotline.backends.copying_landing import Landing, Standing
from knotline.codec import open_head
from knotline.codec.bodies import Fork
from knotline.errors import Error, NotFound
from knotline.store.check import Damage
from knotline.store.log import Store
from knotline.store.meaning import StoreMeaning
from knotline.store.names import is_run, run_key, run_name

__all__ = ["Moved", "copy_store", "followed", "landed", "source_of", "with_origins"]


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved; `present` entries were there already.

    `caught_up` is False when writers were still writing to the source at the end: what was committed before the
    call is there, the newest may not be. `damage` is what was left out, if that was allowed.
    """

    runs: int
    entries: int
    objects: int
    attachments: int
    bytes: int
    present: int = 0
    caught_up: bool = True
    damage: tuple[Damage, ...] = ()


def copy_store(
    source: Store,
    target: Store,
    *,
    runs: Iterable[str] | None = None,
    follow: bool = False,
    skip_damaged: bool = False,
    progress: Progress | None = None,
) -> Moved:
    """Everything of one store into another, or the named runs and what they were forked from.

    The target may hold other runs, and part of these. A run that has gone its own way there is a `Conflict`, before
    anything is written. If both were pruned so far that no entry is left to compare, that is a `Conflict` too,
    unless `follow` says that they are one; of documents the further one always counts.

    Damage in the source is an error. With `skip_damaged` a run ends before its first damaged entry, and with it the
    runs that were forked from there; the result names them.
    """
    keys = None if runs is None else with_origins(source, runs)
    meaning = StoreMeaning(source.backend)
    lost: list[Damage] = []
    pouring = source_of(source, meaning, keys, lost if skip_damaged else None)
    standing = Standing(target.backend, meaning, follow=followed(follow=follow))
    for run, head in pouring.runs():
        top = standing.top(run)
        if top >= 0:
            for entry in pouring.heads(run, head):
                standing.see(run, entry.rev, entry.head)
                if entry.rev > top:
                    break
    standing.settle()
    total = None if progress is None else pouring.count()
    landing = Landing(target.backend, standing, meaning, progress=progress, total=total)
    caught_up = pouring.pour(landing)
    landing.finish()
    return landed(landing, caught_up=caught_up, damage=tuple(lost))


# -- what comes along --------------------------------------------------------------------------------------


def followed(*, follow: bool) -> Callable[[bytes], bool]:
    # A document has one entry, and whoever puts it puts it over any other: so does one that comes from elsewhere.
    return lambda run: follow or not is_run(run)


def with_origins(store: Store, runs: Iterable[str]) -> list[bytes]:
    """Keys, each once, of these runs and of those that they were forked from."""
    keys: dict[bytes, None] = {}
    todo = [run_key(name) for name in runs]
    for key in todo:
        if store.backend.head(key) is None:
            raise NotFound("run", run_name(key))
    while todo:
        key = todo.pop()
        if key not in keys:
            keys[key] = None
            todo += _origins(store, key)
    return list(keys)


def _origins(store: Store, key: bytes) -> Iterator[bytes]:
    head = store.backend.head(key)
    if head is None:
        return
    for entry in Source(store.backend, StoreMeaning(store.backend)).heads(key, head.rev):
        if open_head(entry.head, run_name(key), entry.rev).op == "fork":
            for fork in store.backend.entries(key, entry.rev, entry.rev):
                body = store.reader.open(fork).body
                if isinstance(body, Fork):
                    yield body.origin


def source_of(store: Store, meaning: StoreMeaning, keys: list[bytes] | None, lost: list[Damage] | None) -> Source:
    if lost is None:
        return Source(store.backend, meaning, keys)

    def damaged(run: bytes, rev: int | None, error: Error) -> None:
        name = f"run {run_name(run)!r}"
        lost.append(Damage(f"attachments of {name}" if rev is None else f"{name} from {rev} on", str(error)))

    return Source(store.backend, meaning, keys, damaged=damaged)


def landed(landing: Landing, *, caught_up: bool, damage: tuple[Damage, ...]) -> Moved:
    return Moved(
        runs=landing.runs,
        entries=landing.entries,
        objects=landing.objects,
        attachments=landing.attachments,
        bytes=landing.bytes,
        present=landing.present,
        caught_up=caught_up,
        damage=damage,
    )
