-- Reservations that may have been forgotten here.
-- KEYS: the budget
-- ARGV: end of its period (unix ms; 0: none), ms until they are overdue, ms that a counter outlives
--   its period; then for each: lease, nano-dollars
-- Returns: {how many were}
local key, entered = KEYS[1], 0
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 4, #ARGV, 2 do
  if redis.call('HEXISTS', key, 'done ' .. ARGV[i]) == 0 then
    local value = ARGV[i + 1] .. ' ' .. string.format('%.0f', now + ARGV[2])
    if redis.call('HSETNX', key, 'open ' .. ARGV[i], value) == 1 then
      redis.call('HINCRBY', key, 'held', ARGV[i + 1])
      entered = entered + 1
    end
  end
end
if entered > 0 and ARGV[1] ~= '0' then
  redis.call('PEXPIREAT', key, math.max(tonumber(ARGV[1]), now) + ARGV[3])
end
return {entered}
