"""robots.txt by RFC 9309: fetching it, the group for our user agent, and matching URLs against its patterns.

Matching is fast for any number of patterns: plain ones are found by bisection, those with wildcards by four letters
that a path must contain; each takes at most one pass over the path. In a file that would still take too long, untried
Disallow patterns count as matching and untried Allow patterns do not.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, Literal, NamedTuple

import ada_url
import msgspec

from shoal.fetch.base import REDIRECTS, Fault, FaultKind, Fetch, Fetcher, Response, location_of
from shoal.settings.table import Settings

_GRAM: Final = 4
_FEW: Final = 40  # up to so many fragments are searched one by one
# Letters to match wildcard patterns against: 2,000 patterns on the longest path, all of any real file on a usual one.
# It takes some 20 ms.
_MOST_TRIED: Final = 4_000_000

_UNRESERVED: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
# Compared as written. Of the other reserved characters, [ ] cannot occur in a path or query, and * $ have a meaning in
# a pattern: both their spellings are equal.
_PLAIN: Final = _UNRESERVED + "/:?#@!&'()+,;="
_ODD: Final = re.compile(f"%[0-9A-Fa-f]{{2}}|[^{re.escape(_PLAIN)}]")
_SPELLED: Final = {f"%{byte:02X}": chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in range(256)}

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
# Also with a decimal comma, and with a unit.
_DELAY: Final = re.compile(r"(\d+(?:[.,]\d*)?|[.,]\d+)\s*(?:s|secs?|seconds?)?\.?", re.ASCII | re.IGNORECASE)
_BYTE_ORDERS: Final = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


# The rules of a host whose robots.txt could never be read: nothing is allowed, for a while.
UNAVAILABLE: Final = b"user-agent:*\ndisallow:/\nunavailable:"


class Robots:
    """The rules of one host for one user agent, from the output of `compact`. Empty: everything is allowed."""

    def __init__(self, rules: bytes, user_agent: str) -> None:
        lines = _select(rules, product_token(user_agent))
        self._disallowed = Patterns(
            (value for field, value in lines if field == "disallow" and value), fits_in_doubt=True
        )
        self._allowed = Patterns((value for field, value in lines if field == "allow" and value), fits_in_doubt=False)
        delays = [delay for field, value in lines if field == "crawl-delay" and (delay := _delay(value)) is not None]
        self.crawl_delay: float | None = max(delays, default=None)  # seconds between requests
        self.are_unavailable = rules == UNAVAILABLE
        self.weight = RULE_BYTES + sum(RULE_BYTES + len(value) for _, value in lines)
        self.allows_all = not self._disallowed.count

    def allows(self, url: str) -> bool:
        """Whether this canonical URL may be fetched. The longest matching pattern decides; of equals, Allow."""
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
    """The result of fetching robots.txt: rules that are valid for `seconds`, or `rest_seconds` before a retry.

    - `problem`: why there are no rules
    - `shortage`: the shortage of this machine that prevented the request
    """

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
    """Fetch the robots.txt of an origin.

    reserve: waits for the start slot of each redirect, or returns known rules instead."""
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
    """The name of a user agent in robots.txt files: that of "shoal/0.1 (+https://…)" is "shoal"."""
    name = _PRODUCT.search(user_agent)
    if name is None:
        return "*"
    claimed = _COMPATIBLE.search(user_agent) if name[0].lower() == "mozilla" else None
    return (claimed[1] if claimed else name[0]).lower()


def compact(body: bytes, *, most: int | None = None) -> bytes:
    """A robots.txt as it is kept on a lane: the known directives without comments. Of a longer file, the whole lines in
    the first `most` bytes."""
    lines = list(_directives(_whole_lines(body, most)))
    if all(field == "user-agent" for field, _ in lines):
        return b""
    return "\n".join(f"{field}:{value}" for field, value in lines).encode("utf-8", "surrogateescape")


def _whole_lines(body: bytes, most: int | None) -> bytes:
    """The text in UTF-8 without a byte order mark, cut after a whole line."""
    encoding = next((encoding for mark, encoding in _BYTE_ORDERS if body.startswith(mark)), None)
    text = body
    if most is not None and len(body) > most:
        # One character more: if it is a line end, the last line is whole.
        text = body[: most + (2 if encoding else 1)]
    if encoding:
        text = text.decode(encoding, "ignore").encode("utf-8", "replace")
    if most is not None and len(body) > most:
        text = text[: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1]
    return text.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"")


def _directives(text: bytes) -> Iterator[tuple[Field, str]]:
    for line in text.splitlines():
        # Bytes that are no UTF-8 are kept: a URL may contain them as escapes.
        said = line.partition(b"#")[0].decode("utf-8", "surrogateescape")
        name, colon, value = said.partition(":")
        field = _FIELDS.get(name.strip().lower()) if colon else None
        if field is None and len(words := said.split()) == 2:  # without its colon
            field, value = _FIELDS.get(words[0].lower()), words[1]
        if field is not None:
            yield field, value.strip()


def _select(rules: bytes, token: str) -> list[tuple[Field, str]]:
    """The lines of our groups; without any, those of the groups for all user agents."""
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
        # A Crawl-delay holds for the names before it, but only rules end the list of a group's names.
        is_naming = is_naming and field == "crawl-delay"
        for group in current.values():
            group.append((field, value))
    return groups.get(token, groups.get("*", []))


def _named(value: str) -> str:
    """The product token of a User-agent line, or "*"; empty for *Name*, which matches neither us nor everybody."""
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
    # A Retry-After with a date is ignored: rests grow with each failure anyway.
    rest = max(_rest(failures), min(float(asked), settings.max_rest_seconds) if asked.isdecimal() else 0.0)
    return RulesVerdict(rest_seconds=rest, problem=f"robots.txt: http_{status}")


def _after_fault(fault: Fault, failures: int) -> RulesVerdict:
    if fault.kind is FaultKind.SHORTAGE:
        return RulesVerdict(shortage=fault.message)
    problem = f"robots.txt: {fault.kind}: {fault.message}"
    if fault.kind in _OUT_OF_REACH:
        return RulesVerdict(seconds=UNREACHABLE_SECONDS, problem=problem)
    return RulesVerdict(rest_seconds=_rest(failures), problem=problem)


# Such a host cannot be fetched from at all. With empty rules its tasks end, each with the fault as its reason, instead
# of waiting for rules that never come.
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


def comparable(text: str) -> str:
    """A path in the form that RFC 9309 compares: unreserved characters plain, reserved ones as written, others
    escaped."""
    if not _ODD.search(text):
        return text
    if not text.isascii():
        text = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return _ODD.sub(_spelled, text)


class Patterns:
    """The patterns of all Allow lines, or of all Disallow lines, of a group.

    fits_in_doubt: whether a pattern that there is no time to try counts as matching."""

    def __init__(self, written: Iterable[str], *, fits_in_doubt: bool) -> None:
        self._fits_in_doubt = fits_in_doubt
        prefixes: dict[str, int] = {}
        wilds: list[_Wild] = []
        self._wholes: dict[str, int] = {}
        for pattern in set(written):
            length = len(pattern.encode("utf-8", "surrogateescape"))
            parts, has_end = _taken_apart(pattern)
            if len(parts) > 1:
                wilds.append(_wild(parts, length=length, has_end=has_end))
            else:
                _raise(self._wholes if has_end else prefixes, parts[0], length)
        self._prefixes = _Prefixes(prefixes)
        self._wilds = sorted(wilds, key=lambda wild: -wild.length)
        self._fragments = tuple({wild.fragment for wild in wilds})
        self._by_gram = _indexed(self._wilds) if len(self._fragments) > _FEW else None
        self.count = len(prefixes) + len(self._wholes) + len(wilds)
        heads = (*prefixes, *self._wholes)
        is_short = len(heads) + len(self._fragments) <= _FEW and not any(
            "%" in text for text in heads + self._fragments
        )
        self._heads = heads if is_short else None

    def may_fit(self, path: str) -> bool:
        """Whether a pattern may match this path of a canonical URL; fast. False is certain."""
        # Without escapes in path and patterns, the path need not be converted to its comparable form.
        if self._heads is None or "%" in path:
            return True
        return path.startswith(self._heads) or any(map(path.__contains__, self._fragments))

    def longest(self, path: str) -> int:
        """The length, as written, of the longest pattern that matches this comparable path; -1: none."""
        found = max(self._prefixes.longest(path), self._wholes.get(path, -1))
        most = _MOST_TRIED // len(path)
        for number, wild in enumerate(self._candidates(path)):
            if wild.length <= found:
                break
            if number >= most:
                return wild.length if self._fits_in_doubt else found
            if _fits(wild, path):
                return wild.length
        return found

    def _candidates(self, path: str) -> Iterable[_Wild]:
        """The wildcard patterns that may match, longest first."""
        if self._by_gram is None:
            return self._wilds if any(map(path.__contains__, self._fragments)) else ()
        grams = {path[start : start + _GRAM] for start in range(len(path) - _GRAM + 1)}
        hits = set(self._by_gram[""]).union(*(self._by_gram[gram] for gram in self._by_gram.keys() & grams))
        return (self._wilds[index] for index in sorted(hits))


class _Prefixes:
    """Finds patterns that are prefixes of a path, by bisection: the last one before it in order, or its prefixes."""

    def __init__(self, lengths: dict[str, int]) -> None:
        self._sorted = sorted(lengths)
        self._parents: list[int] = []
        self._longest: list[int] = []
        open_ones: list[int] = []
        for index, prefix in enumerate(self._sorted):
            while open_ones and not prefix.startswith(self._sorted[open_ones[-1]]):
                open_ones.pop()
            parent = open_ones[-1] if open_ones else -1
            self._parents.append(parent)
            # A path that starts with a prefix starts with the prefix's prefixes, too.
            self._longest.append(max(lengths[prefix], self._longest[parent] if open_ones else -1))
            open_ones.append(index)

    def longest(self, path: str) -> int:
        index = bisect_right(self._sorted, path) - 1
        while index >= 0:
            if path.startswith(self._sorted[index]):
                return self._longest[index]
            index = self._parents[index]
        return -1


class _Wild(NamedTuple):
    """A pattern with wildcards: the path must have its parts in this order. `fragment`: the longest part."""

    length: int
    head: str
    middle: tuple[str, ...]
    tail: str | None  # the end of the path, if the pattern ends with $
    fragment: str


def _wild(parts: list[str], *, length: int, has_end: bool) -> _Wild:
    middle = parts[1:-1] if has_end else parts[1:]
    return _Wild(
        length=length,
        head=parts[0],
        middle=tuple(part for part in middle if part),
        tail=parts[-1] if has_end else None,
        fragment=max(parts, key=len),
    )


def _fits(wild: _Wild, path: str) -> bool:
    if not path.startswith(wild.head):
        return False
    at = len(wild.head)
    for part in wild.middle:
        at = path.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return wild.tail is None or (path.endswith(wild.tail) and len(path) - len(wild.tail) >= at)


def _taken_apart(pattern: str) -> tuple[list[str], bool]:
    """The texts between the wildcards in comparable form, and whether the path must end with the last one."""
    if pattern[:1] not in ("/", "*"):
        pattern = "/" + pattern
    has_end = pattern.endswith("$")
    pattern = pattern.removesuffix("$")
    if pattern.endswith("*"):
        has_end = False
        pattern = pattern.rstrip("*")
    return [comparable(part) for part in pattern.split("*")], has_end


def _indexed(wilds: list[_Wild]) -> dict[str, list[int]]:
    """The indexes of patterns by the first letters of their fragments; "": the fragment is too short."""
    by_gram: dict[str, list[int]] = {"": []}
    for index, wild in enumerate(wilds):
        gram = wild.fragment[:_GRAM] if len(wild.fragment) >= _GRAM else ""
        by_gram.setdefault(gram, []).append(index)
    return by_gram


def _raise(lengths: dict[str, int], text: str, length: int) -> None:
    lengths[text] = max(length, lengths.get(text, -1))


def _spelled(found: re.Match[str]) -> str:
    text = found[0]
    return _SPELLED[text.upper()] if len(text) == 3 else f"%{ord(text):02X}"
