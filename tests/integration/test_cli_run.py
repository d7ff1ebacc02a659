"""`shoal run`, `crawl` and `worker` as real processes: to the end, interrupted, resumed, killed."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from command_line import SECONDS, Folder, interrupt, is_alive

from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import wait_for_line, wait_until
from shoal.urls.canonical import lane_of
from shoal.version import install_command

PRODUCTS = 60
# Books and listing pages, two moved books, three first editions that are gone.
DONE = PRODUCTS + 3 + 2 + 3
ROOT = Path(__file__).parents[2]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_spider_runs_to_the_end_and_is_summed_up(folder: Folder, site: SiteProcess) -> None:
    result = folder.run("run", folder.spider(site.url), "-o", "books.csv")
    assert len(rows_of(folder.path / "books.csv")) == PRODUCTS
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith(f"books-1 finished: {DONE} pages in ")
    assert f"{PRODUCTS + 3} ok handled by the spider" in lines
    assert "3 http_404 not found" in lines
    assert f"items {PRODUCTS} in shoal.db and books.csv" in lines
    assert "60 robots the host's robots.txt disallows it" in lines
    assert "ignored" not in result.stdout
    assert "beginning books-1 in shoal.db" in result.stderr


def test_two_outputs_are_both_written(folder: Folder, site: SiteProcess) -> None:
    outputs = ("-o", "books.csv", "-o", "books.jsonl")
    result = folder.run("run", folder.spider(site.url), *outputs)
    assert len(rows_of(folder.path / "books.csv")) == PRODUCTS
    assert len((folder.path / "books.jsonl").read_text().splitlines()) == PRODUCTS
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert f"items {PRODUCTS} in shoal.db and books.csv and books.jsonl" in lines
    summary = folder.json("crawl", site.url, "--allow-private", "--max-pages", "1", "--rate", "unlimited", *outputs)
    assert summary["output"] == ["books.csv", "books.jsonl"]
    assert len(rows_of(folder.path / "books.csv")) == 1


def test_one_output_given_twice_is_refused_before_anything_begins(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url)
    assert "-o ./a.csv is given twice" in folder.refusal("run", name, "-o", "a.csv", "-o", "./a.csv")
    assert "-o - is given twice" in folder.refusal("run", name, "-o", "-", "-o", "-")
    assert not (folder.path / "shoal.db").exists()
    folder.run("run", name, "--max-pages", "1")
    said = folder.refusal("export", "-o", "a.csv", "-o", "b.jsonl")
    assert "-o is given 2 times, and this command writes one file: run it once for each" in said
    assert not list(folder.path.glob("[ab].*"))


def test_several_processes_share_the_work(folder: Folder, site: SiteProcess) -> None:
    before = len(site.hits())
    # So slow that nothing is done before all three have started; then the host is let go.
    name = folder.spider(site.url, rate="1/m", first="print('a word from', page.url)")
    with folder.start("run", name, "--workers", "3", "-o", "books.jsonl", "--json") as running:
        folder.wait_for_pages(0, workers=3)
        folder.run("pace", lane_of(site.url), "10/s")
        summary = json.loads(running.communicate(timeout=SECONDS)[0])
    assert summary["state"] == "finished"
    assert summary["done"] == DONE
    assert summary["outcomes"] == {"ok": PRODUCTS + 3, "redirected": 2, "http_404": 3}
    assert summary["items"] == PRODUCTS == len((folder.path / "books.jsonl").read_text().splitlines())
    fetched = Counter(hit.path for hit in site.hits()[before:])
    assert max(fetched.values()) == 1
    shares = folder.run("sql", "SELECT worker, count(*) FROM fetches GROUP BY 1").stdout.splitlines()[1:]
    assert len(shares) == 3, shares


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_a_spider_prints_has_no_control_characters(folder: Folder, site: SiteProcess, workers: str) -> None:
    first = "import sys; print('out \\x1b]0;x\\x07'); print('err \\x1b[2J\\x9b', file=sys.stderr)"
    result = folder.run("run", folder.spider(site.url, first=first), "--workers", workers, "--max-pages", "5")
    assert "out \\x1b]0;x\\x07\n" in result.stderr
    assert "err \\x1b[2J\\x9b\n" in result.stderr
    assert not {"\x1b", "\x07", "\x9b"} & set(result.stdout + result.stderr)


def test_a_finished_spider_run_with_again_is_a_new_crawl(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url)
    assert folder.json("run", name, "--max-pages", "5")["crawl"] == "books-1"
    second = folder.json("run", name, "--again", "--max-pages", "5", "--ignore-robots")
    assert (second["crawl"], second["resumed"], second["robots_ignored"]) == ("books-2", False, True)
    assert second["rejected"]["max_pages"] > 0
    assert "robots.txt was ignored" in folder.run("run", name, "--again", "--max-pages", "1", "--ignore-robots").stdout


def test_a_crawl_whose_urls_have_expired_sees_every_page_again(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url)
    assert folder.json("run", name, "--set", "dedup_ttl=3d")["done"] == DONE
    start = f"{site.url}catalogue/page-1.html"
    assert "1 known already" in folder.run("add", "books-1", start).stdout
    with contextlib.closing(sqlite3.connect(folder.path / "shoal.db")) as db, db:
        db.execute("UPDATE crawl SET generation_began = generation_began - 7 * 86400")
    assert "is forgotten since" in folder.json("why", start)["sentence"]
    folder.run("add", "books-1", start)
    again = folder.run("run", name, "--json")
    summary = json.loads(again.stdout)
    assert (summary["crawl"], summary["resumed"], summary["done"]) == ("books-1", True, 2 * DONE)
    assert (summary["items"], summary["dead"]) == (PRODUCTS, 0)
    assert "dedup_ttl cannot be switched on or off in a crawl" in again.stderr


def test_a_site_is_crawled_without_code(folder: Folder, site: SiteProcess) -> None:
    flags = ["--allow-private", "--rate", "unlimited", "--set", "pace=fixed", "--depth", "1", "--workers", "2"]
    result = folder.run("crawl", site.url, *flags, "--set", "retry_seconds=0.1", "-o", "-")
    pages = [json.loads(line) for line in result.stdout.splitlines()]
    host = site.url.split("/")[2]
    assert f"crawl-{host}-1 finished" in result.stderr
    assert {page["url"] for page in pages} > {site.url, f"{site.url}category/travel.html"}
    front = next(page for page in pages if page["url"] == site.url)
    assert (front["status"], front["title"]) == (200, "The catalogue")
    assert f"{site.url}catalogue/page-1.html" in front["links"]
    assert "more links away from a start URL than max_depth" in result.stderr


OUTPUTS = {
    "an unknown ending": ("books.xls", "cannot tell the format"),
    "no folder": ("no/folder/books.csv", "does not exist"),
    "a folder": ("folder.csv", "is not a file"),
    "a folder that takes no files": ("/proc/books.csv", "takes no files"),
    "a write-protected file": ("precious.csv", "write-protected"),
    "a file in place of a folder": ("precious.csv/books.csv", "is not a folder"),
}


@pytest.mark.parametrize(("output", "why"), OUTPUTS.values(), ids=list(OUTPUTS))
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_begun(
    folder: Folder, site: SiteProcess, output: str, why: str
) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py", "--max-pages", "1")
    (folder.path / "folder.csv").mkdir()
    (folder.path / "precious.csv").write_text("precious")
    (folder.path / "precious.csv").chmod(0o444)
    before, hits = folder.json("status"), len(site.hits())
    for command in (["run", "books.py"], ["run", "books.py", "--fresh"], ["crawl", site.url, "--allow-private"]):
        assert why in folder.refusal(*command, "-o", output)
    assert [crawl["crawl"] for crawl in folder.json("status")] == [crawl["crawl"] for crawl in before] == ["books-1"]
    assert len(site.hits()) == hits
    assert (folder.path / "precious.csv").read_text() == "precious"


def test_a_full_disk_is_told_before_anything_is_begun(folder: Folder, site: SiteProcess) -> None:
    name, hits = folder.spider(site.url), len(site.hits())
    # No file may grow: what a disk does on which nothing is left.
    line = f"ulimit -f 0; exec {shlex.quote(sys.executable)} -m shoal run {name} -o books.csv"
    result = subprocess.run(
        ["sh", "-c", line], cwd=folder.path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert result.returncode == 2
    assert "cannot write books.csv: the folder" in result.stderr
    assert "takes no files: File too large" in result.stderr
    assert sorted(path.name for path in folder.path.iterdir()) == ["books.py"]
    assert len(site.hits()) == hits


def test_parquet_without_its_extra_is_refused_before_anything_is_begun(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url)
    (folder.path / "pyarrow.py").write_text("raise ImportError('not installed')")
    assert install_command("parquet") in folder.refusal("run", name, "-o", "books.parquet")
    assert not (folder.path / "shoal.db").exists()


def test_a_site_that_cannot_be_reached_is_a_failure(folder: Folder) -> None:
    flags = ["--allow-private", "--ignore-robots", "--set", "max_attempts=1"]
    summary = folder.json("crawl", "http://127.0.0.1:9/", *flags, code=1)
    assert summary["dead"] == 1
    assert summary["outcomes"] == {"connect": 1}


def test_ctrl_c_stops_in_good_order_and_the_same_command_resumes(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url, rate="40/s")
    with folder.start("run", name) as process:
        folder.wait_for_pages(5)
        interrupt(process)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "stopping: finishing pages in hand, up to 20 s; Ctrl-C again to stop at once" in err
    assert "run the same command again to resume" in out
    status = folder.json("status", "books-1")
    assert status["state"] == "running"
    assert status["progress"]["leased"] == 0

    result = folder.run("run", name, "--rate", "500/s", "--json")
    summary = json.loads(result.stdout)
    assert (summary["crawl"], summary["resumed"], summary["done"]) == ("books-1", True, DONE)
    assert "its settings changed: rate '40/s' is now '500/s'" in result.stderr
    assert (summary["items"], summary["dead"], summary["lost"]) == (PRODUCTS, 0, 0)


def test_fresh_forgets_the_unfinished_crawl(folder: Folder, site: SiteProcess) -> None:
    with folder.start("run", folder.spider(site.url, rate="40/s"), "--workers", "2") as process:
        folder.wait_for_pages(3)
        interrupt(process)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    summary = folder.json("run", folder.spider(site.url), "--fresh")
    assert (summary["resumed"], summary["done"]) == (False, DONE)
    assert [crawl["state"] for crawl in folder.json("status")] == ["finished"]


def test_a_second_ctrl_c_stops_at_once(folder: Folder, tmp_path: Path) -> None:
    # The page in hand is never answered, and the grace period is longer than the test waits.
    patient = [f"--set={name}=600" for name in ("grace_seconds", "first_byte_seconds", "total_seconds")]
    with site_process("--products", "20", "--latency", "600", log=tmp_path / "slow.jsonl") as slow:
        for number in (1, 2):
            flags = ["--ignore-robots", "--workers", str(number), "--fresh", *patient]
            with folder.start("run", folder.spider(slow.url), *flags) as process:
                wait_until(lambda number=number: len(slow.hits()) == number, otherwise="no page was asked for")  # type: ignore[misc]  # bound now
                interrupt(process)
                wait_for_line(process.stderr, "stopping: finishing pages in hand")
                assert process.poll() is None
                interrupt(process)
                out, err = process.communicate(timeout=SECONDS)
            assert process.returncode == 130
            assert "stopping at once" in err
            # Said by a process that ended in good order, not by one that was ended by its last resort.
            assert "run the same command again to resume" in out


def test_a_handler_that_never_yields_cannot_keep_ctrl_c_out(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url, first="print('stuck', flush=True)\n        while True: pass")
    with folder.start("run", name) as process:
        wait_for_line(process.stderr, "stuck")
        interrupt(process)
        # Two signals of one kind that wait at the same time are one: the second is sent when the first was taken.
        wait_until(lambda: not is_pending(process.pid, signal.SIGINT), otherwise="SIGINT was not taken")
        interrupt(process)
        assert process.wait(timeout=SECONDS) == 130


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process and not yet taken by it."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_workers_stop_when_their_coordinator_is_killed(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url, rate="20/s", first="print('busy')")
    with folder.start("run", name, "--workers", "2") as process:
        pids = folder.wait_for_pages(3, workers=2)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=SECONDS)
    wait_until(lambda: not any(map(is_alive, pids)), otherwise="a worker is still alive")
    summary = folder.json("run", name, "--workers", "2")
    assert (summary["crawl"], summary["done"], summary["dead"]) == ("books-1", DONE, 0)


def test_a_killed_worker_is_replaced(folder: Folder, site: SiteProcess) -> None:
    with folder.start("run", folder.spider(site.url, rate="40/s"), "--workers", "2", "--json") as process:
        os.kill(folder.wait_for_pages(3, workers=2)[0], signal.SIGKILL)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert "ended with SIGKILL; its tasks are queued again, a new one starts" in err
    summary = json.loads(out)
    assert (summary["done"], summary["dead"], summary["items"]) == (DONE, 0, PRODUCTS)


def test_a_worker_joins_a_crawl_and_a_burst_ends_with_it(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url, rate="40/s")
    assert "no crawl of 'books' is unfinished" in folder.refusal("worker", name, "--burst")
    with folder.start("run", name) as process:
        folder.wait_for_pages(3)
        interrupt(process)
        process.communicate(timeout=SECONDS)
    folder.run("worker", name, "--burst")
    assert folder.json("status", "books")["progress"]["done"] == DONE


def test_a_worker_that_stays_takes_up_what_is_added(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url)
    folder.run("run", name)
    with folder.start("worker", name) as process:
        wait_for_line(process.stderr, "waiting for a crawl of 'books'")
        added = folder.json("add", "books", "-", stdin=f"{site.url}plain.txt\n")
        assert (added["new"], added["duplicates"]) == (1, 0)
        wait_for_line(process.stderr, "left books-1: 1 page")
        assert folder.json("status", "books")["progress"]["done"] == DONE + 1
        assert process.poll() is None
        interrupt(process)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert folder.json("why", f"{site.url}plain.txt")["sentence"] == "done: ok"


# Five seconds: two crawls are begun and interrupted before one worker finishes both.
def test_a_worker_serves_all_crawls_of_its_spiders(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url)
    text = (folder.path / name).read_text()
    (folder.path / name).write_text(text + text[text.index("class Books") :].replace("class Books", "class More"))
    for spider in ("Books", "More"):
        with folder.start("run", f"{name}:{spider}", "--rate", "20/s") as process:
            folder.wait_for_pages(2, crawl=f"{spider.lower()}-1")
            interrupt(process)
            process.communicate(timeout=SECONDS)
    folder.run("worker", name, "--burst")
    states = {crawl["crawl"]: crawl["state"] for crawl in folder.json("status")}
    assert states == {"books-1": "finished", "more-1": "finished"}


def test_a_worker_that_breaks_says_why_and_wants_to_be_replaced(folder: Folder, site: SiteProcess) -> None:
    path = folder.path / folder.spider(site.url, rate="40/s")
    with folder.start("run", "books.py") as process:
        folder.wait_for_pages(2)
        interrupt(process)
        process.communicate(timeout=SECONDS)
    path.write_text(path.read_text() + "\n    async def started(self):\n        raise RuntimeError('no luck')\n")
    result = folder.run("worker", "books.py", "--crawl", "books-1", "--burst", "--other-code", code=70)
    assert "RuntimeError: no luck" in result.stderr
    # The fleet tries a few times, then gives up.
    result = folder.run("run", "books.py", "--workers", "2", code=1)
    assert "ended with code 70; its tasks are queued again, a new one starts" in result.stderr
    assert result.stderr.splitlines()[-1] == "shoal: a worker could not go on; its line above says why"


def test_the_example_spider_works(folder: Folder, site: SiteProcess) -> None:
    lines = [
        "import sys; sys.path.insert(0, {!r})".format(str(ROOT / "examples")),
        "import books",
        "class Shop(books.Books):",
        f"    start = {site.url + 'catalogue/page-1.html'!r}",
        "    rate = 'unlimited'",
    ]
    (folder.path / "shop.py").write_text("\n".join(lines))
    summary = folder.json("run", "shop.py", "--allow-private")
    assert (summary["crawl"], summary["items"]) == ("shop-1", PRODUCTS)


# Five seconds: the first command that people try, from its start to the files that it leaves.
def test_the_demo_shows_a_crawl_from_start_to_results(folder: Folder) -> None:
    result = folder.run("demo", "--products", "20", "--workers", "2")
    assert "demo-1 finished" in result.stdout
    assert "http_404" in result.stdout
    assert "redirected" in result.stdout
    assert "robots.txt disallows it" in result.stdout
    assert "retries" in result.stdout
    assert "volume 1 " in result.stdout
    assert "shoal export demo-1 -o books.csv" in result.stdout
    demo = Folder(folder.path / "shoal-demo")
    assert demo.json("status", "demo")["items"] == 22
    url = next(word for word in result.stdout.split() if word.endswith("/private/stock-0.html"))
    assert demo.json("why", url)["kept_out"] == "robots"
