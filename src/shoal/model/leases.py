"""Tasks, and tasks lent to a worker."""

from __future__ import annotations

import random
from typing import Any, Final, Literal

import msgspec

DIRECT = "direct"
VIA = " via "  # between a lane's host and its pool; a lane without it goes out directly
STAGE = " stage "  # between a lane's host and a kind: pages that were fetched wait there for a handler of that kind
REGION = "region:"  # begins the name of a pool that has the exits that workers offer for a region, and no others
HTTP = "http"  # the kind of tasks that name none
BROWSER = "browser"  # the kind of tasks whose pages are rendered
RENDER_WAITS: Final = ("dom", "load", "quiet")
RENDER_BLOCKS: Final = ("image", "media", "font", "stylesheet", "script")
RENDER_STEPS: Final = {"click": str, "scroll": int, "script": str, "wait_for": str}


class Visit(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What is known of the visits of a page that is visited more than once. Encoded by position, as tasks are.

    `asked` is the time between visits as the request has it, in seconds; None: the spider's; 0: one visit. `visits` so
    far, the latest one `at` this time; it gave what `harvest` is the fingerprint of. Of `compared` pairs of visits in a
    row, `seconds` apart in all, `changes` gave different things; older pairs count less. `modified` is when the page
    changed last, as a sitemap says. The next visit is `planned` seconds after the latest one."""

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

    - `wait`: until when to wait: `dom` (parsed), `load` (with all it loads), `quiet` (no request for half a second)
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

    `hastens`: where the key is known and its task waits for its next visit, a put of this one makes that visit due now.
    It changes nothing else of that task."""

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
    """A task lent to one worker. `wait` is how long to hold the start; `token` lets a frontier refuse a late result.

    `alone`: workers died while they had this task. The worker first ends the pages that it has, then works on this one
    and on nothing else."""

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
    """A key that no URL has, for a task that must not be merged with any other."""
    return random.SystemRandom().getrandbits(64) - 2**63
