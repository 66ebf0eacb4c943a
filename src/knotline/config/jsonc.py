"""JSON as people write it in settings: comments and trailing commas are allowed, doubled keys are not.

Apart because it is pure text work. What is taken out is replaced by spaces, so that a mistake is reported at the
line and column where the person sees it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, cast

from knotline.errors import ConfigError

__all__ = ["parse"]

# A string comes first in each pattern: what looks like a comment or a comma inside one is text.
_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT: Final = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMA: Final = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")
_INK: Final = re.compile(r"\S")


def parse(text: str, file: str) -> dict[str, Any]:
    """The object that the text holds; `file` is for messages."""
    plain = _COMMA.sub(_blank, _COMMENT.sub(_blank, text))

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                # JSON's readers silently keep the last: a setting that somebody reads and that does not hold.
                raise ConfigError(file, key, found="this key twice in one block", wanted="it once")
            found[key] = value
        return found

    try:
        value: object = json.loads(plain, object_pairs_hook=pairs) if plain.strip() else {}
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(file, where, found=f"no JSON ({error.msg})", wanted="JSON; // and /* */ are fine") from error
    except ValueError as error:
        # Python reads no number of so many digits.
        raise ConfigError(file, "", found="a number that is too long", wanted="settings") from error
    except RecursionError as error:
        raise ConfigError(file, "", found="blocks nested beyond reason", wanted="settings") from error
    if not isinstance(value, dict):
        raise ConfigError(file, "", found=type(value).__name__, wanted='a block: { "persistence": … }')
    return cast("dict[str, Any]", value)


def _blank(found: re.Match[str]) -> str:
    said = found[0]
    if said.startswith('"') or (said == "," and not _follows_a_value(found.string, found.start())):
        return said
    return _INK.sub(" ", said)


def _follows_a_value(text: str, at: int) -> bool:
    while at and text[at - 1].isspace():
        at -= 1
    return text[at - 1 : at] not in ("", "{", "[", ",", ":")
