"""Checks that Playwright and Chromium are installed."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Final

from shoal.errors import UsageError
from shoal.settings.table import Settings
from shoal.version import install_command

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")


def check_browser(settings: Settings) -> str:
    """The path of Chromium. Raises UsageError with the command that installs what is missing."""
    if importlib.util.find_spec("playwright") is None:
        raise UsageError(f"workers of the kind browser need the Playwright library: {install_command('browser')}")
    if settings.chromium:
        found = shutil.which(settings.chromium)
        if found is None:
            raise UsageError(f"there is no program {settings.chromium}: set chromium to the path of a Chromium")
        return found
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise UsageError(
            "workers of the kind browser need Chromium, which is not in the PATH: apt-get install chromium,"
            " or name the program with --set chromium=PATH"
        )
    return found
