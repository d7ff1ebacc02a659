"""The SHOAL_ variables that are not settings: what each names, misspelt ones refused, values read from files."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

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
from shoal.text.secrets import masked

FILE: Final = "_FILE"  # SHOAL_FRONTIER_FILE names a file that holds the value of SHOAL_FRONTIER
PASSWORD_FILE: Final = FILE.replace("_", "_PASSWORD_", 1)
# Endings that people append to a variable that does not know them.
GUESSED_ENDINGS: Final = (PASSWORD_FILE, FILE, "_URL", "_PASSWORD", "_PATH", "_DIR")
PREFIX: Final = "SHOAL_"


class Variable(NamedTuple):
    """`endings`: with _FILE appended, the variable names a file with the value; with _PASSWORD_FILE, a file with the
    password of the URL."""

    option: str
    text: str
    endings: tuple[str, ...] = ()
    default: str = ""


VARIABLES: Final = {
    FRONTIER_VARIABLE: Variable("--frontier", "where the tasks are stored", (FILE, PASSWORD_FILE), "shoal.db"),
    STORE_VARIABLE: Variable(
        "--store",
        "where the items are stored",
        (FILE, PASSWORD_FILE),
        "the crawl's; for a new crawl, the file of the frontier",
    ),
    ARCHIVE_VARIABLE: Variable("--archive", "where raw pages are kept", (FILE,), "the crawl's"),
    PIPE_VARIABLE: Variable("--pipe", "the pipe between workers and their coordinator", (FILE, PASSWORD_FILE)),
    SINK_VARIABLE: Variable("--sink", "where each item is sent on; several are separated by spaces", (FILE,)),
    INBOX_VARIABLE: Variable(
        "--inbox",
        "the folder with URLs for a spider from other programs",
        (FILE,),
        "shoal-inbox/SPIDER beside the file of the frontier",
    ),
    EXITS_VARIABLE: Variable("--exits", "the file with the exits that only this machine can use"),
    TOKEN_VARIABLE: Variable("--token-file", "the token that clients of `shoal serve` must send", (FILE,)),
    READER_VARIABLE: Variable("--reader-token-file", "a token for read-only access", (FILE,)),
    WEBHOOK_VARIABLE: Variable("", "the secret that signs messages to webhooks", (FILE,)),
    LOG_FORMAT_VARIABLE: Variable("--log-format", "log lines as `text` or `json`", default="text"),
    LOG_LEVEL_VARIABLE: Variable("--log-level", "log lines from this level on", default="warning; json: info"),
    LOG_MARK_VARIABLE: Variable("", "internal: marks the log lines of worker processes"),
}


def check_names(environ: Mapping[str, str]) -> None:
    """Refuse a variable whose name is almost one of these: the command would ignore it silently. Other SHOAL_ names
    may belong to the program that started this process."""
    known = [name + ending for name, variable in VARIABLES.items() for ending in ("", *variable.endings)]
    for name in environ:
        own = name.removeprefix(PREFIX).lower()
        if not name.startswith(PREFIX) or name in known or own in FIELDS:
            continue
        bare = next((name.removesuffix(ending) for ending in GUESSED_ENDINGS if name.endswith(ending)), "")
        slips = (one for one in known if _is_like(own, one.removeprefix(PREFIX).lower()))
        meant = bare if bare in VARIABLES else next(slips, "")
        if meant:
            raise UsageError(f"the variable {name} has no meaning: did you mean {meant}?")


def _is_like(name: str, known: str) -> bool:
    """Whether two names differ by a typing error or a plural s."""
    return is_slip(name, known) or name.removesuffix("s") == known.removesuffix("s")


VALUES, PLACES = (
    tuple(name for name, variable in VARIABLES.items() if ending in variable.endings)
    for ending in (FILE, PASSWORD_FILE)
)
SECRET_FILE_VARIABLES = (*(name + FILE for name in VALUES), *(name + PASSWORD_FILE for name in PLACES))


def read_secret_files(environ: MutableMapping[str, str]) -> None:
    """Replace each variable that names a file by the variable with the value, for this process and its children.
    Refuses a missing or empty file, and a value that is given twice."""
    for name in VALUES:
        if file := environ.pop(name + FILE, ""):
            if environ.get(name):
                raise UsageError(f"{name} and {name}{FILE} are both set: leave out one of them")
            environ[name] = _read(file, name + FILE)
    for name in PLACES:
        if file := environ.pop(name + PASSWORD_FILE, ""):
            environ[name] = _with_password(environ.get(name, ""), name, _read(file, name + PASSWORD_FILE))


def _read(file: str, variable: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file {file} of {variable} cannot be read: {error}") from None
    if not text:
        raise UsageError(f"the file {file} of {variable} is empty: write the secret into it")
    if "\n" in text:
        raise UsageError(f"the file {file} of {variable} has several lines: write the secret into it, and nothing else")
    return text


def _with_password(url: str, name: str, password: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise UsageError(f"{name}{PASSWORD_FILE} is set, but {name} has no URL: set both")
    end = min((found for sign in "/?#" if (found := rest.find(sign)) >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    user, _, host = authority.rpartition("@")
    if ":" in user:
        raise UsageError(
            f"{name} ({masked(url)}) and {name}{PASSWORD_FILE} both have a password: leave out one of them"
        )
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{path}"
