-- Replaces the record of a task, and stores its outcome where it has ended. Answers 0 and changes nothing where the task has
-- ended already or is gone, 2 and changes nothing where the outcome is too large, else 1.
-- KEYS: the task, the sizes of the principal's outcomes, all tasks, the principal's tasks, the sizes of all outcomes. ARGV: the
-- id, the record, 1 where the task has ended, the outcome (empty: there is none), the time now in ms, the size up to which an
-- outcome is stored in any case, and the most bytes of the principal and of all.
local task, sizes, all, own, total, id = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], ARGV[1]
if redis.call('EXISTS', task) == 0 or redis.call('HEXISTS', task, 'ended') == 1 then
  return 0
end
local bytes = string.len(ARGV[4])
-- Returns true if the outcome fits into a bound, with those of the tasks that have not expired.
local function fits(index, hash, most)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', ARGV[5])) do
    redis.call('ZREM', index, gone)
    redis.call('HDEL', hash, gone)
  end
  local sum = bytes
  for _, size in ipairs(redis.call('HVALS', hash)) do
    sum = sum + tonumber(size)
  end
  return sum <= tonumber(most)
end
if bytes > tonumber(ARGV[6]) and not (fits(own, sizes, ARGV[7]) and fits(all, total, ARGV[8])) then
  return 2
end
redis.call('HSET', task, 'record', ARGV[2])
if ARGV[3] == '1' then
  redis.call('HSET', task, 'ended', '1')
  if bytes > 0 then
    redis.call('HSET', task, 'outcome', ARGV[4])
    local left = redis.call('PTTL', task)
    for _, hash in ipairs({sizes, total}) do
      redis.call('HSET', hash, id, bytes)
      if left > 0 and redis.call('PTTL', hash) < left then
        redis.call('PEXPIRE', hash, left)
      end
    end
  end
end
return 1
