-- Say that this gateway lives; learn how many do.
-- KEYS: the set of gateways    ARGV: this gateway, how many seconds a word is good for
-- Returns: {how many}
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return {redis.call('ZCARD', KEYS[1])}
