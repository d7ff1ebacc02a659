"""How a process takes its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from pathlib import Path
from shoal.processes.memory import keep_freed_memory, take_small_pages

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
