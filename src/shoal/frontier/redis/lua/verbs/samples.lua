-- needs: crawl
-- samples: keep a few distinct URLs per reason, in order of arrival.
--
-- ARGV[3…]  reason, url, … for each
-- Reply     {"ok", epoch, {reason, …} that need no more}
--
-- samples   reason → its URLs, each after its length in four bytes
local kept = {}

local function read_kept(reason)
  if kept[reason] then return kept[reason] end
  local value, at, entry = call('HGET', P .. 'samples', reason) or '', 1, {total = 0, urls = {}}
  entry.value = value
  while at <= #value do
    local length = unpack_struct('>I4', value, at)
    entry.urls[string.sub(value, at + 4, at + 3 + length)] = true
    entry.total, at = entry.total + 1, at + 4 + length
  end
  kept[reason] = entry
  return entry
end

for i = 3, #ARGV, 2 do
  local entry, url = read_kept(ARGV[i]), ARGV[i + 1]
  if entry.total < MAX_SAMPLES and not entry.urls[url] then
    entry.urls[url], entry.total, entry.is_changed = true, entry.total + 1, true
    entry.value = entry.value .. pack('>I4', #url) .. url
  end
end
local full = {}
for reason, entry in pairs(kept) do
  if entry.is_changed then call('HSET', P .. 'samples', reason, entry.value) end
  if entry.total >= MAX_SAMPLES then full[#full + 1] = reason end
end
return {'ok', crawl.epoch, full}
