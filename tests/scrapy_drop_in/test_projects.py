"""Projects as people have them: a folder with scrapy.cfg, changed in their settings only."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from scrapy_project import Project
from small_site import Answer, Page, Visitor, small_site

pytestmark = pytest.mark.full

SETTINGS = """
BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
ADDONS = {"shoal.scrapy.Addon": 0}
TELNETCONSOLE_ENABLED = False
DOWNLOAD_DELAY = 0
CONCURRENT_REQUESTS_PER_DOMAIN = 8
"""
SPIDERS = """
import scrapy
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule, SitemapSpider

URL = "{url}"


class Quotes(scrapy.Spider):
    name = "quotes"
    start_urls = [URL + "/quotes/1"]

    def parse(self, response):
        for quote in response.css("div"):
            yield {{"text": quote.css("b::text").get()}}
            yield response.follow(quote.css("a")[0], self.author)
        yield from response.follow_all(css="li a", callback=self.parse)

    def author(self, response):
        '''The name of an author.

        @url {url}/author/0
        @returns items 1 1
        @returns requests 0 0
        @scrapes author
        '''
        yield {{"author": response.css("p::text").get()}}


class Rules(CrawlSpider):
    name = "rules"
    start_urls = [URL + "/rules"]
    rules = [
        Rule(LinkExtractor(allow="/page/")),
        Rule(LinkExtractor(allow="/product/"), callback="product", cb_kwargs={{"kind": "product"}}),
    ]

    def product(self, response, kind):
        yield {{kind: response.url.rsplit("/", 1)[1]}}


class Mapped(SitemapSpider):
    name = "mapped"
    sitemap_urls = [URL + "/sitemap.xml"]
    sitemap_rules = [("/item/", "item"), ("/list/", "list")]

    def item(self, response):
        yield {{"item": response.url.rsplit("/", 1)[1]}}

    def list(self, response):
        yield {{"list": response.url.rsplit("/", 1)[1]}}


class Files(scrapy.Spider):
    name = "files"
    start_urls = [URL + "/files"]
    custom_settings = {{
        "ITEM_PIPELINES": {{"scrapy.pipelines.files.FilesPipeline": 1}},
        "FILES_STORE": "downloads",
        "SHOAL_ITEM_KEY": "name",
    }}

    def parse(self, response):
        for name in response.css("a::text").getall():
            yield {{"name": name, "file_urls": [response.urljoin(name)]}}


class Pictures(scrapy.Spider):
    name = "pictures"
    start_urls = [URL + "/pictures"]
    custom_settings = {{
        "ITEM_PIPELINES": {{"scrapy.pipelines.images.ImagesPipeline": 1}},
        "IMAGES_STORE": "pictures",
        "IMAGES_THUMBS": {{"small": (8, 8)}},
        "SHOAL_ITEM_KEY": "name",
    }}

    def parse(self, response):
        for name in response.css("img::attr(src)").getall():
            yield {{"name": name, "image_urls": [response.urljoin(name)]}}


class Login(scrapy.Spider):
    name = "login"
    start_urls = [URL + "/login"]
    category = ""

    def parse(self, response):
        return scrapy.FormRequest.from_response(response, formdata={{"word": "xyzzy"}}, callback=self.inside)

    def inside(self, response):
        for number in range(4):
            yield response.follow(f"/private/{{number}}", self.private)

    def private(self, response):
        yield {{"key": response.url, "text": response.css("p::text").get()}}
"""
TOGETHER = """
from scrapy.crawler import CrawlerProcess
from scrapy.utils.project import get_project_settings

process = CrawlerProcess(get_project_settings())
for name in ("quotes", "rules", "mapped", "files", "pictures"):
    process.crawl(name)
process.start()
"""
CRAWL = ("-m", "scrapy", "crawl")


def quotes(page: int) -> str:
    some = "".join(f"<div><b>{page}.{n}</b><a href=/author/{n % 2}>by</a></div>" for n in range(5))
    return some + (f"<li><a href=/quotes/{page + 1}>next</a></li>" if page < 3 else "")


def urls(*paths: str, site: str) -> str:
    places = "".join(f"<url><loc>{site}{path}</loc></url>" for path in paths)
    return f'<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{places}</urlset>'


def login(visitor: Visitor) -> Answer:
    if visitor.body == "token=t7&word=xyzzy":
        return Answer("<p>welcome", headers={"Set-Cookie": "session=s3cret; Path=/"})
    return Answer("<form method=post action=/login><input name=token value=t7><input name=word></form>")


def private(visitor: Visitor) -> Answer:
    is_known = "session=s3cret" in (visitor.headers.get("Cookie") or "")
    return Answer("<p>the secret</p>" if is_known else "<p>please log in</p>")


def picture(colour: str) -> Answer:
    file = io.BytesIO()
    Image.new("RGB", (32, 24), colour).save(file, "PNG")
    return Answer(file.getvalue(), headers={"Content-Type": "image/png"})


def pages(url: str) -> dict[str, Page | str]:
    links = "".join(f"<a href=/page/{n}>{n}</a><a href=/product/{n}>{n}</a>" for n in range(3))
    return {
        **{f"/quotes/{page}": quotes(page) for page in (1, 2, 3)},
        "/rules": links,
        **{f"/page/{n}": links + f"<a href=/product/1{n}>more</a>" for n in range(3)},
        "/sitemap.xml": urls("/item/a", "/item/b", "/list/c", site=url),
        "/files": "<a>/one.bin</a><a>/two.bin</a>",
        "/pictures": "<img src=/red.png><img src=/blue.png><img src=/gone.png>",
        "/red.png": lambda _: picture("red"),
        "/blue.png": lambda _: picture("blue"),
        "/gone.png": lambda _: Answer(status=404),
        "/login": login,
        **{f"/private/{n}": private for n in range(4)},
    }


@pytest.fixture
def shop(project: Project) -> Project:
    (project.folder / "shop" / "spiders").mkdir(parents=True)
    for file in ("shop/__init__.py", "shop/spiders/__init__.py"):
        (project.folder / file).touch()
    (project.folder / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (project.folder / "shop" / "settings.py").write_text(SETTINGS)
    (project.folder / "together.py").write_text(TOGETHER)
    return project


def write(shop: Project, url: str) -> None:
    (shop.folder / "shop" / "spiders" / "all.py").write_text(SPIDERS.format(url=url))


def values(shop: Project, spider: str) -> list[str]:
    items = shop.items(crawl=f"{spider}-1")
    return sorted(str(value) for item in items for name, value in item.items() if not name.startswith("_"))


def sizes(folder: Path) -> list[tuple[int, int]]:
    found = []
    for file in folder.iterdir():
        with Image.open(file) as image:
            found.append(image.size)
    return found


def test_the_spiders_of_a_project_run_in_one_process(shop: Project) -> None:
    with small_site({}) as site:
        site.pages = pages(site.url)
        write(shop, site.url)
        shop.run(command=["together.py"])
        texts = [f"{page}.{number}" for page in (1, 2, 3) for number in range(5)]
        assert values(shop, "quotes") == sorted([*texts, "/author/0", "/author/1"])
        assert values(shop, "rules") == sorted(["0", "1", "2", "10", "11", "12"])
        assert values(shop, "mapped") == ["a", "b", "c"]
        assert [item["files"][0]["status"] for item in shop.items(crawl="files-1")] == ["downloaded"] * 2
        assert len(list(Path(shop.folder, "downloads", "full").iterdir())) == 2
        stored = {
            item["name"]: [image["status"] for image in item["images"]] for item in shop.items(crawl="pictures-1")
        }
        assert stored == {"/red.png": ["downloaded"], "/blue.png": ["downloaded"], "/gone.png": []}
        full, small = (sizes(shop.folder / "pictures" / place) for place in ("full", "thumbs/small"))
        assert (full, small) == ([(32, 24)] * 2, [(8, 6)] * 2)
        assert set(site.hits.values()) == {1}
        for spider in ("quotes", "rules", "mapped", "files", "pictures"):
            state, _, dead, left = shop.counts(f"{spider}-1")
            assert (state, dead, left) == ("finished", 0, 0)


def test_a_login_is_known_to_the_process_that_goes_on_and_its_arguments_must_be_the_same(shop: Project) -> None:
    with small_site({}) as site:
        site.pages = pages(site.url)
        write(shop, site.url)
        given = ("login", "-a", "category=books")
        shop.run(*given, "-s", "CLOSESPIDER_PAGECOUNT=2", "-s", "SHOAL_RATE=5/s", command=CRAWL)
        assert shop.counts("login-1")[0] == "running"

        output = shop.run("login", "-a", "category=toys", command=CRAWL, code=1)
        assert "login-1 is unfinished and was begun with -a category=books: use the same arguments" in output

        shop.run(*given, command=CRAWL)
        assert shop.counts("login-1") == ("finished", 6, 0, 0)
        assert [item["text"] for item in shop.items(crawl="login-1")] == ["the secret"] * 4
        assert site.hits["/login"] == 2


def test_commands_that_try_a_page_take_no_part_in_the_crawl(shop: Project) -> None:
    with small_site({}) as site:
        site.pages = pages(site.url)
        write(shop, site.url)
        tried = shop.run(
            *("--nolog", "--spider=quotes", "-c", "author", f"{site.url}/author/0"), command=("-m", "scrapy", "parse")
        )
        assert "[{'author': '/author/0'}]" in tried
        shown = shop.run("--nolog", "-c", "response.status", f"{site.url}/quotes/1", command=("-m", "scrapy", "shell"))
        assert "200" in shown
        assert not (shop.folder / "shoal.db").exists()


def test_contracts_are_checked_without_a_crawl(shop: Project) -> None:
    with small_site({}) as site:
        site.pages = pages(site.url)
        write(shop, site.url)
        assert "Ran 3 contracts" in (checked := shop.run("quotes", command=("-m", "scrapy", "check")))
        assert checked.rstrip().endswith("OK")
        spiders = shop.folder / "shop" / "spiders" / "all.py"
        spiders.write_text(spiders.read_text().replace("@returns items 1 1", "@returns items 2 2"))
        assert "FAILED (failures=1)" in shop.run("quotes", command=("-m", "scrapy", "check"), code=1)
        assert site.asked_for == {"/author/0": 2}
        assert not (shop.folder / "shoal.db").exists()
