"""The plain payloads of entry bodies. A few fixed bytes in front say what a state stands on, without decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from knotline.errors import UnknownFormat

__all__ = ["Body", "Delta", "Fork", "Nothing", "Root", "close_body", "open_body"]

_NOTHING: Final = b""
_ROOT: Final = 0
_DELTA: Final = 1
_FORK: Final = 2


@dataclass(frozen=True, slots=True)
class Nothing:
    """A move without state of its own."""


@dataclass(frozen=True, slots=True)
class Root:
    """A whole state. The first `fresh` links are leaves that this seal stored: a dictionary for older entries."""

    fresh: int
    tree: bytes


@dataclass(frozen=True, slots=True)
class Delta:
    """Operations on the state of `base`; everything back to the seal (or fork) is at `anchor` or after."""

    base: int
    anchor: int
    ops: bytes


@dataclass(frozen=True, slots=True)
class Fork:
    """The state of another run's revision."""

    origin: bytes
    rev: int
    hash: bytes


Body = Nothing | Root | Delta | Fork


def close_body(body: Body) -> bytes:
    match body:
        case Nothing():
            return _NOTHING
        case Root(fresh, tree):
            return b"\x00" + fresh.to_bytes(3, "big") + tree
        case Delta(base, anchor, ops):
            return b"\x01" + base.to_bytes(4, "big") + anchor.to_bytes(4, "big") + ops
        case Fork(origin, rev, origin_hash):
            return b"\x02" + rev.to_bytes(4, "big") + origin_hash + origin


def open_body(payload: bytes, what: str) -> Body:
    if not payload:
        return Nothing()
    kind = payload[0]
    if kind == _ROOT:
        return Root(int.from_bytes(payload[1:4], "big"), payload[4:])
    if kind == _DELTA:
        return Delta(int.from_bytes(payload[1:5], "big"), int.from_bytes(payload[5:9], "big"), payload[9:])
    if kind == _FORK:
        return Fork(payload[21:], int.from_bytes(payload[1:5], "big"), payload[5:21])
    raise UnknownFormat(what, found=f"body {kind}")
