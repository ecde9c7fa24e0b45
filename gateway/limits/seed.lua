-- What the ledger says was spent of a budget, unless it is known here. See seeding.py.
-- KEYS: the budget
-- ARGV: nano-dollars, end of its period (unix ms; 0: none), version, not before (unix ms), how long
--   a doubted counter waits (ms), ms that a counter outlives its period; then the leases that are
--   not in these nano-dollars
-- Returns: {0: it counts, -1: others have come to it since, else ms that it is too early}
local key, spent = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if redis.call('HEXISTS', key, 'spent') == 1 then return {0} end
local doubted = tonumber(redis.call('HGET', key, 'doubted') or '-1e15')
local earliest = math.max(tonumber(ARGV[4]), doubted + tonumber(ARGV[5]))
if now < earliest then return {earliest - now} end

local known, done = {}, {}
for i = 7, #ARGV do known[ARGV[i]] = true end
local all = redis.call('HGETALL', key)
for i = 1, #all, 2 do
  local state, lease = string.match(all[i], '^(%a+) (.+)$')
  if state then
    if not known[lease] then return {-1} end
    if state == 'done' then
      spent = spent + tonumber(all[i + 1])
      done[#done + 1] = all[i]
    end
  end
end
for _, field in ipairs(done) do redis.call('HDEL', key, field) end
redis.call('HDEL', key, 'doubted')
redis.call('HSET', key, 'spent', string.format('%.0f', spent), 'version', ARGV[3])
if ARGV[2] ~= '0' then -- perhaps long over, for whoever asks late or has another time than this server
  redis.call('PEXPIREAT', key, math.max(tonumber(ARGV[2]), now) + ARGV[6])
end
return {0}
