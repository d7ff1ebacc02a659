"""nginx from Debian's packages, as a private server on loopback for one benchmark."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

START_SECONDS = 10.0
ANY_NUMBER = 100_000_000
CONFIG = """
daemon off;
worker_processes 1;
pid {work}/nginx.pid;
error_log {work}/nginx-error.log warn;
{user}
events {{ worker_connections {connections}; }}
http {{
  types {{ text/html html; }}
  default_type text/html;
  charset utf-8;
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_timeout 300s;
  keepalive_requests {requests_per_connection};
  client_body_temp_path {work}/client;
  proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi;
  scgi_temp_path {work}/scgi;
  server {{
    listen {address}:{port} backlog=4096{tls};
    root {root};
    location = /-/status {{ stub_status; }}
    location /copy/ {{ rewrite ^/copy/[0-9]+/(.*)$ /$1 break; }}
  }}
}}
"""


class Tls(NamedTuple):
    """HTTPS, with a fresh connection after so many requests."""

    certificate: Path
    key: Path
    requests_per_connection: int


def find_nginx() -> str:
    """The nginx program; installed with apt-get if it is missing and we are root."""
    path = _search()
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        # Run level 1 keeps the package from starting its own server.
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
        subprocess.run(["apt-get", "install", "-y", "-qq", "nginx"], check=True, env=environment)
        path = _search()
    if path is None:
        raise SystemExit("nginx is missing: install it with `sudo apt-get install nginx`")
    return path


def free_port() -> int:
    """A port below those that the system hands out itself, so that it is likely to be free next time, too."""
    first, last = 21_000, 32_000
    # Not always the first: two benchmarks that begin at once would choose the same.
    middle = random.randrange(first, last)
    return next(port for port in [*range(middle, last), *range(first, middle)] if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def serve(
    root: Path, *, port: int, work: Path, address: str = "127.0.0.1", connections: int = 4096, tls: Tls | None = None
) -> Iterator[str]:
    """Serve a folder, and the same again under /copy/N/, until the block ends. Gives the URL on 127.0.0.1."""
    program = find_nginx()
    work.mkdir(parents=True, exist_ok=True)
    user = "user root;" if os.geteuid() == 0 else ""
    config = work / "nginx.conf"
    (work / "nginx.pid").unlink(missing_ok=True)
    config.write_text(
        CONFIG.format(
            work=work.resolve(),
            root=root.resolve(),
            address=address,
            port=port,
            connections=connections,
            user=user,
            tls="" if tls is None else f" ssl; ssl_certificate {tls.certificate}; ssl_certificate_key {tls.key}",
            requests_per_connection=ANY_NUMBER if tls is None else tls.requests_per_connection,
        )
    )
    process = subprocess.Popen([program, "-p", str(work), "-c", str(config.resolve())], stderr=subprocess.DEVNULL)
    try:
        url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
        wait_until_up(process, url, work=work)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=10)


def server_pid(work: Path) -> int:
    """The process id of the nginx that was started with this work folder."""
    return int((work / "nginx.pid").read_text())


def requests_served(address: str) -> int:
    """How many requests nginx has taken since it started."""
    unchecked = ssl._create_unverified_context()  # our own server, with a certificate of our own
    with urllib.request.urlopen(f"{address}/-/status", timeout=5, context=unchecked) as answer:
        lines = answer.read().decode().splitlines()
    return int(lines[2].split()[2])


def wait_until_up(process: subprocess.Popen[bytes], address: str, *, work: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        # By its pid first: what answers at the address may be another server that was there before.
        with contextlib.suppress(OSError, ValueError):
            if server_pid(work) == process.pid:
                requests_served(address)
                return
        time.sleep(0.05)
    raise SystemExit(f"nginx did not start: see {work / 'nginx-error.log'}")


def _search() -> str | None:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
