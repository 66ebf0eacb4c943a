"""Readable forms: every value there and exactly back, plain where JSON is; whatever else is read ends in an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec.strategies import states, values

from knotline.backends import MemoryBackend
from knotline.backends.files_entry import Page, close_page, open_page, state_text
from knotline.backends.files_writer import attachment_of
from knotline.backends.readable import show
from knotline.codec import close_piece, encode, private
from knotline.codec.bodies import Delta, Root, close_body
from knotline.errors import Damaged, Error
from knotline.store import Store


def root(value: Any) -> bytes:
    return close_piece((), close_body(Root(0, encode(private(value)))))


def block(text: bytes) -> dict[str, Any]:
    return json.loads(text)["$knotline"]


# -- there and back --------------------------------------------------------------------------------------------


@given(values())
def test_any_value_comes_back(value: Any) -> None:
    page = Page(b"rx", 3, b"no head of ours", root(value))
    text = close_page(page)
    assert open_page(text, "x") == page
    assert block(text)["form"] in ("value", "state"), "it could be stored, and it is not shown"


@given(states(), states())
def test_any_changes_come_back(before: dict[str, Any], after: dict[str, Any]) -> None:
    store = Store(MemoryBackend())
    for value in (before, after, before):
        store.append("r", value, note={"before": before})
    for entry in store.backend.entries(b"rr", 0, 9):
        page = Page(entry.run, entry.rev, entry.head, entry.body, entry.tokens)
        text = close_page(page)
        assert open_page(text, "x") == page
        assert "head" not in block(text)
        assert block(text)["form"] in ("state", "changes")


@given(
    st.binary(min_size=1, max_size=20),
    st.binary(max_size=300),
    st.binary(max_size=300),
    st.integers(0, 2**31 - 1),
    st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple),
    st.one_of(st.none(), st.tuples(st.text(), st.text())),
)
def test_any_bytes_come_back(
    run: bytes, head: bytes, body: bytes, rev: int, ids: tuple[bytes, ...], alias: tuple[str, str] | None
) -> None:
    page = Page(run, rev, head, body, (1, 2**32 - 1), ids, ((rev, 5), (rev + 1, 4)), alias, 7, loose=True)
    assert open_page(close_page(page), "x") == page


def test_plain_values_are_plain() -> None:
    value = {"text": "世界", "n": -1, "f": -0.0, "none": None, "yes": True, "list": [1, [2.5]], "dict": {"a": {}}}
    text = close_page(Page(b"rx", 0, b"", root(value)))
    said = json.loads(text)
    del said["$knotline"]
    assert repr(said) == repr(value)
    assert "世界".encode() in text


def test_a_user_may_have_our_keys() -> None:
    value = {"$knotline": {"$knotline": 1, "rev": 9}, "$tuple": [1], "x": {"$bytes": "AA=="}, "$$": {"$": 1}}
    page = Page(b"rx", 0, b"", root(value))
    text = close_page(page)
    assert open_page(text, "x") == page
    assert block(text)["form"] == "state"
    assert block(text)["rev"] == 0
    only = Page(b"rx", 0, b"", root({"$knotline": 1}))
    assert open_page(close_page(only), "x") == only


def test_bytes_made_to_exhaust_the_stack_are_shown_as_bytes() -> None:
    deep = b"\xc0"
    for _ in range(200):
        deep = b"\x91" * 900 + deep
        deep = b"\xc9" + len(deep).to_bytes(4, "big") + b"\x01" + deep
    with pytest.raises(ValueError, match="ext_hook"):
        show(deep)
    for body in (Root(0, deep), Delta(0, 0, deep)):
        page = Page(b"rx", 1, b"", close_piece((), close_body(body)))
        text = close_page(page)
        assert open_page(text, "x") == page
        assert block(text)["form"] == "bytes"


def test_a_state_whose_parts_are_missing_has_no_text() -> None:
    store = Store(MemoryBackend())
    store.put("c", "k", {"big": "b" * 9000})
    head = store.backend.head(next(key for key, _ in store.backend.runs()))
    assert head is not None
    assert head.body is not None
    assert state_text(head.body, lambda _: None) is not None
    assert b"$object" in (state_text(head.body, lambda _: None) or b"")
    assert b"$object" not in (state_text(head.body, lambda oid: store.backend.objects([oid])[oid]) or b"$object")


# -- whatever else is read -------------------------------------------------------------------------------------


def reads(read: Callable[[bytes], object], data: bytes) -> bool:
    """True if it was taken. Anything but an error of ours goes through."""
    try:
        read(data)
    except Error:
        return False
    return True


def forged(text: bytes) -> bytes:
    """With a check that fits, as somebody makes it who knows how."""
    from blake3 import blake3

    front, end = text[:-23], b'"\n }\n}\n'
    return front + blake3(front).hexdigest(8).encode() + end


@settings(max_examples=settings().max_examples * 4)
@given(states(), st.data())
def test_no_text_is_read_that_was_not_written(value: dict[str, Any], data: st.DataObject) -> None:
    text = close_page(Page(b"rx", 3, b"head", root(value), (5,)))
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + bytes([text[at] ^ data.draw(st.integers(1, 255))]) + text[at + 1 :]
    cut = text[:at]
    for other in (changed, cut, text + b"\n", b"", b"{}", text[at + 1 :]):
        with pytest.raises(Damaged):
            open_page(other, "x")


PIECES = st.sampled_from(
    [
        *(b'"', b"{", b"}", b"[", b"]", b":", b",", b"null", b"1e999", b"-0.0", b"\\ud800", b"\xff"),
        *(b'"$tuple":', b'"$ext":[100,"AA=="]', b'"$bytes":"!"', b'"$int":"x"', b'"check":'),
        *(b'"rev":-1', b'"rev":1e3', b'"form":"x"', b"9" * 5000, b"[" * 3000),
    ]
)


@settings(max_examples=settings().max_examples * 4)
@given(states(), st.data())
def test_forged_texts_end_in_an_error_or_a_page(value: dict[str, Any], data: st.DataObject) -> None:
    text = close_page(Page(b"rx", 3, b"head", root(value), (5,)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 30))
        gone = data.draw(st.integers(0, 20))
        text = text[:at] + data.draw(st.one_of(PIECES, st.binary(max_size=8))) + text[at + gone :]
    reads(lambda it: open_page(it, "x"), forged(text))


FIELDS = st.sampled_from(["run", "rev", "task", "idx", "epoch", "data", "seen"])
NESTED = st.recursive(st.none() | st.text() | st.integers(), lambda it: st.lists(it) | st.dictionaries(FIELDS, it))


@given(st.one_of(st.binary(max_size=200), NESTED.map(lambda it: json.dumps(it).encode())))
def test_attachments_are_read_the_same_way(data: bytes) -> None:
    assert not reads(lambda it: attachment_of(it, b"r"), data)


def test_reading_imports_and_starts_nothing() -> None:
    """An audit hook sees it all; it cannot be taken out again, so it is told when to look."""
    value = {"t": (1, {2}), "b": b"x", "big": 2**80, "f": float("inf"), "s": "\ud800"}
    texts = [close_page(Page(b"rx", 3, b"head", root(value), (5,)))]
    open_page(texts[0], "x")
    seen: list[str] = []
    looking = False

    def hook(event: str, _: object) -> None:
        if looking and event.partition(".")[0] in ("import", "exec", "compile", "subprocess", "os", "open", "ctypes"):
            seen.append(event)

    sys.addaudithook(hook)
    looking = True
    try:
        for text in texts:
            open_page(text, "x")
            reads(lambda it: open_page(it, "x"), forged(text.replace(b"$tuple", b"$model")))
    finally:
        looking = False
    assert seen == []
