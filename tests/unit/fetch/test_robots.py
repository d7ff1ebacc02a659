from __future__ import annotations

import re
import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.robots import Robots, RulesVerdict, compact, fetch_rules, product_token
from shoal.settings import Settings

AGENT = "shoal/0.1 (+https://pypi.org/project/shoal)"
SITE = "https://example.com"


def rules(text: str | bytes) -> Robots:
    return Robots(compact(text.encode() if isinstance(text, str) else text), AGENT)


def allows(text: str, path: str) -> bool:
    return rules(text).allows(SITE + path)


@pytest.mark.parametrize(
    ("agent", "token"),
    [
        (AGENT, "shoal"),
        ("MyBot", "mybot"),
        ("my-bot_2/3.1 shoal", "my-bot_2"),
        ("Mozilla/5.0 (compatible; FishBot/2.0; +https://a.example)", "fishbot"),
        ("Mozilla/5.0 (X11; Linux)", "mozilla"),
        ("", "*"),
        ("()", "*"),
    ],
)
def test_knows_its_own_name(agent: str, token: str) -> None:
    assert product_token(agent) == token


def test_obeys_the_group_for_everybody() -> None:
    text = "User-agent: *\nDisallow: /private/\nAllow: /private/open\n"
    assert not allows(text, "/private/x")
    assert allows(text, "/private/open/x")
    assert allows(text, "/public")
    assert allows(text, "/")


def test_its_own_group_replaces_the_one_for_everybody() -> None:
    text = "User-agent: *\nDisallow: /\n\nUser-agent: SHOAL\nDisallow: /mine\n"
    assert allows(text, "/x")
    assert not allows(text, "/mine")


def test_groups_with_its_name_are_one() -> None:
    text = "User-agent: shoal\nDisallow: /a\n\nUser-agent: x\nUser-agent: shoal/9.9\nDisallow: /b\n"
    assert not allows(text, "/a")
    assert not allows(text, "/b")


@pytest.mark.parametrize(
    "name",
    ["*WordPress*", "*shoal", "**", ".*", "", "other shoal", "sho", "shoalbot", "s", "not-shoal", "pypi", "https"],
)
def test_a_name_that_is_only_alike_is_another(name: str) -> None:
    assert allows(f"User-agent: {name}\nDisallow: /\n", "/x")


@pytest.mark.parametrize("name", ["*", "* ", "* # all", "*\t(everybody)", "shoal/2.0", "Shoal crawler", "SHOAL"])
def test_a_name_with_something_behind_it_is_still_the_name(name: str) -> None:
    assert not allows(f"User-agent: {name}\nDisallow: /\n", "/x")


def test_its_own_group_comes_before_everybodys_wherever_it_stands() -> None:
    text = "User-agent: shoal\nDisallow: /mine\n\nUser-agent: *\nDisallow: /\n\nUser-agent: shoal\nAllow: /mine/open\n"
    assert allows(text, "/x")
    assert not allows(text, "/mine/x")
    assert allows(text, "/mine/open")


def test_an_empty_disallow_allows_everything() -> None:
    assert rules("User-agent: *\nDisallow:\n").allows_all


def test_the_longest_match_wins_and_allow_wins_a_tie() -> None:
    assert allows("User-agent: *\nDisallow: /a/\nAllow: /a/b\n", "/a/b")
    assert not allows("User-agent: *\nAllow: /a/\nDisallow: /a/b\n", "/a/b")
    assert allows("User-agent: *\nDisallow: /a\nAllow: /a\n", "/a")


@pytest.mark.parametrize(
    ("allow", "disallow", "path"),
    [
        # As escapes these would be longer: ? & = and é must count once, or twice as octets.
        ("/a?b=", "/a*&&&&", "/a?b=&&&&"),
        ("/search?q=%23", "/search?q=%23", "/search?q=%23x"),
        ("/*?lang=", "/*/follow*", "/a/follow?lang=fr"),
        ("/é", "/é", "/%C3%A9"),
    ],
)
def test_the_length_is_that_of_the_pattern_as_written(allow: str, disallow: str, path: str) -> None:
    is_allowed_by_length = len(allow.encode()) >= len(disallow.encode())
    assert allows(f"User-agent: *\nAllow: {allow}\nDisallow: {disallow}\n", path) is is_allowed_by_length


def test_no_escape_makes_an_allow_longer_than_it_was_written() -> None:
    text = "User-agent: *\nAllow: /*?lang=\nDisallow: /*/likes/\n"
    assert not allows(text, "/joe/likes/?lang=fr")
    assert not allows("User-agent: *\nAllow: /a?b&c\nDisallow: /*?b&c=\n", "/a?b&c=1")


def test_wildcards_and_ends() -> None:
    text = "User-agent: *\nDisallow: /*.pdf$\nDisallow: /*?sort=\nDisallow: *secret\n"
    assert not allows(text, "/x/y.pdf")
    assert allows(text, "/x/y.pdf?download=1")
    assert not allows(text, "/list?sort=price")
    assert allows(text, "/list?page=2")
    assert not allows(text, "/my/secret/page")


def test_escapes_compare_equal() -> None:
    assert not allows("User-agent: *\nDisallow: /%7Ejoe\n", "/~joe/x")
    assert not allows("User-agent: *\nDisallow: /a%20b\n", "/a%20b")
    assert not allows("User-agent: *\nDisallow: /caf%c3%a9\n", "/caf%C3%A9")
    assert not allows("User-agent: *\nDisallow: /café\n", "/caf%C3%A9")


def test_an_escaped_reserved_character_is_another() -> None:
    assert allows("User-agent: *\nDisallow: /a%2Fb\n", "/a/b")
    assert not allows("User-agent: *\nDisallow: /a%2Fb\n", "/a%2fb")
    assert allows("User-agent: *\nDisallow: /a%3Fb\n", "/a?b")


def test_an_escaped_wildcard_is_that_character() -> None:
    text = "User-agent: *\nDisallow: /file-%2A.html\nDisallow: /cost-%24\n"
    assert not allows(text, "/file-*.html")
    assert allows(text, "/file-1.html")
    assert not allows(text, "/cost-$")
    assert allows(text, "/cost-")


def test_bytes_that_are_no_utf_8_are_compared_as_escapes() -> None:
    assert not rules(b"User-agent: *\nDisallow: /caf\xe9\n").allows(f"{SITE}/caf%E9")
    assert rules(b"User-agent: *\nDisallow: /caf\xe9\n").allows(f"{SITE}/caf%C3%A9")


def test_paths_are_case_sensitive_and_directives_are_not() -> None:
    assert allows("USER-AGENT: *\nDISALLOW: /A\n", "/a")
    assert not allows("USER-AGENT: *\nDISALLOW: /A\n", "/A")


def test_robots_txt_itself_may_always_be_fetched() -> None:
    assert allows("User-agent: *\nDisallow: /\n", "/robots.txt")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_ending_and_a_byte_order_mark(end: str) -> None:
    text = end.join(["\ufeffUser-agent: * # all", "Disallow: /a # comment", "# Disallow: /b", ""])
    assert not allows(text, "/a")
    assert allows(text, "/b")


def test_reads_the_crawl_delay_of_its_group() -> None:
    assert rules("User-agent: *\nCrawl-delay: 10\n").crawl_delay == 10.0
    assert rules("User-agent: *\nCrawl-delay: 10\n\nUser-agent: shoal\nCrawl-delay: 2.5\n").crawl_delay == 2.5
    assert rules("User-agent: x\nCrawl-delay: 10\n").crawl_delay is None


def test_a_crawl_delay_divides_no_group() -> None:
    robots = rules("User-agent: shoal\nCrawl-delay: 10\nUser-agent: x\nDisallow: /a\n")
    assert not robots.allows(f"{SITE}/a")
    assert robots.crawl_delay == 10.0
    assert rules("User-agent: x\nCrawl-delay: 10\nUser-agent: *\nDisallow: /a\n").crawl_delay is None


def test_a_crawl_delay_between_rules_divides_no_group() -> None:
    robots = rules("User-agent: *\nDisallow: /a\nCrawl-delay: 10\nDisallow: /b\n\nUser-agent: x\nDisallow: /c\n")
    assert [robots.allows(SITE + path) for path in ("/a", "/b", "/c")] == [False, False, True]


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [("1,5", 1.5), ("0.5", 0.5), (".5", 0.5), ("10s", 10.0), ("5 seconds", 5.0), ("7 # a week", 7.0)],
)
def test_reads_a_crawl_delay_as_people_write_it(delay: str, seconds: float) -> None:
    assert rules(f"User-agent: *\nCrawl-delay: {delay}\n").crawl_delay == seconds


def test_the_slowest_of_several_crawl_delays_holds() -> None:
    assert rules("User-agent: *\nCrawl-delay: 9\nDisallow: /a\n\nUser-agent: *\nCrawl-delay: 2\n").crawl_delay == 9.0


@pytest.mark.parametrize("delay", ["5m", "1.2.3", "1-5", "٣", "-1", "nan", "inf", "soon", "", "1e999"])
def test_ignores_a_crawl_delay_that_is_no_number(delay: str) -> None:
    assert rules(f"User-agent: *\nCrawl-delay: {delay}\n").crawl_delay is None


@pytest.mark.parametrize(
    "line", ["Noindex: /x", "Host: a.test", "Clean-param: ref /", "Request-rate: 1/5", "what is this"]
)
def test_a_line_that_shoal_does_not_know_divides_no_group(line: str) -> None:
    robots = rules(f"User-agent: shoal\n{line}\nUser-agent: x\n{line}\nDisallow: /a\n{line}\nDisallow: /b\n")
    assert [robots.allows(SITE + path) for path in ("/a", "/b", "/c")] == [False, False, True]


def test_a_pattern_may_hold_colons_and_a_line_may_lack_one() -> None:
    text = "User-agent: *\nDisallow: /a:b:c\nDisallow : /d\nDisallow /e\n"
    assert [allows(text, path) for path in ("/a:b:c", "/a:b", "/d", "/e")] == [False, True, False, False]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-8-sig"])
def test_reads_every_encoding_that_a_byte_order_mark_names(encoding: str) -> None:
    mark = "\ufeff" if encoding.startswith("utf-16-") else ""
    robots = rules(f"{mark}User-agent: *\r\nDisallow: /café\r\n".encode(encoding))
    assert not robots.allows(f"{SITE}/caf%C3%A9")
    assert robots.allows(f"{SITE}/other")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_long_file_is_cut_at_a_line_end(encoding: str, end: str) -> None:
    body = f"User-agent: *{end}Disallow: /first{end}Disallow: /second/part{end}".encode(encoding)
    whole = body.index("/second".encode(encoding)[-14:]) + len("/second/part") * (2 if encoding == "utf-16" else 1)
    for most in range(whole - 10, whole):
        robots = Robots(compact(body, most=most), AGENT)
        assert robots.allows(f"{SITE}/second/part")
        assert robots.allows(f"{SITE}/s")
        assert not robots.allows(f"{SITE}/first")
    assert not Robots(compact(body, most=whole), AGENT).allows(f"{SITE}/second/part")


@pytest.mark.parametrize("rule", ["/shop/{}/", "/*/shop-{}-*old", "/*-{}-", "/" + "long" * 600 + "{}/"])
def test_no_disallow_within_the_limit_is_dropped(rule: str) -> None:
    most = 512 * 1024
    lines = [f"Disallow: {rule.format(number)}" for number in range(30_000)]
    body = "\n".join(["User-agent: *", *lines]).encode()
    robots = Robots(compact(body, most=most), AGENT)
    last = body[: most + 1].count(b"\n") - 2
    for number in (0, 499, 501, 5001, last):
        path = rule.format(min(number, last)).replace("/*", "/x").replace("*", "-")
        assert not robots.allows(SITE + path)


def test_rules_that_an_older_release_put_on_a_lane_are_read() -> None:
    kept = b"user-agent:*\ndisallow:/a b\nallow:/a b/c\ncrawl-delay:3"
    robots = Robots(kept, AGENT)
    assert not robots.allows(f"{SITE}/a%20b")
    assert robots.allows(f"{SITE}/a%20b/c")
    assert robots.crawl_delay == 3.0


def test_a_sitemap_line_belongs_to_no_group_and_divides_none() -> None:
    robots = rules("User-agent: shoal\nSitemap: https://a/1.xml\nUser-agent: x\nDisallow: /a\n")
    assert not robots.allows(f"{SITE}/a")
    assert robots.allows(f"{SITE}/b")


def test_no_bytes_at_all_allow_everything() -> None:
    robots = Robots(b"", AGENT)
    assert robots.allows_all
    assert robots.allows(f"{SITE}/x")
    assert robots.crawl_delay is None


def test_what_lies_on_a_lane_means_the_same() -> None:
    text = b"# hello\nUser-agent: shoal # us\nDisallow: /a\nAllow: /a/b$\nCrawl-delay: 3\nHost: x\nSitemap: /s\n\n"
    kept = compact(text)
    assert len(kept) < len(text)
    assert compact(kept) == kept
    again = Robots(kept, AGENT)
    assert not again.allows(f"{SITE}/a/c")
    assert again.allows(f"{SITE}/a/b")
    assert again.crawl_delay == 3.0


def test_a_page_that_is_no_robots_txt_has_no_rules() -> None:
    assert compact(b"<!doctype html><html><title>Not found</title><p>a: b</p>") == b""


HOSTILE = {
    "binary": bytes(range(256)) * 2000,
    "nuls": b"User-agent: *\x00\nDisallow: /\x00private\n" + bytes(100_000),
    "one giant line": b"User-agent: *\nDisallow: /" + b"a" * 500_000,
    "giant wildcards": b"User-agent: *\n" + (b"Disallow: /" + b"*a" * 1000 + b"\n") * 250,
    "many rules": b"User-agent: *\n" + b"".join(b"Disallow: /p/%d/\n" % number for number in range(30_000)),
    "many wildcards": b"User-agent: *\n" + b"".join(b"Disallow: /*a*b*%d\n" % number for number in range(25_000)),
    "many agents": b"".join(b"User-agent: a%d\n" % number for number in range(30_000)) + b"Disallow: /\n" * 1000,
    "one agent again and again": b"User-agent: *\n" * 20_000 + b"Disallow: /p\n" * 15_000,
    "empty lines": b"\n" * 512_000,
    "colons": b":" * 512_000,
}


# A path that the rules disallow, of those that have rules for us within their limits.
DISALLOWED = {
    "nuls": "/private",
    "giant wildcards": "/" + "a" * 2000,
    "many rules": "/p/7/",
    "many wildcards": "/xaxbx7",
    "one agent again and again": "/p",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_robots_txt_costs_bounded_time_and_is_obeyed(name: str) -> None:
    started = time.process_time()
    robots = Robots(compact(HOSTILE[name], most=512 * 1024), AGENT)
    answers = {robots.allows(f"{SITE}/other/page/{number}?x={number}") for number in range(32)}
    assert time.process_time() - started < 3
    assert answers == {True}
    assert robots.allows(SITE + DISALLOWED.get(name, "/")) is (name not in DISALLOWED)


@given(st.binary(max_size=400))
def test_never_raises(body: bytes) -> None:
    robots = rules(body)
    assert isinstance(robots.allows(f"{SITE}/a%FFb?c"), bool)
    assert robots.crawl_delay is None or robots.crawl_delay >= 0
    assert compact(compact(body)) == compact(body)


PIECES = st.sampled_from(
    [
        "/",
        "x",
        "xy",
        "b",
        "é",
        ".",
        "?",
        "=",
        "~",
        "&",
        "%",
        "%7E",
        "%7e",
        "%2F",
        "%2f",
        "%20",
        " ",
        "|",
        "%7C",
        "[",
        "%5B",
        "%2A",
        "%24",
    ]
)
PATTERN = st.lists(PIECES | st.sampled_from(["*", "$"]), max_size=8).map(lambda pieces: "/" + "".join(pieces).rstrip())
PATH = st.lists(PIECES | st.sampled_from(["*", "$"]), max_size=10).map(lambda pieces: "/" + "".join(pieces))
UNRESERVED = re.compile("[A-Za-z0-9._~-]")


def octets(text: str) -> list[str]:
    """The octets of a path one by one, each in the one spelling in which RFC 9309 compares it."""
    raw = re.findall("%[0-9A-Fa-f]{2}|.", text.encode().decode("latin-1"), re.DOTALL)
    plain = [chr(int(one[1:], 16)) if len(one) == 3 else one for one in raw]
    return [
        char if UNRESERVED.match(char) or (char == one and char in "/:?#@!&'()+,;=") else f"%{ord(char):02x}"
        for one, char in zip(raw, plain, strict=True)
    ]


def fits(pattern: str, path: str) -> bool:
    has_end = pattern.endswith("$")
    parts = [octets(part) for part in pattern.removesuffix("$").split("*")]
    wanted = [one for part in parts for one in ["*", *part]][1:] + ([] if has_end else ["*"])
    given_octets = octets(path)

    @cache
    def rest_fits(at: int, position: int) -> bool:
        if at == len(wanted):
            return position == len(given_octets)
        if wanted[at] == "*":
            return any(rest_fits(at + 1, later) for later in range(position, len(given_octets) + 1))
        return position < len(given_octets) and wanted[at] == given_octets[position] and rest_fits(at + 1, position + 1)

    return rest_fits(0, 0)


def is_allowed(lines: list[tuple[bool, str]], path: str) -> bool:
    fitting = [(len(pattern.encode()), is_allow) for is_allow, pattern in lines if fits(pattern, path)]
    return path == "/robots.txt" or max(fitting, default=(0, True))[1]


@given(st.lists(st.tuples(st.booleans(), PATTERN), max_size=6), PATH, st.booleans())
def test_agrees_with_a_plain_reading_of_the_standard(lines: list[tuple[bool, str]], path: str, has_many: bool) -> None:
    if has_many:  # then wildcards are looked up in an index
        lines += [(False, f"/never{number}*here") for number in range(50)]
    text = "User-agent: *\n" + "".join(f"{'Allow' if allow else 'Disallow'}: {rule}\n" for allow, rule in lines)
    assert rules(text).allows(SITE + path) == is_allowed(lines, path)


class Scripted:
    """A fetcher that answers from a table and keeps what it was asked."""

    def __init__(self, **answers: Response | Fault) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.reserved: list[str] = []
        self.known: RulesVerdict | None = None

    async def fetch(self, request: Fetch) -> Response | Fault:
        self.asked.append(request.url)
        return self.answers[f"r{len(self.asked)}"] if "always" not in self.answers else self.answers["always"]

    async def close(self) -> None:
        pass

    async def reserve(self, url: str) -> RulesVerdict | None:
        self.reserved.append(url)
        return self.known

    async def rules(self, *, settings: Settings | None = None, failures: int = 0) -> RulesVerdict:
        return await fetch_rules(
            SITE, fetcher=self, settings=settings or Settings(), reserve=self.reserve, failures=failures
        )


def response(status: int, body: bytes = b"", **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(url=SITE, status=status, headers=named, body=body, wire_size=len(body), elapsed=0.0)


async def test_keeps_the_rules_for_a_day() -> None:
    site = Scripted(always=response(200, b"User-agent: *\nDisallow: /a\nCrawl-delay: 4\n"))
    verdict = await site.rules()
    assert site.asked == [f"{SITE}/robots.txt"]
    assert (verdict.seconds, verdict.crawl_delay, verdict.rest_seconds) == (86_400.0, 4.0, None)
    assert not Robots(verdict.rules, AGENT).allows(f"{SITE}/a")


async def test_reads_only_the_first_bytes() -> None:
    body = b"User-agent: *\nDisallow: /a\n" + b"#" * 1000 + b"\nDisallow: /late\n"
    verdict = await Scripted(always=response(200, body)).rules(settings=Settings(max_robots_bytes=500))
    assert Robots(verdict.rules, AGENT).allows(f"{SITE}/late")
    assert not Robots(verdict.rules, AGENT).allows(f"{SITE}/a")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
async def test_no_robots_txt_allows_everything_for_a_day(status: int) -> None:
    verdict = await Scripted(always=response(status, b"User-agent: *\nDisallow: /\n")).rules()
    assert (verdict.rules, verdict.seconds, verdict.rest_seconds) == (b"", 86_400.0, None)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_server_in_trouble_rests_the_lane(status: int) -> None:
    verdict = await Scripted(always=response(status)).rules()
    assert verdict.rest_seconds == 60.0
    assert verdict.problem == f"robots.txt: http_{status}"


async def test_the_rests_grow_up_to_an_hour() -> None:
    site = Scripted(always=response(503))
    rests = [(await site.rules(failures=failures)).rest_seconds for failures in (0, 1, 2, 5, 6, 1000)]
    assert rests == [60.0, 120.0, 240.0, 1920.0, 3600.0, 3600.0]


async def test_a_retry_after_lengthens_the_rest() -> None:
    assert (await Scripted(always=response(503, retry_after="600")).rules()).rest_seconds == 600.0
    assert (await Scripted(always=response(503, retry_after="999999999")).rules()).rest_seconds == 3600.0
    assert (await Scripted(always=response(503, retry_after="soon")).rules()).rest_seconds == 60.0


@pytest.mark.parametrize(
    "kind", [FaultKind.TIMEOUT_FIRST_BYTE, FaultKind.TRUNCATED, FaultKind.TOO_LARGE, FaultKind.LOCAL]
)
async def test_an_answer_that_cannot_be_read_rests_the_lane(kind: FaultKind) -> None:
    verdict = await Scripted(always=Fault(kind=kind, message="why")).rules()
    assert verdict.rest_seconds == 60.0
    assert verdict.problem == f"robots.txt: {kind.value}: why"


@pytest.mark.parametrize("kind", [FaultKind.DNS, FaultKind.CONNECT, FaultKind.REFUSED_ADDRESS, FaultKind.TLS])
async def test_a_host_out_of_reach_lets_its_tasks_fail_under_their_own_name(kind: FaultKind) -> None:
    verdict = await Scripted(always=Fault(kind=kind, message="why")).rules()
    assert verdict.rest_seconds is None
    assert (verdict.rules, verdict.seconds) == (b"", 30.0)


async def test_follows_redirects_each_in_its_hosts_pace() -> None:
    site = Scripted(
        r1=response(301, location="/other.txt"),
        r2=response(302, location="//www.example.com/robots.txt#x"),
        r3=response(200, b"User-agent: *\nDisallow: /a\n"),
    )
    verdict = await site.rules()
    assert site.asked[1:] == [f"{SITE}/other.txt", "https://www.example.com/robots.txt"]
    assert site.reserved == site.asked[1:]
    assert verdict.rules


async def test_follows_a_redirect_with_raw_bytes() -> None:
    site = Scripted(r1=response(301, location="/r\xc3\xa8gles.txt"), r2=response(200, b"User-agent: *\nDisallow: /a\n"))
    verdict = await site.rules()
    assert site.asked[1:] == [f"{SITE}/r%C3%A8gles.txt"]
    assert verdict.rules


async def test_stops_after_five_redirects_and_allows_everything() -> None:
    site = Scripted(always=response(302, location="/again"))
    verdict = await site.rules()
    assert len(site.asked) == 6
    assert len(site.reserved) == 5
    assert (verdict.rules, verdict.seconds) == (b"", 86_400.0)


async def test_a_hop_whose_verdict_is_known_is_not_made() -> None:
    site = Scripted(always=response(302, location="https://www.example.com/robots.txt"))
    site.known = RulesVerdict(rest_seconds=99.0)
    assert (await site.rules()) is site.known
    assert (len(site.asked), len(site.reserved)) == (1, 1)


@pytest.mark.parametrize(
    "location", ["", "file:///etc/passwd", "javascript:1", "http://[", "ftp://a/", "https://me:word@b.test/", "//me@b/"]
)
async def test_a_redirect_to_nowhere_allows_everything(location: str) -> None:
    site = Scripted(always=response(302, location=location))
    assert (await site.rules()).rules == b""
    assert len(site.asked) == 1


def test_reads_patterns_that_differ_in_their_end_alone() -> None:
    robots = Robots(compact(b"User-agent: *\nDisallow: /a*b*c$\nDisallow: /a*b***"), "shoal")
    assert not robots.allows("https://a.test/axbx")


def test_what_a_hostile_file_leaves_no_time_to_try_is_forbidden_and_nothing_is_allowed_by_it() -> None:
    many = "".join(f"*aaaaaaZ{number}\n" for number in range(9_000)).splitlines()
    slow, long = f"{SITE}/" + "a" * 2000, f"{SITE}/private/" + "a" * 2000
    forbids = Robots("\n".join(["user-agent:*", *(f"disallow:{pattern}" for pattern in many)]).encode(), "shoal")
    assert not forbids.allows(slow)
    assert forbids.allows(f"{SITE}/aaaaaa"), "a usual path is tried on all patterns"
    assert not forbids.allows(f"{SITE}/aaaaaaZ8999")
    allows = ["user-agent:*", "disallow:/private", *(f"allow:{pattern}" for pattern in many)]
    assert not Robots("\n".join(allows).encode(), "shoal").allows(long)
    assert Robots("\n".join([*allows, "allow:/private/aaaaa"]).encode(), "shoal").allows(long)
