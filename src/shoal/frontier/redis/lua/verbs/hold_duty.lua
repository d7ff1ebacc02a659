-- needs: server
-- hold_duty: take or keep a duty of the whole frontier, of which there is one holder at a time.
--
-- KEYS[1]  the prefix of the duties' key
-- ARGV[1]  the time in seconds, for tests; "" is the server's own
-- ARGV[2]  duty
-- ARGV[3]  holder
-- ARGV[4]  seconds
-- ARGV[5]  "1" when there are new notes
-- ARGV[6]  notes
-- Reply    {"1" when the holder has it, else "0"; the notes}
--
-- held  duty → since, until (doubles), length of the holder (2 bytes), holder, notes
local HEADER = 18
local duty, holder, seconds, has_notes, notes = unpack(ARGV, 2, 6)
local record = call('HGET', P .. 'held', duty)
local since, ends, former, noted = 0, 0, '', ''
if record and #record >= HEADER then
  local length
  since, ends, length = unpack_struct('>ddH', record)
  former = string.sub(record, HEADER + 1, HEADER + length)
  noted = string.sub(record, HEADER + length + 1)
end
-- A clock that was set back makes it free: rules/duties.py says why.
if former ~= holder and since - CLOCK_SECONDS <= now and now < ends then return {'0', noted} end
if has_notes ~= '1' then notes = noted end
call('HSET', P .. 'held', duty, pack('>ddH', now, now + tonumber(seconds), #holder) .. holder .. notes)
return {'1', notes}
