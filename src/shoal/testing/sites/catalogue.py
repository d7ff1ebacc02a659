"""The contents of the catalogue site and the graph site: pure, the same for the same seed, with the expected results of
a crawl."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from dataclasses import dataclass
from typing import NamedTuple

CATEGORIES = ("travel", "mystery", "history", "poetry", "science", "cooking", "music", "gardens")
ADJECTIVES = ("Quiet", "Crimson", "Hidden", "Salted", "Northern", "Paper", "Golden", "Broken", "Distant", "Électric")
NOUNS = ("Harbour", "Garden", "Lantern", "Archive", "Orchard", "Compass", "Winter", "Atlas", "Café", "Tide")
SENTENCES = (
    "A small book about large waters.",
    "Nobody in the village remembered the lighthouse being built.",
    "Contains forty recipes, nine maps and one apology.",
    "The second edition corrects the first, mostly.",
    "Printed on paper that smells faintly of rain.",
    "Readers who finished it tended to begin again.",
)
MOVED_EVERY = 40
GONE_EVERY = 25
REVIEWS_EVERY = 10
RELATED = 4
PRIVATE_PAGES = 10
ELSEWHERE = "http://127.0.0.99:9/elsewhere.html"


class Product(NamedTuple):
    number: int
    sku: str
    title: str
    price: str
    stock: int
    category: str
    description: str


class Page(NamedTuple):
    body: str | bytes
    kind: str = "text/html; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """A shop with listings, products, a sitemap and a feed; `base` and `reviews_base` are the addresses of its hosts.

    All links to a product use one address. A few of these are `/redirect/…`, so that a crawl which follows redirects
    still fetches each page once."""

    products: int = 200
    per_page: int = 20
    seed: int = 1
    flaky: int = 2
    base: str = "http://127.0.0.1"
    reviews_base: str | None = None

    @property
    def last_page(self) -> int:
        return max(1, -(-self.products // self.per_page))

    @property
    def reviews(self) -> int:
        return 0 if self.reviews_base is None else max(1, self.products // REVIEWS_EVERY)

    def sku(self, number: int) -> str:
        digest = hashlib.blake2b(f"{self.seed}/{number}".encode(), digest_size=4).hexdigest()
        return f"{number:06d}-{digest}"

    def number(self, sku: str) -> int | None:
        """The product with this SKU."""
        head = sku.partition("-")[0]
        number = int(head) if head.isdecimal() else -1
        return number if 0 <= number < self.products and self.sku(number) == sku else None

    def product(self, number: int) -> Product:
        draw = random.Random(f"{self.seed}/{number}")
        return Product(
            number=number,
            sku=self.sku(number),
            title=f"The {draw.choice(ADJECTIVES)} {draw.choice(NOUNS)}, volume {number + 1}",
            price=f"£{draw.randint(500, 6000) / 100:.2f}",
            stock=draw.randint(0, 40),
            category=CATEGORIES[number % len(CATEGORIES)],
            description=" ".join(draw.choices(SENTENCES, k=12)),
        )

    def address(self, number: int) -> str:
        """The path in links to a product."""
        folder = "redirect" if self._is_moved(number) else "product"
        return f"/{folder}/{self.sku(number)}.html"

    def expected_products(self) -> set[str]:
        return {self.sku(number) for number in range(self.products)}

    def expected_urls(self) -> set[str]:
        """Every URL of the main host that a full crawl from `/` fetches exactly once with status 200."""
        paths = ["/", "/plain.txt"]
        paths += [f"/catalogue/page-{page}.html" for page in range(1, self.last_page + 1)]
        paths += [f"/flaky/{number}.html" for number in range(self.flaky)]
        paths += [f"/product/{self.sku(number)}.html" for number in range(self.products)]
        for name in self._categories():
            paths += [f"/category/{name}.html", f"/category/{name}.html?order=price&view=grid"]
        return {self.base + path for path in paths}

    def expected_missing(self) -> set[str]:
        """Every linked URL that answers 404."""
        return {f"{self.base}/product/gone-{number}.html" for number in range(0, self.products, GONE_EVERY)}

    def expected_reviews(self) -> set[str]:
        """Every page of the slow host."""
        return {f"{self.reviews_base}/slow/{number}.html" for number in range(self.reviews)}

    def sitemap_urls(self) -> set[str]:
        return {self.base + self.address(number) for number in range(self.products)}

    def home(self) -> Page:
        categories = "".join(f'<li><a href="/category/{name}.html">{name}</a></li>' for name in self._categories())
        offers = "".join(f'<li><a href="/flaky/{n}.html">Offer {n + 1}</a></li>' for n in range(self.flaky))
        return _page(
            "The catalogue",
            f'<h1>The catalogue</h1><p>{self.products} books. <a href="/catalogue/page-1.html">See all</a></p>'
            f'<ul class="categories">{categories}</ul><ul class="offers">{offers}</ul>'
            '<p><a href="/plain.txt">A plain list</a> <a href="#top">Top</a></p>',
        )

    def listing(self, page: int) -> Page | None:
        if not 1 <= page <= self.last_page:
            return None
        numbers = range((page - 1) * self.per_page, min(page * self.per_page, self.products))
        before = f'<li class="previous"><a href="page-{page - 1}.html">previous</a></li>' if page > 1 else ""
        after = f'<li class="next"><a href="page-{page + 1}.html">next</a></li>' if page < self.last_page else ""
        return _page(
            f"Page {page}",
            f"<h1>All books</h1>{self._pods(numbers)}"
            f'<ul class="pager">{before}<li class="current">Page {page} of {self.last_page}</li>{after}</ul>'
            f'<a class="last" href="/catalogue/page-{self.last_page}.html">{self.last_page}</a>',
        )

    def category(self, name: str) -> Page | None:
        if name not in self._categories():
            return None
        numbers = range(CATEGORIES.index(name), self.products, len(CATEGORIES))[: self.per_page]
        path = f"/category/{name}.html"
        return _page(
            name.title(),
            f"<h1>{name.title()}</h1>{self._pods(numbers)}"
            f'<a href="{path}?order=price&amp;view=grid">By price</a> '
            f'<a href="{path}?view=grid&amp;order=price">By price, too</a> '
            f'<a href="{path}?utm_source=category&amp;order=price&amp;view=grid">By price, tracked</a>',
        )

    def product_page(self, sku: str) -> Page | None:
        number = self.number(sku)
        if number is None:
            return None
        product = self.product(number)
        rows = {"SKU": product.sku, "Price": product.price, "In stock": str(product.stock)}
        table = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
        return _page(
            product.title,
            f'<ul class="breadcrumb"><li><a href="/">Home</a></li>'
            f'<li><a href="/category/{product.category}.html">{product.category}</a></li></ul>'
            f'<article class="product_page"><h1>{product.title}</h1><p class="price_color">{product.price}</p>'
            f'<p class="availability">In stock ({product.stock} available)</p>'
            f'<p class="description">{product.description}</p><table>{table}</table></article>'
            f'<ul class="related">{self._related(number)}</ul><footer>{self._footer(number)}</footer>',
        )

    def redirect(self, sku: str) -> str | None:
        """The new path of a moved product."""
        number = self.number(sku)
        return None if number is None or not self._is_moved(number) else f"/product/{sku}.html"

    def review(self, number: int) -> Page | None:
        if not 0 <= number < self.reviews:
            return None
        draw = random.Random(f"{self.seed}/review/{number}")
        return _page(
            f"Review {number}",
            f'<h1>Review {number}</h1><p class="stars">{draw.randint(1, 5)}</p><p>{draw.choice(SENTENCES)}</p>'
            f'<a href="{self.base}{self.address(number)}">The book</a>',
        )

    def api(self, page: int) -> Page | None:
        if not 1 <= page <= self.last_page:
            return None
        numbers = range((page - 1) * self.per_page, min(page * self.per_page, self.products))
        found = [
            {"sku": p.sku, "title": p.title, "price": p.price, "url": self.base + self.address(p.number)}
            for p in map(self.product, numbers)
        ]
        return Page(json.dumps({"page": page, "last": self.last_page, "products": found}), "application/json")

    def robots(self, *, crawl_delay: float | None) -> Page:
        delay = "" if crawl_delay is None else f"Crawl-delay: {crawl_delay:g}\n"
        return Page(f"User-agent: *\nDisallow: /private/\n{delay}\nSitemap: {self.base}/sitemap.xml\n", "text/plain")

    def sitemap_index(self) -> Page:
        return Page(
            '<?xml version="1.0" encoding="UTF-8"?>\n<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
            f"<sitemap><loc>{self.base}/sitemap-products.xml.gz</loc></sitemap></sitemapindex>\n",
            "application/xml",
        )

    def sitemap(self) -> Page:
        urls = "".join(f"<url><loc>{url}</loc><priority>0.5</priority></url>" for url in sorted(self.sitemap_urls()))
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
            f"{urls}</urlset>\n"
        )
        return Page(gzip.compress(text.encode(), mtime=0), "application/gzip")

    def feed(self) -> Page:
        newest = (self.product(number) for number in range(min(self.per_page, self.products)))
        entries = "".join(
            f"<item><title>{p.title}</title><link>{self.base}{self.address(p.number)}</link><guid>{p.sku}</guid></item>"
            for p in newest
        )
        return Page(
            f'<?xml version="1.0" encoding="UTF-8"?>\n<rss version="2.0"><channel><title>The catalogue</title>'
            f"<link>{self.base}/</link>{entries}</channel></rss>\n",
            "application/rss+xml",
        )

    def plain(self) -> Page:
        lines = (f"{self.base}{self.address(number)}\n" for number in range(self.products))
        return Page("".join(lines), "text/plain; charset=utf-8")

    def _is_moved(self, number: int) -> bool:
        return number % MOVED_EVERY == MOVED_EVERY - 1 or number == self.products - 1

    def _categories(self) -> tuple[str, ...]:
        return CATEGORIES[: self.products]

    def _pods(self, numbers: range) -> str:
        return "".join(
            f'<article class="product_pod"><h3><a href="{self.address(p.number)}">{p.title}</a></h3>'
            f'<p class="price_color">{p.price}</p></article>'
            for p in map(self.product, numbers)
        )

    def _related(self, number: int) -> str:
        draw = random.Random(f"{self.seed}/related/{number}")
        links = []
        for other in draw.sample(range(self.products), k=min(RELATED, self.products)):
            path = self.address(other)
            # The clean link comes first, so the page is always fetched under it.
            links.append(f'<li><a href="{path}">Book {other + 1}</a></li>')
            links.append(f'<li><a href="{self.base}{path}?utm_source=related&amp;fbclid={number}#buy">again</a></li>')
        return "".join(links)

    def _footer(self, number: int) -> str:
        links = [
            f'<a href="/private/stock-{number % PRIVATE_PAGES}.html">Stock room</a>',
            f'<a href="{ELSEWHERE}">Our friends</a>',
            '<a href="mailto:books@shop.example">Write to us</a>',
        ]
        if number % GONE_EVERY == 0:
            links.append(f'<a href="/product/gone-{number}.html">First edition</a>')
        if self.reviews:
            links.append(f'<a class="review" href="{self.reviews_base}/slow/{number % self.reviews}.html">Review</a>')
        return " ".join(links)


@dataclass(frozen=True, kw_only=True)
class LinkGraph:
    """Numbered pages that link by a hash; links to 2i+1 and 2i+2 make each page reachable from page 0.

    After them come the pages `apart`, to which no link leads."""

    pages: int = 2000
    links: int = 8
    seed: int = 1
    bases: tuple[str, ...] = ("http://127.0.0.1",)
    apart: int = 0

    def url(self, number: int) -> str:
        return f"{self.bases[number % len(self.bases)]}/g/{number}"

    def targets(self, number: int) -> list[int]:
        """The pages that a page links to."""
        tree = [child for child in (2 * number + 1, 2 * number + 2) if child < self.pages]
        draw = random.Random(f"{self.seed}/{number}")
        return tree + [draw.randrange(self.pages) for _ in range(self.links - len(tree))]

    @property
    def pages_apart(self) -> range:
        """The numbers of the pages to which no link leads."""
        return range(self.pages, self.pages + self.apart)

    def expected_urls(self) -> set[str]:
        return {self.url(number) for number in range(self.pages + self.apart)}

    def page(self, number: int, *, mark: str = "") -> Page:
        """A page; the mark is for the spider of `shoal chaos`."""
        links = "".join(f'<li><a href="{self.url(target)}">{target}</a></li>' for target in self.targets(number))
        shown = f'<p class="mark">{mark}</p>' if mark else ""
        return _page(f"Page {number}", f"<h1>{number}</h1>{shown}<ul>{links}</ul>")


def _page(title: str, body: str) -> Page:
    return Page(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<link rel="alternate" type="application/rss+xml" href="/feed.xml"></head>\n<body>{body}</body></html>\n'
    )
