"""What the pages of a crawl have in common, counted for its summary: notes, which a page's result carries."""

from __future__ import annotations

from shoal.journey.harvest import Harvest
from shoal.policy.verdicts import FOLLOW, FOLLOWED, ITEMS, KEYLESS, SAME_KEY, SITEMAP_NOTE, UNUSED, NoteNames, note_name
from shoal.spider.page import Page

MOST_PAIRS = 50
MOST_SITEMAPS = 10
MOST_KEYS = 20
SELECTOR_KEPT = 150
KEY_KEPT = 60
# More than once: the page that carries it may be lost with its lease.
FOLLOWED_SAID = 3


class PageNotes:
    """Makes the notes of one worker's pages. Each kind has a bounded number of names."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], int] = {}  # how often a pair of handler and selector was said to find links
        self._keys: dict[str, str] = {}
        self._sitemaps = NoteNames(SITEMAP_NOTE, most=MOST_SITEMAPS, rest="")

    def of(self, page: Page, harvest: Harvest, *, handler: str) -> dict[str, int]:
        """The notes of one page that its handler is done with."""
        notes: dict[str, int] = {}
        for selector, has_found in page.follows:
            # A selector that has found links is looked up here, and costs nothing else.
            if self._said.get((handler, selector), 0) < FOLLOWED_SAID:
                self._note_follow(handler, selector, notes, kind=FOLLOWED if has_found else FOLLOW)
        for selector in page.unused_follows:
            if not self._said.get((handler, selector)):
                self._note_follow(handler, selector, notes, kind=UNUSED)
        if harvest.items:
            notes[ITEMS] = len(harvest.items)
            if len(harvest.items) > 1:
                self._note_same_keys(page, harvest, notes)
        if harvest.keyless:
            notes[KEYLESS] = harvest.keyless
        return notes

    def of_sitemap(self, problem: str) -> dict[str, int]:
        """The note of a sitemap that could not be read, or not all of it."""
        name = self._sitemaps.of(problem.removeprefix(SITEMAP_NOTE))
        return {name: 1} if name else {}

    def _note_follow(self, handler: str, selector: str, notes: dict[str, int], *, kind: str) -> None:
        pair = (handler, selector)
        if pair not in self._said:
            if len(self._said) >= MOST_PAIRS:
                return
            self._said[pair] = 0
        self._said[pair] += kind == FOLLOWED
        notes[note_name(f"{kind}{handler} {' '.join(selector.split())[:SELECTOR_KEPT]}")] = 1

    def _note_same_keys(self, page: Page, harvest: Harvest, notes: dict[str, int]) -> None:
        keys = [item.key for item in harvest.items]
        if len(set(keys)) == len(keys):
            return
        seen: set[str] = set()
        for key in keys:
            if key in seen and (name := self._same_key(key[:KEY_KEPT], page.url)):
                notes[name] = 1
            seen.add(key)

    def _same_key(self, key: str, url: str) -> str:
        if key not in self._keys:
            if len(self._keys) >= MOST_KEYS:
                return ""
            self._keys[key] = note_name(f"{SAME_KEY}{key} on {url}")
        return self._keys[key]
