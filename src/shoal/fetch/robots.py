"""robots.txt by RFC 9309: which group is ours, which URLs it allows, and what a missing answer means."""

from __future__ import annotations

import codecs
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Literal

import ada_url
import msgspec

from shoal.fetch.base import REDIRECTS, Fault, FaultKind, Fetch, Fetcher, Response, location_of
from shoal.fetch.robots_patterns import Patterns, comparable
from shoal.settings.table import Settings

MAX_HOPS: Final = 5
RULE_BYTES: Final = 600  # memory of a compiled rule, without its text
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
    "crawl delay": "crawl-delay",
}
_PRODUCT: Final = re.compile(r"[A-Za-z0-9_-]+")
_COMPATIBLE: Final = re.compile(r"compatible;\s*([A-Za-z0-9_-]+)")
_EVERYBODY: Final = re.compile(r"\*(?!\S)")
# With a comma as some write it, and with its unit.
_DELAY: Final = re.compile(r"(\d+(?:[.,]\d*)?|[.,]\d+)\s*(?:s|secs?|seconds?)?\.?", re.ASCII | re.IGNORECASE)
_BYTE_ORDERS: Final = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


# The rules on the lane of a host that never gave any: nothing is allowed, for a while.
UNAVAILABLE: Final = b"user-agent:*\ndisallow:/\nunavailable:"


class Robots:
    """The rules of one host for one user agent, as `compact` gives them. No bytes at all: everything is allowed."""

    def __init__(self, rules: bytes, user_agent: str) -> None:
        lines = _select(rules, product_token(user_agent))
        self._disallowed = Patterns(
            (value for field, value in lines if field == "disallow" and value), fits_in_doubt=True
        )
        self._allowed = Patterns((value for field, value in lines if field == "allow" and value), fits_in_doubt=False)
        delays = [delay for field, value in lines if field == "crawl-delay" and (delay := _delay(value)) is not None]
        self.crawl_delay: float | None = max(delays, default=None)  # seconds between starts that the host asks for
        self.are_unavailable = rules == UNAVAILABLE
        self.weight = RULE_BYTES + sum(RULE_BYTES + len(value) for _, value in lines)
        self.allows_all = not self._disallowed.count

    def allows(self, url: str) -> bool:
        """Whether this URL, given in canonical form, may be fetched. The longest pattern decides; of equals, Allow."""
        if self.allows_all:
            return True
        slash = url.find("/", 8)
        path = url[slash:] if slash > 0 else "/"
        if not self._disallowed.may_fit(path):
            return True
        path = comparable(path)
        length = self._disallowed.longest(path)
        return length < 0 or self._allowed.longest(path) >= length or path == "/robots.txt"


class RulesVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a host: rules that are valid for `seconds`, or a rest before asking again. `problem` says why.

    `shortage`: the host was not asked, because this machine lacks something."""

    rules: bytes = b""
    seconds: float = 0.0
    rest_seconds: float | None = None
    crawl_delay: float | None = None
    problem: str = ""
    shortage: str = ""


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


def compact(body: bytes, *, most: int | None = None) -> bytes:
    """A robots.txt as a lane keeps it: the directives that shoal knows, without comments. Of a file with more than
    `most` bytes the whole lines among the first `most`."""
    lines = list(_directives(_whole_lines(body, most)))
    if all(field == "user-agent" for field, _ in lines):
        return b""
    return "\n".join(f"{field}:{value}" for field, value in lines).encode("utf-8", "surrogateescape")


def _whole_lines(body: bytes, most: int | None) -> bytes:
    """The text in UTF-8, without a byte order mark."""
    encoding = next((encoding for mark, encoding in _BYTE_ORDERS if body.startswith(mark)), None)
    text = body
    if most is not None and len(body) > most:
        # One character more: if it is a line end, the line before it is whole.
        text = body[: most + (2 if encoding else 1)]
    if encoding:
        text = text.decode(encoding, "ignore").encode("utf-8", "replace")
    if most is not None and len(body) > most:
        text = text[: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1]
    return text.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"")


def _directives(text: bytes) -> Iterator[tuple[Field, str]]:
    for line in text.splitlines():
        # Bytes that are no UTF-8 are kept: a URL may hold them, too, as escapes.
        said = line.partition(b"#")[0].decode("utf-8", "surrogateescape")
        name, colon, value = said.partition(":")
        field = _FIELDS.get(name.strip().lower()) if colon else None
        if field is None and len(words := said.split()) == 2:  # without its colon
            field, value = _FIELDS.get(words[0].lower()), words[1]
        if field is not None:
            yield field, value.strip()


def _select(rules: bytes, token: str) -> list[tuple[Field, str]]:
    """The lines of our groups; if there are none, of the groups for all user agents."""
    groups: dict[str, list[tuple[Field, str]]] = {}
    current: dict[str, list[tuple[Field, str]]] = {}
    is_naming = False
    for field, value in _directives(rules):
        if field == "user-agent":
            current = current if is_naming else {}
            is_naming = True
            named = _named(value)
            if named in (token, "*"):
                current[named] = groups.setdefault(named, [])
            continue
        # A Crawl-delay is for the names before it, but only rules end the list of a group's names.
        is_naming = is_naming and field == "crawl-delay"
        for group in current.values():
            group.append((field, value))
    return groups.get(token, groups.get("*", []))


def _named(value: str) -> str:
    """The product token that a User-agent line names; none for *Name*, which is no name of ours, nor everybody's."""
    if _EVERYBODY.match(value):
        return "*"
    name = _PRODUCT.match(value)
    return name[0].lower() if name else ""


def _delay(value: str) -> float | None:
    number = _DELAY.fullmatch(value)
    return float(number[1].replace(",", ".")) if number else None


def _after_answer(answer: Response, settings: Settings, failures: int) -> RulesVerdict:
    status = answer.status
    if 200 <= status < 300:
        rules = compact(answer.body, most=settings.max_robots_bytes)
        delay = Robots(rules, settings.user_agent).crawl_delay
        return RulesVerdict(rules=rules, seconds=settings.robots_seconds, crawl_delay=delay)
    if status < 500 and status != 429:
        return _allow_all(settings, f"robots.txt: http_{status}")
    asked = answer.headers.get("retry-after", "")[:9]
    # A Retry-After with a date is not read: rests grow with each failure anyway.
    rest = max(_rest(failures), min(float(asked), settings.max_rest_seconds) if asked.isdecimal() else 0.0)
    return RulesVerdict(rest_seconds=rest, problem=f"robots.txt: http_{status}")


def _after_fault(fault: Fault, failures: int) -> RulesVerdict:
    if fault.kind is FaultKind.SHORTAGE:
        return RulesVerdict(shortage=fault.message)
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
