"""Secrets in files: they take the place of the variables that name them, and slips are seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.settings.variables import read_secret_files


def secret(tmp_path: Path, text: str) -> str:
    path = tmp_path / "secret"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_holds_the_whole_value(tmp_path: Path) -> None:
    environ = {"SHOAL_FRONTIER_FILE": secret(tmp_path, "redis://:pw@queue/0\n"), "HOME": "/"}
    read_secret_files(environ)
    assert environ == {"SHOAL_FRONTIER": "redis://:pw@queue/0", "HOME": "/"}


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://queue:6379/0", "redis://:p%2Fw%40%3A@queue:6379/0"),
        ("redis://shoal@queue", "redis://shoal:p%2Fw%40%3A@queue"),
        (
            "postgresql://shoal@db:5432/shoal?sslmode=require",
            "postgresql://shoal:p%2Fw%40%3A@db:5432/shoal?sslmode=require",
        ),
        ("redis+cluster://a:1,b:2/?shards=16", "redis+cluster://:p%2Fw%40%3A@a:1,b:2/?shards=16"),
    ],
)
def test_a_password_of_a_file_goes_into_its_url(url: str, whole: str, tmp_path: Path) -> None:
    environ = {"SHOAL_STORE": url, "SHOAL_STORE_PASSWORD_FILE": secret(tmp_path, "p/w@:\n")}
    read_secret_files(environ)
    assert environ == {"SHOAL_STORE": whole}


def test_the_password_belongs_to_a_url_that_lies_in_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://queue/0")
    environ = {
        "SHOAL_FRONTIER_FILE": str(tmp_path / "url"),
        "SHOAL_FRONTIER_PASSWORD_FILE": secret(tmp_path, "pw"),
    }
    read_secret_files(environ)
    assert environ == {"SHOAL_FRONTIER": "redis://:pw@queue/0"}


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"SHOAL_TOKEN": "a", "SHOAL_TOKEN_FILE": "secret"}, "SHOAL_TOKEN and SHOAL_TOKEN_FILE are both set"),
        ({"SHOAL_TOKEN_FILE": "missing"}, "missing of SHOAL_TOKEN_FILE cannot be read"),
        ({"SHOAL_TOKEN_FILE": "empty"}, "empty of SHOAL_TOKEN_FILE is empty"),
        ({"SHOAL_TOKEN_FILE": "lines"}, "lines of SHOAL_TOKEN_FILE has several lines"),
        ({"SHOAL_STORE_PASSWORD_FILE": "secret"}, "SHOAL_STORE has no URL"),
        ({"SHOAL_STORE": "postgresql://a:b@db/", "SHOAL_STORE_PASSWORD_FILE": "secret"}, "both have a password"),
    ],
)
def test_slips_are_refused_with_what_to_do(
    environ: dict[str, str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "lines").write_text("a\nb\n")
    secret(tmp_path, "pw")
    with pytest.raises(UsageError, match=line) as refused:
        read_secret_files(environ)
    assert "a:b@" not in str(refused.value)
