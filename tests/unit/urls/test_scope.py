from __future__ import annotations

import itertools

import pytest

from shoal.errors import SettingError
from shoal.settings.table import Settings
from shoal.urls.canonical import UrlRules, canonical, read_scope
from shoal.urls.scope import REASONS, Facets, Shapes


def shapes_of(*hrefs: str) -> set[int]:
    rules = UrlRules(Settings(allow=("*",), max_facets=0))
    links = [rules.resolve(href, "https://example.com/") for href in hrefs]
    assert [link.rejected for link in links] == [None] * len(hrefs)
    return {link.shape for link in links}


def covered(allow: list[str], url: str, start_hosts: tuple[str, ...] = ("start.example",)) -> bool:
    form = canonical(url)
    rules = UrlRules(Settings(allow=tuple(allow)), start_hosts=start_hosts)
    return rules.check(form) is None


@pytest.mark.parametrize(
    ("allow", "inside", "outside"),
    [
        ([], "https://start.example/x", "https://www.start.example/x"),
        ([], "http://start.example/x", "http://start.example:8080/x"),
        (["example.com"], "https://example.com/", "https://start.example/"),
        (["example.com"], "https://EXAMPLE.com:443/", "https://www.example.com/"),
        (["Example.com:443"], "https://example.com/", "https://example.com.evil.example/"),
        (["example.com:8080"], "http://example.com:8080/x", "http://example.com/x"),
        ([".example.com"], "https://example.com/", "https://badexample.com/"),
        ([".example.com"], "https://a.b.example.com/", "https://example.com.evil.example/"),
        (["münchen.example"], "https://xn--mnchen-3ya.example/", "https://munchen.example/"),
        (["[::1]:8080"], "http://[::1]:8080/", "http://[::1]/"),
        (["https://example.com/docs/"], "https://example.com/docs/a", "https://example.com/blog/docs/"),
        (["https://example.com/%7euser/"], "https://example.com/~user/a", "http://example.com/~user/a"),
        (["https://example.com"], "https://example.com/a", "https://example.com.evil.example/"),
        (["https://example.com/docs/", "b.example"], "https://b.example/x", "https://example.com/x"),
    ],
)
def test_scope_covers_what_allow_names_and_nothing_else(allow: list[str], inside: str, outside: str) -> None:
    assert covered(allow, inside)
    assert not covered(allow, outside)


def test_a_star_allows_everything() -> None:
    assert covered(["*"], "https://anything.example:81/x")


def test_scope_says_which_lanes_it_covers_whole() -> None:
    scope = read_scope(["example.com", "https://b.example/docs/"])
    assert scope.covers_lane("example.com")
    assert not scope.covers_lane("b.example")
    assert scope.covers("https://b.example/docs/x", "b.example")


@pytest.mark.parametrize(
    "entry", ["*.example.com", "example.com/docs", "exa mple.com", ".", "", "a@b", "ftp://example.com/"]
)
def test_an_allow_entry_that_means_nothing_is_an_error_that_names_it(entry: str) -> None:
    with pytest.raises(SettingError, match="allow entry ") as caught:
        UrlRules(Settings(allow=(entry,)))
    assert repr(entry) in str(caught.value)


def test_a_deny_pattern_that_is_no_regular_expression_is_an_error_that_names_it() -> None:
    with pytest.raises(SettingError, match=r"deny pattern '\(' is not a regular expression"):
        UrlRules(Settings(deny=("ok", "(")))


def test_limits_are_settings() -> None:
    strict = Settings(allow=("*",), max_url_length=40, max_path_segments=2, max_segment_repeats=1)
    rules = UrlRules(strict)
    assert rules.check("https://example.com/a/b/") is None
    assert rules.check("https://example.com/a/b/c") == "path_too_deep"
    assert rules.check("https://example.com/a/a") == "path_repeats"
    assert rules.check("https://example.com/aaaaaaaaaaaaaaaaaaaaaaaaaa") == "url_too_long"


def test_every_reason_is_a_name_and_a_sentence() -> None:
    for name, sentence in REASONS.items():
        assert name.replace("_", "").isalpha()
        assert name == name.lower()
        assert sentence.startswith(("it", "the"))
        assert not sentence.endswith(".")


@pytest.mark.parametrize(
    "trap",
    [
        [
            f"/calendar/{year}/{month:02}/{day}"
            for year in (1999, 2026)
            for month in range(1, 13)
            for day in range(1, 29)
        ],
        [f"/calendar?date=2026-05-{day}" for day in range(1, 29)],
        [f"/events/2026-05-{day}/" for day in range(1, 29)],
        [f"/shop/list;jsessionid={number * 7919:032X}" for number in range(50)],
        [f"/shop/list?sid={number * 7919:032x}" for number in range(50)],
        [f"/(S({number * 104729:024x}))/shop/list.aspx" for number in range(50)],
        [f"/?{number * 7919}" for number in range(50)],
        [f"/a/{number * 7919**4:032x}/view" for number in range(1, 50)],
        [f"/a/{number:08x}-1c2d-4e3f-8a9b-{number * 7919:012x}/view" for number in range(50)],
        ["/products?color=red&size=m", "/products?size=l&color=blue", "/products?color=%23fff&size="],
        ["/product/blue-shirt-xl", "/product/red-hat", "/product/hat", "/product/Hut%C3%A4", "/product/x100-b"],
        ["/p/123.html", "/p/4.html", "/p/99999.html"],
        ["/list?f[0]=a&f[1]=b", "/list?f[0]=c", "/list?f[7]=c&f[12]=d"],
        ["/tags/deep-learning/feed", "/tags/machine-learning-2/feed", "/tags/42-is-the-answer/feed"],
        ["/catalogue/page-1.html", "/catalogue/page-50.html"],
        ["/archive/page-1/x", "/archive/page-50/y"],
    ],
)
def test_urls_of_one_kind_share_a_shape(trap: list[str]) -> None:
    assert len(shapes_of(*trap)) == 1


def test_combined_facets_make_few_shapes() -> None:
    names = ["color", "size", "brand", "price", "sort", "page", "view", "rating", "stock", "sale"]
    combinations = [[name for bit, name in enumerate(names) if chosen >> bit & 1] for chosen in range(1, 1024)]
    hrefs = ["/shoes?" + "&".join(f"{name}=1" for name in chosen) for chosen in combinations]
    assert len(shapes_of(*hrefs)) == 10 + 45 + 120 + 1


def test_urls_of_different_kinds_have_different_shapes() -> None:
    kinds = ["/", "/a", "/a/", "/1", "/shop/x", "/blog/x", "/blog/1", "/blog/1/x", "/blog/x/y", "/shop/x?page=1"]
    kinds += ["/shop/x?sort=1", "/shop/x?page=1&sort=1", "/shop/x?1", "/v2/x", "/page-2/x", "/shop/x;a=1"]
    assert len(shapes_of(*kinds)) == len(kinds)


def test_tracking_parameters_do_not_change_the_shape() -> None:
    assert len(shapes_of("/a/b?page=1", "/a/b?utm_source=x&page=2&gclid=3")) == 1


def test_a_shape_belongs_to_one_lane() -> None:
    assert len(shapes_of("/a/1", "https://other.example/a/1")) == 2
    assert len(shapes_of("/a/1", "http://example.com/a/2")) == 1


def test_shapes_remember_a_bounded_number_of_folders() -> None:
    shapes = Shapes()
    first = shapes.of("h", "/folder/x", [])
    for number in range(25_000):
        shapes.of(f"h{number}", f"/f{number}/{number}/x", [])
    assert 1_000 <= len(shapes._folders) <= 20_000
    assert 1_000 <= len(shapes._numbers) <= 20_000
    shapes.of("h", "/" + "long" * 500 + "/x", [])
    assert shapes.of("h", "/folder/x", []) == first


def test_of_a_path_with_many_sets_of_parameters_the_first_ones_are_taken() -> None:
    rules = UrlRules(Settings(allow=("*",), max_facets=3))
    queries = ["a=1", "b=1", "a=1&b=1", "c=1", "a=2", "b=9&a=7", "c=2&a=1", "a2=1"]
    reasons = [rules.check(f"https://example.com/list?{query}") for query in queries]
    assert reasons == [None, None, None, "facets", None, None, "facets", "facets"]
    assert rules.check("https://example.com/other?c=1") is None
    assert rules.check("https://example.com/list") is None


def test_one_set_of_parameters_may_have_any_number_of_values() -> None:
    rules = UrlRules(Settings(allow=("*",)))
    links = (rules.resolve(f"https://example.com/viewtopic.php?f=1&t={number}&start=20") for number in range(5000))
    assert {link.rejected for link in links} == {None}


def test_facets_are_counted_for_a_bounded_number_of_paths() -> None:
    facets = Facets(2)
    for number in range(20_000):
        facets.refuse(f"example.com/{number}", ["a=1"])
    assert 1_000 <= len(facets._sets) <= 5_000


def test_no_number_of_facets_is_too_many_when_the_limit_is_off() -> None:
    rules = UrlRules(Settings(allow=("*",), max_facets=0))
    names = ["".join(letters) for letters in itertools.product("abcdef", repeat=3)]
    assert {rules.check(f"https://example.com/list?{name}=1") for name in names} == {None}
