-- needs: crawl exits
-- keep_session: keep a session that no lease reports, unless the kept one has changed since the caller read it.
--
-- ARGV[3]  name
-- ARGV[4]  version that the caller read
-- ARGV[5]  session
-- Reply    {"ok", version, session} as kept now; version 0: there is none, or no room for a new name
local name, version, session = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local has_room = find_exit(name) or call('HLEN', P .. 'sessions') < MAX_KEPT_SESSIONS
if has_room and session_version(name) == version then
  local row = need_exit(name)
  row.sessions = row.sessions + 1
  call('HSET', P .. 'sessions', name, session)
  save_exit(name)
end
local kept = session_version(name)
return {'ok', kept, kept > 0 and call('HGET', P .. 'sessions', name) or ''}
