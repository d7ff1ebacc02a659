"""Archives in a folder and in object storage keep what an archive promises."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import obstore
import pytest
import zstandard

from shoal.archive import open_archive
from shoal.archive.base import Archive
from shoal.archive.urls import find_place
from shoal.errors import ServerUnreachable, StorageError, UsageError
from shoal.testing.archive_contract import LARGE, ArchiveContract, Reopen, everything, raw_page
from shoal.testing.servers.object_server import Gate, MotoServer
from shoal.testing.store_contract import files_no_larger_than
from shoal.worker.outages import until_reachable


def start_writer(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal.testing.archive_contract", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def sizes_in(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


class ObjectArchiveContract(ArchiveContract):
    """What holds for objects wherever they lie; a subclass has the fixture `url`."""

    @pytest.fixture
    async def reopen(self, url: str) -> AsyncIterator[Reopen]:
        async with AsyncExitStack() as opened:

            async def open_again() -> Archive:
                archive = await open_archive(url, create=True)
                opened.push_async_callback(archive.close)
                return archive

            yield open_again

    @pytest.fixture
    def objects(self, url: str) -> Any:
        return find_place(url, create=True).objects

    @pytest.fixture
    def bodies(self, objects: Any) -> Any:
        async def names() -> list[str]:
            return [entry["path"] for entry in obstore.list(objects, "bodies").collect()]

        return names

    async def test_a_killed_writer_leaves_whole_objects_only(self, url: str, reopen: Reopen, bodies: Any) -> None:
        named: list[str] = []
        for moment in (1, 2, 3):
            writer = start_writer(url)
            assert writer.stdout is not None
            named.append((await asyncio.to_thread(writer.stdout.readline)).strip())
            await asyncio.sleep(0.02 * moment)  # the kill comes somewhere in the next batch, each time at another step
            writer.kill()
            writer.communicate()
        archive = await reopen()
        told = {capture.content_hash for capture in await everything(archive)}
        lying = {Path(name).stem for name in await bodies()}
        assert told <= lying
        for content_hash in lying:
            assert len(await archive.body(content_hash)) > LARGE
        for name in named:
            captured = {capture.content_hash for capture in await archive.captures(name)}
            assert len(captured) == 2
            assert captured <= told

    @pytest.mark.parametrize("keep", [0, 5, -7])
    async def test_objects_cut_short_are_never_given_as_whole_and_are_written_anew(
        self, archive: Archive, reopen: Reopen, objects: Any, bodies: Any, keep: int
    ) -> None:
        page = raw_page(b"page " * 1000)
        [name] = await archive.write([page])
        [body] = await bodies()
        for each in (name, body):
            obstore.put(objects, each, bytes(obstore.get(objects, each).bytes())[:keep])
        with pytest.raises(StorageError, match="damaged"):
            await archive.body(page.capture.content_hash)
        with pytest.raises(StorageError, match="damaged"):
            await archive.captures(name)
        fresh = await reopen()
        assert await fresh.write([page]) == [name]
        assert await fresh.body(page.capture.content_hash) == page.body
        assert await fresh.captures(name) == [page.capture]

    async def test_a_changed_byte_is_noticed(self, archive: Archive, objects: Any, bodies: Any) -> None:
        page = raw_page()
        [name] = await archive.write([page])
        for each in (name, *await bodies()):
            octets = bytearray(bytes(obstore.get(objects, each).bytes()))
            octets[-6] ^= 1
            obstore.put(objects, each, bytes(octets))
        with pytest.raises(StorageError, match="damaged"):
            await archive.body(page.capture.content_hash)
        with pytest.raises(StorageError, match="damaged"):
            await archive.captures(name)

    async def test_a_body_under_the_name_of_another_is_not_given(
        self, archive: Archive, objects: Any, bodies: Any
    ) -> None:
        one, other = raw_page(b"one"), raw_page(b"other")
        await archive.write([one, other])
        name = next(name for name in await bodies() if one.capture.content_hash in name)
        obstore.copy(objects, next(path for path in await bodies() if path != name), name)
        with pytest.raises(StorageError, match="its bytes are not those that were written"):
            await archive.body(one.capture.content_hash)

    async def test_a_newer_layout_is_refused(self, url: str, objects: Any) -> None:
        obstore.put(objects, "shoal-archive.json", b'{"format": 2}')
        with pytest.raises(StorageError, match=r"newer shoal \(format 2, this one knows 1\): upgrade shoal"):
            await open_archive(url, create=True)

    @pytest.mark.parametrize("text", [b"", b"[]", b'{"name": "theirs"}', b'{"format": "1"}', b'{"format": 0}'])
    async def test_a_marker_of_another_program_is_refused_and_left_alone(
        self, url: str, objects: Any, text: bytes
    ) -> None:
        obstore.put(objects, "shoal-archive.json", text)
        with pytest.raises(StorageError, match=r"shoal-archive\.json in .* is damaged or of another program"):
            await open_archive(url, create=True)
        assert bytes(obstore.get(objects, "shoal-archive.json").bytes()) == text

    async def test_captures_with_fields_of_a_later_version_are_read(self, archive: Archive, objects: Any) -> None:
        page = raw_page()
        [name] = await archive.write([page])
        lines = zstandard.ZstdDecompressor().decompress(bytes(obstore.get(objects, name).bytes()))
        later = lines.replace(b'"crawl":', b'"planet":"earth","crawl":')
        assert later != lines
        obstore.put(objects, name, zstandard.ZstdCompressor().compress(later))
        assert await archive.captures(name) == [page.capture]

    async def test_a_place_without_an_archive_is_not_made_one_by_looking(self, url: str, objects: Any) -> None:
        with pytest.raises(UsageError, match="there is no archive in"):
            await open_archive(url)
        assert obstore.list(objects).collect() == []


class TestFolderArchive(ObjectArchiveContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "my %20 pages#1")

    async def test_a_full_disk_is_one_line_and_the_same_write_succeeds_later(self, archive: Archive, url: str) -> None:
        pages = [raw_page(hashlib.sha512(b"%d" % number).digest() * 4000, key=number) for number in range(3)]
        noise = raw_page(b"".join(hashlib.sha512(b"%d" % number).digest() for number in range(3000)))
        with (
            files_no_larger_than(50_000),
            pytest.raises(StorageError, match=r"the archive in .*/my %20 pages#1 cannot be used"),
        ):
            await archive.write([*pages, noise])
        assert await everything(archive) == []
        await archive.write([*pages, noise])
        assert len(await everything(archive)) == 4

    async def test_a_writer_killed_in_the_middle_of_a_file_leaves_no_half_of_it_to_be_read(
        self, url: str, reopen: Reopen, bodies: Any
    ) -> None:
        # The kernel kills a process that goes beyond its limit: right there, in the middle of the file.
        limits = (
            "import asyncio, resource, signal, sys\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LARGE // 2}, {LARGE // 2}))\n"
            "from shoal.testing.archive_contract import write_for_ever\n"
            "asyncio.run(write_for_ever(sys.argv[1]))\n"
        )
        writer = await asyncio.create_subprocess_exec(sys.executable, "-c", limits, url)
        assert await writer.wait() == -signal.SIGXFSZ
        assert LARGE // 2 in sizes_in(Path(url))
        assert await bodies() == []
        archive = await reopen()
        assert await everything(archive) == []
        # What lies there under a name of its own disturbs nobody.
        await archive.write([raw_page()])
        assert len(await bodies()) == len(await everything(archive)) == 1

    async def test_a_folder_that_may_not_be_made_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StorageError, match="cannot be made a folder for the archive"):
            await open_archive(str(tmp_path / "file" / "pages"), create=True)

    async def test_a_file_url_is_a_folder_too(self, url: str) -> None:
        await (await open_archive(f"file://{url}", create=True)).close()
        assert (Path(url) / "shoal-archive.json").exists()


@pytest.fixture(scope="module")
def pages_bucket(object_server: MotoServer) -> None:
    object_server.make_bucket("pages")


@pytest.mark.usefixtures("pages_bucket")
class TestS3Archive(ObjectArchiveContract):
    @pytest.fixture
    def url(self, moto: MotoServer, request: pytest.FixtureRequest) -> str:
        prefix = hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
        return moto.url("pages", f"{prefix}/ü deep")

    async def test_a_missing_bucket_is_one_line(self, moto: MotoServer) -> None:
        for create in (True, False):
            with pytest.raises(UsageError, match=r"s3://nowhere/x: there is no such bucket"):
                await open_archive(moto.url("nowhere", "x"), create=create)

    async def test_a_bucket_that_goes_away_is_one_line(self, moto: MotoServer) -> None:
        moto.make_bucket("short-lived")
        archive = await open_archive(moto.url("short-lived"), create=True)
        objects = find_place(moto.url("short-lived"), create=True).objects
        obstore.delete(objects, "shoal-archive.json")
        moto.drop_bucket("short-lived")
        with pytest.raises(UsageError, match="there is no such bucket"):
            await archive.write([raw_page()])
        with pytest.raises(UsageError, match="there is no such bucket"):
            await everything(archive)
        await archive.close()

    async def test_a_server_that_is_away_is_waited_for(self, moto: MotoServer) -> None:
        gate = await Gate(moto.port).open()
        archive = await open_archive(moto.url("pages", "gated", port=gate.port), create=True)
        await gate.shut()
        for step in (archive.write([raw_page()]), everything(archive), archive.crawls()):
            with pytest.raises(ServerUnreachable, match=r"the archive in s3://pages/gated cannot be reached") as caught:
                await step
            assert "for-moto-alone" not in str(caught.value)
        said, heard = [], asyncio.Event()

        def say(line: str) -> None:
            said.append(line)
            heard.set()

        writing = asyncio.create_task(until_reachable(lambda: archive.write([raw_page()]), say=say))
        await heard.wait()
        assert not writing.done()
        await gate.open()
        assert await archive.captures((await writing)[0]) == [raw_page().capture]
        assert said == ["the archive in s3://pages/gated cannot be reached: HTTP error: error sending request; waiting"]
        await archive.close()
        await gate.shut()

    async def test_without_credentials_it_says_which_to_set(
        self, object_server: MotoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # No server answers there: on a machine of Amazon's own this is where credentials would come from.
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
        with pytest.raises(UsageError, match="needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
            await open_archive(object_server.url("pages"), create=True)
