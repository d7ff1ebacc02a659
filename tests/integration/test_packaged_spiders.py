"""A spider that is a module of a package: run from a wheel by its name, held against other builds, deployed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import SHOP, Folder

from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 3
SPIDER = "shop_fleet.spiders.books:Books"
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "shop-fleet"
version = "1.2.0"

[tool.hatch.build.targets.wheel]
packages = ["shop_fleet"]
"""
REVISION = "0123456789abcdef0123456789abcdef01234567"


class PackagedFolder(Folder):
    """A folder in which commands find a package that was installed into another one."""

    def __init__(self, path: Path, installed: Path) -> None:
        super().__init__(path)
        self.installed = installed

    def environ(self) -> dict[str, str]:
        return super().environ() | {"PYTHONPATH": str(self.installed)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, site: SiteProcess) -> Path:
    """The package, installed once for all tests."""
    return installed(tmp_path_factory.mktemp("package"), site, shelf=7)


@pytest.fixture
def packaged(tmp_path: Path, package: Path) -> PackagedFolder:
    """A folder to work in, beside an installed package of its own."""
    work = tmp_path / "work"
    work.mkdir()
    return PackagedFolder(work, shutil.copytree(package, tmp_path / "installed"))


def installed(folder: Path, site: SiteProcess, *, shelf: int) -> Path:
    """The package, built as a wheel and installed by pip; gives the folder that it was installed into."""
    spiders = folder / "sources" / "shop_fleet" / "spiders"
    spiders.mkdir(parents=True)
    (folder / "sources" / "pyproject.toml").write_text(PROJECT)
    for package in (spiders, spiders.parent):
        (package / "__init__.py").write_text("")
    (spiders.parent / "shelves.py").write_text(f"SHELF = {shelf}\n")
    text = SHOP.format(url=site.url, rate="unlimited", first="pass")
    (spiders / "books.py").write_text(f"from shop_fleet import shelves\n{text}")
    run = {"check": True, "capture_output": True, "timeout": 120}
    building = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(building, cwd=folder / "sources", **run)
    (wheel,) = folder.glob("*.whl")
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], **run)
    return target


@pytest.mark.full
def test_runs_and_workers_find_the_spider_in_an_installed_wheel(packaged: PackagedFolder, site: SiteProcess) -> None:
    packaged.run("run", SPIDER, "--workers", "2")
    packaged.run("add", "books-1", f"{site.url}catalogue/page-1.html?again=1")
    said = packaged.run("worker", SPIDER, "--burst").stderr.splitlines()
    assert said[-1] == "left books-1: 1 page"
    assert packaged.json("status", "books-1")["items"] == PRODUCTS


@pytest.mark.full
def test_a_worker_with_another_build_of_the_same_version_is_refused(
    packaged: PackagedFolder, site: SiteProcess, tmp_path: Path
) -> None:
    packaged.run("run", SPIDER)
    packaged.run("add", "books-1", f"{site.url}catalogue/page-1.html?again=1")
    packaged.installed = installed(tmp_path / "two", site, shelf=8)
    refusal = packaged.refusal("worker", SPIDER, "--burst")
    assert "books-1 runs other code of its spider than this process: shop_fleet/shelves.py; " in refusal


@pytest.mark.full
def test_a_deployment_installs_the_package_that_has_the_spider(packaged: PackagedFolder) -> None:
    (packaged.path / "requirements.txt").write_text("lxml\nShop.Fleet==1.0\n")
    packaged.run("deploy", "compose", "fleet", "--spider", SPIDER)
    fleet = packaged.path / "fleet"
    assert (fleet / "requirements.txt").read_text() == "lxml\nshop-fleet==1.2.0\n"
    assert [path.name for path in (fleet / "spiders").iterdir()] == ["README"]
    dockerfile = (fleet / "Dockerfile").read_text()
    assert f'CMD ["worker", "{SPIDER}",' in dockerfile
    assert " git\n" not in dockerfile


@pytest.mark.full
def test_a_package_of_a_git_revision_is_installed_from_it_and_only_its_build_has_git(packaged: PackagedFolder) -> None:
    (record,) = packaged.installed.glob("*.dist-info/direct_url.json")
    origin = {"url": "https://git.example/shop", "vcs_info": {"vcs": "git", "commit_id": REVISION}}
    record.write_text(json.dumps(origin))
    packaged.run("deploy", "compose", "fleet", "--spider", SPIDER)
    fleet = packaged.path / "fleet"
    line = f"shop-fleet @ git+https://git.example/shop@{REVISION}\n"
    assert (fleet / "requirements.txt").read_text().endswith(line)
    build, _, images = (fleet / "Dockerfile").read_text().partition(" AS runtime\n")
    assert "apt-get install --yes --no-install-recommends ca-certificates git\n" in build
    assert " git\n" not in images
    assert build.index(" git\n") < build.index("-r /wheels/requirements.txt")


@pytest.mark.full
@pytest.mark.parametrize(
    ("origin", "line"),
    [
        ({"url": "file:///here", "dir_info": {"editable": True}}, "is installed in editable mode"),
        (
            {"url": "https://me:secret@git.example/shop", "vcs_info": {"vcs": "git", "commit_id": REVISION}},
            "a password does not belong into a file",
        ),
    ],
)
def test_a_package_that_servers_cannot_install_is_refused(
    packaged: PackagedFolder, origin: dict[str, Any], line: str
) -> None:
    (record,) = packaged.installed.glob("*.dist-info/direct_url.json")
    record.write_text(json.dumps(origin))
    refusal = packaged.refusal("deploy", "compose", "fleet", "--spider", SPIDER)
    assert line in refusal
    assert "secret" not in refusal
    assert not (packaged.path / "fleet").exists()


def test_a_module_of_no_package_is_refused(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    assert "is a module of no installed package" in folder.refusal("deploy", "systemd", "fleet", "--spider", "books")
