"""The folder into which programs put files: read whole, moved when their lines are taken in, one taker at a time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from shoal.crawl.folder_inbox import QUIET_SECONDS, FolderInbox
from shoal.crawl.sources import LONGEST_LINE

BOOKS = "books"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / BOOKS).mkdir()
    return tmp_path / BOOKS


def write(folder: Path, name: str, *lines: str, ago: float = 60.0) -> Path:
    path = folder / name
    path.write_text("\n".join(lines))
    os.utime(path, (time.time() - ago,) * 2)
    return path


async def drained(inbox: FolderInbox, *, limit: int = 500, name: str = BOOKS) -> list[bytes]:
    found: list[bytes] = []
    while entries := await inbox.take(name, limit):
        found += entries
        await inbox.forget(name)
    return found


async def test_files_are_taken_in_whole_oldest_first_and_moved_when_all_their_lines_were(folder: Path) -> None:
    write(folder, "b", "https://a.test/3", ago=10)
    write(folder, "a.txt", "https://a.test/1", "", "# no URL", ' {"url": "https://a.test/2"} ', ago=20)
    inbox = FolderInbox(folder.parent)
    assert await inbox.names() == [BOOKS]
    assert await inbox.count([BOOKS, "none"]) == {BOOKS: 3}
    assert await inbox.take(BOOKS, 1) == [b"https://a.test/1"] == await inbox.take(BOOKS, 1)
    await inbox.forget(BOOKS)
    assert await inbox.count([BOOKS]) == {BOOKS: 2}
    assert (folder / "a.txt").exists()
    assert await drained(inbox) == [b'{"url": "https://a.test/2"}', b"https://a.test/3"]
    assert sorted(path.name for path in (folder / "done").iterdir()) == ["a.txt", "b"]
    assert (await inbox.names(), await inbox.count([BOOKS])) == ([], {})


async def test_a_file_whose_taker_dies_half_way_is_taken_again_from_its_beginning(folder: Path) -> None:
    write(folder, "a", "https://a.test/1", "https://a.test/2")
    killed, other = FolderInbox(folder.parent), FolderInbox(folder.parent)
    assert await killed.take(BOOKS, 1) == [b"https://a.test/1"]
    await killed.forget(BOOKS)
    assert await other.take(BOOKS, 5) == []
    assert await other.count([BOOKS]) == {BOOKS: 2}
    await killed.close()
    assert await other.take(BOOKS, 5) == [b"https://a.test/1", b"https://a.test/2"]
    await other.close()


async def test_files_that_are_still_written_are_left_alone(folder: Path) -> None:
    now = time.time()
    write(folder, ".hidden", "https://a.test/1")
    write(folder, "a.tmp", "https://a.test/1")
    write(folder, "b.part", "https://a.test/1")
    assert await FolderInbox(folder.parent).waiting([BOOKS]) == []
    young = write(folder, "young", "https://a.test/2")
    os.utime(young, (now, now))
    assert await FolderInbox(folder.parent, clock=lambda: now + QUIET_SECONDS / 2).take(BOOKS, 5) == []
    assert await FolderInbox(folder.parent).waiting([BOOKS]) == [BOOKS]
    late = FolderInbox(folder.parent, clock=lambda: now + QUIET_SECONDS)
    assert await late.take(BOOKS, 5) == [b"https://a.test/2"]
    await late.close()


async def test_a_file_that_is_no_text_is_told_of_and_left_alone(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, beginning in (("a.gz", b"\x1f\x8b\x08\x00\n\n"), ("utf-16.txt", b"\xff\xfeh\x00t\x00\n\x00")):
        write(folder, name)
        (folder / name).write_bytes(beginning)
    write(folder, "b.txt", "\ufeffhttps://a.test/1", "\ufeff")
    inbox = FolderInbox(folder.parent, clock=lambda: time.time() + 60)
    assert await drained(inbox) == [b"https://a.test/1", "\ufeff".encode()]
    assert await inbox.waiting([BOOKS]) == []
    assert {"a.gz", "utf-16.txt"} <= set(os.listdir(folder))
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "nothing is taken from it: it is compressed by gzip, not UTF-8 text: `zcat` converts it",
        "nothing is taken from it: it is UTF-16, not UTF-8 text: `iconv -f UTF-16 -t UTF-8` converts it",
    ]


async def test_of_large_lines_few_are_taken_at_once_and_of_a_larger_one_its_beginning(folder: Path) -> None:
    write(folder, "a", *("x" * (LONGEST_LINE - 1) for _ in range(9)), "y" * 3 * LONGEST_LINE, "z")
    inbox = FolderInbox(folder.parent)
    sizes = []
    while entries := await inbox.take(BOOKS, 500):
        sizes.append([len(entry) for entry in entries])
        await inbox.forget(BOOKS)
    line = LONGEST_LINE - 1
    assert sizes == [[line] * 5, [line] * 4 + [LONGEST_LINE], [1]]


async def test_a_link_leads_nowhere_and_a_name_to_no_other_folder(folder: Path, tmp_path: Path) -> None:
    secret = write(tmp_path, "secret", "https://a.test/?token")
    (folder / "link").symlink_to(secret)
    inbox = FolderInbox(folder.parent)
    assert await inbox.waiting([BOOKS]) == []
    for name in ("..", "../books", "a/b", "."):
        assert inbox.folder(name).parent == folder.parent
        assert inbox.folder(name).resolve() != folder.parent
    write(folder, "a", "https://a.test/1")
    assert await inbox.take("../books", 5) == []


async def test_a_name_that_was_used_before_replaces_no_file_that_is_done(folder: Path) -> None:
    inbox = FolderInbox(folder.parent)
    for number in (1, 2):
        write(folder, "urls.txt", f"https://a.test/{number}")
        assert await drained(inbox) == [f"https://a.test/{number}".encode()]
    assert sorted(path.name for path in (folder / "done").iterdir()) == ["urls.txt", "urls.txt.2"]


async def test_a_file_that_cannot_be_moved_is_told_of_and_not_taken_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, "a", "https://a.test/1")
    (folder / "done").write_text("in the way")
    write(folder, "b", "https://a.test/2")
    (folder / "done").unlink()
    (folder / "done").symlink_to("/nowhere")
    inbox = FolderInbox(folder.parent)
    assert await drained(inbox) == [b"https://a.test/1", b"https://a.test/2"]
    assert await drained(inbox) == []
    assert "cannot be moved to done/" in caplog.text


async def test_files_of_a_deleted_crawl_are_kept_and_a_line_that_is_too_long_is_cut(folder: Path) -> None:
    write(folder, "a", "x" * (3 << 20), "https://a.test/1")
    inbox = FolderInbox(folder.parent)
    assert [len(entry) for entry in await inbox.take(BOOKS, 5)] == [1 << 20, 16]
    await inbox.close()
    await inbox.delete(BOOKS)
    assert (await inbox.waiting([BOOKS]), (folder / "done" / "a").exists()) == ([], True)


async def test_a_folder_may_lie_elsewhere(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "incoming"
    elsewhere.mkdir()
    write(elsewhere, "a", "https://a.test/1")
    inbox = FolderInbox(tmp_path / "none", own={BOOKS: elsewhere})
    assert await inbox.names() == [BOOKS]
    assert inbox.place(BOOKS) == str(elsewhere)
    assert await drained(inbox) == [b"https://a.test/1"]


async def test_a_file_that_takes_the_name_of_one_that_is_being_read_is_taken_next(folder: Path) -> None:
    write(folder, "urls.txt", "https://a.test/1", "https://a.test/2")
    inbox = FolderInbox(folder.parent)
    assert await inbox.take(BOOKS, 1) == [b"https://a.test/1"]
    write(folder, "next.part", "https://a.test/3").rename(folder / "urls.txt")
    assert await drained(inbox) == [b"https://a.test/1", b"https://a.test/2", b"https://a.test/3"]
    assert await inbox.names() == []


async def test_lines_that_come_into_a_file_that_was_taken_in_are_told_of_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, "other.txt", "https://a.test/0", ago=90)
    path = write(folder, "urls.txt", "https://a.test/1")
    inbox = FolderInbox(folder.parent)
    with path.open("a") as writing:
        assert len(await drained(inbox)) == 2
        assert await inbox.waiting([BOOKS]) == []
        assert caplog.messages == []
        writing.write("https://a.test/2")
    for _ in range(2):
        assert await inbox.waiting([BOOKS]) == []
    (message,) = caplog.messages
    assert message.startswith(f"{folder / 'done' / 'urls.txt'}: it has grown since it was taken in")
