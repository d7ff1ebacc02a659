"""`shoal serve` as people run it: a process of its own, asked over real HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

from command_line import Folder, Started

from shoal.testing.waiting import wait_until

SECONDS = 60.0
TOO_SLOW = b"gives no answer within"


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The one line of a refusal."""
        line: str = self.json["error"]
        assert "\n" not in line
        return line


class Serving:
    """A serving process. `token` is sent with every request."""

    def __init__(self, port: int, process: Started, *, token: str = "") -> None:
        self.port = port
        self.process = process
        self.token = token
        self.started: list[int] = []  # processes that its API started, each with a session of its own

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str | None] | None = None,
        prefix: str = "/api/v1",
        source: str = "127.0.0.1",
    ) -> Answer:
        """One request on its own connection. A body that is no bytes is sent as JSON, a header None not at all."""
        sent: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}"}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        if body is not None and not isinstance(body, bytes):
            body, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        sent |= headers or {}
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS, source_address=(source, 0))
        with contextlib.closing(line):
            line.putrequest(method, prefix + path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    line.putheader(name, value)
            if body is not None:
                line.putheader("Content-Length", str(len(body)))
            line.endheaders(body)
            answer = line.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def get(self, path: str, **options: Any) -> Answer:
        """Ask again, as a browser does, while a busy machine lets the frontier or the store answer too late."""

        def read() -> Answer | None:
            answer = self.ask("GET", path, **options)
            return None if answer.status == 503 and TOO_SLOW in answer.body else answer

        return wait_until(read, otherwise=f"{path} is never answered in time", pause=0.1)  # type: ignore[return-value]  # it is not None

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.ask("POST", path, body=body, **options)

    @contextlib.contextmanager
    def events(self, query: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
        """The events as they come: name and data."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        with contextlib.closing(line):
            headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            line.request("GET", f"/api/v1/events{query}", headers=headers)
            answer = line.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield _parsed(answer)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; gives its return code."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


def _parsed(stream: IO[bytes]) -> Iterator[tuple[str, Any]]:
    name = ""
    for raw in stream:
        kind, _, rest = raw.decode().rstrip("\n").partition(": ")
        if kind == "event":
            name = rest
        elif kind == "data":
            yield name, json.loads(rest)


@contextlib.contextmanager
def serving(
    folder: Folder, *arguments: str, token: str = "", environ: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """A serving process on a free port, ended with the block."""
    env = {**folder.environ(), **(environ or {})}
    if token:
        env["SHOAL_TOKEN"] = token
    with folder.start("serve", "--port", "0", *arguments, env=env) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving http://"), (line, process.stderr and process.stderr.read())
            yield Serving(int(line.rstrip().rstrip("/").rpartition(":")[2]), process, token=token)
        finally:
            process.kill()
