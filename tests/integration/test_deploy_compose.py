"""`shoal deploy compose`: what it writes is a compose file by its own rules, and names only what shoal has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from command_line import Folder
from compose_spec import PyCompose
from deployed_files import check_words, compose_resolved, compose_variables, unknown_variables

from shoal.testing.servers.programs import free_port
from shoal.testing.waiting import wait_until

SPIDER = """
from shelves import SHELF
from shoal import Spider

class Books(Spider):
    start = "https://books.example/"
    shelf = SHELF
    label = "new"

    def parse(self, page):
        return []
"""


class Plain(yaml.SafeDumper):
    """Writes no aliases: the parser of the compose specification reads YAML without them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


@pytest.fixture
def project(folder: Folder) -> Folder:
    (folder.path / "books.py").write_text(SPIDER)
    (folder.path / "shelves.py").write_text("SHELF = 7\n")
    (folder.path / "unused.py").write_text("")
    (folder.path / "shoal.toml").write_text('rate = "9/s"\n')
    return folder


def deployed(folder: Folder, *flags: str) -> Path:
    folder.run("deploy", "compose", "fleet", "--spider", "books.py", *flags)
    return folder.path / "fleet"


def test_writes_a_compose_file_that_names_only_what_shoal_has(project: Folder) -> None:
    flags = ["--rate", "4/s", "-a", "label=$9", "--kinds", "http,browser", "--set", "grace_seconds=45"]
    fleet = deployed(project, *flags, "--archive", "s3://bucket/pages")
    text = (fleet / "compose.yaml").read_text()
    assert not unknown_variables(text)
    whole = compose_resolved(text)
    services = whole["services"]
    assert set(PyCompose.from_yaml(yaml.dump(whole, Dumper=Plain)).service_names()) == set(services)
    for name in ("crawl", "worker", "worker-browser", "serve"):
        check_words(services[name]["command"])
        assert services[name]["stop_grace_period"] == "55s"
        assert services[name]["read_only"] is True
    assert {"rate=4/s", "label=$9", "s3://bucket/pages"} <= set(services["crawl"]["command"])
    assert services["worker-browser"]["command"][2:4] == ["--kinds", "browser"]
    assert "ports" not in services["redis"] | services["postgres"]


def test_the_image_has_the_spider_with_what_it_imports_and_nothing_else(project: Folder) -> None:
    fleet = deployed(project)
    assert sorted(path.name for path in (fleet / "spiders").iterdir()) == ["books.py", "shelves.py", "shoal.toml"]


def test_passwords_are_made_once_and_others_cannot_reach_them(project: Folder) -> None:
    fleet = deployed(project)
    first = (fleet / "secrets" / "token").read_text()
    assert (fleet / "secrets").stat().st_mode & 0o777 == 0o700
    deployed(project, "--force")
    assert (fleet / "secrets" / "token").read_text() == first
    assert first.strip() not in (fleet / "compose.yaml").read_text()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--proxies", "list.txt"], "--proxies names a file with passwords"),
        (["--archive", "pages"], "is a folder, which the machines of a fleet do not share"),
        (["--sink", "redis://user:secret@host/0?list=books"], "has a password"),
        (["--rate", "fast"], "rate"),
        (["-a", "shelv=9"], "did you mean shelf?"),
    ],
)
def test_refuses_what_a_fleet_could_not_run(project: Folder, flags: list[str], line: str) -> None:
    done = project.run("deploy", "compose", "fleet", "--spider", "books.py", *flags, code=2)
    assert line in done.stderr
    assert not (project.path / "fleet").exists()


def test_refuses_a_folder_that_has_other_files(project: Folder) -> None:
    done = project.run("deploy", "compose", ".", "--spider", "books.py", code=2)
    assert "is not empty" in done.stderr


def test_the_redis_of_the_compose_file_keeps_what_it_promises(project: Folder, tmp_path: Path) -> None:
    """Its command, run here as the container would: with its own folders in the place of the container's."""
    fleet = deployed(project)
    redis = yaml.safe_load((fleet / "compose.yaml").read_text())["services"]["redis"]
    port, password = free_port(), (fleet / "secrets" / "redis_password").read_text().strip()
    script = redis["command"][2].replace("$$", "$").replace("/run/secrets", str(fleet / "secrets"))
    script = script.replace("dir /data", f"dir {tmp_path}\nport {port}")
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen([*redis["command"][:2], script], stdout=log, stderr=log)

    def ask(*words: str) -> str:
        given = ["redis-cli", "-p", str(port), "-a", password, "--no-auth-warning", *words]
        return subprocess.run(given, capture_output=True, text=True, check=False).stdout

    try:
        wait_until(lambda: "PONG" in ask("ping"), otherwise="redis does not answer")
        assert "yes" in ask("config", "get", "appendonly")
        assert "noeviction" in ask("config", "get", "maxmemory-policy")
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert command.startswith(b"redis-server")
        assert password.encode() not in command
        plain = subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True, text=True, check=False)
        assert "NOAUTH" in plain.stdout + plain.stderr
    finally:
        process.terminate()
        assert process.wait(30) == 0
        log.close()
