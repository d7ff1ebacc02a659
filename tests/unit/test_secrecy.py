"""Texts that people see hold no secrets."""

from __future__ import annotations

import pytest

from shoal.crawl.inbox import letter_of
from shoal.errors import UsageError
from shoal.text.secrets import has_secrets, masked_headers, masked_text, secrets_in, without, without_secrets
from shoal.urls.canonical import canonical


def test_secret_headers_are_known_whatever_their_case() -> None:
    headers = {"AUTHORIZATION": "a", "cookie": "b", "Proxy-Authorization": "c", "Accept": "d"}
    assert has_secrets(headers)
    assert without_secrets(headers) == {"Accept": "d"}
    assert not has_secrets({"Accept": "d"})
    assert without_secrets({"Cookie": "a"}) is None


def test_of_headers_only_the_names_are_shown() -> None:
    assert masked_headers({"Cookie": "a", "X-Mine": "b"}) == {"Cookie": "***", "X-Mine": "***"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:hunter2@example.com/a", "https://example.com/a"),
        ("user:hunter2@example.com", "example.com"),
        ('{"url": "x", "headers": {"Authorization": "Bearer hunter2", "A": "b"}}', None),
        ("{'cookie': 'a=hunter2; b=hunter2'}", None),
        ("Cookie: a=hunter2; b=hunter2", None),
        ('{"headers": {"x-api-key": "hunter2', None),
        (r'KeyError: "{\'Authorization\': \'Bearer hunter2\', \'Cookie\': \'a=hunter2\'}"', None),
        (
            "see http://a@hunter2@b.test/ and https://c:hunter2@d.test/?x=1",
            "see http://b.test/ and https://d.test/?x=1",
        ),
        ("nothing to hide: https://example.com/@me", "nothing to hide: https://example.com/@me"),
    ],
)
def test_a_text_is_shown_without_its_secrets(text: str, shown: str | None) -> None:
    assert "hunter2" not in masked_text(text)
    assert shown is None or masked_text(text) == shown


@pytest.mark.parametrize(
    "text",
    ["p@ss 'w/rd", "p%40ss%20%27w%2Frd", "p%40ss%20%27w/rd", "x=p%40ss+%27w%2Frd&y", repr({"a": "p@ss 'w/rd \""})],
)
def test_a_secret_is_found_however_it_is_spelled(text: str) -> None:
    assert "w/rd" not in without(["p@ss 'w/rd", "p@ss 'w/rd \""], text)
    assert "w%2Frd" not in without(["p@ss 'w/rd", "p@ss 'w/rd \""], text)


def test_the_secrets_of_headers_are_their_values_and_the_tokens_in_them() -> None:
    found = secrets_in({"authorization": "Bearer hunter2hunter2", "Cookie": "a=1; id=hunter3hunter3", "Accept": "all"})
    assert "hunter2hunter2" in found
    assert "hunter3hunter3" in found
    assert "Bearer" not in found
    assert secrets_in(None) == []


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@example.com/",
        "user:hunter2@example.com",
        "https://user:hunter2@exa mple/",
        "ftp://u:hunter2@a/",
    ],
)
def test_a_url_that_is_refused_is_named_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        canonical(url)
    assert "hunter2" not in str(caught.value)


def test_an_entry_of_the_inbox_that_is_no_request_is_shown_without_its_secrets() -> None:
    entry = b'{"url": "https://user:hunter2@a.test/", "headers": {"Cookie": "hunter2"}, "verb": "GET"}'
    task, reason = letter_of(entry, "Object contains unknown field `verb`", at=1.0)
    assert "hunter2" not in repr((task, reason))
    assert "https://a.test/" in task.url
