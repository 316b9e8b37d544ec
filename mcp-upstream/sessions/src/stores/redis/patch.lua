-- Changes one field of a session's record. A record that is gone stays gone, and one whose home is another replica as it is.
-- KEYS: the record. ARGV: set|raise|delete, field, value, the record's time to live in ms, the number of the replica that
-- changes it (empty: it is the only one).
local record, kind, field, value = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', record) == 0 then
  return 0
end
local home = ARGV[5] ~= '' and redis.call('HGET', record, 'home')
if home and string.match(home, '^%d+') ~= ARGV[5] then
  return 0
end
if kind == 'delete' then
  redis.call('HDEL', record, field)
elseif kind == 'set' or tonumber(value) > tonumber(redis.call('HGET', record, field) or '0') then
  redis.call('HSET', record, field, value)
end
redis.call('PEXPIRE', record, ARGV[4])
return 1
