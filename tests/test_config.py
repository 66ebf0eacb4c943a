"""Configuration: which place wins, what each value knows of itself, and what is refused with which words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from knotline.backends import MemoryBackend, SqliteBackend
from knotline.config import Settings, from_block, load_settings, open_backend, read_config, schema_text
from knotline.config import user_file as users_file
from knotline.config.places import folder_name
from knotline.config.shape import FIELDS, SECTIONS
from knotline.errors import ConfigError, Error, Unavailable, Unsupported

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project to work in, and a home beside it. Both are resolved, as the settings' paths are."""
    home, project = tmp_path / "home", tmp_path / "project"
    (project / ".knotline").mkdir(parents=True)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if name.startswith(("XDG_", "KNOTLINE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(project)
    return project


def user_file() -> Path:
    found = users_file()
    assert found is not None
    return found


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def own(place: Path, content: object) -> Path:
    return write(place / ".knotline" / "config.json", content)


# -- which place wins ------------------------------------------------------------------------------------------

LAYERS = ["argument", "environment", "project", "pyproject", "user", "default"]
VALUES: dict[str, tuple[list[str], str]] = {
    "project_name": (["a", "b", "c", "d", "e"], ""),
    "storage_type": (["memory", "sqlite", "json", "sqlite", "json"], "sqlite"),
    "durability": (["process", "background", "process", "disk", "background"], "disk"),
    "path": (["/t/a", "/t/b", "/t/c", "/t/d", "/t/e"], ""),
    "base_dir": (["/t/a", "/t/b", "/t/c", "/t/d", "/t/e"], ""),
}


@pytest.mark.parametrize("name", list(VALUES))
@pytest.mark.parametrize("first", range(6), ids=LAYERS)
def test_the_table_of_precedence(place: Path, monkeypatch: pytest.MonkeyPatch, name: str, first: int) -> None:
    """All layers from `first` downwards say it: `first` holds, and the others are hidden in order."""
    said, default = VALUES[name]
    arguments: dict[str, Any] = {name: said[0]} if first <= 0 else {}
    if first <= 1:
        monkeypatch.setenv(f"KNOTLINE_{name.upper()}", said[1])
    if first <= 2:
        own(place, {"persistence": {name: said[2]}})
    if first <= 3:
        write(place / "pyproject.toml", f'[tool.knotline.persistence]\n{name} = "{said[3]}"\n')
    if first <= 4:
        write(user_file(), {"persistence": {name: said[4]}})
    settings = load_settings(**arguments)
    origins = [
        "argument",
        f"KNOTLINE_{name.upper()}",
        str(place / ".knotline" / "config.json"),
        str(place / "pyproject.toml"),
        str(user_file()),
        "default",
    ]
    assert settings.origin(name) == origins[first]
    found = getattr(settings, name)
    assert str(found) == (said[first] if first < 5 else default or "None")
    row = next(row for row in settings.explain() if row.key == f"persistence.{name}")
    assert row.origin == origins[first]
    assert row.hides == tuple(zip(said[first + 1 :], origins[first + 1 :], strict=False))


def test_nothing_said_is_sqlite_and_a_block_is_json(place: Path) -> None:
    assert load_settings().storage_type == "sqlite"
    own(place, {"persistence": {}})
    assert load_settings().storage_type == "json"
    assert load_settings().origin("storage_type") == "default"
    own(place, {})
    assert load_settings().storage_type == "sqlite"
    assert from_block({}).storage_type == "json"
    write(user_file(), {"persistence": {"storage_type": "memory"}})
    own(place, {"persistence": {"project_name": "p"}})
    assert load_settings().storage_type == "memory"


def test_a_path_is_overruled_together_with_what_it_belongs_to(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(place, {"persistence": {"storage_type": "sqlite", "path": "x.db", "base_dir": "b"}})
    assert load_settings().place == place / ".knotline" / "x.db"
    assert load_settings(storage_type="sqlite").place == place / ".knotline" / "x.db"
    # Another kind of storage does not go into a database's file …
    moved = load_settings(storage_type="json")
    assert moved.place is not None
    assert moved.place.parent.parent == place / ".knotline" / "b" / "projects"
    row = next(row for row in moved.explain() if row.key == "persistence.path")
    assert (row.value, row.hides) == ("", ((str(place / ".knotline/x.db"), str(place / ".knotline/config.json")),))
    # … and a base_dir said above it is meant.
    monkeypatch.setenv("KNOTLINE_BASE_DIR", "/t/elsewhere")
    monkeypatch.setenv("KNOTLINE_PROJECT_NAME", "p")
    assert load_settings().place == Path("/t/elsewhere/projects/p/persistence.db")
    assert load_settings(path="y.db").place == place / "y.db"


def test_where_relative_paths_start(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.environ["HOME"])
    own(place, {"persistence": {"path": "in/own"}})
    assert load_settings().path == place / ".knotline" / "in" / "own"
    own(place, {"persistence": {"path": "../beside"}})
    assert load_settings().path == place / "beside"
    own(place, {"persistence": {"path": "~/kept"}})
    assert load_settings().path == home / "kept"
    own(place, {})
    write(place / "pyproject.toml", '[tool.knotline.persistence]\npath = "p"')
    assert load_settings().path == place / "p"
    sub = place / "a" / "b"
    sub.mkdir(parents=True)
    monkeypatch.chdir(sub)
    assert load_settings().path == place / "p"
    assert load_settings(path="q").path == sub / "q"
    monkeypatch.setenv("KNOTLINE_PATH", "r")
    assert load_settings().path == sub / "r"
    assert load_settings(cwd=place).path == place / "r"
    assert load_settings(cwd=place, environ={}).path == place / "p"
    with pytest.raises(ConfigError, match="a home that exists"):
        load_settings(path="~nobody-has-this-name/x")


# -- the project -----------------------------------------------------------------------------------------------


def test_the_project_is_found_upwards(place: Path, tmp_path: Path) -> None:
    deep = place / "a" / "b"
    deep.mkdir(parents=True)
    assert load_settings(cwd=deep).project == place
    assert load_settings(cwd=deep).place == load_settings(cwd=place).place
    write(place / "a" / "pyproject.toml", '[project]\nname = "knotline-user"')
    assert load_settings(cwd=deep).project == place
    write(place / "a" / "pyproject.toml", "[tool.knotline]\n")
    assert load_settings(cwd=deep).project == place / "a"
    other = tmp_path / "other"
    other.mkdir()
    assert load_settings(cwd=other).project == other
    assert not list(other.iterdir())


def test_the_home_is_no_project_of_everything_in_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    own(home, {"persistence": {"project_name": "everything"}})
    work = home / "work" / "app"
    work.mkdir(parents=True)
    assert load_settings(cwd=work).project == work
    assert load_settings(cwd=work).project_name is None
    assert load_settings(cwd=home).project_name == "everything"


def test_two_projects_of_one_name_never_collide(tmp_path: Path) -> None:
    places = {load_settings(cwd=tmp_path / parent / "app").place for parent in ("one", "two")}
    assert len(places) == 2
    for found in places:
        assert found is not None
        assert (found.name, found.parent.parent.name) == ("persistence.db", "projects")
        assert found.parent.name.startswith("app-")
        assert Path(os.environ["HOME"]) in found.parents
    (tmp_path / "link").symlink_to(tmp_path / "project")
    assert load_settings(cwd=tmp_path / "link").place == load_settings(cwd=tmp_path / "project").place


def test_two_ways_to_one_folder_are_one_store(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(place)
    (tmp_path / "up").symlink_to(tmp_path)
    ways = [place, tmp_path / "link", tmp_path / "up" / "link", place / ".." / "project", place / ".knotline" / ".."]
    found: set[str] = set()
    for way in ways:
        monkeypatch.chdir(way)
        backend = open_backend()
        found.add(backend.name)
        backend.close()
    assert len(found) == 1


def test_without_a_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME may be missing in a service; then the system's user list says, and if it does not, nothing is guessed."""
    monkeypatch.delenv("HOME")
    settings = load_settings()
    assert settings.place is not None
    assert settings.place.is_absolute()
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user that the system does not know
    with pytest.raises(ConfigError, match="no home to keep data in, wanted HOME set, or a base_dir or a path"):
        _ = load_settings().place
    with pytest.raises(ConfigError, match="no home"):
        open_backend()
    assert users_file() is None
    assert {row.key for row in load_settings().explain()} == {field.key for field in FIELDS.values()}
    assert load_settings(path="x.db").place == place / "x.db"
    monkeypatch.setenv("KNOTLINE_BASE_DIR", str(place / "kept"))
    backend = open_backend()
    assert str(place / "kept" / "projects") in backend.name
    backend.close()
    assert "~" not in os.listdir(place)


@pytest.mark.parametrize("said", ["default", "KNOTLINE_BASE_DIR", "KNOTLINE_PATH"])
def test_a_place_that_cannot_be_written(said: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the place, what stands in the way, who said the place, and how to say another."""
    in_the_way = write(place / "file", "a file, not a folder")
    if said == "default":
        monkeypatch.setenv("XDG_DATA_HOME", str(in_the_way))
    else:
        monkeypatch.setenv(said, str(in_the_way / "below"))
    with pytest.raises(Unavailable) as caught:
        open_backend()
    assert str(in_the_way) in str(caught.value)
    assert "Not a directory" in caught.value.why
    assert f"this place is from: {said};" in caught.value.why
    assert "KNOTLINE_PATH" in caught.value.why
    assert in_the_way.read_text(encoding="utf-8") == "a file, not a folder"


def test_a_place_that_is_not_allowed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied", "somewhere")

    monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(Unavailable, match=r"Permission denied.*this place is from: default"):
        open_backend()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("PAHT", "PATH"),
        ("PTH", "PATH"),
        ("BASEDIR", "BASE_DIR"),
        ("BASE", "BASE_DIR"),
        ("STORAGE", "STORAGE_TYPE"),
        ("STORAGE_TYP", "STORAGE_TYPE"),
        ("PROJECT", "PROJECT_NAME"),
        ("DURABILTY", "DURABILITY"),
        ("PASSPHRAZE", "PASSPHRASE"),
        ("KYE", "KEY"),
        ("path", "PATH"),
    ],
)
def test_a_slip_in_a_variable(wrong: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"KNOTLINE_{wrong}", "hunter2")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert (caught.value.file, caught.value.suggestion) == (f"KNOTLINE_{wrong}", f"KNOTLINE_{meant}")
    assert "hunter2" not in str(caught.value)


def test_names_of_folders() -> None:
    for usual in ("demo", "My Project", "a.b_c-d", "键", "é"):
        assert folder_name(usual) == usual
    odd = [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "a:b",
        "-x",
        " x",
        "x ",
        "x.",
        ".x",
        "a\0b",
        "a\nb",
        "e\u0301",
        "x" * 300,
        "键" * 90,
    ]
    made = [folder_name(name) for name in odd]
    assert len(set(made)) == len(odd)
    for name in made:
        assert len(name.encode()) < 120
        assert "/" not in name
        assert name[0] not in ".-"
        assert name.isprintable()


# -- the files -------------------------------------------------------------------------------------------------


def test_comments_and_commas(place: Path) -> None:
    own(
        place,
        """\ufeff// first
{ /* a block
   over lines */ "persistence": {
    "storage_type": "json", // "sqlite"
    "path": "/t/a//b/*no*/c, }", /* , */
    "project_name": "say \\"// hi\\" ,]",
    // "durability": "process",
  }, /**/
}
// last""",
    )
    found = load_settings()
    assert found.storage_type == "json"
    assert found.path == Path("/t/a/b/*no*/c, }")
    assert found.project_name == 'say "// hi" ,]'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{", "line 1, column 2"),
        ('{\n  "persistence": {\n    "path": oops\n  }\n}', "line 3, column 13"),
        ('{ /* a */ // b\n  "persistence" 1 }', "line 2, column 17"),
        ("{ /* never closed }", "line 1, column 3"),
        ('{"a": "never closed // }', "line 1, column 7"),
        ("[1, 2]", ""),
        ("{,}", "line 1, column 2"),
        ('{"persistence": {"path": "a", "path": "b"}}', "path"),
        ("[" * 100_000, ""),
    ],
)
def test_what_is_no_settings_file(place: Path, text: str, key: str) -> None:
    file = own(place, text)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert (caught.value.file, caught.value.key) == (str(file), key)


def test_an_empty_file_and_one_that_cannot_be_read(place: Path) -> None:
    file = own(place, " // nothing yet\n")
    assert load_settings().storage_type == "sqlite"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_settings()
    file.unlink()
    file.mkdir()
    with pytest.raises(ConfigError, match="a file to read"):
        load_settings()
    with pytest.raises(ConfigError, match="No such file"):
        read_config(place / "nowhere.json")
    file.rmdir()
    write(place / "pyproject.toml", "[tool.knotline\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: found no TOML"):
        load_settings()
    write(place / "pyproject.toml", "[tool\nnone of our business, knotline")
    assert load_settings().storage_type == "sqlite"


WRONG: list[tuple[object, str, str, str, str]] = [
    # what the file says, key, part of found, part of wanted, suggestion
    ({"persistance": {}}, "persistance", "unknown", "a block", "persistence"),
    ({"storage_type": "json"}, "storage_type", "unknown", "a block", "persistence.storage_type"),
    ({"storage_typ": "json"}, "storage_typ", "unknown", "a block", "persistence.storage_type"),
    ({"zzz": 1}, "zzz", "unknown", "a block", ""),
    ({"persistence": {"storage-type": "json"}}, "persistence.storage-type", "unknown", "a setting", "storage_type"),
    ({"persistence": {"basedir": "x"}}, "persistence.basedir", "unknown", "a setting", "base_dir"),
    ({"persistence": {"zzz": "x"}}, "persistence.zzz", "unknown", "a setting", ""),
    ({"persistence": {"storage_type": "SQLite"}}, "persistence.storage_type", "text 'SQLite'", "one of json", "sqlite"),
    ({"persistence": {"storage_type": 3}}, "persistence.storage_type", "the number 3", "one of json, sqlite", ""),
    ({"persistence": {"path": 3.5}}, "persistence.path", "the number 3.5", "text: a database file", ""),
    ({"persistence": {"path": True}}, "persistence.path", "True", "text", ""),
    ({"persistence": {"path": ["a"]}}, "persistence.path", "a list ['a']", "text", ""),
    ({"persistence": {"path": ""}}, "persistence.path", "text ''", "text", ""),
    ({"persistence": {"path": "a\0"}}, "persistence.path", "zero byte", "a path", ""),
    ({"persistence": {"durability": "disc"}}, "persistence.durability", "disc", "disk, process, background", "disk"),
    ({"persistence": []}, "persistence", "[]", "a block", ""),
    ({"encryption": {"key": "hunter2hunter2"}}, "encryption.key", "not shown", "env:NAME", ""),
    ({"encryption": {"passphrase": "hunter2"}}, "encryption.passphrase", "not shown", "env:NAME", ""),
    ({"encryption": {"key": "command:echo hunter2"}}, "encryption.key", "a command in a project", "your own", ""),
]


@pytest.mark.parametrize(("content", "key", "found", "wanted", "suggestion"), WRONG)
def test_what_is_refused_and_how(
    place: Path, content: object, key: str, found: str, wanted: str, suggestion: str
) -> None:
    file = own(place, content)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    error = caught.value
    assert (error.file, error.key, error.suggestion) == (str(file), key, suggestion)
    assert found in error.found
    assert wanted in error.wanted
    assert str(file) in str(error)
    assert key in str(error)
    assert "hunter2" not in str(error)
    assert "hunter2" not in str(error.__cause__)


def test_what_is_refused_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place / "pyproject.toml", "[tool.knotline.persistence]\npaht = 'x'")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert (caught.value.file, caught.value.key) == (str(place / "pyproject.toml"), "tool.knotline.persistence.paht")
    assert caught.value.suggestion == "path"
    write(place / "pyproject.toml", "[tool]\nknotline = 1")
    with pytest.raises(ConfigError, match=r"tool\.knotline: found 1, wanted a table"):
        load_settings()
    (place / "pyproject.toml").unlink()
    with pytest.raises(ConfigError, match=r"argument: persistence\.storage_type"):
        load_settings(storage_type="xml")
    with pytest.raises(ConfigError) as caught:
        load_settings().origin("projet_name")
    assert caught.value.suggestion == "project_name"
    monkeypatch.setenv("KNOTLINE_DURABILITY", "never")
    with pytest.raises(ConfigError, match="KNOTLINE_DURABILITY"):
        load_settings()
    monkeypatch.setenv("KNOTLINE_DURABILITY", "")  # a shell's way to say nothing
    assert load_settings().durability == "disk"
    monkeypatch.setenv("KNOTLINE_STORAGE_TPYE", "json")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert caught.value.suggestion == "KNOTLINE_STORAGE_TYPE"
    monkeypatch.delenv("KNOTLINE_STORAGE_TPYE")
    monkeypatch.setenv("KNOTLINE_PROFILE", "not ours")
    monkeypatch.setenv("KNOTLINE_KEY_2", "nor this")
    assert load_settings().sources() == ()


def test_the_schema_that_ships_is_current() -> None:
    shipped = files("knotline.config") / "schema.json"
    # To write it anew: put schema_text() into src/knotline/config/schema.json.
    assert shipped.read_text(encoding="utf-8") == schema_text()
    schema = json.loads(schema_text())
    persistence = schema["$defs"]["Persistence"]
    assert sorted(persistence["properties"]["storage_type"]["enum"]) == ["json", "memory", "sqlite"]
    assert persistence["additionalProperties"] is False
    # What is read, what is described and what `Settings` has are the same, one by one.
    described = {name: schema["$defs"][SECTIONS[name].__name__] for name in SECTIONS}
    said = {f"{name}.{key}": it for name, block in described.items() for key, it in block["properties"].items()}
    assert sorted(said) == sorted(field.key for field in FIELDS.values())
    for field in FIELDS.values():
        assert hasattr(Settings(), field.name)
        assert sorted(said[field.key].get("enum", ())) == sorted(field.choices), field.key
        assert said[field.key]["description"], field.key
    assert sorted(schema["$defs"]["SettingsFile"]["properties"]) == sorted(["$schema", *SECTIONS])


def test_the_schema_is_in_the_wheel(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(asked, check=True, capture_output=True, cwd=Path(__file__).parents[1], timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as found:
        assert found.read("knotline/config/schema.json").decode() == schema_text()
        assert "knotline/py.typed" in found.namelist()


def test_a_file_may_name_its_schema(place: Path) -> None:
    own(place, {"$schema": "schema.json", "persistence": {"storage_type": "memory"}})
    assert load_settings().place is None


# -- secrets ---------------------------------------------------------------------------------------------------


def test_sources_are_named_and_never_held(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(place, {"encryption": {"key": "env:MY_KEY", "passphrase": "file:secret.txt"}})
    settings = load_settings()
    said = [source.describe() for source in settings.sources()]
    assert said == ["environment variable MY_KEY", f"file {place / '.knotline' / 'secret.txt'}"]
    monkeypatch.setenv("KNOTLINE_KEY", KEY.hex())
    settings = load_settings()
    assert settings.origin("key") == "KNOTLINE_KEY"
    assert settings.sources()[0].describe() == "environment variable KNOTLINE_KEY"
    assert KEY.hex() not in repr((settings, settings.explain(), settings.sources()))
    own(place, {})
    monkeypatch.delenv("KNOTLINE_KEY")
    write(user_file(), {"encryption": {"passphrase": "command:pass show 'my knot'"}})
    assert [source.describe() for source in load_settings().sources()] == ["command pass"]


# -- opening ---------------------------------------------------------------------------------------------------


def test_addresses(place: Path) -> None:
    with_path = {"sqlite:x.db": place / "x.db", "sqlite:///t/y.db": None, f"sqlite:{place}/z.db": place / "z.db"}
    for address, path in with_path.items():
        if path is None:
            continue
        backend = open_backend(address)
        assert isinstance(backend, SqliteBackend)
        assert backend.name == f"sqlite:{path}"
        assert path.exists()
        backend.close()
    home = open_backend("sqlite:~/h.db")
    assert home.name == f"sqlite:{os.environ['HOME']}/h.db"
    home.close()
    assert isinstance(open_backend("memory:"), MemoryBackend)
    ticks = open_backend("memory:", clock=lambda: 100.0)
    assert ticks.acquire(b"r", "me", 10).until == 110.0


@pytest.mark.parametrize(
    ("address", "suggestion"),
    [
        ("runs.db", "sqlite:runs.db"),
        ("memory", "memory:"),
        ("memory:x", "memory:"),
        ("sqlit:x", "sqlite:x"),
        ("file:x", "files:x"),
        ("sqlite:", ""),
        ("sqlite://x.db", "sqlite:x.db"),
        ("mongodb://me:hunter2@host/x", ""),
        ("", "sqlite:"),
    ],
)
def test_addresses_that_are_none(address: str, suggestion: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_backend(address)
    if suggestion:
        assert caught.value.suggestion == suggestion
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("address", "extra"), [("postgresql://me:hunter2@h/db", "postgres"), ("s3://b/p", "objects")])
def test_addresses_for_later(address: str, extra: str) -> None:
    with pytest.raises(Unsupported, match=rf"knotline\[{extra}\]") as caught:
        open_backend(address)
    assert "hunter2" not in str(caught.value)


def test_opening_what_the_settings_say(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend()
    assert backend.name == f"sqlite:{load_settings().place}"
    backend.close()
    backend = open_backend(load_settings(path="x.db"))
    assert backend.name == f"sqlite:{place / 'x.db'}"
    backend.close()
    (place / "folder").mkdir()
    backend = open_backend(load_settings(storage_type="sqlite", path="folder"))
    assert backend.name == f"sqlite:{place / 'folder' / 'persistence.db'}"
    backend.close()
    monkeypatch.setenv("KNOTLINE_STORAGE_TYPE", "memory")
    assert isinstance(open_backend(), MemoryBackend)


def test_a_key_encrypts_whatever_is_opened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNOTLINE_KEY", KEY.hex())
    for where in ("memory:", "sqlite:x.db", None):
        backend = open_backend(where)
        assert type(backend).__name__ == "EncryptedBackend"
        backend.close()
    monkeypatch.setenv("KNOTLINE_KEY", "")
    with pytest.raises(Error):
        open_backend("sqlite:x.db")
    monkeypatch.delenv("KNOTLINE_KEY")
    own(place, {"encryption": {"key": "env:NOT_SET"}})
    with pytest.raises(Error):
        open_backend("sqlite:fresh.db")
