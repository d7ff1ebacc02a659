"""The benchmark's spider for scrapy-redis: queue and duplicate filter in Redis, all else as for Scrapy alone."""

from typing import ClassVar

import scrapy


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

    def parse(self, response):
        links = response.css("a::attr(href)").getall()
        yield {"url": response.url, "title": response.css("title::text").get(), "links": len(links)}
        for link in links:
            yield scrapy.Request(response.urljoin(link))
