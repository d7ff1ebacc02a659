"""The stages of a Dockerfile, built in copies of a Debian root and run there: what a container engine would do.

Stands in for the base image: a Debian of `debootstrap` with its own Python. Everything else is the file's own steps."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from dockerfile import Instruction, Stage, lineage, stages_of

SECONDS = 120.0


@dataclass
class Root:
    """A stage that was built: its files, and how its processes run."""

    path: Path
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"})
    user: str = "0:0"
    folder: str = "/"

    def command(self, words: list[str], variables: dict[str, str] | None = None) -> list[str]:
        """Words as this stage's user in its folder."""
        given = [f"{name}={value}" for name, value in (self.variables | (variables or {})).items()]
        return ["chroot", f"--userspec={self.user}", str(self.path), "env", "-i", "-C", self.folder, *given, *words]

    def container(self, words: list[str], variables: dict[str, str], *, secrets: Path) -> subprocess.Popen[str]:
        """Words as process 1 of its own, on a read-only file system with /tmp and secrets, as compose.yaml says."""
        root = shlex.quote(str(self.path))
        script = "\n".join(
            (
                "set -e",
                f"mount --bind {root} {root}",
                f"mkdir -p {root}/run/secrets",
                f"mount -t tmpfs tmpfs {root}/run/secrets",
                # File by file, as compose does: the folder itself is closed to the image's user.
                f"for file in {shlex.quote(str(secrets))}/*; do",
                f"  touch {root}/run/secrets/${{file##*/}}; mount --bind $file {root}/run/secrets/${{file##*/}}; done",
                f"mount -o remount,ro {root}/run/secrets",
                f"mount -o remount,bind,ro {root}",
                f"mount -t proc proc {root}/proc",
                # As container engines mount it.
                f"mount -t tmpfs -o noexec,nosuid,nodev tmpfs {root}/tmp",
                f"exec {shlex.join(self.command(words, variables))}",
            )
        )
        namespaces = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*namespaces, "sh", "-c", script], text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def first_process(container: subprocess.Popen[str]) -> int:
    """The id of a container's process 1, as seen from outside."""
    return int(Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()[0])


def build(context: Path, *, base: Path, target: str, folder: Path) -> Root:
    """Run the steps of the Dockerfile up to a stage."""
    stages = stages_of((context / "Dockerfile").read_text())
    built: dict[str, Root] = {}
    needed = [name for name, stage in stages.items() if name == target or _is_copied(stage, stages, target)]
    for name in needed:
        root = built[name] = Root(folder / name)
        subprocess.run(["cp", "-a", str(base), str(root.path)], check=True)
        for step in lineage(stages, name):
            _do(step, root, context, built)
    return built[target]


def _is_copied(stage: Stage, stages: dict[str, Stage], target: str) -> bool:
    return any(f"--from={stage.name} " in step.text for step in lineage(stages, target))


def _do(step: Instruction, root: Root, context: Path, built: dict[str, Root]) -> None:
    if step.name == "ENV":
        root.variables |= dict(word.split("=", 1) for word in shlex.split(step.text))
    elif step.name == "COPY":
        *flags, source, target = step.text.split()
        start = built[flags[0].removeprefix("--from=")].path if flags else context
        _copy(start / source.strip("/"), root.path / target.strip("/"), into=target.endswith("/"))
    elif step.name == "RUN":
        offline = {"PIP_NO_INDEX": "1"}
        done = subprocess.run(
            root.command(["sh", "-c", step.text], offline), capture_output=True, text=True, check=False, timeout=SECONDS
        )
        assert done.returncode == 0, f"{step.text}\n{done.stdout}\n{done.stderr}"
    elif step.name == "WORKDIR":
        root.folder = step.text
        (root.path / step.text.strip("/")).mkdir(parents=True, exist_ok=True)
    elif step.name == "USER":
        root.user = "0:0" if step.text == "root" else step.text


def _copy(source: Path, target: Path, *, into: bool) -> None:
    assert source.exists(), f"COPY of {source}, which is not there"
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / source.name if into else target)


def why_not(base: Path) -> str:
    """Why no image can be built here; empty where one can."""
    if os.geteuid() != 0:
        return "only root may change the root of a process"
    if not (base / "usr/bin/python3").exists():
        return "there is no Debian root: `make test` makes it where debootstrap is installed"
    return ""
