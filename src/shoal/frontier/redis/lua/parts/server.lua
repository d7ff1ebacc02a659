-- gives: P call format pack unpack_struct server_seconds server_microseconds now expected read_fields write_in_parts
-- What every script begins with: the prefix of its keys, the clock, reading and writing many fields at once.
--
-- KEYS[1]  the prefix of all keys of a script; they share its hash tag
-- ARGV[1]  the time in seconds, for tests; "" is the server's own. Behind a "/" the time that the caller expects a crawl to have by its
--          own steady clock, if it asked before, by how much it may be later, and the crawl's shift that it knows (see clock_rules),
--          each behind another "/"
P, call, format, pack, unpack_struct = KEYS[1], redis.call, string.format, struct.pack, struct.unpack

local MAX_VALUES = 1000
server_seconds, server_microseconds = unpack(call('TIME'))
local given, expected_text, way, shift = string.match(ARGV[1], '^(.-)/(.-)/(.-)/(.+)$')
now = tonumber(given or ARGV[1]) or server_seconds + server_microseconds / 1000000
expected = given and {time = tonumber(expected_text), way = tonumber(way), shift = tonumber(shift)}

-- Fields of a hash by name; a field that the hash does not have is false.
function read_fields(key, ...)
  local names, values, fields = {...}, call('HMGET', P .. key, ...), {}
  for i = 1, #names do fields[names[i]] = values[i] end
  return fields
end

-- A command takes a bounded number of values: an unpacked list lies on Lua's stack.
function write_in_parts(command, key, values)
  for i = 1, #values, MAX_VALUES do call(command, key, unpack(values, i, math.min(i + MAX_VALUES - 1, #values))) end
end
