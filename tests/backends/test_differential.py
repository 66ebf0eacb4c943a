"""Random sequences of contract calls: the oracle, the memory backend, SQLite and files give the same answers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from knotline.backends import MemoryBackend, SqliteBackend
from knotline.backends.contract import MAX_REV, Attach, Backend, Entry, Save, Write
from knotline.backends.files import FilesBackend
from knotline.testing import FakeClock, RawOracle
from knotline.testing.suite_place import done, object_id, save

RUNS = [b"a", b"a\x00", b"b", b"\xff\xfe", b"k" * 512]
runs = st.sampled_from(RUNS)
tokens = st.lists(st.sampled_from([0, 1, 2, 3, 2**32 - 1]), max_size=4)
ids = st.integers(0, 6).map(object_id)
objects = st.lists(ids.map(lambda oid: (oid, b"bytes of " + oid)), max_size=3)
owners = st.sampled_from(["me", "you"])

# A write as it will be once the heads are known: (how far from head + 1, drop as a distance, …).
saves = st.fixed_dictionaries(
    {
        "run": runs,
        "off": st.sampled_from([0, 0, 0, 0, -1, -2]),
        "keep": st.one_of(st.none(), st.none(), st.integers(0, 4)),
        "recast": st.lists(st.integers(0, 8), max_size=2, unique=True),
        "tokens": tokens,
        "objects": objects,
        "again": st.sampled_from([False, False, False, True]),
    }
)
attaches = st.builds(
    Attach,
    runs,
    st.integers(0, 12),
    st.sampled_from([b"t", b"u"]),
    st.integers(-1, 1),
    st.integers(0, 2),
    st.just(b"d"),
)


class Agreement(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="differential-")
        self.clock = FakeClock()
        self.oracle = RawOracle(clock=self.clock)
        self.path = Path(self.folder.name, "store.db")
        self.sqlite: Backend = SqliteBackend(self.path, clock=self.clock)
        self.files: Backend = FilesBackend(Path(self.folder.name, "files"), clock=self.clock)
        self.memory: Backend = MemoryBackend(clock=self.clock)
        self.marks: list[int] = []
        self.last: list[Save] = []

    def backends(self) -> list[Backend]:
        return [self.memory, self.sqlite, self.files]

    @initialize(many=st.sampled_from([0, 0, 61, 130]))
    def begin(self, many: int) -> None:
        """Sometimes near the points where SQLite does what it has put off."""
        batch = [save(RUNS[n % 3], n // 3, tokens=[n % 4, n % 3]) for n in range(many)]
        if batch:
            self.agree("commit", batch)

    def agree(self, method: str, *args: object, **options: object) -> object:
        expected = getattr(self.oracle, method)(*args, **options)
        for backend in self.backends():
            assert getattr(backend, method)(*args, **options) == expected, (backend.name, method, args, options)
        return expected

    @rule(plans=st.lists(st.one_of(saves, saves, attaches), min_size=1, max_size=5), sync=st.booleans())
    def commit(self, plans: list[object], sync: bool) -> None:
        heads = dict(self.oracle.runs())
        batch: list[Write] = []
        for plan in plans:
            if isinstance(plan, Attach):
                batch.append(plan)
                continue
            assert isinstance(plan, dict)
            if plan["again"] and self.last:
                batch.append(self.last[-1])
                continue
            run = plan["run"]
            rev = max(heads.get(run, -1) + 1 + plan["off"], 0)
            heads[run] = max(heads.get(run, -1), rev)
            drop = 0 if plan["keep"] is None else max(rev - plan["keep"], 0)
            recast = [(r, b"recast %d" % r) for r in plan["recast"] if r < rev]
            one = save(run, rev, body=b"body", tokens=plan["tokens"], objects=plan["objects"], drop=drop, recast=recast)
            self.last.append(one)
            batch.append(one)
        expected = done(self.oracle.commit(batch, sync=sync))
        for backend in self.backends():
            assert done(backend.commit(batch, sync=sync)) == expected, backend.name

    @rule(run=runs, lo=st.integers(0, 12), span=st.integers(-1, 12), bodies=st.booleans())
    def read(self, run: bytes, lo: int, span: int, bodies: bool) -> None:
        self.agree("head", run)
        self.agree("entries", run, lo, lo + span, bodies=bodies)
        self.agree("entries", run, 0, MAX_REV)
        self.agree("attachments", run)
        self.agree("attachments", run, lo=lo, hi=lo + max(span, 0))

    @rule(
        wanted=st.lists(st.sampled_from([0, 1, 2, 3, 2**32 - 1, 77]), max_size=3),
        run=st.one_of(st.none(), runs),
        newest=st.booleans(),
        limit=st.sampled_from([1, 2, 5, 1000]),
        beyond=st.one_of(st.none(), st.integers(0, 200)),
    )
    def find(self, wanted: list[int], run: bytes | None, newest: bool, limit: int, beyond: int | None) -> None:
        found = self.agree("find", wanted, run=run, newest=newest, limit=limit, beyond=beyond)
        assert isinstance(found, list)
        if found:
            last = found[-1]
            assert isinstance(last, Entry)
            self.agree("find", wanted, run=run, newest=newest, limit=limit, beyond=last.cursor)

    @rule(after=st.one_of(st.none(), runs), limit=st.sampled_from([1, 3, 100]))
    def list_runs(self, after: bytes | None, limit: int) -> None:
        self.agree("runs", after=after, limit=limit)

    @rule(wanted=st.lists(ids, max_size=4), after=st.one_of(st.none(), ids), limit=st.sampled_from([1, 100]))
    def list_objects(self, wanted: list[bytes], after: bytes | None, limit: int) -> None:
        self.agree("objects", wanted)
        self.agree("object_ids", after=after, limit=limit)

    @rule(run=runs, owner=owners, ttl=st.sampled_from([1.0, 5.0]))
    def acquire(self, run: bytes, owner: str, ttl: float) -> None:
        self.agree("acquire", run, owner, ttl)

    @rule(run=runs, owner=owners, epoch=st.integers(0, 3), ttl=st.sampled_from([1.0, 5.0]))
    def renew(self, run: bytes, owner: str, epoch: int, ttl: float) -> None:
        self.agree("renew", run, owner, epoch, ttl)

    @rule(run=runs, owner=owners, epoch=st.integers(0, 3))
    def release(self, run: bytes, owner: str, epoch: int) -> None:
        self.agree("release", run, owner, epoch)
        self.agree("lease", run)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, -1.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def take_mark(self) -> None:
        # Marks are opaque: here all four count saves, so they can be compared.
        mark = self.agree("mark")
        assert isinstance(mark, int)
        self.marks.append(mark)

    @precondition(lambda self: self.marks)
    @rule(wanted=st.lists(ids, max_size=4), fresh=st.booleans())
    def discard(self, wanted: list[bytes], fresh: bool) -> None:
        if fresh:
            self.take_mark()
        self.agree("discard", wanted, mark=self.marks[-1])

    @rule(compact=st.booleans())
    def reopen(self, compact: bool) -> None:
        if compact:
            self.sqlite.compact()
        self.sqlite.close()
        self.sqlite = SqliteBackend(self.path, clock=self.clock)
        if compact:
            self.files.compact()
        self.files.close()
        self.files = FilesBackend(Path(self.folder.name, "files"), clock=self.clock)

    def teardown(self) -> None:
        for backend in self.backends():
            backend.close()
        self.folder.cleanup()


TestAgreement = Agreement.TestCase
_profile = settings.get_profile(os.environ.get("KNOTLINE_PROFILE", "quick"))
TestAgreement.settings = settings(_profile, max_examples=min(_profile.max_examples, 1000))
