"""Secrets that are recognised never reach the medium wherever they stand, and saving goes on as if they were not."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.strategies import alike
from tests.timeline.places import Place, save, step

from knotline.codec import freeze, serializable
from knotline.errors import Unstorable
from knotline.policy import Redaction
from knotline.timeline import Timeline

CANARY = "sk-CANARYcanaryCANARY0123456789"
PUT = "[redacted]"


@dataclass
class Account:
    user: str
    password: str
    notes: list[Any] = field(default_factory=list)


@serializable
class Session:
    def __init__(self, text: Any) -> None:
        self.text = text

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Session:
        return cls(data["text"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and other.text == self.text

    def __hash__(self) -> int:
        return 0


@dataclass(frozen=True)
class Point:
    text: str


WRAPS = [
    lambda x: {"k": x},
    lambda x: {"a": 1, "k": x, "z": [1]},
    lambda x: [x],
    lambda x: [0, x, {"n": 1}],
    lambda x: (x, 1),
    lambda x: {1: x, "b": 2},
    lambda x: {("t", 1): x},
    lambda x: {"\ud800": x},
    lambda x: Account("ann", "plain", [x]),
    Session,
    lambda x: freeze({"role": "user", "content": x}),
    lambda x: freeze([x]),
    lambda x: [{"role": "user", "content": f"m{n}"} for n in range(70)] + [x],
]
BARE = [
    lambda s: s,
    lambda s: f"a long text around {s} and after it " + "x" * 700,
    lambda s: s.encode(),
    lambda s: bytearray(b"\xff" + s.encode()),
    lambda s: s + "\ud800",
    lambda s: {s},
    lambda s: frozenset([("t", s)]),
    lambda s: {s: 1},
    lambda s: {s: 1, s + "b": 2, 5: 3},
    lambda s: {("t", s): 1},
    lambda s: PurePosixPath("keys") / s,
    Point,
    lambda s: freeze({s: s}),
    lambda s: {"password": "hunter2canary"},
    lambda s: {"password": ["hunter2canary", {"x": b"hunter2canary"}]},
    lambda s: Account("ann", "hunter2canary"),
    lambda s: freeze({"api_key": "hunter2canary"}),
    lambda s: {"url": "https://ann:hunter2canary@example.com/x"},
    lambda s: "Authorization: Bearer hunter2canaryhunter2canary",
    lambda s: "password=hunter2canary;",
]
canaries = st.builds(
    lambda bare, wraps: _nest(bare(CANARY), wraps), st.sampled_from(BARE), st.lists(st.sampled_from(WRAPS), max_size=3)
)


def _nest(value: Any, wraps: list[Any]) -> Any:
    for wrap in wraps:
        try:
            value = wrap(value)
        except Unstorable:
            value = [value]  # what can change cannot be frozen
    return value


def clean(raw: bytes) -> None:
    assert b"CANARY" not in raw
    assert b"hunter2canary" not in raw


def body(timeline: Timeline, run: str, rev: int) -> int:
    """How many bytes the entry's body takes."""
    (entry,) = timeline.store.backend.entries(b"r" + run.encode(), rev, rev)
    return len(entry.body or b"")


@given(canaries, st.data())
def test_no_canary_reaches_the_medium_and_the_same_state_again_is_an_empty_delta(secret: Any, data: Any) -> None:
    place = Place("memory", Path())
    timeline = place.open()
    part = data.draw(st.sampled_from(["state", "context", "variables", "messages", "metadata", "input", "result"]))
    if part in ("input", "result"):
        timeline.record("r", step(0, **{part: secret}))
        timeline.record("r", step(0, **{part: secret}, error=f"boom {CANARY}", traceback=CANARY, status="failed"))
        clean(place.raw())
        return
    more: dict[str, Any] = {"state": {"n": 0}, part: [secret] if part == "messages" else {"v": secret, "n": 0}}
    save(timeline, "r", 0, **copy.deepcopy(more))
    first = timeline.load("ckpt-r-0")
    clean(place.raw())
    save(timeline, "r", 1, **copy.deepcopy(more))
    clean(place.raw())
    if part != "metadata":
        assert body(timeline, "r", 1) <= 40, "the same state again is not an empty delta"
    save(timeline, "r", 2, **{**more, "state": {**more["state"], "n": 1, "new": secret}})
    save(timeline, "r", 3, **{**more, "state": {"n": 1}})
    clean(place.raw())
    again = place.open().load("ckpt-r-1")
    for name in ("state", "context", "variables", "messages"):
        assert alike(getattr(again, name), getattr(first, name))
    assert place.open().load("ckpt-r-2").state["n"] == 1


texts = st.lists(
    st.one_of(st.just(f" {CANARY} "), st.just(" https://u:hunter2canary@h/ "), st.text("ab \n\u00e9", max_size=300)),
    max_size=8,
).map("".join)


@given(st.lists(texts, min_size=2, max_size=6))
def test_edits_near_what_is_redacted_come_back_right(versions: list[str]) -> None:
    place = Place("memory", Path())
    timeline = place.open()
    redaction = Redaction()
    state: dict[str, Any] = {"text": "", "list": [], "deep": [{"text": ""}]}
    for at, text in enumerate(versions):
        state["text"] = text
        state["list"].insert(at // 2, text)
        state["deep"][0]["text"] = text + "x" * 600
        save(timeline, "r", at, state)
        wanted = {
            "text": redaction.text(text),
            "list": [redaction.text(each) for each in state["list"]],
            "deep": [{"text": redaction.text(text + "x" * 600)}],
        }
        for each in (timeline, place.open()):
            assert each.load(f"ckpt-r-{at}").state == wanted
    clean(place.raw())


lists = st.lists(st.sampled_from(["plain", CANARY, "other " + CANARY, "[other]"]), max_size=90)


@given(st.lists(lists, min_size=2, max_size=5))
def test_long_lists_with_secrets_in_them(versions: list[list[str]]) -> None:
    place = Place("memory", Path())
    timeline = place.open()
    redaction = Redaction()
    talk: list[Any] = [{"role": "user", "content": f"m{n}"} for n in range(80)]
    for at, texts_ in enumerate(versions):
        talk[10 : 10 + at] = [{"role": "tool", "content": text} for text in texts_]
        talk += texts_
        save(timeline, "r", at, {"talk": talk})
        wanted = [
            redaction.text(it) if isinstance(it, str) else {**it, "content": redaction.text(it["content"])}
            for it in talk
        ]
        assert timeline.load(f"ckpt-r-{at}").state["talk"] == wanted
        assert place.open().load(f"ckpt-r-{at}").state["talk"] == wanted
    clean(place.raw())


def test_every_way_into_the_store(place: Place) -> None:
    """Errors, remarks, statuses, reasons, what a run begins with: canaries everywhere, none at rest."""
    timeline = place.open()
    timeline.say("r", "running", initial={"state": {"k": CANARY, "password": "hunter2canary"}}, plan=["a"])
    save(
        timeline,
        "r",
        0,
        status="failed",
        error=f"boom {CANARY}",
        metadata={"secret": "hunter2canary", "tags": [CANARY]},
    )
    save(timeline, "r", 1, error="x" * 5000 + " " + CANARY, metadata={"x": "y" * 5000 + " " + CANARY})
    save(timeline, "r", 2, record=step(2, result="z" * 5000 + " " + CANARY, input={"api_key": "hunter2canary"}))
    timeline.annotate("ckpt-r-0", description=CANARY, fields={"password": "hunter2canary"}, tags=[CANARY])
    timeline.record("r", step(3, status="failed", error=CANARY, traceback="t" * 5000 + " " + CANARY))
    timeline.say("r", "failed", error=f"Error: {CANARY}")
    save(timeline, "r", 4, {"k": CANARY}, durability="background")
    timeline.flush()
    timeline.fork("ckpt-r-1", execution_id="f")
    clean(place.raw())
    assert timeline.load("ckpt-r-0").error == f"boom {PUT}"
    assert timeline.initial("r") == {"state": {"k": PUT, "password": PUT}}


def test_a_callers_own_patterns_and_names_are_added(place: Place) -> None:
    timeline = place.open(redaction=Redaction(names=["badge"], patterns=[r"EMP-\d+"]))
    state = {
        "badge": "b-17",
        "text": "by EMP-12345",
        "raw": b"\xffEMP-999",
        "k": CANARY,
        "path": PurePosixPath("EMP-1/x"),
    }
    save(timeline, "r", 0, state)
    assert timeline.load("ckpt-r-0").state == {
        "badge": PUT, "text": f"by {PUT}", "raw": b"\xff" + PUT.encode(), "k": PUT, "path": PurePosixPath(PUT, "x"),
    }  # fmt: skip
    assert state["text"] == "by EMP-12345", "the caller's own state was changed"
    for gone in (b"EMP-", b"b-17"):
        assert gone not in place.raw()


def test_it_can_be_turned_off(place: Place) -> None:
    timeline = place.open(redaction=Redaction(defaults=False))
    save(timeline, "r", 0, {"k": CANARY, "password": "x"})
    assert timeline.load("ckpt-r-0").state == {"k": CANARY, "password": "x"}


@pytest.mark.parametrize("name", ["n", "next", "tokens", "keyboard", "secretary", "passenger", "author", "monkey"])
def test_ordinary_names_are_left_alone(name: str) -> None:
    timeline = Place("memory", Path()).open()
    save(timeline, "r", 0, {name: "an ordinary text"})
    assert timeline.load("ckpt-r-0").state == {name: "an ordinary text"}
