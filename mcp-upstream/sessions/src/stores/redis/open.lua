-- Stores the opening of a stream, and deletes streams that are too old. Answers -1 and stores nothing where the session's home
-- is another replica: that one numbers the streams now.
-- KEYS: the session's streams, the session's record, the messages of each stream that is deleted.
-- ARGV: the stream's number, the opening, the time to live of streams in ms, the number of the replica that has the stream
-- (empty: it is the only one), the number of each stream that is deleted.
local streams = KEYS[1]
local home = ARGV[4] ~= '' and redis.call('HGET', KEYS[2], 'home')
if home and string.match(home, '^%d+') ~= ARGV[4] then
  return -1
end
redis.call('HSET', streams, ARGV[1] .. '.opened', ARGV[2])
redis.call('PEXPIRE', streams, ARGV[3])
for at = 5, #ARGV do
  for _, name in ipairs({ 'opened', 'newest', 'dropped', 'bytes' }) do
    redis.call('HDEL', streams, ARGV[at] .. '.' .. name)
  end
  redis.call('UNLINK', KEYS[at - 2])
end
return 1
