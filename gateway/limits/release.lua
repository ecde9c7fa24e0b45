-- A lease that nobody settled holds nothing from here on; the ledger may charge it later.
-- KEYS: a budget    ARGV: the lease    Returns: {1: it held something}
local open = redis.call('HGET', KEYS[1], 'open ' .. ARGV[1])
if not open then return {0} end
local held = string.match(open, '^%d+')
if held ~= '0' then redis.call('HINCRBY', KEYS[1], 'held', '-' .. held) end
redis.call('HDEL', KEYS[1], 'open ' .. ARGV[1])
redis.call('HSET', KEYS[1], 'gone ' .. ARGV[1], '0')
return {1}
