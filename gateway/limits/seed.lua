-- What the ledger says was spent of a budget, unless it is known here.
-- KEYS: the budget    ARGV: nano-dollars, end of its period (unix ms; 0: none)
redis.call('HSETNX', KEYS[1], 'spent', ARGV[1])
if ARGV[2] ~= '0' then redis.call('PEXPIREAT', KEYS[1], tonumber(ARGV[2]) + 7200000) end
return {1}
