-- Notes that a replica is up, and answers: the clock in ms, whether the directory is settled, whether the replica has a
-- rival, whether it was known before, the count of reloads, the number of the newest news, how many others are up, their
-- announcements, then the news of others that the replica has not heard.
-- KEYS: the directory. ARGV: the replica's field, its incarnation, its announcement, the life of a beat in ms, the number
-- of the newest news that it has heard (empty: it wants none).
-- Fields: `beat` (the last of anybody), `since` (beats come without a pause), `reloads`, `newest` (news so far),
-- `news:NUMBER` (`MS FIELD NEWS`, the field of the replica that told them), and one of each replica:
-- `INCARNATION MS ANNOUNCEMENT`.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local life = tonumber(ARGV[4])
local stored = redis.call('HGETALL', KEYS[1])
local fields = {}
for at = 1, #stored, 2 do
  fields[stored[at]] = stored[at + 1]
end
local since = tonumber(fields['since'] or now)
if now - tonumber(fields['beat'] or 0) >= life then
  since = now
  redis.call('HSET', KEYS[1], 'since', now)
end
redis.call('HSET', KEYS[1], 'beat', now)
local rival = 0
local known = 0
local others = {}
local news = {}
local seen = tonumber(ARGV[5])
for name, value in pairs(fields) do
  local number = tonumber(string.match(name, '^news:(%d+)$'))
  if number then
    local at, by, said = string.match(value, '^(%d+) (%S+) (.*)$')
    if now - tonumber(at) > 5 * life then
      redis.call('HDEL', KEYS[1], name)
    elseif seen and number > seen and by ~= ARGV[1] then
      news[#news + 1] = { number, said }
    end
  end
  local incarnation, at, said = string.match(value, '^(%d+) (%d+) (.*)$')
  if incarnation then
    local age = now - tonumber(at)
    if name == ARGV[1] then
      if incarnation == ARGV[2] then
        known = 1
      elseif age < life then
        rival = 1
      end
    elseif age < life then
      others[#others + 1] = said
    elseif age > 100 * life then
      redis.call('HDEL', KEYS[1], name)
    end
  end
end
if rival == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%d', now) .. ' ' .. ARGV[3])
end
redis.call('PEXPIRE', KEYS[1], 86400000)
local settled = 0
if now - since >= life then
  settled = 1
end
local answer = { string.format('%d', now), tostring(settled), tostring(rival), tostring(known), fields['reloads'] or '0',
  fields['newest'] or '0', tostring(#others) }
for _, said in ipairs(others) do
  answer[#answer + 1] = said
end
table.sort(news, function(one, other) return one[1] < other[1] end)
for _, told in ipairs(news) do
  answer[#answer + 1] = told[2]
end
return answer
