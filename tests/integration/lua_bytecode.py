"""What a Lua 5.1 chunk would read and write, from its bytecode: the names that it takes for globals."""

from __future__ import annotations

import struct

from shoal.testing.servers.redis_server import RedisServer

_DUMP = """
local chunk, problem = loadstring(ARGV[1])
if not chunk then return redis.error_reply(problem) end
return string.dump(chunk)
"""
_HEADER_SIZE = 12
_GET_GLOBAL, _SET_GLOBAL = 5, 7
_NIL, _BOOLEAN, _NUMBER = 0, 1, 3


def global_names(server: RedisServer, text: str) -> set[str]:
    """The globals of a script. Raises an error when the server cannot compile it."""
    reader = _Reader(server.call("EVAL", _DUMP, 0, text))
    return reader.read_function()


class _Reader:
    """Reads functions in the order in which Lua writes them: name, counts, code, constants, inner functions, notes."""

    def __init__(self, chunk: bytes) -> None:
        self._chunk = chunk
        self._at = _HEADER_SIZE

    def read_function(self) -> set[str]:
        self._read_text()
        self._at += 2 * 4 + 4  # first and last line; numbers of upvalues, parameters, dots and registers
        code = [self._read_int() for _ in range(self._read_int())]
        constants = [self._read_constant() for _ in range(self._read_int())]
        names = {constants[one >> 14] for one in code if one & 0x3F in (_GET_GLOBAL, _SET_GLOBAL)}
        for _ in range(self._read_int()):
            names |= self.read_function()
        self._skip_notes()
        return names

    def _skip_notes(self) -> None:
        instructions = self._read_int()
        self._at += 4 * instructions  # the line of each
        for _ in range(self._read_int()):  # local names and where they are visible
            self._read_text()
            self._at += 2 * 4
        for _ in range(self._read_int()):  # names of upvalues
            self._read_text()

    def _read_constant(self) -> str:
        kind = self._chunk[self._at]
        self._at += 1
        if kind in (_NIL, _BOOLEAN, _NUMBER):
            self._at += {_NIL: 0, _BOOLEAN: 1, _NUMBER: 8}[kind]
            return ""
        return self._read_text()

    def _read_text(self) -> str:
        (size,) = struct.unpack_from("<Q", self._chunk, self._at)
        self._at += 8 + size
        return self._chunk[self._at - size : self._at].rstrip(b"\0").decode("utf-8", "replace")

    def _read_int(self) -> int:
        (number,) = struct.unpack_from("<I", self._chunk, self._at)
        self._at += 4
        return int(number)
