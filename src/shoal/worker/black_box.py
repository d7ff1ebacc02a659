"""Memory that a worker process shares with its parent: which pages' handlers run, to be read after a crash or hang."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from typing import Final, NamedTuple

from shoal.worker.machine import worker_name

# The handler whose code runs now: moves, the index of its worker's name + 1, its slot + 1 if it has one, token,
# handler, URL. A plain handler costs one write.
_NOW: Final = struct.Struct("<QIIQ64s248s")
_RESUMED: Final = struct.Struct("<QII")
_MOVES: Final = struct.Struct("<Q")
_NOBODY: Final = bytes(8)
# settled, the longest a handler may take (below 0: not known yet), signals received; flags: ended normally, crawl
# begun, former leases reclaimed, input being read, output being written.
_HEAD: Final = struct.Struct("<QdI5?")
_SETTLED: Final = struct.Struct("<Q")
_PATIENCE: Final = struct.Struct("<d")
_STOPS: Final = struct.Struct("<I")
_NAME: Final = struct.Struct("<96s")
# A handler that waits for something, as above.
_SLOT: Final = struct.Struct("<IQ64s248s")
_FREE: Final = bytes(4)
_HEAD_AT: Final = _NOW.size
_PATIENCE_AT, _STOPS_AT, _FLAGS_AT = _HEAD_AT + 8, _HEAD_AT + 16, _HEAD_AT + 20
_ENDED, _BEGUN, _RECLAIMED, _INPUT, _OUTPUT = range(_FLAGS_AT, _FLAGS_AT + 5)
NAMES: Final = 16
SLOTS: Final = 256  # async handlers at once; with more, the oldest are forgotten
_PAGES: Final = struct.Struct("<Q")
_PAGES_AT: Final = _HEAD_AT + _HEAD.size
_NAMES_AT: Final = _PAGES_AT + _PAGES.size
_SLOTS_AT: Final = _NAMES_AT + NAMES * _NAME.size
_RETIRED: Final = struct.Struct("<96s")
_RETIRED_AT: Final = _SLOTS_AT + SLOTS * _SLOT.size
_SIZE: Final = _RETIRED_AT + _RETIRED.size


class RunningPage(NamedTuple):
    """A page in progress; `handler` is empty while a page leased alone is still being fetched. `is_current`: the
    handler's code runs now, it does not await something."""

    worker: str
    token: int
    handler: str
    url: str
    is_current: bool

    @property
    def who(self) -> str:
        """The handler, as the beginning of a sentence."""
        return f"its handler {self.handler}" if self.handler else "it"


class Reading(NamedTuple):
    """A black box at one moment.

    - `moves` changes while the event loop runs, and with every handler that begins
    - `settled`: how many results the frontier has settled
    - `patience`: the longest time of a handler; 0: no limit; None: no worker is working
    - `stops`: how many signals asked the process to stop
    - `pages_before`: how many pages of the crawl had ended when the process began
    - `retired`: why a new process takes its place; empty: none does
    """

    moves: int
    settled: int
    patience: float | None
    stops: int
    has_ended: bool
    has_begun: bool
    pages_before: int
    has_reclaimed: bool
    reads_input: bool
    writes_output: bool
    workers: tuple[str, ...]
    running: tuple[RunningPage, ...]
    retired: str = ""

    @property
    def suspects(self) -> tuple[RunningPage, ...]:
        """The page whose handler's code runs; if there is none, all whose handlers await something."""
        found = tuple(page for page in self.running if page.is_current) or self.running
        return tuple({(page.worker, page.token): page for page in found}.values())


class BlackBox:
    """A few kilobytes that two processes share. The worker writes; its parent reads, also after the worker's death."""

    def __init__(self, memory: mmap.mmap, *, descriptor: int = -1, supervisor: int | None = None) -> None:
        self._memory = memory
        self._guardian = supervisor
        self.descriptor = descriptor
        self._moves = 0
        self._settled = 0
        self._stops = 0
        self._free = list(range(SLOTS))
        self._used: dict[int, int] = {}
        self._patiences: dict[int, float] = {}

    @property
    def pid(self) -> int:
        """The process that people started: this one, or its supervisor."""
        return self._guardian or os.getpid()

    @classmethod
    def private(cls, *, supervisor: int | None = None) -> BlackBox:
        """A black box that only forked processes share. `supervisor`: the id of the process that forks."""
        return cls(mmap.mmap(-1, _SIZE), supervisor=supervisor)

    @classmethod
    def to_pass_on(cls) -> BlackBox:
        """A black box for a process that inherits its descriptor."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("shoal-black-box")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, _SIZE)
        return cls(mmap.mmap(descriptor, _SIZE), descriptor=descriptor)

    @classmethod
    def inherited(cls, descriptor: int) -> BlackBox:
        """The black box that the parent passed on. Children of this process do not inherit it."""
        os.set_inheritable(descriptor, False)
        return cls(mmap.mmap(descriptor, _SIZE), descriptor=descriptor)

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def move(self) -> None:
        """The event loop runs."""
        self._moves += 1
        _MOVES.pack_into(self._memory, 0, self._moves)

    def settle(self, results: int) -> None:
        """The frontier has settled so many results."""
        self._settled += results
        _SETTLED.pack_into(self._memory, _HEAD_AT, self._settled)

    def take_stop(self) -> None:
        """A signal asked the process to stop."""
        self._stops += 1
        _STOPS.pack_into(self._memory, _STOPS_AT, self._stops)

    def end(self) -> None:
        """The process ends normally: its return code is its own."""
        self._memory[_ENDED] = 1

    def retire(self, reason: str) -> None:
        """The process ends, and a new one takes its place."""
        _RETIRED.pack_into(self._memory, _RETIRED_AT, reason.encode())

    def begin_crawl(self, *, pages: int) -> None:
        """The crawl is in the frontier, with so many pages ended before: the process after this one resumes it."""
        _PAGES.pack_into(self._memory, _PAGES_AT, pages)
        self._memory[_BEGUN] = 1

    def reclaim(self) -> None:
        """The leases of the process before this one were reclaimed."""
        self._memory[_RECLAIMED] = 1

    def read_input(self, *, is_reading: bool) -> None:
        """Whether URLs are being read from standard input, which no other process can read again."""
        self._memory[_INPUT] = is_reading

    def write_output(self) -> None:
        """Items go to standard output from now on: they cannot be taken back."""
        self._memory[_OUTPUT] = 1

    def worker(self, name: str | None, *, patience: float) -> WorkerBox:
        """The part of a worker, with a new name if `name` is None. `patience`: the longest time of a handler; 0: no
        limit."""
        return WorkerBox(self, name or worker_name(self.pid), patience=patience)

    def join(self, name: str, *, patience: float) -> int:
        """A worker begins. Returns its index; NAMES: too many workers to list."""
        free = (index for index in range(NAMES) if self._memory[_NAMES_AT + index * _NAME.size] == 0)
        index = next(free, NAMES)
        if index < NAMES:
            _NAME.pack_into(self._memory, _NAMES_AT + index * _NAME.size, name.encode())
            self._patiences[index] = patience
            self._keep_patience()
        return index

    def leave(self, index: int) -> None:
        """This worker has ended."""
        if index == NAMES:
            return
        _NAME.pack_into(self._memory, _NAMES_AT + index * _NAME.size, b"")
        self._patiences.pop(index, None)
        self._keep_patience()

    def _keep_patience(self) -> None:
        longest = [seconds or float("inf") for seconds in self._patiences.values()]
        _PATIENCE.pack_into(self._memory, _PATIENCE_AT, max(longest, default=-1.0))

    def begin(self, worker: int, token: int, handler: bytes, url: str) -> None:
        """The code of a handler of the worker with this index runs."""
        self._moves = moves = self._moves + 1
        _NOW.pack_into(self._memory, 0, moves, worker + 1, 0, token, handler, url.encode("utf-8", "replace"))

    def wait(self, worker: int, token: int, handler: bytes, url: str) -> int:
        """The handler awaits something: it gets a slot. If all are taken, the oldest handler loses its slot."""
        if not self._free:
            self._free.append(next(iter(self._used)))
            del self._used[self._free[0]]
        slot = self._free.pop()
        self._used[slot] = token
        _SLOT.pack_into(
            self._memory, _SLOTS_AT + slot * _SLOT.size, worker + 1, token, handler, url.encode("utf-8", "replace")
        )
        self.rest()
        return slot

    def resume(self, slot: int) -> None:
        """The code of a handler with a slot runs again."""
        self._moves = moves = self._moves + 1
        _RESUMED.pack_into(self._memory, 0, moves, 0, slot + 1)

    def rest(self) -> None:
        """No handler's code runs."""
        self._memory[8:16] = _NOBODY

    def finish(self, slot: int, token: int) -> None:
        """A handler with a slot has ended. The slot may belong to a newer one."""
        self.rest()
        if self._used.get(slot) != token:
            return
        at = _SLOTS_AT + slot * _SLOT.size
        self._memory[at : at + 4] = _FREE
        del self._used[slot]
        self._free.append(slot)

    def read(self) -> Reading:
        """The content now. A field that another process is writing at this moment may be incomplete."""
        memory = self._memory
        settled, patience, stops, *flags = _HEAD.unpack_from(memory, _HEAD_AT)
        ended, begun, reclaimed, reads_input, writes_output = flags
        names = [_NAME.unpack_from(memory, _NAMES_AT + index * _NAME.size)[0] for index in range(NAMES)]
        workers = [_text(name) for name in names]
        moves, worker, current, *now = _NOW.unpack_from(memory, 0)
        slots = (_SLOT.unpack_from(memory, _SLOTS_AT + slot * _SLOT.size) for slot in range(SLOTS))
        listed = [(worker, *now, True), *((*page, slot == current) for slot, page in enumerate(slots, start=1))]
        running = [
            RunningPage(workers[worker - 1], token, _text(handler), _text(url), is_current)
            for worker, token, handler, url, is_current in listed
            if 0 < worker <= NAMES
        ]
        return Reading(
            moves=moves,
            settled=settled,
            patience=None if patience < 0 or not any(workers) else 0.0 if patience == float("inf") else patience,
            stops=stops,
            has_ended=ended,
            has_begun=begun,
            pages_before=_PAGES.unpack_from(memory, _PAGES_AT)[0],
            has_reclaimed=reclaimed,
            reads_input=reads_input,
            writes_output=writes_output,
            workers=tuple(filter(None, workers)),
            running=tuple(running),
            retired=_text(_RETIRED.unpack_from(memory, _RETIRED_AT)[0]),
        )


class WorkerBox:
    """One worker's part of a black box, where `Handlers` notes which page's handler runs."""

    def __init__(self, box: BlackBox, name: str, *, patience: float) -> None:
        self.box = box
        self.name = name
        self._patience = patience
        self._worker = NAMES
        self._handlers: dict[str, bytes] = {}
        self.resume = box.resume
        self.rest = box.rest
        self.finish = box.finish

    def open(self) -> None:
        """The worker begins: from now on it must not be silent for long."""
        self._worker = self.box.join(self.name, patience=self._patience)

    def close(self) -> None:
        """The worker has ended."""
        self.box.leave(self._worker)
        self._worker = NAMES

    def begin(self, token: int, handler: str, url: str) -> None:
        """The code of a handler runs, until `rest`, `wait` or `finish`."""
        self.box.begin(self._worker, token, self._handlers.get(handler) or self._encoded(handler), url)

    def wait(self, token: int, handler: str, url: str) -> int:
        """The handler awaits something. Returns its slot, kept until `finish`."""
        return self.box.wait(self._worker, token, self._encoded(handler), url)

    @contextlib.contextmanager
    def alone_with(self, token: int, url: str) -> Iterator[None]:
        """The worker processes only this page, leased alone, inside the block."""
        slot = self.wait(token, "", url)
        try:
            yield
        finally:
            self.finish(slot, token)

    def _encoded(self, handler: str) -> bytes:
        return self._handlers.setdefault(handler, handler.encode("utf-8", "replace"))


def _text(written: bytes) -> str:
    return written.rstrip(b"\0").decode(errors="replace")
