"""Keys of runs and documents: one byte of kind, then the name as the user wrote it."""

from __future__ import annotations

from collections.abc import Iterable

from knotline.backends import MAX_RUN_KEY
from knotline.codec import digest
from knotline.errors import Damaged, Unstorable

__all__ = ["document_key", "document_name", "is_run", "label_token", "label_tokens", "run_key", "run_name"]

_RUN = b"r"
_DOCUMENT = b"d"


def run_key(name: str) -> bytes:
    return _RUN + _text(name, "run")


def document_key(category: str, name: str) -> bytes:
    front = _text(category, "category")
    return _checked(_DOCUMENT + len(front).to_bytes(2, "big") + front + _text(name, "key"), "document")


def run_name(key: bytes) -> str:
    if key[:1] == _DOCUMENT:
        size = 3 + int.from_bytes(key[1:3], "big")
        return f"{_shown(key[3:size])}/{_shown(key[size:])}"
    return _shown(key[1:])


def is_run(key: bytes) -> bool:
    return key[:1] == _RUN


def document_name(key: bytes) -> tuple[str, str] | None:
    if key[:1] != _DOCUMENT:
        return None
    size = 3 + int.from_bytes(key[1:3], "big")
    return _shown(key[3:size]), _shown(key[size:])


def label_token(label: str) -> int:
    """Labels are found by four bytes of their digest; whoever searches checks the header."""
    return int.from_bytes(digest(b"lbl", label.encode("utf-8", "surrogatepass"))[:4], "big")


def label_tokens(labels: Iterable[str]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(label_token, labels)))


def _text(name: str, kind: str) -> bytes:
    # Lone surrogates are kept: any text that Python holds is a name, and it comes back as it was.
    return _checked(name.encode("utf-8", "surrogatepass"), kind)


def _checked(raw: bytes, kind: str) -> bytes:
    if not raw:
        raise Unstorable(kind, why="an empty name")
    if len(raw) >= MAX_RUN_KEY:
        raise Unstorable(kind, why=f"a name of {len(raw)} bytes; the limit is {MAX_RUN_KEY - 1}")
    return raw


def _shown(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Damaged("the key of a run", why="it is no text") from error
