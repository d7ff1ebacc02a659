"""What a page writes on its console."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage


class Errors:
    """What went wrong in the page. A test that provokes something says what it expects."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.expected: tuple[str, ...] = ()

    def expect(self, *words: str) -> None:
        """Lines with one of these words are meant."""
        self.expected += words

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.lines.append(f"{message.text} {message.location.get('url', '')}")

    @property
    def unexpected(self) -> list[str]:
        return [line for line in self.lines if not any(word in line for word in self.expected)]
