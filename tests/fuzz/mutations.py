"""Mutations that need no instrumentation: seeded, so that every machine runs the same ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

__all__ = ["mutations"]

_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0xC1, 0xC7, 0xC9, 0xDC, 0xDD, 0xDF)
_NUMBERS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_MOST = 16_384


def mutations(begin: Sequence[bytes], runs: int, *, seed: int) -> Iterator[bytes]:
    """First what there is to begin with, then as many changes of it."""
    dice = random.Random(seed)
    yield from begin
    for _ in range(runs):
        data = bytearray(dice.choice(begin))
        for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
            _mutate(data, begin, dice)
        yield bytes(data[:_MOST])


def _mutate(data: bytearray, begin: Sequence[bytes], dice: random.Random) -> None:
    at = dice.randrange(len(data) + 1)
    match dice.randrange(10):
        case 0 | 1 if at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        case 2 if at < len(data):
            data[at] = dice.choice(_EDGES)
        case 3 if at < len(data):
            data[at] = dice.randrange(256)
        case 4:
            del data[at : at + dice.choice((1, 1, 2, 4, 16, 64))]
        case 5:
            data[at:at] = dice.randbytes(dice.choice((1, 1, 2, 4, 16)))
        case 6:
            size = dice.choice((1, 2, 4, 8))
            number = dice.choice(_NUMBERS) % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, dice.choice(("big", "little")))
        case 7:
            start = dice.randrange(len(data) + 1)
            piece = data[start : start + dice.choice((2, 8, 32, 128))]
            data[at : at + dice.choice((0, len(piece)))] = piece
        case 8:
            other = dice.choice(begin)
            start = dice.randrange(len(other) + 1)
            data[at:] = other[start:]
        case _:
            piece = data[at : at + dice.choice((1, 4, 16))]
            data[at:at] = piece * dice.choice((2, 16, 64))
