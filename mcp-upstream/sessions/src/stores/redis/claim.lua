-- Gives a session another home if its home is still the expected one. Answers the record's fields then, else nothing.
-- KEYS: the record. ARGV: the expected home, the new one, the record's time to live in ms.
if redis.call('HGET', KEYS[1], 'home') ~= ARGV[1] then
  return {}
end
redis.call('HSET', KEYS[1], 'home', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('HGETALL', KEYS[1])
