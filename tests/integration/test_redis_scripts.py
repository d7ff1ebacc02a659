"""How the Lua scripts are put together, and that every name in them is defined."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lua_bytecode import global_names

from shoal.frontier.redis.scripts import LuaFolder, gives_of, needs_of
from shoal.frontier.rules import constants
from shoal.testing.servers.redis_server import RedisServer

# What Redis gives to every script.
GIVEN = {
    "ARGV", "KEYS", "assert", "cjson", "ipairs", "math", "next", "pairs", "redis", "select", "setmetatable", "string",
    "struct", "table", "tonumber", "tostring", "type", "unpack",
}  # fmt: skip
# They make or delete a crawl, or belong to none.
WITHOUT_CRAWL = {
    "aside",
    "beat",
    "delete",
    "hold_duty",
    "inbox_forget",
    "inbox_give_back",
    "inbox_take",
    "open",
    "workers",
}
DRIVEN_BY_TESTS = {"next_free"}
FOLDER = LuaFolder()
PARTS = FOLDER.names("parts")
VERBS = FOLDER.names("verbs")
FILES = [("parts", part) for part in PARTS] + [("verbs", verb) for verb in VERBS]


def names_used_in(text: str) -> set[str]:
    """The names in the code, not those of fields."""
    code = re.sub(r"--.*$|'[^'\n]*'", "", text, flags=re.MULTILINE)
    return set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", code))


def write(folder: Path, **texts: str) -> LuaFolder:
    """A folder with these parts and one verb, `go`."""
    for name, text in texts.items():
        file = folder / ("verbs" if name == "go" else "parts") / f"{name}.lua"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return LuaFolder(folder)


def test_a_part_stands_once_and_behind_the_parts_that_it_needs(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        go="-- needs: top other\nreturn x\n",
        top="-- needs: middle bottom\n-- gives: x\nx = middle()\n",
        other="-- needs: bottom\n-- gives: o\no = bottom\n",
        middle="-- needs: bottom\n-- gives: middle\nfunction middle() return bottom end\n",
        bottom="-- gives: bottom\nbottom = 1\n",
    )
    text = folder.script("go").text
    code = [line for line in text.splitlines() if not line.startswith(("--", "local", "do", "end"))]
    assert code == ["bottom = 1", "function middle() return bottom end", "x = middle()", "o = bottom", "return x"]


def test_refuses_parts_that_need_each_other_in_a_circle(tmp_path: Path) -> None:
    folder = write(tmp_path, go="-- needs: a\n", a="-- needs: b\n", b="-- needs: c\n", c="-- needs: b\n")
    with pytest.raises(ValueError, match="in a circle: b → c → b"):
        folder.script("go")


def test_refuses_a_part_that_does_not_exist(tmp_path: Path) -> None:
    folder = write(tmp_path, go="-- needs: a\n", a="-- needs: missing\n")
    with pytest.raises(ValueError, match="no Lua part 'missing', which a needs"):
        folder.script("go")


def test_a_block_begins_with_the_constants_that_it_uses_and_no_others(tmp_path: Path) -> None:
    text = "-- gives: a\n-- MAX_WOKEN is only mentioned\na = STRIKES + BUSY_SECONDS\n"
    block = write(tmp_path, go="-- needs: a\nreturn a\n", a=text).script("go").text
    values = f"{constants.STRIKES}, {constants.BUSY_SECONDS}"
    assert block == f"local a\ndo\nlocal STRIKES, BUSY_SECONDS = {values}\n{text}end\n-- needs: a\nreturn a\n"


def test_a_name_that_a_part_does_not_give_stays_inside(tmp_path: Path, redis: RedisServer) -> None:
    folder = write(tmp_path, go="-- needs: a\nreturn secret\n", a="-- gives: a\nlocal secret = 1\na = secret\n")
    assert global_names(redis, folder.script("go").text) == {"secret"}


def test_a_lazy_part_is_run_once_and_only_when_a_name_of_it_is_looked_up(tmp_path: Path, redis: RedisServer) -> None:
    part = "-- gives: a\n-- lazy\na = {x = redis.call('INCR', KEYS[1])}\nfunction a.twice() return 2 * a.x end\n"
    unused = write(tmp_path, go="-- needs: a\nreturn 'nothing'\n", a=part).script("go")
    assert (redis.call("EVAL", unused.text, 1, "runs"), redis.call("GET", "runs")) == (b"nothing", None)
    used = write(tmp_path, go="-- needs: a\nreturn {a.twice(), a.x, a.twice()}\n", a=part).script("go")
    assert (redis.call("EVAL", used.text, 1, "runs"), redis.call("GET", "runs")) == ([2, 1, 2], b"1")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_uses_only_names_that_its_needs_define(redis: RedisServer, verb: str) -> None:
    assert global_names(redis, FOLDER.script(verb).text) <= GIVEN


@pytest.mark.parametrize("part", PARTS)
def test_a_part_uses_only_names_that_its_needs_define(redis: RedisServer, part: str) -> None:
    """A verb that needs other parts as well would hide the lack."""
    assert global_names(redis, FOLDER.assembled(f"-- needs: {part}\n", name="test")) <= GIVEN


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_a_file_needs_no_part_of_which_it_uses_nothing(kind: str, name: str) -> None:
    used = names_used_in(FOLDER.text(kind, name))
    if kind == "verbs":
        used.add("crawl")  # a verb needs it for its checks, even if it uses none of its names
    assert [
        need for need in needs_of(FOLDER.text(kind, name)) if not used & set(gives_of(FOLDER.text("parts", need)))
    ] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_gives_no_name_that_only_itself_uses(part: str) -> None:
    others = set().union(*(names_used_in(FOLDER.text(*file)) for file in FILES if file != ("parts", part)))
    assert set(gives_of(FOLDER.text("parts", part))) - others <= DRIVEN_BY_TESTS


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in WITHOUT_CRAWL])
def test_a_verb_of_a_crawl_checks_that_the_crawl_is_there(verb: str) -> None:
    assert FOLDER.text("parts", "crawl") in FOLDER.script(verb).text


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_what_it_does_and_what_comes_back(verb: str) -> None:
    text = FOLDER.text("verbs", verb)
    assert f"-- {verb}: " in text
    assert re.search(r"^-- Reply ", text, re.MULTILINE)
