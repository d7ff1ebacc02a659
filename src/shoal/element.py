"""Elements of HTML pages, and how CSS selectors find them."""

from __future__ import annotations

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from shoal.css_text import bad_selector


class Element:
    """One element of an HTML page.

    - `node`: the node of the parser (selectolax), for anything that the methods here lack
    """

    __slots__ = ("node",)

    def __init__(self, node: LexborNode) -> None:
        self.node = node

    def css(self, selector: str) -> list[Element]:
        """Every element below this one that matches the CSS selector."""
        return [Element(node) for node in all_matches(self.node, selector)]

    def text(self, selector: str | None = None, default: str = "") -> str:
        """The text of this element, or of the first match below it, with white space folded; `default` if none."""
        node = self.node if selector is None else first_match(self.node, selector)
        return default if node is None else folded(node)

    def attr(self, name: str, default: str = "") -> str:
        """The value of an attribute; `default` if the element has none of that name."""
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
    """Every node that matches; a selector that does not parse is quoted in the error."""
    try:
        return within.css(selector)
    except (SelectolaxError, TypeError):
        raise bad_selector(selector) from None


def first_match(within: LexborHTMLParser | LexborNode, selector: str) -> LexborNode | None:
    """The first node that matches; a selector that does not parse is quoted in the error."""
    try:
        return within.css_first(selector)
    except (SelectolaxError, TypeError):
        raise bad_selector(selector) from None


def folded(node: LexborNode, separator: str = "") -> str:
    """The text with white space folded. `separator` goes between elements: none inside a word such as <b>a</b>b."""
    return " ".join(node.text(separator=separator).split())
