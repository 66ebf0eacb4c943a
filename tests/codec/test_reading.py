"""Bytes that nobody wrote: only typed errors, whatever they are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.strategies import values

from knotline.codec import Boxed, Node, decode, encode, private
from knotline.errors import Damaged, UnknownFormat, UnknownType


def _try(data: bytes) -> None:
    for as_private in (False, True):
        try:
            value = decode(data, private=as_private)
        except (Damaged, UnknownFormat, UnknownType):
            continue
        if as_private:
            # What was read as private can be written again and read as the same.
            again = encode(value)
            assert encode(decode(again, private=True)) == again


def _ext(code: int, payload: bytes) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(code, payload))


@given(st.binary(max_size=60))
def test_random_bytes(data: bytes) -> None:
    _try(data)


@given(st.integers(0, 127), st.binary(max_size=20) | values(max_leaves=4).map(lambda value: encode(private(value))))
def test_random_extensions(code: int, payload: bytes) -> None:
    _try(_ext(code, payload))
    _try(_ext(20, _ext(code, payload)))
    _try(b"\x92" + _ext(4, b"\x92" + _ext(code, payload) + b"\x01") + b"\x01")


@given(values(), st.data())
def test_mutated_bytes(value: Any, data: st.DataObject) -> None:
    good = bytearray(encode(private(value)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(good)))
        match data.draw(st.sampled_from("setcutaddflip")):
            case "s" | "e" | "t" if at < len(good):
                good[at] = data.draw(st.integers(0, 255))
            case "c" | "u":
                del good[at : at + data.draw(st.integers(1, 4))]
            case "f" | "l" | "i" | "p" if at < len(good):
                good[at] ^= 1 << data.draw(st.integers(0, 7))
            case _:
                good[at:at] = data.draw(st.binary(min_size=1, max_size=3))
    _try(bytes(good))


@given(values(), st.binary(min_size=1, max_size=12))
def test_bytes_before_the_end_and_after_it(value: Any, more: bytes) -> None:
    good = encode(private(value))
    # What follows may look like the beginning of anything.
    with pytest.raises((Damaged, UnknownFormat)):
        decode(good + more)
    for cut in {1, len(good) // 2, len(good)}:
        with pytest.raises((Damaged, UnknownFormat, UnknownType)):
            decode(good[:-cut])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xffx",
        b"\xc9\xff\xff\xff\xff\x01x",
        b"\x81\x01\x02",  # a map with a key that is no text
        b"\xa1\xff",
        b"\x91" * 100_000 + b"\xc0",
        _ext(1, b"\x80"),  # a tuple that is a map
        _ext(1, b"\x90\x90"),
        _ext(3, b"plain"),
        _ext(4, b"\x91\x01"),
        _ext(4, b"\x94\x01\x02\x01\x03"),
        _ext(4, b"\x92\x90\x01"),
        _ext(5, b"\x91\x80"),
        _ext(8, bytes(4)),
        _ext(10, bytes(20)),
        _ext(9, bytes(8) + b"Q"),
        _ext(9, bytes(8) + b"Z../../etc/passwd"),
        _ext(9, bytes(8) + b"Z/etc/localtime"),
        _ext(11, b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0"),
        _ext(12, b"1_0"),
        _ext(12, b"huh"),
        _ext(13, b"short"),
        _ext(14, b""),
        _ext(14, b"\x09a"),
        _ext(20, b"\x01"),
        _ext(20, b"\x91" + _ext(20, b"\x90")),
        _ext(20, b"\x91" + _ext(5, b"\x90")),
        _ext(20, b"\x91" + _ext(100, b"x")),
        _ext(30, b"\x90"),
        _ext(30, b"\x92\x01\x02"),
        _ext(31, b"\x92\xa3a:b\x90"),
        _ext(32, b"\x92\xa3a:b\x80"),
        _ext(33, b"\xa1x"),
    ],
)
def test_damaged(data: bytes) -> None:
    with pytest.raises(Damaged) as caught:
        decode(data, resolve=lambda code, payload: payload, what="the state of run r")
    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, Exception)


@pytest.mark.parametrize("code", [0, 15, 21, 34, 99, 100, 119, 120, 127, -1, -128])
def test_unknown_extensions(code: int) -> None:
    data = b"\x91\xd4" + code.to_bytes(1, "big", signed=True) + b"x"
    with pytest.raises(UnknownFormat) as caught:
        decode(data, what="the state of run r")
    assert caught.value.what == "the state of run r"
    assert str(code) in str(caught.value.found)


def test_any_buffer_is_read() -> None:
    data = encode([(1,), b"x"])
    assert decode(bytearray(data)) == decode(memoryview(data)) == [(1,), b"x"]


def test_nodes_are_resolved_in_place() -> None:
    data = encode({"a": [1, Node(100, b"x"), (Node(119, b"y"),)]})
    assert decode(data, resolve=lambda code, payload: [code, payload]) == {"a": [1, [100, b"x"], ([119, b"y"],)]}
    assert encode(decode(data, resolve=Node, private=True)) == data
    with pytest.raises(ValueError, match="node codes"):
        Node(99, b"")


@pytest.mark.parametrize("error", [LookupError("gone"), KeyboardInterrupt(), RecursionError()])
def test_what_a_resolver_raises_passes_through(error: BaseException) -> None:
    def resolve(_code: int, _payload: bytes) -> object:
        raise error

    with pytest.raises(type(error)) as caught:
        decode(encode([Node(100, b""), (Node(100, b""),)]), resolve=resolve)
    assert caught.value is error


def test_an_interrupt_while_encoding_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from knotline.codec import values as module

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        encode([(1,)])
    monkeypatch.undo()
    assert decode(encode([(1,)])) == [(1,)]


def test_boxes_are_values() -> None:
    box = Boxed(5, b"\x90")
    assert box == Boxed(5, b"\x90")
    assert hash(box) == hash(Boxed(5, b"\x90"))
    assert box != Boxed(6, b"\x90")
    assert box != Node(100, b"\x90")
    with pytest.raises(AttributeError):
        box.code = 6
    with pytest.raises(AttributeError):
        del box.payload


_BOMBS = """
import sys, threading
from knotline.codec import decode
from knotline.errors import Damaged
threading.stack_size(4 << 20)

def ext(code, payload):
    return b"\\xc9" + len(payload).to_bytes(4, "big") + bytes([code]) + payload

def bomb(code, arrays, levels, head):
    data = b"\\xc0"
    for _ in range(levels):
        data = ext(code, head * arrays + data)
    return data

count = 0
def run():
    global count
    for code in (1, 4, 5, 6, 20, 31, 33):
        for head in (b"\\x91", b"\\x92\\x01", b"\\x81\\xa1k", b"\\xdc\\x00\\x01"):
            for arrays, levels in ((1020, 3), (1020, 200), (1, 5000), (100, 60), (30, 100)):
                for private in (False, True):
                    try:
                        decode(bomb(code, arrays, levels, head), private=private)
                    except Damaged:
                        count += 1
thread = threading.Thread(target=run)
thread.start()
thread.join()
print(count)
"""


def test_bombs_end_in_an_error_and_not_in_a_full_stack() -> None:
    done = subprocess.run([sys.executable, "-c", _BOMBS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    # In private form, boxes are not opened: for four of the codes there is nothing to refuse.
    assert int(done.stdout) == 7 * 4 * 5 + 3 * 4 * 5
