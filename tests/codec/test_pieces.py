"""A piece digested as it opens is the piece that is opened and then digested; and what is wrong with it is the same."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knotline.codec import (
    close_piece,
    dictionary_compressor,
    digest,
    make_dictionary,
    open_piece,
    recast_piece,
    seal_of,
)
from knotline.codec.frames import digest_front, digest_piece
from knotline.errors import Error, UnknownFormat

ids = st.binary(min_size=16, max_size=16)
payloads = st.one_of(
    st.binary(max_size=300), st.integers(0, 700_000).map(lambda n: random.Random(n).randbytes(7) * (n // 7))
)


def front(links: list[bytes], size: int) -> bytes:
    return digest_front(b"obj", b"".join(links), size=size)


@given(st.lists(ids, max_size=3), payloads)
def test_both_ways(links: list[bytes], payload: bytes) -> None:
    stored = close_piece(links, payload)
    assert open_piece(stored, "piece") == (links, payload)
    found = digest_piece(stored, "piece", front)
    assert found == (links, digest(b"obj", b"".join(links), payload), payload[:1024])
    assert seal_of(stored) is None


@given(st.lists(ids, max_size=2), payloads, st.data())
def test_what_is_wrong_is_wrong_both_ways(links: list[bytes], payload: bytes, data: st.DataObject) -> None:
    stored = bytearray(close_piece(links, payload))
    at = data.draw(st.integers(0, len(stored) - 1))
    if data.draw(st.booleans()):
        del stored[at:]
    else:
        stored[at] ^= 1 << data.draw(st.integers(0, 7))
    opened: object
    try:
        there, plain = open_piece(bytes(stored), "piece")
        opened = (there, digest(b"obj", b"".join(there), plain), plain[:1024])
    except Error as error:
        opened = type(error)
    try:
        found: object = digest_piece(bytes(stored), "piece", front)
    except Error as error:
        found = type(error)
    assert found == opened


def test_a_recast_piece() -> None:
    payload = random.Random(1).randbytes(3000)
    plain = close_piece([bytes(16)], payload)
    small = recast_piece(plain, payload, seal=7, dictionary=dictionary_compressor(payload * 2))
    assert small is not None
    assert len(small) < len(plain) // 10
    assert seal_of(small) == 7
    dictionary = make_dictionary(payload * 2, "seal")
    links, found, beginning = digest_piece(small, "piece", front, seal=lambda rev: dictionary if rev == 7 else None)
    assert (links, beginning) == ([bytes(16)], payload[:1024])
    assert found == digest(b"obj", bytes(16), payload)
    with pytest.raises(UnknownFormat):
        digest_piece(small, "piece", front)
    # By another dictionary it opens to other bytes: only the digest tells.
    other = digest_piece(small, "piece", front, seal=lambda _: make_dictionary(bytes(range(256)) * 24, "seal"))
    assert other[1] != found


def test_a_bomb_is_not_held() -> None:
    stored = close_piece([], bytes(200 << 20))
    tracemalloc.start()
    found = digest_piece(stored, "piece", front)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] == []
    assert peak < 2 << 20
