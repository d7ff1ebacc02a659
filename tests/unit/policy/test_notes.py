"""The names of notes: short, of text that every frontier keeps, and a bounded number of them."""

from __future__ import annotations

from shoal.policy.failures import RAISED, SITEMAP_NOTE, NoteNames


def test_names_of_notes_are_short_and_bounded_in_number() -> None:
    names = NoteNames(RAISED, most=2)
    assert len(names.of("x" * 500)) == 200
    assert names.of("A a.py:1") == "raised A a.py:1"
    assert names.of("B b.py:1") == "raised other"
    assert names.of("A a.py:1") == "raised A a.py:1"


def test_without_a_rest_there_is_no_name_beyond_the_bound() -> None:
    names = NoteNames(SITEMAP_NOTE, most=1, rest="")
    assert (names.of("a: empty"), names.of("b: empty")) == ("sitemap a: empty", "")


def test_names_hold_no_text_that_a_frontier_could_not_keep() -> None:
    assert NoteNames(RAISED).of("half \ud800 and \0") == "raised half \\ud800 and \\0"
