"""Bytes around bytes: digests, compression and the links of a stored piece. `docs/format.md` has the pictures.

A *piece* is a body or an object: the ids that it links to, and a payload. Links stand in front, uncompressed,
so that sweeping and prefetching never decode a payload. A piece's digest is over its links and its plain
payload: how it is compressed can change (see `Dictionary`) without changing what it is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from knotline.errors import Damaged, TooLarge, UnknownFormat

if TYPE_CHECKING:
    from backports import zstd
elif sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = [
    "ID",
    "MAX_PIECE",
    "close_piece",
    "digest",
    "digest_front",
    "digest_piece",
    "links_of",
    "open_piece",
    "recast_piece",
    "seal_of",
]

ID: Final = 16
"""Length of ids and hashes: 128 bits of blake3."""

MAX_PIECE: Final = 1 << 30
MAX_LINKS: Final = 1 << 20

_RAW: Final = 0
_ZSTD: Final = 1
_AFTER: Final = 2
"""zstd with a dictionary: the leaves that a later seal of the same run made of this very content."""

_NO_LINKS: Final = b"\0\0\0"

_WORTH: Final = 96
"""Payloads shorter than this are not worth a compressor's call."""

_STEP: Final = 1 << 18
_BEGINNING: Final = 1 << 10
_DICTIONARY: Final = 8
"""What zstd asks of a dictionary."""

_local = threading.local()


def digest(kind: bytes, *parts: bytes) -> bytes:
    """Of length-prefixed parts, so that no two different lists of parts give the same bytes."""
    if len(parts) == 1:
        return blake3(kind + parts[0]).digest(ID)
    if len(parts) == 2:  # an object's links and payload: every byte that is read goes through here
        one, two = parts
        size = len(one).to_bytes(5, "big") + len(two).to_bytes(5, "big")
        return blake3(b"%b%b%b%b" % (kind, size, one, two)).digest(ID)
    front = kind + b"".join([len(part).to_bytes(5, "big") for part in parts])
    return blake3(front + b"".join(parts)).digest(ID)


def _compressor() -> Any:
    # One per thread: making a context costs 10 us, using one 5 us, and a context is not for two threads.
    try:
        return _local.compressor
    except AttributeError:
        _local.compressor = zstd.ZstdCompressor(level=1)
        return _local.compressor


def _flush(compressor: Any, payload: bytes) -> bytes:
    return compressor.compress(payload, zstd.ZstdCompressor.FLUSH_FRAME)


def close_piece(links: Sequence[bytes], payload: bytes) -> bytes:
    """The stored form, compressed if that helps."""
    front = len(links).to_bytes(3, "big") + b"".join(links)
    size = len(payload)
    if size > MAX_PIECE:
        raise TooLarge("piece", why=f"{size} bytes in one piece; the limit is {MAX_PIECE}")
    if size >= _WORTH:
        small = _flush(_compressor(), payload)
        if len(small) + 4 < size - (size >> 4):
            return b"%b%b%b%b" % (front, b"\x01", size.to_bytes(4, "big"), small)
    return front + b"\x00" + payload


def recast_piece(stored: bytes, payload: bytes, *, seal: int, dictionary: Callable[[bytes], bytes]) -> bytes | None:
    """The same piece, compressed against what the seal at revision `seal` stored; None where that gains little."""
    front = 3 + ID * int.from_bytes(stored[:3], "big")
    small = dictionary(payload)
    if len(small) + 9 > (len(stored) - front) * 0.7:
        return None
    return b"%b\x02%b%b%b" % (stored[:front], len(payload).to_bytes(4, "big"), seal.to_bytes(4, "big"), small)


def dictionary_compressor(content: bytes) -> Callable[[bytes], bytes]:
    compressor = zstd.ZstdCompressor(level=1, zstd_dict=zstd.ZstdDict(content, is_raw=True))
    return lambda payload: _flush(compressor, payload)


def links_of(stored: bytes, what: str) -> list[bytes]:
    if stored[:3] == _NO_LINKS and len(stored) > len(_NO_LINKS):
        return []
    count = int.from_bytes(stored[:3], "big")
    end = 3 + ID * count
    if len(stored) <= end or count > MAX_LINKS:
        raise Damaged(what, why="it is cut short")
    return [stored[at : at + ID] for at in range(3, end, ID)]


def open_piece(stored: bytes, what: str, *, seal: Callable[[int], Any] | None = None) -> tuple[list[bytes], bytes]:
    """Links and plain payload. `seal(rev)` gives the zstd dictionary of that seal."""
    links = links_of(stored, what)
    at = 3 + ID * len(links)
    kind = stored[at]
    if kind == _RAW:
        return links, stored[at + 1 :]
    if kind == _ZSTD:
        return links, _inflate(stored[at + 5 :], stored[at + 1 : at + 5], None, what)
    if kind == _AFTER and seal is not None:
        dictionary = seal(int.from_bytes(stored[at + 5 : at + 9], "big"))
        return links, _inflate(stored[at + 9 :], stored[at + 1 : at + 5], dictionary, what)
    raise UnknownFormat(what, found=kind)


def seal_of(stored: bytes) -> int | None:
    """The revision whose seal a recast piece needs."""
    at = 3 + ID * int.from_bytes(stored[:3], "big")
    return int.from_bytes(stored[at + 5 : at + 9], "big") if stored[at : at + 1] == b"\x02" else None


def digest_piece(
    stored: bytes,
    what: str,
    front: Callable[[list[bytes], int], bytes],
    *,
    seal: Callable[[int], Any] | None = None,
) -> tuple[list[bytes], bytes, bytes]:
    """Links, digest and the beginning of the payload of a piece that nobody vouches for.

    However much it opens to, little of that is held at a time. `front` gives what is digested before the payload.
    """
    links = links_of(stored, what)
    at = 3 + ID * len(links)
    kind = stored[at]
    if kind == _RAW:
        payload = stored[at + 1 :]
        return links, blake3(front(links, len(payload)) + payload).digest(ID), payload[:_BEGINNING]
    dictionary: Any = None
    small = at + 5
    if kind == _AFTER and seal is not None:
        small = at + 9
        dictionary = seal(int.from_bytes(stored[at + 5 : small], "big"))
    elif kind != _ZSTD:
        raise UnknownFormat(what, found=kind)
    size = int.from_bytes(stored[at + 1 : at + 5], "big")
    hashed = blake3(front(links, size))
    given, beginning = 0, b""
    try:
        machine = zstd.ZstdDecompressor(zstd_dict=dictionary)
        part = machine.decompress(stored[small:], max_length=_STEP)
        while part or not (machine.eof or machine.needs_input):
            given += len(part)
            beginning = beginning or part[:_BEGINNING]
            hashed.update(part)
            if machine.eof or given > size:
                break
            part = machine.decompress(b"", max_length=_STEP)
    except (zstd.ZstdError, EOFError, ValueError) as error:
        raise Damaged(what, why="its compressed bytes do not open") from error
    if given != size or not machine.eof or machine.unused_data:
        raise Damaged(what, why="its compressed bytes do not have the declared length")
    return links, hashed.digest(ID), beginning


def digest_front(kind: bytes, *parts: bytes, size: int) -> bytes:
    """What `digest` hashes before its last part, of which only the size is known."""
    sizes = [*map(len, parts), size]
    return kind + b"".join([each.to_bytes(5, "big") for each in sizes]) + b"".join(parts)


def make_dictionary(content: bytes, what: str) -> Any:
    if len(content) < _DICTIONARY:
        raise Damaged(what, why="it stored nothing that could be a dictionary")
    return zstd.ZstdDict(content, is_raw=True)


def _inflate(small: bytes, size_bytes: bytes, dictionary: Any, what: str) -> bytes:
    size = int.from_bytes(size_bytes, "big")
    # A declared size is a claim: nothing is allocated for it beyond what the frame really gives.
    if size > MAX_PIECE or len(size_bytes) < 4:
        raise Damaged(what, why=f"it declares {size} bytes")
    try:
        machine = zstd.ZstdDecompressor(zstd_dict=dictionary)
        plain = machine.decompress(small, max_length=size + 1)
    except (zstd.ZstdError, EOFError, ValueError) as error:
        raise Damaged(what, why="its compressed bytes do not open") from error
    if len(plain) != size or not machine.eof or machine.unused_data:
        raise Damaged(what, why="its compressed bytes do not have the declared length")
    return plain
