"""One sequence of verbs, three answers: a timeline in memory, one in SQLite, and a model of plain lists.

The model knows checkpoints, situations and two stacks, and nothing of bytes. It cannot know how far down a cleaning
cuts the log: of what was out of sight and older than all that stays, either answer is right, but the same on both.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.timeline.places import Place

from knotline.errors import Conflict, Error, NotFound, NothingToUndo
from knotline.policy import Retention, Row, plan
from knotline.store import verify
from knotline.timeline import Timeline

_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None
RUNS = ["a", "ab", "a-1"]


@dataclass
class Knot:
    id: str
    run: str
    rev: int
    index: int
    status: str
    state: Any
    tags: list[str]
    pinned: bool = False
    origin: bool = False
    gone: bool = False
    unsure: bool = False


@dataclass
class Situation:
    view: list[Knot]
    pos: Knot | None


@dataclass
class Line:
    knots: list[Knot] = field(default_factory=list)
    now: Situation = field(default_factory=lambda: Situation([], None))
    undo: list[Situation] = field(default_factory=list)
    redo: list[Situation] = field(default_factory=list)

    def move(self, to: Situation, *, first: bool = False) -> None:
        if not first:
            self.undo.append(self.now)
        self.redo.clear()
        self.now = to


class TimelineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="timeline-", dir=_ROOM)
        self.places = [Place("memory", Path(self.folder.name)), Place("sqlite", Path(self.folder.name))]
        # Two handles on each: what one remembers is stale whenever the other has written.
        self.handles = [[place.open(), place.open()] for place in self.places]
        self.at = 0
        self.lines: dict[str, Line] = {}
        self.forks = 0

    @property
    def timelines(self) -> list[Timeline]:
        return [pair[self.at] for pair in self.handles]

    # -- asking ---------------------------------------------------------------------------------------------

    def ask(self, verb: Callable[[Timeline], Any]) -> Any:
        """Both must give the same answer; an error of ours is one."""
        answers: list[Any] = []
        for timeline in self.timelines:
            try:
                answers.append(verb(timeline))
            except Error as error:
                answers.append((type(error).__name__, str(error)))
        assert answers[0] == answers[1]
        return answers[0]

    def failed(self, answer: Any, *kinds: type[Error]) -> bool:
        is_error = isinstance(answer, tuple) and len(answer) == 2 and answer[0] in {kind.__name__ for kind in kinds}
        assert is_error, answer
        return True

    def knots(self) -> list[Knot]:
        return [knot for line in self.lines.values() for knot in line.knots]

    def pick(self, a: int, *, seen: bool = True) -> Knot | None:
        """One in sight, or any that is sure to be there."""
        among = [
            knot
            for line in self.lines.values()
            for knot in (line.now.view if seen else line.knots)
            if not knot.gone and not knot.unsure
        ]
        return among[a % len(among)] if among else None

    def rev(self, run: str) -> int:
        return self.ask(lambda timeline: timeline.store.header(run).rev)

    # -- verbs ----------------------------------------------------------------------------------------------

    @rule(
        run=st.sampled_from(RUNS), index=st.integers(0, 3), status=st.sampled_from(["success", "success", "failed"]),
        value=st.integers(0, 5), tag=st.sampled_from("xyz"), how=st.sampled_from(["disk", "process", "background"]),
        ends=st.sampled_from([None, None, "success"]),
    )  # fmt: skip
    def save(self, run: str, index: int, status: str, value: int, tag: str, how: Any, ends: str | None) -> None:
        line = self.lines.setdefault(run, Line())
        state = {"value": value, "items": list(range(value)), "blob": str(value) * 400}

        def verb(timeline: Timeline) -> str:
            made = timeline.save(
                run, step_name=f"s{index}", step_index=index, state=state, status=status, metadata={"tags": [tag]},
                durability=how, run_status=ends,
            )  # fmt: skip
            timeline.flush()
            return made.id

        name = self.ask(verb)
        assert name not in {knot.id for knot in line.knots if not knot.gone and not knot.unsure}
        knot = Knot(name, run, self.rev(run), index, status, copy.deepcopy(state), [tag])
        first = line.now.pos is None
        line.knots.append(knot)
        line.move(Situation([*line.now.view, knot], knot), first=first)

    @rule(a=st.integers(0, 999))
    def rollback(self, a: int) -> None:
        knot = self.pick(a)
        if knot is None:
            self.failed(self.ask(lambda timeline: timeline.rollback("ckpt-none-0").rev), NotFound)
            return
        line = self.lines[knot.run]
        self.ask(lambda timeline: timeline.rollback(knot.id).rev)
        view = line.now.view[: line.now.view.index(knot) + 1]
        line.move(Situation(view, knot))

    @rule(a=st.integers(0, 999))
    def delete(self, a: int) -> None:
        knot = self.pick(a)
        if knot is None:
            assert self.ask(lambda timeline: timeline.delete("ckpt-none-0")) is False
            return
        line = self.lines[knot.run]
        assert self.ask(lambda timeline: timeline.delete(knot.id)) is True
        line.move(Situation([it for it in line.now.view if it is not knot], line.now.pos))

    @rule(run=st.sampled_from(RUNS))
    def restart(self, run: str) -> None:
        line = self.lines.get(run)
        if line is not None and line.now.pos is not None:
            self.ask(lambda timeline: timeline.restart(run).rev)
            line.move(Situation([], line.now.pos))

    @rule(run=st.sampled_from(RUNS), verb=st.sampled_from(["undo", "undo", "redo"]))
    def step(self, run: str, verb: str) -> None:
        line = self.lines.get(run)
        answer = self.ask(lambda timeline: getattr(timeline, verb)(run).rev)
        if line is None:
            self.failed(answer, NotFound)
            return
        back, forth = (line.undo, line.redo) if verb == "undo" else (line.redo, line.undo)
        target = back[-1] if back else None
        if target is None or target.pos is None or target.pos.gone:
            self.failed(answer, NothingToUndo)
            return
        if target.pos.unsure and isinstance(answer, tuple):
            self.failed(answer, NothingToUndo)
            return
        assert isinstance(answer, int), answer
        back.pop()
        forth.append(line.now)
        line.now = Situation([it for it in target.view if not it.gone], target.pos)

    @rule(a=st.integers(0, 999), seen=st.booleans())
    def fork(self, a: int, seen: bool) -> None:
        knot = self.pick(a, seen=seen)
        if knot is None or self.forks >= 4:
            return
        name = f"fork{self.forks}"
        exact = self.ask(lambda timeline: timeline._meant(knot.id).rev)  # the bare id of a hidden one may be another's
        origin = next(it for it in self.lines[knot.run].knots if it.rev == exact)
        if origin.gone or origin.unsure:
            return
        self.forks += 1
        made = self.ask(lambda timeline: (it := timeline.fork(knot.id, execution_id=name)).id + f" of {it.origin}")
        assert made == f"ckpt-{name}-{origin.index} of {origin.id}"
        origin.origin = True
        fresh = Knot(
            f"ckpt-{name}-{origin.index}",
            name,
            0,
            origin.index,
            origin.status,
            copy.deepcopy(origin.state),
            origin.tags[:],
        )
        self.lines[name] = Line([fresh], Situation([fresh], fresh))
        self.failed(self.ask(lambda timeline: timeline.fork(knot.id, execution_id=name).id), Conflict)

    @rule(a=st.integers(0, 999), keep=st.booleans())
    def pin(self, a: int, keep: bool) -> None:
        knot = self.pick(a)
        if knot is not None:
            verb = "pin" if keep else "unpin"
            assert self.ask(lambda timeline: getattr(timeline, verb)(knot.id).id) == knot.id
            knot.pinned = keep

    @rule(a=st.integers(0, 999), tags=st.lists(st.sampled_from("xyz"), max_size=2, unique=True))
    def annotate(self, a: int, tags: list[str]) -> None:
        knot = self.pick(a)
        if knot is not None:
            assert self.ask(lambda timeline: timeline.annotate(knot.id, tags=tags).tags) == tuple(tags)
            knot.tags = tags

    @precondition(lambda self: len(self.knots()) > 3)
    @rule(keep=st.integers(0, 3), least=st.integers(0, 2), dry=st.booleans())
    def clean(self, keep: int, least: int, dry: bool) -> None:
        retention = Retention(keep_last=keep, min_retention=least)

        def verb(timeline: Timeline) -> list[Any]:
            it = timeline.clean(retention, dry_run=dry)
            return [(fate.row.id, fate.row.rev, fate.keep, fate.reasons) for fate in (*it.remove, *it.keep)]

        # NotFound where no checkpoint is in sight.
        ended = {run: self.ask(lambda timeline, run=run: timeline.status(run).status) for run in self.lines}
        report = self.ask(verb)
        rows: list[Row] = []
        for run, line in self.lines.items():
            ends = "success" if ended[run] == "success" else "running"
            rows += [Row(run, it.id, it.rev, it.rev, it.status, ends, 0, it.pinned, it.origin) for it in line.now.view]
        fates = plan([row for row in rows if not self._unsure(row)], retention, now=0, size=0)
        wanted = {(fate.row.run, fate.row.rev) for fate in fates if not fate.keep}
        found = {name for name, _, kept, _ in report if not kept}
        sure = {fate.row.id for fate in fates}
        assert {fate.row.id for fate in fates if not fate.keep} == found & sure
        if dry:
            return
        for run, line in self.lines.items():
            kept = [it.rev for it in line.now.view if (run, it.rev) not in wanted]
            went = [it.rev for it in line.now.view if (run, it.rev) in wanted]
            for it in line.knots:
                if (run, it.rev) in wanted:
                    it.gone = it is not line.now.pos
                elif went and kept and min(went) < min(kept) and it.rev < min(kept) and it is not line.now.pos:
                    it.unsure = not (it.pinned or it.origin)
            line.now.view = [it for it in line.now.view if not it.gone]

    def _unsure(self, row: Row) -> bool:
        return any(it.unsure for it in self.lines[row.run].knots if it.rev == row.rev)

    @rule()
    def reopen(self) -> None:
        for at, place in enumerate(self.places):
            if place.kind != "memory":
                self.handles[at][self.at].close()
            self.handles[at][self.at] = place.open()

    @rule()
    def the_other_handle(self) -> None:
        self.at = 1 - self.at

    # -- what must hold -------------------------------------------------------------------------------------

    @invariant()
    def what_is_in_sight(self) -> None:
        for run, line in self.lines.items():
            found = self.ask(
                lambda timeline, run=run: [(it.id, it.rev) for it in timeline.list(run, limit=1000, newest=False)]
            )
            doubtful = {it.rev for it in line.knots if it.unsure}
            assert [pair for pair in found if pair[1] not in doubtful] == [
                (it.id, it.rev) for it in line.now.view if not it.unsure
            ]
            if line.now.pos is not None:
                current = self.ask(lambda timeline, run=run: timeline.store.load(run)["state"])
                assert current == line.now.pos.state

    @rule(tag=st.sampled_from("xyz"), newest=st.booleans(), limit=st.integers(1, 5))
    def found_by_tag(self, tag: str, newest: bool, limit: int) -> None:
        for run, line in self.lines.items():

            def verb(timeline: Timeline, run: str = run) -> list[int]:
                revs: list[int] = []
                after = None
                while True:
                    page = timeline.list(run, tag=tag, limit=limit, newest=newest, after=after)
                    revs += [it.rev for it in page]
                    if page.next is None:
                        return revs
                    after = page.next

            doubtful = {it.rev for it in line.knots if it.unsure}
            wanted = [it.rev for it in line.now.view if tag in it.tags and not it.unsure]
            assert [rev for rev in self.ask(verb) if rev not in doubtful] == (wanted[::-1] if newest else wanted)

    @rule()
    def every_state(self) -> None:
        """Whatever is sure to be there is whole, in sight or not; what is gone is found by no name in sight."""
        for knot in self.knots():
            if not knot.gone and not knot.unsure:
                state = self.ask(lambda timeline, knot=knot: timeline.store.load(knot.run, knot.rev)["state"])
                assert state == knot.state
        for run, line in self.lines.items():
            for knot in line.now.view:
                if not knot.unsure:
                    header = self.ask(
                        lambda timeline, knot=knot: (
                            (it := timeline.header(knot.id)).rev, it.pinned, it.tags, it.status,
                        )
                    )  # fmt: skip
                    assert header == (knot.rev, knot.pinned, tuple(knot.tags), knot.status)
            history = self.ask(
                lambda timeline, run=run: [it.rev for it in timeline.history(run, state=False).checkpoints]
            )
            doubtful = {it.rev for it in line.knots if it.unsure}
            assert [rev for rev in history if rev not in doubtful] == [it.rev for it in line.now.view if not it.unsure]

    def teardown(self) -> None:
        for timeline in self.timelines:
            assert verify(timeline.store).damage == []
        for place in self.places:
            place.close()
        self.folder.cleanup()


class TestTimelineMachine(TimelineMachine.TestCase):
    settings = settings(
        max_examples=max(settings().max_examples // 2, 25),
        stateful_step_count=settings().stateful_step_count if settings().stateful_step_count > 60 else 40,
    )
