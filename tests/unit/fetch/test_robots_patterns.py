"""Patterns of robots.txt: which of them fit a path, which of them wins, and what hostile ones cost."""

from __future__ import annotations

import re
import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from robots_text import AGENT, SITE, allows, rules

from shoal.fetch.robots import Robots, compact


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
