"""Secrets that are recognised are replaced before anything is compared, hashed or written.

A checkpoint outlives the process that made it, is copied to other machines and read by other people; a token that
slipped into a state or an error text would be there for ever. Two rules: values under a telling *name*
(`password`, `api_key`, …), and texts that *look* like a secret (`sk-…`, a private key, `https://user:pass@…`).
Values come here in their private form (`knotline.codec.private`), so every type that can be stored is seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, cast

from knotline.codec import Boxed, FrozenDict, FrozenList, OddStr, decode, encode, exact, freeze, private, public, thaw
from knotline.codec.forms import BYTEARRAY, ENUM, FROZEN, FROZENSET, SET
from knotline.codec.values import sorted_array

__all__ = ["Redaction"]

NAMES: Final = (
    (
        r"(?:.*[_\-. ])?(?:password|passwd|passphrase|pwd|secret|secrets|api[_\-]?key|apikey|access[_\-]?key|"
        r"secret[_\-]?key|private[_\-]?key|signing[_\-]?key|encryption[_\-]?key|token|authorization|credential|"
        r"credentials|cookie|set-cookie|connection[_\-]?string)(?:[_\-](?:id|value|text))?"
    ),
    r".*(?:Password|Secret|ApiKey|AccessKey|SecretKey|PrivateKey|Token)",
)

# Each with texts one of which stands in whatever it matches: looking for these first is what makes it cheap.
PATTERNS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", ("PRIVATE KEY",)),
    (r"\bsk-[A-Za-z0-9_\-]{16,}", ("sk-",)),
    (
        r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_"),
    ),
    (r"\bglpat-[A-Za-z0-9_\-]{16,}", ("glpat-",)),
    (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", ("AKIA", "ASIA")),
    (r"\bAIza[A-Za-z0-9_\-]{30,}", ("AIza",)),
    (r"\bxox[abposr]-[A-Za-z0-9\-]{10,}", ("xox",)),
    (r"\bhf_[A-Za-z0-9]{24,}|\bnpm_[A-Za-z0-9]{24,}|\bpypi-[A-Za-z0-9_\-]{24,}", ("hf_", "npm_", "pypi-")),
    (r"\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}", ("eyJ",)),
    (r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)", ("://",)),
    (r"(?<=[Bb]earer )[A-Za-z0-9._~+/\-]{12,}=*", ("earer ",)),
    (
        (
            r"(?i:\b(?:password|passwd|secret|api[_\-]?key|access[_\-]?token|secret[_\-]?key)\b[\"']?\s*[=:]\s*[\"']?)"
            r"\K[^\s\"',;&]{6,}"
        ),
        ("assw", "ASSW", "ecret", "ECRET", "key", "KEY", "Key", "oken", "OKEN"),
    ),
)
_KEEP: Final = r"\K"
_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class _Pattern:
    search: re.Pattern[str]
    marks: tuple[str, ...]
    keeps: bool
    """Does its first group stay?"""


class Redaction:
    """`names` and `patterns` are regular expressions; those of the caller are added to the sensible ones.

    `defaults=False` leaves only the caller's; `Redaction(defaults=False)` recognises nothing.
    """

    def __init__(
        self,
        *,
        names: Iterable[str] = (),
        patterns: Iterable[str] = (),
        put: str = "[redacted]",
        defaults: bool = True,
    ) -> None:
        self.put = put
        known = NAMES if defaults else ()
        every = "|".join(f"(?:{name})" for name in (*known, *names))
        self._names = re.compile(every, re.IGNORECASE) if every else None
        pairs = [*(PATTERNS if defaults else ()), *((pattern, ()) for pattern in patterns)]
        self._patterns = tuple(self._pattern(text, marks) for text, marks in pairs)
        self._known: dict[str, bool] = {}
        marks = [mark.encode() for pattern in self._patterns for mark in pattern.marks]
        # A pattern of the caller's has no marks: then every value has to be searched.
        self._bytes = tuple(marks) if all(pattern.marks for pattern in self._patterns) else (b"",)

    def _pattern(self, text: str, marks: tuple[str, ...]) -> _Pattern:
        # What stands before \K is kept.
        front, keep, rest = text.rpartition(_KEEP)
        return _Pattern(re.compile(f"({front})(?:{rest})" if keep else text), marks, bool(keep))

    # -- names and texts -----------------------------------------------------------------------------------

    def hot(self, name: object) -> bool:
        """Is a value under this name a secret whatever it is?"""
        if type(name) is not str or self._names is None:
            return False
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[name] = self._names.fullmatch(name) is not None
        return known

    def text(self, text: str) -> str:
        """The very same text if there is nothing in it."""
        for pattern in self._patterns:
            if not pattern.marks or any(mark in text for mark in pattern.marks):
                text = pattern.search.sub(self._kept if pattern.keeps else self._put, text)
        return text

    def _put(self, _: re.Match[str]) -> str:
        return self.put

    def _kept(self, found: re.Match[str]) -> str:
        return found[1] + self.put

    # -- values --------------------------------------------------------------------------------------------

    def note(self, said: Mapping[str, Any], path: str = "metadata") -> dict[str, Any]:
        """What is said of a save, checked and cleaned: a copy of the caller's own kinds of values."""
        return cast("dict[str, Any]", public(self.clean(private(dict(said), path))))

    def clean(self, value: Any, path: tuple[Any, ...] = ()) -> Any:
        """A private value without secrets: the same object where there is none. Dicts and lists change in place."""
        return self._clean(value, hot=any(map(self.hot, path)))

    def _clean(self, value: Any, *, hot: bool) -> Any:
        kind = exact(value)
        if kind is str:
            return self.put if hot and value else self.text(value)
        if kind is OddStr:
            fresh = self.put if hot and value else self.text(value)
            return value if fresh == value else private(fresh)
        if kind is bytes:
            return self.put.encode() if hot and value else self._blob(value)
        if issubclass(kind, FrozenDict | FrozenList):
            return self._frozen(value, hot=hot)
        if issubclass(kind, dict):
            for key, item in list(value.items()):
                fresh = self._clean(item, hot=hot or self.hot(key))
                if fresh is not item:
                    value[key] = fresh
            return self._keys(value)
        if kind is list:
            for at, item in enumerate(value):
                fresh = self._clean(item, hot=hot)
                if fresh is not item:
                    value[at] = fresh
            return value
        if kind is tuple:
            made = [self._clean(item, hot=hot) for item in value]
            return tuple(made) if any(a is not b for a, b in zip(made, value, strict=True)) else value
        if kind is Boxed:
            return self._boxed(value, hot=hot)
        if issubclass(kind, PurePath):
            fresh = self.text(str(value))
            return value if fresh == str(value) else kind(fresh)
        return value

    def _keys(self, value: dict[Any, Any]) -> dict[Any, Any]:
        """A secret may be a key, too. Two of them in one dict stay two."""
        fresh = {key: self._clean(key, hot=False) for key in value}
        if all(key is new for key, new in fresh.items()):
            return value
        taken = {new for key, new in fresh.items() if key is new}
        pairs: dict[Any, Any] = {}
        for key, item in list(value.items()):
            new, count = fresh[key], 1
            while new is not key and new in taken:
                count += 1
                new = f"{fresh[key]} {count}"
            taken.add(new)
            pairs[new] = item
        value.clear()
        value.update(pairs)
        return value

    def _blob(self, value: bytes) -> bytes:
        if not any(mark in value for mark in self._bytes):
            return value
        # What is no ASCII must not look like a letter: it would be part of a word, and hide the secret in it.
        text = value.decode("ascii", "surrogateescape")
        fresh = self.text(text)
        return value if fresh == text else fresh.encode("utf-8", "surrogateescape")

    def _frozen(self, value: Any, *, hot: bool) -> Any:
        loose = private(thaw(value))
        before = encode(loose)
        fresh = self._clean(loose, hot=hot)
        return value if encode(fresh) == before else freeze(public(fresh))

    def _boxed(self, value: Boxed, *, hot: bool) -> Boxed:
        """An object of the user's, a set: what is in it is looked at in its bytes' own terms."""
        if value.code == ENUM:
            return value
        if value.code == BYTEARRAY:
            return Boxed(BYTEARRAY, self._clean(value.payload, hot=hot))
        inside: Any = decode(value.payload, private=True)
        if value.code in (SET, FROZENSET):
            fresh = sorted_array([encode(self._clean(item, hot=hot)) for item in inside])
            return value if fresh == value.payload else Boxed(value.code, fresh)
        if value.code == FROZEN:
            fresh = encode(self._clean(inside, hot=hot))
            return value if fresh == value.payload else Boxed(FROZEN, fresh)
        # The first is the name of its type.
        fresh = encode([inside[0], *(self._clean(part, hot=hot) for part in inside[1:])])
        return value if fresh == value.payload else Boxed(value.code, fresh)
