"""Where the secret that opens an encrypted store comes from: bytes, a passphrase, the environment, a file, a command.

A source is asked each time that the store is opened, and says what it is without saying what it holds: no secret
is in a `repr`, an error or a log.
"""

from __future__ import annotations

import base64
import binascii
import os
import subprocess
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

__all__ = [
    "KEY_VARIABLE",
    "PASSPHRASE_VARIABLE",
    "Argon2Cost",
    "EnvironmentKey",
    "KeyCommand",
    "KeyFile",
    "KeySource",
    "Kind",
    "Lacking",
    "Passphrase",
    "RawKey",
    "Secret",
    "as_sources",
]

KEY_VARIABLE: Final = "KNOTLINE_KEY"
PASSPHRASE_VARIABLE: Final = "KNOTLINE_PASSPHRASE"  # noqa: S105 - the name of one
_KEY: Final = 32
# Nobody's key or passphrase is longer; a file or a command that goes on is the wrong one.
_MOST: Final = 64 * 1024

Kind = Literal["key", "passphrase"]


class Lacking(Exception):
    """A source that has no secret to give; the text says why, and never what was found instead."""


@dataclass(frozen=True, slots=True)
class Argon2Cost:
    """What one guess at a passphrase costs: KiB of memory, passes over it, and lanes.

    The default is the second recommendation of RFC 9106, about a tenth of a second.
    """

    memory: int = 64 * 1024
    passes: int = 3
    lanes: int = 4

    @property
    def sane(self) -> bool:
        """Within what is ever computed: a cost read from a disk must not take a machine down."""
        return 1 <= self.lanes <= 16 and 8 * self.lanes <= self.memory <= 1024 * 1024 and 1 <= self.passes <= 16


@dataclass(frozen=True, slots=True)
class Secret:
    kind: Kind
    value: bytes = field(repr=False)
    cost: Argon2Cost = Argon2Cost()


class KeySource(Protocol):
    """Anything with these two methods can open a store: a keychain, a vault, a key service."""

    def secret(self) -> Secret:
        """The secret; raises `Lacking` when there is none to be had."""
        ...

    def describe(self) -> str:
        """For messages: which source this is, without a word of what it holds."""
        ...


def _key(raw: bytes) -> Secret:
    if len(raw) != _KEY:
        raise Lacking(f"a key has {_KEY} bytes, this one has {len(raw)}")
    return Secret("key", raw)


def _key_from_text(text: bytes) -> Secret:
    """64 hexadecimal digits, or base64 of either alphabet."""
    text = text.strip()
    try:
        return _key(bytes.fromhex(text.decode("ascii")))
    except (ValueError, Lacking):
        pass
    try:
        padded = text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4)
        raw = base64.b64decode(padded.replace(b"-", b"+").replace(b"_", b"/"), validate=True)
    except binascii.Error:
        # Not chained: the decoder's message is about the secret.
        raise Lacking(f"it is not a key: {_KEY} bytes as hexadecimal digits or as base64") from None
    return _key(raw)


def _passphrase(text: str, cost: Argon2Cost) -> Secret:
    if not text:
        raise Lacking("the passphrase is empty")
    if not cost.sane:
        raise Lacking(f"{cost} is out of bounds")
    # One passphrase typed on two systems may arrive in two forms.
    return Secret("passphrase", unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass"), cost)


def _held(raw: bytes, holds: Kind, cost: Argon2Cost) -> Secret:
    if len(raw) > _MOST:
        raise Lacking(f"it gives more than {_MOST} bytes")
    if holds == "key":
        return _key(raw) if len(raw) == _KEY else _key_from_text(raw)
    try:
        return _passphrase(raw.decode("utf-8").rstrip("\r\n"), cost)
    except UnicodeDecodeError:
        raise Lacking("the passphrase is not text in UTF-8") from None


class RawKey:
    """32 bytes that are as random as a key should be."""

    def __init__(self, key: bytes) -> None:
        self._key = bytes(key)

    def secret(self) -> Secret:
        return _key(self._key)

    def describe(self) -> str:
        return "a key"

    def __repr__(self) -> str:
        return "RawKey(…)"


class Passphrase:
    """Something a person remembers. `cost` counts when a slot is made; a slot that exists has its own."""

    def __init__(self, passphrase: str, *, cost: Argon2Cost | None = None) -> None:
        self._passphrase = passphrase
        self._cost = cost or Argon2Cost()

    def secret(self) -> Secret:
        return _passphrase(self._passphrase, self._cost)

    def describe(self) -> str:
        return "a passphrase"

    def __repr__(self) -> str:
        return "Passphrase(…)"


class EnvironmentKey:
    """A variable of the environment, read when the store is opened."""

    def __init__(
        self,
        variable: str = KEY_VARIABLE,
        *,
        holds: Kind = "key",
        cost: Argon2Cost | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.variable = variable
        self.holds: Kind = holds
        self._cost = cost or Argon2Cost()
        self._environ = os.environ if environ is None else environ

    def secret(self) -> Secret:
        text = self._environ.get(self.variable, "")
        if not text:
            raise Lacking("it is not set")
        if self.holds == "passphrase":
            return _passphrase(text, self._cost)
        return _key_from_text(text.encode("utf-8", "surrogateescape"))

    def describe(self) -> str:
        return f"environment variable {self.variable}"

    def __repr__(self) -> str:
        return f"EnvironmentKey({self.variable!r}, holds={self.holds!r})"


class KeyFile:
    """A file: 32 raw bytes, the same as hexadecimal digits or base64, or with `holds="passphrase"` a line of text."""

    def __init__(self, path: str | os.PathLike[str], *, holds: Kind = "key", cost: Argon2Cost | None = None) -> None:
        self.path = Path(path)
        self.holds: Kind = holds
        self._cost = cost or Argon2Cost()

    def secret(self) -> Secret:
        try:
            with self.path.open("rb") as file:
                raw = file.read(_MOST + 1)
        except OSError as error:
            raise Lacking(error.strerror or type(error).__name__) from error
        return _held(raw, self.holds, self._cost)

    def describe(self) -> str:
        return f"file {self.path}"

    def __repr__(self) -> str:
        return f"KeyFile({str(self.path)!r}, holds={self.holds!r})"


class KeyCommand:
    """What a command writes, such as `("pass", "show", "knotline")`. No shell; its arguments are never shown."""

    def __init__(
        self, command: Sequence[str], *, holds: Kind = "key", timeout: float = 30.0, cost: Argon2Cost | None = None
    ) -> None:
        if isinstance(command, str) or not command:
            raise TypeError("a command is a sequence: the program, then its arguments")
        self._command = tuple(command)
        self.holds: Kind = holds
        self._timeout = timeout
        self._cost = cost or Argon2Cost()

    def secret(self) -> Secret:
        # Errors are not chained: those of `subprocess` carry the arguments and what was written.
        try:
            ended = subprocess.run(  # noqa: S603 - the user's own command, without a shell
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=self._timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise Lacking(f"it gave nothing within {self._timeout:g} s") from None
        except OSError as error:
            raise Lacking(error.strerror or type(error).__name__) from None
        if ended.returncode:
            raise Lacking(f"it ended with status {ended.returncode}")
        return _held(ended.stdout, self.holds, self._cost)

    def describe(self) -> str:
        return f"command {self._command[0]}"

    def __repr__(self) -> str:
        return f"KeyCommand(({self._command[0]!r}, …), holds={self.holds!r})"


def as_sources(given: KeySource | Sequence[KeySource] | bytes | None) -> tuple[KeySource, ...]:
    """None is the environment: `KNOTLINE_KEY`, then `KNOTLINE_PASSPHRASE`."""
    if given is None:
        return (EnvironmentKey(KEY_VARIABLE), EnvironmentKey(PASSPHRASE_VARIABLE, holds="passphrase"))
    if isinstance(given, bytes):
        return (RawKey(given),)
    if isinstance(given, str):
        raise TypeError("a passphrase is given as Passphrase(…), 32 bytes of key as bytes")
    if isinstance(given, Sequence):
        return tuple(given)
    return (given,)
