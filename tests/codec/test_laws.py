"""What holds for every value: there and back, one value one encoding, and no change goes unseen."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.codec.strategies import alike, changed, frozen, plain, spoil, states, values

from knotline.codec import decode, encode, fits, freeze, private, public, same, thaw
from knotline.errors import Unstorable


@given(values())
def test_a_value_comes_back_as_it_went_in(value: Any) -> None:
    back = decode(encode(private(value)))
    assert alike(back, value)


@given(states())
def test_private_bytes_and_public_agree(value: Any) -> None:
    kept = private(value)
    data = encode(kept)
    assert encode(private(value)) == data
    assert encode(private(decode(data))) == data
    again = decode(data, private=True)
    assert encode(again) == data
    assert same(again, kept)
    assert same(kept, again)
    assert alike(public(kept), value)
    assert alike(public(again), value)
    assert same(private(kept), kept)


@given(values(), values())
def test_same_is_equal_bytes(a: Any, b: Any) -> None:
    one, other = private(a), private(b)
    assert same(one, other) == (encode(one) == encode(other)) == alike(a, b)
    assert fits(one, b) == fits(other, a) == alike(a, b)


@given(values())
def test_an_untouched_value_fits(value: Any) -> None:
    kept = private(value)
    assert fits(kept, value)
    assert fits(kept, decode(encode(kept)))


@given(values(), st.data())
def test_one_strict_change_is_seen(value: Any, data: st.DataObject) -> None:
    kept = private(value)
    other = data.draw(changed(value))
    assert not alike(value, other)
    assert not fits(kept, other)
    assert fits(kept, value)
    try:
        new = private(other)
    except Unstorable:
        return
    assert not same(kept, new)
    assert not same(new, kept)
    assert not fits(new, value)
    assert encode(new) != encode(kept)


@given(values())
def test_later_changes_do_not_reach_the_private_copy(value: Any) -> None:
    kept = private(value)
    data = encode(kept)
    spoil(value)
    assert encode(kept) == data


@given(values())
def test_the_users_copy_does_not_reach_the_private_one(value: Any) -> None:
    kept = private(value)
    data = encode(kept)
    spoil(public(kept))
    assert encode(kept) == data


@given(frozen())
def test_frozen_values(value: Any) -> None:
    kept = private(value)
    assert kept is value or type(value) is tuple
    data = encode(kept)
    back = decode(data)
    assert alike(back, value)
    assert encode(private(back)) == data
    assert encode(decode(data, private=True)) == data
    assert alike(freeze(thaw(value)), value)


@given(plain())
def test_freezing_keeps_equality_and_thawing_undoes_it(value: Any) -> None:
    still = freeze(value)
    assert alike(thaw(still), value)
    if "nan" not in repr(value):  # which equals nothing
        assert still == value
        assert value == still
