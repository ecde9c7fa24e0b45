-- Say that this gateway lives; learn how many do, and since when this server knows anything.
-- KEYS: the set of gateways, when the first of them came
-- ARGV: this gateway, how many seconds a word is good for
-- Returns: {how many, unix ms}
local time = redis.call('TIME')
local now = tonumber(time[1])
redis.call('SET', KEYS[2], string.format('%.0f', now * 1000 + math.floor(time[2] / 1000)), 'NX')
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return {redis.call('ZCARD', KEYS[1]), tonumber(redis.call('GET', KEYS[2]))}
