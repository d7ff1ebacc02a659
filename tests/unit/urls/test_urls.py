"""The canonical form of a URL, and the lane it lies in."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from url_strategies import HREFS

from shoal.errors import UsageError
from shoal.urls.canonical import canonical, lane_of, origin_of


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("HTTPS://Example.COM", "https://example.com/"),
        ("https://example.com:443/a", "https://example.com/a"),
        ("http://example.com:80/a", "http://example.com/a"),
        ("http://example.com:443/a", "http://example.com:443/a"),
        ("https://example.com/a/./b/../c", "https://example.com/a/c"),
        ("https://example.com/a#part", "https://example.com/a"),
        ("https://example.com/%7euser/%2f%c3%a9", "https://example.com/~user/%2F%C3%A9"),
        ("https://example.com/?q=%41%26%2b", "https://example.com/?q=A%26%2B"),
        ("https://example.com/?b=2&a=1", "https://example.com/?b=2&a=1"),
        ("https://example.com/A/B/", "https://example.com/A/B/"),
        ("https://www.example.com/a", "https://www.example.com/a"),
        ("https://münchen.example/ü?ü", "https://xn--mnchen-3ya.example/%C3%BC?%C3%BC"),
        ("http://[::1]:80/x", "http://[::1]/x"),
        ("  https://example.com/a b\n", "https://example.com/a%20b"),
        ("https://example.com/%%37E", "https://example.com/%%37E"),
        ("https://example.com/100%", "https://example.com/100%"),
    ],
)
def test_the_canonical_form_keeps_the_meaning(given: str, expected: str) -> None:
    assert canonical(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("example.com", "'example.com' has no scheme: did you mean https://example.com?"),
        ("localhost:8000/x", "'localhost:8000/x' has no scheme: did you mean https://localhost:8000/x?"),
        ("", "a URL is empty: write one like https://example.com/"),
        ("ftp://example.com/", "'ftp://example.com/' is neither http nor https, and shoal fetches nothing else"),
        ("mailto:me@example.com", "'mailto:me@example.com' is neither http nor https, and shoal fetches nothing else"),
        ("https://exa mple.com/", "'https://exa mple.com/' is not a valid URL: write one like https://example.com/"),
        (
            "http://example.com:99999/",
            "'http://example.com:99999/' is not a valid URL: write one like https://example.com/",
        ),
        (
            "https://me:secret@example.com/x",
            "https://example.com/x was given with a user name or password: take it out of the URL",
        ),
    ],
)
def test_a_url_typed_wrong_gets_one_line_that_says_what_to_do(given: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        canonical(given)
    assert str(caught.value) == message


@given(HREFS)
@example("%2%35")
@example("%%37E")
@example("a #f")
def test_the_canonical_form_is_its_own_canonical_form(rest: str) -> None:
    form = canonical("https://example.com/" + rest)
    assert canonical(form) == form


def test_a_lane_is_the_host_and_any_port_of_its_own() -> None:
    assert lane_of("http://example.com/") == lane_of("https://example.com/x?y=//z") == "example.com"
    assert lane_of("https://example.com:8443/") == "example.com:8443"
    assert lane_of("http://[::1]:8080/") == "[::1]:8080"
    assert origin_of("https://example.com:8443/a/b") == "https://example.com:8443"
