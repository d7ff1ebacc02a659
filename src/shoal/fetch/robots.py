"""robots.txt by RFC 9309: which group is ours, which URLs it allows, and what a missing answer means."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Literal
from urllib.parse import unquote

import ada_url
import msgspec
from protego import Protego

from shoal.fetch.base import REDIRECTS, Fault, FaultKind, Fetch, Fetcher, Response, location_of
from shoal.settings import Settings

MAX_HOPS: Final = 5
MAX_LINE: Final = 2048
MAX_PLAIN_RULES: Final = 5_000
MAX_WILDCARD_RULES: Final = 500  # each is matched by itself
LINE_BYTES: Final = 600  # memory of a parsed line, without its text
REST_SECONDS: Final = 60.0
LONGEST_REST: Final = 3600.0
UNREACHABLE_SECONDS: Final = 30.0

Field = Literal["user-agent", "allow", "disallow", "crawl-delay"]

_FIELDS: Final[dict[str, Field]] = {
    "user-agent": "user-agent",
    "useragent": "user-agent",
    "user agent": "user-agent",
    "allow": "allow",
    "disallow": "disallow",
    # Common misspellings.
    "dissallow": "disallow",
    "dissalow": "disallow",
    "disalow": "disallow",
    "diasllow": "disallow",
    "disallaw": "disallow",
    "crawl-delay": "crawl-delay",
    "crawldelay": "crawl-delay",
}
_PRODUCT: Final = re.compile(r"[A-Za-z0-9_-]+")
_COMPATIBLE: Final = re.compile(r"compatible;\s*([A-Za-z0-9_-]+)")
_LINE_BREAK: Final = re.compile(r"[\r\n]+")


# The rules on the lane of a host that never gave any: nothing is allowed, for a while.
UNAVAILABLE: Final = b"user-agent:*\ndisallow:/\nunavailable:"


class Robots:
    """The rules of one host for one user agent, as `compact` gives them. No bytes at all: everything is allowed.

    Cheap to ask: for most URLs a look at their beginning tells that no rule concerns them."""

    def __init__(self, rules: bytes, user_agent: str) -> None:
        lines = _select(rules, product_token(user_agent))
        self._parsed = Protego.parse("\n".join(["User-agent: *", *lines]))
        self._heads, self._fragments = _outlines(lines)
        self.are_unavailable = rules == UNAVAILABLE
        self.weight = LINE_BYTES + sum(LINE_BYTES + len(line) for line in lines)
        self.allows_all = not (self._heads or self._fragments)

    def allows(self, url: str) -> bool:
        """Whether this URL, given in canonical form, may be fetched."""
        if self.allows_all:
            return True
        if "%" not in url:
            path = url[url.find("/", 8) :]
            if not path.startswith(self._heads) and not any(fragment in path for fragment in self._fragments):
                return True
        return bool(self._parsed.can_fetch(url, "*"))

    @property
    def crawl_delay(self) -> float | None:
        """Seconds between starts that the host asks for."""
        delay = self._parsed.crawl_delay("*")
        return None if delay is None else float(delay)


class RulesVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a host: rules that are valid for `seconds`, or a rest before asking again. `problem` says why."""

    rules: bytes = b""
    seconds: float = 0.0
    rest_seconds: float | None = None
    crawl_delay: float | None = None
    problem: str = ""


async def fetch_rules(
    origin: str,
    *,
    fetcher: Fetcher,
    settings: Settings,
    reserve: Callable[[str], Awaitable[RulesVerdict | None]],
    failures: int = 0,
) -> RulesVerdict:
    """Ask a host for its rules. `reserve(url)` waits for the start slot of each hop after the first, or gives a
    verdict that needs no hop."""
    url = f"{origin.rstrip('/')}/robots.txt"
    for hop in range(MAX_HOPS + 1):
        if hop and (known := await reserve(url)) is not None:
            return known
        answer = await fetcher.fetch(Fetch(url=url))
        if isinstance(answer, Fault):
            return _after_fault(answer, failures)
        if answer.status not in REDIRECTS:
            return _after_answer(answer, settings, failures)
        following = _target(url, location_of(answer.headers))
        if following is None:
            return _allow_all(settings, "robots.txt redirects to nowhere")
        url = following
    return _allow_all(settings, f"robots.txt redirects more than {MAX_HOPS} times")


def product_token(user_agent: str) -> str:
    """The name that robots.txt files use for us: "shoal/0.1 (+https://…)" is "shoal"."""
    name = _PRODUCT.search(user_agent)
    if name is None:
        return "*"
    claimed = _COMPATIBLE.search(user_agent) if name[0].lower() == "mozilla" else None
    return (claimed[1] if claimed else name[0]).lower()


def compact(body: bytes) -> bytes:
    """A robots.txt as a lane keeps it: the directives that shoal knows, without comments."""
    lines = list(_directives(body))
    if all(field == "user-agent" for field, _ in lines):
        return b""
    return "\n".join(f"{field}:{value}" for field, value in lines).encode()


def _directives(body: bytes) -> Iterator[tuple[Field, str]]:
    text = body.decode("utf-8", "replace").removeprefix("\ufeff").replace("\x00", "")
    for line in _LINE_BREAK.split(text):
        name, colon, value = line.partition("#")[0].partition(":")
        field = _FIELDS.get(name.strip().lower()) if colon else None
        # A pattern longer than any URL matches nothing; cut short it would match too much.
        if field is not None and len(line) <= MAX_LINE:
            yield field, " ".join(value.split())


def _select(rules: bytes, token: str) -> list[str]:
    """The lines of our groups; if there are none, of the groups for all user agents."""
    groups: dict[str, list[str]] = {}
    current: dict[str, list[str]] = {}
    is_naming = False
    for field, value in _directives(rules):
        if field == "user-agent":
            current = current if is_naming else {}
            is_naming = True
            named = _named(value)
            if named in (token, "*"):
                current[named] = groups.setdefault(named, [])
        else:
            is_naming = False
            for group in current.values():
                group.append(f"{field}: {value}")
    return _capped(groups.get(token, groups.get("*", [])))


def _named(value: str) -> str:
    name = _PRODUCT.match(value)
    return name[0].lower() if name else value[:1]


def _capped(lines: list[str]) -> list[str]:
    kept: list[str] = []
    plain = wildcards = 0
    for line in lines:
        is_wildcard = "*" in line
        plain, wildcards = plain + (not is_wildcard), wildcards + is_wildcard
        if (wildcards <= MAX_WILDCARD_RULES) if is_wildcard else (plain <= MAX_PLAIN_RULES):
            kept.append(line)
    return kept


def _outlines(lines: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts that a URL without escapes must begin with, or contain, for any Disallow to concern it."""
    heads: set[str] = set()
    fragments: set[str] = set()
    for line in lines:
        field, _, value = line.partition(": ")
        if field != "disallow" or not value:
            continue
        parts = [unquote(part) for part in value.removesuffix("$").split("*")]
        longest = max(parts, key=len)
        if len(parts) == 1 or longest == parts[0]:
            heads.add(parts[0] if parts[0].startswith("/") else f"/{parts[0]}")
        else:
            fragments.add(longest)
    return tuple(heads), tuple(fragments)


def _after_answer(answer: Response, settings: Settings, failures: int) -> RulesVerdict:
    status = answer.status
    if 200 <= status < 300:
        rules = compact(answer.body[: settings.max_robots_bytes])
        delay = Robots(rules, settings.user_agent).crawl_delay
        return RulesVerdict(rules=rules, seconds=settings.robots_seconds, crawl_delay=delay)
    if status < 500 and status != 429:
        return _allow_all(settings, f"robots.txt: http_{status}")
    asked = answer.headers.get("retry-after", "")[:9]
    # A Retry-After with a date is not read: rests grow with each failure anyway.
    rest = max(_rest(failures), min(float(asked), settings.max_rest_seconds) if asked.isdecimal() else 0.0)
    return RulesVerdict(rest_seconds=rest, problem=f"robots.txt: http_{status}")


def _after_fault(fault: Fault, failures: int) -> RulesVerdict:
    problem = f"robots.txt: {fault.kind}: {fault.message}"
    if fault.kind in _OUT_OF_REACH:
        return RulesVerdict(seconds=UNREACHABLE_SECONDS, problem=problem)
    return RulesVerdict(rest_seconds=_rest(failures), problem=problem)


# Nothing can be fetched from such a host, so empty rules allow nothing that matters. With them its tasks end, each with
# the fault as its reason, instead of waiting for rules that never come.
_OUT_OF_REACH: Final = frozenset(
    {
        FaultKind.BAD_URL,
        FaultKind.CONNECT,
        FaultKind.DNS,
        FaultKind.REFUSED_ADDRESS,
        FaultKind.TIMEOUT_CONNECT,
        FaultKind.TLS,
    }
)


def _rest(failures: int) -> float:
    return min(REST_SECONDS * 2.0 ** min(failures, 10), LONGEST_REST)


def _allow_all(settings: Settings, problem: str) -> RulesVerdict:
    return RulesVerdict(seconds=settings.robots_seconds, problem=problem)


def _target(url: str, location: str) -> str | None:
    try:
        target = ada_url.URL(location, base=url) if location else None
    except ValueError:
        return None
    if target is None or target.protocol not in ("http:", "https:") or target.username or target.password:
        return None
    return target.href.partition("#")[0]
