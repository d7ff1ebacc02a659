from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from robots_text import AGENT, SITE, allows, rules

from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.robots import Robots, RulesVerdict, compact, fetch_rules, product_token
from shoal.settings.table import Settings


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


@given(st.binary(max_size=400))
def test_never_raises(body: bytes) -> None:
    robots = rules(body)
    assert isinstance(robots.allows(f"{SITE}/a%FFb?c"), bool)
    assert robots.crawl_delay is None or robots.crawl_delay >= 0
    assert compact(compact(body)) == compact(body)


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


async def test_what_this_machine_lacks_says_nothing_about_a_hosts_rules() -> None:
    verdict = await Scripted(always=Fault(kind=FaultKind.SHORTAGE, message="Too many open files")).rules()
    assert (verdict.shortage, verdict.rest_seconds, verdict.seconds, verdict.problem) == (
        "Too many open files",
        None,
        0.0,
        "",
    )


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
