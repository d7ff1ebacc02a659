"""The same for scrapy-redis as its own documents write it: start, queue, duplicate filter and items are in Redis."""

from typing import ClassVar

import scrapy
from scrapy_redis.spiders import RedisSpider


class BenchSpider(RedisSpider):
    name = "bench"
    redis_key = "bench:start_urls"
    # A RedisSpider waits for more start URLs unless it is told to end when idle.
    max_idle_time = 3
    custom_settings: ClassVar = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "ITEM_PIPELINES": {"scrapy_redis.pipelines.RedisPipeline": 300},
        "COOKIES_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "WARNING",
    }

    def parse(self, response):
        links = response.css("a::attr(href)").getall()
        yield {"url": response.url, "title": response.css("title::text").get(), "links": len(links)}
        for link in links:
            yield scrapy.Request(response.urljoin(link))
