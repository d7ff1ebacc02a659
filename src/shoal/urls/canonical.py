"""URLs as shoal sees them: canonical form, key, lane, and the rules that reject a URL.

Canonical form (fetched): WHATWG parsing, no fragment, no default port, no dot segments, escapes in upper case, escaped
unreserved characters plain. Key form (compared, so that a page has one key in all its spellings): the same with the
query sorted by name, without tracking parameters and session ids, and with one spelling where there are two.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Iterable, Sequence
from typing import cast

import msgspec
from ada_url import join_url

from shoal.errors import SettingError, UsageError
from shoal.settings.table import MIB, TRACKING_PARAMETERS, SamePage, Settings
from shoal.text.secrets import masked_text
from shoal.urls.link_memo import WEB, Link, LinkBase, Memo, name_of, names_of
from shoal.urls.scope import REASONS, Facets, Limits, Scope, Shapes, fingerprint

__all__ = [
    "MOST_SPELLINGS",
    "REASONS",
    "Link",
    "UrlRules",
    "canonical",
    "fingerprint",
    "key_of",
    "lane_of",
    "named_key",
    "origin_of",
    "read_scope",
    "spelling_names",
    "spelling_turn",
]

MOST_SPELLINGS = 3
_MEMO_BYTES = 16 * MIB
_ENTRY_BYTES = 280  # a Link, its numbers and its entries in the memo, without the two texts
_ORIGIN_BYTES = 400
_LONGEST_HREF = 65_536  # a longer one is not parsed
_SHOWN = 200  # characters of an unusable href that messages show
_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"

_CREDENTIALS = re.compile(r"//[^/?#]*@")

_SCHEME = re.compile(r"[\x00-\x20]*([A-Za-z][A-Za-z0-9+.-]*):")
_NO_PAGE = re.compile(r"[\x00-\x20]*(?:(?:javascript|mailto|tel|data|sms|about|blob):|#|$)", re.IGNORECASE)
_UNTIDY_ESCAPE = re.compile(
    r"%(?:[0-9A-Fa-f][a-f]|[a-f][0-9A-F]|2[DE]|3[0-9]|[46][1-9A-F]|[57][0-9A]|5F|7E)",
)
# A path that no parser would change: no escapes, no empty or dot segments.
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9_~.-]*+)++/?")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_PLAIN_ESCAPES = {f"%{byte:02X}": chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in range(256)}
_BASE = re.compile(r"(https?://[^/?#\\@\x00-\x20]+)(/(?:[^?#\\\x00-\x20]*/)?)([^/?#\\\x00-\x20]*)(?:\?[^#\x00-\x20]*)?")

# Session ids that are no parameter of a known name: ;jsessionid=1A2B, /(S(1a2b))/, and a long sid=.
_SESSION = re.compile(
    r";jsessionid=[^/?;]*|/\([A-Z]\([0-9A-Za-z_-]{16,}\)\)(?=/)|(?<=[?&])sid=[0-9A-Za-z,-]{20,}(?=&|$)", re.IGNORECASE
)
# Characters that browsers leave plain and other programs escape: [ \ ] ^ ` { | }
_TWO_SPELLINGS = re.compile(r"%(?:5[BCDE]|60|7[BCD])")
_PLAIN = {f"%{ord(char):02X}": char for char in "[\\]^`{|}"}
_INDEX = re.compile(r"/(?:index\.(?:html?|php|aspx?|jsp|shtml|cfm)|default\.(?:html?|aspx?))$", re.IGNORECASE)
_NAME = operator.itemgetter(0)
_KEY = operator.attrgetter("key")


class KeyForms:
    """Makes key forms: canonical forms without the parts that do not change the page."""

    def __init__(self, strip: Sequence[str], *, same_page: Sequence[SamePage] = ()) -> None:
        patterns = [one_spelling(pattern, is_query=True) for pattern in strip]
        self._names = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
        self._prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
        self._strips_sessions = "jsessionid" in self._names
        self._merges_index = "index" in same_page
        self._merges_slash = "trailing_slash" in same_page
        self.merges_paths = self._merges_index or self._merges_slash

    def of(self, url: str, slash: int = 8) -> tuple[str, str, list[str]]:
        """The key form of a canonical URL, its path, and the sorted parameters left in its query."""
        slash = url.index("/", slash)
        if self._strips_sessions and (";" in url or "/(" in url or "sid=" in url):
            url = url[:slash] + _SESSION.sub("", url[slash:])
        question = url.find("?", slash)
        path = url[slash:] if question < 0 else url[slash:question]
        form = url if question < 0 else url[:question]
        if self.merges_paths or "%" in path:
            form = self._path_form(form, path)
        if question < 0:
            return form, path, []
        parameters = self._parameters(url[question + 1 :])
        if parameters:
            form += "?" + "&".join(parameters)
        return form, path, parameters

    def _parameters(self, query: str) -> list[str]:
        if "%" in query:
            query = one_spelling(query, is_query=True)
        named = [(piece.partition("=")[0], piece) for piece in query.split("&") if piece]
        kept = [pair for pair in named if pair[0] not in self._names and not pair[0].startswith(self._prefixes)]
        kept.sort(key=_NAME)
        return [piece for _, piece in kept]

    def _path_form(self, url: str, path: str) -> str:
        """The key form of a URL without its query."""
        origin = url[: -len(path)]
        path = one_spelling(path)
        if self._merges_index:
            path = _INDEX.sub("/", path)
        if self._merges_slash and path != "/":
            path = path.removesuffix("/")
        return origin + path


def one_spelling(text: str, *, is_query: bool = False) -> str:
    """A part of a canonical URL with one spelling of [ ] { } | and the like; in a query also of a space."""
    if is_query:
        text = text.replace("%20", "+")
    return _TWO_SPELLINGS.sub(lambda escape: _PLAIN[escape[0]], text)


def canonical(url: str) -> str:
    """The canonical form of a URL that a person typed. Raises UsageError."""
    text = url.strip()
    form = _form(text, "")
    if form is None:
        raise UsageError(_what_is_wrong(text))
    if "@" in lane_of(form):
        raise UsageError(f"{_without_credentials(form)} was given with a user name or password: take it out of the URL")
    return form


def lane_of(url: str) -> str:
    """The lane of a canonical URL: its host, and its port unless that is the scheme's default."""
    start = url.index("//") + 2
    return url[start : url.index("/", start)]


def origin_of(url: str) -> str:
    """The scheme, host and port of a canonical URL, without a slash at the end."""
    return url[: url.index("/", 8)]


def key_of(
    url: str, *, method: str = "GET", body: bytes | None = None, strip: Sequence[str] = TRACKING_PARAMETERS
) -> int:
    """The key of a canonical URL, with its method and body unless it is a plain GET."""
    return _key(KeyForms(strip).of(url)[0], method, body)


def named_key(name: str) -> int:
    """The key of a task that has a name instead of its URL, method and body: `Request(key=name)`."""
    return fingerprint(f"key:{name}")


def spelling_names(key: int, url: str) -> list[str]:
    """Key names for a spelling of a page that a redirect led to: one each for the first, second and third spelling.

    A redirect to another spelling needs a task beside the page's own; a circle of spellings must end."""
    return [f"{key} spelled {turn} {url}" for turn in range(1, MOST_SPELLINGS + 1)]


def spelling_turn(task_key: int, *, key: int, url: str) -> int | None:
    """Which spelling of the page with this key the task is: 0: the first one; None: the task is of another page."""
    if task_key == key:
        return 0
    keys = map(named_key, spelling_names(key, url))
    return next((turn for turn, spelled in enumerate(keys, start=1) if spelled == task_key), None)


def read_scope(allow: Iterable[str], *, start_hosts: Iterable[str] = ()) -> Scope:
    """The scope of the setting `allow`; without entries, the lanes of the start URLs."""
    lanes, suffixes, prefixes = set(), [], []
    entries = list(allow)
    for entry in entries:
        if "://" in entry:
            prefixes.append(_prefix(entry))
        elif entry.startswith("."):
            host = _host(entry, entry[1:])
            lanes.add(host)
            suffixes.append("." + host)
        elif entry != "*":
            lanes.add(_host(entry, entry))
    return Scope(
        everything="*" in entries,
        lanes=frozenset(lanes if entries else start_hosts),
        suffixes=tuple(suffixes),
        prefixes=tuple(prefixes),
    )


class UrlRules:
    """Resolves hrefs to links. Built once per worker; the same href on the same page always has the same link."""

    def __init__(
        self,
        settings: Settings,
        *,
        start_hosts: Iterable[str] = (),
        memo_bytes: int = _MEMO_BYTES,
    ) -> None:
        self._scope = read_scope(settings.allow, start_hosts=start_hosts)
        self._is_open = not settings.allow
        self._limits = Limits(settings)
        self._shapes = Shapes()
        self._facets = Facets(settings.max_facets)
        self._key_forms = KeyForms(settings.strip_parameters, same_page=settings.same_page)
        self._longest = settings.max_url_length
        self._memo_bytes = self._room = memo_bytes
        self._memos: dict[str, Memo] = {}
        self._lanes: dict[str, str] = {}
        self._link_base = self._use_base("")

    def resolve(self, href: str, base: str = "") -> Link:
        """The link of an href on the page `base`. Never raises."""
        link_base = self._link_base
        if link_base.given != base:
            link_base = self._use_base(base)
        return link_base.memo.links.get(href) or self._find(href, link_base) or self._link(href, link_base.base)

    def resolve_page(self, href: str, base: str) -> Link | None:
        """Like `resolve`, but None for an href that leads to no other page (#top, mailto:)."""
        link_base = self._link_base
        if link_base.given != base:
            link_base = self._use_base(base)
        return link_base.memo.links.get(href) or self._find(href, link_base)

    def resolve_all(self, hrefs: Iterable[str], base: str) -> list[Link]:
        """The links of one page, each key once, in order, without hrefs that lead to no other page (#top, mailto:)."""
        link_base = self._link_base
        if link_base.given != base:
            link_base = self._use_base(base)
        unique = dict.fromkeys(hrefs)
        known = list(map(link_base.memo.links.get, unique))
        if all(known):
            links = cast("list[Link]", known)
        else:
            relative = [href for href, hit in zip(unique, known, strict=True) if hit is None]
            named = dict(zip(relative, map(link_base.memo.links.get, names_of(relative, link_base)), strict=True))
            pairs = zip(unique, known, strict=True)
            links = [link for href, hit in pairs if (link := hit or named[href] or self._find(href, link_base))]
        by_key = dict(zip(map(_KEY, links), links, strict=True))
        return links if len(by_key) == len(links) else _first_of_each_key(links)

    def sort_out(self, hrefs: Iterable[str], base: str) -> tuple[dict[int, str], list[Link]]:
        """The links of one page: the keys of plain links with an href for each, in any order, and the other links.

        Most links of most pages are plain and known: each costs two look-ups."""
        link_base = self._link_base
        if link_base.given != base:
            link_base = self._use_base(base)
        unique = dict.fromkeys(hrefs)
        hits = list(map(link_base.memo.keys.get, unique))
        # Reversed, so that of several hrefs with one key the first is kept.
        plain = dict(zip(reversed(hits), reversed(unique), strict=True))
        others: list[Link] = []
        if None in plain:
            del plain[None]
            relative = [href for href, hit in zip(unique, hits, strict=True) if hit is None]
            hits = list(map(link_base.memo.keys.get, names_of(relative, link_base)))
            plain = dict(zip(reversed(hits), reversed(relative), strict=True)) | plain
            if None in plain:
                del plain[None]
                self._sort_new([href for href, hit in zip(relative, hits, strict=True) if hit is None], plain, others)
        return cast("dict[int, str]", plain), others

    def _sort_new(self, hrefs: list[str], plain: dict[int | None, str], others: list[Link]) -> None:
        """Sort out hrefs that the memo does not have as plain links, on the page of the current base."""
        for href in hrefs:
            link = self._find(href, self._link_base)
            if link is not None and link.is_plain:
                plain.setdefault(link.key, href)
            elif link is not None:
                others.append(link)

    def plain_keys(self, urls: Sequence[str], base: str) -> list[int | None]:
        """The key of each URL, in order; None if its link is not plain."""
        link_base = self._link_base
        if link_base.given != base:
            link_base = self._use_base(base)
        keys = list(map(link_base.memo.keys.get, urls))
        if None in keys:
            for index in [index for index, key in enumerate(keys) if key is None]:
                link = self.resolve(urls[index], base)
                if link.is_plain:
                    keys[index] = link.key
        return keys

    def key_of(self, url: str, *, method: str = "GET", body: bytes | None = None) -> int:
        """The key of a canonical URL under these settings."""
        return _key(self._key_forms.of(url)[0], method, body)

    def check(self, url: str) -> str | None:
        """The reason why the URL would be rejected, one of REASONS; None: it would not."""
        return self._link(url, "").rejected

    def _use_base(self, given: str) -> LinkBase:
        base = given
        parts = _BASE.fullmatch(base)
        if parts is None or "/." in base or "/%" in base:  # perhaps dot segments
            base = _form(given, "") or ""
            parts = _BASE.fullmatch(base)
        if parts is None:
            link_base = LinkBase(given, base, base, "", "", self._memo_of(base))
        else:
            origin, folder, name = parts.groups()
            # Rooted, //folder/x would be a host: relative hrefs are not remembered there.
            page = folder + name if not folder.startswith("//") else ""
            link_base = LinkBase(given, base, origin, folder if page else "", page, self._memo_of(origin))
        self._link_base = link_base
        return link_base

    def _memo_of(self, origin: str) -> Memo:
        memo = self._memos.get(origin)
        if memo is None:
            self._room -= _ORIGIN_BYTES + len(origin)
            if self._room < 0:
                self._forget()
            memo = self._memos[origin] = Memo()
        return memo

    def _forget(self) -> None:
        self._memos.clear()
        self._lanes.clear()
        self._room = self._memo_bytes

    def _find(self, href: str, link_base: LinkBase) -> Link | None:
        name = name_of(href, link_base)
        if not name:
            return None if _NO_PAGE.match(href) else self._link(href, link_base.base)
        link = link_base.memo.links.get(name)
        if link is None:
            link = link_base.memo.links.get(link_base.other_name(name))
            if link is None:
                link = self._link(href, link_base.base, plain=self._plain_form(name, link_base))
            self._keep(name, link, link_base)
        return link

    def _keep(self, name: str, link: Link, link_base: LinkBase) -> None:
        self._room -= _ENTRY_BYTES + sys.getsizeof(name) + sys.getsizeof(link.url)
        if self._room < 0:
            self._forget()
            link_base.memo.clear()
            self._memos[link_base.origin] = link_base.memo
        link_base.memo.links[name] = link
        if link.is_plain:
            link_base.memo.keys[name] = link.key

    def _plain_form(self, name: str, link_base: LinkBase) -> str | None:
        """The canonical form of a simple path, without the parser, which is a third of the cost of a new link."""
        rooted = name.removeprefix(link_base.origin)
        # The origins in `_lanes` are canonical: they are parts of canonical URLs.
        if link_base.origin in self._lanes and len(rooted) < self._longest and _PLAIN_PATH.fullmatch(rooted):
            return link_base.origin + rooted
        return None

    def _link(self, href: str, base: str, *, plain: str | None = None) -> Link:
        if len(href) > _LONGEST_HREF:
            return _unusable(href, "url_too_long")
        url = plain or _form(href, base)
        if url is None:
            return _unusable(href, _why_no_form(href))
        if len(url) > self._longest:
            return _unusable(url, "url_too_long")
        slash = url.index("/", 8)
        origin = url[:slash]
        if "@" in origin:
            return msgspec.structs.replace(self._link(_without_credentials(url), ""), rejected="credentials")
        lane = self._lanes.get(origin)
        if lane is None:
            lane = self._lanes[origin] = lane_of(url)
            self._room -= _ORIGIN_BYTES
        parameters: list[str] = []
        if plain and not self._key_forms.merges_paths:
            form, path = url, url[slash:]
        else:
            form, path, parameters = self._key_forms.of(url, slash)
        reason = self._limits.broken_by(url, path)
        if reason is None and not self._scope.covers(url, lane) and not self._stays_on_host(lane, base):
            reason = "out_of_scope"
        if reason is None and parameters and self._facets.refuse(lane + path, parameters):
            reason = "facets"
        shape = self._shapes.of(lane, path, parameters)
        return Link(url, fingerprint(form), lane, shape, form != url, reason)

    def _stays_on_host(self, lane: str, base: str) -> bool:
        """Whether the link is in scope without `allow`: the page's own host always is, also after a redirect."""
        return self._is_open and base != "" and lane_of(base) == lane


def _first_of_each_key(links: list[Link]) -> list[Link]:
    by_key: dict[int, Link] = {}
    for link in links:
        by_key.setdefault(link.key, link)
    return list(by_key.values())


def _form(href: str, base: str) -> str | None:
    """The canonical form, with user name and password; None for a URL that is neither http nor https."""
    try:
        url = join_url(base, href) if base else join_url(href, "")
    except ValueError:
        return None
    if not url.startswith(WEB):
        return None
    if "#" in url:
        url = url[: url.index("#")]
    return _tidy(url) if "%" in url else url


def _tidy(url: str) -> str:
    # After a stray %, decoding could make a new escape: %%37E.
    if not _UNTIDY_ESCAPE.search(url) or _BROKEN_ESCAPE.search(url):
        return url
    return _ESCAPE.sub(lambda escape: _PLAIN_ESCAPES[escape[0].upper()], url)


def _key(form: str, method: str, body: bytes | None) -> int:
    method = method.upper()
    if method == "GET" and not body:
        return fingerprint(form)
    return fingerprint(f"{form}\n{method}\n", body or b"")


def _unusable(href: str, reason: str) -> Link:
    shown = _CREDENTIALS.sub("//", href[:_SHOWN].encode("utf-8", "replace").decode().replace("\0", "�"))
    return Link(shown, fingerprint(href), "", 0, False, reason)


def _why_no_form(href: str) -> str:
    scheme = _SCHEME.match(href)
    return "scheme" if scheme and scheme[1].lower() not in ("http", "https") else "invalid_url"


def _without_credentials(url: str) -> str:
    start = url.index("//") + 2
    return url[:start] + url[url.rindex("@", start, url.index("/", start)) + 1 :]


def _what_is_wrong(url: str) -> str:
    shown = repr(masked_text(url)[:_SHOWN])
    if not url:
        return "a URL is empty: write one like https://example.com/"
    guess = _form("https://" + url, "")
    if guess and "://" not in url and "@" not in guess and url.isprintable():
        return f"{shown} has no scheme: did you mean https://{url[:_SHOWN]}?"
    if _why_no_form(url) == "scheme":
        return f"{shown} is neither http nor https, and shoal fetches nothing else"
    return f"{shown} is not a valid URL: write one like https://example.com/"


def _host(entry: str, text: str) -> str:
    form = _form(f"https://{text}/" if text.endswith(":443") else f"http://{text}/", "")
    if form is None or "*" in text or "@" in text or form.count("/") != 3 or not form.endswith("/"):
        raise SettingError(
            f"allow entry {entry!r} is not understood: write a host (example.com), a host with its subdomains"
            " (.example.com), a URL prefix (https://example.com/docs/) or *"
        )
    return lane_of(form)


def _prefix(entry: str) -> str:
    try:
        return canonical(entry)
    except UsageError as error:
        raise SettingError(f"allow entry {entry!r} is not usable: {error}") from None
