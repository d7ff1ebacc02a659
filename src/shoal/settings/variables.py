"""Every variable of the environment that is no setting: what it names, and whether a file may hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from shoal.errors import UsageError
from shoal.settings.table import (
    ARCHIVE_VARIABLE,
    EXITS_VARIABLE,
    FIELDS,
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
from shoal.text.near_names import is_slip

# Endings of variables.
FILE: Final = "_FILE"
PASSWORD_FILE: Final = FILE.replace("_", "_PASSWORD_", 1)
# Those that people give to the variable of a place which has no such one.
NO_ENDINGS: Final = (PASSWORD_FILE, FILE, "_URL", "_PASSWORD", "_PATH", "_DIR")
PREFIX: Final = "SHOAL_"


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


def check_names(environ: Mapping[str, str]) -> None:
    """Refuse a variable whose name is almost that of a place: the command would use another one, and not say so. Other
    names that begin with ours may belong to whatever started this process."""
    known = [name + ending for name, variable in VARIABLES.items() for ending in ("", *variable.endings)]
    for name in environ:
        own = name.removeprefix(PREFIX).lower()
        if not name.startswith(PREFIX) or name in known or own in FIELDS:
            continue
        bare = next((name.removesuffix(ending) for ending in NO_ENDINGS if name.endswith(ending)), "")
        slips = (one for one in known if _is_like(own, one.removeprefix(PREFIX).lower()))
        meant = bare if bare in VARIABLES else next(slips, "")
        if meant:
            raise UsageError(f"the variable {name} has no meaning: did you mean {meant}?")


def _is_like(name: str, known: str) -> bool:
    """Whether a name is another one with a slip, or in the plural, or without its plural."""
    return is_slip(name, known) or name.removesuffix("s") == known.removesuffix("s")
