"""Which canonical URLs belong to a crawl: scope, deny patterns, limits against traps, and the shapes of URLs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from shoal.errors import SettingError
from shoal.settings.table import Settings

REASONS = {
    "invalid_url": "it is not a URL that a browser could follow",
    "scheme": "it is neither http nor https",
    "credentials": "it contains a user name or password, which shoal never sends from a link",
    "url_too_long": "it has more characters than max_url_length",
    "path_too_deep": "its path has more segments than max_path_segments, as endless folders do",
    "path_repeats": "it repeats one path segment more often than max_segment_repeats, as loops of relative links do",
    "out_of_scope": "it is not in allow (by default: the host of its page, and the hosts of the start URLs)",
    "denied": "it matches a pattern of deny",
    "depth": "it is more links away from a start URL than max_depth",
    "too_many_links": "its page had more links than max_links, and it was beyond them",
    "robots": "the host's robots.txt disallows it",
    "robots_unavailable": "its host's robots.txt could not be read, so nothing is fetched from it for now",
    "merged": "it is another spelling of a known URL: escapes, order of parameters, tracking, or what same_page names",
    "max_pages": "the crawl had already accepted max_pages tasks",
    "max_per_host": "the crawl had already accepted max_per_host tasks for its host",
    "max_per_shape": "the crawl had already accepted max_per_shape tasks for URLs of its shape on this host",
    "too_many_kinds": "its kind is new, and the crawl had 16 kinds of tasks already",
    "facets": "its path has more sets of parameter names than max_facets, and its set is not among the first",
    "equal_pages": "the last max_equal_pages pages of its shape or lane had no new content, so it was not fetched",
    "duplicate": "it was already known to the crawl",
    "bad_sitemap": "it is a sitemap or feed that could not be read in full",
    "sitemap_entry": "it is an entry of a sitemap, feed or list without a usable URL",
    "sitemap_chain": "it is a sitemap nested too deep in other sitemaps",
    "redirect_loop": "its redirects form a circle, or are more than max_redirects",
}

# The setting to raise, by the reason of the limit that rejected URLs.
RAISED_BY = {
    "url_too_long": "max_url_length",
    "path_too_deep": "max_path_segments",
    "path_repeats": "max_segment_repeats",
    "depth": "max_depth",
    "too_many_links": "max_links",
    "max_pages": "max_pages",
    "max_per_host": "max_per_host",
    "max_per_shape": "max_per_shape",
    "facets": "max_facets",
    "equal_pages": "max_equal_pages",
}

_REMEMBERED = 20_000
_PATHS_REMEMBERED = 5_000
_LONGEST_REMEMBERED = 200
_NAMES_KEPT = 3
_DIGITS = re.compile(r"\d+")
_NUMBER = re.compile(r"[\d.,:_-]*\d[\d.,:_-]*(?:\.[A-Za-z]{2,5})?")
_PLAIN = re.compile(r"[A-Za-z]{0,16}|[A-Za-z]{1,12}[-_.]?0")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes (whole, or by suffix) and URL prefixes that belong to a crawl."""

    everything: bool = False
    lanes: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    def covers_lane(self, lane: str) -> bool:
        """Whether every URL of the lane belongs to the crawl. If not, a prefix may still cover some of them."""
        return self.everything or lane in self.lanes or lane.endswith(self.suffixes)

    def covers(self, url: str, lane: str) -> bool:
        """Whether this URL belongs to the crawl."""
        return self.covers_lane(lane) or url.startswith(self.prefixes)


class Limits:
    """The rules for a single canonical URL."""

    def __init__(self, settings: Settings) -> None:
        self._segments = settings.max_path_segments
        self._repeats = settings.max_segment_repeats
        self._denied = [_compile(pattern) for pattern in settings.deny]

    def broken_by(self, url: str, path: str) -> str | None:
        """The first rule that rejects the URL; None: none does."""
        slashes = path.count("/")
        if slashes > self._segments and slashes - path.endswith("/") > self._segments:
            return "path_too_deep"
        if slashes > self._repeats and _most_repeated(path) > self._repeats:
            return "path_repeats"
        for search in self._denied:
            if search(url):
                return "denied"
        return None


class Facets:
    """Rejects the endless URLs of faceted lists, which any combination of parameters narrows.

    A faceted list is a path with many different sets of parameter names. The first `limit` sets are accepted. Each
    worker counts for itself."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sets: dict[int, set[int]] = {}

    def refuse(self, path: str, parameters: Sequence[str]) -> bool:
        """Whether these parameters are a set beyond the limit. path: with its lane."""
        if not self._limit:
            return False
        if len(self._sets) >= _PATHS_REMEMBERED:
            self._sets.clear()
        known = self._sets.setdefault(hash(path), set())
        names = hash(frozenset(_names(parameters)))
        if names in known:
            return False
        if len(known) >= self._limit:
            return True
        known.add(names)
        return False


class Shapes:
    """Fingerprints that similar URLs share, so that `max_per_shape` limits a trap.

    A number becomes 0, the last name of a path and any name of several words become s, parameters count by name only:
    /calendar/2026/05/12 is /calendar/0/0/0, /shop/blue-shirt?size=m is /shop/s?size. All sets of more than three
    parameters are one shape: else each combination of facets would have its own.
    """

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def of(self, lane: str, path: str, parameters: Sequence[str]) -> int:
        """The shape of a canonical path on a lane; the parameters are pieces of the query, name=value."""
        cut = path.rfind("/", 0, -1) + 1
        text = lane + self._folder(path[:cut]) + _fold_last(path[cut:])
        if parameters:
            text += _fold_parameters(parameters)
        number = self._numbers.get(text)
        if number is None:
            number = fingerprint(text)
            _remember(self._numbers, text, number)
        return number

    def _folder(self, folder: str) -> str:
        folded = self._folders.get(folder)
        if folded is None:
            folded = "/".join(map(_fold, folder.split("/")))
            _remember(self._folders, folder, folded)
        return folded


def fingerprint(text: str, extra: bytes = b"") -> int:
    """A signed 64-bit hash of the text. Stored in frontiers: it must never change."""
    digest = blake2b(text.encode("utf-8", "surrogatepass") + extra, digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _compile(pattern: str) -> Callable[[str], object]:
    try:
        return re.compile(pattern).search
    except (re.error, OverflowError, RecursionError) as error:
        raise SettingError(f"deny pattern {pattern!r} is not a regular expression: {error}") from None


def _most_repeated(path: str) -> int:
    segments = path[1:].split("/")
    distinct = set(segments)
    if len(distinct) == len(segments):
        return 1
    return max(map(segments.count, distinct))


def _fold(segment: str) -> str:
    if ";" in segment:
        return _fold(segment.partition(";")[0]) + ";"
    if _NUMBER.fullmatch(segment):
        return "0"
    folded = _DIGITS.sub("0", segment)
    return folded if _PLAIN.fullmatch(folded) else "s"


def _fold_last(segment: str) -> str:
    name = segment.removesuffix("/")
    end = segment[len(name) :]
    if ";" in name:
        name = name.partition(";")[0]
        end = ";" + end
    if not name:
        return end
    return ("0" if _NUMBER.fullmatch(name) else "s") + end


def _fold_parameters(parameters: Sequence[str]) -> str:
    names = _names(parameters)
    return "?*" if len(names) > _NAMES_KEPT else "?" + "&".join(sorted(names))


def _names(parameters: Sequence[str]) -> set[str]:
    # A piece without "=" is a value such as ?20260512: its text must not make a shape of its own.
    pairs = (parameter.partition("=") for parameter in parameters)
    return {_DIGITS.sub("0", name) if equals else "" for name, equals, _ in pairs}


def _remember(memo: dict[str, Any], name: str, value: Any) -> None:
    if len(memo) >= _REMEMBERED:
        memo.clear()
    if len(name) <= _LONGEST_REMEMBERED:
        memo[name] = value
