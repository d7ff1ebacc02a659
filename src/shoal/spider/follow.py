"""The result of `page.follow`: links of a page, taken in all at once or iterated as requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from shoal.errors import UsageError
from shoal.spider.element import Element, first_match, href_given, may_be_href
from shoal.spider.spider import Request
from shoal.text.secrets import has_secrets, without_secrets
from shoal.urls.canonical import origin_of

if TYPE_CHECKING:
    from shoal.spider.page import Page

HREFS = "url=…"  # in notes, the selector of a `follow` of hrefs and elements
_ONLY_TEXT = frozenset({str})


class Follow:
    """The links of one `page.follow`. Iterating over it gives a request for each link."""

    __slots__ = ("_target", "handler", "options", "page")

    def __init__(self, page: Page, target: Any, handler: str | None, options: dict[str, Any]) -> None:
        self.page = page
        self._target = target
        self.handler = handler
        self.options = options

    def hrefs(self) -> list[str]:
        """The hrefs of the target, with their queries in the page's charset."""
        target = self._target
        if isinstance(target, str):
            return self.page.encoded(self._selected(target))
        hrefs = [part.attr("href") if isinstance(part, Element) else part for part in target]
        self._use(HREFS, has_found=any(hrefs))
        return self.page.encoded(hrefs if _ONLY_TEXT.issuperset(map(type, hrefs)) else _texts(hrefs))

    def _use(self, selector: str, *, has_found: bool) -> None:
        page = self.page
        page.follows.append((selector, has_found))
        if selector in page.unused_follows:
            page.unused_follows.remove(selector)

    def _selected(self, selector: str) -> list[str]:
        hrefs = self.page.hrefs(selector)
        self._use(selector, has_found=bool(hrefs))
        if not hrefs and may_be_href(selector) and first_match(self.page.parsed(), f'[href="{selector}"]') is not None:
            raise href_given(selector)
        return hrefs

    def __iter__(self) -> Iterator[Request]:
        iteration = Iteration(self)
        requests = cast("FollowRequests", FollowRequests.from_iterable(iteration.parts()))
        requests.iteration = iteration
        return requests

    def requests(self, urls: Iterable[str]) -> Iterator[Request]:
        """A request for each of these absolute URLs."""
        handler, options = self.handler, self.options
        if not options:
            return (Request(url, handler) for url in urls)
        elsewhere = self.options_elsewhere
        origin = origin_of(self.page.url) + "/"
        return (Request(url, handler, **(options if url.startswith(origin) else elsewhere)) for url in urls)

    @property
    def options_elsewhere(self) -> dict[str, Any]:
        """The options for links to other origins, without secret headers: a page must not choose who gets secrets."""
        headers = self.options.get("headers")
        if headers is None or not has_secrets(headers):
            return self.options
        return {**self.options, "headers": without_secrets(headers)}


class Iteration:
    """One iteration over a `Follow`. For shoal itself.

    `hrefs` are set with the first request, `first`. If the harvest takes in all hrefs then, it sets `is_taken`, and the
    iteration ends."""

    __slots__ = ("first", "follow", "hrefs", "is_taken")

    def __init__(self, follow: Follow) -> None:
        self.follow = follow
        self.hrefs: list[str] = []
        self.first: Request | None = None
        self.is_taken = False

    def parts(self) -> Iterator[Iterable[Request]]:
        """The first request, then the others, which are not made if all hrefs were taken in."""
        follow, page = self.follow, self.follow.page
        self.hrefs = follow.hrefs()
        url = page.first_absolute(self.hrefs)
        if not url:
            return
        [self.first] = follow.requests([url])
        yield (self.first,)
        if not self.is_taken:
            yield follow.requests(page.absolute(self.hrefs)[1:])


class FollowRequests(chain[Request]):
    """The requests of a `Follow`; `journey/handlers.py` recognises a `yield from` by this class."""

    __slots__ = ("iteration",)

    iteration: Iteration


def listed(target: Any) -> list[Any]:
    """The target of `page.follow` as a list of hrefs and elements."""
    if target is None or isinstance(target, str | Element):
        return [target]
    if callable(target):
        name = getattr(target, "__name__", target)
        raise UsageError(f"page.follow({name}): the handler comes second, as in page.follow('a[href]', self.{name})")
    if not isinstance(target, Iterable):
        raise UsageError(f"page.follow takes a selector, elements or url=, not {type(target).__name__}")
    return list(target)


def _texts(hrefs: list[Any]) -> list[str]:
    """The hrefs as texts without None; raises UsageError for other types."""
    for href in hrefs:
        if href is not None and not isinstance(href, str):
            raise UsageError(f"page.follow takes hrefs and elements, not {type(href).__name__}")
    return [str(href) for href in hrefs if href is not None]
