"""The index of a store of files is derived: whatever happens to its file, lists show what is there and no more."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from random import Random

from tests.crash.store_scenarios import count
from tests.fuzz.corpus import small
from tests.fuzz.mutations import mutations

from knotline.backends.files import FilesBackend
from knotline.store import Store, copy_store
from knotline.store.names import label_token
from knotline.testing import RawOracle

SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"
EVEN = (label_token("even"),)


def test_whatever_happens_to_the_journal(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with closing(FilesBackend(folder)) as backend:
        copy_store(small(RawOracle()), Store(backend))
        whole = {(it.run, it.rev) for it in backend.find(limit=1000)}
        even = {(it.run, it.rev) for it in backend.find(EVEN)}
    assert len(whole) > 6
    assert even
    journal = folder / ".store" / "journal"
    text = journal.read_bytes()
    flips = [text[:at] + bytes([text[at] ^ (1 << at % 8)]) + text[at + 1 :] for at in range(len(text))]
    cuts = [text[:at] for at in range(len(text))]
    others = mutations([text], 4000 if SOAK else 100, seed=7)
    every = [*flips, *cuts]
    for data in [*(every if SOAK else Random(1).sample(every, 150)), *others]:
        journal.write_bytes(data)
        with closing(FilesBackend(folder)) as backend:
            assert {(it.run, it.rev) for it in backend.find(limit=1000)} == whole, data
            assert {(it.run, it.rev) for it in backend.find(EVEN)} == even, data
            assert dict(backend.runs()) == {run: max(rev for key, rev in whole if key == run) for run, _ in whole}
        count("journals damaged", 1)
