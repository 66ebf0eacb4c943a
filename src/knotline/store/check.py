"""Looking at every byte, and giving back what nobody needs.

`verify` reads everything that a store holds and names what is damaged, and which states cannot be read because
of it. `sweep` removes objects that no entry leads to. Both run beside writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from knotline.backends import MAX_REV, Entry
from knotline.codec import PREV, decode, links_of, open_head, open_piece
from knotline.codec.bodies import Delta, Fork
from knotline.errors import Damaged, Error, NotFound, UnknownFormat
from knotline.records import Header
from knotline.store.log import Store, open_attachment
from knotline.store.names import run_name
from knotline.store.reading import Opened, Sight
from knotline.store.seal import object_id

__all__ = ["Damage", "Report", "Swept", "sweep", "verify"]

_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Damage:
    """`affects` are the states `(run, rev)` that cannot be read because of it."""

    what: str
    why: str
    affects: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Report:
    runs: int = 0
    entries: int = 0
    objects: int = 0
    bytes: int = 0
    damage: list[Damage] = field(default_factory=list[Damage])

    @property
    def clean(self) -> bool:
        return not self.damage


@dataclass(frozen=True, slots=True)
class Swept:
    objects: int
    kept: int


@dataclass(slots=True)
class _State:
    """What one state-bearing entry stands on."""

    base: tuple[bytes, int] | None
    links: list[bytes]


class _Check:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.report = Report()
        self.links: dict[bytes, list[bytes]] = {}
        self.broken: dict[bytes, str] = {}
        self.states: dict[tuple[bytes, int], _State] = {}
        self.bad: dict[tuple[bytes, int], str] = {}
        self.floors: dict[bytes, int] = {}
        """By run: what prunes said they dropped."""
        self.breaks: list[Damage] = []

    # -- objects ------------------------------------------------------------------------------------------

    def objects(self, *, ids: Iterable[bytes] | None = None) -> None:
        backend = self.store.backend
        after: bytes | None = None
        pending = None if ids is None else list(ids)
        while True:
            page = backend.object_ids(after=after, limit=_PAGE) if pending is None else pending[:_PAGE]
            if not page:
                return
            if pending is not None:
                pending = pending[_PAGE:]
            after = page[-1]
            found = _read_each(backend.objects, page)
            for name in page:
                self._object(name, found.get(name))

    def _object(self, name: bytes, stored: bytes | Error | None) -> None:
        if stored is None:
            return  # swept meanwhile, or missing: whoever links to it says so
        self.report.objects += 1
        try:
            if isinstance(stored, Error):
                raise stored
            self.report.bytes += len(stored)
            links, payload = open_piece(stored, f"object {name.hex()}")
            if object_id(b"".join(links), payload) == name:
                self.links[name] = links
                return
            self.broken[name] = "its bytes do not match its id"
        except Error as error:
            self.broken[name] = str(error)

    # -- entries ------------------------------------------------------------------------------------------

    def run(self, key: bytes) -> None:
        self.report.runs += 1
        try:
            attached = self.store.backend.attachments(key)
        except Error as error:
            attached = []
            self.breaks.append(Damage(f"an attachment of {run_name(key)!r}", str(error)))
        for found in attached:
            try:
                open_attachment(key, found)
            except Error as error:
                self.breaks.append(Damage(f"attachment {found.idx} of {run_name(key)!r} at {found.rev}", str(error)))
        before: Header | None = None
        first: int | None = None
        lo = 0
        while True:
            entries = self._entries(key, lo)
            if not entries:
                break
            sight = Sight()
            for entry in entries:
                before = self._entry(entry, before, sight)
                first = entry.rev if first is None else first
            lo = entries[-1].rev + 1

        if first is not None and first > self.floors.get(key, 0) and first > 0:
            self.breaks.append(Damage(f"run {run_name(key)!r}", f"its entries before {first} are missing"))

    def _entries(self, key: bytes, lo: int) -> list[Entry]:
        """The next entries that exist, however large the gap that a prune left."""
        entries = self._page(key, lo, min(lo + _PAGE - 1, MAX_REV))
        if not entries:
            head = self.store.backend.head(key)
            if head is not None and head.rev >= lo:
                step = _PAGE
                while not entries and lo <= head.rev:
                    entries = self._page(key, lo, min(lo + step - 1, MAX_REV))[:_PAGE]
                    lo, step = lo + step, step * 2
        return entries

    def _page(self, key: bytes, lo: int, hi: int) -> list[Entry]:
        """All at once; by halves where the medium itself reports damage."""
        try:
            return self.store.backend.entries(key, lo, hi)
        except Error as error:
            if lo < hi:
                middle = (lo + hi) // 2
                return self._page(key, lo, middle) + self._page(key, middle + 1, hi)
            self._found((key, lo), f"entry {_named((key, lo))}", error)
            self.states[key, lo] = _State(None, [])
            return []

    def _entry(self, entry: Entry, before: Header | None, sight: Sight) -> Header | None:
        self.report.entries += 1
        self.report.bytes += len(entry.head) + len(entry.body or b"")
        place = (entry.run, entry.rev)
        name = f"{run_name(entry.run)!r} at {entry.rev}"
        try:
            header = open_head(entry.head, run_name(entry.run), entry.rev)
        except Error as error:
            self._found(place, f"entry {name}", error)
            self.states[place] = _State(None, [])  # it may have been one
            return None
        dropped = header.note.get("floor", 0) if header.op in ("prune", "delete") else 0
        floor = entry.rev if header.op == "document" else dropped
        if type(floor) is int and floor > self.floors.get(entry.run, 0):
            self.floors[entry.run] = floor
        if (
            before is not None
            and (before.rev + 1 != entry.rev or before.hash[:PREV] != header.prev)
            # A prune beside us may have taken the one before, and more, between two pages.
            and self._there((entry.run, before.rev))
        ):
            # Not what makes a state unreadable: nothing is read through this link.
            self.breaks.append(Damage(f"entry {name}", "it does not follow the entry before it"))
        try:
            opened = self.store.reader.open(entry, sight)
            self._decodes(opened)
        except (Error, NotFound) as error:
            self._found(place, f"entry {name}", error)
            if header.has_state:
                self.states[place] = _State(None, [])
            return header
        if header.has_state:
            body = opened.body
            base: tuple[bytes, int] | None = None
            if isinstance(body, Delta):
                base = (entry.run, body.base)
            elif isinstance(body, Fork):
                base = (body.origin, body.rev)
            self.states[place] = _State(base, opened.links)
        return header

    @staticmethod
    def _decodes(opened: Opened) -> None:
        if isinstance(opened.body, Delta) and not opened.links:
            decode(opened.body.ops, private=True)

    def _found(self, place: tuple[bytes, int], what: str, why: object) -> None:
        self.bad[place] = f"{what}\0{why}"

    # -- what it means ------------------------------------------------------------------------------------

    def conclude(self) -> Report:
        self._bases()
        missing = self._missing()
        if missing:
            # Written after we looked: look again at just these before calling them missing.
            self.objects(ids=missing)
            missing = self._missing()
        if missing or self.bad:
            self._forget(set(missing))
        for name in self._missing():
            self.broken.setdefault(name, "it is missing")
        reach = self._reach()
        victims: dict[object, list[tuple[str, int]]] = {cause: [] for cause in [*self.bad, *self.broken]}
        causes: dict[tuple[bytes, int], set[object]] = {}
        for place in sorted(self.states, key=lambda it: it[1]):
            found = self._causes(place, causes, reach)
            for cause in found:
                victims[cause].append((run_name(place[0]), place[1]))
        for place, text in self.bad.items():
            what, why = text.split("\0", 1)
            self.report.damage.append(Damage(what, why, tuple(victims[place])))
        for name, why in self.broken.items():
            self.report.damage.append(Damage(f"object {name.hex()}", why, tuple(victims[name])))
        self.report.damage += self.breaks
        return self.report

    def _bases(self) -> None:
        """States whose base is not there: dropped under them, which no prune does, or lost."""
        for place, state in self.states.items():
            base = state.base
            if base is not None and base[0] == place[0] and base[1] < self.floors.get(place[0], 0):
                continue  # what it was made on was pruned: it is no longer promised
            if base is not None and base not in self.states and base not in self.bad and not self._there(base):
                self.bad.setdefault(place, f"entry {_named(place)}\0what it stands on is missing: {_named(base)}")

    def _forget(self, missing: set[bytes]) -> None:
        """What was pruned, and swept, while we looked is no damage: only what is still there counts.

        An entry that is still there after one of its objects was not is damaged indeed: a sweep takes no object
        before the last entry that leads to it is gone.
        """
        doubted = [place for place, state in self.states.items() if not missing.isdisjoint(state.links)]
        above = [name for name, links in self.links.items() if not missing.isdisjoint(links)]
        for place in {*doubted, *self.bad}:
            if not self._there(place):
                self.states.pop(place, None)
                self.bad.pop(place, None)
        there = set(self.store.backend.objects(above)) if above else set[bytes]()
        for name in above:
            if name not in there:
                del self.links[name]

    def _there(self, place: tuple[bytes, int]) -> bool:
        try:
            return bool(self.store.backend.entries(place[0], place[1], place[1], bodies=False))
        except Error:
            return True  # there, and damaged

    def _missing(self) -> list[bytes]:
        wanted = {name for links in self.links.values() for name in links}
        wanted.update(name for state in self.states.values() for name in state.links)
        return [name for name in wanted if name not in self.links and name not in self.broken]

    def _reach(self) -> dict[bytes, set[bytes]]:
        """For every object that leads to a broken one: to which."""
        above: dict[bytes, list[bytes]] = {}
        if self.broken:
            for name, links in self.links.items():
                for link in links:
                    above.setdefault(link, []).append(name)
        reach: dict[bytes, set[bytes]] = {}
        for broken in self.broken:
            todo = [broken]
            while todo:
                name = todo.pop()
                marks = reach.setdefault(name, set())
                if broken not in marks:
                    marks.add(broken)
                    todo += above.get(name, [])
        return reach

    def _causes(
        self,
        place: tuple[bytes, int],
        causes: dict[tuple[bytes, int], set[object]],
        reach: dict[bytes, set[bytes]],
    ) -> set[object]:
        if not self.bad and not self.broken:
            return set()
        path: list[tuple[bytes, int]] = []
        at: tuple[bytes, int] | None = place
        while at is not None and at not in causes and at in self.states and len(path) <= len(self.states):
            path.append(at)
            at = self.states[at].base
        found: set[object] = set(causes.get(at, set())) if at is not None else set()
        if at is not None and at in self.bad:
            found.add(at)
        for step in reversed(path):
            if step in self.bad:
                found.add(step)
            for link in self.states[step].links:
                found |= reach.get(link, set())
            causes[step] = set(found)
        return found


def _named(place: tuple[bytes, int]) -> str:
    return f"{run_name(place[0])!r} at {place[1]}"


def _read_each(read: Callable[[list[bytes]], dict[bytes, bytes]], names: list[bytes]) -> dict[bytes, Any]:
    """All at once; one by one where the medium itself reports damage."""
    try:
        return dict(read(names))
    except Error as error:
        if len(names) == 1:
            return {names[0]: error}
        half = len(names) // 2
        return {**_read_each(read, names[:half]), **_read_each(read, names[half:])}


def verify(store: Store, *, run: str | None = None) -> Report:
    """Every entry of one run or of all, and every object: hashes, links, the chain, and whether it decodes."""
    check = _Check(store)
    medium: list[Damage] = []

    def look(work: Callable[[], object]) -> None:
        try:
            work()
        except Damaged as error:
            medium.append(Damage(error.what, error.why))
        except UnknownFormat as error:
            medium.append(Damage(error.what, f"unknown format {error.found!r}"))

    def runs() -> None:
        for key, _ in store.logs():
            if run is None or run_name(key) == run:
                look(lambda key=key: check.run(key))

    if run is None:
        look(lambda: medium.extend(Damage(store.backend.name, why) for why in store.backend.check()))
    look(runs)
    look(check.objects)
    report = check.conclude()
    report.damage[:0] = medium
    return report


def sweep(store: Store) -> Swept:
    """Remove the objects that no entry of any run leads to. Safe beside writers.

    What a save carries after the mark is spared by the backend. What it links to without carrying it, it found
    in entries of its own run (or of its origin), and those are read here: to each run's end, and in the end once
    more whatever was committed meanwhile.
    """
    backend = store.backend
    mark = backend.mark()
    latest = backend.find(limit=1)
    live: set[bytes] = set()
    for key, _ in store.logs():
        _mark_run(store, key, live)
    dead: list[bytes] = []
    after: bytes | None = None
    while page := backend.object_ids(after=after):
        dead += [name for name in page if name not in live]
        after = page[-1]
    if not dead:
        return Swept(0, len(live))
    beyond = latest[0].cursor if latest else -1
    while meanwhile := backend.find(beyond=beyond, newest=False, limit=_PAGE):
        for entry in meanwhile:
            _mark(store, backend.entries(entry.run, entry.rev, entry.rev), live)
        beyond = meanwhile[-1].cursor
    return Swept(backend.discard([name for name in dead if name not in live], mark=mark), len(live))


def _mark_run(store: Store, key: bytes, live: set[bytes]) -> None:
    lo = 0
    while (head := store.backend.head(key)) is not None and lo <= head.rev:
        while lo <= head.rev:
            _mark(store, store.backend.entries(key, lo, lo + _PAGE - 1), live)
            lo += _PAGE
        lo = head.rev + 1


def _mark(store: Store, entries: list[Entry], live: set[bytes]) -> None:
    wanted = [name for entry in entries for name in links_of(entry.body or b"", "an entry")]
    while wanted:
        wanted = [name for name in dict.fromkeys(wanted) if name not in live]
        live.update(wanted)
        found = store.backend.objects(wanted)
        wanted = [link for name, stored in found.items() for link in links_of(stored, name.hex())]
