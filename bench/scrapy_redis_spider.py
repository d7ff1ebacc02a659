"""The benchmark's spider for scrapy-redis: queue and duplicate filter in Redis, all else as for Scrapy alone.

With the setting POSTGRES_URL each item goes into PostgreSQL by a pipeline as tutorials show it, one INSERT and one
commit per item.
"""

from typing import ClassVar

import psycopg
import scrapy


class PostgresPipeline:
    """Items into the table `scraped`, which must exist."""

    def __init__(self, url):
        self.url = url

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings["POSTGRES_URL"])

    def open_spider(self):
        self.connection = psycopg.connect(self.url)

    def process_item(self, item):
        with self.connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO scraped (url, title, links) VALUES (%s, %s, %s)",
                (item["url"], item["title"], item["links"]),
            )
        self.connection.commit()
        return item

    def close_spider(self):
        self.connection.close()


class BenchSpider(scrapy.Spider):
    name = "bench"
    custom_settings: ClassVar = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
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

    @classmethod
    def update_settings(cls, settings):
        super().update_settings(settings)
        if settings["POSTGRES_URL"]:
            settings.set("ITEM_PIPELINES", {PostgresPipeline: 300}, priority="spider")

    async def start(self):
        # Scrapy's own start keeps the URL out of the duplicate filter: the first page would be fetched twice.
        for url in self.start_urls:
            yield scrapy.Request(url)

    def parse(self, response):
        links = response.css("a::attr(href)").getall()
        yield {"url": response.url, "title": response.css("title::text").get(), "links": len(links)}
        for link in links:
            yield scrapy.Request(response.urljoin(link))
