"""Looking at crawls and steering them: status, top, why, dead, add, pause, resume, cancel, pace, export."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import Folder, json_of, shoal_
from msgspec.structs import replace

from shoal.cli.crawl_choice import choose
from shoal.cli.display.next_commands import program
from shoal.errors import UsageError
from shoal.model import Crawl, CrawlState
from shoal.policy.politeness import lent_interval
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 40
BROKEN = "000007-"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, site: SiteProcess) -> Path:
    """A finished crawl with one dead letter, and a folder to copy it from."""
    folder = Folder(tmp_path_factory.mktemp("finished"))
    first = f"assert {BROKEN!r} not in page.url, 'book seven is broken'"
    folder.run("run", folder.spider(site.url, first=first), "--set", "max_attempts=2")
    return folder.path


@pytest.fixture
def crawl(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return "books-1"


def test_status_tells_counts_outcomes_and_items(crawl: str) -> None:
    status = json_of("status", crawl)
    assert (status["crawl"], status["state"], status["items"]) == (crawl, "finished", PRODUCTS - 1)
    assert (status["progress"]["dead"], status["left"]) == (1, 0)
    text = shoal_("status").stdout
    assert text.startswith("books-1 finished, ")
    assert f"{PRODUCTS - 1} items" in text


def test_a_spider_name_means_its_newest_crawl(crawl: str) -> None:
    assert json_of("status", "books")["crawl"] == crawl


def test_status_without_a_name_lists_several_crawls(crawl: str) -> None:
    shoal_("crawl", "http://127.0.0.1:9/", "--deny", ".", code=1)
    lines = shoal_("status").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["crawl", "state"],
        ["crawl-127.0.0.1:9-1", "finished"],
        ["books-1", "finished"],
    ]
    assert [status["crawl"] for status in json_of("status")] == ["crawl-127.0.0.1:9-1", "books-1"]


def test_an_unknown_crawl_is_refused_with_the_known_ones(crawl: str) -> None:
    for command in (
        ["status", "bokos"],
        ["pause", "bokos"],
        ["export", "bokos", "-o", "a.csv"],
        ["dead", "list", "bokos"],
    ):
        assert (
            shoal_(*command, code=2).stderr
            == "shoal: there is no crawl 'bokos'; did you mean books? There are books-1\n"
        )


def test_top_prints_one_reading_into_a_pipe(crawl: str) -> None:
    (line,) = shoal_("top").stdout.splitlines()
    assert line.startswith("books-1 finished, ")


def test_why_tells_the_life_of_a_page(crawl: str, site: SiteProcess) -> None:
    url = f"{site.url}catalogue/page-2.html"
    fate = json_of("why", url)
    assert (fate["state"], fate["crawl"], fate["fetch"]["status"]) == ("done", crawl, 200)
    assert fate["found_on"] == f"{site.url}catalogue/page-1.html"
    text = shoal_("why", url).stdout
    assert text.splitlines()[:2] == [url, "done: ok"]
    assert "status 200" in text


def test_why_tells_of_a_page_that_is_gone_and_of_one_that_moved(crawl: str, site: SiteProcess) -> None:
    assert json_of("why", f"{site.url}product/gone-0.html")["sentence"] == "done: http_404"
    moved = next(hit.path for hit in site.hits() if hit.path.startswith("/redirect/"))
    assert json_of("why", site.url + moved[1:])["sentence"].startswith(f"done: it redirects to {site.url}product/")


def test_why_tells_which_url_another_spelling_is_merged_with(crawl: str, site: SiteProcess) -> None:
    url = f"{site.url}catalogue/page-2.html"
    fate = json_of("why", f"{url}?utm_source=letter#top")
    assert (fate["state"], fate["merged_with"]) == ("done", url)


def test_why_shows_the_traceback_of_a_dead_page(crawl: str, site: SiteProcess) -> None:
    (letter,) = json_of("dead", "list")
    text = shoal_("why", letter["url"]).stdout
    assert "dead after 2 attempts: handler: AssertionError: book seven is broken" in text
    assert "Traceback" in text
    assert "books.py" in text


@pytest.mark.parametrize(
    ("path", "rule"),
    [("private/stock-3.html", "robots"), ("a/a/a/a/a/a.html", "path_repeats"), ("x" * 3000, "url_too_long")],
)
def test_why_names_the_rule_that_kept_a_url_out(crawl: str, site: SiteProcess, path: str, rule: str) -> None:
    fate = json_of("why", site.url + path)
    assert (fate["state"], fate["kept_out"]) == ("unknown", rule)
    assert fate["sentence"].startswith(f"kept out ({rule}): ")


def test_why_says_out_of_scope_and_never_found(crawl: str, site: SiteProcess) -> None:
    assert json_of("why", "https://example.com/")["kept_out"] == "out_of_scope"
    assert json_of("why", f"{site.url}nobody/links/here")["sentence"].startswith("never found")
    assert "did you mean https://example.com" in shoal_("why", "example.com", code=2).stderr


def test_why_names_the_limits_that_may_have_kept_a_url_out(crawl: str, site: SiteProcess) -> None:
    shoal_("run", "books.py", "--again", "--max-pages", "3")
    fate = json_of("why", f"{site.url}nobody/links/here", "books-2")
    assert fate["maybe"] == ["max_pages"]
    assert "max_pages" in fate["sentence"]


def test_why_finds_the_crawl_that_knows_the_url(crawl: str, site: SiteProcess) -> None:
    shoal_("crawl", "http://127.0.0.1:9/", "--deny", ".", code=1)
    assert json_of("why", f"{site.url}catalogue/page-2.html")["crawl"] == crawl


def test_dead_letters_are_listed_and_filtered(crawl: str, site: SiteProcess) -> None:
    result = shoal_("dead", "list")
    assert result.stdout.splitlines()[0].split() == ["url", "reason", "attempts", "when"]
    assert "handler: AssertionError: book seven is broken" in result.stdout
    assert "books-1: 1 of 1 dead letter; -v shows why" in result.stderr
    assert "Traceback" in shoal_("dead", "list", crawl, "-v").stdout
    (letter,) = json_of("dead", "list", "--reason", "handler", "--since", "1h", "--host", site.url)
    assert "book seven is broken" in letter["detail"]
    assert json_of("dead", "list", "--url", letter["url"] + "?utm_source=x") == [letter]
    for nothing in (["--reason", "http_503"], ["--since", "2099-01-01"], ["--host", "example.com"]):
        assert json_of("dead", "list", *nothing) == []


def test_a_requeued_dead_letter_is_tried_again_by_the_same_command(crawl: str, site: SiteProcess) -> None:
    assert shoal_("dead", "requeue", "--reason", "handler").stdout.startswith("books-1: 1 dead letter queued again")
    assert json_of("status", crawl)["state"] == "running"
    Folder(Path()).spider(site.url)
    summary = json_of("run", "books.py")
    assert (summary["crawl"], summary["resumed"], summary["dead"], summary["items"]) == (crawl, True, 0, PRODUCTS)


def test_a_dropped_dead_letter_is_gone(crawl: str) -> None:
    assert shoal_("dead", "drop").stdout == "books-1: 1 dead letter dropped\n"
    assert shoal_("dead", "list").stderr == "books-1: no dead letters\n"


def test_urls_are_added_from_the_command_line_and_from_stdin(crawl: str, site: SiteProcess) -> None:
    new, known = f"{site.url}plain.txt", f"{site.url}catalogue/page-1.html"
    added = json_of("add", crawl, new, known)
    assert (added["new"], added["duplicates"]) == (1, 1)
    lines = f"# a comment\n\n{site.url}\nnonsense\n{known}\n"
    added = json_of("add", "-", stdin=lines)
    assert (added["crawl"], added["new"], added["duplicates"], added["rejected"]) == (crawl, 1, 1, {"invalid_url": 1})
    assert json_of("why", new)["state"] == "queued"
    assert shoal_("add", new).stdout == "books-1: 0 new, 1 known already\n"


def test_added_urls_wait_for_workers_of_their_kind(crawl: str, site: SiteProcess) -> None:
    result = shoal_("add", crawl, f"{site.url}plain.txt", "--kind", "browser")
    assert result.stdout == "books-1: 1 new, 0 known already\n"
    assert "1 task of the kind browser waits, and no worker does that kind" in result.stderr
    assert "books.py --kinds browser` does" in result.stderr
    assert [(one["kind"], one["waiting"]) for one in json_of("status", crawl)["kinds"]] == [("http", 0), ("browser", 1)]
    assert (
        "--kind 'Browser' is not a kind" in shoal_("add", crawl, f"{site.url}new", "--kind", "Browser", code=2).stderr
    )
    assert json_of("why", f"{site.url}new")["state"] == "unknown"


def test_an_invalid_url_adds_nothing(crawl: str, site: SiteProcess) -> None:
    assert "not a valid URL" in shoal_("add", crawl, f"{site.url}new", "http://[", code=2).stderr
    assert json_of("why", f"{site.url}new")["state"] == "unknown"
    assert "Give the URLs" in shoal_("add", crawl, code=2).stderr
    assert "Give the URLs" in shoal_("add", code=2).stderr


def test_a_crawl_is_paused_resumed_and_cancelled(crawl: str, site: SiteProcess) -> None:
    assert "finished: there is nothing to pause" in shoal_("pause", code=2).stderr
    shoal_("add", f"{site.url}plain.txt")
    assert shoal_("pause").stdout == "books-1 is paused: 1 task left\n"
    assert json_of("status", crawl)["bound"] == "paused by an operator; `shoal resume` lets it go on"
    assert shoal_("resume", crawl).stdout.startswith("books-1 is running: 1 task left; ")
    assert shoal_("cancel", "books").stdout == "books-1 is cancelled: 1 task set aside, 0 in flight\n"
    assert "set aside" in json_of("why", f"{site.url}plain.txt")["sentence"]


def test_without_a_name_the_only_unfinished_crawl_is_meant_else_the_newest() -> None:
    newest, older, oldest = (Crawl(id=f"news-{number}", spider="news") for number in (3, 2, 1))
    ended = [replace(crawl, state=CrawlState.FINISHED) for crawl in (newest, older, oldest)]
    assert choose(ended, None).id == "news-3"
    assert choose([ended[0], older, ended[2]], None).id == "news-2"
    with pytest.raises(UsageError, match="name one of news-3, news-1"):
        choose([newest, ended[1], oldest], None)
    with pytest.raises(UsageError, match="there is no crawl yet"):
        choose([], None)


def test_the_pace_of_a_host_is_changed(crawl: str, site: SiteProcess) -> None:
    shoal_("add", f"{site.url}plain.txt")
    host = site.url.split("/")[2]
    assert shoal_("pace", host, "30/m").stdout == f"books-1: {host} at 30/m from the next request on\n"
    (lane,) = json_of("status", crawl)["lanes"]
    assert (lane["lane"], lane["interval"]) == (host, lent_interval(2.0))
    assert "4/s, 30/m" in shoal_("pace", host, "fast", code=2).stderr
    assert "no host" in shoal_("pace", "not a host", "1/s", code=2).stderr


def test_a_pace_for_a_host_that_the_crawl_has_nothing_to_do_with_is_set_with_a_warning(
    crawl: str, site: SiteProcess
) -> None:
    shoal_("add", f"{site.url}plain.txt", "https://www.example.com/")
    assert shoal_("pace", "www.example.com", "1/s").stderr == ""
    slip = shoal_("pace", "www.exmaple.com", "1/s")
    assert slip.stdout == "books-1: www.exmaple.com at 1/s from the next request on\n"
    assert slip.stderr == ("warning: books-1 has no tasks at www.exmaple.com so far; did you mean www.example.com?\n")
    far = shoal_("pace", "zzz.test", "1/s")
    assert far.stderr == "warning: books-1 has no tasks at zzz.test so far\n"
    paced = json_of("pace", "www.exmaple.com", "1/s")
    assert (paced["is_known"], paced["near"]) == (False, ["www.example.com"])


def test_a_pace_in_a_finished_crawl_is_set_for_urls_that_come_later(crawl: str, site: SiteProcess) -> None:
    host = site.url.split("/")[2]
    paced = shoal_("pace", host, "1/s")
    assert paced.stderr == "warning: books-1 is finished: the pace applies when URLs are added\n"


def test_items_are_exported_by_crawl_or_all_of_a_spider(crawl: str) -> None:
    result = shoal_("export", "-o", "books.jsonl")
    assert result.stderr == f"{PRODUCTS - 1} items of books-1 in books.jsonl\n"
    assert len(Path("books.jsonl").read_text().splitlines()) == PRODUCTS - 1
    shoal_("run", "books.py", "--again", "--max-pages", "3")
    assert shoal_("export", "books-1", "-o", "a.csv").stderr.startswith(f"{PRODUCTS - 3} items of books-1")
    assert shoal_("export", "books-2", "-o", "a.csv").stderr.startswith("2 items of books-2")
    assert shoal_("export", "books", "--all", "-o", "a.csv").stderr.startswith(f"{PRODUCTS - 1} items of books ")
    assert "cannot tell the format" in shoal_("export", "-o", "a.doc", code=2).stderr


def test_an_export_says_where_the_items_are_that_later_crawls_took_over(crawl: str) -> None:
    everything = PRODUCTS - 1
    shoal_("run", "books.py", "--again", "--max-pages", "3")
    some = shoal_("export", "books-1", "-o", "a.csv").stderr.splitlines()
    assert some[1:] == [
        f"books-1: its pages yielded {everything} items, of which it has {everything - 2} now: an item belongs to the"
        " crawl that wrote it last, and books-2 has 2; for all items of books:"
        f" {program()} export books-1 --all -o FILE"
    ]
    assert len(shoal_("export", "books-2", "-o", "a.csv").stderr.splitlines()) == 1
    shoal_("run", "books.py", "--again", "--set", "max_attempts=2")
    none = shoal_("export", "books-1", "-o", "a.csv").stderr
    assert none.startswith("0 items of books-1 in a.csv\nbooks-1: its pages yielded")
    assert f"books-3 has {everything};" in none
    exported = json_of("export", "books-1", "-o", "a.csv")
    assert (exported["number"], exported["yielded"], exported["elsewhere"]) == (0, everything, {"books-3": everything})
    assert len(shoal_("export", "books-1", "--all", "-o", "a.csv").stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["books-1", "--where", "title=none"], f"books-1: none of its {PRODUCTS - 1} items matches"),
        (["books-1", "--all", "--url", "ftp://"], f"books: none of its {PRODUCTS - 1} items matches"),
        (["books-1", "--versions"], f"books-1: none of its {PRODUCTS - 1} items has a kept version (keep_versions)"),
        (
            ["--spider", "books", "--since", "2999-01-01"],
            f"books: none of its {PRODUCTS - 1} items matches",
        ),
        (["--spider", "bokos"], "shoal.db has no item of bokos"),
        (
            ["books-1", "--store", "other.db"],
            f"yielded {PRODUCTS - 1} items, but other.db has no item of books: did it run",
        ),
    ],
)
def test_an_export_of_nothing_says_why(crawl: str, options: list[str], line: str) -> None:
    shoal_("store", "init", "--store", "other.db")
    *before, number, why = shoal_("export", *options, "-o", "a.jsonl").stderr.splitlines()
    assert number.startswith(("0 items of", "0 versions of"))
    assert line in why
    assert all("are also in" in one for one in before)


def test_a_run_whose_items_stayed_with_an_earlier_crawl_says_so(crawl: str) -> None:
    run = shoal_("run", "books.py", "--again", "--set", "max_attempts=2", "--set", "freshness=1h", "-o", "new.jsonl")
    assert Path("new.jsonl").read_text() == ""
    assert f"books-2: its pages yielded {PRODUCTS - 1} items, of which it has 0 now" in run.stderr
    assert f"and books-1 has {PRODUCTS - 1};" in run.stderr
    assert f"and books-1 has {PRODUCTS - 1};" in shoal_("export", "books-2", "-o", "new.jsonl").stderr
