"""Elements of HTML pages, found by CSS selectors, and the errors of texts that are no selectors."""

from __future__ import annotations

import re
from functools import lru_cache

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from shoal.errors import SelectorError, UsageError

_SHOWN = 200
_URL_STARTS = ("http://", "https://", "/", "./", "../", "?")
# `page-2.html` parses as a selector: elements <page-2> of the class html. `a.pdf` and `li.html` are meant as selectors.
_FILE = re.compile(
    r"(?!(?:a|abbr|area|article|aside|b|blockquote|body|button|code|dd|details|div|dl|dt|em|fieldset|figcaption|figure|footer"
    r"|form|h[1-6]|head|header|html|i|iframe|img|input|label|li|link|main|menu|nav|ol|p|picture|pre|s|section|small|span"
    r"|strong|summary|table|tbody|td|tfoot|th|thead|tr|u|ul|video)\.)"
    r"[A-Z_][\w-]*(?:\.[\w-]+)*\.(?:x?html?|shtml|php[345]?|phtml|aspx?|jspx?|do|cfm|cgi|pl|pdf|xml|json|txt|csv)",
    re.IGNORECASE,
)
_NAME_ALONE = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*")
_XPATH = ("//", ".//", "./", "(//")


@lru_cache(maxsize=256)  # a spider has few selectors and uses each on every page
def refuse_url(text: str) -> None:
    """Raise UsageError if the selector given to `page.follow` is a URL or empty."""
    if not text or text.isspace():
        why = "an empty text is no selector; if it is the href of a link, write page.follow(url=…)"
        raise UsageError(f"page.follow({text!r}): {why}")
    if text.startswith(_URL_STARTS) or _FILE.fullmatch(text):
        shown = text[:_SHOWN]
        raise UsageError(f"page.follow({shown!r}): that is a URL, write page.follow(url={shown!r})")


def may_be_href(selector: str) -> bool:
    """Whether a selector that matched nothing could be an href, as `next` or `page2`."""
    return _NAME_ALONE.fullmatch(selector) is not None


def href_given(selector: str) -> UsageError:
    """The error of a selector that matched nothing but is the href of a link of the page."""
    shown = selector[:_SHOWN]
    return UsageError(
        f"page.follow({shown!r}): no element matches, but a link of the page has this href: if it is a URL,"
        f" write page.follow(url={shown!r})"
    )


def bad_selector(selector: object) -> SelectorError:
    """The error of a selector that does not parse."""
    if not isinstance(selector, str):
        return SelectorError(f"a CSS selector is a text, not {type(selector).__name__}: {str(selector)[:_SHOWN]!r}")
    return SelectorError(f"{selector[:_SHOWN]!r} is no CSS selector{_advice(selector)}")


def _advice(selector: str) -> str:
    if "::attr(" in selector:
        return ": attributes are read with page.attr(selector, name)"
    if "::text" in selector:
        return ": text is read with page.text(selector)"
    if selector.startswith(_XPATH):
        return ": it looks like XPath, or like a URL"
    return ": it is empty" if not selector.strip() else ""


class Element:
    """One element of an HTML page.

    - `node`: the parser's node (selectolax), for anything without a method here
    """

    __slots__ = ("node",)

    def __init__(self, node: LexborNode) -> None:
        self.node = node

    def css(self, selector: str) -> list[Element]:
        """All elements below this one that match the CSS selector."""
        return [Element(node) for node in all_matches(self.node, selector)]

    def text(self, selector: str | None = None, default: str = "") -> str:
        """The text of this element, or of the first match below it, with white space folded; `default` if none."""
        node = self.node if selector is None else first_match(self.node, selector)
        return default if node is None else folded(node)

    def attr(self, name: str, default: str = "") -> str:
        """The value of an attribute; `default` if the element does not have it."""
        value = self.node.attrs.get(name)
        return default if value is None else value

    @property
    def tag(self) -> str:
        """The element's name in lower case, such as "a"."""
        return self.node.tag or ""

    @property
    def html(self) -> str:
        """The element as HTML, with everything in it."""
        return self.node.html or ""

    def __repr__(self) -> str:
        return f"<Element {self.tag}>"


def all_matches(within: LexborHTMLParser | LexborNode, selector: str) -> list[LexborNode]:
    """All nodes that match; raises SelectorError."""
    try:
        return within.css(selector)
    except (SelectolaxError, TypeError):
        raise bad_selector(selector) from None


def first_match(within: LexborHTMLParser | LexborNode, selector: str) -> LexborNode | None:
    """The first node that matches; raises SelectorError."""
    try:
        return within.css_first(selector)
    except (SelectolaxError, TypeError):
        raise bad_selector(selector) from None


def folded(node: LexborNode, separator: str = "") -> str:
    """The text with white space folded. `separator` goes between elements: none inside a word such as <b>a</b>b."""
    return " ".join(node.text(separator=separator).split())
