"""A spider that is a module of an installed package: what pip must be told to install it on a server."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, distribution, packages_distributions
from typing import Any

from shoal.errors import UsageError
from shoal.text.secrets import masked

GIT = "git+"


def requirement_of(module: str) -> str:
    """The line of a requirements.txt that installs the package of a module as it is here: its version, or the git
    revision that it was installed from. Refuses a module that no package has, and one that no server can install."""
    names = packages_distributions().get(module.partition(".")[0])
    if not names:
        raise UsageError(
            f"--spider {module} is a module of no installed package: name its file, or install its package (pip install"
            " ./package), so that the servers can install the same"
        )
    package = distribution(names[0])
    origin = _origin(package)
    name, source = package.metadata["Name"], origin.get("url", "")
    if "vcs_info" in origin:
        if masked(source) != source:
            raise UsageError(f"{name} was installed from {masked(source)}: a password does not belong into a file")
        return f"{name} @ {origin['vcs_info']['vcs']}+{source}@{origin['vcs_info']['commit_id']}"
    if origin.get("dir_info", {}).get("editable"):
        raise UsageError(
            f"{name} is installed in editable mode, so its files change without a version: build a wheel (pip wheel"
            " --no-deps ./package), install that one here, and put it into wheels/"
        )
    return f"{name}=={package.version}"


def _origin(package: Distribution) -> dict[str, Any]:
    """Where pip has a package from, if not from an index."""
    found: dict[str, Any] = json.loads(package.read_text("direct_url.json") or "{}")
    return found
