"""Raw pages as objects in a folder, S3, Google Cloud Storage or Azure, all through one library.

    shoal-archive.json                         marks a folder or bucket as an archive; the version of its format
    bodies/ab/SHA256.zst                       a body, under the hash of its bytes: once however often it was fetched
    captures/CRAWL/TIME-HASH.jsonl.zst         the captures of one written batch, a JSON object per line
    log/week=MONDAY/NAME.parquet               lines of the fetch log that were moved out of their store

Bodies are written before the captures that name them, and an object is whole or absent: a put is one request, or in a
folder a temporary file and a rename. Names follow from the content: a write that is repeated after a lost reply
overwrites itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar
from urllib.parse import quote, unquote

import msgspec
import obstore
import zstandard
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from shoal.archive.base import Capture, RawPage, Removal
from shoal.archive.urls import CREDENTIALS, Place, find_place, first_line
from shoal.errors import ServerUnreachable, ShoalError, StorageBroken, StorageError, UsageError

if TYPE_CHECKING:
    from obstore import ObjectMeta


def write_whole(path: Path, octets: bytes, *, below: Path) -> None:
    """Write a file that survives a power cut, in a folder below `below`.

    Not by obstore: a killed process would leave a partial file under a name that readers list. Our partial file begins
    with a dot, which readers skip, and has the same name at every try."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    try:
        with partial.open("wb") as file:
            file.write(octets)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    partial.replace(path)
    for folder in path.parents:
        _sync(folder)
        if folder == below:
            break


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FORMAT = 1
MARKER = "shoal-archive.json"
ENDING = ".jsonl.zst"
LEVEL = 3
REMEMBERED_BODIES = 16_384
NAME_DIGITS = 16
LISTED_AT_ONCE = 1000
# A worker remembers bodies as long as it runs. A crawl without writes for this long is taken as ended.
IN_USE_SECONDS = 3600.0
_NAMED_BY = "%Y%m%dT%H%M%S.%f"

_LOG_NAME = re.compile(r"log/week=[0-9-]+/\w+\.parquet", re.ASCII)
_STATUS = re.compile(r"status code: (\d\d\d)")
# Temporary refusals: timeout, too early, too many.
_PASSING = frozenset({408, 425, 429})
# obstore asks these addresses for credentials when the environment has none.
_METADATA_SERVICES = ("/latest/api/token", "/latest/meta-data", "computeMetadata", "/metadata/identity")

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class Marker(msgspec.Struct):
    """The content of `shoal-archive.json`."""

    format: Annotated[int, msgspec.Meta(ge=1)]


class ObjectArchive:
    """Implements `Archive` in one folder or bucket. Blocking calls run in threads, each on a slice of a batch."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._threads = ThreadPoolExecutor(place.threads, thread_name_prefix="shoal-archive")
        self._recent = RecentBodies(REMEMBERED_BODIES)
        self._marker = os.path.abspath(os.path.join(place.shown, MARKER)) if place.is_folder else ""
        self._identity: tuple[int, int] | None = None

    @classmethod
    async def open(cls, url: str, *, create: bool = False) -> ObjectArchive:
        """Open the archive at this URL; `create` makes it if it does not exist."""
        archive = cls(await asyncio.to_thread(find_place, url, create=create))
        try:
            await archive._run(archive._check, create=create)
        except BaseException:
            await archive.close()
            raise
        return archive

    async def write(self, pages: Sequence[RawPage]) -> list[str]:
        """Store all these pages, the bodies first."""
        await self._run(self._check_in_place)
        fresh = {page.capture.content_hash: page.body for page in pages}
        fresh |= {page.capture.screenshot: page.screenshot for page in pages if page.screenshot}
        bodies = [(name, body) for name, body in fresh.items() if name not in self._recent]
        slices = (bodies[start :: self._place.threads] for start in range(self._place.threads))
        await asyncio.gather(*(self._run(self._put_bodies, part) for part in slices if part))
        self._recent.add(name for name, _ in bodies)
        by_crawl: dict[str, list[Capture]] = {}
        for page in pages:
            by_crawl.setdefault(page.capture.crawl, []).append(page.capture)
        names = {crawl: await self._run(self._put_captures, crawl, some) for crawl, some in by_crawl.items()}
        return [names[page.capture.crawl] for page in pages]

    async def body(self, content_hash: str) -> bytes:
        """The bytes of a body, checked against their hash."""
        body = await self._run(self._get_body, content_hash)
        # An unchanged page is archived again: its body need not be checked.
        self._recent.add([content_hash])
        return body

    async def captures(self, name: str) -> list[Capture]:
        """The captures in one object."""
        return await self._run(self._get_captures, name)

    async def scan(self, crawl: str) -> AsyncIterator[list[Capture]]:
        """All captures of a crawl; the next objects are read ahead."""
        async for names in self._names(f"captures/{_quoted(crawl)}"):
            for start in range(0, len(names), self._place.threads):
                ahead = names[start : start + self._place.threads]
                for captures in await asyncio.gather(*(self.captures(name) for name in ahead)):
                    yield captures

    async def crawls(self) -> list[str]:
        """The crawls that have captures."""
        found = await self._run(obstore.list_with_delimiter, self._place.objects, "captures")
        return sorted(unquote(prefix.rpartition("/")[2]) for prefix in found["common_prefixes"])

    async def write_log(self, name: str, octets: bytes) -> None:
        """Store a file of log lines."""
        await self._run(self._check_in_place)
        await self._run(self._put_log, _log_name(name), octets)

    async def read_log(self, name: str) -> bytes:
        """The bytes of a file of log lines."""
        return await self._run(self._get_log, _log_name(name))

    async def delete_crawl(self, crawl: str, *, counts_only: bool = False) -> Removal:
        """Deletes the bodies first: while the captures are there, a repeated call knows which bodies are left."""
        captures, bodies = 0, set[bytes]()
        async for some in self.scan(crawl):
            captures += len(some)
            bodies |= _bodies_of(some)
        for other in await self.crawls() if bodies else ():
            if other != crawl:
                async for some in self.scan(other):
                    bodies -= _bodies_of(some)
        if not counts_only:
            if bodies:
                await self._check_unused(crawl)
            names = [_body_name(digest.hex()) for digest in bodies]
            await self._delete(names)
            self._recent.forget(bodies)
            async for found in self._names(f"captures/{_quoted(crawl)}"):
                await self._delete(found)
            await self._run(self._remove_folder, crawl)
        return Removal(captures=captures, bodies=len(bodies))

    async def _check_unused(self, crawl: str) -> None:
        """Refuse to delete bodies that another crawl may rely on."""
        since = datetime.fromtimestamp(time.time() - IN_USE_SECONDS, UTC).strftime(_NAMED_BY)
        for other in await self.crawls():
            if other == crawl:
                continue
            async for names in self._names(f"captures/{_quoted(other)}"):
                if any(name.rpartition("/")[2] > since for name in names):
                    raise UsageError(
                        f"the archive in {self._place.shown}: {other} has kept pages there within the last hour and may"
                        f" count on bodies that would go with {crawl}; nothing was removed from it, try again an hour"
                        " after that crawl"
                    )

    async def _delete(self, names: Sequence[str]) -> None:
        threads = self._place.threads
        slices = (names[start::threads] for start in range(threads))
        await asyncio.gather(*(self._run(self._delete_some, part) for part in slices if part))

    def _delete_some(self, names: Sequence[str]) -> None:
        for name in names:
            # An earlier call may have deleted it.
            with suppress(FileNotFoundError):
                obstore.delete(self._place.objects, name)

    def _remove_folder(self, crawl: str) -> None:
        if self._place.is_folder:
            with suppress(OSError):
                os.rmdir(os.path.join(self._place.shown, "captures", _quoted(crawl)))

    async def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False)

    async def _names(self, prefix: str) -> AsyncIterator[list[str]]:
        listing = iter(obstore.list(self._place.objects, prefix, chunk_size=LISTED_AT_ONCE))
        none: Sequence[ObjectMeta] = ()
        while found := await self._run(lambda: next(listing, none)):
            yield [entry["path"] for entry in found if entry["path"].endswith(ENDING)]

    async def _run(
        self, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        def translated() -> _Result:
            with _translated(self._place):
                return work(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._threads, translated)

    def _check(self, *, create: bool) -> None:
        """Refuse a folder or bucket that is no archive, or is of a newer format. `create` makes it an archive."""
        try:
            version = msgspec.json.decode(self._get(MARKER), type=Marker).format
        except msgspec.DecodeError:
            raise StorageError(
                f"{MARKER} in {self._place.shown} is damaged or of another program: restore it, or use another"
                " folder or bucket"
            ) from None
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or not create:
                raise _absent(error, self._place) from None
            self._put(MARKER, msgspec.json.encode(Marker(FORMAT)))
            return
        if version > FORMAT:
            raise StorageError(
                f"the archive in {self._place.shown} was made by a newer shoal (format {version}, this one knows"
                f" {FORMAT}): upgrade shoal, or use another folder or bucket"
            )

    def _check_in_place(self) -> None:
        """Refuse a folder that was deleted: the next page would create it again without the earlier pages."""
        if not self._marker:
            return
        try:
            found = os.stat(self._marker)
        except (FileNotFoundError, NotADirectoryError):
            identity = None
        else:
            identity = found.st_dev, found.st_ino
        self._identity = self._identity or identity
        if identity is None or identity != self._identity:
            raise StorageBroken(
                f"the archive in {self._place.shown} was deleted or replaced while shoal used it: restore a copy, or"
                " run again to start afresh"
            )

    def _put_bodies(self, bodies: Sequence[tuple[str, bytes]]) -> None:
        compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        for content_hash, body in bodies:
            name, octets = _body_name(content_hash), compressor.compress(body)
            # Another size: truncated by a power cut, or compressed by another zstd. The content is equal.
            if self._size(name) != len(octets):
                self._put(name, octets)

    def _put_captures(self, crawl: str, captures: Sequence[Capture]) -> str:
        lines = b"".join(_line(capture) + b"\n" for capture in captures)
        written = datetime.fromtimestamp(captures[0].at, UTC).strftime(_NAMED_BY)[:-3]
        digest = hashlib.sha256(lines).hexdigest()[:NAME_DIGITS]
        name = f"captures/{_quoted(crawl)}/{written}Z-{digest}{ENDING}"
        self._put(name, zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(lines))
        return name

    def _get_body(self, content_hash: str) -> bytes:
        name = _body_name(content_hash)
        body = self._read(name)
        if hashlib.sha256(body).hexdigest() != content_hash:
            raise StorageError(f"{name} in {self._place.shown} is damaged: its bytes are not those that were written")
        return body

    def _get_captures(self, name: str) -> list[Capture]:
        decoder = msgspec.json.Decoder(Capture)
        try:
            return [decoder.decode(line) for line in self._read(name).split(b"\n") if line]
        except msgspec.DecodeError as error:
            raise StorageError(f"{name} in {self._place.shown} cannot be read: {error}") from None

    def _read(self, name: str) -> bytes:
        """An object, decompressed; an error if it is not whole."""
        try:
            return zstandard.ZstdDecompressor().decompress(self._get(name))
        except FileNotFoundError:
            raise StorageError(f"{name} is not in the archive in {self._place.shown}") from None
        except zstandard.ZstdError as error:
            raise StorageError(f"{name} in {self._place.shown} is damaged: {error}") from None

    def _put_log(self, name: str, octets: bytes) -> None:
        if self._place.is_folder:
            # Synced: the store deletes these lines next.
            folder = Path(self._place.shown)
            write_whole(folder / name, octets, below=folder)
        else:
            self._put(name, octets)

    def _get_log(self, name: str) -> bytes:
        try:
            return self._get(name)
        except FileNotFoundError:
            raise StorageError(f"{name} is not in the archive in {self._place.shown}") from None

    def _size(self, name: str) -> int:
        """The size of an object in bytes; -1 if there is none."""
        try:
            return obstore.head(self._place.objects, name)["size"]
        except FileNotFoundError:
            return -1

    def _get(self, name: str) -> bytes:
        return bytes(obstore.get(self._place.objects, name).bytes())

    def _put(self, name: str, octets: bytes) -> None:
        # In one request: the parts of a broken upload would stay in the bucket, unseen and paid for.
        obstore.put(self._place.objects, name, octets, use_multipart=False)


class RecentBodies:
    """The hashes of bodies known to be in the archive: a bounded number, least recently used dropped first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, content_hash: str) -> bool:
        digest = bytes.fromhex(content_hash)
        if digest not in self._known:
            return False
        self._known.move_to_end(digest)
        return True

    def forget(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._known.pop(digest, None)

    def add(self, hashes: Iterable[str]) -> None:
        for content_hash in hashes:
            self._known[bytes.fromhex(content_hash)] = None
        while len(self._known) > self._limit:
            self._known.popitem(last=False)


def _bodies_of(captures: Iterable[Capture]) -> set[bytes]:
    """The hashes that these captures name, as digests: there may be millions."""
    names = (name for capture in captures for name in (capture.content_hash, capture.screenshot) if name)
    return {bytes.fromhex(name) for name in names}


def _log_name(name: str) -> str:
    if not _LOG_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a file of the log: log/week=MONDAY/NAME.parquet is one")
    return name


def _body_name(content_hash: str) -> str:
    return f"bodies/{content_hash[:2]}/{content_hash}.zst"


def _quoted(crawl: str) -> str:
    """A crawl's id as one part of a path."""
    return quote(crawl, safe="").replace(".", "%2E") if crawl.strip(".") == "" else quote(crawl, safe="")


def _line(capture: Capture) -> bytes:
    try:
        return msgspec.json.encode(capture)
    except UnicodeEncodeError:
        # Half a surrogate pair in one header must not keep its whole batch out of the archive.
        return msgspec.json.encode(msgspec.convert(_mended(msgspec.to_builtins(capture)), Capture))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_mended(key): _mended(inner) for key, inner in value.items()}
    return [_mended(inner) for inner in value] if isinstance(value, list) else value


@contextmanager
def _translated(place: Place) -> Iterator[None]:
    """Translate errors of obstore: ServerUnreachable if waiting may help, else what the user has to change."""
    try:
        yield
    except ShoalError:
        raise
    except FileNotFoundError as error:
        raise _absent(error, place) from None
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        if place.is_folder:
            raise StorageError(f"the archive in {place.shown} refuses: {first_line(error)}") from None
        raise _refused(place) from None
    except (BaseError, OSError, ValueError) as error:
        raise _failure(error, place) from None


def _absent(error: FileNotFoundError, place: Place) -> ShoalError:
    if not place.is_folder and ("NoSuchBucket" in str(error) or "ContainerNotFound" in str(error)):
        return UsageError(f"{place.shown}: there is no such bucket; make it first")
    return UsageError(f"there is no archive in {place.shown}: `shoal run FILE --archive {place.shown}` makes one")


def _refused(place: Place) -> ShoalError:
    return UsageError(f"{place.shown} refuses these credentials: check {CREDENTIALS[place.scheme]}")


def _failure(error: Exception, place: Place) -> ShoalError:
    text = first_line(error)
    if place.is_folder:
        return StorageError(f"the archive in {place.shown} cannot be used: {text}")
    if any(service in text for service in _METADATA_SERVICES):
        return UsageError(f"{place.shown} needs credentials: set {CREDENTIALS[place.scheme]}")
    if "NoSuchBucket" in str(error):
        return UsageError(f"{place.shown}: there is no such bucket; make it first")
    # Before the dash obstore names the request and the number of tries.
    why, status = text.rpartition(" - ")[2], _STATUS.search(text)
    if status and 300 <= int(status[1]) < 500 and int(status[1]) not in _PASSING:
        return UsageError(f"{place.shown} refuses, check its region and endpoint: {why}")
    return ServerUnreachable(f"the archive in {place.shown} cannot be reached: {why}")
