-- Tells the other replicas news.
-- KEYS: the directory. ARGV: the replica's field, how many news are kept, the news.
local time = redis.call('TIME')
local now = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))
for at = 3, #ARGV do
  local number = redis.call('HINCRBY', KEYS[1], 'newest', 1)
  local news = now .. ' ' .. ARGV[1] .. ' ' .. ARGV[at]
  redis.call('HSET', KEYS[1], string.format('news:%d', number), news)
  redis.call('HDEL', KEYS[1], string.format('news:%d', number - tonumber(ARGV[2])))
end
redis.call('PEXPIRE', KEYS[1], 86400000)
return 1
