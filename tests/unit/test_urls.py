from __future__ import annotations

import random

import pytest
from ada_url import join_url
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.settings import Settings
from shoal.urls import REASONS, Link, UrlRules, canonical, key_of, lane_of, origin_of

HOST = "example.com"
BASE = "https://example.com/shop/list?page=2"
EVERYTHING = Settings(allow=("*",))

SEGMENTS = st.text("ab%2eE7./\\:;@ \t\né🐟?#&=_-", max_size=12)
STARTS = st.sampled_from(
    [
        "",
        "/",
        "//",
        "///",
        "\\",
        "/\t/",
        "?",
        "#",
        " ",
        ".",
        "..",
        "../",
        "../../",
        "./",
        "h",
        "http:",
        "https:",
        "HTTP://",
        "http://h",
        "https://h",
        "https://example.com",
        "https://example.com/",
        "http://[::1]:80",
        "http://u:p@h",
        "data:",
    ]
)
HREFS = st.builds(str.__add__, STARTS, SEGMENTS) | st.text(max_size=30)
BASES = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "https", "HTTPS"]),
    st.sampled_from(["example.com", "Example.com:80", "h", "[::1]", "user@h"]),
    st.sampled_from(
        ["", "/", "//", "//a/b", "/a", "/a/", "/a/b.html", "/a/..", "/a/.", "/.a", "/a/%2e%2E", "/a\\b/c", "/é/"]
    ),
    st.sampled_from(["", "?", "?q=/x", "?a\\b", "?x y", "#f", "?q#/f", "\t/x"]),
)
NAMES = st.sampled_from(["a", "b", "c", "page", "sort", "x.y"])
PARAMETERS = st.lists(st.builds("{}={}".format, NAMES, st.sampled_from(["", "1", "2", "x%20y"])), max_size=6)
TRACKING = st.lists(st.sampled_from(["utm_source=x", "utm_=", "fbclid=1", "gclid", "_ga=2.1"]), max_size=3)


def rules(**changes: object) -> UrlRules:
    return UrlRules(Settings(**changes), start_hosts=[HOST])  # type: ignore[arg-type]  # the tests' own keywords


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


@settings(deadline=None)
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


@settings(deadline=None)
@given(parameters=PARAMETERS, tracking=TRACKING, seed=st.randoms(use_true_random=False))
def test_the_key_ignores_the_order_of_parameters_and_tracking(
    parameters: list[str], tracking: list[str], seed: random.Random
) -> None:
    plain = "https://example.com/a" + ("?" + "&".join(parameters) if parameters else "")
    shuffled = _shuffled(parameters, seed)
    for parameter in tracking:
        shuffled.insert(seed.randint(0, len(shuffled)), parameter)
    assert key_of("https://example.com/a?" + "&".join(shuffled)) == key_of(plain)


@settings(deadline=None)
@given(PARAMETERS, PARAMETERS)
def test_the_key_ignores_nothing_else(left: list[str], right: list[str]) -> None:
    same = sorted(left, key=_name_of) == sorted(right, key=_name_of)
    assert (key_of("https://h/?" + "&".join(left)) == key_of("https://h/?" + "&".join(right))) is same


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


def test_a_link_knows_its_url_key_lane_and_whether_it_was_merged() -> None:
    link = rules().resolve("/a?b=2&a=1&utm_medium=mail#top", BASE)
    assert link.url == "https://example.com/a?b=2&a=1&utm_medium=mail"
    assert link.key == key_of("https://example.com/a?a=1&b=2")
    assert (link.lane, link.merged, link.rejected) == ("example.com", True, None)
    assert not rules().resolve("/a?a=1&b=2", BASE).merged


@pytest.mark.parametrize(
    ("href", "expected"),
    [
        ("", "https://example.com/shop/list?page=2"),
        ("#top", "https://example.com/shop/list?page=2"),
        ("?page=3", "https://example.com/shop/list?page=3"),
        ("item", "https://example.com/shop/item"),
        ("../item", "https://example.com/item"),
        ("https:item", "https://example.com/shop/item"),
        ("https:?page=4", "https://example.com/shop/list?page=4"),
        ("//example.com/x", "https://example.com/x"),
        ("/\t/example.com/x", "https://example.com/x"),
        ("\\x\\y", "https://example.com/x/y"),
        (" /a\nb ", "https://example.com/ab"),
        ("a\0b", "https://example.com/shop/a%00b"),
        ("https:///example.com/x", "https://example.com/x"),
    ],
)
def test_hrefs_resolve_as_in_a_browser(href: str, expected: str) -> None:
    shared = rules()
    assert [shared.resolve(href, BASE).url for _ in range(2)] == [expected, expected]


@pytest.mark.parametrize(
    ("href", "reason"),
    [
        ("http://", "invalid_url"),
        ("https://exa mple.com/", "invalid_url"),
        ("https://example.com:99999/", "invalid_url"),
        ("\ud800", "invalid_url"),
        ("mailto:me@example.com", "scheme"),
        ("javascript:void(0)", "scheme"),
        ("ftp://example.com/", "scheme"),
        ("https://me:secret@example.com/x", "credentials"),
        ("/" + "x" * 2048, "url_too_long"),
        ("/" + "x" * 100_000, "url_too_long"),
        ("/a" * 21, "path_too_deep"),
        ("/a/b/a/b/a/b/a", "path_repeats"),
        ("https://other.example/", "out_of_scope"),
        ("http://example.com:8080/", "out_of_scope"),
        ("/private/x", "denied"),
        ("/shop/cart?add=1", "denied"),
    ],
)
def test_each_rule_that_keeps_a_link_out_has_a_name(href: str, reason: str) -> None:
    subject = rules(deny=("/private/", r"\?add="))
    link = subject.resolve(href, BASE)
    assert link.rejected == reason
    assert reason in REASONS
    assert len(link.url) <= 2048
    link.url.encode()


def test_check_names_the_rule_for_one_url() -> None:
    subject = rules(deny=("logout",))
    assert subject.check("https://example.com/a") is None
    assert subject.check("https://example.com/logout") == "denied"
    assert subject.check("https://other.example/") == "out_of_scope"
    assert subject.check("example.com") == "invalid_url"


def test_at_the_limits_a_link_is_still_taken() -> None:
    subject = rules()
    segments = "/".join(f"s{number}" for number in range(20))
    for href in (f"/{segments}", f"/{segments}/", "/a/a/a", "/" + "x" * (2048 - len("https://example.com/"))):
        assert subject.resolve(href, BASE).rejected is None


def test_a_password_never_reaches_the_link() -> None:
    link = rules().resolve("https://me:s%40cret@example.com/x?y=@z", BASE)
    assert link.url == "https://example.com/x?y=@z"
    assert (link.lane, link.rejected) == ("example.com", "credentials")


def test_out_of_scope_is_said_only_when_nothing_else_is_wrong() -> None:
    subject = rules(deny=("/private/",))
    assert subject.resolve("https://other.example/private/", BASE).rejected == "denied"
    outside = subject.resolve("https://other.example/a/1", BASE)
    inside = UrlRules(EVERYTHING).resolve("https://other.example/a/1", BASE)
    assert (outside.shape, outside.key, outside.lane) == (inside.shape, inside.key, inside.lane)


def test_a_page_gives_each_key_once_in_order_without_what_is_no_page() -> None:
    hrefs = [
        "/b",
        "#top",
        "",
        "/a?x=1&y=2",
        "mailto:me@example.com",
        " JavaScript:void(0)",
        "tel:1",
        "data:,x",
        "/b#part",
    ]
    hrefs += ["/a?y=2&x=1", "https://other.example/", "b", "ftp://example.com/", "/b", "about", "data/x"]
    subject = rules()
    for _ in range(2):
        links = subject.resolve_all(hrefs, "https://example.com/")
        assert [link.url for link in links if not link.rejected] == [
            "https://example.com/b",
            "https://example.com/a?x=1&y=2",
            "https://example.com/about",
            "https://example.com/data/x",
        ]
        assert [link.rejected for link in links if link.rejected] == ["out_of_scope", "scheme"]


def test_pages_of_one_origin_share_the_links_they_have_in_common() -> None:
    subject = rules()
    first = subject.resolve("/p/1", "https://example.com/a/b?c")
    assert subject.resolve("/p/1", "https://example.com/") is first
    assert subject.resolve("../p/1", "https://example.com/q/r") is first
    assert subject.resolve("../../../p/1", "https://example.com/q/r") is first
    assert subject.resolve("1", "https://example.com/p/2") is first
    assert subject.resolve("https://example.com/p/1", "https://example.com/") is first
    whole = subject.resolve("https://example.com/p/3", "https://example.com/")
    assert subject.resolve("/p/3", "https://example.com/x/") is whole
    assert subject.resolve("/p/1", "http://example.com/").url == "http://example.com/p/1"


@settings(deadline=None)
@given(st.lists(st.tuples(HREFS, BASES), min_size=1, max_size=8))
@example([("/\t/x", "https://example.com/"), ("\t/x", "https://example.com//")])
@example([("x", "https://example.com/a/.."), ("/a/x", "https://example.com/")])
@example([("?q", "https://example.com//a/b"), ("//a/b?q", "https://example.com/")])
@example([("..//x", "https://example.com/a/"), ("//x", "https://example.com/")])
@example([("../x", "https://example.com/a/../b"), ("/a/x", "https://example.com/")])
@example([("http:2", "http://user@h"), ("http:2", "http://h/")])
@example([("/\t/x", "https://example.com/"), ("https://example.com/\t/x", "https://example.com/")])
@example([("//x", "https://example.com/"), ("https://example.com//x", "https://example.com/")])
@example([("/x", "http://user@h/a/"), ("http://user@h/a//x", "http://user@h/a/")])
@example([("https:?q", "https://example.com/a"), ("https:?q", "https://example.com/b")])
def test_what_is_remembered_is_what_a_parser_would_say(found: list[tuple[str, str]]) -> None:
    shared = UrlRules(EVERYTHING)
    for href, base in found + found:
        link = shared.resolve(href, base)
        assert link == UrlRules(EVERYTHING).resolve(href, base)
        if link.rejected is None:
            assert canonical(link.url) == link.url
            assert link.url == UrlRules(EVERYTHING).resolve(join_url(base, href)).url
            assert shared.resolve_all([href], base) in ([link], [])


@settings(deadline=None)
@given(st.lists(HREFS, max_size=8), BASES)
@example(["/a?utm_source=x", "a", "/a", "https://example.com/a", "/b?y&x", "#top", "//other.example/"], BASE)
def test_links_sorted_out_are_the_links_resolved(hrefs: list[str], base: str) -> None:
    subject = rules()
    for _ in range(2):
        plain, others = subject.sort_out(hrefs, base)
        assert all(subject.resolve(href, base).key == key for key, href in plain.items())
        assert all(subject.resolve(href, base).is_plain for href in plain.values())
        assert not any(link.is_plain for link in others)
        resolved = subject.resolve_all(hrefs, base)
        assert {*plain, *(link.key for link in others)} == {link.key for link in resolved}
        assert {link for link in resolved if not link.is_plain} <= set(others)


@settings(deadline=None)
@given(st.text() | HREFS, st.text() | BASES)
@example("\ud800", "https://example.com/")
@example("x", "\ud800")
@example("x", "about:blank")
@example("x" * 100_000, "https://example.com/")
def test_no_text_makes_resolve_raise(href: str, base: str) -> None:
    subject = rules()
    link = subject.resolve(href, base)
    assert isinstance(link, Link)
    assert link.rejected is None or link.rejected in REASONS
    assert -(2**63) <= link.key < 2**63
    link.url.encode()
    assert len(subject.resolve_all([href, href], base)) <= 1


def test_the_memo_forgets_before_it_outgrows_its_bound() -> None:
    subject = UrlRules(EVERYTHING, memo_bytes=50_000)
    kept = subject.resolve("/kept", BASE)
    for number in range(2_000):
        subject.resolve(f"/p/{number}", f"https://h{number % 70}.example/")
        assert sum(map(len, subject._memos.values())) < 250
    again = subject.resolve("/kept", BASE)
    assert again == kept
    assert again is not kept


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
