-- Give back what a lease holds and did not use, once. The arithmetic is bucket.py's.
-- KEYS: the bucket, the lease
-- ARGV: the bucket's limit, what was used
-- Returns: {units taken out of the bucket}
local UNIT = 60000
local lease = redis.call('GET', KEYS[2])
if not lease then return {0} end
redis.call('DEL', KEYS[2])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, used = tonumber(ARGV[1]), tonumber(ARGV[2])
local held = {}
for number in string.gmatch(lease, '%d+') do held[#held + 1] = tonumber(number) end
local cost, position, born = held[1], held[2], held[3]

local function whole(number) return string.format('%.0f', number) end

local found = redis.call('HMGET', KEYS[1], 'level', 'at', 'gone', 'born')
local was, at = tonumber(found[1] or '0'), tonumber(found[2] or now)
local gone, same = tonumber(found[3] or '0'), found[4] and tonumber(found[4]) == born
local level = math.max(0, math.min(was, limit * UNIT) - math.max(0, now - at) * limit)
gone = gone + was - level

local refund = (cost - used) * UNIT
if refund > 0 then
  refund = math.max(0, math.min(refund, same and position - gone or 0, level))
end
if refund == 0 then return {0} end

level = level - refund
redis.call('HSET', KEYS[1], 'level', whole(level), 'at', whole(math.max(now, at)),
  'gone', whole(gone + math.max(0, refund)), 'born', found[4] or whole(now))
redis.call('PEXPIRE', KEYS[1], math.ceil(level / limit) + 1000)
return {refund}
