-- Counts the use of budgets of limits by a replica, and answers for each budget the time in µs until it is whole again.
-- KEYS: the budgets, each the moment at which it is whole, in µs of Unix time; a budget that is whole has no key.
-- ARGV: the number of replicas, then for each budget, in µs: the time in which comes back what was taken, the time until it
-- is whole as the replica knows it, the time in which an empty one becomes whole.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answer = {}
for at, key in ipairs(KEYS) do
  local taken, known, window = tonumber(ARGV[3 * at - 1]), tonumber(ARGV[3 * at]), tonumber(ARGV[3 * at + 1])
  -- No further away than replicas that take a whole budget at the same time bring it: a clock that was set back counts as a
  -- budget that all have emptied.
  local furthest = now + ARGV[1] * (window + 1000000)
  local whole = math.min(tonumber(redis.call('GET', key) or 0), furthest)
  -- A Redis that has lost its data learns what replicas know.
  whole = math.max(math.max(whole, now) + taken, now + known)
  local life = math.max(math.ceil((whole - now) / 1000), 1)
  redis.call('SET', key, string.format('%.0f', whole), 'PX', string.format('%.0f', life))
  answer[at] = string.format('%.0f', whole - now)
end
return answer
