"""Scrapy on shoal's frontier: an existing project joins the fleet by changing its settings."""

from shoal.scrapy.addon import Addon
from shoal.scrapy.middlewares import ExitJudge, GivenUp, GuardMiddleware, SpiderWatch
from shoal.scrapy.pipelines import RedisPipeline, StorePipeline
from shoal.scrapy.redis_spiders import RedisCrawlSpider, RedisSpider
from shoal.scrapy.scheduler import Scheduler

__all__ = [
    "Addon",
    "ExitJudge",
    "GivenUp",
    "GuardMiddleware",
    "RedisCrawlSpider",
    "RedisPipeline",
    "RedisSpider",
    "Scheduler",
    "SpiderWatch",
    "StorePipeline",
]
