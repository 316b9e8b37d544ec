-- Adds a message to a stream and trims the stream to its bounds. Answers -1 and adds nothing where the session's home is
-- another replica: that one numbers the messages now.
-- KEYS: the session's streams, the stream's messages, the session's record.
-- ARGV: the stream's number, the message's sequence, the message as it is stored; the most messages and bytes; the times
-- to live of messages and of streams in ms; the number of the replica that has the message (empty: it is the only one).
local streams, events = KEYS[1], KEYS[2]
local number, sequence, event = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local home = ARGV[8] ~= '' and redis.call('HGET', KEYS[3], 'home')
if home and string.match(home, '^%d+') ~= ARGV[8] then
  return -1
end
local function field(name) return number .. '.' .. name end

local told = redis.call('HMGET', streams, field('newest'), field('dropped'), field('bytes'))
local newest, dropped, bytes = tonumber(told[1] or 0), tonumber(told[2] or 0), tonumber(told[3] or 0)
local length = redis.call('RPUSH', events, event)
if length == 1 then
  -- All messages before this one have aged out.
  dropped, bytes = math.max(dropped, newest), 0
end
bytes = bytes + #event
while length > 1 and (length > tonumber(ARGV[4]) or bytes > tonumber(ARGV[5])) do
  local oldest = redis.call('LPOP', events)
  length, bytes = length - 1, bytes - #oldest
  dropped = math.max(dropped, tonumber(string.match(oldest, '^%d+')))
end
redis.call('HSET', streams, field('newest'), math.max(newest, sequence), field('dropped'), dropped,
  field('bytes'), bytes)
redis.call('PEXPIRE', events, ARGV[6])
redis.call('PEXPIRE', streams, ARGV[7])
return dropped
