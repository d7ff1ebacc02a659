"""The guardian of a worker that runs in the process people started: a parent that only waits, and replaces it when it
dies or hangs."""

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
from shoal.worker.deaths import Comebacks, Death, Vigil, Watched, death_of
from shoal.worker.machine import is_stopped

LOOK_SECONDS: Final = 0.5
# How long a signal to the whole process group may take to reach the worker before it is passed on.
GROUP_SECONDS: Final = 0.1
TAKEN_SECONDS: Final = 0.5
ASKED: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
# By these people end programs: nobody comes back after them.
WISHES: Final = ASKED | {signal.SIGQUIT, signal.SIGPIPE}
MOST_SIGNALS: Final = 3
FAILED: Final = 1
SIGNALLED: Final = 128  # shells give this and the signal as the exit code of a program that a signal ended
_FROM_TERMINAL: Final = 0x80  # SI_KERNEL: Ctrl-C, sent to the whole process group
_PARENT_DEATH_SIGNAL: Final = 1  # Linux's number for prctl
_SHOW_CURSOR: Final = "\x1b[?25h"


def guarded(work: Callable[[Watched | None], int], *, is_worker: bool = True, replaces: bool = False) -> int:
    """Do the work in a child process with a guardian; where that cannot be, or no worker is in this process, here.
    `replaces`: a child that retires is followed by the next."""
    invocation = click.get_current_context().find_root().obj
    if not is_worker or not isinstance(invocation, Invocation) or not can_guard():
        if replaces:
            raise UsageError("--replace: no worker can be replaced here; let what starts this one start the next")
        return work(None)
    return Guardian(invocation, replaces=replaces).run(work)


def can_guard() -> bool:
    """Whether this process may fork and its child can be tied to its life: on Linux, with one thread, no debugger."""
    is_plain = sys.gettrace() is None and sys.getprofile() is None
    return sys.platform == "linux" and threading.active_count() == 1 and is_plain


class Guardian:
    """Runs the work in one child process after the other until one ends in order; if it `replaces` those that retire,
    until one ends that has not."""

    def __init__(self, invocation: Invocation, *, replaces: bool = False) -> None:
        self._invocation = invocation
        self._replaces = replaces
        self._say = say_on(sys.stderr)
        self._comebacks = Comebacks()
        self._former: tuple[Death, ...] = ()
        self._has_begun = self._has_failed = False
        self._pages_before = 0
        self._began = time.monotonic()
        self._asked = 0
        # Under nohup a hang-up is nothing to anybody.
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._heard = (ASKED - {signal.SIGHUP} if is_ignored else ASKED) | {signal.SIGCHLD}

    def run(self, work: Callable[[Watched | None], int]) -> int:
        """Give the exit code of the last child, or that of a failure before it; in the child itself, that of the
        work."""
        # Once, not for each child: the second time these are blocked already, and that child would hear none of them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._heard)
        # One who ignores it, as some who start this program do, is not told how a child ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while True:
            box, began = BlackBox.private(guardian=os.getpid()), time.monotonic()
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
            pause = self._comebacks.after(death, lived=time.monotonic() - began)
            if not self._goes_on(death, box, pause):
                return FAILED
            self._pause(pause or 0.0)

    def _is_replaced(self, code: int, box: BlackBox) -> bool:
        """Whether the child has retired, and another one takes its place. It may have seen a crawl fail, and has said
        so: there may be others."""
        reading = box.read()
        if not self._replaces or self._asked or code not in (0, FAILED) or not reading.retired:
            return False
        self._has_failed = self._has_failed or code == FAILED
        self._former = () if reading.has_reclaimed else self._former
        return True

    def _death(self, pid: int, code: int, box: BlackBox, cause: str) -> Death | None:
        """How the child died; None: its end is the end of the run, in order or as people asked for."""
        reading = box.read()
        if not cause and (self._asked or reading.stops or -code in WISHES):
            return None
        death = death_of(code, reading, cause=cause)
        if death is not None:
            death = death._replace(pid=pid)
            self._former = (*(() if reading.has_reclaimed else self._former), death)
            if reading.has_begun and not self._has_begun:
                self._has_begun, self._pages_before = True, reading.pages_before
        return death

    def _goes_on(self, death: Death, box: BlackBox, pause: float | None) -> bool:
        """Say what happened; gives whether another child takes over."""
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
                f"shoal: the worker ended with {death.cause} while it wrote to standard output, which is not whole:"
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
        """The exit code of the child, below zero if a signal ended it, and why it was killed if it hung."""
        vigil, before, cause = Vigil("the worker", say=self._say), time.monotonic(), ""
        stops = 0
        while True:
            info = signal.sigtimedwait(self._heard, LOOK_SECONDS)
            if (code := _ended(pid)) is not None:
                return code, cause
            if info is not None and info.si_signo in ASKED:
                self._asked += 1
                stops = self._pass_on(info, pid, box, stops=stops)
            now = time.monotonic()
            if not cause:
                cause = vigil.look(box.read(), elapsed=now - before, is_stopped=lambda: is_stopped(pid))
                if cause:
                    os.kill(pid, signal.SIGKILL)
            before = now

    def _pass_on(self, info: signal.struct_siginfo, pid: int, box: BlackBox, *, stops: int) -> int:
        """Pass a signal on, unless the child has got it as well; gives how many it has taken. To a child that takes
        none the third one is the last."""
        if self._asked >= MOST_SIGNALS and box.read().stops < MOST_SIGNALS - 1:
            os.kill(pid, signal.SIGKILL)
        elif info.si_code != _FROM_TERMINAL and not _moved(box, stops, pid, GROUP_SECONDS):
            os.kill(pid, info.si_signo)
            _moved(box, stops, pid, TAKEN_SECONDS)
        return box.read().stops

    def _pause(self, seconds: float) -> None:
        """Wait; a signal that asks for an end ends the run."""
        if signal.sigtimedwait(self._heard - {signal.SIGCHLD}, seconds) is not None:
            os._exit(INTERRUPTED)


def _fork() -> int:
    """Fork; the child dies with its parent."""
    parent = os.getpid()
    # What is buffered would be written by both.
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
    """The exit code of the child if it has ended. Others are reaped, too: in a container all orphans come here."""
    with contextlib.suppress(ChildProcessError):
        while True:
            done, status = os.waitpid(-1, os.WNOHANG)
            if done == pid:
                return os.waitstatus_to_exitcode(status)
            if done == 0:
                return None
    return None


def _moved(box: BlackBox, stops: int, pid: int, seconds: float) -> bool:
    """Whether the child takes a signal, or ends, within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if box.read().stops > stops or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(0.01)
    return False


def _same_end(code: int) -> int:
    """End as the child did."""
    if code >= 0:
        return code
    with contextlib.suppress(OSError):  # of SIGKILL
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    # Still here: the first process of a container does not end by signals.
    return SIGNALLED - code
