from __future__ import annotations

import pytest

from shoal.fetch.cookies import (
    LONGEST_LIFE,
    MAX_COOKIES,
    MAX_PER_SITE,
    MAX_SITE_BYTES,
    CookieJar,
    read_cookie,
    site_of,
)
from shoal.testing.clock import FakeClock

SHOP = "https://www.shop.example/account/login"
NOW = 1_000_000.0


def jar_with(*lines: str, url: str = SHOP) -> CookieJar:
    jar = CookieJar(clock=FakeClock(NOW))
    jar.take(url, "\n".join(lines))
    return jar


@pytest.mark.parametrize(
    ("line", "url", "is_sent"),
    [
        # Host-only without a domain, for subdomains with one.
        ("a=1; Path=/", "https://www.shop.example/", True),
        ("a=1; Path=/", "https://sub.www.shop.example/", False),
        ("a=1; Path=/", "https://shop.example/", False),
        ("a=1; Path=/; Domain=shop.example", "https://shop.example/", True),
        ("a=1; Path=/; Domain=.SHOP.example", "https://api.shop.example/", True),
        ("a=1; Path=/; Domain=shop.example", "https://notshop.example/", False),
        ("a=1; Path=/; Domain=shop.example", "https://shop.example.evil.example/", False),
        ("a=1; Path=/; Domain=", "https://www.shop.example/", True),
        # What this host may not speak for is not kept at all.
        ("a=1; Path=/; Domain=evil.example", "https://evil.example/", False),
        ("a=1; Path=/; Domain=sub.www.shop.example", "https://sub.www.shop.example/", False),
        # Paths.
        ("a=1", "https://www.shop.example/account/orders", True),
        ("a=1", "https://www.shop.example/account", True),
        ("a=1", "https://www.shop.example/accounting", False),
        ("a=1", "https://www.shop.example/", False),
        ("a=1; Path=/docs/", "https://www.shop.example/docs/x", True),
        ("a=1; Path=/docs/", "https://www.shop.example/docs", False),
        ("a=1; Path=relative", "https://www.shop.example/account/x", True),
        # Secure.
        ("a=1; Path=/; Secure", "https://www.shop.example/", True),
        ("a=1; Path=/; Secure", "http://www.shop.example/", False),
        ("a=1; Path=/; HttpOnly; SameSite=Strict", "http://www.shop.example/", True),
        # Prefixes.
        ("__Secure-a=1; Path=/", "https://www.shop.example/", False),
        ("__Secure-a=1; Path=/; Secure", "https://www.shop.example/", True),
        ("__Host-a=1; Path=/; Secure", "https://www.shop.example/", True),
        ("__Host-a=1; Path=/; Secure; Domain=shop.example", "https://www.shop.example/", False),
        ("__Host-a=1; Path=/account; Secure", "https://www.shop.example/account/x", False),
        ("__Host-a=1; Secure", "https://www.shop.example/account/x", False),
        # Without a name.
        ("a", "https://www.shop.example/account/x", True),
        ("=a", "https://www.shop.example/account/x", True),
        ("=__Host-a=1; Path=/; Secure", "https://www.shop.example/", False),
        ("__secure-a; Path=/; Secure", "https://www.shop.example/", False),
        # Not a cookie.
        ("", "https://www.shop.example/account/x", False),
        ("=", "https://www.shop.example/account/x", False),
        (" ; Path=/", "https://www.shop.example/", False),
        ("a=1; Path=/\x7f", "https://www.shop.example/", False),
        ("a=1; Path=/; Domain=\xe9.shop.example", "https://www.shop.example/", False),
        ("a=1\x01; Path=/", "https://www.shop.example/", False),
        (f"a={'x' * 4096}; Path=/", "https://www.shop.example/", False),
        (f"a={'x' * 4095}; Path=/", "https://www.shop.example/", True),
    ],
)
def test_sends_a_cookie_where_it_belongs_and_nowhere_else(line: str, url: str, *, is_sent: bool) -> None:
    assert bool(jar_with(line).header(url)) is is_sent


@pytest.mark.parametrize(
    ("host", "domain", "is_kept"),
    [
        ("shop.co.uk", "co.uk", False),
        ("shop.co.uk.", "co.uk.", False),
        ("shop.co.uk", "shop.co.uk", True),
        ("mine.github.io", "github.io", False),
        ("x.mine.github.io", "mine.github.io", True),
        ("shop.example", "example", False),
        ("127.0.0.1", "0.0.1", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("[::1]", "", True),
        ("localhost", "localhost", True),
        ("xn--85x722f.com.cn", "com.cn", False),
    ],
)
def test_no_cookie_is_for_a_public_suffix(host: str, domain: str, *, is_kept: bool) -> None:
    cookie = read_cookie(f"a=1; Domain={domain}", url=f"https://{host}/", now=NOW)
    assert (cookie is not None) is is_kept
    if cookie and host in ("127.0.0.1", "localhost", "[::1]"):
        assert cookie.is_host_only


def test_a_suffix_that_is_a_host_itself_keeps_its_cookies_for_itself() -> None:
    jar = jar_with("a=1; Domain=github.io; Path=/", url="https://github.io/")
    assert jar.header("https://github.io/") == "a=1"
    assert jar.header("https://mine.github.io/") == ""


@pytest.mark.parametrize(
    ("attributes", "expires"),
    [
        ("", None),
        ("Max-Age=60", NOW + 60),
        ("Max-Age=60; Expires=Wed, 01 Jan 2020 00:00:00 GMT", NOW + 60),
        ("Max-Age=99999999999", NOW + LONGEST_LIFE),
        ("Max-Age=99999999999999999999", NOW + LONGEST_LIFE),
        ("Max-Age=-99999999999999999999", 0.0),
        ("Max-Age=soon", None),
        ("Expires=Mon, 12 Jan 1970 13:47:00 GMT", NOW + 20),
        ("Expires=Monday, 12-Jan-70 13:47:00 GMT", NOW + 20),
        ("Expires=Mon Jan 12 13:47:00 1970", NOW + 20),
        ("Expires=12 jan 1970 13:47:00 whatever", NOW + 20),
        ("Expires=Fri, 01 Jan 2100 00:00:00 GMT", NOW + LONGEST_LIFE),
        ("Expires=Tue, 31 Feb 1970 00:00:00 GMT", None),
        ("Expires=never", None),
    ],
)
def test_a_cookie_lives_as_long_as_it_says(attributes: str, expires: float | None) -> None:
    cookie = read_cookie(f"a=1; {attributes}", url=SHOP, now=NOW)
    assert cookie is not None
    assert cookie.expires == expires


def test_forgets_what_is_over_or_taken_back() -> None:
    clock = FakeClock(NOW)
    jar = CookieJar(clock=clock)
    jar.take(SHOP, "a=1; Path=/; Max-Age=10\nb=1; Path=/\nc=1; Path=/")
    jar.take(SHOP, "c=; Path=/; Max-Age=0\nb=2; Path=/")
    assert jar.header(SHOP) == "a=1; b=2"
    clock.advance(10)
    assert jar.header(SHOP) == "b=2"
    jar.take(SHOP, "b=; Path=/; Expires=Thu, 01 Jan 1970 00:00:00 GMT")
    assert len(jar) == 0


def test_longer_paths_come_first_then_older_cookies() -> None:
    jar = jar_with("root=1; Path=/", "deep=1; Path=/account", "later=1; Path=/")
    assert jar.header(SHOP) == "deep=1; root=1; later=1"


def test_plain_http_can_neither_set_nor_replace_a_secure_cookie() -> None:
    jar = jar_with("a=1; Path=/; Secure")
    jar.take("http://www.shop.example/", "a=evil; Path=/\nb=evil; Path=/; Secure")
    assert jar.header("https://www.shop.example/") == "a=1"


def test_plain_http_cannot_hide_a_secure_cookie_behind_another_path_or_domain() -> None:
    jar = jar_with("a=1; Path=/; Secure")
    jar.take("http://www.shop.example/", "a=evil; Path=/account\na=evil; Path=/; Domain=shop.example\nb=2; Path=/")
    assert jar.header("https://www.shop.example/account/x") == "a=1; b=2"


def test_a_cookie_without_a_name_is_sent_as_its_value() -> None:
    assert jar_with("consent; Path=/", "a=1; Path=/").header(SHOP) == "consent; a=1"
    assert jar_with("consent; Path=/", "=given; Path=/").header(SHOP) == "given"


@pytest.mark.parametrize("value", [b"caf\xc3\xa9", b"caf\xe9", b"\x85\xa0", b"plain"])
def test_a_cookie_goes_back_with_its_bytes(value: bytes) -> None:
    jar = jar_with(f"a={value.decode('latin-1')}; Path=/")
    for one in (jar, CookieJar.load(jar.dump(), clock=FakeClock(NOW))):
        assert one.header(SHOP).encode("utf-8", "surrogateescape") == b"a=" + value


def test_tells_whether_later_requests_differ() -> None:
    jar = CookieJar(clock=FakeClock(NOW))
    assert jar.take(SHOP, "a=1; Path=/")
    assert not jar.take(SHOP, "a=1; Path=/; Max-Age=60")
    assert jar.take(SHOP, "a=2; Path=/")
    assert not jar.take(SHOP, "b=; Max-Age=0; Path=/")
    assert jar.take(SHOP, "a=; Max-Age=0; Path=/")
    assert not jar.take(SHOP, None)
    assert not jar.take(SHOP, "evil=1; Domain=other.example")


def test_keeps_a_bounded_number_of_bytes_the_newest() -> None:
    clock = FakeClock(NOW)
    jar = CookieJar(clock=clock)
    for number in range(MAX_PER_SITE):
        clock.advance(1)
        jar.take(SHOP, f"n{number}={'x' * 4000}; Path=/")
    assert MAX_SITE_BYTES - 5000 < jar.size <= MAX_SITE_BYTES
    assert f"n{MAX_PER_SITE - 1}=" in jar.header(SHOP)


def test_keeps_a_bounded_number_the_newest() -> None:
    clock = FakeClock(NOW)
    jar = CookieJar(clock=clock)
    for number in range(3 * MAX_PER_SITE):
        clock.advance(1)
        jar.take(f"https://h{number % 2}.shop.example/", f"n{number}=1; Path=/")
    assert len(jar) == MAX_PER_SITE
    assert f"n{3 * MAX_PER_SITE - 1}=1" in jar.header(f"https://h{(3 * MAX_PER_SITE - 1) % 2}.shop.example/")
    for number in range(MAX_COOKIES + 50):
        clock.advance(1)
        jar.take(f"https://shop{number}.example/", "a=1")
    assert len(jar) == MAX_COOKIES


def test_comes_back_from_bytes_as_it_was() -> None:
    jar = jar_with("a=1; Path=/; Max-Age=60; Secure", "b=2; Domain=shop.example")
    again = CookieJar.load(jar.dump(), clock=FakeClock(NOW))
    assert again.header(SHOP) == jar.header(SHOP) != ""
    assert again.dump() == jar.dump()
    assert len(CookieJar.load(b"")) == 0


def test_finds_the_registered_domain_of_a_host() -> None:
    assert site_of("www.shop.co.uk") == "shop.co.uk"
    assert site_of("x.mine.github.io") == "mine.github.io"
    assert site_of("127.0.0.1") == "127.0.0.1"
    assert site_of("localhost") == "localhost"
