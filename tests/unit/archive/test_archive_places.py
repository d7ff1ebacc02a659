"""What an archive's URL stands for. Those of Google and Microsoft are only built here, not tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

from shoal.archive.objects import RecentBodies
from shoal.archive.urls import find_place
from shoal.errors import UsageError

SECRET = "c2VjcmV0LXdvcmQ="


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_path_is_a_folder(prefix: str, tmp_path: Path) -> None:
    place = find_place(f"{prefix}{tmp_path}/pages", create=True)
    assert isinstance(place.objects, LocalStore)
    assert (place.is_folder, place.shown) == (True, f"{tmp_path}/pages")
    assert (tmp_path / "pages").is_dir()


def test_looking_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no archive in"):
        find_place(f"{tmp_path}/pages", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "kind", "shown", "prefix"),
    [
        ("s3://bucket", S3Store, "s3://bucket", None),
        ("s3://bucket/a/b/?region=eu-west-1", S3Store, "s3://bucket/a/b", "a/b"),
        ("gs://bucket/a", GCSStore, "gs://bucket/a", "a"),
        ("az://box/a?account=mine", AzureStore, "az://box/a", "a"),
    ],
)
def test_a_url_is_a_bucket_and_a_prefix(url: str, kind: type, shown: str, prefix: str | None) -> None:
    place = find_place(url, create=True)
    objects: Any = place.objects
    assert isinstance(objects, kind)
    assert (place.is_folder, place.shown, objects.prefix) == (False, shown, prefix)


def test_the_account_of_azure_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"az://box cannot be used as an archive: .*[Aa]ccount"):
        find_place("az://box", create=True)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "mine")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
    assert isinstance(find_place("az://box", create=True).objects, AzureStore)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_comes_from_the_url_or_the_environment(variable: str) -> None:
    environ = {variable: "http://127.0.0.1:9000"}
    objects: Any = find_place("s3://bucket", create=True, environ=environ).objects
    assert objects.config["endpoint"] == "http://127.0.0.1:9000"
    assert objects.client_options["allow_http"] == "true"
    objects = find_place("s3://bucket?endpoint=https://127.0.0.1:9443", create=True, environ=environ).objects
    assert objects.config["endpoint"] == "https://127.0.0.1:9443"
    assert objects.client_options["allow_http"] == "false"


@pytest.mark.parametrize("url", ["ftp://host/x", "http://host/x", "memory:///"])
def test_an_unknown_scheme_is_refused_with_what_would_do(url: str) -> None:
    with pytest.raises(UsageError, match=r"no archive for \w+://: give a folder, s3://bucket/prefix"):
        find_place(url, create=True)


@pytest.mark.parametrize("url", ["", "file://", "s3://", "gs:///x", "az://?account=x"])
def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"names no (folder|bucket): give a folder, s3://"):
        find_place(url, create=True)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}@bucket/x",
        f"s3://bucket/x?secret_access_key={SECRET}",
        f"az://box/x?account_key={SECRET}",
        f"gs://bucket?service_account_key={SECRET}",
    ],
)
def test_secrets_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_place(url, create=True)
    assert SECRET not in str(caught.value)


def test_only_so_many_bodies_are_remembered_those_used_last() -> None:
    hashes = [f"{number:064x}" for number in range(5)]
    recent = RecentBodies(3)
    recent.add(hashes[:3])
    assert hashes[0] in recent
    recent.add(hashes[3:])
    assert [one in recent for one in hashes] == [True, False, False, True, True]
