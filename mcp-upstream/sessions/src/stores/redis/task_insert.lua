-- Stores a new task. Answers 0 where there are too many tasks or too large outcomes, 1 where the principal has too many or too
-- large ones, else 2.
-- KEYS: the task, all tasks, the principal's tasks, the sizes of the principal's outcomes and of all. ARGV: the id, the record,
-- the time now and that at which the task expires in ms, the most tasks of all and of the principal, and the most bytes of the
-- principal and of all.
local task, all, own, sizes, total = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, now, expires = ARGV[1], ARGV[3], ARGV[4]
local function drop_expired(index, hash)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now)) do
    redis.call('ZREM', index, gone)
    redis.call('HDEL', hash, gone)
  end
end
local function sum(hash)
  local bytes = 0
  for _, size in ipairs(redis.call('HVALS', hash)) do
    bytes = bytes + tonumber(size)
  end
  return bytes
end
drop_expired(all, total)
drop_expired(own, sizes)
if redis.call('EXISTS', task) == 0 then
  if redis.call('ZCARD', all) >= tonumber(ARGV[5]) or sum(total) >= tonumber(ARGV[8]) then
    return 0
  end
  if redis.call('ZCARD', own) >= tonumber(ARGV[6]) or sum(sizes) >= tonumber(ARGV[7]) then
    return 1
  end
end
redis.call('HSET', task, 'record', ARGV[2])
redis.call('PEXPIREAT', task, expires)
for _, index in ipairs({all, own}) do
  redis.call('ZADD', index, expires, id)
end
-- The indexes of a principal go away with the principal's last task.
for _, index in ipairs({all, own, sizes, total}) do
  if redis.call('EXISTS', index) == 1 then
    local left = redis.call('PTTL', index)
    if left < 0 or left < tonumber(expires) - tonumber(now) then
      redis.call('PEXPIREAT', index, expires)
    end
  end
end
return 2
