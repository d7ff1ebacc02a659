"""`shoal deploy systemd`: units that systemd accepts, which name only what shoal has."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import Folder
from deployed_files import check_words, unknown_variables

from shoal.settings.variables import SECRET_FILE_VARIABLES
from shoal.version import DISTRIBUTION

SPIDER = """
from shoal import Spider

class Books(Spider):
    start = "https://books.example/"
    label = "new"

    def parse(self, page):
        return []
"""
STOP_SECONDS = "55"


@pytest.fixture
def fleet(folder: Folder) -> Path:
    (folder.path / "books.py").write_text(SPIDER)
    flags = ["--rate", "4/s", "-a", 'label=5% of $HOME "x"', "--kinds", "http,browser", "--set", "grace_seconds=45"]
    folder.run("deploy", "systemd", "fleet", "--spider", "books.py", *flags)
    return folder.path / "fleet"


def unit(path: Path) -> dict[str, list[str]]:
    """The values of each key, of all sections."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_writes_units_that_name_only_what_shoal_has(fleet: Path) -> None:
    units = {path.name: unit(path) for path in (fleet / "units").iterdir()}
    own = ["crawl", "serve", "spot", "worker@", "worker-browser@"]
    assert set(units) == {f"shoal-books-{name}.service" for name in own}
    assert shlex.split(units.pop("shoal-books-spot.service")["ExecStart"][0]) == [
        "/opt/shoal-books/venv/bin/python",
        "/opt/shoal-books/spot_notice.py",
        "shoal-books-worker@*.service",
        "shoal-books-worker-browser@*.service",
        "shoal-books-crawl.service",
    ]
    commands = {}
    for name, values in units.items():
        program, *words = shlex.split(values["ExecStart"][0])
        assert program == "/opt/shoal-books/venv/bin/shoal"
        commands[name] = [word.replace("%%", "%").replace("$$", "$") for word in words]
        check_words(commands[name])
        assert values["TimeoutStopSec"] == [STOP_SECONDS]
        # A second SIGTERM, to the process behind the first one, would end pages in hand.
        assert values["KillMode"] == ["process" if "serve" in name else "mixed"]
        assert not unknown_variables((fleet / "units" / name).read_text())
    crawl = units["shoal-books-crawl.service"]
    assert (crawl["SuccessExitStatus"], crawl["RestartPreventExitStatus"]) == (["130"], ["2"])
    assert 'label=5% of $HOME "x"' in commands["shoal-books-crawl.service"]
    assert commands["shoal-books-worker-browser@.service"][-3:] == ["--kinds", "browser", "--replace"]
    assert not unknown_variables((fleet / "env").read_text())


@pytest.mark.full
def test_the_script_installs_what_drives_a_browser_where_workers_have_one(fleet: Path, folder: Folder) -> None:
    assert f'"{DISTRIBUTION}[postgres,redis,serve,browser]==' in (fleet / "install.sh").read_text()
    folder.run("deploy", "systemd", "plain", "--spider", "books.py")
    assert f'"{DISTRIBUTION}[postgres,redis,serve]==' in (folder.path / "plain" / "install.sh").read_text()


@pytest.mark.full
def test_every_secret_that_a_unit_reads_is_loaded_and_written(fleet: Path) -> None:
    for path in (fleet / "units").iterdir():
        if path.stem == "shoal-books-spot":
            continue
        values = unit(path)
        loaded = dict(line.split(":", 1) for line in values["LoadCredential"])
        read = dict(re.findall(r"(SHOAL_[A-Z_]+)=%d/(\w+)", "\n".join(values["Environment"])))
        assert set(read) <= set(SECRET_FILE_VARIABLES)
        assert set(read.values()) == set(loaded)
        for name, source in loaded.items():
            assert source == f"/etc/shoal-books/secrets/{name}"
            assert (fleet / "secrets" / name).read_text().strip()


@pytest.mark.full
def test_the_script_is_one_that_the_shell_reads(fleet: Path) -> None:
    script = fleet / "install.sh"
    assert script.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", str(script)], check=True)
    assert "@" not in script.read_text().replace('"$@"', "")


@pytest.mark.full
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_in_the_units(fleet: Path) -> None:
    """With a program that exists in the place of the one that the script installs."""
    units = fleet / "units"
    for path in units.iterdir():
        text = re.sub(r"/opt/shoal-books/venv/bin/\w+", "/bin/true", path.read_text())
        path.write_text(text)
    files = [str(path) for path in units.iterdir()]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if "shoal-books" in line]
    assert (done.returncode, said) == (0, []), done.stderr
