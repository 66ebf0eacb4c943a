"""What happens next, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knotline.runner.decide import NEXT, Attempted, Backoff, Mismatch, Next, Now, after, begins, changed


def test_every_situation_has_its_answer() -> None:
    assert set(NEXT) == set(Now)
    assert set(NEXT.values()) == set(Next)


@pytest.mark.parametrize(
    ("index", "steps", "wanted"), [(0, 0, Now.DONE), (0, 1, Now.READY), (1, 1, Now.DONE), (3, 2, Now.DONE)]
)
def test_begins(index: int, steps: int, wanted: Now) -> None:
    assert begins(index, steps) is wanted


@pytest.mark.parametrize(
    ("attempt", "retries", "ok", "again", "wanted"),
    [
        (1, 0, True, True, Next.SAVE),
        (9, 0, True, False, Next.SAVE),
        (1, 0, False, True, Next.FAIL),
        (1, 1, False, True, Next.WAIT),
        (2, 1, False, True, Next.FAIL),
        (1, 1, False, False, Next.FAIL),
        (3, 3, False, True, Next.WAIT),
        (4, 3, False, True, Next.FAIL),
    ],
)
def test_after(attempt: int, retries: int, ok: bool, again: bool, wanted: Next) -> None:
    assert NEXT[after(Attempted(attempt, retries, ok=ok, again=again))] is wanted


@pytest.mark.parametrize(
    ("attempt", "chance", "wanted"),
    [(1, 0.0, 0.25), (1, 1.0, 0.5), (2, 1.0, 1.0), (3, 1.0, 2.0), (3, 0.0, 1.0), (8, 1.0, 60.0), (5000, 1.0, 60.0)],
)
def test_backoff(attempt: int, chance: float, wanted: float) -> None:
    assert Backoff(0.5, 60).delay(attempt, chance) == wanted


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 100), st.floats(0, 1000))
def test_backoff_is_capped_and_never_negative(attempt: int, chance: float, base: float, most: float) -> None:
    found = Backoff(base, most).delay(attempt, chance)
    assert 0 <= found <= most
    assert found <= Backoff(base, most).delay(attempt + 1, 1.0)


@pytest.mark.parametrize(
    ("recorded", "asked", "start", "wanted"),
    [
        ("abc", "abc", 0, ()),
        ("abc", "bc", 1, ()),
        ("abc", "", 3, ()),
        ("abc", "axc", 0, (Mismatch(1, "b", "x"),)),
        ("abc", "b", 1, (Mismatch(2, "c", None),)),
        ("abc", "bcd", 1, (Mismatch(3, None, "d"),)),
    ],
)
def test_changed(recorded: str, asked: str, start: int, wanted: tuple[Mismatch, ...]) -> None:
    assert changed(list(recorded), list(asked), start) == wanted
