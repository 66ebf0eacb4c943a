"""Which entries are in sight: intervals that behave as sets of revisions do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from knotline.store import View

revs = st.sets(st.integers(0, 30), max_size=20)


def members(view: View) -> set[int]:
    return {rev for lo, hi in view for rev in range(lo, hi + 1)}


def tidy(view: View) -> None:
    spans = list(view)
    assert all(lo <= hi for lo, hi in spans)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(spans)), "touching or out of order"


@given(revs, revs, st.integers(0, 35))
def test_views_are_sets(a: set[int], b: set[int], rev: int) -> None:
    one, two = View.over(a), View.over(b)
    for view, wanted in (
        (one, a),
        (one.minus(two), a - b),
        (one.without(b), a - b),
        (one.until(rev), a | set(range(max(a, default=-1) + 1, rev + 1))),
        (View.of(one.rows(), max(a, default=-1) + 1), a | {max(a, default=-1) + 1}),
    ):
        assert members(view) == wanted
        tidy(view)
        assert [it in view for it in range(40)] == [it in wanted for it in range(40)]
    assert View.over(members(one)) == one


@given(revs, revs, revs)
def test_taking_away_in_any_order_is_the_same(a: set[int], b: set[int], c: set[int]) -> None:
    one, two, three = View.over(a), View.over(b), View.over(c)
    assert one.minus(two).minus(three) == one.minus(three).minus(two)
    assert one.minus(one) == View(())
