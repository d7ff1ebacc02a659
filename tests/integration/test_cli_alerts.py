"""`shoal alerts` as people use it."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import trustme
from command_line import Folder
from mail_receiver import mail_receiver

from shoal.testing.servers.http_receiver import http_receiver
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_for_line, wait_until

PRODUCTS = 60
KEEP = "import sys; open('told', 'w').write(sys.stdin.read())"


def write(folder: Folder, *targets: str) -> None:
    tables = "\n".join(f"[[alerts.to]]\n{target}\n" for target in targets)
    (folder.path / "shoal.toml").write_text(f"[alerts]\ndead_letters = 0\n{tables}")


def test_a_try_reaches_everybody_and_is_marked(folder: Folder) -> None:
    with http_receiver() as receiver, mail_receiver() as mails:
        write(
            folder,
            f'name = "hook"\nwebhook = "{receiver.url}/plain"',
            f'name = "chat"\nslack = "{receiver.url}/slack"',
            f'name = "post"\nemail = "a@example.com"\nsmtp = "127.0.0.1:{mails.port}"\ntls = "none"',
            f'name = "run"\ncommand = [{sys.executable!r}, "-c", {json.dumps(KEEP)}]',
        )
        text = folder.run("alerts", "test").stdout
        assert [line.split() for line in text.splitlines()[1:]] == [
            ["hook", "webhook", "sent"],
            ["chat", "slack", "sent"],
            ["post", "email", "sent"],
            ["run", "command", "sent"],
        ]
    plain = next(json.loads(request.body) for request in receiver.received if request.path == "/plain")
    assert (plain["state"], plain["line"]) == ("test", "TEST: this is a test, nothing is wrong")
    assert mails.mails[0]["Subject"].startswith("[shoal] TEST: ")
    assert json.loads((folder.path / "told").read_text())["state"] == "test"


def test_a_target_that_cannot_be_told_is_named_and_the_exit_code_is_1(folder: Folder) -> None:
    with http_receiver(lambda _: 500) as receiver:
        write(folder, f'name = "a"\nwebhook = "{receiver.url}"', f'name = "b"\ncommand = [{sys.executable!r}, "-V"]')
        text = folder.run("alerts", "test", code=1).stdout
        assert "not sent: it answered 500" in text
        assert folder.run("alerts", "test", "b").stdout.split()[-1] == "sent"
        assert "did you mean" in folder.refusal("alerts", "test", "bb")


def test_a_mail_server_gets_the_password_only_over_tls(folder: Folder, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(certificate)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    with mail_receiver(certificate=certificate) as mails:
        write(
            folder,
            f'name = "post"\nemail = "a@example.com"\nsmtp = "127.0.0.1:{mails.port}"\n'
            'user = "shoal"\npassword_env = "MAIL_PASSWORD"',
        )
        command = [sys.executable, "-m", "shoal", "alerts", "test"]
        environ = {**kept, "MAIL_PASSWORD": "hunter2"}
        trusted = {**environ, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        done = subprocess.run(command, cwd=folder.path, env=trusted, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (mails.logins, len(mails.mails)) == ([("shoal", "hunter2")], 1)
        # Without a certificate that is trusted nothing is told, and no password sent.
        refused = subprocess.run(command, cwd=folder.path, env=environ, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1
        assert "certificate" in refused.stdout.lower()
        assert len(mails.logins) == 1
    assert "hunter2" not in done.stdout + done.stderr + refused.stdout + refused.stderr


def test_without_alerts_in_shoal_toml_it_says_how_to_have_some(folder: Folder) -> None:
    assert "[[alerts.to]]" in folder.refusal("alerts", "test")


def test_a_mistake_in_the_alerts_is_refused_before_a_crawl_begins(folder: Folder) -> None:
    (folder.path / "shoal.toml").write_text("[alerts]\ndead_letter = 1\n")
    assert "did you mean 'dead_letters'?" in folder.refusal("run", folder.spider("http://127.0.0.1:9/"))
    assert not (folder.path / "shoal.db").exists()


def test_no_alert_is_said_in_a_line(folder: Folder) -> None:
    folder.run("crawl", "http://127.0.0.1:9/", "--allow-private", "--set", "max_attempts=1", code=1)
    assert folder.run("alerts", "list").stdout == "no alert fires\n"
    assert folder.json("alerts", "list") == []


def test_a_worker_of_a_run_that_is_killed_and_replaced_is_told(folder: Folder, site: SiteProcess) -> None:
    with http_receiver() as receiver:
        target = f'[[alerts.to]]\nname = "hook"\nwebhook = "{receiver.url}"\n'
        rules = '[alerts]\nworker_lost = "10m"\nevery = "1s"\nhold = "1s"\n'
        (folder.path / "shoal.toml").write_text(rules + target)
        with folder.start("run", folder.spider(site.url, rate="2/s"), "--workers", "2") as process:
            os.kill(folder.wait_for_pages(1, workers=2)[0], signal.SIGKILL)
            wait_for_line(process.stderr, "ended with SIGKILL; its tasks are queued again, a new one starts")
            wait_until(lambda: receiver.received, otherwise="nobody is told")
            process.kill()
    told = json.loads(receiver.received[0].body)
    assert (told["alert"], told["state"], told["crawl"]) == ("worker_lost", "firing", "books-1")
    assert told["text"].startswith("books-1: 1 worker lost in the last 10 minutes: ")
