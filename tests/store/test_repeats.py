"""A tree may link one leaf any number of times: what it opens to is bounded, and what was really saved still opens."""

from __future__ import annotations

import pytest

from knotline.backends import MemoryBackend
from knotline.codec import Node, decode, encode
from knotline.errors import Damaged
from knotline.store import Store
from knotline.store import seal as sealing
from knotline.store.seal import SPAN, Revive, object_id


def test_a_leaf_that_is_linked_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "MAX_BYTES", 1 << 20)
    leaf = encode([{"n": n} for n in range(64)])
    name = object_id(b"", leaf)
    times = 100_000
    bomb = encode(Node(SPAN, encode([0, name * times, [64] * times])))
    with pytest.raises(Damaged, match="beyond all measure"):
        decode(bomb, resolve=Revive({name: leaf}, private=False))


def test_a_long_text_that_stands_everywhere_is_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "MAX_BYTES", 1 << 16)
    text = "the same long text " * 500
    state = {"parts": [{"n": n, "text": text} for n in range(2000)]}
    store = Store(MemoryBackend())
    store.append("r", state)
    store.append("r", {**state, "n": 1})
    store.seal("r")
    loaded = store.load("r")
    assert loaded == {**state, "n": 1}
    assert loaded["parts"][0]["text"] is loaded["parts"][1999]["text"]
