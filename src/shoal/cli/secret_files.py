"""Secrets that lie in files, as containers get them: SHOAL_FRONTIER_FILE names a file that holds SHOAL_FRONTIER."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from urllib.parse import quote

from shoal.errors import UsageError
from shoal.settings.variables import FILE, PASSWORD_FILE, VARIABLES
from shoal.text.secrets import masked

VALUES, PLACES = (
    tuple(name for name, variable in VARIABLES.items() if ending in variable.endings)
    for ending in (FILE, PASSWORD_FILE)
)
SECRET_FILE_VARIABLES = (*(name + FILE for name in VALUES), *(name + PASSWORD_FILE for name in PLACES))


def read_secret_files(environ: MutableMapping[str, str]) -> None:
    """Put what these files hold in the place of the variables that name them: all readers, and processes that this one
    starts, then find the plain variables. Refuses a file that is missing or empty, and a value that is given twice."""
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
        raise UsageError(f"{name}{PASSWORD_FILE} is set, and {name} has no URL that it belongs to: set both")
    end = min((found for sign in "/?#" if (found := rest.find(sign)) >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    user, _, host = authority.rpartition("@")
    if ":" in user:
        raise UsageError(
            f"{name} ({masked(url)}) and {name}{PASSWORD_FILE} both have a password: leave out one of them"
        )
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{path}"
