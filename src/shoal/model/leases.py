"""Tasks, and their leases to workers."""

from __future__ import annotations

import random
from typing import Any, Final, Literal

import msgspec

DIRECT = "direct"
VIA = " via "  # in a lane's name, between host and pool; a lane without it uses no proxy
STAGE = " stage "  # in a lane's name, between host and kind: fetched pages wait there for a handler of that kind
REGION = "region:"  # begins the name of a pool of a region: it has only exits that workers offer
HTTP = "http"  # the default kind of tasks
BROWSER = "browser"  # the kind of tasks whose pages are rendered
RENDER_WAITS: Final = ("dom", "load", "quiet")
RENDER_BLOCKS: Final = ("image", "media", "font", "stylesheet", "script")
RENDER_STEPS: Final = {"click": str, "scroll": int, "script": str, "wait_for": str}


class Visit(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The visits of a page that is visited more than once. Encoded by position: new fields go last, with a default.

    - `asked`: the request's time between visits in seconds; None: the spider's; 0: only one visit
    - `visits`: how many so far; `at`: time of the latest one; `harvest`: fingerprint of what it found
    - `compared`: pairs of visits in a row that were compared, `seconds` apart in sum; `changes`: pairs that differed;
      older pairs count less
    - `modified`: when the page changed last, by a sitemap
    - `planned`: seconds from the latest visit to the next one"""

    asked: float | None = None
    visits: int = 0
    at: float = 0.0
    harvest: int = 0
    compared: float = 0.0
    changes: float = 0.0
    seconds: float = 0.0
    modified: float = 0.0
    planned: float = 0.0


class Render(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a browser renders the page of a request; plain data, so that any worker of the kind `browser` can do it.

    - `wait`: when the page is ready: `dom` (parsed), `load` (with all it loads), `quiet` (no request for half a second)
    - `wait_for`: a CSS selector; the page is ready when an element matches
    - `steps`: what to do then, in order: `{"click": "button.more"}`, `{"scroll": 10}` (to the end, so many times, as
      long as the page grows), `{"script": "…"}`, `{"wait_for": ".book"}`
    - `block`: types of resources that are not fetched: `image`, `media`, `font`, `stylesheet`, `script`
    - `screenshot`: keep a picture of the page: `page.screenshot`, and in the archive
    - `seconds`: deadline for all of it; 0: the setting `render_seconds`
    """

    wait: Literal["dom", "load", "quiet"] = "load"
    wait_for: str = ""
    steps: tuple[dict[str, str | int], ...] = ()
    block: tuple[Literal["image", "media", "font", "stylesheet", "script"], ...] = ()
    screenshot: bool = False
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.wait not in RENDER_WAITS:
            raise ValueError(f"wait of a Render is one of {', '.join(RENDER_WAITS)}, not {self.wait!r}")
        wrong: list[object] = [self.block] if isinstance(self.block, str) else [*{*self.block} - {*RENDER_BLOCKS}]
        if wrong:
            raise ValueError(f"block of a Render is a tuple of some of {', '.join(RENDER_BLOCKS)}, not {wrong[0]!r}")
        for step in self.steps:
            (name, what), *others = step.items() if step else [("", "")]
            kind = RENDER_STEPS.get(name)
            if others or kind is None or type(what) is not kind:
                forms = '{"click": "css"}, {"scroll": 10}, {"script": "…"}, {"wait_for": "css"}'
                raise ValueError(f"a step of a Render is one of {forms}, not {step!r}")


class Task(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One URL to fetch. Encoded by position: new fields go last, with a default.

    `hastens`: if the key is known and its task waits for its next visit, a put makes that visit due now; it changes
    nothing else of the waiting task."""

    url: str
    key: int
    lane: str
    handler: str = "parse"
    depth: int = 0
    priority: int = 0
    delay: float = 0.0
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes | None = None
    meta: dict[str, Any] | None = None
    max_attempts: int = 4
    pool: str = DIRECT
    parent: int | None = None
    created: float = 0.0
    hops: int = 0
    shape: int = 0
    merged: bool = False
    kind: str = HTTP
    visit: Visit | None = None
    render: Render | None = None
    hastens: bool = False


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A task leased to one worker. `wait`: seconds until the request may start; `token`: lets a frontier refuse the
    result of a lost lease.

    `alone`: workers died while they had this task. The worker first finishes its other pages, then works on this one
    alone."""

    crawl: str
    task: Task
    token: int
    attempt: int = 1
    free_retries: int = 0
    exit: str = DIRECT
    wait: float = 0.0
    interval: float = 0.0
    base_interval: float = 0.0
    exit_interval: float = 0.0
    opens_lane: bool = False
    rules_version: int = 0
    session_version: int = 0
    alone: bool = False


class LeaseBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one lease call: the leases, or when to ask again.

    `at` is the time on this process's monotonic clock from which each lease's `wait` counts."""

    leases: list[Lease]
    ask_again: float
    at: float
    epoch: int = 0
    finished: tuple[str, ...] = ()


def stage_lane(lane: str, kind: str) -> str:
    """The lane in which fetched pages of a host wait for handlers of this kind. It has no pace: nothing is fetched."""
    return f"{lane.partition(VIA)[0].partition(STAGE)[0]}{STAGE}{kind}"


def random_key() -> int:
    """A random key, for a task that must not be merged with any other."""
    return random.SystemRandom().getrandbits(64) - 2**63
