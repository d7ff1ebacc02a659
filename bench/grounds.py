"""Sites to crawl: built once, served by an nginx of its own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.crawlers import WORK
from bench.nginx import Tls, free_port, is_free, serve, server_pid
from bench.progress import telling
from bench.site import SitePlan, build_site, stored_plan

CERTIFICATE_DAYS = 3650


class Ground(NamedTuple):
    """A site that is up: where a crawl of it starts, how many pages it has, and the server's process."""

    start: str
    pages: int
    server_pid: int


@contextlib.contextmanager
def open_ground(name: str, plan: SitePlan, *, tls: Tls | None = None) -> Iterator[Ground]:
    """Serve this site until the block ends; it is built unless it is there. Its `base` is chosen here, with a port."""
    folder, scheme = WORK / name, "http" if tls is None else "https"
    found = stored_plan(folder)
    port = int(found.base.rpartition(":")[2]) if found is not None and found.base else 0
    if not port or not is_free(port):
        port = free_port()
    plan = replace(plan, base=f"{scheme}://127.0.0.1:{port}")
    if stored_plan(folder) != plan:
        with telling(f"building {plan.pages:,} pages under {folder}"):
            build_site(plan, folder=folder)
    work = WORK / f"nginx-{name}"
    with serve(folder, port=port, work=work, tls=tls) as address:
        yield Ground(start=f"{address}/{plan.path(0)}", pages=plan.pages, server_pid=server_pid(work))


def make_certificate(folder: Path) -> Path:
    """An authority of our own, `root.pem`, and a certificate for 127.0.0.1 by it: `site.pem`, `site.key`."""
    if not (folder / "site.pem").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "site.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        days = ["-days", str(CERTIFICATE_DAYS)]
        for command in (
            ["req", "-x509", *new_key, *days, "-keyout", "root.key", "-out", "root.pem", "-subj", "/CN=benchmark root"],
            ["req", *new_key, "-keyout", "site.key", "-out", "site.csr", "-subj", "/CN=127.0.0.1"],
            ["x509", "-req", *days, "-in", "site.csr", "-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial",
             "-extfile", "site.ext", "-out", "site.pem"],
        ):  # fmt: skip
            subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    return folder
