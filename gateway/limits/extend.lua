-- More money for a running request: as much as every budget has left, or none.
-- KEYS: the lease, then the budgets
-- ARGV: what it holds already, what it wants, the least that helps, lease ms; for each budget: limit,
--   soft
-- Returns: {money, index of the budget with the least left}; {-1} where spending is not known here
local lease, held = KEYS[1], tonumber(ARGV[1])
local want, least = tonumber(ARGV[2]), tonumber(ARGV[3])

local function whole(number) return string.format('%.0f', number) end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local room, binding, gaps, opens = want, 0, {}, {}
for i = 2, #KEYS do
  local found = redis.call('HMGET', KEYS[i], 'spent', 'held', 'open ' .. lease)
  if not found[1] then return {-1} end
  opens[i] = found[3] and tonumber(string.match(found[3], '^%d+')) or 0
  gaps[i] = found[3] and 0 or held
  local limit, soft = tonumber(ARGV[2 * i + 1]), ARGV[2 * i + 2]
  local left = soft == '1' and want or limit - tonumber(found[1]) - tonumber(found[2] or '0') - gaps[i]
  if left < room then room, binding = left, i - 2 end
end
if room < least then return {0, binding} end
for i = 2, #KEYS do
  redis.call('HINCRBY', KEYS[i], 'held', whole(room + gaps[i]))
  redis.call('HSET', KEYS[i], 'open ' .. lease,
    whole(opens[i] + gaps[i] + room) .. ' ' .. whole(now + ARGV[4]))
end
return {room, binding}
