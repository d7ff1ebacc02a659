"""Keys of tasks as people read and type them."""

from __future__ import annotations

from shoal.errors import UsageError

KEYS = 1 << 64


def key_shown(key: int) -> str:
    """The key of a task: 16 characters."""
    return f"{key % KEYS:016x}"


def key_given(text: str) -> int:
    """The key of a task as people copy it."""
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 <= number < KEYS:
        raise UsageError(f"{text!r} is no key: `shoal why URL` shows keys, 16 characters of 0-9 and a-f")
    return number - KEYS if number >= KEYS // 2 else number
