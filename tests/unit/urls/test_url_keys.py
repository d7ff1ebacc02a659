"""The key of a URL: which spellings are one page, and which are another."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from url_strategies import rules

from shoal.settings.table import Settings
from shoal.urls.canonical import UrlRules, fingerprint, key_of

NAMES = st.sampled_from(["a", "b", "c", "page", "sort", "x.y"])
PARAMETERS = st.lists(st.builds("{}={}".format, NAMES, st.sampled_from(["", "1", "2", "x%20y"])), max_size=6)
TRACKING = st.lists(st.sampled_from(["utm_source=x", "utm_=", "fbclid=1", "gclid", "_ga=2.1"]), max_size=3)


def test_the_key_is_the_same_in_every_release() -> None:
    assert key_of("https://example.com/") == 1493557592560457051
    assert key_of("https://example.com/?b=2&a=1&utm_source=x") == key_of("https://example.com/?a=1&b=2")
    assert key_of("https://example.com/api", method="POST", body=b"{}") == -2927885752503003473


@pytest.mark.parametrize(
    "other",
    [
        "http://example.com/a/b?x=1&y=2",
        "https://www.example.com/a/b?x=1&y=2",
        "https://example.com/A/b?x=1&y=2",
        "https://example.com/a/b/?x=1&y=2",
        "https://example.com/a/b?x=1&y=2&y=2",
        "https://example.com/a/b?X=1&y=2",
        "https://example.com/a/b?x=1&y=",
        "https://example.com/a/b?x=1&y",
        "https://example.com/a/b?x=1&y=2&ref=home",
        "https://example.com/a/b",
    ],
)
def test_what_may_be_another_page_has_another_key(other: str) -> None:
    assert key_of(other) != key_of("https://example.com/a/b?x=1&y=2")


@given(parameters=PARAMETERS, tracking=TRACKING, seed=st.randoms(use_true_random=False))
def test_the_key_ignores_the_order_of_parameters_and_tracking(
    parameters: list[str], tracking: list[str], seed: random.Random
) -> None:
    plain = "https://example.com/a" + ("?" + "&".join(parameters) if parameters else "")
    shuffled = _shuffled(parameters, seed)
    for parameter in tracking:
        shuffled.insert(seed.randint(0, len(shuffled)), parameter)
    assert key_of("https://example.com/a?" + "&".join(shuffled)) == key_of(plain)


@given(PARAMETERS, PARAMETERS)
def test_the_key_ignores_nothing_else(left: list[str], right: list[str]) -> None:
    same = sorted(left, key=_name_of) == sorted(right, key=_name_of)
    assert (key_of("https://h/?" + "&".join(left)) == key_of("https://h/?" + "&".join(right))) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/?f[a]=1", "/?f%5Ba%5D=1"),
        ("/?f[a]=1", "/?f%5ba]=1"),
        ("/?q=a+b", "/?q=a%20b"),
        ("/?q=a b", "/?q=a+b"),
        ("/a|b?c|d", "/a%7Cb?c%7Cd"),
        ("/a[1]", "/a%5B1%5D"),
        ("/a^b", "/a%5Eb"),
        ("/?x={a}", "/?x=%7Ba%7D"),
        ("/?x=`a\\b^", "/?x=%60a%5Cb%5E"),
        ("/?b=1&f[a]=1", "/?f%5Ba%5D=1&b=1"),
    ],
)
def test_two_spellings_of_a_url_have_one_key_and_are_fetched_as_written(one: str, other: str) -> None:
    links = [rules().resolve(f"https://example.com{path}") for path in (one, other)]
    assert links[0].key == links[1].key
    assert links[0].url != links[1].url or " " in one or "^" in one
    assert {rules().key_of(link.url, method="POST", body=b"x") for link in links} == {
        key_of(links[0].url, method="POST", body=b"x")
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/a+b", "/a%20b"),
        ("/?q=a+b", "/?q=a%2Bb"),
        ("/a/b", "/a%2Fb"),
        ("/?a=1&b=2", "/?a=1%26b=2"),
        ("/?a=1,2", "/?a=1%2C2"),
        ("/?a=%255B", "/?a=%5B"),
        ("/a?b", "/a%3Fb"),
    ],
)
def test_an_escape_that_changes_the_meaning_makes_another_key(one: str, other: str) -> None:
    assert key_of(f"https://example.com{one}") != key_of(f"https://example.com{other}")


@pytest.mark.parametrize("name", ["f[a]", "f%5Ba%5D", "f[*", "f%5B*"])
def test_a_parameter_to_strip_is_known_in_each_spelling(name: str) -> None:
    for url in ("https://example.com/?f[a]=1", "https://example.com/?f%5Ba%5D=1"):
        assert key_of(url, strip=(name,)) == key_of("https://example.com/")


def test_a_crawl_that_an_earlier_release_began_keeps_its_keys() -> None:
    before = UrlRules(Settings(allow=("*",)), key_rules=1)
    assert before.resolve("https://example.com/?f%5Ba%5D=a%20b").key == fingerprint(
        "https://example.com/?f%5Ba%5D=a%20b"
    )
    assert before.resolve("https://example.com/%7C").key == fingerprint("https://example.com/%7C")


@pytest.mark.parametrize(
    ("one", "other", "by"),
    [
        ("/a/", "/a", "trailing_slash"),
        ("/a/?x=1", "/a?x=1", "trailing_slash"),
        ("/a/index.html", "/a/", "index"),
        ("/Index.PHP", "/", "index"),
        ("/a/default.aspx?p=2", "/a/?p=2", "index"),
    ],
)
def test_slashes_and_index_pages_are_one_page_only_if_asked_for(one: str, other: str, by: str) -> None:
    urls = [f"https://example.com{path}" for path in (one, other)]
    merging = rules(same_page=(by,))
    assert len({rules().resolve(url).key for url in urls}) == 2
    assert len({merging.resolve(url).key for url in urls}) == 1
    assert [merging.resolve(url).url for url in urls] == urls


def test_slash_and_index_together_leave_the_root_alone() -> None:
    both = rules(same_page=("trailing_slash", "index"))
    keys = {both.resolve(f"https://example.com{path}").key for path in ("/a/index.html", "/a/", "/a")}
    assert keys == {key_of("https://example.com/a")}
    assert both.resolve("/index.html", "https://example.com/a").key == key_of("https://example.com/")
    for path in ("/a/index", "/a/myindex.html", "/a/index.html/b", "/index.txt", "/a/index.html5"):
        assert both.resolve(f"https://example.com{path}").key == key_of(f"https://example.com{path}")


def test_method_and_body_belong_to_the_key() -> None:
    url = "https://example.com/search"
    keys = {
        key_of(url),
        key_of(url, method="POST"),
        key_of(url, method="POST", body=b"q=1"),
        key_of(url, method="PUT", body=b"q=1"),
        key_of(url, body=b"q=1"),
    }
    assert len(keys) == 5
    assert key_of(url, method="get", body=b"") == key_of(url)


def test_the_parameters_to_strip_are_a_setting() -> None:
    url = "https://example.com/?sid=9&session_id=8&a=1"
    assert key_of(url, strip=("sid", "session*")) == key_of("https://example.com/?a=1", strip=())
    assert rules(strip_parameters=("sid",)).key_of("https://example.com/?sid=9") == key_of("https://example.com/")


def _name_of(parameter: str) -> str:
    return parameter.partition("=")[0]


def _shuffled(parameters: list[str], seed: random.Random) -> list[str]:
    """Another order of the parameters, in which those of one name keep theirs."""
    waiting = {name: [one for one in parameters if _name_of(one) == name] for name in map(_name_of, parameters)}
    names = [_name_of(parameter) for parameter in parameters]
    seed.shuffle(names)
    return [waiting[name].pop(0) for name in names]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/list;jsessionid=1A2B3C", "/list;jsessionid=FFFF00?", True),
        ("/list;jsessionid=1A2B3C?page=2", "/list?page=2", True),
        ("/list;JSESSIONID=1A2B3C.node1", "/list", True),
        ("/(S(x1y2z3x1y2z3x1y2z3x1y2z3))/list.aspx", "/list.aspx", True),
        ("/list?PHPSESSID=abc&page=2", "/list?page=2", True),
        ("/list?page=2&sid=0123456789abcdef0123456789abcdef", "/list?page=2", True),
        ("/list?sid=0123456789abcdef0123456789abcdef&page=2", "/list?page=2", True),
        ("/list?ASPSESSIONIDABCD=xyz", "/list", True),
        ("/list?sid=12", "/list?sid=13", False),
        ("/list;page=1", "/list;page=2", False),
        ("/wiki/Lisp_(language)/a", "/wiki/a", False),
    ],
)
def test_session_ids_do_not_make_another_page(one: str, other: str, same: bool) -> None:
    rules = UrlRules(Settings(allow=("*",)))
    keys = {rules.resolve(f"https://example.com{path}").key for path in (one, other)}
    assert (len(keys) == 1) is same


def test_a_session_id_stays_in_the_url_that_is_fetched() -> None:
    url = "https://example.com/list;jsessionid=1A2B3C?page=2"
    assert UrlRules(Settings(allow=("*",))).resolve(url).url == url


def test_session_ids_make_another_page_for_those_who_want_it() -> None:
    rules = UrlRules(Settings(allow=("*",), strip_parameters=()))
    assert len({rules.resolve(f"https://example.com/list;jsessionid={text}").key for text in "ab"}) == 2
