from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.journey.intake import RecentKeys

KEYS = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@given(added=st.lists(KEYS), asked=st.lists(KEYS | st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])))
def test_no_key_counts_as_remembered_that_was_not_added(added: list[int], asked: list[int]) -> None:
    known = RecentKeys(limit=8)
    for key in added:
        known.add(key)
    assert known.unknown(asked) >= set(asked) - set(added)
    assert known.unknown(asked) == {key for key in asked if key not in known}


@given(KEYS)
def test_a_key_is_remembered_from_its_add_on_until_all_are_forgotten(key: int) -> None:
    known = RecentKeys(limit=1)
    assert key not in known
    known.add(key)
    assert key in known
    assert known.unknown([key, None]) == {None}
    known.clear()
    assert key not in known


def test_as_many_keys_as_the_limit_have_places_of_their_own() -> None:
    known = RecentKeys(limit=100)
    for key in range(-50, 50):
        known.add(key)
    assert known.unknown(range(-50, 50)) == set()


def test_of_two_keys_with_one_place_the_later_is_remembered() -> None:
    known = RecentKeys(limit=4)
    known.add(3)
    known.add(3 + 2**40)
    assert known.unknown([3, 3 + 2**40]) == {3}
