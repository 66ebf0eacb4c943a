"""From an address or settings to an open backend: the one place that knows which class an address means."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from knotline.backends import Backend, MemoryBackend
from knotline.backends.keys import KeySource
from knotline.config import places
from knotline.config.settings import Settings, load_settings
from knotline.config.shape import nearest
from knotline.errors import ConfigError, Unavailable, Unsupported

__all__ = ["encrypted", "open_backend"]

_WANTED: Final = "memory:, files:DIR or sqlite:FILE"
_SCHEMES: Final = ("memory", "files", "sqlite")
_LATER: Final = {
    "postgresql": "the extra knotline[postgres], which this release does not have yet",
    "postgres": "the extra knotline[postgres], which this release does not have yet",
    "s3": "the extra knotline[objects], which this release does not have yet",
    "gs": "the extra knotline[objects], which this release does not have yet",
    "az": "the extra knotline[objects], which this release does not have yet",
}
_LOGIN: Final = re.compile(r"(?<=//)[^/@]*@")


def open_backend(where: str | Settings | None = None, *, clock: Callable[[], float] | None = None) -> Backend:
    """The backend at an address; without one, what the settings say: this project's default is SQLite.

    Whichever it is: where the settings name a key or a passphrase, what is stored is encrypted.
    """
    settings = where if isinstance(where, Settings) else load_settings()
    inner = _at_address(where, clock) if isinstance(where, str) else _at_place(settings, clock)
    return encrypted(inner, settings.sources())


def _at_place(settings: Settings, clock: Callable[[], float] | None) -> Backend:
    place = settings.place
    if place is None:
        return _memory(clock)
    try:
        return _files(place, clock) if settings.storage_type == "json" else _sqlite(place, clock)
    except Unavailable as error:
        # Nobody typed this path here and now: say where it comes from, and how to choose another.
        said = settings.origin("path" if settings.path is not None else "base_dir")
        why = f"{error.why}; this place is from: {said}; another one: KNOTLINE_PATH, KNOTLINE_BASE_DIR or config.json"
        raise Unavailable(error.what, why=why) from error


def encrypted(inner: Backend, sources: KeySource | Sequence[KeySource]) -> Backend:
    """The backend as it is if there are no sources. A store that cannot be opened is closed again."""
    if isinstance(sources, Sequence) and not sources:
        return inner
    from knotline.backends.encrypted import EncryptedBackend  # noqa: PLC0415 - needs an extra

    try:
        return EncryptedBackend(inner, sources)
    except BaseException:
        inner.close()
        raise


def _at_address(address: str, clock: Callable[[], float] | None) -> Backend:
    scheme, colon, rest = address.partition(":")
    if colon and scheme in _LATER:
        raise Unsupported(_LOGIN.sub("…@", address), why=f"it needs {_LATER[scheme]}")
    if not colon or scheme not in _SCHEMES:
        near = nearest(scheme, _SCHEMES) if colon else ""
        suggestion = f"{near}:{rest}" if near else "memory:" if address == "memory" else f"sqlite:{address}"
        raise _wrong(address, _WANTED, suggestion)
    if scheme == "memory":
        if rest:
            raise _wrong(address, "memory: alone; it has no place", "memory:")
        return _memory(clock)
    if not rest:
        raise _wrong(address, _WANTED, "")
    if rest.startswith("//") and not rest.startswith("///"):
        # Whether `//` begins a host or a path is where other libraries differ: nobody's file lands elsewhere here.
        raise _wrong(address, f"{scheme}:PATH", f"{scheme}:{rest[2:]}")
    place = places.expand(rest, Path.cwd(), file="address", key=address)
    return _files(place, clock) if scheme == "files" else _sqlite(place, clock)


def _wrong(address: str, wanted: str, suggestion: str) -> ConfigError:
    shown = _LOGIN.sub("…@", address)
    return ConfigError("address", "", found=repr(shown), wanted=wanted, suggestion=_LOGIN.sub("…@", suggestion))


def _memory(clock: Callable[[], float] | None) -> Backend:
    return MemoryBackend() if clock is None else MemoryBackend(clock=clock)


def _sqlite(file: Path, clock: Callable[[], float] | None) -> Backend:
    from knotline.backends.sqlite import SqliteBackend  # noqa: PLC0415 - imports the engine

    return SqliteBackend(file, clock=clock)


def _files(folder: Path, clock: Callable[[], float] | None) -> Backend:
    from knotline.backends.files import FilesBackend  # noqa: PLC0415 - looked up only by those who use it

    return FilesBackend(folder) if clock is None else FilesBackend(folder, clock=clock)
