-- What a lease used in truth; what else it holds goes back, once. The arithmetic is memory.py's.
-- KEYS: the lease, then budgets to charge should the lease be forgotten here
-- ARGV: tokens used, nano-dollars used, 1: charge only budgets that know a reservation of it
-- Returns: {1: settled, 0: nothing was held}
local UNIT = 60000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease, tokens, money = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])

local function whole(number) return string.format('%.0f', number) end

local function charge(key, always)
  local open = redis.call('HGET', key, 'open ' .. lease)
  if open then
    local held = string.match(open, '^%d+')
    if held ~= '0' then redis.call('HINCRBY', key, 'held', '-' .. held) end
    redis.call('HDEL', key, 'open ' .. lease)
  end
  local reserved = open or redis.call('HDEL', key, 'gone ' .. lease) == 1
  if redis.call('HEXISTS', key, 'spent') == 1 then
    if always or reserved then redis.call('HINCRBY', key, 'spent', whole(money)) end
  elseif reserved then -- else the ledger says it, when it is read
    redis.call('HSET', key, 'done ' .. lease, whole(money))
  end
end

local function pour_back(key, limit, cost, position, born)
  local found = redis.call('HMGET', key, 'level', 'at', 'gone', 'born')
  local was, at = tonumber(found[1] or '0'), tonumber(found[2] or now)
  local gone, same = tonumber(found[3] or '0'), found[4] and tonumber(found[4]) == born
  local level = math.max(0, math.min(was, limit * UNIT) - math.max(0, now - at) * limit)
  gone = gone + was - level
  local back = (cost - tokens) * UNIT
  if back > 0 then
    back = math.max(0, math.min(back, same and position - gone or 0, level))
  end
  if back == 0 then return end
  level = level - back
  redis.call('HSET', key, 'level', level, 'at', math.max(now, at),
    'gone', gone + math.max(0, back), 'born', found[4] or now)
  redis.call('PEXPIRE', key, math.ceil(level / limit) + 1000)
end

local record = redis.call('GET', lease)
if not record then
  for i = 2, #KEYS do charge(KEYS[i], ARGV[3] ~= '1') end
  return {0}
end
redis.call('DEL', lease)
for line in string.gmatch(record, '[^\n]+') do
  local kind, unit, limit, cost, position, born, key =
    string.match(line, '^(%a) (%a+) (%d+) (%d+) (%d+) (%d+) (.+)$')
  if kind == 'm' then
    charge(key, true)
  elseif kind == 's' then
    redis.call('ZREM', key, lease)
  elseif unit == 'tokens' and kind == 'r' then
    pour_back(key, tonumber(limit), tonumber(cost), tonumber(position), tonumber(born))
  elseif unit == 'tokens' and kind == 'c' and redis.call('EXISTS', key) == 1 then
    local left = redis.call('INCRBY', key, whole(tokens - tonumber(cost)))
    if left < 0 then redis.call('INCRBY', key, whole(-left)) end
  end
end
return {1}
