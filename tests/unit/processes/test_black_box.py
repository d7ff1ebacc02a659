"""What a worker process leaves for the one who finds it dead: which handlers ran, and whether it was at work at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shoal.worker.black_box import NAMES, SLOTS, BlackBox, WorkerBox

WRITER = """
import os, sys
from shoal.worker.black_box import BlackBox
worker = BlackBox.inherited(int(sys.argv[1])).worker("w", patience=30.0)
worker.open()
worker.begin(7, "parse", "https://a.test/bad")
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def box() -> Iterator[BlackBox]:
    made = BlackBox.to_pass_on()
    yield made
    made.close()


@pytest.fixture
def worker(box: BlackBox) -> WorkerBox:
    made = box.worker("w", patience=30.0)
    made.open()
    return made


def suspects(box: BlackBox) -> list[tuple[int, str, str]]:
    return [(page.token, page.handler, page.url) for page in box.read().suspects]


def test_the_page_whose_handler_ran_is_known_after_a_kill(box: BlackBox) -> None:
    subprocess.run([sys.executable, "-c", WRITER, str(box.descriptor)], pass_fds=[box.descriptor], check=False)
    reading = box.read()
    assert suspects(box) == [(7, "parse", "https://a.test/bad")]
    assert (reading.workers, reading.has_ended, reading.moves > 0) == (("w",), False, True)


def test_a_handler_that_ended_is_no_suspect(box: BlackBox, worker: WorkerBox) -> None:
    worker.begin(7, "parse", "https://a.test/")
    worker.rest()
    slot = worker.wait(8, "parse", "https://a.test/2")
    worker.finish(slot, 8)
    assert suspects(box) == []


def test_of_several_handlers_that_one_is_the_suspect_whose_code_runs(box: BlackBox, worker: WorkerBox) -> None:
    slots = [worker.wait(token, "parse", f"https://a.test/{token}") for token in (1, 2, 3)]
    assert sorted(token for token, _, _ in suspects(box)) == [1, 2, 3]
    worker.resume(slots[1])
    assert suspects(box) == [(2, "parse", "https://a.test/2")]
    worker.rest()
    worker.begin(4, "book", "https://a.test/4")
    assert suspects(box) == [(4, "book", "https://a.test/4")]


def test_when_too_many_handlers_wait_the_oldest_is_not_listed(box: BlackBox, worker: WorkerBox) -> None:
    slots = [worker.wait(token, "parse", "https://a.test/") for token in range(1, SLOTS + 2)]
    assert sorted(token for token, _, _ in suspects(box)) == list(range(2, SLOTS + 2))
    for token, slot in enumerate(slots, start=1):
        worker.finish(slot, token)
    assert suspects(box) == []


def test_a_long_url_is_cut(box: BlackBox, worker: WorkerBox) -> None:
    worker.begin(1, "parse", f"https://a.test/{'x' * 5000}")
    ((_, _, url),) = suspects(box)
    assert 200 < len(url) < 300


def test_the_most_patient_worker_of_a_process_counts(box: BlackBox) -> None:
    assert box.read().patience is None
    workers = [box.worker(f"w{seconds}", patience=seconds) for seconds in (5.0, 60.0, 0.0)]
    seen = []
    for worker in workers:
        worker.open()
        seen.append(box.read().patience)
    for worker in workers[::-1]:
        worker.close()
        seen.append(box.read().patience)
    # 0: a handler of one of them may take as long as it likes.
    assert seen == [5.0, 60.0, 0.0, 60.0, 5.0, None]


def test_more_workers_than_names_are_at_work_though_nobody_knows_them(box: BlackBox) -> None:
    workers = [box.worker(f"w{number}", patience=1.0) for number in range(NAMES + 1)]
    for worker in workers:
        worker.open()
    workers[-1].begin(1, "parse", "https://a.test/")
    assert suspects(box) == []
    workers[-1].close()
    assert len(box.read().workers) == NAMES


def test_a_worker_under_a_guardian_has_the_process_id_that_people_know() -> None:
    assert BlackBox.private(supervisor=42).pid == 42
    assert f":{os.getpid()}:" in BlackBox.private().worker(None, patience=1.0).name
