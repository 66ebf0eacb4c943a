"""Which setting holds: arguments, then the environment, the project's files, the user's file; each knows its origin."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from knotline.backends.keys import (
    KEY_VARIABLE,
    PASSPHRASE_VARIABLE,
    EnvironmentKey,
    KeyCommand,
    KeyFile,
    KeySource,
    Kind,
)
from knotline.config import jsonc, places
from knotline.config.shape import FIELDS, SECTIONS, Durability, Field, StorageType, checked, nearest
from knotline.errors import ConfigError

__all__ = ["DEFAULT", "Row", "Settings", "from_block", "load_settings", "read_config"]

DEFAULT: Final = "default"
_ARGUMENT: Final = "argument"
_SECRETS: Final[dict[str, tuple[str, Kind]]] = {
    "key": (KEY_VARIABLE, "key"),
    "passphrase": (PASSPHRASE_VARIABLE, "passphrase"),
}
_VARIABLES: Final = {each.variable: each for each in FIELDS.values() if each.variable is not None}
_PATHS: Final = ("path", "base_dir")
_FRONT: Final = "KNOTLINE_"
_ENDINGS: Final = tuple(name.removeprefix(_FRONT) for name in (*_VARIABLES, KEY_VARIABLE, PASSPHRASE_VARIABLE))
# How alike a variable of ours and an unknown one must be before it counts as a slip: other programs that use
# knotline may have variables of their own with our prefix.
_SLIP: Final = 0.85


@dataclass(frozen=True, slots=True)
class Row:
    """One setting for `config show`: what holds, who said so, and what it hides."""

    key: str
    value: str
    origin: str
    hides: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one place says. `folder` is where its relative paths start; `block`: it has a block "persistence"."""

    origin: str
    values: Mapping[str, str]
    block: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds, all paths absolute. `key` and `passphrase` name sources (`env:NAME`), never a secret."""

    storage_type: StorageType = "sqlite"
    path: Path | None = None
    base_dir: Path | None = None
    project_name: str | None = None
    durability: Durability = "disk"
    key: str | None = None
    passphrase: str | None = None
    project: Path = field(default_factory=lambda: places.find_project(Path.cwd()))
    rows: tuple[Row, ...] = field(default=(), repr=False, compare=False)

    @property
    def place(self) -> Path | None:
        """The database file or the folder; None in memory."""
        if self.storage_type == "memory":
            return None
        file = self.storage_type == "sqlite"
        if self.path is not None:
            return self.path / places.DATABASE if file and self.path.is_dir() else self.path
        home = places.home_folder(self.project_name, self.base_dir, self.project)
        return home / (places.DATABASE if file else places.FOLDER)

    def origin(self, name: str) -> str:
        """The file, variable or call that a setting comes from; "default" when nobody said it."""
        if name not in FIELDS:
            raise ConfigError(
                _ARGUMENT, name, found="no such setting", wanted="a setting", suggestion=nearest(name, FIELDS)
            )
        return next((row.origin for row in self.rows if row.key == FIELDS[name].key), DEFAULT)

    def explain(self) -> tuple[Row, ...]:
        """Every setting, what it is and why, for `config show --origin`."""
        said = {row.key: row for row in self.rows}
        defaults = {"project_name": places.default_name(self.project)}
        with suppress(ConfigError):  # no home: then there is no default to show
            defaults["base_dir"] = str(places.data_dir())
        rows: list[Row] = []
        for name, each in FIELDS.items():
            row = said.get(each.key) or Row(each.key, "", DEFAULT)
            value = row.value or str(getattr(self, name) or defaults.get(name, ""))
            rows.append(Row(row.key, value, row.origin, row.hides))
        return tuple(rows)

    def sources(self) -> tuple[KeySource, ...]:
        """Where secrets come from, in the order in which they are tried; empty when nothing is to be encrypted."""
        named = ((self.key, "key"), (self.passphrase, "passphrase"))
        return tuple(_source(text, cast("Kind", holds)) for text, holds in named if text is not None)


def load_settings(
    *,
    storage_type: str | None = None,
    path: str | os.PathLike[str] | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    project_name: str | None = None,
    durability: str | None = None,
    key: str | None = None,
    passphrase: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """What holds here and now. `cwd` and `environ` stand in for the process's own."""
    environ = os.environ if environ is None else environ
    here = Path.cwd() if cwd is None else Path(os.path.abspath(cwd))
    said = {
        "storage_type": storage_type,
        "path": None if path is None else os.fspath(path),
        "base_dir": None if base_dir is None else os.fspath(base_dir),
        "project_name": project_name,
        "durability": durability,
        "key": key,
        "passphrase": passphrase,
    }
    project = places.find_project(here)
    own, table = places.project_settings(project)
    layers = [
        _Layer(_ARGUMENT, dict(_values(said, FIELDS, origin=_ARGUMENT, base=here))),
        _environment(environ, here),
    ]
    if own.exists():
        layers.append(_file(read_config(own), own, trusted=False))
    if table is not None:
        layers.append(_file(table, project / "pyproject.toml", prefix="tool.knotline.", trusted=False))
    users = places.user_file()
    if users is not None and users.exists():
        layers.append(_file(read_config(users), users, trusted=True))
    return _merged(layers, project)


def read_config(file: str | os.PathLike[str]) -> dict[str, Any]:
    """A settings file as it stands: JSON, with comments and trailing commas."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigError(os.fspath(file), "", found=why, wanted="a file to read") from error
    except UnicodeDecodeError as error:
        raise ConfigError(os.fspath(file), "", found="bytes that are no UTF-8", wanted="text") from error
    return jsonc.parse(text, os.fspath(file))


def from_block(
    config: Mapping[str, Any], *, origin: str = "config", base: Path | None = None, cwd: Path | None = None
) -> Settings:
    """What an application's own configuration says in its blocks "persistence" and "encryption".

    Its other keys are its own affair, and neither files nor `KNOTLINE_*` settings are looked at; only the secrets of
    the environment count here too, since nothing may be left readable by oversight.
    """
    here = cwd or Path.cwd()
    for name in config:
        meant = nearest(name, SECTIONS, least=_SLIP)
        if name not in SECTIONS and meant and meant not in config:
            raise ConfigError(origin, name, found="an unknown block", wanted="a block", suggestion=meant)
    known = {name: config[name] for name in SECTIONS if config.get(name) is not None}
    blocks = dict(_blocks(known, origin=origin, base=base or here, prefix="", trusted=True))
    secrets = {name: text for name, text in _environment(os.environ, here).values.items() if name in _SECRETS}
    layers = [_Layer(origin, blocks, block=True), _Layer("environment", secrets)]
    return _merged(layers, places.find_project(here))


# -- layers ------------------------------------------------------------------------------------------------


def _environment(environ: Mapping[str, str], here: Path) -> _Layer:
    values: dict[str, str] = {}
    for name, text in environ.items():
        known = _VARIABLES.get(name)
        if known is not None and text:
            values |= _values({known.name: text}, FIELDS, origin=name, base=here)
        elif name.startswith(_FRONT) and name[len(_FRONT) :] not in _ENDINGS:
            meant = _slip(name[len(_FRONT) :])
            if meant:
                meant = _FRONT + meant
                raise ConfigError(name, "", found="an unknown variable", wanted="a setting", suggestion=meant)
    # Set but empty is a mistake that must not end in plain text: the source itself will say so.
    values |= {name: f"env:{variable}" for name, (variable, _) in _SECRETS.items() if variable in environ}
    return _Layer("environment", values)


def _slip(ending: str) -> str:
    """What somebody meant who wrote this: nearly the name, its letters in another order, or its beginning."""
    near = nearest(ending, _ENDINGS, least=_SLIP)
    turned = (known for known in _ENDINGS if sorted(known) == sorted(ending.upper()))
    begun = (known for known in _ENDINGS if known.startswith(f"{ending.upper()}_"))
    return near or next(turned, "") or next(begun, "")


def _file(found: Mapping[str, Any], file: Path, *, prefix: str = "", trusted: bool) -> _Layer:
    origin = str(file)
    values = dict(_blocks(found, origin=origin, base=file.parent, prefix=prefix, trusted=trusted))
    return _Layer(origin, values, block="persistence" in found)


def _blocks(
    found: Mapping[str, Any], *, origin: str, base: Path, prefix: str, trusted: bool
) -> Iterator[tuple[str, str]]:
    for section, block in found.items():
        if section == "$schema":
            continue
        if section not in SECTIONS:
            inside = FIELDS.get(section) or FIELDS.get(nearest(section, FIELDS, least=_SLIP))
            meant = inside.key if inside else nearest(section, SECTIONS)
            raise ConfigError(origin, prefix + section, found="an unknown key", wanted="a block", suggestion=meant)
        if not isinstance(block, Mapping):
            raise ConfigError(origin, prefix + section, found=repr(block), wanted=f'a block: "{section}": {{ … }}')
        fields = {each.name: each for each in FIELDS.values() if each.section == section}
        said = cast("Mapping[str, object]", block)
        yield from _values(said, fields, origin=origin, base=base, prefix=f"{prefix}{section}.", trusted=trusted)


def _values(
    said: Mapping[str, object],
    fields: Mapping[str, Field],
    *,
    origin: str,
    base: Path,
    prefix: str = "",
    trusted: bool = True,
) -> Iterator[tuple[str, str]]:
    for name, value in said.items():
        if name not in fields:
            meant = nearest(str(name), fields)
            raise ConfigError(origin, f"{prefix}{name}", found="an unknown key", wanted="a setting", suggestion=meant)
        if value is None:
            continue  # an application's way to say nothing
        given: object = str(value) if name in _PATHS and isinstance(value, Path) else value
        text = checked(fields[name], given, file=origin)
        kind, _, rest = text.partition(":")
        if name in _PATHS:
            text = str(places.expand(text, base, file=origin, key=fields[name].key))
        elif name in _SECRETS and kind == "file":
            text = f"file:{places.expand(rest, base, file=origin, key=fields[name].key)}"
        elif name in _SECRETS and kind == "command" and not trusted:
            # A project is often somebody else's: opening it must not run what its author wrote.
            wanted = "env: or file:; a command may stand in your own config.json only"
            raise ConfigError(origin, f"{prefix}{name}", found="a command in a project's file", wanted=wanted)
        yield name, text


# -- what holds --------------------------------------------------------------------------------------------


def _merged(layers: list[_Layer], project: Path) -> Settings:
    held: dict[str, str] = {}
    origins: dict[str, str] = {}
    hidden: dict[str, list[tuple[str, str]]] = {}
    for layer in layers:
        # Read before this layer adds to them: within one layer a path and a base_dir may stand side by side.
        above = {name: held[name] for name in ("base_dir", "storage_type") if name in held}
        for name, text in layer.values.items():
            if name in held or (name == "path" and _moved(layer, above)):
                hidden.setdefault(name, []).append((text, _origin(layer, name)))
            else:
                held[name], origins[name] = text, _origin(layer, name)
    if "storage_type" not in held and any(layer.block for layer in layers):
        held["storage_type"] = "json"  # as the block has always meant it; without any block, SQLite
    return Settings(
        storage_type=cast("StorageType", held.get("storage_type", "sqlite")),
        path=Path(held["path"]) if "path" in held else None,
        base_dir=Path(held["base_dir"]) if "base_dir" in held else None,
        project_name=held.get("project_name"),
        durability=cast("Durability", held.get("durability", "disk")),
        key=held.get("key"),
        passphrase=held.get("passphrase"),
        project=project,
        rows=tuple(
            Row(each.key, held.get(name, ""), origins.get(name, DEFAULT), tuple(hidden.get(name, ())))
            for name, each in FIELDS.items()
            if name in origins or name in hidden
        ),
    )


def _moved(layer: _Layer, above: Mapping[str, str]) -> bool:
    """Is this layer's path overruled? It is by a base_dir above it, and by another kind of storage."""
    own = layer.values.get("storage_type", "json" if layer.block else None)
    return "base_dir" in above or (own is not None and above.get("storage_type", own) != own)


def _origin(layer: _Layer, name: str) -> str:
    if layer.origin != "environment":
        return layer.origin
    return _SECRETS[name][0] if name in _SECRETS else str(FIELDS[name].variable)


def _source(text: str, holds: Kind) -> KeySource:
    kind, _, rest = text.partition(":")
    if kind == "env":
        return EnvironmentKey(rest, holds=holds)
    if kind == "file":
        return KeyFile(rest, holds=holds)
    return KeyCommand(shlex.split(rest), holds=holds)
