"""How a process takes its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from pathlib import Path
from shoal.worker.machine import keep_freed_memory, take_small_pages

keep_freed_memory()
take_small_pages()
print(Path("/proc/self/status").read_text())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_a_process_takes_its_memory_in_small_pages() -> None:
    # In a process of its own: what it starts afterwards is told the same.
    told = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    if "THP_enabled:" not in told:
        pytest.skip("an older kernel does not tell")
    assert "THP_enabled:\t0" in told


OBJECTS = """
import gc, weakref
from shoal.worker.machine import spare_existing_objects

class Ring:
    def __init__(self):
        self.ring = self

gc.collect()
gc.disable()
spare_existing_objects()
assert gc.get_freeze_count() == 0, "garbage is collected by hand here"
gc.enable()
garbage = weakref.ref(Ring())
spare_existing_objects()
assert garbage() is None, "garbage must not be kept for ever"
spared = gc.get_freeze_count()
assert spared > 1000
later = Ring()
spare_existing_objects()
assert gc.get_freeze_count() == spared, "objects of a crawl must be collected"
later = weakref.ref(later)
gc.collect()
assert later() is None
print("spared")
"""


def test_objects_that_exist_are_spared_once_and_later_garbage_is_collected() -> None:
    # In a process of its own: what is spared stays so.
    told = subprocess.run([sys.executable, "-c", OBJECTS], check=True, capture_output=True, text=True).stdout
    assert told == "spared\n"
