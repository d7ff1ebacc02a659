"""URLs taken over HTTP, by the hundred thousand: a line each, with back-pressure."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from shoal.crawl.adding import BATCH, Added, Lines, add_requests
from shoal.crawl.inbox import request_of
from shoal.errors import ShoalError, UsageError
from shoal.frontier.base import Frontier
from shoal.journey.intake import Intake
from shoal.model import Crawl, CrawlState
from shoal.run.intakes import intake_of
from shoal.serve.answers import Refusal, json_answer, refusal_of
from shoal.serve.api.operations import Call
from shoal.serve.api.shapes import AddedUrls
from shoal.spider.spider import Request as Wanted
from shoal.spider.spider import handler_name

TEXT, LINES = "text/plain", "application/x-ndjson"
MOST_LINE = 64 * 1024
FULL_SECONDS = 10


async def add_urls(call: Call) -> Response:
    """Add URLs: one per line as text/plain, or one JSON request per line as application/x-ndjson."""
    media = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in (TEXT, LINES):
        raise Refusal(415, f"send one URL per line as {TEXT}, or one JSON request per line as {LINES}")
    async with call.reading() as (_, crawl):
        pass
    taking = Taking(call, crawl, is_json=media == LINES)
    try:
        await taking.take_all()
    except Refusal as refusal:
        return taking.answer(refusal)
    except ShoalError as error:
        return taking.answer(refusal_of(error))
    finally:
        call.parts.board.expire(crawl.id)
    return taking.answer()


class Taking:
    """Takes the lines of one request, batch by batch. A refusal reports what was taken before."""

    def __init__(self, call: Call, crawl: Crawl, *, is_json: bool) -> None:
        self._call = call
        self._crawl = crawl
        self._is_json = is_json
        self._intake: Intake = intake_of(crawl)
        self._lines = Lines(crawl, intake=self._intake)
        self._added = Added(crawl=crawl.id)
        self._taken = 0

    def answer(self, refusal: Refusal | None = None) -> Response:
        """The report on the taken lines, and why the rest was refused."""
        added = self._added
        found = AddedUrls(
            taken=self._taken,
            new=added.new,
            duplicates=added.duplicates,
            rejected=added.rejected,
            error="" if refusal is None else str(refusal),
        )
        if refusal is None:
            return json_answer(found)
        return json_answer(found, status=refusal.status, headers=refusal.headers)

    async def take_all(self) -> None:
        """Take every line."""
        batch: list[bytes] = []
        async for line in lines_of(self._call.request):
            if line.strip() and not line.lstrip().startswith(b"#"):
                batch.append(line)
            if len(batch) >= BATCH:
                await self._take(batch)
                batch = []
        if batch:
            await self._take(batch)

    async def _take(self, lines: list[bytes]) -> None:
        requests = [self._request(line, self._taken + number) for number, line in enumerate(lines, start=1)]
        async with self._call.parts.frontier.using() as frontier:
            await self._check_room(frontier)
            await add_requests(requests, self._added, intake=self._intake, frontier=frontier)
        self._taken += len(lines)

    def _request(self, line: bytes, number: int) -> Wanted:
        if not self._is_json:
            return Wanted(line.decode("utf-8", "replace").strip())
        try:
            if not line.lstrip().startswith(b"{"):
                raise ValueError("it is no JSON object")
            request = request_of(line)
            self._lines.check_handler(handler_name(request.handler))
            return request
        except (ValueError, UsageError) as error:
            raise Refusal(422, f"line {number} is no request: {error}") from None

    async def _check_room(self, frontier: Frontier) -> None:
        progress = await frontier.progress(self._crawl.id)
        if progress.state is CrawlState.CANCELLED:
            raise Refusal(409, f"{self._crawl.id} is cancelled: resume it first")
        most = self._intake.settings.max_pending
        if progress.queued + progress.delayed >= most:
            line = f"{most:,} tasks wait already (max_pending): send the rest later, from line {self._taken + 1} on"
            raise Refusal(429, line, headers={"Retry-After": str(FULL_SECONDS)})


async def lines_of(request: Request) -> AsyncIterator[bytes]:
    """The lines of a body as they arrive: each at most MOST_LINE long, any number of them."""
    rest, number = b"", 0
    try:
        async for chunk in request.stream():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in (*lines, rest):
                if len(line) > MOST_LINE:
                    raise Refusal(413, f"line {number + 1} is longer than {MOST_LINE // 1024} KiB: end lines with \\n")
            for line in lines:
                number += 1
                yield line
    except ClientDisconnect:
        raise Refusal(400, "the body ended early") from None
    if rest:
        yield rest
