"""Scrapy on shoal's frontier: an existing project joins the fleet by changing its settings."""

from shoal.integrations.scrapy.addon import Addon
from shoal.integrations.scrapy.exit_judge import ExitJudge, GivenUp
from shoal.integrations.scrapy.guard_middleware import GuardMiddleware
from shoal.integrations.scrapy.pipeline import StorePipeline
from shoal.integrations.scrapy.redis_pipeline import RedisPipeline
from shoal.integrations.scrapy.redis_spiders import RedisCrawlSpider, RedisSpider
from shoal.integrations.scrapy.scheduler import Scheduler
from shoal.integrations.scrapy.watch import SpiderWatch

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
