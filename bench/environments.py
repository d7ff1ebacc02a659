"""The environments of the peers: made once under bench/.work, in the versions that the repository names."""

from __future__ import annotations

import shutil
import subprocess
import venv
from pathlib import Path

from bench.crawlers import HERE, WORK
from bench.progress import telling

NODE = "crawlee-node"


def is_installed(name: str) -> bool:
    """Whether the peer is there, in the version that is wanted now."""
    marker = _folder(name) / "installed.txt"
    return marker.exists() and marker.read_text() == _pins(name).read_text()


def install(name: str) -> Path:
    """The folder of the peer's environment, made when it is not there: `python` and `scrapy` in bin/, or node's."""
    folder = _folder(name)
    if not is_installed(name):
        with telling(f"installing {name} into {folder}"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if name == NODE:
                _install_node(folder)
            else:
                venv.create(folder, with_pip=True)
                subprocess.run([folder / "bin" / "pip", "install", "-q", "-r", _pins(name)], check=True, cwd=WORK)
            (folder / "installed.txt").write_text(_pins(name).read_text())
    return folder


def _install_node(folder: Path) -> None:
    if shutil.which("npm") is None:
        raise SystemExit("npm is missing: install it with `sudo apt-get install nodejs npm`")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / NODE / name, folder)
    # Not `npm ci`: the lock file lacks the builds of impit for other systems, which npm adds where they are needed.
    subprocess.run(["npm", "install", "--no-save", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)


def _folder(name: str) -> Path:
    return WORK / (name if name == NODE else f"{name}-venv")


def _pins(name: str) -> Path:
    return HERE / name / "package-lock.json" if name == NODE else HERE / f"{name}-requirements.txt"
