"""The documents are true: their code runs, their links lead somewhere, and nothing that exists is left out."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

import shoal as api
from docs_pages import FENCE, MARK, PAGES, ROOT, blocks, name_of
from shoal import errors
from shoal.cli.main import COMMANDS
from shoal.settings.table import FIELDS, Settings
from shoal.testing.sites.site import CatalogueSite
from shoal.urls.canonical import UrlRules

PACKAGE = ROOT / "src" / "shoal"
SECONDS = 120.0
# On a busy machine answers are slow now and then, and an adaptive pace would take that for a struggling site.
STEADY = os.environ | {"SHOAL_PACE": "fixed"}

# Files and code that documents name and that are not in this repository.
YOURS = {
    "books.py",
    "shop.py",
    "shoal.db",
    "shoal.toml",
    "logins.toml",
    "bench/.work/",
    "secrets/",
    "spiders/",
    "wheels/",
    "manifests/",
    "manifests/more/",
}
NOT_OURS = {
    "example.com",
    "www.example.com",
    "mock.patch",
    "response.css",
    "response.follow",
    "os._exit",
    "compose.yaml",
    "values.yaml",
    "monitoring.yaml",
    "hpa.yaml",
    "keda.yaml",
    "install.sh",
    "sys.exit",
    "self.log",
    "time.sleep",
    "requests.post",
}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`(\w[\w/.-]*(?:\.(?:py|sql|lua|toml|js)|(?<=\w)/))`")
NAMED_CODE = re.compile(
    r"`([A-Za-z_]+(?:\.[A-Za-z_]+)+)(?<!\.py)(?<!\.sql)(?<!\.lua)(?<!\.toml)(?<!\.db)(?<!\.txt)(?:\([^`]*\))?`"
)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    headings = HEADING.findall(path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
async def shop() -> AsyncIterator[CatalogueSite]:
    async with CatalogueSite(products=60) as site:
        yield site


async def shoal(arguments: list[str], folder: Path, *, code: int = 0) -> str:
    """Run a command as people do; gives all it wrote."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shoal", *arguments),
        cwd=folder,
        env=STEADY,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(SECONDS):
        output, _ = await process.communicate()
    assert process.returncode == code, f"shoal {shlex.join(arguments)}\n{output.decode()}"
    return output.decode()


@pytest.mark.full
async def test_the_readmes_spider_finds_every_book(shop: CatalogueSite, tmp_path: Path) -> None:
    source = next(block.text for block in blocks(ROOT / "README.md") if block.name == "books.py")
    assert len(source.splitlines()) <= 15
    start = "https://books.toscrape.com/"
    assert start in source
    (tmp_path / "books.py").write_text(source.replace(start, f"{shop.url}catalogue/page-1.html"), encoding="utf-8")
    await shoal(["run", "books.py", "--allow-private", "--rate", "unlimited", "-o", "books.jsonl"], tmp_path)
    with (tmp_path / "books.jsonl").open(encoding="utf-8") as lines:
        items = [json.loads(line) for line in lines]
    assert {item["_key"] for item in items} == shop.expected_products()
    assert all(item["title"] and item["price"].startswith("£") for item in items)


@pytest.mark.full
def test_the_table_of_spellings_is_true() -> None:
    text = (ROOT / "docs" / "explanation" / "urls.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (.+?) \|$", text, re.MULTILINE)
    assert len(rows) >= 3
    rules = UrlRules(Settings(allow=("*",)))
    for found, fetched, same in rows:
        link = rules.resolve(found, "http://example.com/page")
        assert link.url == fetched
        other = same.strip("`") if same.startswith("`") else "http://example.com" + found.lower()
        assert (link.key == rules.resolve(other).key) == same.startswith("`")


@pytest.mark.full
def test_links_between_documents_lead_somewhere() -> None:
    broken, checked = [], 0
    for path in PAGES:
        for target in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
            if "://" in target:
                continue
            checked += 1
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{name_of(path)}: {target}")
    assert not broken
    assert checked > 50


@pytest.mark.full
def test_every_document_is_linked_from_another() -> None:
    linked = set()
    for path in PAGES:
        targets = LINK.findall(path.read_text(encoding="utf-8"))
        files = {target.partition("#")[0] for target in targets if "://" not in target}
        linked |= {(path.parent / file).resolve() for file in files if file} - {path}
    assert [name_of(path) for path in PAGES if path not in linked and path.name != "README.md"] == []


@pytest.mark.full
def test_the_front_page_is_short_and_lists_every_how_to_page_once() -> None:
    front = ROOT / "docs" / "README.md"
    listed = [target for target in LINK.findall(front.read_text(encoding="utf-8")) if target.startswith("how-to/")]
    assert sorted(listed) == sorted(f"how-to/{path.name}" for path in (front.parent / "how-to").glob("*.md"))
    assert len(front.read_text(encoding="utf-8").split()) <= 700


@pytest.mark.full
def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.full
def test_a_how_to_page_is_one_screen() -> None:
    pages = list((ROOT / "docs" / "how-to").glob("*.md"))
    assert len(pages) >= 10
    for path in pages:
        seen = MARK.sub("", path.read_text(encoding="utf-8"))
        assert len(seen.splitlines()) <= 60, path.name


def test_the_reference_is_what_the_code_says() -> None:
    check = [sys.executable, "docs/generate.py", "--check"]
    result = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert result.returncode == 0, result.stderr


def test_everything_that_spiders_import_has_a_docstring() -> None:
    listing = "import api_page; print(*api_page.undocumented())"
    command = [sys.executable, "-c", listing]
    result = subprocess.run(command, cwd=ROOT / "docs", capture_output=True, text=True, check=True, timeout=SECONDS)
    assert result.stdout.split() == []


def test_every_exported_name_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    names = [name for name in api.__all__ if not name.startswith("_")]
    assert len(names) >= 9
    assert [name for name in names if f"### {name}\n" not in reference and f"`{name}` |" not in reference] == []
    raised = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert [name for name in raised if f"`{name}` |" not in reference] == []


def test_every_command_is_in_the_reference_and_the_readme() -> None:
    reference = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"## shoal {command}\n" in reference
        assert f"`shoal {command}" in readme


def test_every_setting_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in FIELDS if f"| `{name}` |" not in reference] == []


@pytest.mark.full
def test_the_documents_name_metrics_that_exist() -> None:
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    known = set(re.findall(r"`(shoal_[a-z_]+)`", reference))
    named = {
        name.removesuffix("_count").removesuffix("_sum")
        for name in re.findall(r"\bshoal_[a-z_]+", (ROOT / "docs/how-to/metrics.md").read_text(encoding="utf-8"))
    }
    assert len(named & known) > 5
    assert named - known == set()


@pytest.mark.full
def test_every_module_says_what_it_is() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.stat().st_size]
    silent = [path for path in modules if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None]
    assert [str(path.relative_to(PACKAGE)) for path in silent] == []


@pytest.mark.full
def test_the_documents_name_no_file_that_is_gone() -> None:
    tests = {path.name for path in ROOT.glob("tests/**/*.py")}
    checked, gone = 0, []
    for path in PAGES:
        named = set(NAMED_FILE.findall(path.read_text(encoding="utf-8"))) - YOURS
        # Tests and the contracts of seams go by their name alone, other files by a path.
        exists = {
            name
            for name in named
            if name in {*tests, "base.py"} or any((start / name).exists() for start in (ROOT, PACKAGE))
        }
        checked += len(named)
        gone += [f"{name_of(path)}: {name}" for name in sorted(named - exists)]
    assert checked > 50
    assert not gone


@pytest.mark.full
def test_the_documents_name_no_code_that_is_gone() -> None:
    members, of_chart = known_members(), values_of_the_chart()
    checked, gone = 0, []
    for path in PAGES:
        for name in NAMED_CODE.findall(path.read_text(encoding="utf-8")):
            checked += 1
            owner, member = name.split(".")[-2:]
            is_module = (ROOT / "src" / name.replace(".", "/")).exists() or member in members.get("shoal", ())
            if not (name in NOT_OURS | of_chart or is_module or member in members.get(owner, ())):
                gone.append(f"{name_of(path)}: {name}")
    assert checked > 50
    assert not gone


def values_of_the_chart() -> set[str]:
    """Values of the Helm chart as people name them: `redis.url`."""
    text = (PACKAGE / "deploy" / "templates" / "helm" / "shoal" / "values.yaml").read_text(encoding="utf-8")
    maps = {name: value for name, value in yaml.safe_load(text).items() if isinstance(value, dict)}
    return {f"{name}.{inner}" for name, value in maps.items() for inner in value}


def known_members() -> dict[str, set[str]]:
    """What modules and classes of the package define, by the name of the module or class."""
    members: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for name, body in [(path.stem, tree.body), *((node.name, node.body) for node in classes)]:
            members.setdefault(name, set()).update(filter(None, map(defined_name, body)))
        for node in classes:
            inner = [part for part in ast.walk(node) if isinstance(part, ast.Attribute)]
            members[node.name] |= {part.attr for part in inner if isinstance(part.ctx, ast.Store)}
        members.setdefault(path.parent.name, set()).add(path.stem)
    # Documents say page.follow of a page, and session.get of a session.
    members["page"] |= members["Page"]
    members["session"] |= members["Session"]
    return members


def defined_name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return target.id if isinstance(target, ast.Name) else None
    return None


@pytest.mark.full
def test_the_map_is_short_and_names_files_and_folders_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(re.findall(r"\w[^\s|]*", text)) <= 1500
    glossary = re.findall(r"^\| (?!word)", text.partition("## Glossary")[2], re.MULTILINE)
    assert 0 < len(glossary) <= 25
    # Some are named inside the folder that was named before them.
    inner = {"base.py"}
    named = [name for name in re.findall(r"`([a-z_./]+(?:\.py|/))`", text) if name not in inner and "docs" not in name]
    assert len(named) > 50
    assert [name for name in named if not (PACKAGE / name).exists()] == []
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert [name for name in folders if f"`{name}/`" not in text] == []
