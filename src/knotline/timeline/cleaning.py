"""Retention carried out: what `knotline.policy.plan` lets go leaves the view in one entry, and then the disk.

A log is pruned from its beginning, so what goes from the middle is out of sight at once and off the disk when
everything before it is gone. Objects that nothing links to any more are swept, and the medium gives back the space.
"""

from __future__ import annotations

from knotline.policy import CleanReport, Fate, Retention, Row, plan
from knotline.store import Store, View, sweep
from knotline.timeline import notes
from knotline.timeline.asides import Aside, Asides, found
from knotline.timeline.history import status_in

__all__ = ["clean", "rows"]


def rows(store: Store, asides: Asides, *, run: str | None = None) -> list[Row]:
    """Every checkpoint in sight, oldest first. Looked at lightly: there may be very many."""
    made: list[Row] = []
    known: dict[str, tuple[Aside, str]] = {}
    for name, rev, at, state, note in store.glances([notes.CHECKPOINT], run=run):
        if name not in known:
            aside = asides.of(name)
            known[name] = (aside, _ended(store, name, aside.view))
        aside, ended = known[name]
        if state and "id" in note and rev in aside.view:
            status, size = note.get("status", "success"), note.get("size", 0)
            made.append(Row(name, note["id"], rev, at, status, ended, size, rev in aside.pins, rev in aside.origins))
    return made


def _ended(store: Store, run: str, view: View) -> str:
    """What the run said of itself; one that never said it ended is unfinished."""
    said = next((it for it in found(store, [notes.STATUS], run=run) if it.rev in view and "run" in it.note), None)
    return "running" if said is None else status_in([said])[0]


def clean(
    store: Store, asides: Asides, retention: Retention, *, now: int, run: str | None = None, dry_run: bool = False
) -> CleanReport:
    size = store.backend.size()
    fates = plan(rows(store, asides, run=run), retention, now=now, size=size)
    remove = [fate for fate in fates if not fate.keep]
    keep = [fate for fate in fates if fate.keep]
    if dry_run or not remove:
        return CleanReport(remove, keep, sum(fate.row.size for fate in remove), dry_run)
    gone: dict[str, list[int]] = {}
    kept: dict[str, int] = {}
    for fate in keep:
        kept[fate.row.run] = min(kept.get(fate.row.run, fate.row.rev), fate.row.rev)
    for fate in remove:
        gone.setdefault(fate.row.run, []).append(fate.row.rev)
    went: dict[str, View] = {}
    for name, revs in gone.items():
        went[name] = store.discard(name, revs, note={"why": "clean"})
        if min(revs) < kept[name]:
            store.prune(name, keep_from=kept[name])
    sweep(store)
    store.backend.compact()
    spared = [fate for fate in remove if fate.row.rev not in went[fate.row.run]]
    if spared:
        # Somebody pinned it, forked it or went back to it since it was looked at.
        remove = [fate for fate in remove if fate.row.rev in went[fate.row.run]]
        keep += [Fate(fate.row, keep=True, reasons=("in use since",)) for fate in spared]
    return CleanReport(remove, keep, max(0, size - store.backend.size()), dry_run)
