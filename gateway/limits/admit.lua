-- Take everything that is asked, or nothing. memory.py says the same in Python, bucket.py the rates.
-- KEYS: the counters, then perhaps the lease
-- ARGV: one MessagePack array, for a hundred arguments cost more than what is done with them: lease
--   ms, slot ms, busy ms, ms that a counter outlives its period; for each counter: kind, unit,
--   limit, cost, least, end of period, version
-- Returns: {wait in ms (0: taken), index of the binding one, money, then level and held of each};
--   or {-1, indexes of budgets whose spending is not known here}
local UNIT, TIRED = 60000, 1e15
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local facts = cmsgpack.unpack(ARGV[1])
local count = (#facts - 4) / 7
local lease, lease_ms, slot_ms, busy_ms = KEYS[count + 1], facts[1], facts[2], facts[3]
local late_ms = facts[4]

local function whole(number) return string.format('%.0f', number) end

local function bucket(key, limit)
  local found = redis.call('HMGET', key, 'level', 'at', 'gone', 'born')
  if not found[4] then return {level = 0, at = now, gone = 0, born = now} end
  local was, at, gone = tonumber(found[1]), tonumber(found[2]), tonumber(found[3])
  if gone > TIRED then return {level = was, at = now, gone = 0, born = now} end
  local level = math.max(0, math.min(was, limit * UNIT) - math.max(0, now - at) * limit)
  return {level = level, at = math.max(now, at), gone = gone + was - level, born = tonumber(found[4])}
end

local asks, unseeded, money = {}, {-1}, -1
for i = 1, count do
  local at = 4 + (i - 1) * 7
  local ask = {
    key = KEYS[i], kind = facts[at + 1], unit = facts[at + 2], limit = facts[at + 3],
    cost = facts[at + 4], least = facts[at + 5], ends = facts[at + 6], version = facts[at + 7],
    level = 0, held = 0,
  }
  if ask.kind == 'r' then
    ask.bucket = bucket(ask.key, ask.limit)
    ask.level = ask.bucket.level
  elseif ask.kind == 'c' then
    ask.level = tonumber(redis.call('GET', ask.key) or '0')
  elseif ask.kind == 's' then
    redis.call('ZREMRANGEBYSCORE', ask.key, '-inf', now)
    ask.level = redis.call('ZCARD', ask.key)
  else
    local found = redis.call('HMGET', ask.key, 'spent', 'held', 'version')
    if found[1] and tonumber(found[3] or '0') < ask.version then
      redis.call('HDEL', ask.key, 'spent')
      redis.call('HSET', ask.key, 'doubted', whole(now))
      found[1] = false
    end
    if not found[1] then
      unseeded[#unseeded + 1] = i - 1
    else
      ask.level, ask.held = tonumber(found[1]), tonumber(found[2] or '0')
      ask.room = ask.limit - ask.level - ask.held
      local can = math.max(0, math.min(ask.cost, ask.room))
      if money < 0 or can < money then money = can end
    end
  end
  asks[i] = ask
end
if #unseeded > 1 then return unseeded end
money = math.max(0, money)

local wait, binding = 0, 0
for i, ask in ipairs(asks) do
  local needs = 0
  if ask.cost == 0 then
    needs = 0
  elseif ask.kind == 'r' then
    needs = math.max(0, math.ceil((ask.level + (ask.cost - ask.limit) * UNIT) / ask.limit))
  elseif ask.kind == 'c' then
    if ask.level + ask.cost > ask.limit then needs = math.max(1, ask.ends - now) end
  elseif ask.kind == 's' then
    if ask.level >= ask.limit then needs = busy_ms end
  elseif money < ask.least and ask.room < ask.least then
    needs = ask.level + ask.least <= ask.limit and busy_ms or math.max(1, ask.ends - now)
  end
  if needs > wait then wait, binding = needs, i - 1 end
end

if wait == 0 and lease then
  local record = {} -- what is settled to the token, or held until then; see settle.lua
  for i, ask in ipairs(asks) do
    local key, cost = ask.key, ask.cost
    if cost == 0 then
      -- looked at
    elseif ask.kind == 'r' then
      local b = ask.bucket
      b.level = b.level + cost * UNIT
      redis.call('HSET', key, 'level', b.level, 'at', b.at, 'gone', b.gone, 'born', b.born)
      redis.call('PEXPIRE', key, math.ceil(b.level / ask.limit) + 1000)
      ask.level = b.level
      if ask.unit == 'tokens' then
        record[#record + 1] = 'r tokens ' .. whole(ask.limit) .. ' ' .. whole(cost) .. ' '
          .. whole(b.gone + b.level) .. ' ' .. whole(b.born) .. ' ' .. key
      end
    elseif ask.kind == 'c' then
      ask.level = redis.call('INCRBY', key, cost)
      if ask.level == cost or ask.ends < now then -- it is new, or lives while it is asked for
        redis.call('PEXPIREAT', key, math.max(ask.ends, now) + late_ms)
      end
      if ask.unit == 'tokens' then
        record[#record + 1] = 'c tokens 0 ' .. whole(cost) .. ' 0 0 ' .. key
      end
    elseif ask.kind == 's' then
      redis.call('ZADD', key, now + slot_ms, lease)
      redis.call('PEXPIRE', key, slot_ms + 1000)
      ask.level = ask.level + 1
      record[#record + 1] = 's slots 0 0 0 0 ' .. key
    else
      ask.held = redis.call('HINCRBY', key, 'held', money)
      redis.call('HSET', key, 'open ' .. lease, whole(money) .. ' ' .. whole(now + lease_ms))
      record[#record + 1] = 'm money 0 0 0 0 ' .. key
    end
  end
  redis.call('SET', lease, table.concat(record, '\n'), 'PX', lease_ms)
end

local reply = {wait, binding, money}
for _, ask in ipairs(asks) do
  reply[#reply + 1] = ask.level
  reply[#reply + 1] = ask.held
end
return reply
