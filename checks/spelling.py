"""`python -m checks.spelling`: the words of the documents are in a dictionary, or in docs/words.txt.

hunspell with the dictionary of British English. Code, addresses and names with capitals, digits or underscores inside
are not looked at.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from checks.finding import ROOT, Finding

WORDS = ROOT / "docs" / "words.txt"
_NO_PROSE = (
    re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL),
    re.compile(r"<!--.*?-->|<[^>\n]+>", re.DOTALL),
    re.compile(r"``.+?``|`[^`]+`", re.DOTALL),
    re.compile(r"(?<=\])\([^)\s]*\)"),
    re.compile(r"https?://\S+"),
)
# A word, with what would make it a name of code or of a file beside it.
_WORD = re.compile(r"[^\s()\[\]|*,;:!?\"“”…/–—=+-]+")
_PLAIN = re.compile(r"[A-Z]?[a-z]+(?:['’][a-z]+)?")


def prose(text: str) -> str:
    """A document without its code and addresses; every line stays where it was."""
    for pattern in _NO_PROSE:
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def plain_words(text: str) -> Iterator[tuple[int, str]]:
    """Each word to look up, with its line."""
    for number, line in enumerate(prose(text).splitlines(), 1):
        for found in _WORD.finditer(line):
            word = found[0].strip(".'’").replace("’", "'")
            if _PLAIN.fullmatch(word):
                yield number, word.removesuffix("'s")


def unknown_words(files: Iterable[Path], known: frozenset[str]) -> Iterator[Finding]:
    """Words in files that are neither in the dictionary nor known."""
    found = {path: list(plain_words(path.read_text(encoding="utf-8"))) for path in files}
    asked = sorted({word for words in found.values() for _, word in words if word not in known})
    wrong = set(_not_in_dictionary(asked)) - {word for word in asked if word.lower() in known}
    for path, words in found.items():
        for line, word in words:
            if word in wrong:
                yield Finding(path, line, f'"{word}" is in no dictionary: correct it, or add it to docs/words.txt')


def _not_in_dictionary(words: list[str]) -> list[str]:
    command = [shutil.which("hunspell") or "hunspell", "-l", "-i", "utf-8", "-d", "en_GB"]
    asked = "\n".join(words) + "\n"
    result = subprocess.run(  # noqa: S603 - hunspell with fixed arguments; the words go to its standard input
        command, input=asked, capture_output=True, text=True, check=False, timeout=60
    )
    if result.returncode != 0:
        raise SystemExit(f"checks: hunspell failed ({result.stderr.strip()}): sudo apt-get install hunspell-en-gb")
    return result.stdout.split()


def known_words() -> frozenset[str]:
    """The project's own words, one a line."""
    return frozenset(WORDS.read_text(encoding="utf-8").split())


def documents() -> list[Path]:
    """Every document. The changelog and the generated reference name code in every line."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")]
    return sorted(path for path in found if path.name != "CHANGELOG.md" and path.parent.name != "reference")


def main() -> int:
    """Print the findings; the return code says whether there were any."""
    if shutil.which("hunspell") is None:
        sys.stdout.write("words are not checked: sudo apt-get install hunspell hunspell-en-gb\n")
        return 0
    found = list(unknown_words(documents(), known_words()))
    for finding in found:
        sys.stdout.write(f"{finding}\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
