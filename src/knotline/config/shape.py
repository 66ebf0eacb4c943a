"""What a settings file may hold: the types that everything else is derived from, the JSON Schema included.

`src/knotline/config/schema.json` ships with the package; a test asserts that it is what these types say, and
says how to write it anew.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from knotline.errors import ConfigError

__all__ = ["FIELDS", "SECTIONS", "Durability", "Field", "StorageType", "checked", "nearest", "schema_text"]

StorageType = Literal["json", "sqlite", "memory"]
Durability = Literal["disk", "process", "background"]

_Text = Annotated[str, Meta(min_length=1)]
_Source = Annotated[str, Meta(pattern="^(env|file|command):.+")]


class Persistence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where this project's runs and documents are kept, and how."""

    storage_type: (
        Annotated[StorageType, Meta(description="json when the block names none; sqlite when there is no block")]
        | UnsetType
    ) = UNSET
    path: (
        Annotated[_Text, Meta(description="a database file (sqlite) or a folder (json); instead of base_dir")]
        | UnsetType
    ) = UNSET
    base_dir: Annotated[_Text, Meta(description="the folder that holds projects/<project>")] | UnsetType = UNSET
    project_name: (
        Annotated[str, Meta(description="the project's name; its folder's name and a hash when there is none")]
        | UnsetType
    ) = UNSET
    durability: (
        Annotated[
            Durability,
            Meta(
                description="what a saved document survives: disk also a power cut, process only a killed process; "
                "background: saved later, in order, and safe when flush() or closing is back"
            ),
        ]
        | UnsetType
    ) = UNSET


class Encryption(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the secret comes from; the secret itself stands in no file. What is kept is encrypted if one is named."""

    key: (
        Annotated[_Source, Meta(description="of a key of 32 bytes: env:NAME, file:PATH or command:PROGRAM")] | UnsetType
    ) = UNSET
    passphrase: (
        Annotated[_Source, Meta(description="of a passphrase: env:NAME, file:PATH or command:PROGRAM")] | UnsetType
    ) = UNSET


class SettingsFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of knotline: `.knotline/config.json` of a project, or the user's own config.json."""

    schema: str | UnsetType = msgspec.field(name="$schema", default=UNSET)
    persistence: Persistence | UnsetType = UNSET
    encryption: Encryption | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Field:
    section: str
    name: str
    type: Any
    wanted: str
    choices: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def secret(self) -> bool:
        """May somebody have put a secret here by mistake? Then no message shows what was found."""
        return self.section == "encryption"

    @property
    def variable(self) -> str | None:
        """The environment's spelling. `KNOTLINE_KEY` and `KNOTLINE_PASSPHRASE` hold secrets, not settings."""
        return None if self.secret else f"KNOTLINE_{self.name.upper()}"


SECTIONS: Final[dict[str, type[Struct]]] = {"persistence": Persistence, "encryption": Encryption}


def _fields() -> Iterable[Field]:
    for section, block in SECTIONS.items():
        for each in msgspec.structs.fields(block):
            said, _ = get_args(each.type)
            meta: Any = said.__metadata__
            choices: tuple[str, ...] = get_args(said.__origin__)
            wanted = f"one of {', '.join(choices)}" if choices else f"text: {meta[-1].description}"
            yield Field(section, each.name, said, wanted, choices)


FIELDS: Final = {each.name: each for each in _fields()}


def checked(field: Field, value: object, *, file: str) -> str:
    """The value, if it is what the field's type says."""
    try:
        said: str = msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        suggestion = nearest(value, field.choices) if isinstance(value, str) else ""
        found = "something else (not shown: it may be the secret itself)" if field.secret else _shown(value)
        # Not chained where a secret may be: the decoder's message could quote it.
        cause = None if field.secret else error
        raise ConfigError(file, field.key, found=found, wanted=field.wanted, suggestion=suggestion) from cause
    return said


def nearest(word: str, known: Iterable[str], *, least: float = 0.6) -> str:
    plain = {each.casefold(): each for each in known}
    return next((plain[each] for each in difflib.get_close_matches(word.casefold(), plain, 1, least)), "")


def _shown(value: object) -> str:
    kinds: dict[type, str] = {str: "text", int: "the number", float: "the number", list: "a list", dict: "a block"}
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    return f"{kinds.get(type(value), '')} {shown}".lstrip()


def schema_text() -> str:
    """The JSON Schema of a settings file, as it ships."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(SettingsFile)}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
