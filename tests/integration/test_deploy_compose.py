"""`shoal deploy compose`: what it writes is a compose file by its own rules, and names only what shoal has."""

from __future__ import annotations

import functools
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from command_line import Folder
from compose_spec import PyCompose
from deployed_files import check_redis, check_words, compose_resolved, compose_variables, unknown_variables
from dockerfile import last, lineage, stages_of

from shoal.cli.deploy import EXTRAS, SCHEME_EXTRAS
from shoal.cli.serve import PORT
from shoal.deploy.plan import METRICS_PORT, SERVE_PORT
from shoal.testing.servers.programs import free_port
from shoal.testing.waiting import wait_until
from shoal.version import DISTRIBUTION

ROOT = Path(__file__).parents[2]
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


@pytest.mark.full
def test_a_spider_that_renders_gets_workers_with_a_browser_and_a_crawl_that_needs_none(project: Folder) -> None:
    (project.path / "books.py").write_text(SPIDER.replace("shelf = SHELF", "shelf = SHELF; render = True"))
    fleet = deployed(project)
    services = compose_resolved((fleet / "compose.yaml").read_text())["services"]
    assert services["worker"]["command"][:4] == ["worker", "books.py", "--kinds", "browser"]
    assert services["worker"]["build"] == {"context": ".", "target": "browser"}
    assert services["crawl"]["command"][-2:] == ["--kinds", "http"]
    check_words(services["crawl"]["command"])


@pytest.mark.full
def test_the_image_with_a_browser_has_what_drives_it(project: Folder) -> None:
    stages = stages_of((deployed(project) / "Dockerfile").read_text())
    packages = " ".join(step.text for step in lineage(stages, "browser-packages"))
    assert f"{DISTRIBUTION}[browser]==" in packages
    steps = [step.text for step in stages["browser"].instructions]
    assert "--from=browser-packages /opt/shoal /opt/shoal" in steps
    assert "SHOAL_CHROMIUM_SANDBOX=false" in steps
    assert "browser" not in " ".join(step.text for step in lineage(stages, "packages"))


@pytest.mark.full
def test_the_example_of_the_environment_has_every_variable_with_its_default(project: Folder) -> None:
    fleet = deployed(project, "--kinds", "http,browser")
    lines = (fleet / ".env.example").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    read = compose_variables((fleet / "compose.yaml").read_text())
    assert given == read
    assert {"WORKERS", "WORKERS_BROWSER"} <= set(given)


@pytest.mark.full
def test_the_image_runs_a_worker_that_takes_sigterm_and_is_not_root(project: Folder) -> None:
    stages = stages_of((deployed(project, "--sink", "sqs://queue") / "Dockerfile").read_text())
    for name in ("worker", "browser"):
        lines = lineage(stages, name)
        assert last(lines, "ENTRYPOINT").words == ["shoal"]
        check_words(last(lines, "CMD").words)
        assert last(lines, "USER").text == "10001:10001"
        assert {int(port) for port in last(lines, "EXPOSE").text.split()} == {SERVE_PORT, METRICS_PORT}
        assert last(lines, "STOPSIGNAL").text == "SIGTERM"
    assert f"{DISTRIBUTION}[postgres,redis,serve,sqs]==" in stages["build"].instructions[-1].text
    assert list(stages)[-1] == "worker", "the last stage is built where no target is named"


@pytest.mark.full
def test_the_ports_and_extras_are_those_of_shoal() -> None:
    assert SERVE_PORT == PORT
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*EXTRAS, *SCHEME_EXTRAS.values()} <= set(extras)


@pytest.mark.full
def test_an_archive_for_old_weeks_of_the_log_brings_what_writes_them(project: Folder) -> None:
    (project.path / "shoal.toml").write_text('retention = "90d"\nretention_archive = "s3://bucket/log"\n')
    assert f"{DISTRIBUTION}[archive,parquet,postgres,redis,serve]" in (deployed(project) / "Dockerfile").read_text()


@pytest.mark.full
def test_the_probes_pass_while_the_process_answers_and_fail_when_it_is_gone(project: Folder) -> None:
    fleet = deployed(project)
    image = stages_of((fleet / "Dockerfile").read_text())
    serve = compose_resolved((fleet / "compose.yaml").read_text())["services"]["serve"]
    for probe, port, command in (
        (last(image["runtime"].instructions, "HEALTHCHECK").words, METRICS_PORT, ["worker", "books.py", "--metrics"]),
        (serve["healthcheck"]["test"][1:], SERVE_PORT, ["serve", "--port"]),
    ):
        own = free_port()
        words = [sys.executable, *(word.replace(f":{port}/", f":{own}/") for word in probe[1:])]
        assert words != [sys.executable, *probe[1:]]
        with project.start(*command, str(own), "--frontier", "crawls.db") as process:
            wait_until(functools.partial(passes, words), otherwise=f"{command} is not healthy")
            process.terminate()
            process.communicate(timeout=30)
            assert process.returncode == 0
        assert not passes(words)


def passes(words: list[str]) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.full
def test_the_files_in_deploy_are_those_that_the_command_writes(folder: Folder) -> None:
    """Stale: `make docs` writes them anew."""
    folder.run("deploy", "compose", "fleet", "--spider", str(ROOT / "examples" / "books.py"))
    fleet = folder.path / "fleet"
    new = [path.relative_to(fleet) for path in fleet.rglob("*") if path.is_file() and path.parent.name != "secrets"]
    assert len(new) >= 6
    for path in new:
        assert (ROOT / "deploy" / path).read_bytes() == (fleet / path).read_bytes(), path


@pytest.mark.full
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


@pytest.mark.parametrize("form", ["compose", "k8s"])
@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--proxies", "list.txt"], "--proxies names a file with passwords"),
        (["--archive", "pages"], "is a folder, which machines do not share"),
        (["--set", "retention=90d", "--set", "retention_archive=log"], "is a folder, which is lost with its container"),
        (["--sink", "redis://user:secret@host/0?list=books"], "has a password"),
        (["--rate", "fast"], "rate"),
        (["-a", "shelv=9"], "did you mean shelf?"),
    ],
)
def test_refuses_what_a_fleet_could_not_run(project: Folder, form: str, flags: list[str], line: str) -> None:
    done = project.run("deploy", form, "fleet", "--spider", "books.py", *flags, code=2)
    assert line in done.stderr
    assert not (project.path / "fleet").exists()


@pytest.mark.full
@pytest.mark.parametrize("form", ["compose", "k8s", "systemd"])
def test_a_folder_that_cannot_be_written_is_named_in_one_line(project: Folder, form: str) -> None:
    done = project.run("deploy", form, "/proc/fleet", "--spider", "books.py", code=2)
    assert "/proc/fleet" in done.stderr
    assert "cannot be written (No such file or directory): name another folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_refuses_a_folder_that_has_other_files(project: Folder) -> None:
    done = project.run("deploy", "compose", ".", "--spider", "books.py", code=2)
    assert "is not empty" in done.stderr


@pytest.mark.full
def test_the_redis_of_the_compose_file_keeps_what_it_promises(project: Folder, tmp_path: Path) -> None:
    fleet = deployed(project)
    command = yaml.safe_load((fleet / "compose.yaml").read_text())["services"]["redis"]["command"]
    script = command[2].replace("$$", "$").replace("/run/secrets", str(fleet / "secrets"))
    check_redis([*command[:2], script], password=fleet / "secrets" / "redis_password", folder=tmp_path)
