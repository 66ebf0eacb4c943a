"""What is recognised as a secret, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knotline.policy import Redaction

PUT = "[redacted]"
A = "Ab9" * 12


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"sk-{A}", PUT),
        (f"key sk-proj-{A}, and", f"key {PUT}, and"),
        (f"ghp_{A}", PUT),
        (f"github_pat_{A}", PUT),
        (f"glpat-{A}", PUT),
        ("AKIAIOSFODNN7EXAMPLE", PUT),
        (f"AIza{A}", PUT),
        (f"xoxb-{A}", PUT),
        (f"hf_{A} npm_{A} pypi-{A}", f"{PUT} {PUT} {PUT}"),
        (f"eyJ{A}.eyJ{A}.{A}", PUT),
        ("postgresql://ann:s3cret@db.example/x", f"postgresql://{PUT}@db.example/x"),
        (f"Authorization: Bearer {A}", f"Authorization: Bearer {PUT}"),
        ("password=hunter22 user=ann", f"password={PUT} user=ann"),
        ("API_KEY: 'hunter22'", f"API_KEY: '{PUT}'"),
        ('{"secret": "hunter22"}', f'{{"secret": "{PUT}"}}'),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nrest", f"{PUT}\nrest"),
        ("-----BEGIN PRIVATE KEY-----\ncut off", PUT),
    ],
)
def test_patterns(text: str, wanted: str) -> None:
    redaction = Redaction()
    assert redaction.text(text) == wanted
    assert redaction.text(wanted) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "task-management-and-more-words", "sk-short", "https://example.com/a:b@c?x=1", "the password is a word",
     "secret santa", "AKIA", "a@b.c", "max_tokens=4000", "token: none", "risk-assessment-of-something"],
)  # fmt: skip
def test_ordinary_texts_are_left_alone(text: str) -> None:
    assert Redaction().text(text) is text


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("password", True), ("PASSWORD", True), ("db_password", True), ("dbPassword", True), ("api_key", True),
     ("apiKey", True),
     ("x-api-key", True),
     ("access_token", True), ("refreshToken", True), ("client_secret", True), ("Set-Cookie", True),
     ("private_key", True), ("connection_string", True), ("key", False), ("tokens", False), ("monkey", False),
     ("max_tokens", False), ("name", False), ("secretary", False), (5, False), (None, False)],
)  # fmt: skip
def test_names(name: object, wanted: bool) -> None:
    assert Redaction().hot(name) is wanted


def test_defaults_can_be_left_out() -> None:
    only = Redaction(defaults=False, names=["badge"], patterns=[r"EMP-\d+"], put="***")
    assert only.text(f"EMP-17 sk-{A}") == f"*** sk-{A}"
    assert only.hot("badge")
    assert not only.hot("password")
    nothing = Redaction(defaults=False)
    assert nothing.text(f"sk-{A}") == f"sk-{A}"
    assert not nothing.hot("password")


def test_what_replaces_may_hold_anything() -> None:
    odd = Redaction(put=r"\1\g<0>é")
    assert odd.text(f"a sk-{A} password=hunter22") == r"a \1\g<0>é password=\1\g<0>é"
    assert odd.clean(f"a sk-{A}".encode()) == r"a \1\g<0>é".encode()


def test_two_keys_that_are_secrets_stay_two() -> None:
    assert Redaction().clean({f"sk-{A}1": 1, f"sk-{A}2": 2, "x": 3}) == {PUT: 1, f"{PUT} 2": 2, "x": 3}
    assert Redaction().clean({PUT: 0, f"sk-{A}1": 1}) == {PUT: 0, f"{PUT} 2": 1}


@given(st.text())
def test_doing_it_twice_is_doing_it_once(text: str) -> None:
    once = Redaction().text(f"{text} sk-{A} {text}")
    assert Redaction().text(once) == once
