"""Alerts reach real receivers: a web server, a mail server, a program. What hinders them is said without secrets."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mail_receiver import mail_receiver

from shoal.duties.alerts.config import Target
from shoal.duties.alerts.senders import NotSent, send
from shoal.duties.alerts.state import Message
from shoal.testing.servers.http_receiver import http_receiver

TEXT = "books-1: 2 workers lost; $(touch pwned) `id` <!channel> & 'x'"
PROGRAM = """#!{python}
import json, os, sys
told = json.load(sys.stdin)
json.dump([sys.argv[1:], told, {{name: os.environ[name] for name in os.environ if name.startswith("ALERT")}}],
          open("told.json", "w"))
"""


def message(state: str = "firing", text: str = TEXT) -> Message:
    fields = {"id": "worker_lost/books-1/@5", "alert": "worker_lost", "state": state, "crawl": "books-1", "about": ""}
    times = {"since": "2026-01-01T00:00:00.000Z", "at": "2026-01-01T00:01:00.000Z"}
    return msgspec.convert({**fields, "text": text, **times}, Message)


async def reason(target: Target, **fields: Any) -> str:
    with pytest.raises(NotSent) as refused:
        await send(target, message(**fields))
    assert "hunter2" not in str(refused.value)
    return str(refused.value)


async def test_a_webhook_gets_the_alert_as_json() -> None:
    with http_receiver() as receiver:
        headers = {"Authorization": "Bearer hunter2hunter2"}
        target = Target(name="t", kind="webhook", url=f"{receiver.url}/hook?a=1", headers=headers)
        await send(target, message("over"))
    (request,) = receiver.received
    told = json.loads(request.body)
    assert (request.path, request.headers["content-type"]) == ("/hook?a=1", "application/json")
    assert request.headers["authorization"] == "Bearer hunter2hunter2"
    assert (told["alert"], told["state"], told["crawl"], told["text"]) == ("worker_lost", "over", "books-1", TEXT)
    assert told["line"] == f"over: {TEXT}"


async def test_slack_gets_a_text_without_mentions() -> None:
    with http_receiver() as receiver:
        await send(Target(name="t", kind="slack", url=receiver.url), message())
    (request,) = receiver.received
    told = json.loads(request.body)
    assert told.keys() == {"text"}
    assert told["text"].startswith(":red_circle: shoal worker_lost: books-1: 2 workers lost")
    assert "&lt;!channel&gt; &amp;" in told["text"]


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_any_other_answer_than_2xx_is_a_failure(status: int) -> None:
    with http_receiver(lambda _: status) as receiver:
        target = Target(name="t", kind="webhook", url=f"{receiver.url}/hunter2")
        assert await reason(target) == f"it answered {status}"


async def test_a_server_that_is_away_is_a_failure() -> None:
    with http_receiver() as receiver:
        gone = receiver.url
    assert await reason(Target(name="t", kind="webhook", url=f"{gone}/hunter2"))


def mailbox(port: int, **fields: Any) -> Target:
    plain = {"addresses": ("a@example.com", "b@example.com"), "sender": "shoal@example.com", "tls": "none"}
    return Target(name="t", kind="email", smtp_host="127.0.0.1", smtp_port=port, **{**plain, **fields})


async def test_a_mail_has_the_alert_in_its_subject_and_its_text() -> None:
    with mail_receiver() as mails:
        await send(mailbox(mails.port), message(text="a\nBcc: eve@example.com\x1b[31m"))
    (mail,) = mails.mails
    assert mail["To"] == "a@example.com, b@example.com"
    assert mail["Subject"] == "[shoal] a\\nBcc: eve@example.com\\x1b[31m"
    assert mail["Bcc"] is None
    assert "crawl  books-1" in mail.get_content()


async def test_a_mail_server_that_refuses_is_a_failure() -> None:
    with mail_receiver() as mails:
        port = mails.port
        assert "STARTTLS" in await reason(mailbox(port, tls="starttls"))
    assert await reason(mailbox(port))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "tell"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


async def test_a_command_gets_the_alert_and_no_shell_sees_it(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await send(Target(name="t", kind="command", command=(str(program), "$HOME", "; ls")), message())
    arguments, told, variables = json.loads((tmp_path / "told.json").read_text())
    assert arguments == ["$HOME", "; ls"]
    assert (told["text"], variables["ALERT_TEXT"]) == (TEXT, TEXT)
    assert (variables["ALERT"], variables["ALERT_STATE"], variables["ALERT_CRAWL"]) == (
        "worker_lost",
        "firing",
        "books-1",
    )
    assert not (tmp_path / "pwned").exists()


async def test_a_command_that_fails_or_is_not_there_is_a_failure() -> None:
    code = "import sys; sys.exit('no pager\\x1b here')"
    failing = Target(name="t", kind="command", command=(sys.executable, "-c", code))
    assert await reason(failing) == "the command ended with 1: no pager\\x1b here"
    assert "No such file" in await reason(Target(name="t", kind="command", command=("/nowhere/tell",)))
