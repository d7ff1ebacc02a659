"""Every variable of the environment that is no setting: what it names, and whether a file may hold it."""

from __future__ import annotations

from typing import Final, NamedTuple

from shoal.settings import (
    ARCHIVE_VARIABLE,
    EXITS_VARIABLE,
    FRONTIER_VARIABLE,
    INBOX_VARIABLE,
    LOG_FORMAT_VARIABLE,
    LOG_LEVEL_VARIABLE,
    LOG_MARK_VARIABLE,
    PIPE_VARIABLE,
    READER_VARIABLE,
    SINK_VARIABLE,
    STORE_VARIABLE,
    TOKEN_VARIABLE,
    WEBHOOK_VARIABLE,
)

# Endings of variables.
FILE: Final = "_FILE"
PASSWORD_FILE: Final = FILE.replace("_", "_PASSWORD_", 1)


class Variable(NamedTuple):
    """`endings`: with these behind its name it is a variable, too, which names a file with the value, or with the
    password that belongs into the URL."""

    option: str
    text: str
    endings: tuple[str, ...] = ()
    default: str = ""


VARIABLES: Final = {
    FRONTIER_VARIABLE: Variable("--frontier", "where the tasks are", (FILE, PASSWORD_FILE), "shoal.db"),
    STORE_VARIABLE: Variable(
        "--store", "where the items are", (FILE, PASSWORD_FILE), "the crawl's; of a new one, the file of the frontier"
    ),
    ARCHIVE_VARIABLE: Variable("--archive", "where raw pages are kept", (FILE,), "the crawl's"),
    PIPE_VARIABLE: Variable("--pipe", "the pipe between workers and their coordinator", (FILE, PASSWORD_FILE)),
    SINK_VARIABLE: Variable("--sink", "where each item flows on to; several with spaces between them", (FILE,)),
    INBOX_VARIABLE: Variable(
        "--inbox", "the folder that a spider is fed from", (FILE,), "shoal-inbox/SPIDER beside the file of the frontier"
    ),
    EXITS_VARIABLE: Variable("--exits", "the file of the exits that only this machine has"),
    TOKEN_VARIABLE: Variable("--token-file", "the token that callers of `shoal serve` need", (FILE,)),
    READER_VARIABLE: Variable("--reader-token-file", "a token that may only look", (FILE,)),
    WEBHOOK_VARIABLE: Variable("", "the secret that messages to webhooks are signed with", (FILE,)),
    LOG_FORMAT_VARIABLE: Variable("--log-format", "log lines as `text` or `json`", default="text"),
    LOG_LEVEL_VARIABLE: Variable("--log-level", "log lines from this level on", default="warning; json: info"),
    LOG_MARK_VARIABLE: Variable("", "set by shoal for its own processes: how they know the lines of each other"),
}
