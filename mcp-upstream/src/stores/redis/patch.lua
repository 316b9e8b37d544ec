-- Changes one field of a session's record. A record that is gone stays gone.
-- KEYS: the record. ARGV: set|raise|delete, field, value, the record's time to live in ms.
local record, kind, field, value = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', record) == 0 then
  return 0
end
if kind == 'delete' then
  redis.call('HDEL', record, field)
elseif kind == 'set' or tonumber(value) > tonumber(redis.call('HGET', record, field) or '0') then
  redis.call('HSET', record, field, value)
end
redis.call('PEXPIRE', record, ARGV[4])
return 1
