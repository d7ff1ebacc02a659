"""The supervisor of a worker: the process that people started forks a child for the work, waits, and replaces the child
when it dies or hangs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import click

from shoal.cli.display.lines import say_on
from shoal.cli.main import INTERRUPTED, Invocation
from shoal.errors import UsageError
from shoal.worker.black_box import BlackBox
from shoal.worker.deaths import Death, HangDetector, RestartBackoff, Watched, death_of
from shoal.worker.machine import is_stopped

CHECK_SECONDS: Final = 0.5
# How long a signal to the whole process group may take to reach the worker before it is passed on.
GROUP_SECONDS: Final = 0.1
TAKEN_SECONDS: Final = 0.5
ASKED: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
# People end programs with these signals: the child is not replaced after them.
ENDING: Final = ASKED | {signal.SIGQUIT, signal.SIGPIPE}
MOST_SIGNALS: Final = 3
FAILED: Final = 1
SIGNALLED: Final = 128  # a shell's return code for a program ended by a signal is this plus the signal
_FROM_TERMINAL: Final = 0x80  # SI_KERNEL: Ctrl-C, sent to the whole process group
_PARENT_DEATH_SIGNAL: Final = 1  # Linux's number for prctl
_SHOW_CURSOR: Final = "\x1b[?25h"


def guarded(work: Callable[[Watched | None], int], *, is_worker: bool = True, replaces: bool = False) -> int:
    """Do the work in a child process with a supervisor; in this process if that is impossible or not `is_worker`.

    replaces: a child that retires is replaced by a new one."""
    invocation = click.get_current_context().find_root().obj
    if not is_worker or not isinstance(invocation, Invocation) or not can_guard():
        if replaces:
            raise UsageError("--replace does not work here: let the program that starts this worker start the next one")
        return work(None)
    return Supervisor(invocation, replaces=replaces).run(work)


def can_guard() -> bool:
    """Whether this process can fork a child that dies with it: on Linux, with one thread, without a debugger."""
    is_plain = sys.gettrace() is None and sys.getprofile() is None
    return sys.platform == "linux" and threading.active_count() == 1 and is_plain


class Supervisor:
    """Runs the work in one child process after another until one ends normally.

    replaces: a child that retires is followed by the next."""

    def __init__(self, invocation: Invocation, *, replaces: bool = False) -> None:
        self._invocation = invocation
        self._replaces = replaces
        self._say = say_on(sys.stderr)
        self._backoff = RestartBackoff()
        self._former: tuple[Death, ...] = ()
        self._has_begun = self._has_failed = False
        self._pages_before = 0
        self._began = time.monotonic()
        self._asked = 0
        # Under nohup SIGHUP is ignored.
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._heard = (ASKED - {signal.SIGHUP} if is_ignored else ASKED) | {signal.SIGCHLD}

    def run(self, work: Callable[[Watched | None], int]) -> int:
        """The return code of the last child, or of an earlier failure; in the child, that of the work."""
        # Once, not per child: a second call would return the blocked mask, and that child would get no signals.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._heard)
        # If the parent ignored SIGCHLD, the return code of a child would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while True:
            box, began = BlackBox.private(supervisor=os.getpid()), time.monotonic()
            watched = Watched(box, self._former, self._has_begun, self._began, self._pages_before)
            pid = _fork()
            if pid == 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                self._invocation.box = box
                return work(watched)
            code, cause = self._wait(pid, box)
            death = self._death(pid, code, box, cause)
            if death is None and self._is_replaced(code, box):
                continue
            if death is None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                return _same_end(code or FAILED * self._has_failed)
            pause = self._backoff.after(death, lived=time.monotonic() - began)
            if not self._goes_on(death, box, pause):
                return FAILED
            self._pause(pause or 0.0)

    def _is_replaced(self, code: int, box: BlackBox) -> bool:
        """Whether the child retired and is replaced. A child that saw a crawl fail is replaced too: there may be other
        crawls."""
        reading = box.read()
        if not self._replaces or self._asked or code not in (0, FAILED) or not reading.retired:
            return False
        self._has_failed = self._has_failed or code == FAILED
        self._former = () if reading.has_reclaimed else self._former
        return True

    def _death(self, pid: int, code: int, box: BlackBox, cause: str) -> Death | None:
        """How the child died; None: it ended normally, or as people requested."""
        reading = box.read()
        if not cause and (self._asked or reading.stops or -code in ENDING):
            return None
        death = death_of(code, reading, cause=cause)
        if death is not None:
            death = death._replace(pid=pid)
            self._former = (*(() if reading.has_reclaimed else self._former), death)
            if reading.has_begun and not self._has_begun:
                self._has_begun, self._pages_before = True, reading.pages_before
        return death

    def _goes_on(self, death: Death, box: BlackBox, pause: float | None) -> bool:
        """Say what happened; True if another child takes over."""
        if sys.stderr.isatty():
            sys.stderr.write(_SHOW_CURSOR)
        reading = box.read()
        if reading.reads_input:
            self._say(
                f"shoal: the worker ended with {death.cause} before it had read all of standard input:"
                f" run the same command again with the same input{death.pages}"
            )
            return False
        if reading.writes_output:
            self._say(
                f"shoal: the worker ended with {death.cause} while it wrote to standard output, which is incomplete:"
                " run the same command again; it fetches nothing and writes all of it"
            )
            return False
        if pause is None:
            self._say(
                f"shoal: the worker ended with {death.cause} again and again, before a page was settled: giving up;"
                f" the same command resumes the crawl{death.pages}"
            )
            return False
        self._say(f"the worker {death.sentence}")
        return True

    def _wait(self, pid: int, box: BlackBox) -> tuple[int, str]:
        """The return code of the child (negative: a signal), and why it was killed if it hung."""
        detector, before, cause = HangDetector("the worker", say=self._say), time.monotonic(), ""
        stops = 0
        while True:
            info = signal.sigtimedwait(self._heard, CHECK_SECONDS)
            if (code := _ended(pid)) is not None:
                return code, cause
            if info is not None and info.si_signo in ASKED:
                self._asked += 1
                stops = self._pass_on(info, pid, box, stops=stops)
            now = time.monotonic()
            if not cause:
                cause = detector.check(box.read(), elapsed=now - before, is_stopped=lambda: is_stopped(pid))
                if cause:
                    os.kill(pid, signal.SIGKILL)
            before = now

    def _pass_on(self, info: signal.struct_siginfo, pid: int, box: BlackBox, *, stops: int) -> int:
        """Forward a signal, unless the child got it too; returns how many the child has handled. The third signal kills
        a child that handles none."""
        if self._asked >= MOST_SIGNALS and box.read().stops < MOST_SIGNALS - 1:
            os.kill(pid, signal.SIGKILL)
        elif info.si_code != _FROM_TERMINAL and not _moved(box, stops, pid, GROUP_SECONDS):
            os.kill(pid, info.si_signo)
            _moved(box, stops, pid, TAKEN_SECONDS)
        return box.read().stops

    def _pause(self, seconds: float) -> None:
        """Wait; an ending signal ends the run."""
        if signal.sigtimedwait(self._heard - {signal.SIGCHLD}, seconds) is not None:
            os._exit(INTERRUPTED)


def _fork() -> int:
    """Fork; the child dies with its parent."""
    parent = os.getpid()
    # Else both processes would write the buffered output.
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    return pid


def _ended(pid: int) -> int | None:
    """The return code of the child if it has ended. Orphans are reaped too: in a container they come here."""
    with contextlib.suppress(ChildProcessError):
        while True:
            done, status = os.waitpid(-1, os.WNOHANG)
            if done == pid:
                return os.waitstatus_to_exitcode(status)
            if done == 0:
                return None
    return None


def _moved(box: BlackBox, stops: int, pid: int, seconds: float) -> bool:
    """Whether the child handles a signal or ends within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if box.read().stops > stops or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(0.01)
    return False


def _same_end(code: int) -> int:
    """End like the child."""
    if code >= 0:
        return code
    with contextlib.suppress(OSError):  # SIGKILL has no handler
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    # Still alive: signals do not end the first process of a container.
    return SIGNALLED - code
