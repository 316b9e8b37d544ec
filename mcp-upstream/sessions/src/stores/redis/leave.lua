-- Removes a replica from the directory, unless another process has its place.
-- KEYS: the directory. ARGV: the replica's field, its incarnation.
local value = redis.call('HGET', KEYS[1], ARGV[1])
if value and string.match(value, '^(%d+) ') == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
