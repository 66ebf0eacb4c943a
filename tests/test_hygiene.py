"""What may be in no file of this repository, and what may be in no module of the library.

Every rule is a function from content to findings, so that each can be shown a planted example: a rule that
finds nothing anywhere would otherwise look like a clean repository.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "knotline"
LOCKS = ("requirements.lock", "requirements-bench.lock", "requirements-uv.lock")

# Written in pieces: this file obeys its own rules.
_REGISTRIES = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("yarnpkg", "com"),
    ("anaconda", "org"),
    ("crates", "io"),
    ("debian", "org"),
    ("ubuntu", "com"),
)
_HOSTS = re.compile("|".join(re.escape(".".join(pieces)) for pieces in _REGISTRIES).encode())
_FOLDERS = ("home", "root", "work", "Users")
_PATHS = re.compile(rf"(?<![\w.~-])/(?:{'|'.join(_FOLDERS)})/[\w.]|[A-Z]:\\+Users\\".encode())

_FORBIDDEN_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "jsonpickle",
    "marshal",
    "shelve",
}
_FORBIDDEN_CALLS = {"eval", "exec"}


def _committable() -> list[Path]:
    """Tracked files and those that `git add` would take."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _lines(pattern: re.Pattern[bytes], content: bytes) -> list[str]:
    return [line.decode(errors="replace").strip() for line in content.splitlines() if pattern.search(line)]


def registry_hosts(content: bytes) -> list[str]:
    return _lines(_HOSTS, content)


def machine_paths(content: bytes) -> list[str]:
    return _lines(_PATHS, content)


def _calls(content: bytes, names: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield f"line {node.lineno}: {node.func.id}("


def code_from_data(content: bytes) -> list[str]:
    """Modules that run what they read, and the builtins that do."""
    found = list(_calls(content, _FORBIDDEN_CALLS))
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        found += [f"line {node.lineno}: {name}" for name in modules if name.split(".")[0] in _FORBIDDEN_MODULES]
    return found


def prints(content: bytes) -> list[str]:
    return list(_calls(content, {"print"}))


def unhashed(content: bytes) -> list[str]:
    """Requirements of a lock file that are not pinned by version and hash, and anything like an address."""
    logical = content.decode().replace("\\\n", " ").splitlines()
    requirements = [line for line in logical if line.strip() and not line.lstrip().startswith("#")]
    return [line for line in requirements if "://" in line or "==" not in line or "--hash=sha256:" not in line]


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _findings(rule: Callable[[bytes], list[str]], paths: list[Path]) -> dict[str, list[str]]:
    assert paths, "no file to look at: the rule would pass for nothing"
    found = {path.relative_to(ROOT).as_posix(): rule(path.read_bytes()) for path in paths}
    return {name: what for name, what in found.items() if what}


def _modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("rule", [registry_hosts, machine_paths])
def test_no_file_names_a_registry_or_a_machine(rule: Callable[[bytes], list[str]]) -> None:
    assert _findings(rule, _committable()) == {}


def test_the_library_never_runs_what_it_reads() -> None:
    assert _findings(code_from_data, _modules()) == {}


def test_only_faces_print() -> None:
    assert _findings(prints, [path for path in _modules() if SRC / "ui" not in path.parents]) == {}


def test_locks_are_pinned_by_hash_and_name_no_address() -> None:
    assert _findings(unhashed, [ROOT / name for name in LOCKS]) == {}


def test_the_lock_holds_every_direct_dependency() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = settings["project"]["optional-dependencies"].values()
    listed = [*settings["project"]["dependencies"], *(item for extra in extras for item in extra)]
    listed += [item for item in settings["dependency-groups"]["dev"] if isinstance(item, str)]
    wanted = {_name(item) for item in listed} - {"knotline"}
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert wanted - {_name(line) for line in locked if re.match(r"\w", line)} == set()


PLANTED: list[tuple[Callable[[bytes], list[str]], str]] = [
    *((registry_hosts, f"https://files.{'.'.join(pieces)}/x") for pieces in _REGISTRIES),
    *((machine_paths, f'open("/{folder}/me/x")') for folder in _FOLDERS),
    (machine_paths, "C:" + "\\Users\\me"),
    (code_from_data, "import pickle"),
    (code_from_data, "from pickle import loads"),
    (code_from_data, "def f():\n    import marshal as m\n    m.loads(b'')"),
    (code_from_data, "eval('1')"),
    (code_from_data, "exec('1')"),
    (prints, "def f():\n    print('x')"),
    (unhashed, "ruff==1.0"),
    (unhashed, "ruff>=1.0 --hash=sha256:00"),
    (unhashed, "ruff @ https://example.invalid/ruff.whl --hash=sha256:00"),
]


@pytest.mark.parametrize(("rule", "planted"), PLANTED)
def test_each_rule_finds_what_is_planted(rule: Callable[[bytes], list[str]], planted: str) -> None:
    assert len(rule(planted.encode())) == 1


ALLOWED: list[tuple[Callable[[bytes], list[str]], str]] = [
    (machine_paths, "see docs/work/notes and ~/work/x and https://example.invalid/home/page"),
    (code_from_data, '"""Never pickle, never eval(x)."""\nmodel.eval()\nimport re\nre.compile("x")'),
    (prints, "pprint(x)\nself.print(x)"),
    (unhashed, "# via x\nruff==1.0 \\\n    --hash=sha256:00"),
]


@pytest.mark.parametrize(("rule", "innocent"), ALLOWED)
def test_each_rule_leaves_the_innocent_alone(rule: Callable[[bytes], list[str]], innocent: str) -> None:
    assert rule(innocent.encode()) == []
