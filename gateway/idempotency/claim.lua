-- Claim a key, or say what it stands for.
-- KEYS: the key, all keys of its project
-- ARGV: hash of the request, owner, ms until a claim is free, ms that answers are kept, how many
-- Returns: {} claimed; {hash of its request} under way; {hash, content type, kept or "", body}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], 'request', 'kind', 'body')
if found[1] then
  if found[2] then return {found[1], found[2], found[3] and 'kept' or '', found[3] or ''} end
  return {found[1]}
end
redis.call('HSET', KEYS[1], 'request', ARGV[1], 'owner', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[4])
redis.call('ZADD', KEYS[2], now, KEYS[1])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
local over = redis.call('ZCARD', KEYS[2]) - ARGV[5]
if over > 0 then
  for _, old in ipairs(redis.call('ZRANGE', KEYS[2], 0, over - 1)) do redis.call('DEL', old) end
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, over - 1)
end
return {}
