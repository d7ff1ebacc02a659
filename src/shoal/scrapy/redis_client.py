"""The settings of scrapy-redis as shoal understands them, the client that they name, and calls that are repeated while
Redis is unreachable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from scrapy import Spider
from scrapy.settings import BaseSettings
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import load_object
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from shoal.errors import UsageError
from shoal.text.errors import line_of
from shoal.version import install_command

if TYPE_CHECKING:
    from redis import Redis


SCRAPY_REDIS = "scrapy_redis."
UNUSED_DUPEFILTER = "DUPEFILTER_CLASS of scrapy_redis is not used: the frontier knows its requests by fingerprint"
START_KEY = "%(name)s:start_urls"
TIMEOUT_SECONDS = 10.0
# Settings for the client, beside REDIS_PARAMS.
_CLIENT = {"REDIS_URL": "url", "REDIS_HOST": "host", "REDIS_PORT": "port", "REDIS_DB": "db"}
_NOT_USED = {
    "SCHEDULER_QUEUE_KEY": "the frontier has its own keys",
    "SCHEDULER_DUPEFILTER_KEY": "the frontier has its own keys",
    "SCHEDULER_SERIALIZER": "requests are stored as MessagePack",
}


def client_of(settings: BaseSettings, **options: Any) -> Redis:
    """A client of the Redis in REDIS_URL, or REDIS_HOST and the settings beside it."""
    try:
        import redis
    except ImportError:
        raise UsageError(f"start URLs in Redis need a package: {install_command('redis')}") from None
    given = _parameters(settings)
    kind = given.pop("redis_cls", redis.Redis)
    kind = load_object(kind) if isinstance(kind, str) else kind
    url = given.pop("url", None)
    options = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS, **given, **options}
    client: Redis = kind.from_url(url, **options) if url else kind(**options)
    return client


def frontier_of(settings: BaseSettings) -> str:
    """The frontier URL in the settings of scrapy-redis; empty if they have none."""
    given = _parameters(settings)
    if "url" in given:
        return str(given["url"])
    if "host" not in given:
        return ""
    user, password = given.get("username") or "", given.get("password") or ""
    secret = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    scheme = "rediss" if given.get("ssl") else "redis"
    return f"{scheme}://{secret}{given['host']}:{given.get('port', 6379)}/{given.get('db', 0)}"


def idle_seconds_of(settings: BaseSettings) -> float:
    """A spider with start URLs in Redis ends after this long without work; 0: never."""
    return settings.getfloat("MAX_IDLE_TIME_BEFORE_CLOSE") or settings.getfloat("SCHEDULER_IDLE_BEFORE_CLOSE")


def reads_redis(spider: Spider) -> bool:
    """Whether the start URLs of a spider are in Redis."""
    return hasattr(spider, "redis_key")


def remarks_on(settings: BaseSettings, spider: Spider) -> list[str]:
    """Remarks on settings of scrapy-redis that mean something else here."""
    remarks = [f"{name} is not used: {why}" for name, why in _NOT_USED.items() if settings.get(name)]
    if any(kind.__module__.startswith(SCRAPY_REDIS) for kind in type(spider).__mro__):
        remarks.append(
            "RedisSpider of scrapy_redis loses start URLs when the process is killed: import it from shoal.scrapy"
        )
    if settings.getint("SCHEDULER_IDLE_BEFORE_CLOSE") and not reads_redis(spider):
        remarks.append(
            "SCHEDULER_IDLE_BEFORE_CLOSE is not used: the spider ends when no process of the crawl has work left"
        )
    if settings.get("SCHEDULER_PERSIST") is not None and not settings.getbool("SCHEDULER_PERSIST"):
        remarks.append(
            "SCHEDULER_PERSIST = False is not used: an unfinished crawl is kept; SHOAL_FRESH = True begins anew"
        )
    queue = str(settings.get("SCHEDULER_QUEUE_CLASS") or "")
    if any(name in queue for name in ("Fifo", "Lifo", "SpiderQueue", "SpiderStack")):
        remarks.append(
            f"SCHEDULER_QUEUE_CLASS = {queue!r} is not used: requests go by their priority, then the oldest first"
        )
    return remarks


def _parameters(settings: BaseSettings) -> dict[str, Any]:
    given = dict(settings.getdict("REDIS_PARAMS"))
    given.update({name: settings[setting] for setting, name in _CLIENT.items() if settings.get(setting)})
    return given


FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0

T = TypeVar("T")


async def until_answered(step: Callable[[], T], *, say: Callable[[str], None], patience: float = float("inf")) -> T:
    """The result of a Redis call, made in another thread. An error is reported and the call repeated for `patience`
    seconds; an error that waiting does not help, such as a key of the wrong type, is raised at once."""
    from redis.exceptions import RedisError

    began, pause, has_said = time.monotonic(), FIRST_PAUSE_SECONDS, False
    while True:
        try:
            return await maybe_deferred_to_future(deferToThread(step))
        except RedisError as error:
            if _is_wrong(error) or time.monotonic() - began >= patience:
                raise
            if not has_said:
                has_said = True
                say(f"{line_of(error)}; waiting")
        await sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def sleep(seconds: float) -> None:
    """Sleep without blocking the reactor."""
    from twisted.internet import reactor

    await maybe_deferred_to_future(deferLater(reactor, seconds))


def _is_wrong(error: Exception) -> bool:
    """Whether waiting does not help."""
    return any(word in str(error) for word in ("SHOALTYPE", "WRONGTYPE"))
