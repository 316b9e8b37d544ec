-- Deletes a session's record. Answers 0 and deletes nothing where the session's home is another replica, else 1.
-- KEYS: the record. ARGV: the number of the replica that deletes it (empty: it is the only one).
local home = ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'home')
if home and string.match(home, '^%d+') ~= ARGV[1] then
  return 0
end
redis.call('UNLINK', KEYS[1])
return 1
