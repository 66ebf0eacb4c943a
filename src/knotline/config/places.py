"""Where things are: the home, the platform's folders, a project's own. No other module of the library asks for these.

A project is the nearest folder, from the working directory upwards, that holds `.knotline/` or a pyproject.toml
with `[tool.knotline]`; without one it is the working directory itself.
"""

from __future__ import annotations

import os
import re
import tomllib
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import platformdirs

from knotline.codec import digest
from knotline.errors import ConfigError

__all__ = [
    "DATABASE",
    "FOLDER",
    "data_dir",
    "default_name",
    "expand",
    "find_project",
    "folder_name",
    "home_folder",
    "project_settings",
    "user_file",
]

DATABASE: Final = "persistence.db"
FOLDER: Final = "persistence"
_OWN: Final = ".knotline"
# Every file system takes 255 bytes; with the hash, and what a person still reads.
_LONGEST: Final = 120
_ODD: Final = re.compile(r"[^\w .-]+")


def data_dir() -> Path:
    found = _absolute(platformdirs.user_data_dir)
    if found is None:
        wanted = "HOME set, or a base_dir or a path (KNOTLINE_BASE_DIR, KNOTLINE_PATH)"
        raise ConfigError("environment", "", found="no home to keep data in", wanted=wanted)
    return found


def user_file() -> Path | None:
    """The user's own settings, for all their projects; None where nobody has a home."""
    found = _absolute(platformdirs.user_config_dir)
    return None if found is None else found / "config.json"


def _absolute(ask: Callable[[str], str]) -> Path | None:
    """Without a home some releases raise, and others give a folder named `~`, wherever the program happens to run."""
    try:
        found = Path(ask("knotline"))
    except RuntimeError:
        return None
    return found if found.is_absolute() else None


def _home() -> Path | None:
    try:
        return Path(os.path.realpath(Path.home()))
    except RuntimeError:
        return None


def expand(said: str | os.PathLike[str], base: Path, *, file: str, key: str) -> Path:
    """The absolute path that is meant: `~` is the home, and a relative one starts at `base`."""
    text = os.fspath(said)
    if "\0" in text:
        raise ConfigError(file, key, found="a path with a zero byte", wanted="a path")
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(file, key, found=repr(text), wanted="a home that exists") from error
    return Path(os.path.abspath(base / path))


def folder_name(name: str) -> str:
    """A project's name as the name of a folder: itself, or, where that is not safe, its readable part and a hash."""
    tame = (
        _ODD.search(name) is None
        and name == unicodedata.normalize("NFC", name)
        and name[:1] not in ("", ".", "-", " ")
        and name[-1:] not in (".", " ")
        and len(name.encode("utf-8", "surrogatepass")) <= _LONGEST
    )
    return name if tame else _hashed(name, name)


def default_name(project: Path) -> str:
    """A project that nobody named: two folders with one name are two projects, so the hash is of the whole path."""
    return _hashed(project.name, str(project))


def _hashed(readable: str, exact: str) -> str:
    shown = _ODD.sub("_", unicodedata.normalize("NFC", readable)).strip(" .-")
    while len(shown.encode()) > _LONGEST // 2:
        shown = shown[:-1]
    return f"{shown or 'project'}-{digest(b'prj', exact.encode('utf-8', 'surrogatepass')).hex()[:16]}"


def home_folder(project_name: str | None, base_dir: Path | None, project: Path) -> Path:
    """`<base_dir>/projects/<project>`: what is kept for one project lies in here."""
    name = default_name(project) if project_name is None else folder_name(project_name)
    return (base_dir or data_dir()) / "projects" / name


def find_project(start: Path) -> Path:
    """The project's folder. The home and what is above it is no project, unless one works right there."""
    # Resolved: one folder reached by two ways is one project.
    here = Path(os.path.realpath(start))
    home = _home()
    for folder in (here, *here.parents):
        if folder != here and folder == home:
            break
        if (folder / _OWN).is_dir() or _table(folder / "pyproject.toml") is not None:
            return folder
    return here


def project_settings(project: Path) -> tuple[Path, dict[str, Any] | None]:
    """The file that `.knotline/` may hold, and the table of pyproject.toml if there is one."""
    return project / _OWN / "config.json", _table(project / "pyproject.toml")


def _table(file: Path) -> dict[str, Any] | None:
    try:
        raw = file.read_bytes()
    except OSError:
        return None
    if b"knotline" not in raw:
        return None  # also a file that is broken, as long as it is none of our business
    try:
        tool: object = tomllib.loads(raw.decode("utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if b"tool.knotline" not in raw:
            return None
        raise ConfigError(str(file), "", found=f"no TOML ({error})", wanted="TOML") from error
    table: object = tool.get("knotline") if isinstance(tool, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if table is not None and not isinstance(table, dict):
        raise ConfigError(str(file), "tool.knotline", found=repr(table), wanted="a table")  # pyright: ignore[reportUnknownArgumentType]
    return table  # pyright: ignore[reportUnknownVariableType]
