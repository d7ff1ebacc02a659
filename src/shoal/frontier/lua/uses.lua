-- include: crawl
-- uses: what is known of the exits of some lanes.
--
-- ARGV[3…]  lanes that go via a pool
-- Reply     {"ok", now; lane, exit, its record towards that lane (see exits), its record whatever the lane or "", …}
local reply = {'ok', format('%.17g', now)}
for i = 3, #ARGV do
  local page = call('HGETALL', P .. 'uses:' .. ARGV[i])
  for j = 1, #page, 2 do
    for _, value in ipairs({ARGV[i], page[j], page[j + 1], call('HGET', P .. 'exits', page[j]) or ''}) do
      reply[#reply + 1] = value
    end
  end
end
return reply
