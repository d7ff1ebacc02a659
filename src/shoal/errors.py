"""Everything shoal raises on purpose.

ShoalError                 one line for the user, and a return code
├── UsageError         2   the command, the spider file or a URL is not usable as given
│   ├── SettingError   2   a setting is unknown or has a value of the wrong kind
│   └── SelectorError  2   a text is not a valid CSS selector
├── ServerUnreachable  3   a queue, database or object server cannot be reached
├── StorageError       1   a file or database refuses: locked, foreign, newer, full
│   └── StorageBroken  1   a file in use is gone, replaced or damaged: waiting does not help
└── CrawlLost          1   a crawl's data are gone from its frontier while workers run it
"""


class ShoalError(Exception):
    """A failure that the user can act on. The message is one line and says what to do."""

    return_code = 1


class UsageError(ShoalError):
    """The command, the spider file or a URL is not usable as given."""

    return_code = 2


class SettingError(UsageError):
    """A setting is unknown or has a value of the wrong kind."""


class SelectorError(UsageError):
    """A text is not a valid CSS selector."""


class ServerUnreachable(ShoalError):  # noqa: N818 -- reads as what happened
    """A queue, database or object server cannot be reached."""

    return_code = 3


class StorageError(ShoalError):
    """A file or database refuses: locked, foreign, newer, full."""


class StorageBroken(StorageError):  # noqa: N818 -- reads as what happened
    """A file in use is gone, replaced or damaged: waiting does not help."""


class CrawlLost(ShoalError):  # noqa: N818 -- reads as what happened
    """A crawl's data are gone from its frontier, and nobody deleted the crawl. Waiting does not help."""
