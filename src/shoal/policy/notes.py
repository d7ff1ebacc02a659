"""The names of notes: what a crawl counts for its summary, its exit code and `shoal export`, beside its outcomes."""

from __future__ import annotations

from typing import Final

ITEMS: Final = "items"  # that settled pages yielded
BYTES: Final = "bytes"  # of settled pages, after decompression, where a limit needs it
KEYLESS: Final = "keyless"  # items with an empty key
UNREACHED: Final = "unreached visits"  # those of them that failed, of pages that were reached before
START_OK: Final = "start ok"

# Kinds of notes: the beginnings of their names.
START_FAILED: Final = "start failed "  # then the outcome
RAISED: Final = "raised "  # then the exception and the line of the spider: dead letters
FOLLOW: Final = "follow "  # then the handler and the selector: pages on which it found no link
FOLLOWED: Final = "followed "  # the same: the selector found a link, so it is right
UNUSED: Final = "unused "  # the same: pages on which what `page.follow` gave was neither yielded nor iterated
SAME_KEY: Final = "same key "  # then the key, " on " and the URL of such a page
SITEMAP: Final = "sitemap "  # then its URL and what is wrong

LONGEST_NAME: Final = 200
MOST_NAMES: Final = 100
OTHER: Final = "other"


class NoteNames:
    """The names of one kind of notes that a worker makes: a bounded number of them."""

    def __init__(self, kind: str, *, most: int = MOST_NAMES, rest: str = OTHER) -> None:
        self._kind = kind
        self._most = most
        self._rest = f"{kind}{rest}" if rest else ""
        self._names: dict[str, str] = {}

    def of(self, ending: str) -> str:
        """The name with this ending. After too many different ones it ends in `rest`; without a `rest` it is empty."""
        name = self._names.get(ending)
        if name is None:
            if len(self._names) >= self._most:
                return self._rest
            name = self._names[ending] = note_name(f"{self._kind}{ending}")
        return name


def note_name(text: str) -> str:
    """A text as the name of a note: short, and without what no frontier could keep, such as half a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:LONGEST_NAME]
