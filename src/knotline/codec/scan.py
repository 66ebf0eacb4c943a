"""How deep do these msgpack bytes nest? Asked before reading what lies inside an extension.

Reading takes stack for every array in an array. ormsgpack counts them, but starts again inside each extension, so
bytes made for it could use a hundred times its limit and end the process. Honest values almost never get here:
the cheap upper bound answers for them.
"""

from __future__ import annotations

from typing import Final

from knotline.errors import Damaged

__all__ = ["depth_of", "may_nest"]

_HEADS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))

# Bytes to skip after a first byte of 0xc0..0xdb; for those with a length (its size here), its value as well.
_FIXED: Final = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
                 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # fmt: skip
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENDED: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}


def may_nest(data: bytes) -> int:
    """No fewer than the containers in `data`: the bytes that could begin one. ASCII text has none."""
    return len(data) - len(data.translate(None, _HEADS))


def depth_of(data: bytes, *, limit: int) -> int:
    """The arrays and maps around the innermost one, extensions not entered; stops once it exceeds `limit`."""
    at, deepest = 0, 0
    left: list[int] = [1]  # items still to come in each open container
    try:
        while left:
            if not left[-1]:
                left.pop()
                continue
            left[-1] -= 1
            first = data[at]
            at += 1
            count = -1
            if first < 0x80 or first >= 0xE0:
                continue
            if first < 0x90:
                count = 2 * (first & 15)
            elif first < 0xA0:
                count = first & 15
            elif first < 0xC0:
                at += first & 31
            elif first >= 0xDC:
                size = 2 if first in (0xDC, 0xDE) else 4
                count = int.from_bytes(data[at : at + size], "big") * (2 if first >= 0xDE else 1)
                at += size
            elif first in _FIXED:
                at += _FIXED[first]
            elif first in _SIZED or first in _EXTENDED:
                size = _SIZED.get(first) or _EXTENDED[first]
                at += size + int.from_bytes(data[at : at + size], "big") + (first in _EXTENDED)
            if count >= 0:
                left.append(count)
                deepest = max(deepest, len(left) - 1)
                if deepest > limit:
                    break
    except IndexError:
        raise Damaged("stored value", why="it ends too early") from None
    return deepest
