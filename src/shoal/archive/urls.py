"""The folder or bucket of an archive's URL. Credentials come from the environment."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, ObjectStore, S3Store

from shoal.errors import StorageError, UsageError

FORMS = "a folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
# Retries of obstore cover a lost connection. If the server is away, the caller waits and says so.
RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
CLIENT: dict[str, Any] = {"timeout": timedelta(seconds=60), "connect_timeout": timedelta(seconds=5)}
REQUESTS_IN_FLIGHT = 16
FOLDER_THREADS = 2

_OPTIONS_OF_A_URL = re.compile(r"(://[^\s?]*)\?\S*")
_OPTIONS = {"s3": ("endpoint", "region"), "gs": (), "az": ("account",)}
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class Place(msgspec.Struct, frozen=True):
    """A folder or bucket. `shown` is its URL without secrets; `threads` is the number of concurrent writes."""

    shown: str
    scheme: str
    objects: ObjectStore
    threads: int

    @property
    def is_folder(self) -> bool:
        return self.scheme == "file"


def find_place(url: str, *, create: bool, environ: Mapping[str, str] = os.environ) -> Place:
    """The folder or bucket of a URL. Does not connect; `create` makes a missing folder."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        return _folder(rest if separator else url, create=create)
    if scheme not in _OPTIONS:
        raise UsageError(f"no archive for {scheme}://: give {FORMS}")
    where, _, query = rest.partition("?")
    bucket, _, prefix = where.partition("/")
    if "@" in bucket:
        raise UsageError(f"credentials do not belong into an archive's URL: set {CREDENTIALS[scheme]}")
    if not bucket:
        raise UsageError(f"{scheme}:// names no bucket: give {FORMS}")
    shown = f"{scheme}://{where.rstrip('/')}"
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS[scheme]:
            known = " and ".join(_OPTIONS[scheme]) or "none"
            raise UsageError(f"{shown} has an option that is not known: an archive in {scheme}:// takes {known}")
    try:
        objects = _bucket(scheme, bucket, prefix.strip("/") or None, options=options, environ=environ)
    except (BaseError, ValueError) as error:
        raise UsageError(f"{shown} cannot be used as an archive: {first_line(error)}") from None
    return Place(shown, scheme, objects, REQUESTS_IN_FLIGHT)


def _folder(name: str, *, create: bool) -> Place:
    if not name:
        raise UsageError(f"the archive names no folder: give {FORMS}")
    path = Path(name)
    if not create and not path.is_dir():
        raise UsageError(
            f"there is no archive in {path}: `shoal run FILE --archive {shlex.quote(str(path))}` makes one"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path} cannot be made a folder for the archive: {error.strerror}") from None
    return Place(str(path), "file", LocalStore(path), FOLDER_THREADS)


def _bucket(
    scheme: str, bucket: str, prefix: str | None, *, options: Mapping[str, str], environ: Mapping[str, str]
) -> ObjectStore:
    client: Any = dict(CLIENT)
    if scheme == "gs":
        return GCSStore(bucket, prefix=prefix, client_options=client, retry_config=RETRIES)
    if scheme == "az":
        account: Any = {"account_name": options["account"]} if "account" in options else {}
        return AzureStore(bucket, prefix=prefix, client_options=client, retry_config=RETRIES, **account)
    config: Any = {"region": options["region"]} if "region" in options else {}
    named = (options.get("endpoint"), environ.get("AWS_ENDPOINT_URL_S3"), environ.get("AWS_ENDPOINT_URL"))
    endpoint = next((text for text in named if text), "")
    if endpoint:
        config["endpoint"] = endpoint
        client["allow_http"] = endpoint.startswith("http://")
    return S3Store(bucket, prefix=prefix, client_options=client, retry_config=RETRIES, **config)


def first_line(error: BaseException) -> str:
    """The message of obstore without its chain of causes, and without URL options, which may be signatures."""
    text = " ".join(str(error).partition("\n\nDebug source")[0].split())
    return _OPTIONS_OF_A_URL.sub(r"\1", text)[:300]
