"""The page: its files, and its first one for every path that its own router knows."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from shoal.serve.answers import Refusal, refused

FOLDER = Path(__file__).resolve().parent / "static"


def page_routes(folder: Path = FOLDER) -> list[BaseRoute]:
    """The routes of the page."""

    async def first_page(request: Request) -> Response:
        index = folder / "index.html"
        if not index.is_file():
            return refused(Refusal(404, "the page is not part of this installation; the API is under /api/v1"))
        return FileResponse(index, headers={"Cache-Control": "no-cache"})

    return [
        Route("/", first_page, methods=["GET"]),
        Route("/crawls/{rest:path}", first_page, methods=["GET"]),
        Route("/schedules", first_page, methods=["GET"]),
        Route("/schedules/{rest:path}", first_page, methods=["GET"]),
        Mount("/static", FreshFiles(directory=folder, check_dir=False)),
    ]


class FreshFiles(StaticFiles):
    """Files that browsers keep but ask for again: after an upgrade no page runs with half of the old ones."""

    async def get_response(self, path: str, scope: object) -> Response:
        answer = await super().get_response(path, scope)  # type: ignore[arg-type]  # its own type of the same mapping
        answer.headers["Cache-Control"] = "no-cache"
        return answer
