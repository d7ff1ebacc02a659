"""A handler's argument: one fetched page, parsed on first use."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NoReturn
from xml.etree import ElementTree

import msgspec
from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

from shoal.errors import UsageError
from shoal.fetch.base import Response
from shoal.model import Task
from shoal.spider.element import Element, all_matches, first_match, folded, refuse_url
from shoal.spider.follow import HREFS, Follow, listed
from shoal.spider.markup import MarkupLimits, check_markup, parse_xml
from shoal.spider.spider import handler_name
from shoal.urls.canonical import UrlRules, lane_of
from shoal.urls.charset import charset_of, text_of
from shoal.urls.queries import with_query_in

HEAD_BYTES = 8192
LONGEST_REASON = 500
DEFAULT_LIMITS = MarkupLimits()
ALL_LINKS = "a[href]"


class TurnedAway(Exception):  # noqa: N818 -- reads as what happened
    """Raised by `page.blocked()` and `page.logged_out()` to end the handler: the site did not send the real page.

    The page is retried, even if the handler catches this.

    - `kind`: "blocked" or "logged_out"
    """

    def __init__(self, kind: Literal["blocked", "logged_out"], reason: str) -> None:
        # In one line: the reason is often a text of the page itself.
        reason = " ".join(reason[:LONGEST_REASON].split())
        super().__init__(f"{kind}: {reason}" if reason else kind)
        self.kind = kind


class Page:
    """A fetched page; parsed on first use.

    - `meta`: the `meta` of the page's request, or an empty dict
    """

    __slots__ = (
        "_base",
        "_encoding",
        "_hrefs",
        "_limits",
        "_resolver",
        "_tree",
        "follows",
        "meta",
        "response",
        "task",
        "turned_away",
        "unused_follows",
    )

    def __init__(
        self, response: Response, *, task: Task, resolver: UrlRules, limits: MarkupLimits = DEFAULT_LIMITS
    ) -> None:
        self.response = response
        self.task = task
        self.turned_away: TurnedAway | None = None
        # Evaluated selectors of `follow`, and whether they found a link. Unused: neither yielded nor iterated.
        self.follows: list[tuple[str, bool]] = []
        self.unused_follows: list[str] = []
        self.meta: dict[str, Any] = dict(task.meta) if task.meta else {}
        self._resolver = resolver
        self._limits = limits
        self._tree: LexborHTMLParser | None = None
        self._encoding: str | None = None
        self._base: str | None = None
        # The last selector and its hrefs, as handlers often use links twice. None once the handler has nodes of the
        # tree, which it may change.
        self._hrefs: tuple[str, list[str]] | None = ("", [])

    @property
    def url(self) -> str:
        """The URL of the page in canonical form."""
        return self.response.url

    @property
    def status(self) -> int:
        """The HTTP status: 2xx, or one of the setting `handle_statuses`."""
        return self.response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The response headers; names in lower case, bytes beyond ASCII read as Latin-1."""
        return self.response.headers

    @property
    def body(self) -> bytes:
        """The response body, decompressed."""
        return self.response.body

    @property
    def screenshot(self) -> bytes:
        """The screenshot of a rendered page as PNG; empty without `Render(screenshot=True)`."""
        return self.response.screenshot

    @property
    def depth(self) -> int:
        """The number of links from a start URL to the page."""
        return self.task.depth

    @property
    def content_type(self) -> str:
        """The media type without parameters, such as "text/html"; empty if the site sent none."""
        return self.response.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def encoding(self) -> str:
        """The page's charset by its byte order mark, header or document, else guessed from its bytes.

        The name is that of the Encoding Standard, in lower case. Read text from `content`: Python's codecs differ."""
        if self._encoding is None:
            self._encoding = charset_of(self.body, self.response.headers.get("content-type"))
        return self._encoding

    @property
    def content(self) -> str:
        """The whole body as text; undecodable bytes are replaced by �."""
        return text_of(self.body, self.encoding)

    @property
    def is_html(self) -> bool:
        """Whether the content type is HTML; without a type, whether the page begins with "<"."""
        kind = self.content_type
        if kind:
            return kind in ("text/html", "application/xhtml+xml")
        return self.body[:512].lstrip()[:1] == b"<"

    def json(self) -> Any:
        """The body as JSON; raises ValueError if it is not."""
        try:
            return msgspec.json.decode(self._utf8().removeprefix(codecs.BOM_UTF8))
        except RecursionError:
            raise ValueError("not usable JSON: nested too deep") from None

    def xml(self) -> ElementTree.Element:
        """The body as XML; raises ValueError if it is not, or if it declares entities."""
        return parse_xml(self._utf8().removeprefix(codecs.BOM_UTF8).lstrip())

    @property
    def tree(self) -> LexborHTMLParser:
        """The parsed document (selectolax), for anything without a method here.

        Raises ValueError for a document that would take too long to parse; so do `css`, `text` and the like."""
        self._hrefs = None
        return self.parsed()

    def parsed(self) -> LexborHTMLParser:
        """The parsed document, not to be changed. For shoal itself."""
        if self._tree is None:
            markup = self._utf8()
            check_markup(markup, self._limits)
            # Without events: the copies a browser makes of chosen options cost the square of their number.
            self._tree = LexborHTMLParser(markup, options=LexborDocumentOptions.WO_EVENTS.value)
        return self._tree

    def css(self, selector: str) -> list[Element]:
        """All elements that match the CSS selector."""
        return [Element(node) for node in all_matches(self.tree, selector)]

    def text(self, selector: str | None = None, default: str = "") -> str:
        """The text of the first match, white space folded; `default` if none; without a selector, all text."""
        if selector is None:
            return self._whole_text()
        node = first_match(self.parsed(), selector)
        return default if node is None else folded(node)

    def attr(self, selector: str, name: str, default: str = "") -> str:
        """An attribute of the first match; `default` if there is no match, or it lacks the attribute."""
        node = first_match(self.parsed(), selector)
        value = None if node is None else node.attrs.get(name)
        return default if value is None else value

    def links(self, selector: str = ALL_LINKS) -> list[str]:
        """The absolute URLs of the matching links, each once, in page order."""
        return self.absolute(self.hrefs(selector))

    def absolute(self, hrefs: list[str]) -> list[str]:
        """The hrefs as absolute canonical URLs, each once; other schemes than http and https are left out."""
        return [link.url for link in self._resolver.resolve_all(self.encoded(hrefs), self.base) if link.lane]

    def first_absolute(self, hrefs: list[str]) -> str:
        """The first URL of `absolute`, for hrefs with encoded queries; empty if none. For shoal itself."""
        resolve, base = self._resolver.resolve_page, self.base
        return next((link.url for href in hrefs if (link := resolve(href, base)) and link.lane), "")

    def hrefs(self, selector: str = ALL_LINKS) -> list[str]:
        """The href attributes of the matching elements, as written in the page."""
        kept = self._hrefs
        if kept is not None and kept[0] == selector:
            return kept[1].copy()
        # Finding elements by name costs half of a selector.
        nodes = self.parsed().tags("a") if selector == ALL_LINKS else all_matches(self.parsed(), selector)
        # `attributes` would make a dict of all, at three times the cost of `attrs`.
        hrefs = [href for node in nodes if (href := node.attrs.get("href"))]
        if kept is not None:
            self._hrefs = selector, hrefs.copy()
        return hrefs

    def encoded(self, hrefs: list[str]) -> list[str]:
        """The hrefs with their queries in the page's charset, as browsers send them.

        For shoal itself: handlers use `follow` and `absolute`."""
        if self._encoding == "utf-8" or all(map(str.isascii, hrefs)):
            return hrefs
        return [with_query_in(href, self.encoding) for href in hrefs]

    @property
    def base(self) -> str:
        """The base URL of relative links: that of the page's <base>, else the page's own."""
        if self._base is None:
            self._base = self._find_base()
        return self._base

    def _find_base(self) -> str:
        # Most pages have no <base>: search the first bytes (also in UTF-16) before parsing.
        head = self.body[:HEAD_BYTES].lower()
        if b"<base" not in head and b"<\0b\0a\0s\0e" not in head:
            return self.url
        href = self.attr("base[href]", "href")
        link = self._resolver.resolve(href, self.url)
        return link.url if link.lane else self.url

    def rooted(self, hrefs: list[str]) -> tuple[list[str], str]:
        """The hrefs and the URL to resolve them against, so that the scope depends on the page's own host.

        For shoal itself: handlers use `follow` and `absolute`."""
        hrefs = self.encoded(hrefs)
        base = self.base
        if base is self.url or lane_of(base) == lane_of(self.url):
            return hrefs, base
        # The default scope includes the host of the base URL: a <base> must not choose it.
        found = [(href, link) for href in hrefs for link in self._resolver.resolve_all([href], base)]
        return [link.url if link.lane and link.rejected != "credentials" else href for href, link in found], self.url

    def follow(
        self,
        selector: str | Element | Iterable[str | Element] = ALL_LINKS,
        handler: Handler | str | None = None,
        *,
        url: str | Element | Iterable[str | Element] | msgspec.UnsetType | None = msgspec.UNSET,
        **options: Any,
    ) -> Follow:
        """Requests for links of the page; yield the result from a handler.

        `selector` is a CSS selector, an element, or a list of elements and hrefs. `url` is an href or a list of hrefs
        instead; empty or None follows nothing, so `url=page.attr("li.next a", "href")` ends on the last page. `handler`
        gets the pages; default: `parse`. `options` are those of `Request`. Links are searched only when the result is
        yielded or iterated."""
        if url is not msgspec.UNSET:
            if selector is not ALL_LINKS:
                raise UsageError("page.follow takes a selector or url=, not both")
            selector = listed(url)
        elif isinstance(selector, str):
            refuse_url(selector)
        elif selector is None:
            raise UsageError("page.follow(None): no selector; if it is the href of a link, write page.follow(url=…)")
        else:
            selector = listed(selector)
        self.unused_follows.append(selector if isinstance(selector, str) else HREFS)
        return Follow(self, selector, handler_name(handler), options)

    @property
    def parsed_text(self) -> str | None:
        """All text of the page; None if it was not parsed yet. For shoal itself."""
        root = self._tree.root if self._tree is not None else None
        return None if root is None else root.text()

    @property
    def fillings(self) -> list[str]:
        """Content besides the text: URLs of pictures, texts of meta elements. For shoal itself."""
        sources = [node.attributes.get("src") or "" for node in self.parsed().css("[src]")]
        metas = [node.attributes.get("content") or "" for node in self.parsed().css("meta[content]")]
        # URLs among the meta texts are mostly the page's own.
        return sources + [text for text in metas if "://" not in text]

    def blocked(self, reason: str = "") -> NoReturn:
        """Report that the site sent a block page. Ends the handler and drops its output.

        The page is retried through another exit for free; without exits, as one of its attempts."""
        self._turn_away("blocked", reason)

    def logged_out(self, reason: str = "") -> NoReturn:
        """Report that the account is no longer logged in. Ends the handler and drops its output.

        The page is retried for free after a new login; without an account, as one of its attempts."""
        self._turn_away("logged_out", reason)

    def _turn_away(self, kind: Literal["blocked", "logged_out"], reason: str) -> NoReturn:
        # Kept as well as raised: it must count even if the handler catches it.
        self.turned_away = TurnedAway(kind, reason)
        raise self.turned_away

    def _utf8(self) -> bytes:
        # The parsers read UTF-8: decoding it first would cost as much as parsing.
        return self.body if self.encoding == "utf-8" else self.content.encode("utf-8", "replace")

    def _whole_text(self) -> str:
        if not self.is_html:
            return self.content
        body = self.parsed().body
        return "" if body is None else folded(body, separator=" ")

    def __repr__(self) -> str:
        return f"<Page {self.status} {self.url}>"


Handler = Callable[[Page], Any]
