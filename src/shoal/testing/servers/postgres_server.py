"""A real PostgreSQL server for tests on a free port, which can be stopped, killed and restarted."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shoal.testing.servers.programs import START_SECONDS, free_port, missing, wait_for_answer

POSTGRES_PLACES = "/usr/lib/postgresql"
POSTGRES_PASSWORD = "s3cr3t/w@rd"


def find_postgres() -> Path:
    """The folder of PostgreSQL's programs: Debian has one per version, outside of the PATH."""
    return Path(_newest() or missing("postgresql")).parent


def is_installed() -> bool:
    """Whether PostgreSQL is installed."""
    return _newest() is not None


def _newest() -> str | Path | None:
    found = sorted(Path(POSTGRES_PLACES).glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    return found[-1] if found else shutil.which("postgres")


class PostgresServer:
    """A PostgreSQL server in a temporary folder, with a password. Started by root, it runs as another user.

    Options are lines of postgresql.conf. Without `durable` nothing is synced to disk, which is faster."""

    def __init__(self, *options: str, durable: bool = False) -> None:
        self._programs = find_postgres()
        self._user = _unprivileged() if os.geteuid() == 0 else None
        self.port = free_port()
        always = ["listen_addresses=127.0.0.1", "unix_socket_directories=", f"port={self.port}", "log_statement=none"]
        always.append("log_line_prefix=%m [%p] %d ")  # each line names its database
        synced = [] if durable else ["fsync=off", "full_page_writes=off"]
        self._options = [word for option in (*always, *synced, *options) for word in ("-c", option)]
        self._process: subprocess.Popen[bytes] | None = None
        # Not in a test's folder: another user may not enter it.
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-postgres-"))
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self._make_cluster()

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, with the password."""
        return f"postgresql://shoal:{quote(POSTGRES_PASSWORD, safe='')}@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresServer:
        """Start it and wait until it accepts connections."""
        with (self.folder / "postgres.log").open("ab") as log:
            self._process = self._popen("postgres", "-D", str(self.folder / "data"), *self._options, output=log)
        try:
            wait_for_answer(self._process, self._answers)
        except RuntimeError as error:
            self.kill()
            raise RuntimeError(f"postgres did not start, {error}:\n{self.log()[-2000:]}") from None
        return self

    def stop(self) -> None:
        """Stop it in order: it ends every session and writes everything. Stopping again is harmless."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as in a crash: it writes nothing and recovers at its next start.

        SIGQUIT, not SIGKILL: the session processes end too, and leave no lock that prevents that start."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stop it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self, name: str) -> str:
        """Make a database; returns its URL."""
        # Copying files takes a quarter of the time of a copy through the log. Older servers know no other way.
        version = int((self.folder / "data" / "PG_VERSION").read_text())
        self.call(f'CREATE DATABASE "{name}"' + (" STRATEGY file_copy" if version >= 15 else ""))
        return self.url(name)

    def call(self, sql: str, *, database: str = "postgres") -> str:
        """The output of psql for statements: a line per row, columns separated by |."""
        command = [str(self._programs / "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql, self.url(database)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=START_SECONDS).stdout.strip()

    def session(self, database: str = "postgres") -> subprocess.Popen[str]:
        """A psql that reads statements from its standard input."""
        command = [str(self._programs / "psql"), "-XqAt", self.url(database)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def log(self) -> str:
        """The server's log."""
        return (self.folder / "postgres.log").read_text(errors="replace")

    def _answers(self) -> bool:
        return self._popen("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)).wait(START_SECONDS) == 0

    def _make_cluster(self) -> None:
        secret = self.folder / "password"
        secret.write_text(POSTGRES_PASSWORD)
        secret.chmod(0o644)
        how = ["-U", "shoal", f"--pwfile={secret}", "-A", "scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C"]
        with (self.folder / "postgres.log").open("ab") as log:
            made = self._popen("initdb", "-D", str(self.folder / "data"), *how, output=log).wait(START_SECONDS)
        if made != 0:
            raise RuntimeError(f"initdb failed:\n{self.log()[-2000:]}")

    def _popen(self, program: str, *arguments: str, output: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        command = [str(self._programs / program), *arguments]
        places: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        if self._user is None:
            return subprocess.Popen(command, **places)
        user, group = self._user.pw_uid, self._user.pw_gid
        return subprocess.Popen(command, user=user, group=group, extra_groups=[], **places)

    def _end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(sign)
            self._process.wait(START_SECONDS)
            self._process = None


def _unprivileged() -> pwd.struct_passwd:
    """The user of the server: PostgreSQL does not run as root."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
