-- Keep the answer of a claim, or give it up; nothing where the key is not the claim's any more.
-- KEYS: the key, all keys of its project
-- ARGV: owner, then for an answer: ms to keep it, content type, kept or "", body
-- Returns: {1: done, 0: it was not ours, or is finished}
local found = redis.call('HMGET', KEYS[1], 'owner', 'kind')
if found[1] ~= ARGV[1] or found[2] then return {0} end
if #ARGV == 1 then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], KEYS[1])
  return {1}
end
redis.call('HSET', KEYS[1], 'kind', ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'body', ARGV[5]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1}
