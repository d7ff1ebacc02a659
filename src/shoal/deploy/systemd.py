"""systemd units for one spider: the crawl, workers as instances of a template, the dashboard, spot notices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shoal.deploy.plan import Plan
from shoal.deploy.writing import NewFile, filled, package_files, template
from shoal.model import BROWSER

_PLAIN = re.compile(r"[\w@+=:,./-]+", re.ASCII)
# Chromium creates namespaces for its sandbox.
_WITHOUT_BROWSER = "PrivateDevices=yes\nRestrictNamespaces=yes\n"


def systemd_files(plan: Plan) -> Iterator[NewFile]:
    """The units, their settings, and the script that installs all of them."""
    unit = f"shoal-{plan.name}"
    values = {
        "unit": unit,
        "name": plan.name,
        "stop_seconds": str(plan.stop_seconds),
        "extras": ",".join([*plan.extras, *([BROWSER] if any(group.needs_browser for group in plan.groups) else [])]),
        "version": plan.version,
        "run": unit_words(plan.run),
        "memory": "512M",
    }
    yield NewFile(f"units/{unit}-crawl.service", filled(template("systemd/crawl.service"), values))
    yield NewFile(f"units/{unit}-serve.service", filled(template("systemd/serve.service"), values))
    for group in plan.groups:
        own = {
            "group": group.name,
            "worker": unit_words(plan.worker_words(group)),
            "memory": group.memory.upper(),
            "namespaces": "" if group.needs_browser else _WITHOUT_BROWSER,
        }
        text = filled(template("systemd/worker.service"), values | own)
        yield NewFile(f"units/{unit}-{group.name}@.service", text)
    stopped = [*(f"{unit}-{group.name}@*.service" for group in plan.groups), f"{unit}-crawl.service"]
    spot = values | {"stopped": unit_words(stopped)}
    yield NewFile(f"units/{unit}-spot.service", filled(template("systemd/spot.service"), spot))
    yield NewFile("spot_notice.py", template("systemd/spot_notice.py"))
    yield NewFile("env", template("systemd/env"))
    yield NewFile("install.sh", filled(template("systemd/install.sh"), values))
    yield from package_files(plan)


def unit_words(words: Iterable[str]) -> str:
    """A command for ExecStart, with `%` and `$` escaped."""
    return " ".join(map(_unit_word, words))


def _unit_word(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    inner = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{inner}"'
