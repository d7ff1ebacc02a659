"""Files in a folder that readers list: there whole, under their name, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, octets: bytes, *, below: Path) -> None:
    """Write a file that outlives a power cut, in a folder somewhere below another one.

    Not by the library: what a killed process has begun it leaves beside the file, under a name that readers take for
    one more. Ours begins with a dot, which they skip, and is the same at every try."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_name(f".{path.name}.part")
    try:
        with begun.open("wb") as file:
            file.write(octets)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        begun.unlink(missing_ok=True)
        raise
    begun.replace(path)
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
