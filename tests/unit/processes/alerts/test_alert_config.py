"""Alerts as people write them into shoal.toml; what is wrong is one line, without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.duties.alerts.config import AlertConfig, AlertRules, load_alerts
from shoal.errors import SettingError
from shoal.settings.layers import file_layer

ENVIRON = {"HOOK": "https://hooks.example.com/hunter2", "MAIL_PASSWORD": "hunter2"}
WHOLE = """
rate = "2/s"

[alerts]
queue_growing = "30m"
error_share = "20%"
no_progress = "10m"
worker_lost = "10m"
dead_letters = 100
budget_spent = "90%"
deadline = "12h"
disk_free = "5%"
store_slow = "2s"
hold = "2m"
every = "10s"
spiders = ["books"]

[[alerts.to]]
name = "ops"
slack_env = "HOOK"

[[alerts.to]]
name = "mail"
email = ["a@example.com", "b@example.com"]
smtp = "mail.example.com:587"
user = "shoal"
password_env = "MAIL_PASSWORD"
alerts = ["deadline"]

[[alerts.to]]
name = "pager"
command = ["page", "--who", "night"]
"""
TO = '[[alerts.to]]\nname = "a"\ncommand = ["a"]\n'


def load(tmp_path: Path, text: str) -> AlertConfig | None:
    path = tmp_path / "shoal.toml"
    path.write_text(text, encoding="utf-8")
    return load_alerts(path, environ=ENVIRON)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(SettingError) as refused:
        load(tmp_path, text)
    line = str(refused.value)
    assert "\n" not in line
    assert "hunter2" not in line
    return line


def test_every_alert_and_every_target_is_read(tmp_path: Path) -> None:
    config = load(tmp_path, WHOLE)
    assert config is not None
    assert config.rules == AlertRules(
        queue_growing=1800.0,
        error_share=0.2,
        error_window=600.0,
        no_progress=600.0,
        worker_lost=600.0,
        dead_letters=100,
        budget_spent=0.9,
        deadline=43_200.0,
        disk_free=0.05,
        store_slow=2.0,
    )
    assert (config.every, config.hold, config.spiders) == (10.0, 120.0, ("books",))
    slack, mail, pager = config.targets
    assert (slack.kind, slack.url) == ("slack", ENVIRON["HOOK"])
    assert (mail.addresses, mail.smtp_port, mail.password, mail.tls) == (
        ("a@example.com", "b@example.com"),
        587,
        "hunter2",
        "starttls",
    )
    assert mail.wants("deadline")
    assert not mail.wants("no_progress")
    assert pager.command == ("page", "--who", "night")


def test_what_is_shown_of_a_target_is_its_name(tmp_path: Path) -> None:
    assert "hunter2" not in repr(load(tmp_path, WHOLE))


def test_the_table_is_no_setting(tmp_path: Path) -> None:
    load(tmp_path, WHOLE)
    assert file_layer(tmp_path / "shoal.toml")[1] == {"rate": "2/s"}


def test_no_table_is_no_alerts(tmp_path: Path) -> None:
    assert load(tmp_path, 'rate = "2/s"') is None
    assert load_alerts(tmp_path / "none.toml") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[alerts]\n" + TO, "it names no alert"),
        ("[alerts]\ndead_letters = 1\n", "nobody is told"),
        ('[alerts]\nno_progres = "1m"\n' + TO, "did you mean 'no_progress'?"),
        ('[alerts]\nno_progress = "soon"\n' + TO, "write it as 90s"),
        ('[alerts]\nno_progress = ""\n' + TO, "above zero"),
        ('[alerts]\nerror_share = "200%"\n' + TO, "write it as 20%"),
        ("[alerts]\ndead_letters = -1\n" + TO, "0 or more"),
        ('[alerts]\nevery = "0s"\ndead_letters = 1\n' + TO, "too often"),
        ("[alerts]\ndead_letters = 1\n" + TO + TO, "a name of its own"),
        ("alerts = 7", "is not a table"),
    ],
)
def test_a_mistake_in_the_table_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ('command = ["a"]', "it needs a name"),
        ('name = "x"', "exactly one of"),
        ('name = "x"\ncommand = ["a"]\nslack_env = "HOOK"', "exactly one of"),
        ('name = "x"\nwebhook = "ftp://hunter2"', "no http or https URL"),
        ('name = "x"\nwebhook_env = "NONE"', "the environment has no NONE"),
        ('name = "x"\nemail = "me"\nsmtp = "m:25"', "is no address"),
        ('name = "x"\nemail = "me@a.test"', "smtp = "),
        ('name = "x"\nemail = "me@a.test"\nsmtp = "m:25"\nuser = "u"', "together with password_env"),
        (
            'name = "x"\nemail = "me@a.test"\nsmtp = "m:25"\nuser = "u"\npassword_env = "MAIL_PASSWORD"\ntls = "none"',
            "in the clear",
        ),
        ('name = "x"\nemail = "me@a.test"\nsmtp = "m:25"\nuser = "u"\npassword_file = "none"', "cannot read none"),
        ('name = "x"\ncommand = "rm -rf"', "command: expected"),
        ('name = "x"\ncommand = ["a"]\nalerts = ["deadlin"]', "did you mean 'deadline'?"),
    ],
)
def test_a_mistake_in_a_target_is_one_line(tmp_path: Path, target: str, says: str) -> None:
    assert says in refusal(tmp_path, f"[alerts]\ndead_letters = 1\n[[alerts.to]]\n{target}\n")


def test_a_password_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    to = 'name = "x"\nemail = "me@a.test"\nsmtp = "m:465"\ntls = "ssl"\nuser = "u"\npassword_file = "secret"'
    config = load(tmp_path, f"[alerts]\ndead_letters = 1\n[[alerts.to]]\n{to}\n")
    assert config is not None
    assert config.targets[0].password == "hunter2"
