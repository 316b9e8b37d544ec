-- Stores the whole record of a session, in place of an earlier one. Answers 0 and stores nothing where the session's home is
-- another replica, else 1.
-- KEYS: the record. ARGV: the number of the replica that has the session, the record's time to live in ms, then each field
-- with its value.
local home = redis.call('HGET', KEYS[1], 'home')
if home and string.match(home, '^%d+') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
for at = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
