-- Forget reservations that nobody settled: the ledger says what they used, if anything.
-- KEYS: a budget    Returns: {how many}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gone, all = 0, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 5) == 'open ' then
    local money, until_ms = string.match(all[i + 1], '^(%d+) (%d+)$')
    if tonumber(until_ms) <= now then
      redis.call('HINCRBY', KEYS[1], 'held', '-' .. money)
      redis.call('HDEL', KEYS[1], all[i])
      gone = gone + 1
    end
  end
end
return {gone}
