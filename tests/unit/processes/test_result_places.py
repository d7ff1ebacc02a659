"""Which URLs name the same store or archive, and what a crawl remembers of one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.crawl.places import Obstacle, OutOfReach, RememberedPlace, is_same, recalled, remember

SERVER = "postgresql://me:hu%40sh@db.example:5432/results?sslmode=require"


@pytest.fixture(autouse=True)
def _no_passwords(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder without files, and no variables of PostgreSQL and S3."""
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGPASSWORD", "PGPASSFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def elsewhere(place: RememberedPlace) -> RememberedPlace:
    """The same, remembered on another machine."""
    return msgspec.structs.replace(place, machine="another", host="another.example", inode=-1)


@pytest.mark.parametrize(
    ("url", "other", "same"),
    [
        (SERVER, "postgres://you:other@DB.example/results", True),
        (SERVER, "postgresql:///results?host=db.example&port=5432", True),
        (SERVER, "postgresql://me@db.example/results?schema=shoal", True),
        (SERVER, "postgresql://me@db.example/results?schema=mine", False),
        (SERVER, "postgresql://me@db.example/other", False),
        (SERVER, "postgresql://me@db.example:5433/results", False),
        (SERVER, "postgresql://me@db2.example/results", False),
        (SERVER, "shoal.db", False),
        ("postgresql://me@localhost/x", "postgresql://me@127.0.0.1:5432/x", True),
        ("postgresql://me@localhost/x", "postgresql://me@[::1]/x", True),
        ("postgresql://me@localhost", "postgresql://127.0.0.1/me", True),
        ("s3://bucket/books/", "s3://bucket/books?region=eu", True),
        ("s3://bucket/books", "s3://bucket/books?endpoint=http://minio:9000", False),
        ("s3://bucket/books", "gs://bucket/books", False),
    ],
)
def test_servers_are_told_by_where_they_are_not_by_who_connects(url: str, other: str, same: bool) -> None:
    assert is_same(remember(url), other) is same


def test_files_are_told_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "items.db").touch()
    place = remember("items.db")
    assert place.url == str(tmp_path / "items.db")
    for same in ("items.db", "./items.db", f"sqlite:///{tmp_path}/items.db", "sqlite:///items.db"):
        assert is_same(place, same), same
    for other in ("other.db", "files:items.db", "postgresql://h/items.db"):
        assert not is_same(place, other), other


def test_a_folder_of_items_is_recalled_as_one(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    place = remember("files:out")
    assert recalled(place, frontier="redis://h/0") == f"files://{tmp_path}/out"
    assert is_same(place, recalled(place, frontier="redis://h/0"))


def test_no_secret_is_remembered() -> None:
    place = remember(f"{SERVER}&sslpassword=hush&password=hush")
    assert "hush" not in repr(place)
    assert "hu%40sh" not in repr(place)
    assert place.url == "postgresql://me@db.example:5432/results?sslmode=require"
    assert place.has_secret


def test_what_only_the_environment_says_of_a_place_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    monkeypatch.setenv("PGPORT", "5433")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://key:secret@minio:9000")
    store, archive = remember("postgresql://me@/"), remember("s3://bucket/x")
    for name in ("PGHOST", "PGPORT", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    assert is_same(store, "postgresql://you@db.example:5433/me")
    assert is_same(archive, "s3://bucket/x?endpoint=http://minio:9000")
    assert "secret" not in archive.url


def test_a_password_that_is_lacking_is_an_obstacle_unless_the_driver_may_find_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = remember(SERVER)
    with pytest.raises(OutOfReach) as refusal:
        recalled(place, frontier="redis://h/0")
    assert refusal.value.obstacle is Obstacle.SECRET
    (tmp_path / ".pgpass").touch()
    assert recalled(place, frontier="redis://h/0") == place.url
    (tmp_path / ".pgpass").unlink()
    monkeypatch.setenv("PGPASSWORD", "secret")
    assert recalled(place, frontier="redis://h/0") == place.url


def test_a_server_without_a_password_is_recalled_as_it_is() -> None:
    assert recalled(remember("postgresql://me@db.example/x"), frontier="f.db") == "postgresql://me@db.example/x"


@pytest.mark.parametrize("url", ["items.db", "files:items.db", "postgresql://me@localhost/x"])
def test_places_of_another_machine_are_out_of_reach(url: str, tmp_path: Path) -> None:
    (tmp_path / "items.db").touch()
    place = elsewhere(remember(url))
    assert not is_same(place, url)
    with pytest.raises(OutOfReach, match=r"on the machine another\.example") as refusal:
        recalled(place, frontier="redis://h/0")
    assert refusal.value.obstacle is Obstacle.MACHINE


def test_the_same_file_seen_from_another_machine_or_after_a_restart_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "items.db").touch()
    place = msgspec.structs.replace(remember("items.db"), machine="another", host="another.example")
    assert is_same(place, "items.db")
    assert recalled(place, frontier="redis://h/0") == str(tmp_path / "items.db")


def test_a_file_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    (tmp_path / "items.db").touch()
    place = remember("items.db")
    (tmp_path / "items.db").unlink()
    with pytest.raises(OutOfReach) as refusal:
        recalled(place, frontier="redis://h/0")
    assert refusal.value.obstacle is Obstacle.MISSING


def test_a_store_in_the_frontiers_file_moves_with_it(tmp_path: Path) -> None:
    place = elsewhere(remember("shoal.db", frontier="sqlite:///shoal.db"))
    assert place.in_frontier
    assert recalled(place, frontier="elsewhere/shoal.db") == "elsewhere/shoal.db"
    assert is_same(place, "elsewhere/shoal.db", frontier="elsewhere/shoal.db")
    assert not is_same(place, "shoal.db", frontier="elsewhere/shoal.db")
