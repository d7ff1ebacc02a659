"""The benchmark's spider for Scrapy: every link followed, one item per page, settings chosen for speed."""

from typing import ClassVar

import scrapy


class BenchSpider(scrapy.Spider):
    name = "bench"
    custom_settings: ClassVar = {
        "CONCURRENT_REQUESTS": 64,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 64,
        "DOWNLOAD_DELAY": 0,
        "AUTOTHROTTLE_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
        "COOKIES_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "WARNING",
    }

    def __init__(self, url, **arguments):
        super().__init__(**arguments)
        self.start_urls = [url]

    async def start(self):
        # Scrapy's own start keeps the URL out of the duplicate filter: the first page would be fetched twice.
        for url in self.start_urls:
            yield scrapy.Request(url)

    def parse(self, response):
        links = response.css("a::attr(href)").getall()
        yield {"url": response.url, "title": response.css("title::text").get(), "links": len(links)}
        for link in links:
            yield scrapy.Request(response.urljoin(link))
