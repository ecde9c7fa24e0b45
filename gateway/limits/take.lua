-- Take from every bucket, or from none. The arithmetic is bucket.py's.
-- KEYS: the buckets, then perhaps the lease on the last of them
-- ARGV: for each bucket its limit and the cost; then how long the lease is kept, in ms
-- Returns: {wait in ms (0: taken), index of the binding bucket, level of each bucket}
local UNIT, TIRED = 60000, 1e15
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count = (#ARGV - 1) / 2
local reply, buckets = {0, 0}, {}

local function whole(number) return string.format('%.0f', number) end

local function look(key, limit)
  local found = redis.call('HMGET', key, 'level', 'at', 'gone', 'born')
  if not found[4] then return {level = 0, at = now, gone = 0, born = now} end
  local was, at, gone = tonumber(found[1]), tonumber(found[2]), tonumber(found[3])
  if gone > TIRED then return {level = was, at = now, gone = 0, born = now} end
  local level = math.max(0, math.min(was, limit * UNIT) - math.max(0, now - at) * limit)
  return {level = level, at = math.max(now, at), gone = gone + was - level, born = tonumber(found[4])}
end

for i = 1, count do
  local limit, cost = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local bucket = look(KEYS[i], limit)
  local wait = math.max(0, math.ceil((bucket.level + (cost - limit) * UNIT) / limit))
  if wait > reply[1] then reply[1], reply[2] = wait, i - 1 end
  buckets[i] = bucket
end

for i, bucket in ipairs(buckets) do
  local limit, cost = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  if reply[1] == 0 and cost > 0 then
    bucket.level = bucket.level + cost * UNIT
    redis.call('HSET', KEYS[i], 'level', whole(bucket.level), 'at', whole(bucket.at),
      'gone', whole(bucket.gone), 'born', whole(bucket.born))
    redis.call('PEXPIRE', KEYS[i], math.ceil(bucket.level / limit) + 1000)
  end
  reply[i + 2] = bucket.level
end

if reply[1] == 0 and KEYS[count + 1] then
  local last = buckets[count]
  local held = {ARGV[2 * count], whole(last.gone + last.level), whole(last.born)}
  redis.call('SET', KEYS[count + 1], table.concat(held, ' '), 'PX', ARGV[#ARGV])
end
return reply
