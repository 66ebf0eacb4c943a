"""Bytes that must never change: what is stored today is read for ever, and hashes are over these."""

from __future__ import annotations

import datetime as dt
import pathlib
import uuid
import zoneinfo
from decimal import Decimal
from typing import Any

import pytest
from tests.codec.strategies import Bits, Celsius, Color, Deep, Fixed, Mode, Perm, Person, Slotted, alike

from knotline.codec import Node, decode, encode, freeze, private

_INSTANT = dt.datetime.fromisoformat("2026-11-18T21:56:03.123456")

GOLDEN: list[tuple[str, Any, str]] = [
    ("none", None, "c0"),
    ("false", False, "c2"),
    ("true", True, "c3"),
    ("zero", 0, "00"),
    ("minus one", -1, "ff"),
    ("200", 200, "ccc8"),
    ("largest plain", 2**64 - 1, "cfffffffffffffffff"),
    ("smallest plain", -(2**63), "d38000000000000000"),
    ("float", 1.5, "cb3ff8000000000000"),
    ("minus zero", -0.0, "cb8000000000000000"),
    ("nan", float("nan"), "cb7ff8000000000000"),
    ("infinity", float("-inf"), "cbfff0000000000000"),
    ("text", "knot é", "a76b6e6f7420c3a9"),
    ("bytes", b"\x00\xff", "c40200ff"),
    ("list", [1, [], "a"], "930190a161"),
    ("dict", {"b": 1, "a": {}}, "82a16201a16180"),
    ("tuple", (1, (2,), ()), "c709019301d5019102d40190"),
    ("2**64", 2**64, "c70902010000000000000000"),
    ("-2**63-1", -(2**63) - 1, "c70902ff7fffffffffffffff"),
    ("2**71", 2**71, "c70a0200800000000000000000"),
    ("lone surrogate", "a\ud800", "d60361eda080"),
    ("odd keys", {1: "a", (True,): 2, "\udfff": None}, "d8049601a161d50191c302c70303edbfbfc0"),
    ("text keys beside an odd one", {"a": 1, None: 2}, "c7060494a16101c002"),
    ("set", {3, "a", (1,), 2}, "c70905940203a161d5019101"),
    ("empty set", set[int](), "d40590"),
    ("frozenset", frozenset({True, "b"}), "d60692a162c3"),
    ("bytearray", bytearray(b"ab"), "d5076162"),
    ("date", dt.date(2026, 11, 18), "d60807ea0b12"),
    ("time", dt.time(1, 2, 3, 4, fold=1), "d7090102030000000401"),
    ("time with zone", dt.time(1, 2, tzinfo=dt.UTC), "c70909010200000000000055"),
    (
        "time with an offset",
        dt.time(1, 2, tzinfo=dt.timezone(dt.timedelta(minutes=90))),
        "c71509010200000000000046000000000000151800000000",
    ),
    ("naive datetime", _INSTANT, "c70c0a07ea0b121538030001e24000"),
    ("datetime in UTC", _INSTANT.replace(tzinfo=dt.UTC), "c70d0a07ea0b121538030001e2400055"),
    (
        "datetime with a named offset",
        _INSTANT.replace(tzinfo=dt.timezone(dt.timedelta(hours=-1), "é")),
        "c71c0a07ea0b121538030001e2400046ffffffff00014370000000003dc3a9",
    ),
    (
        "datetime in a zone",
        _INSTANT.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Oslo"), fold=1),
        "c7180a07ea0b121538030001e240015a4575726f70652f4f736c6f",
    ),
    ("timedelta", dt.timedelta(-1, 2, 3), "c70c0bffffffff0000000200000003"),
    ("decimal", Decimal("-1.00"), "c7050c2d312e3030"),
    ("decimal nan", Decimal("sNaN7"), "c7050c734e614e37"),
    ("decimal large", Decimal("1E+30"), "c7050c31452b3330"),
    ("uuid", uuid.UUID("12345678-1234-5678-1234-567812345678"), "d80d12345678123456781234567812345678"),
    ("pure posix path", pathlib.PurePosixPath("a/b"), "d60e00612f62"),
    ("pure windows path", pathlib.PureWindowsPath("c:/é"), "c7060e01633a5cc3a9"),
    ("path", pathlib.PosixPath("/a"), "c7030e022f61"),
    (
        "frozen dict",
        freeze({"a": [1, {"b": (2,)}], "c": Color.RED}),
        (
            "c7331482a161920181a162d5019102a163c7221e92bc74657374732e636f6465632e737472617465676965733a436f6c6f72"
            "a3524544"
        ),
    ),
    ("frozen list", freeze([{}, {1: 2}, "\ud800"]), "c70e149380c70304920102c70303eda080"),
    ("member", Color.GREEN, "c7241e92bc74657374732e636f6465632e737472617465676965733a436f6c6f72a5475245454e"),
    ("alias of a member", Color.CRIMSON, "c7221e92bc74657374732e636f6465632e737472617465676965733a436f6c6f72a3524544"),
    ("member of a StrEnum", Mode.FAST, "c7221e92bb74657374732e636f6465632e737472617465676965733a4d6f6465a446415354"),
    ("flags", Perm.R | Perm.X, "c71e1e92bb74657374732e636f6465632e737472617465676965733a5065726d05"),
    ("no flags", Bits(0), "c71e1e92bb74657374732e636f6465632e737472617465676965733a4269747300"),
    (
        "dataclass",
        Fixed("n", (1,)),
        "c72d1f92bc74657374732e636f6465632e737472617465676965733a466978656482a46e616d65a16ea26174d5019101",
    ),
    (
        "dataclass with slots",
        Slotted([1]),
        "c7281f92be74657374732e636f6465632e737472617465676965733a536c6f7474656482a1619101a162c0",
    ),
    (
        "dataclass with more",
        Deep(1, z=2),
        (
            "c7461f93bb74657374732e636f6465632e737472617465676965733a4465657085a17801a17900a47461677390a17a02a46c"
            "617465c7070192a46c6174650181a66265736964659102"
        ),
    ),
    (
        "model",
        Person.model_validate({"name": "Ada", "more": 1}),
        (
            "c7542096bd74657374732e636f6465632e737472617465676965733a506572736f6e83a46e616d65a3416461a361676503a7"
            "667269656e64739092a46d6f7265a46e616d6581a46d6f72650181a75f736563726574c0c0"
        ),
    ),
    ("custom", Celsius({20}), "c71c2192ad74657374732e43656c7369757381a764656772656573d5059114"),
    ("node", Node(100, b"\x01\x02"), "d5640102"),
]


@pytest.mark.parametrize(("value", "data"), [pytest.param(value, data, id=name) for name, value, data in GOLDEN])
def test_golden(value: Any, data: str) -> None:
    kept = value if type(value) is Node else private(value)
    assert encode(kept).hex() == data
    back = decode(bytes.fromhex(data), resolve=Node)
    assert alike(back, value)
    assert encode(decode(bytes.fromhex(data), private=True, resolve=Node)).hex() == data


def test_every_extension_has_an_example() -> None:
    from knotline.codec import forms

    codes = {code for name, code in vars(forms).items() if name.isupper() and type(code) is int and code < 100}
    codes -= {forms.MAX_DEPTH}
    seen: set[int] = set()
    for _, _, data in GOLDEN:
        raw = bytes.fromhex(data)
        at = {0xC7: 2, 0xC8: 3, 0xC9: 5}.get(raw[0], 1)
        if 0xC7 <= raw[0] <= 0xC9 or 0xD4 <= raw[0] <= 0xD8:
            seen.add(raw[at])
    assert codes <= seen
