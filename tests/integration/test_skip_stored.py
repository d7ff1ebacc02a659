"""A crawl whose frontier is lost begins again without the pages whose items the store has."""

from __future__ import annotations

from collections import Counter

from command_line import Folder

from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 30


def test_pages_whose_items_are_stored_are_not_fetched_again(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    store = ("--store", "items.db")
    first = folder.json("run", "books.py", *store)
    books = {hit.path for hit in site.hits() if "page-" not in hit.path and hit.path != "/robots.txt"}
    assert first["items"] == PRODUCTS
    for name in ("shoal.db", "shoal.db-wal", "shoal.db-shm"):
        (folder.path / name).unlink(missing_ok=True)
    before = Counter(hit.path for hit in site.hits())
    result = folder.run("run", "books.py", *store, "--skip-stored", "/(catalogue|product)/(?!page-)")
    fetched = Counter(hit.path for hit in site.hits()) - before
    assert fetched["/catalogue/page-1.html"] == fetched["/catalogue/page-2.html"] == 1
    assert f"{PRODUCTS} pages whose items the store has count as known" in result.stderr
    again = {path for path in fetched if path in books}
    # Those that yielded no item: moved and gone.
    assert len(again) < PRODUCTS // 3
    assert f"{PRODUCTS} dropped" in " ".join(result.stdout.split())


def test_an_expression_that_is_none_is_refused_before_anything_begins(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    line = folder.refusal("run", "books.py", "--skip-stored", "(")
    assert "--skip-stored '(' is no regular expression" in line
    assert not (folder.path / "shoal.db").exists()
