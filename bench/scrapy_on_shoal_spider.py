"""The benchmark's spider for Scrapy on shoal's frontier: that for Scrapy alone with the add-on, and nothing else."""

from typing import ClassVar

from scrapy_spider import BenchSpider


class OnShoal(BenchSpider):
    custom_settings: ClassVar = {
        **BenchSpider.custom_settings,
        "ADDONS": {"shoal.scrapy.Addon": 0},
    }
