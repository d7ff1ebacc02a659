-- needs: server
-- hold_duty: take or keep a duty of the whole frontier, which has one holder at a time.
--
-- KEYS[1]  the prefix of the duties' key
-- ARGV[1]  the time in seconds, for tests; "" is the server's own
-- ARGV[2]  duty
-- ARGV[3]  holder
-- ARGV[4]  seconds
-- ARGV[5]  "1" when there are new notes
-- ARGV[6]  notes
-- ARGV[7]  the term in which the notes were read; "": any
-- Reply    {"1" if the caller holds it, or only reads and nobody holds it, else "0"; the notes; the term}
--
-- held  duty → since, until (doubles), length of the holder (2 bytes), holder, notes
-- terms  duty → how many holders it has had
local HEADER = 18
local duty, holder, seconds, has_notes, notes, wanted = unpack(ARGV, 2, 7)
local record = call('HGET', P .. 'held', duty)
local since, ends, former, noted = 0, 0, '', ''
if record and #record >= HEADER then
  local length
  since, ends, length = unpack_struct('>ddH', record)
  former = string.sub(record, HEADER + 1, HEADER + length)
  noted = string.sub(record, HEADER + length + 1)
end
local term = call('HGET', P .. 'terms', duty) or '0'
local is_another = former ~= holder
-- The rules of rules/duties.py, which explains them.
if is_another and since - CLOCK_SECONDS <= now and now < ends then return {'0', noted, term} end
if wanted ~= '' and wanted ~= term then return {'0', noted, term} end
if is_another and tonumber(seconds) == 0 and has_notes ~= '1' then return {'1', noted, term} end
if has_notes ~= '1' then notes = noted end
if is_another then term = tostring(call('HINCRBY', P .. 'terms', duty, 1)) end
call('HSET', P .. 'held', duty, pack('>ddH', now, now + tonumber(seconds), #holder) .. holder .. notes)
return {'1', notes, term}
